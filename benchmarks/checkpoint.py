"""Measures the cost of verifying a checkpoint, beside the restore that it is part of.

    python benchmarks/checkpoint.py --size 750

"Cold" means that the kernel was asked to drop the files from its cache before each measurement
(``posix_fadvise``); a virtual disk may still have them in the cache of its host. Prints one JSON
line with medians, in seconds of wall time and of CPU time.
"""

import argparse
import json
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable

import jax
from machine import machine

from jaxformer.runs.checkpoints import Checkpoints


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=750, help="MB; base with its moments has 750")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=pathlib.Path, help="on the disk to measure")
    options = parser.parse_args()
    keys = jax.random.split(jax.random.key(0), max(1, options.size // 4))
    params = {str(i): jax.random.normal(key, (1000, 1000)) for i, key in enumerate(keys)}
    state = {"params": params}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        directory = pathlib.Path(folder) / "checkpoints"
        with Checkpoints(directory, keep=1) as checkpoints:

            def save() -> None:
                checkpoints.save(1, state, metadata={})
                checkpoints.wait()

            saving = seconds_of(save)

        template = jax.eval_shape(lambda: state)
        reader = Checkpoints(directory)
        work = {
            "verify": reader.newest_good_step,
            "restore": lambda: jax.block_until_ready(reader.restore(template).state),
        }
        results: dict[str, list[tuple[float, float]]] = {}
        for _ in range(options.repeats):
            for cache in ("warm", "cold"):
                for name, action in work.items():
                    if cache == "cold":
                        drop_from_cache(directory)
                    results.setdefault(f"{name}_{cache}", []).append(seconds_of(action))
    print(json.dumps(report(options.size, saving, results)))


def seconds_of(action: Callable[[], object]) -> tuple[float, float]:
    """Returns wall time and CPU time."""
    wall = time.perf_counter()
    cpu = time.process_time()
    action()
    return time.perf_counter() - wall, time.process_time() - cpu


def drop_from_cache(directory: pathlib.Path) -> None:
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def report(
    size: int, saving: tuple[float, float], results: dict[str, list[tuple[float, float]]]
) -> dict[str, object]:
    seconds: dict[str, list[float]] = {"save": rounded(saving)}
    for name, pairs in results.items():
        walls, cpus = zip(*pairs, strict=True)
        seconds[name] = rounded([statistics.median(walls), statistics.median(cpus)])

    shares = {}
    for cache in ("warm", "cold"):
        wall_of_verify, cpu_of_verify = seconds[f"verify_{cache}"]
        wall_of_restore, cpu_of_restore = seconds[f"restore_{cache}"]
        shares[f"verifying_of_{cache}_restore"] = rounded(
            [wall_of_verify / wall_of_restore, cpu_of_verify / cpu_of_restore]
        )
    return {"megabytes": size, "wall_and_cpu_seconds": seconds, **shares, "machine": machine()}


def rounded(values: Iterable[float]) -> list[float]:
    return [round(value, 2) for value in values]


if __name__ == "__main__":
    main()
