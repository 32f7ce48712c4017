"""Optimizers as optax transformations: Adam (section 5.3), Muon, schedules, per-layer rules."""

import functools
import operator
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int, PyTree

from jaxformer.errors import UserError
from jaxformer.nn.parameters import ParameterInfo
from jaxformer.training.averaging import Optimizer
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

    It freezes nothing; see :func:`freeze`. ``describe`` is for Muon and weight decay.

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


def freeze(
    optimizer: Optimizer,
    names: str | None,
    describe: Callable[[], PyTree],
) -> Optimizer:
    """Returns an optimizer that leaves the parameters of ``names`` unchanged: ``training.freeze``.

    It keeps no state for them, nor for frozen layers of a stack. ``describe`` returns the
    parameters or a description of them.
    """
    if names is None:
        return optimizer

    leaves = jax.tree.leaves_with_path(
        describe(),
        is_leaf=lambda x: isinstance(x, ParameterInfo),
    )
    paths = [path_of(path) for path, _ in leaves]
    frozen: set[str] = set()
    layers: dict[str, list[slice]] = {}  # that are frozen, of each path
    for each in names.split(","):
        name, chosen = _parse_frozen(each.strip(" /"))
        found = paths_with(name, paths, "training.freeze")
        if chosen is None:
            frozen |= found
        else:
            for path in found:
                layers.setdefault(path, []).append(chosen)

    if len(frozen) == len(paths):
        raise UserError(f"training.freeze={names} freezes all parameters; leave some to train")
    if layers:
        optimizer = _freeze_layers(optimizer, layers)

    def label(path: jax.tree_util.KeyPath, _: Any) -> str:
        return "frozen" if path_of(path) in frozen else "trained"

    labels = functools.partial(jax.tree.map_with_path, label)
    return optax.multi_transform(
        {"trained": optimizer, "frozen": optax.set_to_zero()},
        labels,
    )


def _parse_frozen(text: str) -> tuple[str, slice | None]:
    """Returns a name and the slice of layers that it ends with.

    >>> _parse_frozen("encoder/layers[:6]"), _parse_frozen("layers[2]"), _parse_frozen("encoder")
    (('encoder/layers', slice(None, 6, None)), ('layers', slice(2, 3, None)), ('encoder', None))
    """
    # NAME, NAME[LAYER] or NAME[FIRST:END]
    match = re.fullmatch(r"([^\[\]]*)(?:\[(\d*)(:?)(\d*)\])?", text)
    if match is None or match[0].endswith(("[]", "[:]")):
        raise UserError(
            "training.freeze: expected layers to be named as in encoder/layers[:6], layers[4:] or "
            f"layers[0]: got {text!r}"
        )

    name, first, colon, end = match.groups()
    has_layers = colon is not None
    if not has_layers:
        return name, None

    start = int(first) if first else None
    if not colon:
        layer = int(first)
        return name, slice(layer, layer + 1)
    stop = int(end) if end else None
    return name, slice(start, stop)


def paths_with(name: str, paths: list[str], field: str, what: str = "parameter") -> set[str]:
    """Returns the paths that contain a name, which a ``field`` of a config gives."""
    found = {path for path in paths if f"/{name}/" in f"/{path}/"}
    if found:
        return found

    # A dictionary keeps the order of the parameters.
    known = {}
    for path in paths:
        known |= dict.fromkeys(path.split("/"))
    raise UserError(
        f"{field}: no {what} is called {name!r}; give names separated by commas out of "
        f"{', '.join(known)}, or several in a row such as {paths[0]}"
    )


def _freeze_layers(
    optimizer: Optimizer,
    frozen: dict[str, list[slice]],
) -> optax.GradientTransformationExtraArgs:
    """Returns an optimizer that sees only the other layers of stacks, along their first axes."""
    inner = optax.with_extra_args_support(optimizer)

    def take(tree: PyTree) -> PyTree:
        """Returns the layers that are trained."""

        def take_layers(path: jax.tree_util.KeyPath, array: Array) -> Array:
            name = path_of(path)
            if name not in frozen:
                return array
            return array[_other_layers(name, frozen[name], len(array))]

        return jax.tree.map_with_path(take_layers, tree)

    def put(trained: PyTree, tree: PyTree) -> PyTree:
        """Returns updates of all layers, which are zero in frozen ones."""

        def put_layers(path: jax.tree_util.KeyPath, array: Array, whole: Array) -> Array:
            name = path_of(path)
            if name not in frozen:
                return array
            layers = _other_layers(name, frozen[name], len(whole))
            return jnp.zeros_like(whole, array.dtype).at[layers].set(array)

        return jax.tree.map_with_path(put_layers, trained, tree)

    def init(params: PyTree) -> PyTree:
        return inner.init(take(params))

    def update(
        updates: PyTree,
        state: PyTree,
        params: PyTree = None,
        **extra: Any,
    ) -> tuple[PyTree, PyTree]:
        trained, state = inner.update(take(updates), state, take(params), **extra)
        return put(trained, updates), state

    return optax.GradientTransformationExtraArgs(init, update)


def _other_layers(name: str, frozen: list[slice], count: int) -> Int[np.ndarray, " layers"]:
    """Returns the numbers of the layers that are not frozen."""
    is_frozen = np.zeros(count, bool)
    for layers in frozen:
        start = layers.start or 0
        stop = layers.stop or count
        has_no_layer = is_frozen[layers].size == 0
        if has_no_layer or stop > count:
            raise UserError(
                f"training.freeze: expected layers from 0 to {count - 1}, as {name} has: got "
                f"{start} to {stop - 1}"
            )
        is_frozen[layers] = True

    if is_frozen.all():
        raise UserError(
            f"training.freeze: expected some layers of {name} to train, got all; freeze it whole, "
            "without numbers of layers"
        )
    return np.flatnonzero(~is_frozen)


def path_of(path: jax.tree_util.KeyPath) -> str:
    """Returns the path of a parameter with slashes, such as "encoder/layers/norm"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


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
