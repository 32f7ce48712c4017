"""The command ``translate``: translates lines as they arrive."""

import dataclasses
import itertools
import math
from collections.abc import Iterator
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
from jaxformer.errors import UserError
from jaxformer.files import STDIN, STDOUT

if TYPE_CHECKING:
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

    def rows(self, translator: "Translator", line: Line, found: list["Hypothesis"]) -> list[str]:
        """Returns the output for a line; a blank one has score 0, or nan after an error."""
        if self.json:
            best = found[: self.n_best or 1]
            values = {
                "source": line.text,
                "hypotheses": [_hypothesis(translator, each) for each in best],
            }
            if line.error is not None:
                values["error"] = line.error
            return [json_line(values)]

        scored = [(hypothesis.text, hypothesis.score) for hypothesis in found]
        if not scored:
            score_of_blank = 0.0 if line.error is None else math.nan
            scored = [("", score_of_blank)]

        if self.n_best is not None:
            index = line.number - 1
            rows = []
            for text, score in scored[: self.n_best]:
                escaped = text.replace("|||", _BARS)
                rows.append(f"{index} ||| {escaped} ||| {score:.6f}")
            return rows

        text, score = scored[0]
        if self.scores:
            return [f"{score:.6f}\t{text}"]
        return [text]

    def check_split(self) -> None:
        """Refuses what only a sentence has, unless JSON shows it for each sentence."""
        for flag, is_given in (
            ("--scores", self.scores),
            ("--n-best", self.n_best is not None and not self.json),
            ("--alignments", self.alignments is not None),
        ):
            if is_given:
                raise UserError(
                    f"{flag} is for lines with one sentence, and --split for several: leave one of "
                    "them out, or give --json, which has the hypotheses of each sentence"
                )

    def paragraph_row(
        self,
        translator: "Translator",
        line: Line,
        sentences: list[str],
        found: list[list["Hypothesis"]],
    ) -> str:
        """Returns the output for a line of several sentences, with the hypotheses of each."""
        if not self.json:
            best = [hypotheses[0].text for hypotheses in found if hypotheses]
            return translator.join_sentences(best)

        rows = []
        for sentence, hypotheses in zip(sentences, found, strict=True):
            best = hypotheses[: self.n_best or 1]
            rows.append(
                {
                    "source": sentence,
                    "hypotheses": [_hypothesis(translator, each) for each in best],
                }
            )

        values: dict[str, object] = {"source": line.text, "sentences": rows}
        if line.error is not None:
            values["error"] = line.error
        return json_line(values)


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
        style.check_split()
        forced.check_none("--split", "makes several sentences of a line")

    translator = model.load(workdir, search.settings(workdir))
    style.check(translator)
    prefix = translator.prefix_ids(forced.prefix or "", "--prefix")
    blank = _Encoded(sentences=[""], sources=[[]], prefix=prefix)
    if split:
        translator.split_sentences("")  # refuses models that it cannot split for

    def encode(line: Line) -> _Encoded:
        place = f"{text.name}:{line.number}"
        sentences = translator.split_sentences(line.text, place) if split else [line.text]
        sources = [translator.source_ids(sentence, place) for sentence in sentences]
        own_prefix = translator.prefix_ids(line.other, f"{forced.prefixes}:{line.number}")
        return _Encoded(sentences, sources, prefix or own_prefix)

    first = 1
    with (
        blocks_of(text, encode, output, strict=strict) as (blocks, write, report),
        open_output(style.alignments) as write_alignments,
    ):
        for block in blocks:
            encoded = [line.encoded or blank for line in block]
            ids = [list(itertools.chain(*line.sources)) for line in encoded]
            report_unknown(translator.tokenizer, block, text.name, ids)

            sources = [source for line in encoded for source in line.sources]
            prefixes = None
            if forced.prefixes_of(block) is not None:
                prefixes = [line.prefix for line in encoded]
            decoded = translator.translate_ids(
                sources,
                prefixes,
                n_best=style.n_best or 1,
                first=first,
                # The progress bar counts lines.
                report=report if not split else lambda finished: None,
            )
            first += len(sources)
            found = [translator.hypotheses_of(each) for each in decoded]
            if terms is not None:
                sentences = [sentence for line in encoded for sentence in line.sentences]
                found = terms.apply(
                    translator,
                    sentences,
                    sources,
                    found,
                    n_best=style.n_best or 1,
                )

            rows = []
            remaining = iter(found)
            for line, (own_sentences, *_) in zip(block, encoded, strict=True):
                own = list(itertools.islice(remaining, len(own_sentences)))
                if split:
                    rows.append(style.paragraph_row(translator, line, own_sentences, own))
                    report(1)
                else:
                    rows += style.rows(translator, line, own[0])
            write(rows)

            if style.alignments is not None:
                lines = _align(translator, block, found, sources, layer=style.alignment_layer)
                write_alignments(lines)


COMMAND = Command("translate", translate, place=30)


def _align(
    translator: "Translator",
    block: list[Line],
    found: list[list["Hypothesis"]],
    sources: list[list[int]],
    layer: int | None,
) -> Iterator[str]:
    """Returns the alignments of the best hypotheses in Pharaoh format."""
    from jaxformer.inference.alignment import align, format_pharaoh

    texts = [line.text for line in block]
    best = [_best(hypotheses) for hypotheses in found]
    pairs = align(
        translator,
        texts,
        best,
        layer=layer,
        source_ids=sources,
    )
    return map(format_pharaoh, pairs)


def _best(hypotheses: list["Hypothesis"]) -> tuple[str, list[int]]:
    """Returns text and tokens of the best hypothesis; of a blank line, there are none."""
    if not hypotheses:
        return "", []
    return hypotheses[0].text, hypotheses[0].tokens
