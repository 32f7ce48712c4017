"""Requests and answers of LibreTranslate's protocol, with the texts of its errors."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from jaxformer.data.languages import NAMES, UNDETERMINED, Languages, find_code, language_name
from jaxformer.data.sentences import join_ranks, join_sentences, split_sentences
from jaxformer.errors import UserError, did_you_mean
from jaxformer.serving.body import Fields
from jaxformer.serving.limits import Limits

T = TypeVar("T")
# Terms, in small letters, and their translations.
Terms: TypeAlias = tuple[tuple[str, str], ...]

_FRONTEND_TIMEOUT = 150  # milliseconds without a key before a page sends a request


class Sentence(NamedTuple):
    text: str
    target: str  # code of the target language
    attention: bool = False  # also return attention from word to word
    only_best: bool = False  # the rest of the n-best list is not needed
    source: str = UNDETERMINED  # code of the source language
    terms: Terms = ()  # of a glossary


class Translation(NamedTuple):
    """The n-best list of a sentence, best first; empty for a blank one."""

    texts: list[str]
    scores: list[float]
    attention: dict[str, Any] | None = None  # source words, target words, weights [T, S]


class Query(NamedTuple):
    texts: list[list[list[str]]]  # sentences of each line of each text
    is_list: bool  # the request had a list of texts
    is_auto: bool  # the request left the source language to the server
    source: str
    target: str
    alternatives: int  # number of translations in addition to the best
    details: bool  # return n-best lists and attention, which LibreTranslate does not have
    terms: Terms  # of a glossary, which LibreTranslate does not have

    @property
    def sentences(self) -> list[Sentence]:
        needs_all = self.details or self.alternatives
        return [
            Sentence(
                sentence,
                self.target,
                attention=self.details,
                only_best=not needs_all,
                source=self.source,
                terms=self.terms,
            )
            for lines in self.texts
            for sentences in lines
            for sentence in sentences
        ]


def list_languages(languages: Languages) -> list[dict[str, Any]]:
    """Returns the answer to ``/languages``."""
    targets_of = dict(languages) or _any_languages()

    # Sources first, each once.
    codes = dict.fromkeys(targets_of)
    for targets in targets_of.values():
        codes |= dict.fromkeys(targets)

    return [
        {
            "code": code,
            "name": language_name(code),
            "targets": list(targets_of.get(code, ())),
        }
        for code in codes
    ]


def _any_languages() -> dict[str, Sequence[str]]:
    """Returns all languages with a name, for a model whose languages nobody knows."""
    codes = [code for code in NAMES if code != UNDETERMINED]
    # The page shows the first language and its targets.
    return {UNDETERMINED: [UNDETERMINED], **dict.fromkeys(codes, codes)}


def source_language(languages: Languages) -> str:
    """Returns the source language of a model, for clients that leave it to the server."""
    return next(iter(languages), UNDETERMINED)


def list_settings(languages: Languages, limits: Limits, model: str) -> dict[str, Any]:
    """Returns the answer to ``/frontend/settings``, for pages such as ours."""
    source, *_ = list_languages(languages)
    target = source["targets"][0]
    return {
        "apiKeys": False,
        "charLimit": limits.char_limit,
        "filesTranslation": False,
        "frontendTimeout": _FRONTEND_TIMEOUT,
        "keyRequired": False,
        "language": {
            "source": {"code": source["code"], "name": source["name"]},
            "target": {"code": target, "name": language_name(target)},
        },
        "suggestions": False,
        "supportedFilesFormat": [],
        # Not in LibreTranslate.
        "lineLimit": limits.batch_limit,
        "model": model,
    }


def detect(given: Fields, languages: Languages) -> list[dict[str, Any]]:
    """Returns the answer to ``/detect``: the source language of the model, whatever the text."""
    fields = _check_fields(given, _DETECT_FIELDS)
    _check_present(fields, "q")
    return [_source_as_detected(languages)]


def _source_as_detected(languages: Languages) -> dict[str, Any]:
    """Returns LibreTranslate's row of a detected language; nothing is detected, hence the 0."""
    return {"confidence": 0.0, "language": source_language(languages)}


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise UserError(f"Invalid request: {name} must be a string")
    return value


def _texts(name: str, value: Any) -> str | list[str]:
    if isinstance(value, list):
        are_texts = all(isinstance(text, str) for text in value)
        if are_texts:
            return list(value)

    if not isinstance(value, str):
        raise UserError(f"Invalid request: {name} must be a string or a list of strings")
    return value


def _count(name: str, value: Any) -> int:
    is_whole_float = isinstance(value, float) and value.is_integer()
    is_text_or_int = isinstance(value, str | int) and not isinstance(value, bool)
    count = None
    if is_whole_float or is_text_or_int:
        with contextlib.suppress(ValueError):
            count = int(value)

    if count is None:
        raise UserError(f"Invalid request: {name} parameter is not a number")
    if count < 0:
        raise UserError(f"Invalid request: {name} must be at least 0: got {count}")
    return count


def _flag(name: str, value: Any) -> bool:
    text = value.lower() if isinstance(value, str) else value
    if text is True or text in ("true", "1"):
        return True
    if text is False or text in ("false", "0"):
        return False
    raise UserError(f"Invalid request: {name} must be true or false")


def _terms(name: str, value: Any) -> Terms:
    """Checks a glossary: an object, or in forms, lines of term, tab, translation."""
    pairs = value
    if isinstance(value, str):
        lines = [line for line in value.splitlines() if line.strip()]
        pairs = [tuple(line.split("\t")) for line in lines]

    found: list[Any] = pairs if isinstance(pairs, list) else [None]
    terms: dict[str, str] = {}
    for pair in found:
        is_pair = isinstance(pair, tuple) and len(pair) == 2
        if not is_pair or not all(isinstance(text, str) and text.strip() for text in pair):
            raise UserError(
                f"Invalid request: {name} must be an object of terms and their translations, or "
                "lines of term, tab, translation"
            )
        source, target = (text.strip() for text in pair)
        if terms.setdefault(source.casefold(), target) != target:
            raise UserError(f"Invalid request: {name} has two translations of {source:.40}")
    return tuple(terms.items())


def _plain(name: str, value: Any) -> str:
    if _text(name, value) != "text":
        raise UserError(
            f"{value:.20} format is not supported: the model has only seen plain text, and would "
            "translate tags as words; send the texts between them"
        )
    return value


# Checks the value of a field of this name, and returns it as we use it.
_Check: TypeAlias = Callable[[str, Any], Any]

# Fields of a request to translate.
_FIELDS: dict[str, _Check] = {
    "q": _texts,
    "source": _text,
    "target": _text,
    "format": _plain,
    "alternatives": _count,
    "details": _flag,
    "glossary": _terms,
    # LibreTranslate's clients send them; this server needs neither.
    "api_key": _text,
    "apiKey": _text,  # in the npm package libretranslate
    "secret": _text,
}
_DETECT_FIELDS = {name: _FIELDS[name] for name in ("q", "api_key", "apiKey", "secret")}


def _check_fields(fields: Fields, known: Mapping[str, _Check]) -> dict[str, Any]:
    """Returns the value of each field; raises a ``UserError`` about the first that is wrong.

    Blank values are left out, as in LibreTranslate. A field that is given twice, such as in the URL
    and in the body, has one value.
    """
    found: dict[str, Any] = {}
    for name, value in fields:
        if name not in known:
            hint = did_you_mean(name, known, f"known: {', '.join(known)}")
            raise UserError(f"Invalid request: unknown parameter {name:.20}; {hint}")
        if value is None or value == "":
            continue

        checked = known[name](name, value)
        if found.setdefault(name, checked) != checked:
            raise UserError(f"Invalid request: {name} is given twice, with different values")
    return found


def parse_query(
    given: Fields,
    languages: Languages,
    limits: Limits,
    *,
    split: bool = False,
) -> Query:
    """Checks the fields of a request; raises a ``UserError`` about the first that is wrong.

    If ``split``, lines are split into sentences.
    """
    fields = _check_fields(given, _FIELDS)
    _check_present(fields, "q", "source", "target")

    is_list = isinstance(fields["q"], list)
    texts = fields["q"] if is_list else [fields["q"]]
    num_lines = sum(text.count("\n") + 1 for text in texts)
    _check_size(num_lines, limits.batch_limit)
    for text in texts:
        _check_size(len(text), limits.char_limit)
    terms = fields.get("glossary", ())
    _check_size(sum(len(source) + len(target) for source, target in terms), limits.char_limit)

    is_auto = fields["source"] == "auto"
    source = source_language(languages) if is_auto else fields["source"]

    def sentences_of(text: str) -> list[list[str]]:
        lines = text.split("\n")
        if not split:
            return [[line] for line in lines]
        # A blank line is a sentence, too.
        return [split_sentences(line, source, "sentence") or [line] for line in lines]

    sentences = [sentences_of(text) for text in texts]
    _check_size(sum(len(line) for lines in sentences for line in lines), limits.batch_limit)
    return Query(
        texts=sentences,
        is_list=is_list,
        is_auto=is_auto,
        source=source,
        target=_find_target(source, fields["target"], languages),
        alternatives=fields.get("alternatives", 0),
        details=fields.get("details", False),
        terms=terms,
    )


def _check_present(fields: Mapping[str, Any], *names: str) -> None:
    for name in names:
        if not fields.get(name):
            raise UserError(f"Invalid request: missing {name} parameter")


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise UserError(f"Invalid request: request ({size}) exceeds text limit ({limit})")


def _find_target(source: str, target: str, languages: Languages) -> str:
    """Returns the model's code of a target language, if it translates the source to it."""
    if not languages:  # Any may be right.
        return target

    models_source = find_code(source, languages)
    if models_source is not None:
        models_target = find_code(target, languages[models_source])
        if models_target is not None:
            return models_target

    # One of the languages is unknown, or both are known, but not as a pair.
    names = {row["code"]: f"{row['name']} ({row['code']})" for row in list_languages(languages)}
    shown = []
    for code in (source, target):
        known = find_code(code, names)
        if known is None:
            raise UserError(f"{code:.20} is not supported")
        shown.append(names[known])
    source_name, target_name = shown
    raise UserError(f"{target_name} is not available as a target language from {source_name}")


def make_answer(query: Query, found: Sequence[Translation], languages: Languages) -> dict[str, Any]:
    """Returns the answer to a request, from the translations of its sentences."""
    remaining = iter(found)
    ranked = []  # n-best list of each text
    details = []  # of each line
    for lines in query.texts:
        n_best_lists = []
        for sentences in lines:
            translations = [next(remaining) for _ in sentences]
            line = _join_sentences(sentences, translations, query.target)
            n_best_lists.append(line["texts"] or sentences)
            details.append(line)
        ranked.append(join_ranks(n_best_lists, "\n".join))

    answer: dict[str, Any] = {"translatedText": [texts[0] for texts in ranked]}

    if query.alternatives:
        different = [list(dict.fromkeys(texts)) for texts in ranked]
        answer["alternatives"] = [texts[1 : 1 + query.alternatives] for texts in different]

    if query.is_auto:
        answer["detectedLanguage"] = [_source_as_detected(languages)] * len(ranked)

    if not query.is_list:
        answer = {name: values[0] for name, values in answer.items()}

    if query.details:
        answer["details"] = details
    return answer


def _join_sentences(
    sentences: Sequence[str],
    found: Sequence[Translation],
    target: str,
) -> dict[str, Any]:
    """Returns the details of a line; a line of several sentences has the details of each."""
    if len(found) == 1:
        return found[0]._asdict()

    def join(texts: Iterable[str]) -> str:
        return join_sentences(texts, target)

    n_best_lists = [each.texts or [text] for text, each in zip(sentences, found, strict=True)]
    return {
        "texts": join_ranks(n_best_lists, join),
        "scores": join_ranks([each.scores or [0.0] for each in found], sum),
        "attention": None,
        "sentences": [each._asdict() for each in found],
    }
