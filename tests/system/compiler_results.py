"""Computes losses and gradients at the shapes of configs, in one process.

    python tests/system/compiler_results.py RESULTS.npz CASE ...

A case is a config, ``configs/base.py``, or rows and a dtype, ``33024-float32``. Models have one
layer of each kind, since all layers have the same shapes.
"""

import dataclasses
import sys

import jax
import numpy as np

from jaxformer.cli.config_file import load_config
from jaxformer.config import Config, DataConfig, ModelConfig
from jaxformer.data.batch import Batch
from jaxformer.models.transformer import Transformer
from jaxformer.tasks.translation import TranslationLoss
from jaxformer.training.task import Randomness


def experiment(case):
    """Returns the config of a case, with one layer."""
    if "." in case:
        config = load_config(case)
    else:
        rows, dtype = case.split("-")
        model = ModelConfig(vocab_size=1000, d_model=64, d_ff=128, num_heads=4, compute_dtype=dtype)
        config = Config(model=model, data=DataConfig(tokens_per_batch=int(rows), max_length=64))
    # Rounding differences at the kink of "relu" would be amplified in the gradients.
    model = dataclasses.replace(config.model, num_layers=1, activation="swish")
    return dataclasses.replace(config, model=model)


def results_of(config):
    """Computes loss and gradients of a batch of the config's size without padding."""
    shape = config.data.tokens_per_batch // config.data.max_length, config.data.max_length
    random, ones = np.random.default_rng(0), np.ones(shape, np.int32)
    src = random.integers(3, config.model.vocab_size, shape, np.int32)
    tgt = random.integers(3, config.model.output_size, shape, np.int32)
    positions = np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape)
    tgt_in = np.concatenate([np.full((shape[0], 1), 2, np.int32), tgt[:, :-1]], axis=1)
    batch = Batch(src, ones, positions, tgt_in, tgt, ones, positions)
    model, key = Transformer(config.model), jax.random.key(0)
    params = jax.jit(model.init)(key, src[:1], tgt_in[:1])["params"]

    loss_of = TranslationLoss(config.model, 0.1)

    def loss(params):
        sums = loss_of(params, batch, Randomness(key, np.arange(shape[0])))
        return sums["loss"] / sums["count"]

    value, gradients = jax.jit(jax.value_and_grad(loss))(params)
    gradients = jax.tree.leaves_with_path(gradients)
    return {"loss": value, **{f"gradient {jax.tree_util.keystr(p)}": g for p, g in gradients}}


if __name__ == "__main__":
    output, *cases = sys.argv[1:]
    results = {}
    for case in cases:
        for name, value in results_of(experiment(case)).items():
            results[f"{case}|{name}"] = np.asarray(value, np.float32)
    np.savez(output, **results)
