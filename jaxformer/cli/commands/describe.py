"""The command ``describe``: texts about pictures, maybe after examples of others."""

import pathlib
import sys
from typing import TYPE_CHECKING

from jaxformer.cli.command import Command
from jaxformer.cli.commands.plot import check_suffix
from jaxformer.cli.options import DecoderOptions, File, ModelDir, OutputFile, SearchOptions
from jaxformer.cli.outputs import check_outputs
from jaxformer.cli.pictures import read_pictures, write_rows
from jaxformer.files import STDOUT

if TYPE_CHECKING:
    from jaxformer.tasks.interleaved.picture_reader import PictureReader


def describe(
    *,
    workdir: ModelDir,
    images: File,
    examples: File | None = None,
    output: OutputFile | None = None,
    max_tokens: int = 64,
    gates: File | None = None,
    model: DecoderOptions,
) -> None:
    """Print a text about each picture with a language model that reads pictures.

    Options:
      images: folder of PNG and JPEG files, one such file, or .npz file with an array images, uint8
        [N, height, width, channels]; files are resized, and named after each text. If an .npz file
        also has texts, the fraction of texts that are the same is printed to standard error
      examples: .npz file with arrays images and texts, or folder with a captions.txt, which the
        model reads before each picture: a few-shot prompt
      output: file for the texts, one per line (default: standard output)
      max_tokens: most tokens of a text
      gates: image to write, .png or .svg: how far the gate before each layer is open

    Example:
      jaxformer describe --workdir runs/flamingo --images test.npz --examples examples.npz
    """
    from jaxformer.data.image_texts import read_image_texts
    from jaxformer.tasks.interleaved.picture_reader import PictureReader, exact_matches

    inputs = [images] if examples is None else [images, examples]
    check_outputs(inputs, {"--output": output or STDOUT, "--gates": gates})
    if gates is not None:
        check_suffix(gates, ".png or .svg")

    reader = model.load_as(PictureReader, workdir, SearchOptions(changes={}).settings(workdir))
    pictures = read_pictures(images, reader.model.form)
    shown = None
    if examples is not None:
        shown = read_image_texts("files", str(examples), reader.model.form)
    found = reader.describe(pictures.images, shown, max_tokens=max_tokens)

    if pictures.texts is not None:
        share = exact_matches(found, pictures.texts)
        print(f"exact matches {share:.2%} of {len(found):,}", file=sys.stderr)
    if gates is not None:
        _draw_gates(reader, gates)
    write_rows(output or STDOUT, [hypothesis.text for hypothesis in found], pictures)


COMMAND = Command("describe", describe, place=111)


def _draw_gates(reader: "PictureReader", path: pathlib.Path) -> None:
    import numpy as np

    from jaxformer.plots.gates import draw_gates

    gated = reader.params["decoder"]["gated"]
    attention = np.asarray(gated["attention_gate"], np.float32)
    every = reader.model.gated_every
    layers = [1 + every * number for number in range(len(attention))]
    feed_forward = np.asarray(gated["feed_forward_gate"], np.float32)
    draw_gates(attention, feed_forward, layers, path)
