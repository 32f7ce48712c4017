"""The interface between server and model, and its implementation with a ``Translator``."""

import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from jaxformer.config import DataConfig, data_section
from jaxformer.data.corpus import UNKNOWN_LANGUAGE
from jaxformer.data.languages import Languages, client_codes, language_name, short_code
from jaxformer.data.tokenizer import EOS, split_spaces
from jaxformer.errors import UserError
from jaxformer.inference.alignment import word_attention
from jaxformer.inference.glossary import Glossary
from jaxformer.inference.hypotheses import Hypothesis
from jaxformer.inference.translator import Translator
from jaxformer.serving.protocol import Sentence, Translation

# Sources and translations of this many tokens have word attention, with one program for each size.
_ATTENTION_TOKENS = (16, 32, 64)


@runtime_checkable
class Backend(Protocol):
    """A model, its name, and the codes of the target languages of each of its source languages."""

    name: str
    languages: Languages

    def translate(self, sentences: list[Sentence]) -> Sequence[Translation | Exception]:
        """Returns a translation or an error for each sentence."""
        ...


class TranslatorBackend:
    def __init__(
        self,
        translator: Translator,
        languages: Languages | None = None,
        task_prefix: str = "",
        name: str = "",
        glossary: Glossary | None = None,
    ) -> None:
        """Takes the languages from the config, or from a tokenizer with language codes.

        Args:
          translator: The model.
          languages: Languages of a model that does not know its own, such as an imported T5.
          task_prefix: Text that each source begins with, such as T5's names of tasks; "{source}"
            and "{target}" stand for the names of the languages.
          name: The name of the model that the page shows.
          glossary: Terms of all requests; a request's own come first.
        """
        self.name = name
        self._terms = {} if glossary is None else dict(glossary.terms)
        data = data_section(translator.config, DataConfig)
        self._translator = translator

        # The source of a multilingual model begins with the code of the target language.
        prefixes = {code.strip("<>"): f"{code} " for code in translator.tokenizer.language_codes}
        targets = client_codes(prefixes or [data.target_language])
        self._prefixes = {code: prefixes.get(own, "") for code, own in targets.items()}

        if languages is not None and prefixes:
            known = ", ".join(targets)
            raise UserError(
                f"--languages: the model has its own target languages: {known}; leave it out"
            )

        self.languages: Languages = {short_code(data.source_language): list(targets)}
        if languages is not None:
            self.languages = languages
        elif UNKNOWN_LANGUAGE in (data.source_language, data.target_language):
            self.languages = {}

        self._task_prefix = task_prefix
        _check_task_prefix(task_prefix, self.languages)

    def warm_up(self, max_batch: int, report: Callable[[str], object]) -> None:
        """Compiles all programs of batches up to this size; reports each step before it starts."""
        translator = self._translator
        translator.warm_up(sentences=max_batch, tokens=translator.max_length, report=report)

        if self._terms:
            translator.warm_up(
                sentences=max_batch,
                tokens=translator.max_length,
                prefixes=True,
                report=report,
            )

        for tokens in _ATTENTION_TOKENS:
            report(f"attention for the page, of at most {tokens} tokens")
            longest = [EOS] * min(tokens, translator.max_length)
            word_attention(translator, ["a"], [("", longest)])

    def translate(self, sentences: list[Sentence]) -> list[Translation | Exception]:
        """Returns a translation or a ``UserError`` for each sentence."""
        texts: list[str] = []
        sources: list[list[int]] = []
        errors: dict[int, Exception] = {}
        for number, sentence in enumerate(sentences):
            text = ""
            if sentence.text.strip():
                text = self._prefix(sentence) + sentence.text
            source: list[int] = []
            try:
                source = self._translator.source_ids(text)
            except UserError as error:
                # The others are translated nonetheless.
                errors[number] = error
            texts.append(text)
            sources.append(source)

        only_best = all(sentence.only_best for sentence in sentences)
        n_best = 1 if only_best else 0
        decoded = self._translator.translate_ids(sources, n_best=n_best)
        n_best_lists = [self._translator.hypotheses_of(each) for each in decoded]
        glossaries = [self._terms | dict(sentence.terms) for sentence in sentences]
        n_best_lists = self._with_terms(glossaries, texts, sources, n_best_lists, n_best=n_best)

        answers: list[Translation | Exception] = []
        for number, sentence in enumerate(sentences):
            if number in errors:
                answers.append(errors[number])
                continue
            text = texts[number]
            hypotheses = n_best_lists[number]
            attention = None
            if sentence.attention and hypotheses:
                attention = self._attention(text, sources[number], hypotheses[0])
            answers.append(
                Translation(
                    texts=[hypothesis.text for hypothesis in hypotheses],
                    scores=[hypothesis.score for hypothesis in hypotheses],
                    attention=attention,
                )
            )
        return answers

    def _with_terms(
        self,
        glossaries: Sequence[dict[str, str]],
        texts: Sequence[str],
        sources: Sequence[list[int]],
        found: Sequence[list[Hypothesis]],
        *,
        n_best: int,
    ) -> list[list[Hypothesis]]:
        """Returns the n-best lists with the terms of each sentence's glossary."""
        result = list(found)
        groups: dict[frozenset[tuple[str, str]], list[int]] = {}
        for number, terms in enumerate(glossaries):
            if terms:
                groups.setdefault(frozenset(terms.items()), []).append(number)

        # Sentences with one glossary are translated together.
        for numbers in groups.values():
            changed = Glossary(glossaries[numbers[0]]).apply(
                self._translator,
                [texts[number] for number in numbers],
                [sources[number] for number in numbers],
                [found[number] for number in numbers],
                n_best=n_best,
            )
            for number, hypotheses in zip(numbers, changed, strict=True):
                result[number] = hypotheses
        return result

    def _prefix(self, sentence: Sentence) -> str:
        """Returns the code of the target language, if the model needs it, and the task."""
        task = self._task_prefix
        task = task.replace("{source}", language_name(sentence.source))
        task = task.replace("{target}", language_name(sentence.target))
        return self._prefixes.get(sentence.target, "") + task

    def _attention(
        self,
        text: str,
        source: list[int],
        best: Hypothesis,
    ) -> dict[str, Any] | None:
        """Returns attention between words, as the page shows it; None for long sentences."""
        if max(len(source), len(best.tokens)) > _ATTENTION_TOKENS[-1]:
            return None

        target = (best.text, best.tokens)
        (weights,) = word_attention(self._translator, [text], [target], source_ids=[source])
        return {
            "source": split_spaces(text),
            "target": split_spaces(best.text),
            "weights": weights.round(4).tolist(),
        }


def _check_task_prefix(prefix: str, languages: Languages) -> None:
    """Refuses names in braces that stand for nothing, or for languages that nobody knows."""
    names = re.findall(r"\{(.*?)\}", prefix)
    for name in names:
        if name not in ("source", "target"):
            raise UserError(
                f"--task-prefix: expected {{source}} and {{target}} in braces, got {{{name:.20}}}"
            )
    if names and not languages:
        raise UserError(
            f"--task-prefix: {{{names[0]}}} stands for the name of a language, which the model "
            "does not know; give --languages, such as en-de"
        )
