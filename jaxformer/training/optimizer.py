"""Optimizers as optax transformations: Adam (section 5.3), Muon, schedules, per-layer rules."""

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from jaxformer.errors import UserError
from jaxformer.nn.parameters import ParameterInfo
from jaxformer.training.averaging import Optimizer
from jaxformer.training.paths import path_of
from jaxformer.training.settings import TrainingConfig


def inverse_sqrt_schedule(d_model: int, warmup_steps: int, scale: float = 1.0) -> optax.Schedule:
    """Returns the schedule of equation 3: linear warm-up, then the inverse square root of the step.

    lrate = scale * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5). The schedule takes
    optax's count, which is 0 at the first update, where the paper's step is 1.

    >>> schedule = inverse_sqrt_schedule(512, 4000)
    >>> round(float(schedule(3999)) * 1e4, 4)  # the peak: (512 * 4000)^-0.5
    6.9877

    Args:
      d_model: Width of the model.
      warmup_steps: Steps of the linear warm-up, at least 1.
      scale: Factor on the learning rate; 1 is the paper's.

    Raises:
      UserError: ``d_model`` or ``warmup_steps`` is less than 1.
    """
    sizes = {"d_model": d_model, "warmup_steps": warmup_steps}
    for name, value in sizes.items():
        if value < 1:
            raise UserError(f"{name} must be at least 1: got {value}")

    def schedule(count):
        step = jnp.asarray(count, jnp.float32) + 1.0
        decay = step**-0.5
        warmup = step * warmup_steps**-1.5
        width_factor = scale * d_model**-0.5
        return width_factor * jnp.minimum(decay, warmup)

    return schedule


def configured_schedule(settings: TrainingConfig, d_model: int) -> optax.Schedule:
    """Returns the schedule of the settings; by default all have the peak of equation 3.

    The rate rises linearly to step ``warmup_steps``. "linear" and "cosine" then fall, and reach 0
    one step after the last.
    """
    warmup = settings.warmup_steps
    rate = settings.learning_rate
    scale = settings.learning_rate_scale

    if settings.schedule == "inverse_sqrt":
        if rate is not None:
            # The peak is (d_model * warmup)^-0.5 without a scale, and ``rate`` with this one.
            scale *= rate * (d_model * warmup) ** 0.5
        return inverse_sqrt_schedule(d_model, warmup, scale)

    if rate is None:
        rate = (d_model * warmup) ** -0.5  # the peak of equation 3
    peak = scale * rate
    end = settings.steps + 1

    schedule = optax.schedules.linear_schedule(0.0, peak, warmup)
    if settings.schedule == "linear":
        fall = optax.schedules.linear_schedule(peak, 0.0, end - warmup)
        schedule = optax.schedules.join_schedules([schedule, fall], [warmup])
    elif settings.schedule == "cosine":
        schedule = optax.schedules.warmup_cosine_decay_schedule(
            init_value=0.0,
            peak_value=peak,
            warmup_steps=warmup,
            decay_steps=end,
        )

    # Optax's count is 0 at the first step, whose number is 1.
    return lambda count: schedule(count + 1)


def configured_optimizer(
    settings: TrainingConfig,
    d_model: int,
    describe: Callable[[], PyTree],
) -> Optimizer:
    """Returns the optimizer of the settings: the paper's Adam (section 5.3) by default.

    It freezes nothing; :mod:`jaxformer.training.freezing` does. ``describe`` is for Muon and weight
    decay.

    Departs from the paper: optional ``clip_norm`` (gradients are first clipped by their global
    norm), ``learning_rate``, ``learning_rate_scale``, ``schedule``, ``optimizer``,
    ``weight_decay`` and ``adam_dtype="bfloat16"``.
    """
    schedule = configured_schedule(settings, d_model)
    parts: list[Optimizer] = []
    if settings.clip_norm is not None:
        parts.append(optax.clip_by_global_norm(settings.clip_norm))

    if settings.optimizer == "muon":
        parts.append(
            muon(
                schedule,
                describe(),
                weight_decay=settings.weight_decay,
                # This factor gives the orthogonal updates the usual size of Adam's updates (Liu et
                # al. 2025), so that one learning rate serves all parameters.
                consistent_rms=0.2,
                adam_b2=0.98,
            )
        )
        return optax.chain(*parts)

    adam = optax.scale_by_adam(b1=0.9, b2=0.98, eps=1e-9)
    if settings.adam_dtype == "bfloat16":
        adam = _round_state_to_bfloat16(adam)
    parts.append(adam)

    if settings.weight_decay:
        decays = jax.tree.map(_is_matrix, describe(), is_leaf=_is_info)
        parts.append(optax.add_decayed_weights(settings.weight_decay, decays))

    parts.append(optax.scale_by_learning_rate(schedule))
    return optax.chain(*parts)


def _round_state_to_bfloat16(inner: Optimizer) -> Optimizer:
    """Rounds the state of ``inner`` to bfloat16 between steps; it still computes in float32."""

    def cast(state: PyTree, dtype: str) -> PyTree:
        def cast_floats(array: Array) -> Array:
            if not jnp.issubdtype(array.dtype, jnp.floating):
                return array
            return array.astype(dtype)

        return jax.tree.map(cast_floats, state)

    def init(params: PyTree) -> PyTree:
        state = inner.init(params)
        return cast(state, "bfloat16")

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        state = cast(state, "float32")
        updates, state = inner.update(updates, state, params)
        return updates, cast(state, "bfloat16")

    return optax.GradientTransformation(init, update)


def muon(
    learning_rate: float | optax.Schedule,
    info: PyTree,
    *,
    adam_learning_rate: float | optax.Schedule | None = None,
    **options: Any,
) -> Optimizer:
    """Returns Muon (Jordan et al. 2024) for the matrices of the layers, and Adam for all else.

    Args:
      learning_rate: Learning rate of the matrices, about 0.02, since updates are orthogonal.
      info: Description of the parameters, from :func:`~jaxformer.nn.describe` or
        ``task.describe()``.
      adam_learning_rate: Learning rate of all other parameters; ``learning_rate`` when None.
      **options: Options of ``optax.contrib.muon``, such as ``weight_decay`` of the matrices. With
        ``adam_weight_decay``, Adam becomes AdamW.

    Returns:
      The optimizer, for :func:`~jaxformer.fit` and :func:`~jaxformer.make_train_step`.
    """
    return optax.contrib.muon(
        learning_rate,
        adam_learning_rate=adam_learning_rate,
        muon_weight_dimension_numbers=matrix_dimensions(info),
        **options,
    )


def matrix_dimensions(info: PyTree) -> PyTree:
    """Returns the dimension numbers of each matrix of a layer, for Muon; None for the rest.

    The axis that the matmul sums over is the input. All axes after it together are the output, such
    as heads and head size. Axes before it, such as the layers of a stack, index matrices.

    >>> from jaxformer.nn import ParameterInfo
    >>> matrix_dimensions({"query": ParameterInfo((None, "d_model", "heads", None), "matrix")})
    {'query': MuonDimensionNumbers(reduction_axis=(1,), output_axis=(2, 3))}
    """

    def dimensions(parameter: ParameterInfo | None) -> optax.contrib.MuonDimensionNumbers | None:
        if parameter is None or not _is_matrix(parameter):
            return None
        summed_axis = parameter.summed_axis
        assert summed_axis is not None
        outputs = range(summed_axis + 1, len(parameter.axes))
        return optax.contrib.MuonDimensionNumbers(
            reduction_axis=(summed_axis,),
            output_axis=tuple(outputs),
        )

    return jax.tree.map(dimensions, info, is_leaf=_is_info)


def _is_matrix(parameter: ParameterInfo | None) -> bool:
    return parameter is not None and parameter.role == "matrix"


def _is_info(node: object) -> bool:
    return node is None or isinstance(node, ParameterInfo)


def per_layer(optimizer: Optimizer, *stacks: str) -> optax.GradientTransformationExtraArgs:
    """Returns an optimizer that is applied to each layer of a stack separately.

    A :class:`~jaxformer.Stack` keeps each parameter of all its layers in one array, with a leading
    layer axis. Rules that depend on the rank, norm or mean of an array need this wrapper:
    ``optax.contrib.muon``, LAMB, Adafactor, masks by ``ndim``, and others. The optimizer, its state
    and its functions for masks and labels have a tuple of layers in place of each stack.

    Args:
      optimizer: Any gradient transformation.
      *stacks: Names of the stacks in the parameters; by default "layers", as in a ``Stack``.

    Raises:
      UserError: In ``init``: no stack has such a name, or its arrays have no common layer axis.
    """
    names = stacks or ("layers",)
    inner = optax.with_extra_args_support(optimizer)

    def unstack(tree: PyTree) -> PyTree:
        """Replaces each stack by a tuple of its layers, in which stacks are replaced, too."""

        def layers_of(stack: PyTree) -> tuple[PyTree, ...]:
            return tuple(map(unstack, _layers(stack)))

        return _map_stacks(names, layers_of, tree)

    def restack(tree: PyTree) -> PyTree:
        """Returns the inverse of ``unstack``."""

        def stack(layers: tuple[PyTree, ...]) -> PyTree:
            restacked = map(restack, layers)
            return jax.tree.map(lambda *arrays: jnp.stack(arrays), *restacked)

        return _map_stacks(names, stack, tree)

    def init(params: PyTree) -> PyTree:
        layers = unstack(params)
        _check_has_stacks(names, params, layers)
        return inner.init(layers)

    def update(
        updates: PyTree,
        state: PyTree,
        params: PyTree = None,
        **extra: Any,
    ) -> tuple[PyTree, PyTree]:
        # A line search gets the gradient and the loss, a function of the parameters.
        unstacked_extra = {}
        for name, value in extra.items():
            if callable(value):
                unstacked_extra[name] = _compose(value, restack)
            else:
                unstacked_extra[name] = unstack(value)

        layer_updates = unstack(updates)
        layers = unstack(params)
        layer_updates, state = inner.update(layer_updates, state, layers, **unstacked_extra)
        return restack(layer_updates), state

    return optax.GradientTransformationExtraArgs(init, update)


def _check_has_stacks(names: tuple[str, ...], params: PyTree, layers: PyTree) -> None:
    """Refuses parameters without any stack, which unstacking leaves as they are."""
    has_stacks = jax.tree.structure(layers) != jax.tree.structure(params)
    leaves = jax.tree.leaves_with_path(params)
    if has_stacks or not leaves:
        return

    paths = ", ".join(path_of(path) for path, _ in leaves)
    raise UserError(
        f"per_layer: no stack is called {' or '.join(names)}; name the stacks in the paths "
        f"{paths:.400}"
    )


def _compose(function: Callable, convert: Callable) -> Callable:
    """Returns ``function`` of a converted first argument."""
    return lambda tree, **options: function(convert(tree), **options)


def _map_stacks(names: tuple[str, ...], function: Callable, tree: PyTree) -> PyTree:
    """Applies a function to each node of a tree that has one of the names."""
    ends = tuple(f"/{name}" for name in names)

    def is_stack(path: jax.tree_util.KeyPath, node: PyTree) -> bool:
        return f"/{path_of(path)}".endswith(ends)

    def apply(path: jax.tree_util.KeyPath, node: PyTree) -> PyTree:
        if not is_stack(path, node):
            return node
        return function(node)

    return jax.tree.map_with_path(
        apply,
        tree,
        is_leaf=is_stack,
        is_leaf_takes_path=True,
    )


def _layers(stack: PyTree) -> list[PyTree]:
    """Returns the layers of a stack, which are slices of its arrays along their first axes."""
    shapes = {}
    for path, array in jax.tree.leaves_with_path(stack):
        shapes[path_of(path)] = np.shape(array)
    if not shapes:
        # A stack whose arrays are all masked passes as one layer.
        return [stack]

    has_scalars = () in shapes.values()
    layer_counts = {shape[0] for shape in shapes.values() if shape}
    has_layer_axis = len(layer_counts) == 1 and not has_scalars
    # Paths in a list of layers begin with a number. A list is not a stack.
    has_numbered_paths = any(path[:1].isdigit() for path in shapes)
    if not has_layer_axis or has_numbered_paths:
        raise UserError(f"per_layer: expected arrays with one layer axis in a stack, got {shapes}")

    [layer_count] = layer_counts
    layers = []
    for layer in range(layer_count):
        take = operator.itemgetter(layer)
        layers.append(jax.tree.map(take, stack))
    return layers
