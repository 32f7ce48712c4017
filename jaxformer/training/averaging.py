"""Averages of parameters over the steps of a run, and the parameters that are evaluated."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int, PyTree

from jaxformer.errors import UserError

Optimizer: TypeAlias = optax.GradientTransformation
# (optimizer's state, trained parameters) -> parameters to evaluate, as schedule_free_eval_params.
EvaluatedParams: TypeAlias = Callable[[PyTree, PyTree], PyTree]


class EmaState(NamedTuple):
    """The state of :func:`with_ema`."""

    inner: PyTree  # state of the optimizer
    count: Int[Array, ""]  # int32; number of updates in the average
    average: PyTree  # with the names and shapes of the parameters, in float32 or wider


def with_ema(optimizer: Optimizer, decay: float) -> optax.GradientTransformationExtraArgs:
    """Returns an optimizer that also averages the parameters exponentially over its updates.

    After n updates with results p_1, ..., p_n, p_i has a weight proportional to decay^(n - i). The
    initial parameters have none. Give :func:`ema_params` to :func:`~jaxformer.fit`, as
    ``evaluated``.

    Departs from the paper: an optional average of all steps; section 6.1 averages checkpoints.

    >>> optimizer = with_ema(optax.sgd(1.0), 0.5)
    >>> params, state = jnp.array(7.0), optimizer.init(jnp.array(7.0))
    >>> for _ in range(2):  # to 6 and 5, with weights 1 and 2
    ...     updates, state = optimizer.update(jnp.array(1.0), state, params)
    ...     params = optax.apply_updates(params, updates)
    >>> round(float(ema_params(state, params)), 4)
    5.3333

    Args:
      optimizer: Any gradient transformation. It must be the whole optimizer, not a part of a chain.
      decay: Factor on the weights at each update, between 0 and 1; such as 0.999.

    Raises:
      UserError: ``decay`` is not between 0 and 1.
    """
    if not 0 < decay < 1:
        raise UserError(f"with_ema: decay must be between 0 and 1: got {decay}")
    inner = optax.with_extra_args_support(optimizer)

    def init(params: PyTree) -> EmaState:
        average = jax.tree.map(_wide_zeros, params)
        inner_state = inner.init(params)
        count = jnp.zeros((), jnp.int32)
        return EmaState(inner_state, count, average)

    def update(
        updates: PyTree,
        state: Any,
        params: PyTree = None,
        **extra: Any,
    ) -> tuple[PyTree, EmaState]:
        updates, inner_state = inner.update(updates, state.inner, params, **extra)
        count = state.count + 1

        # The newest parameters have the weight (1 - decay) / (1 - decay^count). Computed as
        # written, its denominator has few exact digits if decay is almost 1.
        exponent = count.astype(jnp.float32) * math.log(decay)
        weight = (decay - 1) / jnp.expm1(exponent)

        def average(mean: Array, new: Array) -> Array:
            return mean + weight.astype(mean.dtype) * (new - mean)  # Frozen parameters stay exact.

        new_params = optax.apply_updates(params, updates)
        new_average = jax.tree.map(average, state.average, new_params)
        return updates, EmaState(inner_state, count, new_average)

    return optax.GradientTransformationExtraArgs(init, update)


def _wide_zeros(array: Array) -> Array:
    # In bfloat16, an average with decay 0.999 would stop changing: 1 + 0.001 rounds to 1.
    return jnp.zeros_like(array, dtype=np.promote_types(array.dtype, np.float32))


def ema_params(state: EmaState, params: PyTree) -> PyTree:
    """Returns the average in the state of :func:`with_ema`, in the dtypes of the parameters.

    Before the first update, these are ``params``.
    """

    def choose(mean: Array, p: Array) -> Array:
        return jnp.where(state.count, mean.astype(p.dtype), p)

    return jax.tree.map(choose, state.average, params)
