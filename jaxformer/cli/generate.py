"""The command ``generate``: prints continuations of prompts during generation."""

import argparse
import dataclasses
import io
import sys
from collections.abc import Iterator
from typing import Any

from jaxformer.cli.text import Text
from jaxformer.config import load_run, text_stream
from jaxformer.errors import UserError
from jaxformer.inference.generator import Generator
from jaxformer.search import BeamSearch, Sampling
from jaxformer.workdir import Workdir

# Printed between two texts.
_SEPARATOR = "---"
_SAMPLING = ("samples", "temperature", "top_k", "top_p", "seed")


def generate(options: argparse.Namespace) -> None:
    """Writes each prompt and its continuations to standard output.

    Raises:
      UserError: Options contradict each other, or a prompt cannot be read or continued.
    """
    if options.tokens < 1:
        raise UserError(f"--tokens must be at least 1: got {options.tokens}")
    config = load_run(Workdir(options.workdir))
    text_stream(config)
    search = search_settings(options, config.search)
    if sys.stdout is None:
        raise UserError("standard output is closed: expected a place to write the text to")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # Prompts are UTF-8 whatever the locale.
    generator = Generator.load(
        options.workdir, weights=options.weights, search=search, compute_dtype=options.dtype
    )
    print(f"{options.workdir}: {generator.weights}", file=sys.stderr)
    first = True
    for prompt in _prompts(options.prompt):
        for text in _texts(generator, prompt, options.tokens):
            if not first:
                print(_SEPARATOR)
            first = False
            for piece in text:
                print(piece, end="", flush=True)
            print(flush=True)


def search_settings(
    options: argparse.Namespace, run: BeamSearch | Sampling
) -> BeamSearch | Sampling:
    """Returns beam search if ``--beam-size`` is given, else the run's sampling with overrides.

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
        return BeamSearch(beam_size=options.beam_size)
    if "samples" in given:
        given["num_samples"] = given.pop("samples")
    if isinstance(run, Sampling):
        return dataclasses.replace(run, **given)
    return Sampling(**{"num_samples": 1, **given})


def _prompts(given: str | None) -> Iterator[str]:
    """Returns the given prompt, or the lines of standard input."""
    if given is not None:
        return iter([given])
    text = Text(None)
    if text.interactive:
        print("Type a prompt and press Enter; Ctrl-D ends.", file=sys.stderr)
    return text.lines()


def _texts(generator: Generator, prompt: str, tokens: int) -> Iterator[Iterator[str]]:
    """Yields every text, prompt included, as an iterator of pieces."""
    search = generator.config.search
    if isinstance(search, Sampling) and search.num_samples == 1:
        yield _pieces(prompt, generator.stream(prompt, max_tokens=tokens))
        return
    found = generator.continuations([prompt], max_tokens=tokens)[0]
    for continuation in found[:1] if isinstance(search, BeamSearch) else found:
        yield iter([prompt, continuation])


def _pieces(prompt: str, continuation: Iterator[str]) -> Iterator[str]:
    # The prompt is printed with the first piece, so not at all if it cannot be continued.
    for number, piece in enumerate(continuation):
        yield piece if number else prompt + piece
