"""The command ``translate``: translates lines as they arrive."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from jaxformer import pretrained
from jaxformer.cli.command import Command
from jaxformer.cli.options import (
    InputFile,
    ModelOptions,
    OutputFile,
    SearchOptions,
    Strict,
    TranslatorDir,
)
from jaxformer.cli.outputs import check_outputs, open_output
from jaxformer.cli.text import (
    Line,
    PrefixOptions,
    blocks_of,
    json_line,
    report_unknown,
)
from jaxformer.data.sentences import join_ranks
from jaxformer.errors import UserError
from jaxformer.files import STDIN, STDOUT

if TYPE_CHECKING:
    from jaxformer.inference.glossary import Glossary
    from jaxformer.inference.hypotheses import Hypothesis
    from jaxformer.inference.translator import Translator


# Moses' escape of |||, which separates the columns of its n-best lists.
_BARS = "&#124;" * 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class FormatOptions:
    """Options for the format of the output.

    Format: A score is the log probability divided by the length penalty.
      scores: print lines of score, tab, translation
      json: print lines of JSON: the source, and text, score, log_prob and tokens of each hypothesis
      n_best: print the N best hypotheses as "line ||| translation ||| score", lines from 0; bars
        within a translation are escaped as Moses does; with --json: N hypotheses in each object
      alignments: write word alignments of the best translations in Pharaoh format: for each line,
        "source-target" pairs of word indices from 0, derived from attention
      alignment_layer: decoder layer whose attention gives the alignments, from 1 (default: the last
        but one)
    """

    scores: bool = False
    json: bool = False
    n_best: int | None = None
    alignments: OutputFile | None = None
    alignment_layer: int | None = None

    def __post_init__(self) -> None:
        if self.scores and (self.json or self.n_best is not None):
            other = "--json" if self.json else "--n-best"
            raise UserError(f"--scores is not needed with {other}, which prints them; leave it out")
        if self.alignment_layer is not None and self.alignments is None:
            raise UserError("--alignment-layer needs --alignments FILE to write them to")

    def check(self, translator: "Translator") -> None:
        """Refuses --n-best above the number of hypotheses, and layers that do not exist."""
        from jaxformer.inference.alignment import layer_indices
        from jaxformer.search import Sampling

        search = translator.config.search
        if isinstance(search, Sampling):
            limit = "number of samples"
            flag = "--samples"
        else:
            limit = "beam size"
            flag = "--beam-size"

        if self.n_best is not None and not 1 <= self.n_best <= search.num_hypotheses:
            raise UserError(
                f"--n-best must be from 1 to the {limit}, {search.num_hypotheses}: got "
                f"{self.n_best}; use {flag} {max(1, self.n_best)}"
            )

        layer_indices(translator, self.alignment_layer)  # refuses a layer that does not exist

    def rows(self, translated: "Translated") -> list[str]:
        """Returns the output for a line; a blank one has score 0, or nan after an error."""
        line = translated.line
        if self.json:
            values = {"source": line.text} | self._json_values(translated)
            if line.error is not None:
                values["error"] = line.error
            return [json_line(values)]

        texts, scores = translated.n_best()
        if not texts:
            texts = [""]
            scores = [0.0 if line.error is None else math.nan]

        if self.n_best is not None:
            index = line.number - 1
            rows = []
            for text, score in zip(texts[: self.n_best], scores, strict=False):
                escaped = text.replace("|||", _BARS)
                rows.append(f"{index} ||| {escaped} ||| {score:.6f}")
            return rows

        if self.scores:
            return [f"{scores[0]:.6f}\t{texts[0]}"]
        return [texts[0]]

    def _json_values(self, translated: "Translated") -> dict[str, object]:
        """Returns the hypotheses of a line, or with ``--split``, of each of its sentences."""
        rows = []
        for sentence, found in zip(translated.sentences, translated.found, strict=True):
            best = found[: self.n_best or 1]
            hypotheses = [_hypothesis(translated.translator, each) for each in best]
            rows.append({"source": sentence, "hypotheses": hypotheses})
        if translated.is_paragraph:
            return {"sentences": rows}
        return {"hypotheses": rows[0]["hypotheses"]}


def _hypothesis(translator: "Translator", hypothesis: "Hypothesis") -> dict[str, object]:
    """Returns a hypothesis as an object for JSON, with its tokens as text."""
    return {
        "text": hypothesis.text,
        "score": hypothesis.score,
        "log_prob": hypothesis.log_prob,
        "tokens": [translator.tokenizer.piece(token) for token in hypothesis.tokens],
    }


class _Encoded(NamedTuple):
    """The sentences of a line, their token ids, and the token ids of the forced prefix."""

    sentences: list[str]
    sources: list[list[int]]
    prefix: list[int]


class Translated(NamedTuple):
    """The n-best lists of the sentences of a line."""

    translator: "Translator"
    line: Line
    is_paragraph: bool  # the line was split into its sentences
    sentences: list[str]
    sources: list[list[int]]
    found: "list[list[Hypothesis]]"

    def n_best(self) -> tuple[list[str], list[float]]:
        """Returns texts and scores of the line, best first; scores of sentences are added."""
        if not self.is_paragraph:
            (found,) = self.found
            return [each.text for each in found], [each.score for each in found]

        lists = [found for found in self.found if found]
        texts = [[each.text for each in found] for found in lists]
        scores = [[each.score for each in found] for found in lists]
        return join_ranks(texts, self.translator.join_sentences), join_ranks(scores, sum)


class _LineTranslator:
    """Translates blocks of lines: splits them into sentences, searches, and places terms."""

    def __init__(
        self,
        translator: "Translator",
        name: str,
        forced: PrefixOptions,
        *,
        split: bool,
        terms: "Glossary | None",
        n_best: int,
    ) -> None:
        """Takes the name of the text, for messages, and options of the command."""
        if split:
            translator.split_sentences("")  # refuses models that it cannot split for
        self._translator = translator
        self._name = name
        self._forced = forced
        self._prefix = translator.prefix_ids(forced.prefix or "", "--prefix")
        self._split = split
        self._terms = terms
        self._n_best = n_best
        self._first = 1  # number of the next sentence

    def encode(self, line: Line) -> _Encoded:
        """Returns the sentences of a line; refuses one that is too long with a ``UserError``."""
        place = f"{self._name}:{line.number}"
        sentences = [line.text]
        if self._split:
            sentences = self._translator.split_sentences(line.text, place)
        sources = [self._translator.source_ids(sentence, place) for sentence in sentences]
        place_of_prefix = f"{self._forced.prefixes}:{line.number}"
        own_prefix = self._translator.prefix_ids(line.other, place_of_prefix)
        return _Encoded(sentences, sources, self._prefix or own_prefix)

    def translate(
        self,
        block: "list[Line]",
        report: Callable[[int], object],
    ) -> list[Translated]:
        """Returns the translations of a block; reports numbers of lines that are done."""
        blank = _Encoded(sentences=[""], sources=[[]], prefix=self._prefix)
        encoded = [line.encoded or blank for line in block]
        ids = [list(itertools.chain(*line.sources)) for line in encoded]
        report_unknown(self._translator.tokenizer, block, self._name, ids)

        found = iter(self._search(block, encoded, report))
        translated = []
        for line, own in zip(block, encoded, strict=True):
            of_line = list(itertools.islice(found, len(own.sentences)))
            translated.append(
                Translated(
                    self._translator,
                    line,
                    is_paragraph=self._split,
                    sentences=own.sentences,
                    sources=own.sources,
                    found=of_line,
                )
            )
        if self._split:
            report(len(block))
        return translated

    def _search(
        self,
        block: "list[Line]",
        encoded: list[_Encoded],
        report: Callable[[int], object],
    ) -> "list[list[Hypothesis]]":
        """Returns the n-best lists of all sentences of a block."""
        sentences = [sentence for line in encoded for sentence in line.sentences]
        sources = [source for line in encoded for source in line.sources]
        prefixes = None
        if self._forced.prefixes_of(block) is not None:
            prefixes = [line.prefix for line in encoded]

        decoded = self._translator.translate_ids(
            sources,
            prefixes,
            n_best=self._n_best,
            first=self._first,
            # The progress bar counts lines.
            report=report if not self._split else lambda finished: None,
        )
        self._first += len(sources)
        found = [self._translator.hypotheses_of(each) for each in decoded]
        if self._terms is None:
            return found
        return self._terms.apply(
            self._translator,
            sentences,
            sources,
            found,
            n_best=self._n_best,
        )


def translate(
    *,
    workdir: TranslatorDir = pretrained.WORKDIR,
    input: InputFile | None = None,
    output: OutputFile | None = None,
    split: bool = False,
    glossary: InputFile | None = None,
    strict: Strict = False,
    style: FormatOptions,
    model: ModelOptions,
    search: SearchOptions,
    forced: PrefixOptions,
) -> None:
    """Translate lines of text, from standard input or a file.

    Text: One line of output for each line of input, blank lines included. A line that is too long
    or not UTF-8 gives a blank translation, with --json an object with an error. --output is first
    written as OUTPUT.<process id>.partial and renamed at the end; an interrupted run leaves its
    finished lines there.
      input: source text, one sentence per line (default: standard input)
      split: lines are paragraphs: translate each sentence of a line by itself; with --json: objects
        have "sentences", each with its source and hypotheses
      glossary: terms to be translated so: a term, a tab and its translation in each line
      output: file for the translations (default: standard output)

    Example:
      echo "Where is the station?" | jaxformer translate
      Wo ist der Bahnhof?

      jaxformer translate --workdir runs/multi30k --input in.txt --output out.txt

      echo "A dog runs." | jaxformer translate --workdir runs/multi30k --n-best 2
      0 ||| Ein Hund rennt. ||| -0.412345
      0 ||| Ein Hund läuft. ||| -0.523456

      jaxformer translate     # type a line, press Enter; Ctrl-D ends
    """
    check_outputs(
        [input or STDIN, forced.prefixes, glossary],
        {"--output": output or STDOUT, "--alignments": style.alignments},
    )
    text = forced.text(input)
    terms = None
    if glossary is not None:
        from jaxformer.inference.glossary import Glossary

        forced.check_none("--glossary", "forces the beginnings of translations")
        terms = Glossary.load(glossary)
    if split:
        forced.check_none("--split", "makes several sentences of a line")

    translator = model.load(workdir, search.settings(workdir))
    style.check(translator)
    lines = _LineTranslator(
        translator,
        text.name,
        forced,
        split=split,
        terms=terms,
        n_best=style.n_best or 1,
    )
    if split and style.alignments is not None:
        _check_spaces(translator)

    with (
        blocks_of(text, lines.encode, output, strict=strict) as (blocks, write, report),
        open_output(style.alignments) as write_alignments,
    ):
        for block in blocks:
            translated = lines.translate(block, report)
            write([row for line in translated for row in style.rows(line)])
            if style.alignments is not None:
                write_alignments(_align(translator, translated, style.alignment_layer))


COMMAND = Command("translate", translate, place=30)


def _align(
    translator: "Translator",
    translated: list[Translated],
    layer: int | None,
) -> Iterator[str]:
    """Returns the alignments of the best translations of lines in Pharaoh format."""
    from jaxformer.data.tokenizer import split_spaces
    from jaxformer.inference.alignment import align, format_pharaoh

    found = [hypotheses for line in translated for hypotheses in line.found]
    best = [_best(hypotheses) for hypotheses in found]
    sentences = [sentence for line in translated for sentence in line.sentences]
    pairs = align(
        translator,
        sentences,
        best,
        layer=layer,
        source_ids=[source for line in translated for source in line.sources],
    )

    remaining = iter(zip(sentences, best, pairs, strict=True))
    for line in translated:
        of_line = []
        end = 0  # of the sentence before, in the line
        num_targets = 0  # words of the translations before
        own = itertools.islice(remaining, len(line.sentences))
        for sentence, (text, _), pairs_of_sentence in own:
            start = line.line.text.index(sentence, end)
            end = start + len(sentence)
            first = len(split_spaces(line.line.text[:start] + "x")) - 1
            of_line += [(first + s, num_targets + t) for s, t in pairs_of_sentence]
            num_targets += len(split_spaces(text))
        yield format_pharaoh(of_line)


def _check_spaces(translator: "Translator") -> None:
    """Refuses alignments of paragraphs whose sentences have no space in between."""
    if translator.join_sentences(["a", "b"]) == "ab":
        raise UserError(
            "--alignments with --split numbers the words of a line, whose sentences have no space "
            "in between in this model's target language: leave one of them out"
        )


def _best(hypotheses: list["Hypothesis"]) -> tuple[str, list[int]]:
    """Returns text and tokens of the best hypothesis; of a blank line, there are none."""
    if not hypotheses:
        return "", []
    return hypotheses[0].text, hypotheses[0].tokens
