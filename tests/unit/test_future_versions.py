"""Announced changes of our libraries: what we write now can be read then."""

import jax
import numpy as np
import pytest

from jaxformer.runs.checkpoints import Checkpoints


@pytest.mark.smoke
@pytest.mark.filterwarnings("ignore:Sharding info not provided")
def test_orbax_1_reads_our_checkpoints(tmp_path):
    """Version 1 of orbax will have today's ``experimental.v1`` at its top level."""
    v1 = pytest.importorskip("orbax.checkpoint.experimental.v1")
    if not hasattr(v1, "load"):
        pytest.skip("this version of orbax has an earlier draft of version 1")

    kernel = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    state = {"params": {"kernel": jax.numpy.asarray(kernel)}, "step": jax.numpy.asarray(7)}
    with Checkpoints(tmp_path / "checkpoints", keep=1) as checkpoints:
        checkpoints.save(7, state, metadata={})

    found = v1.load(tmp_path / "checkpoints" / "7", checkpointable_name=None)

    assert jax.tree.structure(found) == jax.tree.structure(state)
    for ours, theirs in zip(jax.tree.leaves(state), jax.tree.leaves(found), strict=True):
        assert theirs.dtype == ours.dtype
        np.testing.assert_array_equal(theirs, ours)
