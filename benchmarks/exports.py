"""Translations of exports in other systems, compared with ours: a JSON line per comparison.

    python benchmarks/exports.py --workdir runs/multi30k --source test.en --peers PYTHON

It exports a model in float32, and translates the first --lines of --source with greedy search and
beam 4. Each system translates text in a process of its own, and jaxformer translates the same text
by the same rules. --peers is an interpreter with torch, transformers, sentencepiece and
ctranslate2. Without it, only StableHLO is compared. CTranslate2 also needs the package ctranslate2
in this interpreter.

A line has the numbers of sentences and of identical translations. For Marian, whose probabilities
exclude padding, "identical_to_import" compares with jaxformer's import of the export, which
excludes padding, too.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from jaxformer import BeamSearch, Translator
from jaxformer.interop.export import export_model
from jaxformer.interop.marian.importer import import_marian

LENGTH = 100
PEERS = pathlib.Path(__file__).with_name("exports_peers.py")
# Rules of the other systems' searches. StableHLO is our own search.
POWER: dict[str, Any] = {
    "penalty": "power",
    "length_penalty": 1.0,
    "ends_within": "N",
    "unfinished": "compete",
}
RULES: dict[str, dict[str, Any]] = {
    "stablehlo": {},
    "marian": POWER | {"early_stop": "likely"},
    "ctranslate2": POWER | {"early_stop": "full", "min_length": 1},
}


def main() -> None:
    """Compares every system with every beam size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", type=pathlib.Path, required=True)
    parser.add_argument("--source", type=pathlib.Path, required=True, help="text to translate")
    parser.add_argument("--lines", type=int, default=1000, help="number of lines (%(default)s)")
    parser.add_argument("--peers", metavar="PYTHON", help="interpreter with the other systems")
    parser.add_argument("--systems", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("--beam", nargs="+", type=int, default=[1, 4])
    options = parser.parse_args()
    lines = options.source.read_text(encoding="utf-8").splitlines()[: options.lines]
    for system in options.systems:
        if system == "stablehlo" or options.peers:
            for beam in options.beam:
                print(json.dumps(compare(options, system, beam, lines)), flush=True)


def compare(
    options: argparse.Namespace, system: str, beam: int, lines: list[str]
) -> dict[str, Any]:
    """Returns the counts of one system and beam size."""
    search = BeamSearch(beam_size=beam, max_extra_length=LENGTH, max_length=LENGTH, **RULES[system])

    def translate(workdir: pathlib.Path) -> list[str]:
        translator = Translator.load(workdir, search=search, compute_dtype="float32")
        return translator.translate(lines)

    ours = {"identical": translate(options.workdir)}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / system
        dtype = "float32" if system == "stablehlo" else None  # The others store float32.
        export_model(system, options.workdir, folder, search=search, compute_dtype=dtype)
        python = sys.executable if system == "stablehlo" else options.peers
        command = [python, str(PEERS), system, str(folder)]
        command += ["--beam", str(beam), "--length", str(LENGTH)]
        done = subprocess.run(
            command, input="\n".join(lines), stdout=subprocess.PIPE, text=True, check=True
        )
        if system == "marian":
            import_marian(folder, folder / "run")
            ours["identical_to_import"] = translate(folder / "run")
    theirs = done.stdout.splitlines()
    for text, *found in zip(lines, ours["identical"], theirs, strict=True):
        if found[0] != found[1]:
            print(f"{text}\n  ours:   {found[0]}\n  theirs: {found[1]}", file=sys.stderr)
    counts = {name: sum(map(str.__eq__, found, theirs)) for name, found in ours.items()}
    return {"system": system, "beam": beam, "sentences": len(theirs)} | counts


if __name__ == "__main__":
    main()
