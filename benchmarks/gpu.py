"""All measurements for a machine with one GPU, in one call that may be interrupted and repeated.

    python benchmarks/gpu.py --peers /path/to/environment/bin/python --output gpu.jsonl

The measurements are listed from the shortest to the longest: decoding with a model of base size
beside CTranslate2 and Hugging Face transformers, then training steps of base and big beside
PyTorch with torch.compile. Each is a command of ``decode.py`` or ``train.py``, whose pages describe
the figures. Its lines are appended to --output with the name of the measurement; a call with the
same file measures those that are missing. None is started that may not finish in --minutes.

--list prints the commands. The interpreter of --peers has torch, transformers and ctranslate2.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time
from typing import Any, NamedTuple

HERE = pathlib.Path(__file__).parent


class Measurement(NamedTuple):
    """A command of another script, and how long it takes at most."""

    name: str
    minutes: float
    script: str
    arguments: tuple[str, ...]


DECODERS = (
    "ours float32",
    "ours bfloat16",
    "huggingface bfloat16",
    "ctranslate2 float16",
    "ctranslate2 int8_float16",
)
TRAINERS = ("ours bfloat16", "torch bfloat16")
# Batches that fill a GPU with 80 GB, of about 25,000 tokens on either side.
FULL_BATCH = ("--rows", "96", "--length", "256")
MEASUREMENTS = (
    Measurement(
        name="decode base, 64 sentences and one",
        minutes=8,
        script="decode.py",
        arguments=("--size", "base", "--batch", "64", "1", "--systems", *DECODERS),
    ),
    Measurement(
        name="decode base, 1,024 sentences",
        minutes=8,
        script="decode.py",
        arguments=("--size", "base", "--batch", "1024", "--rounds", "3", "--systems", *DECODERS),
    ),
    Measurement(
        name="train base",
        minutes=6,
        script="train.py",
        arguments=("--size", "base", *FULL_BATCH, "--systems", *TRAINERS),
    ),
    Measurement(
        name="train big",
        minutes=6,
        script="train.py",
        arguments=("--size", "big", *FULL_BATCH, "--systems", *TRAINERS),
    ),
)


def main() -> None:
    """Runs the measurements that are missing."""
    options = parse_arguments()
    if options.list:
        for each in MEASUREMENTS:
            print(" ".join(command_of(each, options.peers)))
        return

    began = time.monotonic()
    done = finished(options.output)
    for each in MEASUREMENTS:
        left = options.minutes - (time.monotonic() - began) / 60
        if each.name in done:
            print(f"{each.name}: is in {options.output} already", file=sys.stderr)
        elif each.minutes > left:
            print(f"{each.name}: left out, {left:.0f} minutes are left", file=sys.stderr)
        else:
            print(f"{each.name}: at most {each.minutes:.0f} minutes", file=sys.stderr)
            measure(each, options.peers, options.output)


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--peers",
        metavar="PYTHON",
        default=sys.executable,
        help="interpreter with torch, transformers and ctranslate2 (this one)",
    )
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        metavar="FILE",
        default=pathlib.Path("gpu.jsonl"),
        help="JSON lines of all calls (%(default)s)",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=30,
        help="for the whole call (%(default)s)",
    )
    parser.add_argument("--list", action="store_true", help="print the commands and end")
    return parser.parse_args()


def finished(output: pathlib.Path) -> set[str]:
    """Returns the names of the measurements in the file of an earlier call."""
    if not output.exists():
        return set()
    lines = output.read_text(encoding="utf-8").splitlines()
    return {json.loads(line)["measurement"] for line in lines}


def command_of(measurement: Measurement, peers: str) -> list[str]:
    """Returns the command of a measurement."""
    script = str(HERE / measurement.script)
    return [sys.executable, script, "--peers", peers, *measurement.arguments]


def measure(measurement: Measurement, peers: str, output: pathlib.Path) -> None:
    """Runs a measurement; its lines are written when it is complete."""
    command = command_of(measurement, peers)
    try:
        result = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=60 * measurement.minutes,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"{measurement.name}: {error}", file=sys.stderr)
        return

    lines: list[dict[str, Any]] = [json.loads(line) for line in result.stdout.splitlines()]
    with output.open("a", encoding="utf-8") as file:
        for line in lines:
            print(json.dumps({"measurement": measurement.name} | line), file=file, flush=True)


if __name__ == "__main__":
    main()
