"""The commands ``attention`` and ``plot``."""

import dataclasses
import pathlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from jaxformer import pretrained
from jaxformer.checks import parse_numbers
from jaxformer.cli.command import Command
from jaxformer.cli.options import File, ModelDir, ModelOptions, SearchOptions, TranslatorDir
from jaxformer.cli.signatures import Option
from jaxformer.errors import UserError, typed_command
from jaxformer.files import check_output, is_own_folder, write_file

if TYPE_CHECKING:
    from jaxformer.inference.attention_view import AttentionView
    from jaxformer.plots.paper_figures import PaperFigure


Heads: TypeAlias = Annotated[list[int], Option(metavar="N,N,...", convert=parse_numbers)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionOptions:
    """Options that select attention weights.

    Selection, which the page shows first:
      kind: encoder or decoder self-attention, or encoder-decoder attention (default: cross, or the
        only one of an encoder or a language model)
      layer (LAYER): layer, from 1 (default: the last)
      heads: heads, from 1 (default: all)
      figure: draw the counterpart of this figure of the paper: encoder self-attention as lines, or
        a language model's; layer (default: the second-to-last), heads and word are chosen to
        resemble it
      word (WORD): query of figures 3 and 4, a source token (default: chosen automatically)
      mean_heads: draw the mean of the heads, in an image without --figure
      annotate: write each weight, in percent, into its cell, in an image without --figure
    """

    kind: Literal["encoder", "decoder", "cross"] | None = None
    layer: int | None = None
    heads: Heads | None = None
    figure: Literal[3, 4, 5] | None = None
    word: str | None = None
    mean_heads: bool = False
    annotate: bool = False

    def __post_init__(self) -> None:
        if self.figure is not None and self.kind == "cross":
            raise UserError("--figure shows self-attention: got --kind cross")
        if self.word is not None and self.figure not in (3, 4):
            raise UserError("--word is the word of a figure: give --figure 3 or --figure 4, too")
        if self.figure is not None:
            self.check_no_map("--figure draws lines")

    def check_no_map(self, reason: str) -> None:
        """Refuses the options of an attention map."""
        for name, given in (("--mean-heads", self.mean_heads), ("--annotate", self.annotate)):
            if given:
                raise UserError(f"{name} is for attention maps, images without --figure: {reason}")

    def kind_of(self, view: "AttentionView") -> str:
        """Returns the kind that is shown: for figures, self-attention of the first stack."""
        if self.figure is None:
            return self.kind or view.kinds[-1]

        first = view.kinds[0]
        kind = self.kind or first
        if kind != first:
            raise UserError(f"--figure shows {first} self-attention: got --kind {kind}")
        return kind

    def selection(self, view: "AttentionView") -> tuple[int, list[int]]:
        """Returns the layer and heads, from 0; by default the last layer and all heads."""
        _, _, weights = view.weights_of(self.kind_of(view))
        num_layers, num_heads = weights.shape[:2]

        layer = num_layers if self.layer is None else self.layer
        if not 1 <= layer <= num_layers:
            raise UserError(f"--layer must be from 1 to {num_layers}: got {layer}")

        heads = self.heads or range(1, num_heads + 1)
        for head in heads:
            if not 1 <= head <= num_heads:
                raise UserError(f"--heads must be from 1 to {num_heads}: got {head}")
        return layer - 1, [head - 1 for head in heads]

    def figures(self, view: "AttentionView") -> "dict[int, PaperFigure]":
        """Returns the paper's figures with the selected layer, heads and word."""
        from jaxformer.plots.paper_figures import paper_figures

        layer, heads = self.selection(view)
        pieces, _, weights = view.weights_of(self.kind_of(view))

        token = None
        if self.word is not None:
            tokens = [piece.replace("▁", " ").strip() for piece in pieces]
            if self.word not in tokens:
                known = " ".join(tokens)
                raise UserError(f"--word: expected one of the tokens {known}: got {self.word}")
            token = tokens.index(self.word)

        return paper_figures(
            weights,
            pieces,
            layer=None if self.layer is None else layer,  # None: each figure has its own default
            heads=heads,
            token=token,
        )


def attention(
    sentence: str,
    *,
    workdir: TranslatorDir = pretrained.WORKDIR,
    output: File | None = None,
    shown: AttentionOptions,
    model: ModelOptions,
    search: SearchOptions,
) -> None:
    """Translate, classify or read a sentence and plot its attention weights, as a page or an image.

    Options:
      sentence (SENTENCE): source sentence, or the text that a language model reads
      output: file to write: .html for an interactive page of all layers, heads and kinds, which
        works offline; .png or .svg for an image (default: attention.html in --workdir, or here)

    Example:
      jaxformer attention "Where is the station?"     # an interactive web page

      jaxformer attention --workdir runs/multi30k "A dog runs." --figure 3 --output figure3.svg

      jaxformer attention --workdir runs/multi30k "A dog runs." --heads 1,3 --output heads.png
    """
    from jaxformer.config import read_config
    from jaxformer.inference.attention_view import ONE_TEXT, record_attention, record_text
    from jaxformer.runs.workdir import Workdir

    output = output or _output_folder(workdir) / "attention.html"
    check_suffix(output, ".html, .png or .svg")
    is_page = output.suffix.lower() == ".html"
    if is_page:
        shown.check_no_map(f"{output} is a page")

    kind = read_config(Workdir(workdir)).kind
    if kind in ONE_TEXT:
        reason = f"{workdir}: {kind.description} only reads the sentence"
        model.check_only("weights", reason=reason)
        search.check_none(reason=reason)
        view = record_text(workdir, sentence, weights=model.weights)
    else:
        translator = model.load(workdir, search.settings(workdir))
        view = record_attention(translator, sentence)

    if is_page:
        write_file(output, _page(shown, view).encode())
    else:
        _draw(shown, view, output)
    print(f"{output}: {view.translation or view.sentence}")


ATTENTION = Command("attention", attention, place=180)


def _page(shown: AttentionOptions, view: "AttentionView") -> str:
    """Returns an interactive page, which shows the selection first."""
    kind = shown.kind_of(view)
    layer, heads = shown.selection(view)
    return view.page(
        kind=kind,
        layer=layer,
        heads=heads,
        figures=None if shown.figure is None else shown.figures(view),
        figure=shown.figure,
    )


def _draw(shown: AttentionOptions, view: "AttentionView", output: pathlib.Path) -> None:
    """Draws the selected heads, or the counterpart of a figure of the paper."""
    from jaxformer.plots.attention_lines import attention_lines, figure_panels
    from jaxformer.plots.attention_maps import attention_map
    from jaxformer.plots.figure import check_fonts

    kind = shown.kind_of(view)
    layer, heads = shown.selection(view)
    queries, keys, weights = view.weights_of(kind)
    text = view.translation or view.sentence
    check_fonts([*queries, *keys, text])

    if shown.figure is not None:
        choice = shown.figures(view)[shown.figure]
        attention_lines(
            weights[choice.layer],
            queries,
            figure_panels(shown.figure, choice),
            path=output,
            title=f"{kind} self-attention, layer {choice.layer + 1} of {len(weights)}",
        )
        return

    drawn = weights[layer, heads]
    panels = [f"head {head + 1}" for head in heads]
    if shown.mean_heads:
        drawn = drawn.mean(axis=0, keepdims=True)
        panels = [f"mean of {len(heads)} heads"]
    attention_map(
        drawn,
        queries,
        keys,
        path=output,
        title=f"{text}\n{kind} attention, layer {layer + 1} of {len(weights)}",
        panels=panels,
        annotate=shown.annotate,
    )


def plot(
    *,
    workdir: ModelDir,
    beside: Sequence[ModelDir] = (),
    output: File | None = None,
) -> None:
    """Plot the learning curves of a run, or of several, as an image.

    Options:
      beside: runs to draw in the same panels
      output: image to write, .png or .svg (default: learning_curve.png in the workdir)

    Example:
      jaxformer plot --workdir runs/numerals

      jaxformer plot --workdir runs/mine --beside runs/other --output both.png
    """
    from jaxformer.plots.learning_curve import MAX_RUNS, learning_curve, read_metrics
    from jaxformer.runs.workdir import Workdir

    output = output or _output_folder(workdir) / "learning_curve.png"
    check_suffix(output, ".png or .svg")

    folders = [workdir, *beside]
    if len(folders) > MAX_RUNS:
        raise UserError(
            f"--beside: expected at most {MAX_RUNS - 1} runs, which have a color each: got "
            f"{len(beside)}"
        )

    runs = {}
    for folder in folders:
        metrics = Workdir(folder).metrics
        if not metrics.is_file():
            raise UserError(f"{metrics}: no such file; it is made by {typed_command('train')}")
        if str(folder) in runs:
            raise UserError(f"--beside: expected each run once: got {folder} twice")
        runs[str(folder)] = read_metrics(metrics)

    learning_curve(runs, output)
    print(output)


PLOT = Command("plot", plot, place=190)


def _output_folder(workdir: pathlib.Path) -> pathlib.Path:
    """Returns the folder of an image without a name: the workdir, or here if it is jaxformer's."""
    return workdir if is_own_folder(workdir) else pathlib.Path()


def check_suffix(output: pathlib.Path, known: str) -> None:
    suffixes = re.findall(r"\.\w+", known)
    if output.suffix.lower() not in suffixes:
        raise UserError(f"--output: expected a name that ends in {known}: got {output}")
    check_output(output)
