"""Rematerialization: a backward pass recomputes values instead of keeping them."""

from collections.abc import Callable
from typing import Any, Literal

import jax

from jaxformer.nn.matmul import MATMUL

# Rematerialization policy: the backward pass recomputes nothing, everything except matmuls with
# parameters, or everything except the inputs of the blocks.
Remat = Literal["none", "dots", "layer"]


def rematerialize(
    function: Callable[..., Any],
    remat: Remat,
    *,
    prevent_cse: bool,
    checkpoint: Callable[..., Any] = jax.checkpoint,
) -> Callable[..., Any]:
    """Returns the function, whose backward pass recomputes what the policy says.

    Args:
      function: The function.
      remat: The policy.
      prevent_cse: As for ``jax.checkpoint``: False inside of a loop.
      checkpoint: ``nn.remat`` for a function of modules.
    """
    if remat == "none":
        return function

    policy = None
    if remat == "dots":
        policy = jax.checkpoint_policies.save_only_these_names(MATMUL)
    return checkpoint(function, prevent_cse=prevent_cse, policy=policy)
