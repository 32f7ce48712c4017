"""Speed of decoding, ours and the peers', in one run on one machine: a JSON line per measurement.

    python benchmarks/decode.py --size base --peers /path/to/environment/bin/python

Every system gets the same random weights of a Marian model and the same 24-token sentences, and
has to decode --length tokens: end of sentence is impossible. Times go from token ids to token ids
of the best hypotheses, encoder included. They are taken in rounds in which the systems take turns,
never at the same time, on equal numbers of threads; the peers (Hugging Face transformers and
CTranslate2, never dependencies of ours) wait in a process of their own, under the interpreter that
--peers names. Environment variables, those of malloc for instance, are the same for all.

The machine must have nothing else to do. OpenMP's threads wait for one another without sleeping, so
that one other busy process can make the peers ten times slower.

A line has, for one system, beam and batch size:
  tokens_per_second or, for single sentences, milliseconds: median, least and most of the rounds
  ratio      the median speed over that of each peer; above 1 is faster
  identical  the share of sentences whose tokens are those of each other system. Of two in float32
             it is nearly 1; fewer bits change many of the translations that random weights give
"""

import argparse
import functools
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import random_marian
from machine import machine

OURS = ("ours float32", "ours bfloat16", "ours int8")
PEERS = (
    "huggingface float32",
    "huggingface bfloat16",
    "ctranslate2 float32",
    "ctranslate2 int8",
)
SOURCE_LENGTH = 24
# Single sentences are decoded so many one after the other: one alone is over too soon.
SINGLES = 4
# The threads of OpenMP keep their cores busy for 0.2 s after their work is done.
PAUSE = 0.3


class Setting(NamedTuple):
    """What is measured."""

    beam: int
    batch: int


# Setting and batches of source ids, to seconds and target ids.
Contestant = Callable[[Setting, list[list[list[int]]]], tuple[float, list[list[int]]]]


def main() -> None:
    """Measures every setting and prints the lines of each as soon as it is done."""
    options = parse_arguments()
    if options.threads:  # before jax is imported, which counts them; the peers' process inherits it
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    facts = machine()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        random_marian.write_model(options.size, folder / "model")
        ours = [name for name in options.systems if name in OURS]
        contestants = {name: our_contestant(name, folder, options.length) for name in ours}
        if options.peers:
            peers = Peers(options.peers, folder)
            facts["versions"] |= peers.versions
            others = [name for name in options.systems if name in PEERS]
            contestants |= {name: peers.contestant(name, options.length) for name in others}
        for setting in (Setting(b, n) for n in options.batch for b in options.beam):
            for line in measure(options, setting, contestants):
                print(json.dumps(line | facts), flush=True)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--size", choices=random_marian.SIZES, default="small", help="of the model (%(default)s)"
    )
    parser.add_argument(
        "--peers", metavar="PYTHON", help="interpreter with torch, transformers and ctranslate2"
    )
    parser.add_argument(
        "--systems", nargs="+", choices=OURS + PEERS, metavar="NAME", help="only some of them: "
        + ", ".join(f'"{name}"' for name in OURS + PEERS),
    )  # fmt: skip
    parser.add_argument(
        "--beam", type=int, nargs="+", default=[4, 1], help="beam sizes; 1 is greedy (4 1)"
    )
    parser.add_argument(
        "--batch", type=int, nargs="+", default=[64, 1], help="sentences decoded together (64 1)"
    )
    parser.add_argument(
        "--length", type=int, default=30,
        help="tokens to decode (%(default)s); 1 measures the encoder and one step",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=7, help="rounds measured (%(default)s)")
    parser.add_argument("--threads", type=int, help="cores each system may use (all)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a tiny model and one round: to see that all of it runs",
    )
    options = parser.parse_args()
    if options.quick:
        options.size, options.rounds = "tiny", 1
    options.systems = options.systems or (OURS + PEERS if options.peers else OURS)
    if not options.peers and set(options.systems) & set(PEERS):
        parser.error("these --systems need --peers, the interpreter that has them")
    return options


def measure(
    options: argparse.Namespace, setting: Setting, contestants: dict[str, Contestant]
) -> list[dict[str, Any]]:
    """Rounds of one setting, and the line of every system."""
    batches = SINGLES if setting.batch == 1 else 1
    sources = random_marian.random_sources(options.size, batches * setting.batch, SOURCE_LENGTH)
    parts = [sources[n : n + setting.batch] for n in range(0, len(sources), setting.batch)]
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    tokens: dict[str, list[list[int]]] = {}
    for round_ in range(1 + options.rounds):
        for name, contestant in contestants.items():
            time.sleep(PAUSE)
            taken, tokens[name] = contestant(setting, parts)
            if any(len(row) != options.length for row in tokens[name]):
                raise SystemExit(f"{name}: expected {options.length} tokens from every sentence")
            if round_ > 0:  # the first one compiles and warms up
                seconds[name].append(taken / batches)
    return [line(options, setting, name, seconds, tokens) for name in contestants]


def line(
    options: argparse.Namespace,
    setting: Setting,
    name: str,
    seconds: dict[str, list[float]],
    tokens: dict[str, list[list[int]]],
) -> dict[str, Any]:
    """What was measured of one system."""
    median = {other: statistics.median(taken) for other, taken in seconds.items()}
    if setting.batch == 1:
        unit, values = "milliseconds", [1000 * taken for taken in seconds[name]]
    else:
        produced = setting.batch * options.length
        unit, values = "tokens_per_second", [produced / taken for taken in seconds[name]]
    figures = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    others = [other for other in seconds if other != name]
    return {
        "benchmark": "decode",
        "size": options.size,
        "system": name,
        **setting._asdict(),
        "length": options.length,
        unit: {key: round(value, 1) for key, value in figures.items()},
        "ratio": {
            other: round(median[other] / median[name], 3) for other in others if other in PEERS
        },
        "identical": {other: same_share(tokens[name], tokens[other]) for other in others},
        "rounds": options.rounds,
    }


def same_share(ours: list[list[int]], theirs: list[list[int]]) -> float:
    """The share of sentences that are the same."""
    return round(statistics.mean(a == b for a, b in zip(ours, theirs, strict=True)), 3)


def our_contestant(name: str, folder: pathlib.Path, length: int) -> Contestant:
    """``Translator.search`` with the model in this folder, computing as the name says."""
    from jaxformer.data.tokenizer import EOS
    from jaxformer.inference.translator import Translator
    from jaxformer.interop.marian import import_marian
    from jaxformer.search import BeamSearch

    workdir = folder / "ours"
    if not workdir.exists():
        import_marian(folder / "model", workdir)
    # The ids of an imported model: its end of sentence is ours, the others move up by two.
    shift = 2

    @functools.cache
    def translator(beam: int) -> Translator:
        extra = max(1, length - SOURCE_LENGTH)
        search = BeamSearch(beam_size=beam, max_extra_length=extra, max_length=length)
        return Translator.load(workdir, search=search, compute_dtype=name.split()[1])

    def decode(setting: Setting, batches: list[list[list[int]]]) -> tuple[float, list[list[int]]]:
        ids = [[[*(n + shift for n in row[:-1]), EOS] for row in batch] for batch in batches]
        search = translator(setting.beam).search
        began = time.perf_counter()
        found = [hypotheses.tokens[0] for batch in ids for hypotheses in search(batch)]
        return time.perf_counter() - began, [[n - shift for n in row] for row in found]

    return decode


class Peers:
    """The peers' process, which waits until it is asked.

    Attributes:
      versions: Of the peers' packages.
    """

    def __init__(self, python: str, folder: pathlib.Path) -> None:
        """Starts it on the model in this folder."""
        script = pathlib.Path(__file__).with_name("decode_peers.py")
        threads = str(len(os.sched_getaffinity(0)))
        self._process = subprocess.Popen(
            [python, script, folder / "model", folder / "ctranslate2", "--threads", threads],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.versions = self._read()

    def contestant(self, name: str, length: int) -> Contestant:
        """The system of this name."""

        def decode(
            setting: Setting, batches: list[list[list[int]]]
        ) -> tuple[float, list[list[int]]]:
            request = {
                "system": name,
                "beam": setting.beam,
                "length": length,
                "batches": batches,
            }
            print(json.dumps(request), file=self._process.stdin, flush=True)
            answer = self._read()
            return answer["seconds"], answer["tokens"]

        return decode

    def _read(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the peers' process has ended; what it said is above")
        return json.loads(line)


if __name__ == "__main__":
    main()
