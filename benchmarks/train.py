"""Training speed of jaxformer and other libraries on one machine: a JSON line per system.

    python benchmarks/train.py --size base --peers /path/to/environment/bin/python

A step is forward, backward and Adam, with label smoothing 0.1 and dropout 0.1. All systems have the
same shapes without padding; jaxformer takes its batches from its data loader. The systems run in
separate processes and take turns after every step, so that all see the same machine. The peers are
PyTorch's nn.Transformer and Hugging Face's Marian, run by the interpreter given by --peers. They
are never dependencies of jaxformer. nn.Transformer also has dropout in attention and feed-forward
network, which the paper's model does not have and which cannot be turned off separately. It does
slightly more work for it.

``--size gpt`` is the language model of configs/shakespeare.py, without label smoothing and with
dropout on attention weights. Its peers are a GPT as commonly written in PyTorch, and Hugging Face's
GPT-2.

All systems get the same settings of malloc. By default, glibc returns large arrays to the system
after every operation, and page faults take a third of a step. --malloc default leaves the settings
unchanged. On a GPU they are never changed, since its arrays are not allocated by malloc.

On a GPU, use a batch that fills it, such as 25,000 tokens on either side; the peers are compiled
there:

    python benchmarks/train.py --size big --rows 96 --length 256 --peers python \
        --systems "ours bfloat16" "torch bfloat16"

A line has, for one system:
  tokens_per_second  source and target, without padding: median, min and max of the steps
  ratio              median speed relative to each peer; above 1 is faster
  flops_per_second   FLOP/s of the matmuls, counted from sizes (jaxformer/training/flops.py)
  mfu                flops_per_second relative to the best matmul measured in this process, of size
                     2,048 x 2,048, or 8,192 x 8,192 on accelerators
  padding_efficiency, compile_seconds, compilations, peak_memory_mb (of the process; of the device)
  waiting_for_data   fraction of the time spent on loading, while devices compute
  milliseconds       time per step by kind of operation, summed over threads, from a profile
The last two are only measured for jaxformer.
"""

import argparse
import json
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from machine import machine

SIZES = {
    "base": {
        "d_model": 512, "d_ff": 2048, "num_heads": 8, "num_layers": 6,
        "vocab_size": 32_000, "rows": 64, "length": 32,
    },
    "small": {
        "d_model": 256, "d_ff": 1024, "num_heads": 4, "num_layers": 3,
        "vocab_size": 8_000, "rows": 128, "length": 24,
    },
    "big": {
        "d_model": 1024, "d_ff": 4096, "num_heads": 16, "num_layers": 6,
        "vocab_size": 32_000, "rows": 64, "length": 32,
    },
    "gpt": {
        "d_model": 256, "d_ff": 1024, "num_heads": 4, "num_layers": 4,
        "vocab_size": 69, "rows": 32, "length": 256, "sides": 1,
    },
    "tiny": {
        "d_model": 16, "d_ff": 32, "num_heads": 2, "num_layers": 1,
        "vocab_size": 50, "rows": 4, "length": 6,
    },
}  # fmt: skip
OURS = ("ours float32", "ours bfloat16")
PEERS = ("torch float32", "torch bfloat16", "huggingface float32", "huggingface bfloat16")
MALLOC = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TOP_PAD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**35),
}
# By default, JAX takes three quarters of a GPU's memory, and leaves the peers too little.
SHARED_GPU = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
WARM_UP = 3
# Kinds of XLA operations by patterns of their names; the first match counts.
KINDS = {
    "attention": re.compile("cudnn|sdpa"),
    "matmuls": re.compile("ynn|dot|gemm|nvjet|cutlass|convolution"),
    "transposes and copies": re.compile("transpose|copy|bitcast|concatenate|memcpy"),
}


def main() -> None:
    """Takes steps of all systems in turn, and prints a line for each system."""
    options = parse_arguments()
    size = {"sides": 2} | SIZES[options.size]  # a language model has one side
    size |= {name: getattr(options, name) or size[name] for name in ("rows", "length")}
    if options.worker:
        serve(our_steps(options.worker, size))
        return
    os.environ |= SHARED_GPU
    if on_accelerator():
        options.malloc = "default"
    surroundings = machine() | {"malloc": options.malloc}
    contestants = {name: Contestant(name, options, size) for name in options.systems}
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for round_ in range(WARM_UP + options.steps):
        for name, contestant in contestants.items():
            taken = contestant.step()
            if round_ >= WARM_UP:
                seconds[name].append(taken)
    tokens = size["sides"] * size["rows"] * size["length"]
    # From the fastest step to the slowest.
    speeds = {name: speeds_of(taken, tokens) for name, taken in seconds.items()}
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    for name, contestant in contestants.items():
        line = {"benchmark": "train", "size": options.size, "system": name}
        line["tokens_per_second"] = {
            "median": round(medians[name]),
            "min": round(speeds[name][-1]),
            "max": round(speeds[name][0]),
        }
        peers = [peer for peer in contestants if peer in PEERS and peer != name]
        line["ratio"] = {peer: round(medians[name] / medians[peer], 3) for peer in peers}
        print(json.dumps(line | contestant.facts(medians[name] / tokens) | surroundings))


def speeds_of(seconds: list[float], tokens: int) -> list[float]:
    return [tokens / taken for taken in sorted(seconds)]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="small", help="of the model (%(default)s)")
    parser.add_argument("--steps", type=int, default=7, help="timed steps (%(default)s)")
    parser.add_argument("--rows", type=int, metavar="N", help="sentences (default: the size's)")
    parser.add_argument("--length", type=int, metavar="N", help="tokens of a sentence (likewise)")
    parser.add_argument("--peers", metavar="PYTHON", help="interpreter with torch, transformers")
    parser.add_argument(
        "--systems", nargs="+", choices=OURS + PEERS, metavar="NAME", help="only some of them: "
        + ", ".join(f'"{name}"' for name in OURS + PEERS),
    )  # fmt: skip
    parser.add_argument("--malloc", choices=("tuned", "default"), default="tuned")
    parser.add_argument("--worker", choices=OURS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.systems = options.systems or (OURS + PEERS if options.peers else OURS)
    if not options.peers and set(options.systems) & set(PEERS):
        parser.error("these --systems need --peers, the interpreter that has them")
    return options


class Contestant:
    """A system in a separate process, which takes a step for every line that it receives."""

    def __init__(self, name: str, options: argparse.Namespace, size: dict[str, int]) -> None:
        here = pathlib.Path(__file__)
        if name in OURS:
            sizes = ["--rows", str(size["rows"]), "--length", str(size["length"])]
            command = [sys.executable, str(here), "--worker", name, "--size", options.size, *sizes]
        else:
            peers = here.with_name("train_peers.py")
            command = [options.peers, str(peers), name, json.dumps(size)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | SHARED_GPU | (MALLOC if options.malloc == "tuned" else {}),
        )

    def step(self) -> float:
        """Takes a step, and returns its seconds."""
        return self._ask("step")["seconds"]

    def facts(self, steps_per_second: float) -> dict[str, Any]:
        """Returns facts about the system, and ends its process."""
        facts = self._ask("facts")
        if "flops" in facts:
            flops = facts.pop("flops") * steps_per_second
            facts["flops_per_second"] = float(f"{flops:.3g}")
            facts["mfu"] = round(flops / facts["peak_flops_per_second"], 3)
        self._process.stdin.close()
        self._process.wait()
        return facts

    def _ask(self, what: str) -> dict[str, Any]:
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def serve(system: tuple[Callable[[], None], Callable[[], dict[str, Any]]]) -> None:
    """Answers lines on standard input until it ends; runs in the process of a contestant."""
    step, facts = system
    for line in sys.stdin:
        began = time.perf_counter()
        if line.strip() == "step":
            step()
            answer = {"seconds": time.perf_counter() - began}
        else:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            answer = {"peak_memory_mb": peak} | facts()
        print(json.dumps(answer), flush=True)


def our_steps(name: str, size: dict[str, int]) -> tuple[Callable, Callable]:
    """Returns a function that takes a step of jaxformer, and a function that returns facts."""
    import jax

    from jaxformer.experiment import make_optimizer
    from jaxformer.training.mesh import make_mesh
    from jaxformer.training.placement import to_devices
    from jaxformer.training.step import make_train_step
    from jaxformer.training.train_state import init_state

    _, dtype = name.split()
    mesh = make_mesh()
    make_work = our_translation if size["sides"] == 2 else our_language_model
    config, init, loss, batches, known = make_work(size, dtype, mesh)
    optimizer = make_optimizer(config)
    state = init_state(init, optimizer, mesh, seed=0)
    first = to_devices(mesh, next(batches))
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event)
    )
    began = time.perf_counter()
    train_step = make_train_step(loss, optimizer, mesh).compile(state, first)
    compile_seconds = time.perf_counter() - began
    batch = first
    waited = 0.0
    took = 0.0

    def step() -> None:
        nonlocal state, batch, waited, took
        began = time.perf_counter()
        state, metrics = train_step(state, batch)
        # Load the next batch while the devices compute, as in training.
        loading = time.perf_counter()
        batch = to_devices(mesh, next(batches))
        waited += time.perf_counter() - loading
        jax.block_until_ready(metrics)
        took += time.perf_counter() - began

    def facts() -> dict[str, Any]:
        return known | {
            # Counted before the peak is measured, which compiles another program.
            "compilations": sum(event.endswith("backend_compile_duration") for event in compiled),
            "peak_device_memory_mb": peak_device_memory_mb(),
            "peak_flops_per_second": matmul_peak(dtype),
            "compile_seconds": round(compile_seconds, 1),
            "milliseconds": where_time_goes(step),
            "waiting_for_data": round(waited / took, 4),
        }

    return step, facts


def our_translation(size: dict[str, int], dtype: str, mesh: Any) -> tuple:
    """Returns config, init, loss and batches of the paper's model, and facts about a step."""
    import numpy as np

    from jaxformer.config import Config, ModelConfig
    from jaxformer.data.loader import load_batches
    from jaxformer.data.plan import bucket_plan
    from jaxformer.kinds.model_parameters import make_init
    from jaxformer.tasks.translation import TranslationLoss
    from jaxformer.training.flops import training_flops
    from jaxformer.training.placement import BatchShards

    config = Config(model=ModelConfig(**architecture(size), compute_dtype=dtype))
    rows = size["rows"]
    length = size["length"]
    # Pairs without BOS and EOS, as in a token store; a few batches of them repeat.
    rng = np.random.default_rng(0)
    store = [
        rng.integers(4, size["vocab_size"], (2, length - 1), np.int32) for _ in range(4 * rows)
    ]
    lengths = np.full(len(store), length)
    plan = bucket_plan(lengths, lengths, tokens_per_batch=rows * length, seed=0)
    batches = load_batches(store, plan, row_multiple=BatchShards.of(mesh).row_multiple)
    known = {
        "flops": training_flops(config.model, rows, length, length),
        "padding_efficiency": plan.efficiency,
    }
    return config, make_init(config.model), TranslationLoss.of(config), batches, known


def our_language_model(size: dict[str, int], dtype: str, mesh: Any) -> tuple:
    """Returns the same for a language model, on a text of random characters."""
    import numpy as np

    from jaxformer.config import Config, ModelConfig, StreamConfig, TrainingConfig
    from jaxformer.runs.workdir import Workdir
    from jaxformer.tasks.language_modeling import LanguageModeling, open_stream
    from jaxformer.training.flops import language_model_flops
    from jaxformer.training.placement import BatchShards

    rows = size["rows"]
    length = size["length"]
    characters = [chr(0x4E00 + i) for i in range(size["vocab_size"] - 4)]
    choices = np.random.default_rng(0).choice(characters, 10 * length * rows)
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder, "text")
        text.write_text("".join(choices), encoding="utf-8")
        options = {"attention_dropout_rate": 0.1, "norm_position": "pre", "activation": "gelu"}
        config = Config(
            model=ModelConfig(
                **architecture(size), **options, max_length=length, compute_dtype=dtype
            ),
            data=StreamConfig(file=str(text), length=length, rows=rows),
            training=TrainingConfig(label_smoothing=0.0),
        )
        task = LanguageModeling(config, open_stream(config, Workdir(pathlib.Path(folder))))
    known = {"flops": language_model_flops(config.model, rows, length)}
    return config, task.init, task.loss, task.batches(0, BatchShards.of(mesh)), known


def architecture(size: dict[str, int]) -> dict[str, int]:
    """Returns the fields of a size that belong to a ModelConfig."""
    from jaxformer.config import ModelConfig

    return {field: size[field] for field in ModelConfig.__dataclass_fields__ if field in size}


def where_time_goes(step: Callable[[], None], steps: int = 2) -> dict[str, float]:
    """Returns milliseconds of a step, summed over threads, by the kind of XLA operation."""
    import jax

    milliseconds = dict.fromkeys((*KINDS, "other"), 0.0)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(steps):
                step()
        (file,) = pathlib.Path(folder).rglob("*.xplane.pb")
        planes = list(jax.profiler.ProfileData.from_file(str(file)).planes)
    if on_gpu := [plane for plane in planes if plane.name.startswith("/device:GPU")]:
        lines = [line for plane in on_gpu for line in plane.lines if line.name.startswith("Stream")]
    else:
        lines = [line for plane in planes for line in plane.lines]
    for event in (event for line in lines for event in line.events):
        # Skip Python frames, and events that wait for or contain other operations.
        if event.name.startswith(("$", "ThunkExecutor", "SlinkyThreadPool", "while", "call")):
            continue
        kind = next((kind for kind, words in KINDS.items() if words.search(event.name)), "other")
        milliseconds[kind] += event.duration_ns / steps / 1e6
    return {kind: round(spent, 1) for kind, spent in milliseconds.items()}


def on_accelerator() -> bool:
    """Returns whether JAX computes on anything but CPUs."""
    import jax

    return jax.default_backend() != "cpu"


def peak_device_memory_mb() -> int | None:
    """Returns the peak memory of arrays on an accelerator so far; None on CPUs."""
    import jax

    statistics_ = jax.devices()[0].memory_stats()
    return statistics_ and statistics_["peak_bytes_in_use"] // 2**20


def matmul_peak(dtype: str) -> float:
    """Returns the FLOP/s of the best of twenty matmuls of square matrices."""
    import jax
    import jax.numpy as jnp

    size = 8192 if on_accelerator() else 2048
    # Random numbers: with zeros or ones, a GPU stays cooler and runs faster.
    a = jax.random.normal(jax.random.key(0), (size, size)).astype(dtype)
    product = jax.jit(lambda a: jnp.matmul(a, a, preferred_element_type=jnp.float32))
    product(a).block_until_ready()
    times = []
    for _ in range(20):
        began = time.perf_counter()
        product(a).block_until_ready()
        times.append(time.perf_counter() - began)
    return float(f"{2 * size**3 / min(times):.3g}")


if __name__ == "__main__":
    main()
