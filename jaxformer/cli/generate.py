"""The command ``generate``: prints continuations of prompts during generation."""

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Iterator
from typing import Any

from jaxformer.cli.text import Line, Text, bad_lines, read_in_blocks
from jaxformer.config import StreamConfig, data_of, load_run
from jaxformer.errors import UserError
from jaxformer.inference.generator import Generator
from jaxformer.runs.workdir import Workdir
from jaxformer.search import Algorithm, BeamSearch, Sampling

# Printed between two texts.
_SEPARATOR = "---"
_SAMPLING = ("samples", "temperature", "top_k", "top_p", "seed")


def generate(options: argparse.Namespace) -> None:
    """Writes each prompt and its continuations to standard output.

    A line of standard input that cannot be read or continued is reported, and its texts are empty.

    Raises:
      UserError: Options contradict each other, or ``--prompt``, or with ``--strict`` a line, cannot
        be continued.
      SomeLinesError: Some lines could not be continued.
    """
    if options.tokens < 1:
        raise UserError(f"--tokens must be at least 1: got {options.tokens}")
    config = load_run(Workdir(options.workdir))
    data_of(config, StreamConfig)
    search = search_settings(options, config.search)
    if sys.stdout is None:
        raise UserError("standard output is closed: expected a place to write the text to")
    generator = Generator.load(
        options.workdir, weights=options.weights, search=search, compute_dtype=options.dtype
    )
    print(f"{options.workdir}: {generator.weights}", file=sys.stderr)
    first = True
    with bad_lines() as report_bad:
        for number, prompt in enumerate(_prompts(generator, options)):
            report_bad([prompt])
            for text in _texts(generator, prompt, number, options.tokens):
                if not first:
                    print(_SEPARATOR)
                first = False
                for piece in text:
                    print(piece, end="", flush=True)
                print(flush=True)


def search_settings(
    options: argparse.Namespace, run: BeamSearch | Sampling
) -> BeamSearch | Sampling:
    """Returns beam search if ``--beam-size`` is given, else sampling, with the run's settings.

    Raises:
      UserError: A value is out of range, or would have no effect.
    """
    given: dict[str, Any] = {
        name: value for name in _SAMPLING if (value := getattr(options, name)) is not None
    }
    if options.beam_size is not None:
        if given:
            flag = next(iter(given)).replace("_", "-")
            raise UserError(f"--{flag} is for sampling, not with --beam-size; leave one out")
        return _with(BeamSearch, run, {"beam_size": options.beam_size})
    if "samples" in given:
        given["num_samples"] = given.pop("samples")
    return _with(Sampling, run, given)


def _with(
    kind: type[BeamSearch | Sampling], run: BeamSearch | Sampling, given: dict[str, Any]
) -> BeamSearch | Sampling:
    """Returns a search with the given values, and the run's settings where they apply."""
    if isinstance(run, kind):
        return dataclasses.replace(run, **given)
    common = [field.name for field in dataclasses.fields(Algorithm)]
    values: dict[str, Any] = {name: getattr(run, name) for name in common}
    if kind is Sampling:
        values["num_samples"] = 1
    return kind(**values | given)


def _prompts(generator: Generator, options: argparse.Namespace) -> Iterator[Line]:
    """Returns the given prompt, or the lines of standard input."""
    if options.prompt is not None:
        generator.check(options.prompt, max_tokens=options.tokens)
        return iter([Line(options.prompt)])
    text = Text(None)
    if text.interactive:
        print("Type a prompt and press Enter; Ctrl-D ends.", file=sys.stderr)

    def checked() -> Iterator[Line]:
        for number, line in enumerate(text.lines(), start=1):
            try:
                generator.check(line.text, max_tokens=options.tokens)
            except UserError as error:
                line = Line("", error=line.error or f"{text.name}:{number}: {error}")
            yield line

    _, arriving = read_in_blocks(checked, stream=text.stream, strict=options.strict)
    return itertools.chain.from_iterable(arriving)


def _texts(generator: Generator, prompt: Line, number: int, tokens: int) -> Iterator[Iterator[str]]:
    """Yields every text, prompt included, as an iterator of pieces."""
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
