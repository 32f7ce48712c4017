"""The commands ``attention`` and ``plot``."""

import argparse
import pathlib

from jaxformer import pretrained
from jaxformer.cli.progress import load
from jaxformer.errors import UserError
from jaxformer.files import check_output, write_file
from jaxformer.inference.attention_view import record_attention
from jaxformer.plots.attention_lines import attention_lines, figure_panels
from jaxformer.plots.attention_maps import attention_map
from jaxformer.plots.attention_page import AttentionView
from jaxformer.plots.learning_curve import learning_curve, read_metrics
from jaxformer.plots.paper_figures import PaperFigure, paper_figures
from jaxformer.runs.workdir import Workdir


def attention(options: argparse.Namespace) -> None:
    """Plots the attention of every head on one sentence, as an interactive page or an image.

    Raises:
      UserError: There is no such model, layer, head or word, the sentence cannot be translated,
        or the output is neither a page nor an image.
    """
    own = options.workdir != pretrained.WORKDIR
    output = options.output or (options.workdir if own else pathlib.Path()) / "attention.html"
    suffix = output.suffix.lower()
    if suffix not in (".html", ".png", ".svg"):
        raise UserError(f"--output: expected a name that ends in .html, .png or .svg: got {output}")
    check_output(output)
    if options.word is not None and options.figure not in (3, 4):
        raise UserError("--word is the word of a figure: give --figure 3 or --figure 4, too")
    if options.figure is not None and options.kind not in (None, "encoder"):
        raise UserError(f"--figure shows encoder self-attention: got --kind {options.kind}")
    view = record_attention(load(options), options.sentence)
    layer, heads = _chosen(options, view)
    kind = options.kind or "cross"
    if suffix == ".html":
        figures = None if options.figure is None else _figures(options, view, layer, heads)
        page = view.page(
            kind=kind, layer=layer, heads=heads, figures=figures, figure=options.figure
        )
        write_file(output, page.encode())
    elif options.figure is None:
        _draw_map(view, kind, layer, heads, output)
    else:
        _draw_figure(options, view, layer, heads, output)
    print(f"{output}: {view.translation}")


def _chosen(
    options: argparse.Namespace, view: AttentionView
) -> tuple[int | None, list[int] | None]:
    """Returns the layer and heads of the options, from 0; None for unset ones."""
    layers, heads = view.encoder.shape[:2]
    if options.layer is not None and not 1 <= options.layer <= layers:
        raise UserError(f"--layer must be from 1 to {layers}: got {options.layer}")
    for head in options.heads or ():
        if not 1 <= head <= heads:
            raise UserError(f"--heads must be from 1 to {heads}: got {head}")
    return (
        None if options.layer is None else options.layer - 1,
        None if options.heads is None else [head - 1 for head in options.heads],
    )


def _figures(
    options: argparse.Namespace, view: AttentionView, layer: int | None, heads: list[int] | None
) -> dict[int, PaperFigure]:
    token = _word(options, view)
    return paper_figures(view.encoder, view.source, layer=layer, heads=heads, token=token)


def _word(options: argparse.Namespace, view: AttentionView) -> int | None:
    """Returns the index of ``--word`` among the source tokens; None if unset."""
    if options.word is None:
        return None
    tokens = [token.replace("▁", " ").strip() for token in view.source]
    if options.word not in tokens:
        raise UserError(
            f"--word: expected one of the tokens {' '.join(tokens)}: got {options.word}"
        )
    return tokens.index(options.word)


def _draw_map(
    view: AttentionView,
    kind: str,
    layer: int | None,
    heads: list[int] | None,
    output: pathlib.Path,
) -> None:
    queries, keys, weights = view.weights_of(kind)
    layer = len(weights) - 1 if layer is None else layer
    heads = list(range(weights.shape[1])) if heads is None else heads
    title = f"{view.translation}\n{kind} attention, layer {layer + 1} of {len(weights)}"
    names = [head + 1 for head in heads]
    attention_map(weights[layer, heads], queries, keys, output, title=title, names=names)


def _draw_figure(
    options: argparse.Namespace,
    view: AttentionView,
    layer: int | None,
    heads: list[int] | None,
    output: pathlib.Path,
) -> None:
    choice = _figures(options, view, layer, heads)[options.figure]
    attention_lines(
        view.encoder[choice.layer],
        view.source,
        figure_panels(options.figure, choice),
        output,
        title=f"encoder self-attention, layer {choice.layer + 1} of {len(view.encoder)}",
    )


def plot(options: argparse.Namespace) -> None:
    """Plots the learning curves of a run.

    Raises:
      UserError: The output is not an image, or the folder has no metrics.
    """
    output = options.output or options.workdir / "learning_curve.png"
    if output.suffix.lower() not in (".png", ".svg"):
        raise UserError(f"--output: expected a name that ends in .png or .svg: got {output}")
    check_output(output)
    folder = Workdir(options.workdir)
    if not folder.metrics.is_file():
        raise UserError(f"{folder.metrics}: no such file; it is made by train.py")
    learning_curve(read_metrics(folder.metrics), output)
    print(output)
