"""Checks of what callers pass to layers: errors that name the layer, not an einsum."""

from typing import Any

import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from jaxformer.config import ModelConfig
from jaxformer.errors import UserError


def check_model_config(owner: str, config: Any) -> None:
    """Checks that a layer was given the config of a model.

    Raises:
      UserError: Says what was given, and what to do.
    """
    if not isinstance(config, ModelConfig):
        advice = "; give config.model" if hasattr(config, "model") else ""
        raise UserError(f"{owner}: expected a ModelConfig, got {type(config).__name__}{advice}")


def check_width(owner: str, name: str, x: Array, width: int) -> None:
    """Checks that activations are [batch, length, width].

    Raises:
      UserError: Says which layer expected which shape.
    """
    if x.ndim != 3 or x.shape[-1] != width:
        raise UserError(
            f"{owner}: expected {name} of shape [batch, length, d_model={width}], got {x.shape}"
        )


def check_mask(owner: str, name: str, mask: Array, shape: tuple) -> None:
    """Checks that a mask is boolean and broadcasts to [batch, heads, queries, keys].

    Args:
      owner: Layer to name in the error.
      name: The mask's name.
      mask: [batch or 1, heads or 1, queries or 1, keys].
      shape: Batch, queries and keys; symbolic sizes while exporting.

    Raises:
      UserError: Says which layer expected which shape, or which dtype.
    """
    batch, queries, keys = shape
    fits = mask.ndim == 4 and all(
        size in (1, expected)
        for size, expected in zip(
            (mask.shape[0], *mask.shape[2:]), (batch, queries, keys), strict=True
        )
    )
    if not fits or mask.dtype != bool:
        raise UserError(
            f"{owner}: expected {name} of booleans, True where a query may attend, of shape "
            f"[batch={batch}, 1, queries={queries}, keys={keys}] or 1 in place of a size, got "
            f"{mask.dtype} of shape {mask.shape}"
        )


def check_ids(name: str, ids: Any, size: int) -> None:
    """Checks token ids, [batch, length]; within ``jax.jit`` only their shape is known.

    Raises:
      UserError: They have another shape, or an id is negative or not less than ``size``.
    """
    if getattr(ids, "ndim", None) != 2:
        shape = f"shape {ids.shape}" if hasattr(ids, "shape") else type(ids).__name__
        raise UserError(
            f"{name}: expected an array of token ids of shape [batch, length], got {shape}"
        )
    if isinstance(ids, Tracer) or not ids.size:
        return
    values = np.asarray(ids)  # its own min would be traced
    lowest, highest = values.min(), values.max()
    if lowest < 0 or highest >= size:
        raise UserError(
            f"{name}: expected token ids from 0 to {size - 1}, the vocabulary's, got ids from "
            f"{lowest} to {highest}"
        )
