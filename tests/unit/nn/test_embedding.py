"""Embeddings and logits in every precision, against float64."""

import jax
import numpy as np
import pytest

from jaxformer.nn.embedding import embed, output_logits
from jaxformer.nn.precision import quantize_along


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
    x = random.normal(size=(2, 6, 64)).astype(np.float32)  # [B, T, D]
    table = random.normal(size=(11, 64)).astype(np.float32)  # [V, D]

    @jax.jit
    def run(x, table, ids):
        stored = quantize_along(table, 1) if dtype == "int8" else table.astype(dtype)
        return output_logits(x, stored), embed(stored, ids)

    logits, rows = run(x, table, np.array([[3, 11, -1, 10]]))

    # Logits of bfloat16 tables are not compared; other tables give float32.
    if dtype != "bfloat16":
        found = np.asarray(logits)
        assert found.dtype == np.float32
        exact = x.astype(np.float64) @ table.T
        norms = np.linalg.norm(x, axis=-1)[..., None] * np.linalg.norm(table, axis=1)
        errors = np.abs(found - exact) / norms
        assert errors.max() < tolerance

    embedded = np.asarray(rows[0], np.float32)
    largest = np.abs(table).max()
    np.testing.assert_allclose(embedded[[0, 3]], table[[3, 10]], atol=largest / 200)
    out_of_range = embedded[1:3]
    assert np.isnan(out_of_range).all()
