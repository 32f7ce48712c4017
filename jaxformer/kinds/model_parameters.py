"""The parameters of the models of a kind of experiment."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from jaxformer.kinds.kind import Kind
from jaxformer.kinds.translation import TRANSLATION
from jaxformer.models.architecture import Architecture
from jaxformer.nn.parameters import describe


@functools.lru_cache
def make_init(model: Architecture, kind: Kind = TRANSLATION) -> Callable[[Array], PyTree]:
    """Returns a function that creates the float32 parameters of a model, given a random key."""

    def init(key: Array) -> PyTree:
        inputs = [jnp.ones(each.shape, each.dtype) for each in kind.inputs(model)]
        variables = kind.build(model).init(key, *inputs)
        return variables["params"]

    return init


@functools.lru_cache
def describe_model(model: Architecture, kind: Kind = TRANSLATION) -> PyTree:
    """Returns a :class:`~jaxformer.nn.ParameterInfo` for each parameter."""
    init = make_init(model, kind)
    key = jax.eval_shape(lambda: jax.random.key(0))
    return describe(init, key)
