"""Compares loss curves of 50 steps with stored ones: a refactoring changes no number.

    python tests/loss_curves.py
    python tests/loss_curves.py --store

Trains two configs on generated number words. A stored curve belongs to a class of machines: the
instructions of the processor, the number of threads and the version of JAX. On a machine of a
stored class, every loss must be equal, bit for bit. On any other, it may differ from each stored
curve by 1e-5 of its value. Prints a line for each config, and exits with 1 after a difference.

``--store`` adds or replaces the curves of this class of machines, with ``--only`` of one config.
After a change that is meant to change numbers, the curves of other classes are out of date:
``--store --alone`` also drops them.
"""

import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
from typing import Any

STORED = pathlib.Path(__file__).parent / "fixtures" / "loss_curves.json"
STEPS = 50
TOLERANCE = 1e-5
# Instructions that XLA's and Eigen's kernels for CPUs choose among.
_INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "asimd", "sve")
# Configs, and fields that are set beside the number of steps.
CONFIGS = {
    "numerals": (),
    "base:small": ("data.train={folder}/train", "data.valid={folder}/held_out"),
}

Curves = dict[str, dict[str, list[float]]]  # losses by config and class of machines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", action="store_true", help="store the curves of this machine")
    parser.add_argument("--alone", action="store_true", help="drop the curves of other machines")
    parser.add_argument("--only", nargs="+", choices=CONFIGS, default=list(CONFIGS))
    parser.add_argument("--set", nargs="*", default=[], help="fields, such as model.num_layers=1")
    options = parser.parse_args()

    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    machine = machine_class()
    is_changed = False
    for name in options.only:
        losses = train_curve(name, options.set)
        if options.store:
            others = {} if options.alone else stored.get(name, {})
            stored[name] = {**others, machine: losses}
            continue

        difference = describe_difference(losses, stored[name], machine)
        print(f"{name}: {difference or 'the same losses'}")
        is_changed |= bool(difference)

    if options.store:
        STORED.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")
    return int(is_changed)


def machine_class() -> str:
    """Returns what results depend on beside the program."""
    import jax

    from jaxformer.nn.backend import cpu_features

    features = cpu_features()
    found = [name for name in _INSTRUCTIONS if name in features]
    threads = len(os.sched_getaffinity(0))
    return f"{platform.machine()} {' '.join(found)}, {threads} threads, jax {jax.__version__}"


def train_curve(name: str, changes: list[str]) -> list[float]:
    """Returns the loss of each step."""
    from jaxformer import load_config, train

    losses = []

    def note(step: int, state: Any, sums: dict[str, Any]) -> None:
        losses.append(float(sums["loss"]) / float(sums["count"]))

    with tempfile.TemporaryDirectory() as folder:
        write_numerals(folder)
        own = [field.format(folder=folder) for field in CONFIGS[name]]
        steps = [f"training.steps={STEPS}", f"training.log_every={STEPS}"]
        fields = [*own, *steps, "training.eval_sentences=0", *changes]
        config = load_config(name, [f"--config.{field}" for field in fields])
        train(config, pathlib.Path(folder) / "run", hooks=[note])
    return losses


def write_numerals(folder: str) -> None:
    """Writes pairs of number words, for configs that read files."""
    for split in ("train", "held_out"):
        module = [sys.executable, "-m", "jaxformer.data.numerals"]
        subprocess.run([*module, split, f"--directory={folder}"], check=True, capture_output=True)


def describe_difference(
    losses: list[float],
    stored: dict[str, list[float]],
    machine: str,
) -> str:
    """Returns the first step whose loss differs from a stored curve, or "" if none does."""
    is_known = machine in stored
    tolerance = 0.0 if is_known else TOLERANCE
    compared = {machine: stored[machine]} if is_known else stored
    for owner, expected in compared.items():
        for step, (found, loss) in enumerate(zip(losses, expected, strict=True), start=1):
            if not abs(found - loss) <= tolerance * abs(loss):
                return f"the loss of step {step} is {found!r}, but {loss!r} is stored for {owner}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
