"""Matrices that a program multiplies with for as long as it lives.

XLA's kernels for CPUs read a matrix in an order of their own, in which they pack it for every
product, unless it is marked as constant. Then they pack it once, and find the packed one by the
address of the matrix, not by its numbers: a program with such a mark must never get another matrix,
not even after the first one has been freed. :mod:`jaxformer.inference.bound_models` makes programs
that belong to their matrices, and nothing else may call them.
"""

import dataclasses
import functools
from typing import Any

import jax
from jax.experimental.xla_metadata import set_xla_metadata
from jaxtyping import Array, PyTree


@functools.partial(jax.tree_util.register_dataclass, data_fields=["flat"], meta_fields=["shape"])
@dataclasses.dataclass(frozen=True, eq=False)
class ConstantMatrix:
    """A matrix of a program that never multiplies with another.

    Attributes:
      flat: All numbers, in one axis. The operation that gives the matrix its axes carries the mark,
        so it must not be one that changes nothing, which XLA removes.
      shape: Shape of the matrix as a parameter, with two axes or more.
    """

    flat: Array
    shape: tuple[int, ...]

    @classmethod
    def of(cls, matrix: Any) -> "ConstantMatrix":
        return cls(matrix.reshape(-1), matrix.shape)

    def reshape(self, rows: int, columns: int) -> Any:
        """Returns the matrix, marked, for products over one of two axes."""
        matrix: Any = self.flat.reshape(rows, columns)
        return set_xla_metadata(matrix, is_constant=True)

    def to_parameter(self) -> Array:
        """Returns the parameter as an array like any other."""
        return self.flat.reshape(self.shape)


def is_constant(leaf: Any) -> bool:
    return isinstance(leaf, ConstantMatrix)


def holds_constants(tree: PyTree) -> bool:
    """Returns whether there is a :class:`ConstantMatrix` in a tree."""
    return any(map(is_constant, jax.tree.leaves(tree, is_leaf=is_constant)))


def without_constants(tree: PyTree) -> PyTree:
    """Returns a tree with plain arrays in place of each :class:`ConstantMatrix`."""

    def convert(leaf: Any) -> Any:
        return leaf.to_parameter() if is_constant(leaf) else leaf

    return jax.tree.map(convert, tree, is_leaf=is_constant)
