"""Random inputs and parameters for tests, without compiling the initialization of a module."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn


def normal(*shape: int, seed: int | np.random.Generator = 0) -> np.ndarray:
    """Returns standard normal float32 numbers; a generator continues where it is."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def random_params(module: nn.Module, *inputs, scale: float = 0.3, **options):
    """Returns normal NumPy arrays in the shapes of the parameters, away from symmetric values."""

    def to_jax(value):
        return jnp.asarray(value) if isinstance(value, np.ndarray) else value

    arguments = [to_jax(value) for value in inputs]

    def init():
        variables = module.init(jax.random.key(0), *arguments, **options)
        return variables["params"]

    rng = np.random.default_rng(0)

    def draw(leaf):
        values = rng.normal(0, scale, leaf.shape)
        return values.astype(np.float32)

    return jax.tree.map(draw, jax.eval_shape(init))
