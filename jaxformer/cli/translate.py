"""The command ``translate``: translates lines as they arrive."""

import dataclasses
import math
from typing import TYPE_CHECKING

from jaxformer import pretrained
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
    from jaxformer.inference.translator import Hypothesis, Translator


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
        if self.n_best is not None and not 1 <= self.n_best <= search.num_hypotheses:
            limit, flag = "beam size", "beam-size"
            if isinstance(search, Sampling):
                limit, flag = "number of samples", "samples"
            raise UserError(
                f"--n-best must be from 1 to the {limit}, {search.num_hypotheses}: got "
                f"{self.n_best}; use --{flag} {max(1, self.n_best)}"
            )
        layer_indices(translator, self.alignment_layer)

    def rows(self, translator: "Translator", line: Line, found: list["Hypothesis"]) -> list[str]:
        """Returns the output for a line; a blank one has score 0, or nan after an error."""
        if self.json:
            piece = translator.tokenizer.piece
            rows = [
                {name: getattr(h, name) for name in ("text", "score", "log_prob")}
                | {"tokens": [piece(token) for token in h.tokens]}
                for h in found[: self.n_best or 1]
            ]
            error = {} if line.error is None else {"error": line.error}
            values = {"source": line.text, "hypotheses": rows, **error}
            return [json_line(values)]
        blank = ("", 0.0 if line.error is None else math.nan)
        scored = [(h.text, h.score) for h in found] or [blank]
        if self.n_best is not None:
            best = scored[: self.n_best]
            shown = [(text.replace("|||", _BARS), score) for text, score in best]
            return [f"{line.number - 1} ||| {text} ||| {score:.6f}" for text, score in shown]
        text, score = scored[0]
        return [f"{score:.6f}\t{text}" if self.scores else text]


def translate(
    *,
    workdir: TranslatorDir = pretrained.WORKDIR,
    input: InputFile | None = None,
    output: OutputFile | None = None,
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
    from jaxformer.inference.alignment import align, format_pharaoh

    check_outputs(
        [input or STDIN, forced.prefixes],
        {"--output": output or STDOUT, "--alignments": style.alignments},
    )
    text = forced.text(input)
    translator = model.load(workdir, search.settings(workdir))
    style.check(translator)
    translator.target_ids(forced.prefix or "", "--prefix")

    def check(line: Line) -> None:
        translator.source_ids(line.text, f"{text.name}:{line.number}")
        translator.target_ids(line.other, f"{forced.prefixes}:{line.number}")

    with (
        blocks_of(text, check, output, strict=strict) as (blocks, write, report),
        open_output(style.alignments) as write_alignments,
    ):
        for block in blocks:
            report_unknown(translator.tokenizer, block, text.name)
            texts = [line.text for line in block]
            prefixes, first = forced.prefixes_of(block), block[0].number
            found = translator.hypotheses(
                texts, n_best=style.n_best or 1, prefixes=prefixes, first=first, report=report
            )
            rows = zip(block, found, strict=True)
            write(row for line, best in rows for row in style.rows(translator, line, best))
            if style.alignments is not None:
                best = [(h[0].text, h[0].tokens) if h else ("", []) for h in found]
                pairs = align(translator, texts, best, layer=style.alignment_layer)
                write_alignments(map(format_pharaoh, pairs))
