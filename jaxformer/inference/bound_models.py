"""Programs that belong to the models they are compiled for, and keep their matrices packed.

On CPUs, small batches spend much of their time on bringing matrices into the order of XLA's
kernels, at every step. :mod:`jaxformer.nn.constants` describes the mark that avoids this, and its
danger: a program with a mark computes with the numbers of the first matrix it was called with.
Therefore

- each ``Models`` value has programs of its own, which are called with its matrices only;
- they live as long as the value, and others take their place when a parameter is replaced.
"""

import dataclasses
import functools
import operator
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from jaxformer.inference.kept_programs import KeptProgram, is_distributed
from jaxformer.inference.members import Models, is_member
from jaxformer.nn.backend import backend
from jaxformer.nn.constants import ConstantMatrix
from jaxformer.nn.precision import Int8Matrix
from jaxformer.nn.stack import unstack_blocks


@dataclasses.dataclass(frozen=True, eq=False)
class _BoundModels:
    """Models with constant matrices, and all programs that are called with them."""

    originals: list[Array]  # the parameters, which live as long as the programs
    constants: Models
    programs: dict[Hashable, Callable[..., list[Array]]] = dataclasses.field(default_factory=dict)


_bound: "weakref.WeakKeyDictionary[Models, _BoundModels]" = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def program_of(
    program: KeptProgram,
    models: Models,
    num_hypotheses: int,
) -> Callable[..., list[Array]]:
    """Returns a program with its first argument given, bound to the models if that is faster.

    Args:
      program: A program whose first argument is models.
      models: The models. A reference to them is held only by the caller.
      num_hypotheses: Number of hypotheses in a batch, of all of its sentences.
    """
    leaves = jax.tree.leaves(models)
    if not _can_bind(leaves, num_hypotheses):
        return functools.partial(program, models)

    with _lock:
        bound = _bound.get(models)
        if bound is None or not _are_same(bound.originals, leaves):
            bound = _BoundModels(leaves, _with_constants(models))
            _bound[models] = bound
    return functools.partial(program.call_bound, bound.programs, bound.constants)


def _can_bind(leaves: list[Any], num_hypotheses: int) -> bool:
    """Returns whether programs may keep the matrices packed, and gain from it."""
    dtypes = {leaf.dtype.name for leaf in leaves if leaf.ndim > 1}
    if "int8" in dtypes:
        most = backend().packed_int8
    elif "bfloat16" in dtypes:
        most = backend().packed_bfloat16
    else:
        return False

    if num_hypotheses > most or jax.config.values["jax_disable_jit"]:
        return False
    # Others could change arrays of NumPy.
    are_arrays = all(isinstance(leaf, jax.Array) for leaf in leaves if leaf.ndim)
    return are_arrays and not is_distributed(leaves)


def _are_same(first: list[Array], second: list[Array]) -> bool:
    return len(first) == len(second) and all(map(operator.is_, first, second))


def _with_constants(models: Models) -> Models:
    """Returns the models with constant matrices, and layers that are not stacked."""

    def convert(leaf: Any) -> Any:
        if not is_member(leaf):
            return leaf  # a number

        # NumPy compiles no programs, and its views need no memory.
        [device] = jax.tree.leaves(leaf.params)[0].devices()
        params = _constant_params(jax.tree.map(np.asarray, leaf.params))
        return leaf._replace(params=jax.device_put(params, device))

    return jax.tree.map(convert, models, is_leaf=is_member)


def _constant_params(params: PyTree) -> PyTree:
    if isinstance(params, dict):
        return {name: _constant_params(value) for name, value in unstack_blocks(params).items()}
    if isinstance(params, Int8Matrix):
        values: Any = params.values
        return params._replace(values=ConstantMatrix.of(values))
    if isinstance(params, tuple):
        return tuple(map(_constant_params, params))

    if params.dtype == jnp.bfloat16:
        return ConstantMatrix.of(params)
    return params
