"""Glossaries: terms whose translations are given.

The search has no constraint for words that may be anywhere (docs/beam_search.md says why). A term
is instead forced where attention finds its translation: the words before it, and then the wanted
term, become a forced prefix, and the rest is translated again.
"""

import dataclasses
import functools
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jaxformer.data.text_files import read_file
from jaxformer.data.tokenizer import split_spaces
from jaxformer.errors import UserError
from jaxformer.inference.alignment import align
from jaxformer.inference.hypotheses import Hypothesis
from jaxformer.inference.translator import Translator


class _Term(NamedTuple):
    """A term in a source sentence."""

    words: range  # its words in the source, from 0
    target: str  # its translation


class _Forced(NamedTuple):
    """A translation to be searched for again, after a prefix that ends with a term."""

    sentence: int
    term: _Term
    prefix: str


@dataclasses.dataclass(frozen=True)
class Glossary:
    """Terms by which a translator translates.

    Attributes:
      terms: Translations of terms. A term is one word or several, in small letters or capitals.
    """

    terms: Mapping[str, str]

    def __post_init__(self) -> None:
        for source, target in self.terms.items():
            if not source.strip() or not target.strip():
                raise UserError(
                    f"glossary: expected a term and its translation, got {source!r:.80} and "
                    f"{target!r:.80}"
                )

    @classmethod
    def load(cls, path: pathlib.Path) -> "Glossary":
        """Reads a term, a tab and its translation from each line that is not blank.

        Raises:
          UserError: A line has no such columns, or a term is given two translations.
        """
        terms: dict[str, str] = {}
        for number, line in enumerate(read_file(path), 1):
            if not line.strip():
                continue

            columns = [column.strip() for column in line.split("\t")]
            if len(columns) != 2 or not all(columns):
                raise UserError(
                    f"{path}:{number}: expected a term, a tab and its translation, got {line!r:.80}"
                )

            source, target = columns
            source = source.casefold()
            if terms.setdefault(source, target) != target:
                raise UserError(
                    f"{path}:{number}: {source!r:.80} has another translation above; leave one out"
                )
        if not terms:
            raise UserError(
                f"{path}: expected a term, a tab and its translation in a line, got none"
            )
        return cls(terms)

    def apply(
        self,
        translator: Translator,
        sentences: Sequence[str],
        sources: Sequence[list[int]],
        found: Sequence[list[Hypothesis]],
        *,
        n_best: int = 1,
    ) -> list[list[Hypothesis]]:
        """Returns n-best lists whose translations have the terms, as far as they can be placed.

        A translation that has its terms already is kept. A term whose translation attention does
        not find, or finds before a term that is already forced, is left out.

        Args:
          translator: The translator.
          sentences: Source sentences.
          sources: Their token ids.
          found: Their n-best lists.
          n_best: Number of hypotheses of sentences that are translated again.
        """
        result = list(found)
        prefixes = [""] * len(sentences)
        remaining = [self._terms_in(sentence) for sentence in sentences]

        # Each round forces one term of each sentence, from left to right.
        while forced := self._next_forced(
            translator,
            sentences,
            sources,
            result,
            prefixes=prefixes,
            remaining=remaining,
        ):
            decoded = translator.translate_ids(
                [sources[each.sentence] for each in forced],
                [translator.prefix_ids(each.prefix) for each in forced],
                n_best=n_best,
            )
            for each, hypotheses in zip(forced, decoded, strict=True):
                result[each.sentence] = translator.hypotheses_of(hypotheses)
                prefixes[each.sentence] = each.prefix
                remaining[each.sentence].remove(each.term)
        return result

    @functools.cached_property
    def _pattern(self) -> re.Pattern[str]:
        """Any term as whole words; of terms that overlap, the longest."""
        longest_first = sorted(self.terms, key=len, reverse=True)
        any_term = "|".join(map(re.escape, longest_first))
        return re.compile(rf"(?<!\w)(?:{any_term})(?!\w)", re.IGNORECASE)

    @functools.cached_property
    def _translations(self) -> dict[str, str]:
        return {source.casefold(): target for source, target in self.terms.items()}

    def _terms_in(self, sentence: str) -> list[_Term]:
        """Returns the terms of a source sentence; of terms that overlap, the longest."""
        terms = []
        for match in self._pattern.finditer(sentence):
            target = self._translations.get(match[0].casefold())
            if target is not None:
                start = len(split_spaces(sentence[: match.start()] + "x")) - 1
                length = len(split_spaces(match[0]))
                terms.append(_Term(range(start, start + length), target))
        return terms

    def _next_forced(
        self,
        translator: Translator,
        sentences: Sequence[str],
        sources: Sequence[list[int]],
        found: Sequence[list[Hypothesis]],
        *,
        prefixes: Sequence[str],
        remaining: list[list[_Term]],
    ) -> list[_Forced]:
        """Returns the first missing term of each sentence; drops the terms that it cannot force."""
        numbers: list[int] = []
        for number, hypotheses in enumerate(found):
            text = hypotheses[0].text if hypotheses else ""
            remaining[number] = [each for each in remaining[number] if not _has(text, each.target)]
            if hypotheses and remaining[number]:
                numbers.append(number)

        alignments = align(
            translator,
            [sentences[n] for n in numbers],
            [(found[n][0].text, found[n][0].tokens) for n in numbers],
            source_ids=[sources[n] for n in numbers],
        )

        forced = []
        for number, alignment in zip(numbers, alignments, strict=True):
            words = split_spaces(found[number][0].text)
            free_from = len(split_spaces(prefixes[number]))
            placed = []
            for term in remaining[number]:
                places = [t for s, t in alignment if s in term.words and t >= free_from]
                if places:
                    placed.append((min(places), term))
            if placed:
                place, term = min(placed, key=lambda each: each[0])
                first_letter = term.target[:1]
                target = (first_letter if place else first_letter.upper()) + term.target[1:]
                prefix = " ".join([*words[:place], target])
                forced.append(_Forced(number, term, prefix))
        return forced


def _has(text: str, term: str) -> bool:
    """Returns whether a translation has a term as whole words, in small letters or capitals."""
    return re.search(rf"(?<!\w){re.escape(term)}(?!\w)", text, re.IGNORECASE) is not None
