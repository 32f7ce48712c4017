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
from jaxformer.cli.signatures import Fields
from jaxformer.cli.source_fields import searches
from jaxformer.cli.text import progress_bar
from jaxformer.files import STDOUT

if TYPE_CHECKING:
    import numpy as np

    from jaxformer.inference.hypotheses import Hypothesis
    from jaxformer.tasks.captions.captioner import Captioner

_DRAWN = 8  # pictures with their attention


def caption(
    *,
    workdir: ModelDir,
    images: File,
    output: OutputFile | None = None,
    attention: File | None = None,
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
      attention: image to write, .png or .svg: the first eight pictures, and where the last layer
        looks as it writes each word

    Search: Defaults come from the run's config.

    Beam search: The default, unless the run's config samples.

    Sampling: Instead of beam search.
      sampling: sample instead of searching; --samples implies it

    Example:
      jaxformer caption --workdir runs/read_numbers --images numbers.npz --attention reading.png
    """
    from jaxformer.tasks.captions.captioner import Captioner

    check_outputs([images], {"--output": output or STDOUT, "--attention": attention})
    if attention is not None:
        check_suffix(attention, ".png or .svg")

    options = SearchOptions(changes=changes, sampling=sampling)
    captioner = model.load_as(Captioner, workdir, options.settings(workdir))
    section: Any = captioner.config.model
    pictures = read_pictures(images, section.form)
    with progress_bar(len(pictures.images)) as bar:
        found = captioner.hypotheses(pictures.images, n_best=1, report=bar.update)

    texts = []
    for n_best in found:
        # Constraints may leave no hypothesis.
        text = n_best[0].text if n_best else ""
        texts.append(text)

    if pictures.texts is not None:
        print(_count_matches(texts, pictures.texts), file=sys.stderr)
    if attention is not None:
        _draw(captioner, pictures.images, found, path=attention)
    write_rows(output or STDOUT, texts, pictures)


COMMAND = Command("caption", caption, place=110)


def _count_matches(texts: Sequence[str], references: Sequence[str]) -> str:
    matches = sum(text == reference for text, reference in zip(texts, references, strict=True))
    return f"exact {matches / len(texts):.2%}, {matches:,} of {len(texts):,}"


def _draw(
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
