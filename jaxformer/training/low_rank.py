"""Low-rank adapters (LoRA, Hu et al. 2021) as a transformation of optimizers.

With x W, as layers here compute it, the paper's W0 + (alpha / r) B A is W = W0 + (alpha / r) A B
with A of shape [inputs, r] and B of shape [r, outputs]. By the chain rule, the gradients of A and B
follow from the gradient of W. So the model keeps the merged W, nothing else knows of A and B, and
they live in the state of the optimizer.
"""

import dataclasses
import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from jaxformer.errors import UserError
from jaxformer.nn.parameters import ParameterInfo
from jaxformer.training.averaging import Optimizer
from jaxformer.training.paths import path_of, paths_with

# How a parameter is trained: by its factors, itself, or not at all.
_Use = Literal["factors", "whole", "frozen"]
# In place of a parameter that the optimizer does not see.
_NOTHING = optax.MaskedNode()


class Factors(NamedTuple):
    """The factors of the change of a matrix, or of the matrices of all layers."""

    a: Any  # float [*layers, inputs, r]
    b: Any  # float [*layers, r, outputs]


class LoraState(NamedTuple):
    """The state of :func:`with_lora`."""

    factors: PyTree  # with Factors in place of each matrix
    inner: PyTree  # state of the optimizer, which sees factors and heads


def with_lora(
    optimizer: Optimizer,
    info: PyTree,
    rank: int,
    *,
    alpha: float = 16.0,
    matrices: str | None = None,
    seed: int = 0,
) -> optax.GradientTransformationExtraArgs:
    """Returns an optimizer that changes each matrix by a product of two thin ones: LoRA.

    A matrix W becomes W + (alpha / rank) A B. ``optimizer`` updates A, [inputs, rank], and B,
    [rank, outputs], in place of W. A begins uniformly distributed within inputs^-0.5, and B with
    zeros, so that W begins unchanged. Heads, such as a matrix of classes, are trained as they are,
    and all other parameters are frozen. The parameters have W merged with A B, at every step.

    Departs from Hu et al. 2021: by default, all matrices change; "query,value" names the paper's.
    W is rounded after each step, as in any training.

    Args:
      optimizer: Any gradient transformation. It sees ``Factors(a, b)`` in place of a matrix, with
        the axis of layers first, and ``optax.MaskedNode()`` in place of a frozen parameter.
      info: Description of the parameters, from :func:`~jaxformer.nn.describe` or
        ``task.describe()``. It tells which parameters are matrices and heads.
      rank: Number of columns of A and of rows of B; at most the smaller side of a matrix is used.
      alpha: Factor of the product, divided by ``rank``.
      matrices: Names of the matrices to change, comma-separated: components of their paths, such as
        "query,value", or several in a row, such as "encoder/layers". None names all.
      seed: Seed of A.

    Raises:
      UserError: ``rank`` is less than 1, or there is no such matrix.
    """
    if rank < 1:
        raise UserError(f"with_lora: rank must be at least 1: got {rank}")
    adapters = _Adapters(_uses(info, matrices), scale=alpha / rank)
    inner = optax.with_extra_args_support(optimizer)

    def init(params: PyTree) -> LoraState:
        factors = _initial_factors(adapters.uses, info, params, rank=rank, seed=seed)
        return LoraState(factors, inner.init(adapters.trained_tree(params, factors)))

    def update(
        updates: PyTree,
        state: Any,
        params: PyTree = None,
        **extra: Any,
    ) -> tuple[PyTree, LoraState]:
        factors = state.factors
        old = adapters.trained_tree(params, factors)
        changes, inner_state = inner.update(
            adapters.gradients(updates, factors),
            state.inner,
            old,
            **adapters.arguments(extra, params, factors),
        )

        new = optax.apply_updates(old, changes)
        new_state = LoraState(adapters.factors(new), inner_state)
        return adapters.updates(changes, params, factors), new_state

    return optax.GradientTransformationExtraArgs(init, update)


@dataclasses.dataclass(frozen=True)
class _Adapters:
    """The relation between parameters and what the optimizer sees in their place."""

    uses: PyTree  # how each parameter is trained
    scale: float  # alpha / r

    def trained_tree(self, params: PyTree, factors: PyTree) -> PyTree:
        """Returns what the optimizer sees."""

        def choose(use: _Use, param: Array, own: Any) -> Any:
            return param if use == "whole" else own

        return jax.tree.map(choose, self.uses, params, factors)

    def factors(self, trained: PyTree) -> PyTree:
        """Returns the factors out of what the optimizer sees."""

        def choose(use: _Use, each: Any) -> Any:
            return each if use == "factors" else _NOTHING

        return jax.tree.map(choose, self.uses, trained)

    def gradients(self, gradients: PyTree, factors: PyTree) -> PyTree:
        """Returns the gradients of what the optimizer sees."""

        def apply_chain_rule(use: _Use, gradient: Array, own: Any) -> Any:
            if use != "factors":
                return gradient if use == "whole" else _NOTHING
            matrix = gradient.reshape(*own.a.shape[:-1], own.b.shape[-1])
            return Factors(
                a=self.scale * _multiply(matrix, own.b.mT),
                b=self.scale * _multiply(own.a.mT, matrix),
            )

        return jax.tree.map(apply_chain_rule, self.uses, gradients, factors)

    def updates(self, changes: PyTree, params: PyTree, factors: PyTree) -> PyTree:
        """Returns the updates of the parameters that follow from changes of the factors."""

        def update_of(use: _Use, change: Any, param: Array, old: Any) -> Array:
            if use != "factors":
                return change if use == "whole" else jnp.zeros_like(param)
            # (A + dA)(B + dB) - A B, without a difference of products that are almost the same.
            product = _multiply(change.a, old.b + change.b) + _multiply(old.a, change.b)
            return (self.scale * product).reshape(param.shape).astype(param.dtype)

        return jax.tree.map(update_of, self.uses, changes, params, factors)

    def arguments(self, extra: dict[str, Any], params: PyTree, factors: PyTree) -> dict[str, Any]:
        """Returns the gradient and the function of a line search in terms of the factors."""
        found = dict(extra)
        if "grad" in extra:
            found["grad"] = self.gradients(extra["grad"], factors)
        if "value_fn" not in extra:
            return found

        def value_fn(new: PyTree) -> Array:
            changes = optax.tree.sub(new, self.trained_tree(params, factors))
            updates = self.updates(changes, params, factors)
            return extra["value_fn"](optax.apply_updates(params, updates))

        return found | {"value_fn": value_fn}


def _multiply(x: Array, y: Array) -> Array:
    # Accelerators would round the inputs of a float32 matmul by default.
    return jnp.matmul(x, y, precision="highest")


def describe_trained(info: PyTree, matrices: str | None = None) -> PyTree:
    """Returns the description of what the optimizer within :func:`with_lora` sees."""

    def describe(use: _Use, parameter: ParameterInfo) -> Any:
        if use != "factors":
            return parameter if use == "whole" else _NOTHING
        axis = _input_axis(parameter)
        layers = parameter.axes[:axis]
        inputs = parameter.axes[axis]
        return Factors(
            a=ParameterInfo((*layers, inputs, "rank"), "matrix"),
            b=ParameterInfo((*layers, "rank", None), "matrix"),
        )

    return jax.tree.map(describe, _uses(info, matrices), info)


def _uses(info: PyTree, matrices: str | None) -> PyTree:
    """Returns how each parameter is trained."""
    roles = {}
    for path, parameter in jax.tree.leaves_with_path(info, is_leaf=_is_info):
        roles[path_of(path)] = parameter.role if parameter else None
    chosen = {path for path, role in roles.items() if role == "matrix"}
    if not chosen:
        raise UserError(
            "training.lora: expected a model with matrices, created by jaxformer.nn.parameter with "
            f'role="matrix", got none among {", ".join(roles):.400}'
        )

    if matrices is not None:
        paths = [path for path in roles if path in chosen]
        chosen = set()
        for name in matrices.split(","):
            chosen |= paths_with(name.strip(" /"), paths, "training.lora_matrices", what="matrix")

    def use(path: jax.tree_util.KeyPath, parameter: ParameterInfo | None) -> _Use:
        name = path_of(path)
        if name in chosen:
            return "factors"
        return "whole" if roles[name] == "head" else "frozen"

    return jax.tree.map_with_path(use, info, is_leaf=_is_info)


def _input_axis(matrix: ParameterInfo) -> int:
    """Returns the axis that a matmul sums over; layers are before it, outputs after it."""
    axis = matrix.summed_axis
    assert axis is not None, "a matrix is multiplied over an axis"
    return axis


def _is_info(node: object) -> bool:
    return node is None or isinstance(node, ParameterInfo)


def _initial_factors(
    uses: PyTree,
    info: PyTree,
    params: PyTree,
    *,
    rank: int,
    seed: int,
) -> PyTree:
    """Returns random A and B of zeros for each matrix."""
    numbers = iter(range(len(jax.tree.leaves(params))))

    def create(use: _Use, parameter: ParameterInfo, param: Array) -> Any:
        number = next(numbers)
        if use != "factors":
            return _NOTHING

        axis = _input_axis(parameter)
        layers = param.shape[:axis]
        inputs = param.shape[axis]
        outputs = math.prod(param.shape[axis + 1 :])
        width = min(rank, inputs, outputs)

        bound = inputs**-0.5
        key = jax.random.fold_in(jax.random.key(seed), number)
        a = jax.random.uniform(
            key, (*layers, inputs, width), param.dtype, minval=-bound, maxval=bound
        )
        return Factors(a, b=jnp.zeros((*layers, width, outputs), param.dtype))

    return jax.tree.map(create, uses, info, params)
