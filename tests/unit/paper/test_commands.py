"""The commands for Tables 1 and 2 and section 3.2.1, at small sizes."""

import math

import jax
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.paper import dot_product_scaling, table1, table2, table_commands


def cells(text, start):
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


def test_mistakes(tmp_path):
    output = f"--output={tmp_path}"
    for module, mistake, words in [
        (table1, "--lengths=8", "--lengths: expected two or more"),
        (dot_product_scaling, "--sizes=0,1", "--sizes: expected two or more of 1 or more"),
    ]:
        with pytest.raises(UserError, match=words):
            module.main([output, mistake])


def test_table2_estimates_equal_the_papers():
    for run in table2.RUNS:
        assert table2.estimate(run.hours) == pytest.approx(run.flops, rel=0.01)


def test_table2_counts_six_operations_per_parameter_and_token():
    """Each parameter processes 25,000 tokens; encoder parameters, only source tokens."""
    for row, parameters in (("base", 63_045_632), ("big", 214_171_648)):
        steps = 100_000 if row == "base" else 300_000
        assert table2.run_flops(row) == pytest.approx(6 * parameters * 25_000 * steps, rel=0.02)


def test_variance_of_scores():
    expected = {"dot product": 256.0, "dot product / √d_k": 1.0}
    # With many units: E[tanh(x)^2] of the sum of two unit normals, by quadrature.
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    tanh = np.tanh(math.sqrt(2) * nodes) ** 2
    expected["additive"] = float(weights @ tanh / weights.sum())
    measured = dot_product_scaling.measure(256)
    for name, found in jax.device_get(measured).items():
        assert found.variance == pytest.approx(expected[name], rel=0.15)


def test_softmax_saturates_without_scaling_alone():
    small, large = (jax.device_get(dot_product_scaling.measure(d_k)) for d_k in (2, 256))
    assert large["dot product"].gradient < 0.3 * small["dot product"].gradient
    for name in ("dot product / √d_k", "additive"):
        assert 0.9 < large[name].gradient / small[name].gradient < 1.1


def test_scaling_writes_table_and_plot(tmp_path, pages):
    dot_product_scaling.main([f"--output={tmp_path}", "--sizes=256,2"])
    text = (tmp_path / "dot_product_scaling.md").read_text()
    variance = float(dot_product_scaling.measure(2)["dot product"].variance)
    assert float(cells(text, "2")[1]) == pytest.approx(variance, rel=0.01)
    assert "0.969 for equal weights" in text  # 1 - 1 / 32
    assert [len(axes.lines) for axes in pages[-1].axes] == [5, 3, 3]
