"""Training steps per second, ours and PyTorch's, in one run on one machine; prints one JSON line.

    python benchmarks/train.py --size small --peer /path/to/environment/bin/python

The peer is an interpreter that has torch (never a dependency of ours). Steps alternate, so that
both see the same machine. Each is forward, backward and Adam on the same shapes, all tokens real,
with label smoothing 0.1 and dropout 0.1. ``torch.nn.Transformer`` cannot be built without dropout
inside attention and feed-forward network, which the paper's model does not have: the peer does that
little more.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

SIZES = {
    "base": {
        "d_model": 512, "d_ff": 2048, "num_heads": 8, "num_layers": 6,
        "vocab_size": 32_000, "rows": 64, "length": 32,
    },
    "small": {
        "d_model": 256, "d_ff": 1024, "num_heads": 4, "num_layers": 3,
        "vocab_size": 8_000, "rows": 128, "length": 24,
    },
}  # fmt: skip


def main() -> None:
    """Alternates steps of both and prints medians."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--steps", type=int, default=7, help="timed steps (default: %(default)s)")
    parser.add_argument("--peer", help="a Python interpreter that has torch")
    parser.add_argument("--be-the-peer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    size = SIZES[options.size]
    if options.be_the_peer:
        serve_torch(size, options.dtype)
        return
    contestants = {"ours": our_step(size, options.dtype)}
    if options.peer:
        contestants["torch"] = torch_step(options)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for round_ in range(2 + options.steps):
        for name, step in contestants.items():
            taken = step()
            if round_ >= 2:  # the first two warm up
                seconds[name].append(taken)
    tokens = 2 * size["rows"] * size["length"]
    speed = {name: tokens / statistics.median(times) for name, times in seconds.items()}
    result = {
        "benchmark": "train",
        "size": options.size,
        "dtype": options.dtype,
        "tokens_per_second": {name: round(value) for name, value in speed.items()},
    }
    if options.peer:
        result["ratio"] = round(speed["ours"] / speed["torch"], 3)
    print(json.dumps(result))


def our_step(size: dict[str, int], dtype: str) -> Callable[[], float]:
    """A function that takes one of our steps and returns the seconds it took."""
    import jax
    import numpy as np

    from jaxformer.config import Config, ModelConfig
    from jaxformer.data.batch import Batch
    from jaxformer.nn.transformer import Transformer
    from jaxformer.training.optimizer import make_optimizer
    from jaxformer.training.step import init_state, make_mesh, make_train_step, to_devices

    architecture = {name: size[name] for name in ModelConfig.__dataclass_fields__ if name in size}
    config = Config(model=ModelConfig(**architecture, compute_dtype=dtype))
    optimizer, mesh = make_optimizer(config), make_mesh()
    state = init_state(Transformer(config.model), optimizer, mesh, seed=0)
    train_step = make_train_step(config, optimizer, mesh)
    shape = (size["rows"], size["length"])
    rng = np.random.default_rng(0)
    src, tgt_in, tgt_out = rng.integers(4, size["vocab_size"], (3, *shape), dtype=np.int32)
    ones = np.ones(shape, np.int32)
    positions = np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape)
    batch = to_devices(mesh, Batch(src, ones, positions, tgt_in, tgt_out, ones, positions))

    def step() -> float:
        nonlocal state
        began = time.perf_counter()
        state, metrics = train_step(state, batch)
        jax.block_until_ready(metrics)
        return time.perf_counter() - began

    return step


def torch_step(options: argparse.Namespace) -> Callable[[], float]:
    """The same of the peer, which waits in a process of its own for its turn."""
    process = subprocess.Popen(
        [options.peer, __file__, "--be-the-peer", "--size", options.size, "--dtype", options.dtype],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def step() -> float:
        process.stdin.write("\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    return step


def serve_torch(size: dict[str, int], dtype: str) -> None:
    """Takes a step of PyTorch for every line on standard input, and prints the seconds."""
    import torch

    torch.manual_seed(0)
    embedding = torch.nn.Embedding(size["vocab_size"], size["d_model"])
    layers = size["num_layers"]
    model = torch.nn.Transformer(
        size["d_model"], size["num_heads"], layers, layers, size["d_ff"], 0.1, batch_first=True
    )
    parameters = [*embedding.parameters(), *model.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
    src, tgt_in, tgt_out = torch.randint(
        4, size["vocab_size"], (3, size["rows"], size["length"])
    ).unbind()
    mask = model.generate_square_subsequent_mask(size["length"])
    for _ in sys.stdin:
        began = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            features = model(embedding(src), embedding(tgt_in), tgt_mask=mask, tgt_is_causal=True)
            logits = features @ embedding.weight.T
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), tgt_out.flatten(), label_smoothing=0.1
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
