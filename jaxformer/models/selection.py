"""The models that a workdir may hold, and the metadata of their parameters."""

import functools
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from jaxformer.models.assembly import ModelConfig
from jaxformer.models.language_model import LanguageModel
from jaxformer.models.transformer import Transformer
from jaxformer.nn.parameters import describe

Model: TypeAlias = type[Transformer] | type[LanguageModel]
# The number of token arrays that each model takes.
_INPUTS: dict[Model, int] = {Transformer: 2, LanguageModel: 1}


@functools.lru_cache
def make_init(config: ModelConfig, model: Model = Transformer) -> Callable[[Array], PyTree]:
    """Returns a function that creates the float32 parameters of a model from a key."""

    def init(key: Array) -> PyTree:
        tokens = jnp.ones((1, 1), jnp.int32)
        return model(config).init(key, *[tokens] * _INPUTS[model])["params"]

    return init


@functools.lru_cache
def describe_model(config: ModelConfig, model: Model = Transformer) -> PyTree:
    """Returns a :class:`~jaxformer.nn.ParameterInfo` for each parameter."""
    return describe(make_init(config, model), jax.random.key(0))
