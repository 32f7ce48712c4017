"""Embeddings and logits in every precision, against float64."""

import jax
import numpy as np
import pytest

from jaxformer.nn.embedding import embed, output_logits
from jaxformer.nn.precision import quantize_along

from .weights import normal


# Tolerances of errors relative to the norms of the operands.
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        ("float32", 1e-6),
        ("bfloat16", None),
        ("int8", 2**-7),
    ],
)
def test_tables_embed_and_project_in_their_precision(dtype, tolerance):
    random = np.random.default_rng(0)
    x = normal(2, 6, 64, seed=random)  # [B, T, D]
    table = normal(11, 64, seed=random)  # [V, D]

    @jax.jit
    def run(x, table, ids):
        stored = quantize_along(table, 1) if dtype == "int8" else table.astype(dtype)
        return output_logits(x, stored), embed(stored, ids)

    ids = np.array([[3, 11, -1, 10]])
    logits, rows = run(x, table, ids)

    # Logits of bfloat16 tables are not compared; other tables give float32.
    if dtype != "bfloat16":
        found = np.asarray(logits)
        assert found.dtype == np.float32
        exact = x.astype(np.float64) @ table.T
        of_rows = np.linalg.norm(x, axis=-1)
        of_table = np.linalg.norm(table, axis=1)
        norms = of_rows[..., None] * of_table
        errors = np.abs(found - exact) / norms
        assert errors.max() < tolerance

    first, *out_of_range, last = np.asarray(rows[0], np.float32)
    tolerance = np.abs(table).max() / 200
    np.testing.assert_allclose(first, table[3], atol=tolerance)
    np.testing.assert_allclose(last, table[10], atol=tolerance)
    assert np.isnan(out_of_range).all()
