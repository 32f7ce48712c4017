"""Commands that draw: ``attention``, ``plot``."""

import argparse

from jaxformer.cli.loading import load
from jaxformer.errors import UserError
from jaxformer.inference.attention import look
from jaxformer.plots.attention import attention_map
from jaxformer.plots.learning_curve import learning_curve, read_metrics
from jaxformer.workdir import Workdir


def attention(options: argparse.Namespace) -> None:
    """Draws the attention of every head on one sentence.

    Raises:
      UserError: There is no such model or layer, or the sentence cannot be translated.
    """
    view = look(load(options), options.sentence)
    queries, keys, weights = view.part(options.kind)
    layer = len(weights) if options.layer is None else options.layer
    if not 1 <= layer <= len(weights):
        raise UserError(f"--layer must be from 1 to {len(weights)}: got {layer}")
    output = options.output or options.workdir / "attention.png"
    title = f"{view.translation}\n{options.kind} attention, layer {layer} of {len(weights)}"
    attention_map(weights[layer - 1], queries, keys, output, title=title)
    print(f"{output}: {view.translation}")


def plot(options: argparse.Namespace) -> None:
    """Draws the learning curve of a run.

    Raises:
      UserError: The folder has no metrics.
    """
    folder = Workdir(options.workdir)
    if not folder.metrics.is_file():
        raise UserError(f"{folder.metrics}: no such file; it is made by train.py")
    output = options.output or options.workdir / "learning_curve.png"
    learning_curve(read_metrics(folder.metrics), output)
    print(output)
