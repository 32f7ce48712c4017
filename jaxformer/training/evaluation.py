"""Evaluation of a loss function on batches that are set aside."""

import functools
from collections.abc import Callable, Iterable

import jax
from jax.sharding import Mesh
from jaxtyping import PyTree

from jaxformer.training.mesh import to_devices
from jaxformer.training.reporting import mean_values
from jaxformer.training.step import make_eval_step
from jaxformer.training.task import Loss, Sums

# Compiled once for all evaluations of a run. Few, since a loss may keep its data alive.
_eval_step: Callable[..., Callable[[PyTree, PyTree], Sums]] = functools.lru_cache(maxsize=2)(
    make_eval_step
)


def evaluate_loss(
    loss: Loss,
    params: PyTree,
    batches: Iterable[PyTree],
    mesh: Mesh,
    check_stop: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Means per count over all batches: the loss, "perplexity" of a sum "nll", and others.

    Args:
      loss: Sums over a batch; see :class:`Task`.
      params: On the devices of the mesh.
      batches: Of NumPy arrays, with rows that the mesh divides; several processes read their own.
      mesh: As :func:`make_mesh` makes it.
      check_stop: Called before each batch.
    """
    # One at a time: several that sum over a CPU's devices can wait for one another for ever.
    sums = []
    for batch in batches:
        check_stop()
        sums.append(jax.device_get(_eval_step(loss, mesh)(params, to_devices(mesh, batch))))
    return mean_values(sums)
