"""Decoding speed of jaxformer and other libraries on one machine: a JSON line per measurement.

    python benchmarks/decode.py --size base --peers /path/to/environment/bin/python

Every system gets the same random weights of a Marian model and the same 24-token sentences. It must
decode --length tokens, since end of sentence is impossible. Times are from token ids to the token
ids of the best hypotheses, and include the encoder. The systems take turns in rounds, never
concurrently, on equal numbers of threads. The peers, Hugging Face transformers and CTranslate2, run
in a separate process with the interpreter given by --peers. They are never dependencies of
jaxformer. Environment variables, such as malloc's, are the same for all.

With --text FILE the systems translate real text instead, with a trained model: this is what users
notice. See ``decode_text.py``.

The machine must be idle. OpenMP's threads spin while they wait for one another, so that a single
other busy process can make the peers ten times slower.

A line has, for one system, beam and batch size:
  tokens_per_second or, for single sentences, milliseconds: median, min and max of the rounds
  ratio      median speed relative to each peer; above 1 is faster
  identical  fraction of sentences with the same tokens as each other system. It is nearly 1 between
             two systems in float32. With random weights, lower precision changes many translations.
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

import decode_text
import random_marian
from machine import machine

OURS = ("ours float32", "ours bfloat16", "ours int8")
PEERS = (
    "huggingface float32",
    "huggingface bfloat16",
    "ctranslate2 float32",
    "ctranslate2 int8",
    "ctranslate2 float16",  # on GPUs, as the next one
    "ctranslate2 int8_float16",
)
SOURCE_LENGTH = 24
# Number of single sentences decoded in sequence: one alone takes too little time to measure.
SINGLES = 4
# Seconds between systems: OpenMP's threads keep their cores busy for 0.2 s after their work.
PAUSE = 0.3


class Setting(NamedTuple):
    """Beam size and batch size of a measurement."""

    beam: int
    batch: int


# Maps a setting and batches of source ids to seconds and target ids.
Contestant = Callable[[Setting, list[list[list[int]]]], tuple[float, list[list[int]]]]


def main() -> None:
    """Measures every setting, and prints its lines as soon as it is done."""
    options = parse_arguments()
    if options.threads:  # before jax is imported and counts cores; the peers' process inherits it
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    facts = machine()
    if options.text:
        for line in decode_text.measure_text(options):
            print(json.dumps(line | facts), flush=True)
        return
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
        "--systems", nargs="+", choices={*OURS, *PEERS, *decode_text.SYSTEMS}, metavar="NAME",
        help="only some of them: " + ", ".join(f'"{name}"' for name in OURS + PEERS)
        + "; with --text: " + ", ".join(f'"{name}"' for name in decode_text.SYSTEMS),
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
    parser.add_argument(
        "--text", type=pathlib.Path, metavar="FILE",
        help="translate its lines instead, with a trained model: ours and CTranslate2, which must "
        "be installed here",
    )  # fmt: skip
    parser.add_argument(
        "--workdir", type=pathlib.Path, help="with --text, the model (the one that comes along)"
    )
    parser.add_argument(
        "--reference", type=pathlib.Path, metavar="FILE", help="with --text, also print BLEU"
    )
    parser.add_argument("--rounds", type=int, default=7, help="rounds measured (%(default)s)")
    parser.add_argument("--threads", type=int, help="cores each system may use (all)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a tiny model and one round: to see that all of it runs",
    )
    options = parser.parse_args()
    if options.text:
        return options
    if options.quick:
        options.size = "tiny"
        options.rounds = 1
    on_cpus = [name for name in PEERS if not name.endswith("float16")]
    options.systems = options.systems or [*OURS, *(on_cpus if options.peers else [])]
    if not options.peers and set(options.systems) & set(PEERS):
        parser.error("these --systems need --peers, the interpreter that has them")
    return options


def measure(
    options: argparse.Namespace, setting: Setting, contestants: dict[str, Contestant]
) -> list[dict[str, Any]]:
    """Runs all rounds of one setting, and returns a line for every system."""
    batches = SINGLES if setting.batch == 1 else 1
    sources = random_marian.random_sources(options.size, batches * setting.batch, SOURCE_LENGTH)
    chunks = [sources[n : n + setting.batch] for n in range(0, len(sources), setting.batch)]
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    tokens: dict[str, list[list[int]]] = {}
    for round_ in range(1 + options.rounds):
        for name, contestant in contestants.items():
            time.sleep(PAUSE)
            taken, tokens[name] = contestant(setting, chunks)
            if any(len(row) != options.length for row in tokens[name]):
                raise SystemExit(f"{name}: expected {options.length} tokens from every sentence")
            if round_ > 0:  # the first round compiles and warms up
                seconds[name].append(taken / batches)
    return [line(options, setting, name, seconds, tokens) for name in contestants]


def line(
    options: argparse.Namespace,
    setting: Setting,
    name: str,
    seconds: dict[str, list[float]],
    tokens: dict[str, list[list[int]]],
) -> dict[str, Any]:
    """Returns the results of one system."""
    median = {other: statistics.median(taken) for other, taken in seconds.items()}
    if setting.batch == 1:
        unit = "milliseconds"
        values = [1000 * taken for taken in seconds[name]]
    else:
        unit = "tokens_per_second"
        produced = setting.batch * options.length
        values = [produced / taken for taken in seconds[name]]
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
    """Returns the fraction of sentences that are equal."""
    return round(statistics.mean(a == b for a, b in zip(ours, theirs, strict=True)), 3)


def our_contestant(name: str, folder: pathlib.Path, length: int) -> Contestant:
    """Returns ``translate_ids`` with the model in ``folder`` and the dtype in ``name``."""
    from jaxformer.data.tokenizer import EOS
    from jaxformer.inference.translator import Translator
    from jaxformer.interop.marian.importer import import_marian
    from jaxformer.search import BeamSearch

    workdir = folder / "ours"
    if not workdir.exists():
        import_marian(folder / "model", workdir)
    # An imported model uses our id for end of sentence; all other ids are shifted by two.
    shift = 2

    @functools.cache
    def translator(beam: int) -> Translator:
        extra = max(1, length - SOURCE_LENGTH)
        search = BeamSearch(beam_size=beam, max_extra_length=extra, max_length=length)
        return Translator.load(workdir, search=search, compute_dtype=name.split()[1])

    def decode(setting: Setting, batches: list[list[list[int]]]) -> tuple[float, list[list[int]]]:
        our_batches = [list(map(our_ids, batch)) for batch in batches]
        translate_ids = translator(setting.beam).translate_ids

        began = time.perf_counter()
        best = []
        for batch in our_batches:
            for hypotheses in translate_ids(batch, n_best=1):
                best.append(hypotheses.tokens[0])
        seconds = time.perf_counter() - began
        return seconds, list(map(marian_ids, best))

    def our_ids(row: list[int]) -> list[int]:
        return [*(n + shift for n in row[:-1]), EOS]

    def marian_ids(row: list[int]) -> list[int]:
        return [n - shift for n in row]

    return decode


class Peers:
    """Process of the peers, which decodes on request.

    Attributes:
      versions: Versions of the peers' packages.
    """

    def __init__(self, python: str, folder: pathlib.Path) -> None:
        """Starts the process with the model in ``folder``."""
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
        """Returns the system of this name."""

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
            raise SystemExit("the peers' process has ended; its output is above")
        return json.loads(line)


if __name__ == "__main__":
    main()
