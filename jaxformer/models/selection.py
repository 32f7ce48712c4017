"""The models that a workdir may hold, and the metadata of their parameters."""

import functools
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from jaxformer.models.assembly import ModelConfig
from jaxformer.models.language_model import LanguageModel
from jaxformer.models.transformer import Transformer
from jaxformer.nn.parameters import describe

Model: TypeAlias = type[Transformer] | type[LanguageModel]
# The number of token arrays that each model takes.
_INPUTS: dict[Model, int] = {Transformer: 2, LanguageModel: 1}


@functools.lru_cache
def abstract_model_params(config: ModelConfig, model: Model) -> PyTree:
    """Returns shapes and dtypes of the float32 parameters, without computing anything."""
    return jax.eval_shape(*_init(config, model))["params"]


@functools.lru_cache
def describe_model(config: ModelConfig, model: Model = Transformer) -> PyTree:
    """Returns a :class:`~jaxformer.nn.ParameterInfo` for each parameter."""
    return describe(*_init(config, model))


def _init(config: ModelConfig, model: Model) -> tuple[Any, ...]:
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    return model(config).init, jax.random.key(0), *[tokens] * _INPUTS[model]
