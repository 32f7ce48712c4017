"""The command ``generate``: prints continuations of prompts as they are generated."""

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from jaxformer.cli.command import Command
from jaxformer.cli.options import DecoderOptions, ModelDir, SearchOptions, Strict
from jaxformer.cli.signatures import Fields
from jaxformer.cli.source_fields import searches
from jaxformer.cli.text import Line, Text, blocks_of, read_text
from jaxformer.errors import UserError, prefix_errors

if TYPE_CHECKING:
    from jaxformer.inference.generator import Generator


def generate(
    *,
    workdir: ModelDir,
    prompt: str | None = None,
    tokens: int = 500,
    strict: Strict = False,
    model: DecoderOptions,
    changes: Annotated[
        dict[str, Any], Fields(searches, "search", without=("max_extra_length", "unfinished"))
    ],
    sampling: bool = False,
) -> None:
    """Continue prompts with a language model, printing text as it is generated.

    Text: Each text starts with its prompt, and is sampled, or with --beam-size the best hypothesis.
    Texts are separated by a line of ---. A line that is too long or not UTF-8 gives empty texts.
      prompt: text to continue (default: continue each line of standard input)
      tokens: number of tokens to generate

    Search: Defaults come from the run's config.

    Beam search: --beam-size selects it.

    Sampling: The default.
      sampling: sample, although the run's config does not

    Example:
      jaxformer generate --workdir runs/shakespeare --prompt "ROMEO:" --tokens 500

      cat prompts.txt | jaxformer generate --workdir runs/shakespeare --samples 3 --top-k 20
    """
    from jaxformer.inference.generator import Generator
    from jaxformer.search import Sampling

    if tokens < 1:
        raise UserError(f"--tokens must be at least 1: got {tokens}")

    options = SearchOptions(changes=changes, sampling=sampling)
    search = options.settings(workdir, default=Sampling(num_samples=1))
    generator = model.load_as(Generator, workdir, search)

    if prompt is None:
        text = read_text(None, "a prompt")
    else:
        generator.check(prompt, max_tokens=tokens)
        text = Text("--prompt", lambda: iter([Line(1, prompt)]))

    def check(line: Line) -> None:
        with prefix_errors(f"{text.name}:{line.number}"):
            generator.check(line.text, max_tokens=tokens)

    with blocks_of(text, check, None, strict=strict) as (blocks, _, report):
        for line in itertools.chain.from_iterable(blocks):
            for piece in _pieces(generator, line, tokens):
                print(piece, end="", flush=True)
            report(1)


COMMAND = Command("generate", generate, place=80)


def _pieces(generator: "Generator", line: Line, tokens: int) -> Iterator[str]:
    """Yields the texts of a prompt in pieces, with the prompt and separators."""
    from jaxformer.search import Sampling

    search = generator.config.search
    index = line.number - 1
    num_samples = search.num_samples if isinstance(search, Sampling) else 1

    if line.error is not None:
        texts = [[""]] * num_samples
    elif num_samples == 1:
        pieces = generator.stream(line.text, max_tokens=tokens, first=index)
        texts = [itertools.chain([line.text], pieces)]
    else:
        (found,) = generator.continuations([line.text], max_tokens=tokens, first=index)
        texts = [[line.text, continuation] for continuation in found]

    for number, pieces in enumerate(texts):
        is_first = index == 0 and number == 0
        if not is_first:
            yield "---\n"
        yield from pieces
        yield "\n"
