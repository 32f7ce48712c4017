"""Requests and answers of LibreTranslate's protocol, with the texts of its errors."""

import contextlib
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from jaxformer.errors import UserError

# Codes of target languages by source language.
Languages: TypeAlias = Mapping[str, Sequence[str]]

# Other languages are shown by their codes.
_NAMES = dict(
    re.findall(
        r"(\w+)=(\w+)",
        "ar=Arabic cs=Czech da=Danish de=German el=Greek en=English es=Spanish et=Estonian "
        "fi=Finnish fr=French hi=Hindi hu=Hungarian it=Italian ja=Japanese ko=Korean lt=Lithuanian "
        "lv=Latvian nl=Dutch pl=Polish pt=Portuguese ro=Romanian ru=Russian sv=Swedish tr=Turkish "
        "uk=Ukrainian zh=Chinese",
    )
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of the server; they are options of ``jaxformer serve``.

    Limits: Larger requests get HTTP 400 or 413. If the queue is full, requests get 429.
      char_limit: maximum number of characters of a text
      batch_limit: maximum number of sentences, lines of all texts, of a request
      body_limit (BYTES): maximum size of a request
      queue_limit: maximum number of sentences that wait
      max_batch: maximum number of sentences that are translated together
      threads: number of batches that are translated at the same time
    """

    char_limit: int = 5000
    batch_limit: int = 128
    body_limit: int = 1 << 20
    queue_limit: int = 512
    max_batch: int = 8
    threads: int = 2

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1: got {value}")
        if self.batch_limit > self.queue_limit:
            raise UserError("--batch-limit must be at most --queue-limit, or no request could wait")


class Sentence(NamedTuple):
    text: str
    target: str  # code of the target language
    attention: bool = False  # also return attention from word to word
    only_best: bool = False  # the rest of the n-best list is not needed


class Translation(NamedTuple):
    """The n-best list of a line, best first; empty for a blank line."""

    texts: list[str]
    scores: list[float]
    attention: dict[str, Any] | None = None  # source words, target words, weights [T, S]


class Query(NamedTuple):
    texts: list[list[str]]  # lines of each text
    is_list: bool  # the request had a list of texts
    is_auto: bool  # the request left the source language to the server
    target: str
    alternatives: int  # number of translations in addition to the best
    details: bool  # return n-best lists and attention, which LibreTranslate does not have

    @property
    def sentences(self) -> list[Sentence]:
        options = self.target, self.details, not (self.details or self.alternatives)
        return [Sentence(line, *options) for text in self.texts for line in text]


def list_languages(languages: Languages) -> list[dict[str, Any]]:
    """Returns the answer to ``/languages``."""
    codes = dict.fromkeys([*languages, *(code for found in languages.values() for code in found)])
    return [
        {"code": code, "name": _NAMES.get(code, code), "targets": list(languages.get(code, ()))}
        for code in codes
    ]


def parse_json(body: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(fields := json.loads(body), dict):
            return fields
    raise UserError("Invalid JSON format")


def parse_query(fields: Mapping[str, Any], languages: Languages, limits: Limits) -> Query:
    """Checks the fields of a request; raises a ``UserError`` about the first that is wrong."""
    for name in ("q", "source", "target"):
        if not fields.get(name):
            raise UserError(f"Invalid request: missing {name} parameter")
    q, source, target = (fields[name] for name in ("q", "source", "target"))
    texts = q if isinstance(q, list) else [q]
    if not all(isinstance(value, str) for value in (*texts, source, target)):
        raise UserError("Invalid request: q, source and target must be strings, or q a list")
    try:
        alternatives = max(0, int(fields.get("alternatives") or 0))
    except (TypeError, ValueError, OverflowError):
        raise UserError("Invalid request: alternatives parameter is not a number") from None
    lines = [text.split("\n") for text in texts]
    sizes = [(len(text), limits.char_limit) for text in texts]
    for size, limit in [(sum(map(len, lines)), limits.batch_limit), *sizes]:
        if size > limit:
            raise UserError(f"Invalid request: request ({size}) exceeds text limit ({limit})")
    _check_languages(next(iter(languages)) if source == "auto" else source, target, languages)
    if (form := fields.get("format") or "text") != "text":
        raise UserError(f"{form!s:.20} format is not supported")
    is_list, details = isinstance(q, list), fields.get("details") is True
    return Query(lines, is_list, source == "auto", target, alternatives, details)


def _check_languages(source: str, target: str, languages: Languages) -> None:
    known = {row["code"]: f"{row['name']} ({row['code']})" for row in list_languages(languages)}
    for code in (source, target):
        if code not in known:
            raise UserError(f"{code:.20} is not supported")
    if target not in languages.get(source, ()):
        raise UserError(
            f"{known[target]} is not available as a target language from {known[source]}"
        )


def make_answer(query: Query, found: Sequence[Translation], languages: Languages) -> dict[str, Any]:
    """Returns the answer to a request, from the translations of its sentences."""
    remaining, ranked = iter(found), []
    for lines in query.texts:
        # A blank line has no translations, and stays as it is.
        options = [next(remaining).texts or [line] for line in lines]
        ranks = range(max(map(len, options)))
        ranked.append(["\n".join(o[min(rank, len(o) - 1)] for o in options) for rank in ranks])
    answer: dict[str, Any] = {"translatedText": [texts[0] for texts in ranked]}
    if query.alternatives:
        others = [list(dict.fromkeys(texts)) for texts in ranked]
        answer["alternatives"] = [texts[1 : 1 + query.alternatives] for texts in others]
    if query.is_auto:  # Nothing is detected, since a server has one source language.
        detected = {"confidence": 0.0, "language": next(iter(languages))}
        answer["detectedLanguage"] = [detected] * len(ranked)
    if not query.is_list:
        answer = {name: values[0] for name, values in answer.items()}
    if query.details:
        answer["details"] = [translation._asdict() for translation in found]
    return answer
