"""Rematerialization: a backward pass recomputes values instead of keeping them."""

from collections.abc import Callable
from typing import Any, Literal

import jax

from jaxformer.nn.matmul import MATMUL

# Rematerialization policy: the backward pass recomputes nothing, everything except matmuls with
# parameters, or everything except the inputs of the blocks.
Remat = Literal["none", "dots", "layer"]


def kept_values(remat: Remat) -> Callable[..., Any] | None:
    """Returns JAX's policy for ``remat``: which values are kept; None if only the inputs are.

    With "none", nothing is to be recomputed, and there is no policy to ask for.
    """
    if remat == "dots":
        return jax.checkpoint_policies.save_only_these_names(MATMUL)
    return None
