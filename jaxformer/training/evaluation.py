"""Evaluation of a loss function on validation batches."""

import functools
from collections.abc import Callable, Iterable

import jax
from jax.sharding import Mesh
from jaxtyping import PyTree

from jaxformer.nn.backend import Backend, backend
from jaxformer.runs.reporting import mean_values
from jaxformer.training.mesh import to_devices
from jaxformer.training.step import make_eval_step
from jaxformer.training.task import Loss, Sums


# Compiled once for all evaluations of a run. The cache is small, since a loss may keep its data
# alive.
@functools.lru_cache(maxsize=2)
def _eval_step(loss: Loss, mesh: Mesh, _: Backend) -> Callable[[PyTree, PyTree], Sums]:
    return make_eval_step(loss, mesh)


def evaluate_loss(
    loss: Loss,
    params: PyTree,
    batches: Iterable[PyTree],
    mesh: Mesh,
    check_stop: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Computes means per count over all batches; a sum "nll" gives "perplexity".

    Args:
      loss: Returns sums over a batch; see :class:`~jaxformer.training.task.Task`.
      params: Parameters on the devices of the mesh.
      batches: Batches of NumPy arrays, with rows divisible by the batch shards of the mesh. Each of
        several processes passes its own rows.
      mesh: Mesh from :func:`~jaxformer.training.mesh.make_mesh`.
      check_stop: Called before each batch.

    Returns:
      "loss", "perplexity" if there is a sum "nll", and every other sum, each divided by "count".
    """
    # One at a time: concurrent programs that sum over the devices of a CPU can deadlock.
    sums = []
    for batch in batches:
        check_stop()
        sums.append(
            jax.device_get(_eval_step(loss, mesh, backend())(params, to_devices(mesh, batch)))
        )
    return mean_values(sums)
