"""Masks single attention heads of a trained model (Michel et al. 2019).

The output of a masked head is zero before the output projection. Its rows of the projection's
matrix are set to zero, which is the same, so that no model has to know of masks.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.traverse_util
import jax
import numpy as np
from jaxtyping import Float, PyTree

from jaxformer.errors import UserError

# Axes of a query matrix without the axis of a stack's layers: d_model, heads, d_k.
_QUERY_AXES = 3


class Head(NamedTuple):
    """An attention head of a model.

    Attributes:
      kind: "encoder" or "decoder" self-attention, or "cross" for encoder-decoder attention.
      layer: Number of its layer, from 1.
      number: Its number in the layer, from 1.
      path: Names that lead to the parameters of its attention.
      index: Index in the axis of the layers of these parameters, or None if they have none.
    """

    kind: str
    layer: int
    number: int
    path: tuple[str, ...]
    index: int | None


class Quality(NamedTuple):
    """The quality of a model on a text.

    Attributes:
      loss: Negative log likelihood of a token of the references, or of the label of a text, in
        nats.
      score: sacreBLEU of the translations, or the accuracy of the labels, from 0 to 100.
    """

    loss: float
    score: float


class MaskedHeads(NamedTuple):
    """The quality of the whole model, and without each head."""

    whole: Quality
    without: dict[Head, Quality]

    def losses_gained(self) -> dict[str, Float[np.ndarray, "L H"]]:
        """Returns how much larger the loss is without each head, by kind, layer and head.

        Layers with fewer heads than others have NaN in place of the missing ones.
        """
        grids = {}
        for kind in dict.fromkeys(head.kind for head in self.without):
            heads = [head for head in self.without if head.kind == kind]
            layers = max(head.layer for head in heads)
            most_heads = max(head.number for head in heads)
            grid = np.full((layers, most_heads), np.nan)
            for head in heads:
                grid[head.layer - 1, head.number - 1] = self.without[head].loss - self.whole.loss
            grids[kind] = grid
        return grids


def find_heads(params: PyTree) -> list[Head]:
    """Returns the heads of all multi-head attention, layer by layer, encoder first.

    Layers that share their parameters have the same heads, which are listed once.

    Args:
      params: Parameters of a model, not quantized.
    """
    matrices: Any = flax.traverse_util.flatten_dict(params)
    heads = []
    layers_before = {"encoder": 0, "decoder": 0, "cross": 0}
    for path, matrix in matrices.items():
        *owner, name = path
        is_attention = name == "query" and (*owner, "output") in matrices
        if not is_attention:
            continue

        kind = _kind_of(owner)
        number_of_heads = matrix.shape[-2]
        is_stacked = matrix.ndim > _QUERY_AXES
        layers = list(range(len(matrix))) if is_stacked else [None]
        for index in layers:
            layers_before[kind] += 1
            for number in range(1, number_of_heads + 1):
                heads.append(
                    Head(
                        kind=kind,
                        layer=layers_before[kind],
                        number=number,
                        path=tuple(owner),
                        index=index,
                    )
                )

    kinds = list(layers_before)
    return sorted(heads, key=lambda head: (kinds.index(head.kind), head.layer, head.number))


def _kind_of(path: Sequence[str]) -> str:
    if "cross_attention" in path:
        return "cross"
    return "encoder" if "encoder" in path else "decoder"


def without_head(params: PyTree, head: Head) -> PyTree:
    """Returns the parameters with zeros in the head's rows of the output projection."""
    matrices: Any = dict(flax.traverse_util.flatten_dict(params))
    num_heads = matrices[*head.path, "query"].shape[-2]

    output = np.array(matrices[*head.path, "output"])
    of_layer = output if head.index is None else output[head.index]  # [H * V, D], a view
    d_v = len(of_layer) // num_heads
    first = (head.number - 1) * d_v
    of_layer[first : first + d_v] = 0

    matrices[*head.path, "output"] = output
    return flax.traverse_util.unflatten_dict(matrices)


def mask_heads(
    params: PyTree,
    measure: Callable[[PyTree], Quality],
    report: Callable[[int], object],
) -> MaskedHeads:
    """Masks each head of a model in turn, and measures what is lost.

    Args:
      params: Parameters of the model, not quantized.
      measure: Returns the quality of the model with other parameters.
      report: Called with 1 for each head that is done, and for the whole model.

    Raises:
      UserError: The model has no multi-head attention.
    """
    params = jax.device_get(params)
    heads = find_heads(params)
    if not heads:
        raise UserError("expected a model with multi-head attention, which it lacks")

    def quality_with(given: PyTree) -> Quality:
        quality = measure(given)
        report(1)
        return quality

    whole = quality_with(params)
    without = {head: quality_with(without_head(params, head)) for head in heads}
    return MaskedHeads(whole, without)
