"""The command ``augment``: variants of sentence pairs, to train a robust model."""

import collections
import itertools
import pathlib
from collections.abc import Iterator, Mapping

from jaxformer.cli.command import Command
from jaxformer.cli.options import File, InputFile
from jaxformer.errors import UserError
from jaxformer.files import is_stream


def augment(
    *,
    source: InputFile,
    target: InputFile,
    output: File,
    copies: int = 1,
    rates: str | None = None,
    seed: int = 0,
) -> None:
    """Make variants of sentence pairs: capitals, typos, several sentences a line, other numbers.

    Options:
      source: source text, named by its language, such as train.en
      target: its translation, line by line
      output: path of the two new files without their languages, such as data/augmented
      copies: number of passes over the pairs; joined pairs make fewer lines
      rates: kinds of variants with the fraction of lines that get each, such as
        capitals=0.07,no_mark=0.2 (default: join=0.15, number=0.3, copy=0.15, quotes=0.03,
        no_mark=0.2, typos=0.05, title=0.05, capitals=0.07, symbol=0.04, alone=0.01)
      seed: seed of the random choices

    Example:
      jaxformer augment --source train.en --target train.de --output augmented --copies 4
      jaxformer train tatoeba --workdir runs/robust --config.data.train=train:1,augmented:1
    """
    from jaxformer.cli.outputs import open_output
    from jaxformer.cli.text import LINES_PER_BLOCK
    from jaxformer.data.augmentation import RATES, parse_rates

    if copies < 1:
        raise UserError(f"--copies must be at least 1: got {copies}")
    first, second = _output_files(source, target, output)

    has_stream = is_stream(source) or is_stream(target)
    if copies > 1 and has_stream:
        raise UserError(
            f"--copies {copies} reads the text {copies} times, and a pipe or a device only once; "
            "name files"
        )

    chosen = RATES if rates is None else parse_rates(rates)
    changed: collections.Counter[str] = collections.Counter()
    pairs = _variants(
        source,
        target,
        copies=copies,
        rates=chosen,
        seed=seed,
        changed=changed,
    )

    count = 0
    with open_output(first) as write_source, open_output(second) as write_target:
        while block := list(itertools.islice(pairs, LINES_PER_BLOCK)):
            write_source(line for line, _ in block)
            write_target(line for _, line in block)
            count += len(block)

    counts = [f"{kind} {changed[kind]:,}" for kind in chosen]
    kinds = ", ".join(counts)
    print(f"{first}, {second}: {count:,} lines; changed by {kinds}")


def _output_files(
    source: pathlib.Path,
    target: pathlib.Path,
    output: pathlib.Path,
) -> tuple[pathlib.Path, pathlib.Path]:
    """Returns the new files of both languages; refuses names that exclude each other."""
    from jaxformer.cli.outputs import check_outputs

    first = output.with_name(output.name + source.suffix)
    second = output.with_name(output.name + target.suffix)
    if first == second or output in (first, second):
        raise UserError(f"expected names such as train.en and train.de: got {source} and {target}")

    for path in (first, second):
        check_outputs((source, target), {"--output": path})
    return first, second


def _variants(
    source: pathlib.Path,
    target: pathlib.Path,
    *,
    copies: int,
    rates: Mapping[str, float],
    seed: int,
    changed: collections.Counter[str],
) -> Iterator[tuple[str, str]]:
    """Yields the variants of all pairs of lines, once for each copy; counts them in ``changed``."""
    from jaxformer.data.augmentation import variants
    from jaxformer.data.text_files import zip_files

    languages = (source.suffix[1:], target.suffix[1:])
    for copy in range(copies):
        yield from variants(
            zip_files(source, target),
            rates,
            seed + copy,
            languages=languages,
            changed=changed,
        )


COMMAND = Command("augment", augment, place=170)
