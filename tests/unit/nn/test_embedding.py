"""Embeddings and logits in every precision, against float64."""

import jax
import numpy as np
import pytest

from jaxformer.nn.embedding import embed, output_logits
from jaxformer.nn.precision import quantize_along


# Tolerances of errors relative to the norms of the operands.
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", None), ("int8", 2**-7)]
)
def test_tables_embed_and_project_in_their_precision(dtype, tolerance):
    random = np.random.default_rng(0)
    x, table = (random.normal(size=size).astype(np.float32) for size in ((2, 6, 64), (11, 64)))

    @jax.jit
    def run(x, table, ids):
        table = quantize_along(table, 1) if dtype == "int8" else table.astype(dtype)
        return output_logits(x, table), embed(table, ids)

    found, rows = run(x, table, np.array([[3, 11, -1, 10]]))
    rows, found = np.asarray(rows[0], np.float32), np.asarray(found)
    if dtype != "bfloat16":  # Tables stay float32.
        assert found.dtype == np.float32
        norms = np.linalg.norm(x, axis=-1)[..., None] * np.linalg.norm(table, axis=1)
        errors = np.abs(found - x.astype(np.float64) @ table.T) / norms
        assert errors.max() < tolerance
    np.testing.assert_allclose(rows[[0, 3]], table[[3, 10]], atol=np.abs(table).max() / 200)
    assert np.isnan(rows[1:3]).all()  # Ids out of range.
