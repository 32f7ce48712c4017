"""The command ``generate``: prints continuations of prompts during generation."""

import dataclasses
import itertools
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from jaxformer.cli.options import Checkpoint, Dtype, ModelDir, SearchOptions, Strict, searches
from jaxformer.cli.signatures import Fields
from jaxformer.cli.text import Line, Text, reading
from jaxformer.errors import UserError

if TYPE_CHECKING:
    from jaxformer.inference.generator import Generator

# Printed between two texts.
_SEPARATOR = "---"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextOptions(SearchOptions):
    """Changes of the run's search, or of sampling one text for each prompt.

    Search: Defaults come from the run's config.

    Beam search: --beam-size selects it.

    Sampling: The default.
      sampling: sample, although the run's config does not
    """

    changes: Annotated[
        dict[str, Any], Fields(searches, "search", without=("max_extra_length", "unfinished"))
    ]


def generate(
    *,
    workdir: ModelDir,
    prompt: str | None = None,
    tokens: int = 500,
    strict: Strict = False,
    weights: Checkpoint = "auto",
    dtype: Dtype | None = None,
    search: TextOptions,
) -> None:
    """Continue prompts with a language model, printing text as it is generated.

    Text: Each text starts with its prompt, and is sampled, or with --beam-size the best hypothesis.
    Texts are separated by a line of ---. A line that is too long or not UTF-8 gives empty texts.
      prompt: text to continue (default: continue each line of standard input)
      tokens: number of tokens to generate

    Example:
      jaxformer generate --workdir runs/shakespeare --prompt "ROMEO:" --tokens 500

      cat prompts.txt | jaxformer generate --workdir runs/shakespeare --samples 3 --top-k 20
    """
    from jaxformer.inference.generator import Generator
    from jaxformer.search import Sampling

    if tokens < 1:
        raise UserError(f"--tokens must be at least 1: got {tokens}")
    settings = search.settings(workdir, default=Sampling(num_samples=1))
    if sys.stdout is None:
        raise UserError("standard output is closed: expected a place to write the text to")
    generator = Generator.load(workdir, weights=weights, search=settings, compute_dtype=dtype)
    print(f"{workdir}: {generator.weights}", file=sys.stderr)
    text = Text(None) if prompt is None else None
    if text is not None and text.interactive:
        print("Type a prompt and press Enter; Ctrl-D ends.", file=sys.stderr)
    if prompt is not None:
        generator.check(prompt, max_tokens=tokens)
    first = True
    with reading(
        lambda: iter([Line(prompt or "")]) if text is None else _checked(generator, text, tokens),
        stream=text is not None and text.stream,
        strict=strict,
        hidden=True,
    ) as (blocks, _):
        for number, line in enumerate(itertools.chain.from_iterable(blocks)):
            for pieces in _texts(generator, line, number, tokens):
                if not first:
                    print(_SEPARATOR)
                first = False
                for piece in pieces:
                    print(piece, end="", flush=True)
                print(flush=True)


def _checked(generator: "Generator", text: Text, tokens: int) -> Iterator[Line]:
    """Yields all lines; a line that cannot be continued becomes blank."""
    for number, line in enumerate(text.lines(), start=1):
        try:
            generator.check(line.text, max_tokens=tokens)
        except UserError as error:
            line = Line("", error=line.error or f"{text.name}:{number}: {error}")
        yield line


def _texts(
    generator: "Generator", prompt: Line, number: int, tokens: int
) -> Iterator[Iterator[str]]:
    """Yields every text, prompt included, as an iterator of pieces."""
    from jaxformer.search import Sampling

    search = generator.config.search
    samples = search.num_samples if isinstance(search, Sampling) else 1
    if prompt.error is not None:
        yield from itertools.repeat(iter(()), samples)
    elif isinstance(search, Sampling) and samples == 1:
        pieces = generator.stream(prompt.text, max_tokens=tokens, first=number)
        yield itertools.chain([prompt.text], pieces)
    else:
        found = generator.continuations([prompt.text], max_tokens=tokens, first=number)[0]
        for continuation in found[:samples]:
            yield iter([prompt.text, continuation])
