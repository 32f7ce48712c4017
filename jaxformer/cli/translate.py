"""The command ``translate``: translates lines as they arrive."""

import dataclasses
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from jaxformer import pretrained
from jaxformer.cli.options import File, ModelOptions, SearchOptions, Strict, TranslatorDir
from jaxformer.cli.text import (
    Line,
    PrefixOptions,
    Text,
    check_outputs,
    is_on_screen,
    is_stream,
    reading,
    report_unknown,
    writing,
    writing_if_named,
)
from jaxformer.errors import UserError

if TYPE_CHECKING:
    from jaxformer.inference.translator import Hypothesis, Translator
    from jaxformer.search import BeamSearch, Sampling


@dataclasses.dataclass(frozen=True, kw_only=True)
class FormatOptions:
    """Options for the format of the output.

    Format: A score is the log probability divided by the length penalty.
      scores: print lines of score, tab, translation
      json: print lines of JSON: the source, and text, score, log_prob and tokens of each hypothesis
      n_best: print the N best hypotheses as "line ||| translation ||| score", lines from 0; with
        --json: N hypotheses in each object
      alignments: write word alignments of the best translations in Pharaoh format: for each line,
        "source-target" pairs of word indices from 0, derived from attention
      alignment_layer: decoder layer whose attention gives the alignments, from 1 (default: the last
        but one)
    """

    scores: bool = False
    json: bool = False
    n_best: int | None = None
    alignments: File | None = None
    alignment_layer: int | None = None

    def __post_init__(self) -> None:
        if self.scores and (self.json or self.n_best is not None):
            other = "--json" if self.json else "--n-best"
            raise UserError(f"--scores is not needed with {other}, which prints them; leave it out")
        if self.alignment_layer is not None and self.alignments is None:
            raise UserError("--alignment-layer needs --alignments FILE to write them to")

    def check(self, search: "BeamSearch | Sampling") -> None:
        """Refuses more hypotheses than the search returns."""
        from jaxformer.search import Sampling

        if self.n_best is not None and not 1 <= self.n_best <= search.num_hypotheses:
            limit, flag = "beam size", "beam-size"
            if isinstance(search, Sampling):
                limit, flag = "number of samples", "samples"
            raise UserError(
                f"--n-best must be from 1 to the {limit}, {search.num_hypotheses}: got "
                f"{self.n_best}; use --{flag} {max(1, self.n_best)}"
            )

    def lines(
        self,
        number: int,
        line: Line,
        hypotheses: Sequence["Hypothesis"],
        piece: Callable[[int], str],
    ) -> list[str]:
        """Returns the output for a line, numbered from 0, and its hypotheses, best first.

        A blank line has no hypotheses and score 0, or nan if it could not be translated. ``piece``
        returns the text of a token.
        """
        if self.json:
            rows = [
                {name: getattr(h, name) for name in ("text", "score", "log_prob")}
                | {"tokens": [piece(token) for token in h.tokens]}
                for h in hypotheses[: self.n_best or 1]
            ]
            error = {} if line.error is None else {"error": line.error}
            values = {"source": line.text, "hypotheses": rows, **error}
            return [json.dumps(values, ensure_ascii=False)]
        blank = ("", 0.0 if line.error is None else math.nan)
        scored = [(h.text, h.score) for h in hypotheses] or [blank]
        if self.n_best is not None:
            best = scored[: self.n_best]
            return [f"{number} ||| {text} ||| {score:.6f}" for text, score in best]
        text, score = scored[0]
        return [f"{score:.6f}\t{text}" if self.scores else text]


def translate(
    *,
    workdir: TranslatorDir = pretrained.WORKDIR,
    input: File | None = None,
    output: File | None = None,
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
    from jaxformer.inference.alignment import align, layer_indices, pharaoh

    settings = search.settings(workdir)
    style.check(settings)
    outputs = {"--output": output, "--alignments": style.alignments}
    check_outputs([input, forced.prefixes], outputs)
    text = Text(input)
    translator = model.load(workdir, settings)
    translator.target_ids(forced.prefix or "", "--prefix")
    if style.alignments is not None:
        layer_indices(translator, style.alignment_layer)  # Checks that the layer exists.
    if text.interactive:
        print("Type a sentence and press Enter; Ctrl-D ends.", file=sys.stderr)
    piece, done = translator.tokenizer.piece, 0
    with (
        reading(
            lambda: _checked(translator, text, forced),
            stream=text.stream or is_stream(forced.prefixes),
            strict=strict,
            hidden=text.interactive or is_on_screen(output),
        ) as (blocks, report),
        writing(output) as write,
        writing_if_named(style.alignments) as write_alignments,
    ):
        for block in blocks:
            texts = [line.text for line in block]
            report_unknown(translator.tokenizer, texts, text.name, done + 1)
            prefixes = [line.prefix for line in block]
            found = translator.hypotheses(
                texts,
                prefixes=prefixes if any(prefixes) else None,
                first=done + 1,
                report=report,
            )
            rows = zip(itertools.count(done), block, found)
            write(line for row in rows for line in style.lines(*row, piece))
            if write_alignments is not None:
                best = [(h[0].text, h[0].tokens) if h else ("", []) for h in found]
                pairs = align(translator, texts, best, layer=style.alignment_layer)
                write_alignments(map(pharaoh, pairs))
            done += len(block)


def _checked(translator: "Translator", text: Text, forced: PrefixOptions) -> Iterator[Line]:
    """Yields all lines with their prefixes; a line that cannot be translated becomes blank."""
    for number, line in enumerate(forced.lines(text), start=1):
        try:
            translator.source_ids(line.text, f"{text.name}:{number}")
            translator.target_ids(line.prefix, f"{forced.prefixes}:{number}")
        except UserError as error:
            line = Line("", error=str(error))
        yield line if line.error is None else Line("", error=line.error)
