"""Random parameters for tests, without compiling the initialization of a module."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn


def random_params(module: nn.Module, *inputs, scale: float = 0.3, **options):
    """Returns normal NumPy arrays in the shapes of the parameters, away from symmetric values."""
    inputs = [jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in inputs]
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), *inputs, **options)["params"])
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: rng.normal(0, scale, leaf.shape).astype(np.float32), shapes)
