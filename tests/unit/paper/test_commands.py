"""The commands for Tables 1 and 2 and section 3.2.1, at small sizes."""

import math

import jax
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.paper import dot_product_scaling, table1, table2, table_commands


def cells(text, start):
    """Returns the cells of the row of a table that starts with these words."""
    (line,) = (line for line in text.split("\n") if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_table1_measures_and_draws(tmp_path, pages):
    table1.main([f"--output={tmp_path}", "--lengths=4,8"])

    text = (tmp_path / "table1.md").read_text()
    assert "| restricted self-attention | O(r n d) | O(1) | O(n / r) |" in text
    assert table_commands.machine() in text

    (axes,) = pages[-1].axes
    measured = [line for line in axes.lines if line.get_linestyle() == "None"]
    assert len(measured) == 4
    for line in measured:
        assert list(line.get_xdata()) == [4, 8]
        assert min(line.get_ydata()) > 0


@pytest.mark.parametrize(
    ("module", "mistake", "words"),
    [
        (table1, "--lengths=8", "--lengths: expected two or more"),
        (dot_product_scaling, "--sizes=0,1", "--sizes: expected two or more of 1 or more"),
    ],
    ids=["table1", "dot_product_scaling"],
)
def test_mistakes(module, mistake, words, tmp_path):
    with pytest.raises(UserError, match=words):
        module.main([f"--output={tmp_path}", mistake])


def test_table2_estimates_equal_the_papers():
    for run in table2.RUNS:
        assert table2.estimate(run.hours) == pytest.approx(run.flops, rel=0.01)


@pytest.mark.parametrize(
    ("row", "parameters", "steps"),
    [
        ("base", 63_045_632, 100_000),
        ("big", 214_171_648, 300_000),
    ],
)
def test_table2_counts_six_operations_per_parameter_and_token(row, parameters, steps):
    """Each parameter processes 25,000 tokens; encoder parameters, only source tokens."""
    expected = 6 * parameters * 25_000 * steps
    assert table2.run_flops(row) == pytest.approx(expected, rel=0.02)


def test_variance_of_scores():
    measured = jax.device_get(dot_product_scaling.measure(256))

    # With many units: E[tanh(x)^2] of the sum of two unit normals, by quadrature.
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    squares = np.tanh(math.sqrt(2) * nodes) ** 2
    expected = {
        "dot product": 256.0,
        "dot product / √d_k": 1.0,
        "additive": float(weights @ squares / weights.sum()),
    }
    for name, found in measured.items():
        assert found.variance == pytest.approx(expected[name], rel=0.15)


def test_softmax_saturates_without_scaling_alone():
    small = jax.device_get(dot_product_scaling.measure(2))
    large = jax.device_get(dot_product_scaling.measure(256))

    def change(name):
        return large[name].gradient / small[name].gradient

    assert change("dot product") < 0.3
    assert 0.9 < change("dot product / √d_k") < 1.1
    assert 0.9 < change("additive") < 1.1


def test_scaling_writes_table_and_plot(tmp_path, pages):
    dot_product_scaling.main([f"--output={tmp_path}", "--sizes=256,2"])

    text = (tmp_path / "dot_product_scaling.md").read_text()
    variance = float(dot_product_scaling.measure(2)["dot product"].variance)
    assert float(cells(text, "2")[1]) == pytest.approx(variance, rel=0.01)
    assert "0.969 for equal weights" in text  # 1 - 1 / 32
    assert [len(axes.lines) for axes in pages[-1].axes] == [5, 3, 3]
