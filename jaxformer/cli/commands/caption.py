"""The command ``caption``: writes a text about each picture."""

import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from jaxformer.cli.command import Command
from jaxformer.cli.commands.plot import check_suffix
from jaxformer.cli.options import DecoderOptions, File, ModelDir, OutputFile, SearchOptions
from jaxformer.cli.outputs import check_outputs
from jaxformer.cli.pictures import read_pictures, write_rows
from jaxformer.cli.signatures import Fields, flag
from jaxformer.cli.source_fields import searches
from jaxformer.cli.text import progress_bar
from jaxformer.errors import UserError
from jaxformer.files import STDOUT

if TYPE_CHECKING:
    import numpy as np

    from jaxformer.inference.hypotheses import Hypothesis
    from jaxformer.tasks.captions.captioner import Captioner
    from jaxformer.tasks.captions.picture_writer import PictureWriter
    from jaxformer.tasks.interleaved.picture_reader import PictureReader

_DRAWN = 8  # pictures with their attention


def caption(
    *,
    workdir: ModelDir,
    images: File,
    examples: File | None = None,
    output: OutputFile | None = None,
    attention: File | None = None,
    gates: File | None = None,
    model: DecoderOptions,
    changes: Annotated[dict[str, Any], Fields(searches, "search", without=("max_extra_length",))],
    sampling: bool = False,
) -> None:
    """Write a text about each picture, such as the words of a number in it.

    Pictures:
      images: folder of PNG and JPEG files, one such file, or .npz file with an array images, uint8
        [N, height, width, channels]; files are resized, and named after each text. If an .npz file
        also has texts, the percentage of exact matches is printed to standard error
      output: file for the texts, one per line (default: standard output)

    Encoder-decoders:
      attention: image to write, .png or .svg: the first eight pictures, and where the last layer
        looks as it writes each word

    Language models:
      examples: .npz file with arrays images and texts, or folder with a captions.txt, which the
        model reads before each picture: a few-shot prompt
      gates: image to write, .png or .svg: how far the gate before each layer is open

    Search: Defaults come from the run's config.

    Beam search: The default, unless the run's config samples.

    Sampling: Instead of beam search.
      sampling: sample instead of searching; --samples implies it

    Example:
      jaxformer caption --workdir runs/read_numbers --images numbers.npz --attention reading.png

      jaxformer caption --workdir runs/flamingo --images test.npz --examples examples.npz
    """
    from jaxformer.data.image_texts import read_image_texts
    from jaxformer.tasks.captions.picture_writer import PictureWriter, best_texts
    from jaxformer.tasks.predictor_classes import predictor_class

    inputs = [images] if examples is None else [images, examples]
    plots = {"--attention": attention, "--gates": gates}
    check_outputs(inputs, {"--output": output or STDOUT, **plots})
    for path in filter(None, plots.values()):
        check_suffix(path, ".png or .svg")

    own = {"examples": examples, "attention": attention, "gates": gates}
    kind = predictor_class(workdir, PictureWriter)
    _check_abilities(kind, [name for name, path in own.items() if path is not None])

    options = SearchOptions(changes=changes, sampling=sampling)
    writer: Any = model.load_as(kind, workdir, options.settings(workdir))
    form = writer.config.model.form
    pictures = read_pictures(images, form)
    shown = None
    if examples is not None:
        shown = read_image_texts("files", str(examples), form)
    with progress_bar(len(pictures.images)) as bar:
        found = writer.hypotheses(
            pictures.images,
            examples=shown,
            n_best=1,
            report=bar.update,
        )

    texts = best_texts(found)
    if pictures.texts is not None:
        print(_count_matches(texts, pictures.texts), file=sys.stderr)
    if attention is not None:
        _draw_attention(writer, pictures.images, found, path=attention)
    if gates is not None:
        _draw_gates(writer, gates)
    write_rows(output or STDOUT, texts, pictures)


COMMAND = Command("caption", caption, place=110)


def _check_abilities(kind: "type[PictureWriter]", given: Sequence[str]) -> None:
    """Refuses options that models of this kind do not have."""
    for name in given:
        if name not in kind.abilities:
            [own] = kind.kinds
            raise UserError(f"{flag(name)}: {own.description} has none; leave it out")


def _count_matches(texts: Sequence[str], references: Sequence[str]) -> str:
    matches = sum(text == reference for text, reference in zip(texts, references, strict=True))
    return f"exact {matches / len(texts):.2%}, {matches:,} of {len(texts):,}"


def _draw_attention(
    captioner: "Captioner",
    pixels: "np.ndarray",
    found: "Sequence[list[Hypothesis]]",
    path: pathlib.Path,
) -> None:
    """Draws the first pictures, with the attention of each word to their patches."""
    from jaxformer.plots.image_attention import draw_maps

    numbers = [number for number, n_best in enumerate(found[:_DRAWN]) if n_best]
    shown = [found[number][0] for number in numbers]
    weights = captioner.attention(pixels[numbers], [each.tokens for each in shown])

    maps = []
    for hypothesis, layers in zip(shown, weights, strict=True):
        of_tokens = layers[-1].mean(axis=0)  # [T, rows, columns], of all heads
        maps.append(_average_words(captioner, hypothesis, of_tokens))
    draw_maps(
        pixels[numbers],
        maps,
        names=[each.text.split() for each in shown],
        path=path,
        titles=[each.text for each in shown],
    )


def _average_words(
    captioner: "Captioner",
    hypothesis: "Hypothesis",
    maps: "np.ndarray",
) -> "list[np.ndarray]":
    """Returns the mean of the maps of the tokens of each word, which spaces separate."""
    import numpy as np

    from jaxformer.data.tokenizer import EOS

    maps_of_words: list[list[np.ndarray]] = [[] for _ in hypothesis.text.split()]
    num_before = 0
    for place, of_token in enumerate(maps, start=1):
        if hypothesis.tokens[place - 1] == EOS:
            continue

        # A token continues the newest word, or begins one or more.
        num_words = len(captioner.detokenize(hypothesis.tokens[:place]).split())
        first = max(0, min(num_before, num_words - 1))
        for own_maps in maps_of_words[first:num_words]:
            own_maps.append(of_token)
        num_before = num_words
    return [np.mean(own_maps, axis=0) for own_maps in maps_of_words]


def _draw_gates(reader: "PictureReader", path: pathlib.Path) -> None:
    from jaxformer.plots.gates import draw_gates

    gates = reader.gates()
    draw_gates(gates.attention, gates.feed_forward, gates.layers, path)
