"""The command ``embed``: vectors of lines of text, or similarities of pairs of them."""

import io
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

from jaxformer.cli.command import Command
from jaxformer.cli.options import Checkpoint, InputFile, ModelDir, OutputFile, Strict
from jaxformer.cli.outputs import check_outputs
from jaxformer.cli.text import (
    Line,
    Text,
    blocks_of,
    checked_lines,
    json_line,
    progress_bar,
    read_text,
)
from jaxformer.data.text_pairs import split_pair
from jaxformer.errors import UserError
from jaxformer.files import STDIN, STDOUT, write_file

if TYPE_CHECKING:
    from jaxformer.inference.embedder import Embedder

_DIGITS = 6


def embed(
    *,
    workdir: ModelDir,
    input: InputFile | None = None,
    output: OutputFile | None = None,
    pairs: bool = False,
    strict: Strict = False,
    pooling: Literal["mean", "cls", "max"] | None = None,
    normalize: bool = False,
    weights: Checkpoint = "auto",
) -> None:
    """Print the embedding of each line of text, a vector that is near the vectors of similar texts.

    Text: Each line of output is a list of numbers in JSON. A line that is too long or not UTF-8
    has a blank line.
      input: texts, one per line (default: standard input)
      output: file for the embeddings (default: standard output); if its name ends with .npz, it has
        one array, embeddings, float32 [N, d_model], and all lines must be good
      pairs: each line is a pair of texts with a tab between: print the cosine of their embeddings

    Model:
      pooling: the features of all tokens to take, their mean or maximum, or the feature of [CLS]
        (default: the model's, as in the files of sentence-transformers; else mean)
      normalize: scale embeddings to length 1 (default: as in these files)

    Example:
      jaxformer embed --workdir runs/minilm --input texts.txt --output texts.npz

      jaxformer embed --workdir runs/minilm --pairs --input pairs.tsv
    """
    from jaxformer.inference.embedder import Embedder

    check_outputs([input or STDIN], {"--output": output or STDOUT})
    is_array = output is not None and output.suffix == ".npz"
    if is_array and pairs:
        raise UserError("--pairs prints lines: give --output a name that does not end with .npz")

    embedder = Embedder.load(
        workdir,
        weights=weights,
        pooling=pooling,
        normalized=normalize or None,
    )
    text = read_text(input, "a text")
    if output is not None and is_array:
        _write_array(embedder, text, output)
        return

    def encode(line: Line) -> tuple[str, ...]:
        place = f"{text.name}:{line.number}"
        texts = split_pair(line.text, place) if pairs else (line.text,)
        for each in texts:
            embedder.check(each, place)
        return texts

    with blocks_of(text, encode, output, strict=strict) as (blocks, write, report):
        for block in blocks:
            good = [line.encoded for line in block if not line.error]
            if pairs:
                found = _cosines(embedder, good, report)
            else:
                texts = [one for (one,) in good]
                found = _vectors(embedder, texts, report)

            rows = []
            for line in block:
                row = "" if line.error else next(found)
                rows.append(row)
            write(rows)


COMMAND = Command("embed", embed, place=108)


def _vectors(embedder: "Embedder", texts: list[str], report: Callable) -> Iterator[str]:
    for vector in embedder.embed(texts, report=report):
        rounded = [round(number, _DIGITS) for number in vector.tolist()]
        yield json_line(rounded)


def _cosines(embedder: "Embedder", pairs: list, report: Callable) -> Iterator[str]:
    for cosine in embedder.similarities(pairs, report=report).tolist():
        yield f"{cosine:.4f}"


def _write_array(embedder: "Embedder", text: Text, output: OutputFile) -> None:
    import numpy as np

    def encode(line: Line) -> None:
        embedder.check(line.text, f"{text.name}:{line.number}")

    texts = [line.text for line in checked_lines(text, encode, strict=True)]
    with progress_bar(len(texts)) as bar:
        embeddings = embedder.embed(texts, report=bar.update)

    content = io.BytesIO()
    np.savez(content, embeddings=embeddings)
    write_file(output, content.getvalue())
