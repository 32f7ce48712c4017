"""Computes losses, gradients and translations at the shapes of configs, in one process.

    python tests/system/compiler_results.py RESULTS.npz CASE ...

A case is a config, ``configs/base.py``, or rows and a dtype, ``33024-float32``. Models have one
layer of each kind, since all layers have the same shapes. Running the script with and without an
XLA flag shows the effect of the flag. The activation is "swish", because rounding differences at
the kink of "relu" would be amplified in the gradients.
"""

import dataclasses
import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.cli.config_file import load_config
from jaxformer.config import Config, DataConfig, ModelConfig
from jaxformer.data.batch import Batch
from jaxformer.inference.batched_search import search_batches
from jaxformer.models.transformer import Transformer
from jaxformer.search import BeamSearch
from jaxformer.tasks.translation import loss_sums
from jaxformer.training.task import Randomness


def experiment(case: str) -> Config:
    """Returns the config of a case, with one layer."""
    if "." in case:
        config = load_config(case)
    else:
        rows, dtype = case.split("-")
        model = ModelConfig(vocab_size=1000, d_model=64, d_ff=128, num_heads=4, compute_dtype=dtype)
        config = Config(model=model, data=DataConfig(tokens_per_batch=int(rows), max_length=64))
    return dataclasses.replace(config, model=dataclasses.replace(config.model, num_layers=1))


def results_of(config: Config) -> dict[str, np.ndarray]:
    """Computes loss, gradients, and the best translations of 64 sentences with their scores."""
    model, key = Transformer(config.model), jax.random.key(0)
    smooth = Transformer(dataclasses.replace(config.model, activation="swish"))
    batch = full_batch(config)
    params = jax.jit(model.init)(key, batch.src[:1], batch.tgt_in[:1])["params"]

    def loss(model, params):
        rows = jnp.arange(batch.src.shape[0])
        sums = loss_sums(model, params, batch, 0.1, Randomness(key, rows))
        return sums["loss"] / sums["count"]

    gradients = jax.jit(jax.grad(functools.partial(loss, smooth)))(params)
    arrays = {"loss": jax.jit(functools.partial(loss, model))(params)}
    for path, gradient in jax.tree_util.tree_leaves_with_path(gradients):
        arrays[f"gradient {jax.tree_util.keystr(path)}"] = gradient
    # The search runs with 20 tokens per sentence, which compiles in seconds.
    sources = [[*map(int, row[:19]), 1] for row in np.resize(batch.src, (64, 19))]
    search = BeamSearch(max_length=20, max_extra_length=4)
    found = search_batches((config.model,), search, (params,), sources)
    arrays["scores"] = [best.scores[0] for best in found]
    if config.model.compute_dtype == "float32":  # Rounding to bfloat16 decides between near ties.
        arrays["lengths"] = [len(best.tokens[0]) for best in found]
    return arrays


def full_batch(config: Config) -> Batch:
    """Returns a batch of the config's size without padding."""
    shape = config.data.tokens_per_batch // config.data.max_length, config.data.max_length
    random, ones = np.random.default_rng(0), np.ones(shape, np.int32)
    src = random.integers(3, config.model.vocab_size, shape, np.int32)
    tgt = random.integers(3, config.model.output_size, shape, np.int32)
    positions = np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape)
    tgt_in = np.concatenate([np.full((shape[0], 1), 2, np.int32), tgt[:, :-1]], axis=1)
    return Batch(src, ones, positions, tgt_in, tgt, ones, positions)


if __name__ == "__main__":
    output, *cases = sys.argv[1:]
    results = {}
    for case in cases:
        for name, value in results_of(experiment(case)).items():
            results[f"{case}|{name}"] = np.asarray(value, np.float32)
    np.savez(output, **results)
