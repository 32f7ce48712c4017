"""The rows of Table 3: parameter counts by a closed formula and as the paper prints them."""

import dataclasses

import jax
import pytest

from jaxformer.config import Config
from jaxformer.errors import UserError
from jaxformer.inference.parameter_arrays import abstract_params
from jaxformer.paper.table3_rows import ROWS, SCALES, row_config

from ...profiles import by_profile

# Table 3 as the paper prints it: sizes, parameters in millions; None where a cell is blank.
#        N  d_model d_ff  h  d_k d_v P_drop  e_ls  10^6
PRINTED = {
    "base": (6, 512, 2048, 8, 64, 64, 0.1, 0.1, 65),
    "A1": (6, 512, 2048, 1, 512, 512, 0.1, 0.1, None),
    "A2": (6, 512, 2048, 4, 128, 128, 0.1, 0.1, None),
    "A3": (6, 512, 2048, 16, 32, 32, 0.1, 0.1, None),
    "A4": (6, 512, 2048, 32, 16, 16, 0.1, 0.1, None),
    "B1": (6, 512, 2048, 8, 16, 64, 0.1, 0.1, 58),
    "B2": (6, 512, 2048, 8, 32, 64, 0.1, 0.1, 60),
    "C1": (2, 512, 2048, 8, 64, 64, 0.1, 0.1, 36),
    "C2": (4, 512, 2048, 8, 64, 64, 0.1, 0.1, 50),
    "C3": (8, 512, 2048, 8, 64, 64, 0.1, 0.1, 80),
    "C4": (6, 256, 2048, 8, 32, 32, 0.1, 0.1, 28),
    "C5": (6, 1024, 2048, 8, 128, 128, 0.1, 0.1, 168),
    "C6": (6, 512, 1024, 8, 64, 64, 0.1, 0.1, 53),
    "C7": (6, 512, 4096, 8, 64, 64, 0.1, 0.1, 90),
    "D1": (6, 512, 2048, 8, 64, 64, 0.0, 0.1, None),
    "D2": (6, 512, 2048, 8, 64, 64, 0.2, 0.1, None),
    "D3": (6, 512, 2048, 8, 64, 64, 0.1, 0.0, None),
    "D4": (6, 512, 2048, 8, 64, 64, 0.1, 0.2, None),
    "E": (6, 512, 2048, 8, 64, 64, 0.1, 0.1, None),
    "big": (6, 1024, 4096, 16, 64, 64, 0.3, 0.1, 213),
}


def closed_formula(row, vocabulary, positions=0):
    """Counts a tied embedding, bias-free attention, feed-forward biases, and layer norms."""
    n, d, d_ff, h, d_k, d_v, *_ = PRINTED[row]
    attention = 2 * d * h * (d_k + d_v)
    feed_forward = 2 * d * d_ff + d_ff + d
    layers = n * (3 * attention + 2 * feed_forward + 5 * 2 * d)
    return vocabulary * d + layers + 2 * positions * d


@pytest.mark.parametrize("row", by_profile(["base", "A1", "B1", "C1", "E", "big"], nightly=ROWS))
def test_counts_equal_the_formula(row):
    positions = row_config(row).model.max_length if row == "E" else 0
    params = jax.tree.leaves(abstract_params(row_config(row).model))
    assert sum(leaf.size for leaf in params) == closed_formula(row, 37_000, positions)


def test_differences_equal_the_papers():
    """Differences do not depend on the vocabulary size, which the paper does not state."""
    for row in ("B1", "B2", "C1", "C2", "C3", "C6", "C7"):
        difference = (closed_formula(row, 37_000) - closed_formula("base", 37_000)) / 1e6
        printed = PRINTED[row][-1] - PRINTED["base"][-1]
        assert abs(difference - printed) < 1, row  # The sum of two rounding errors of 1/2.


@pytest.mark.parametrize("scale", ["paper", "small", "smoke"])
def test_a_row_changes_what_the_paper_says_and_nothing_else(scale):
    width, depth = SCALES[scale].width, SCALES[scale].depth
    base = row_config("base", scale)
    for row, (n, d, d_ff, h, d_k, d_v, dropout, smoothing, _) in PRINTED.items():
        config = row_config(row, scale)
        model = dataclasses.replace(
            base.model,
            **{"num_layers": n // depth, "d_model": d // width, "d_ff": d_ff // width},
            **{"num_heads": h, "d_k": d_k // width, "d_v": d_v // width, "dropout_rate": dropout},
            positions="learned" if row == "E" else "sinusoidal",
        )
        explicit = {"d_k": config.model.key_size, "d_v": config.model.value_size}
        steps = base.training.steps * (3 if row == "big" else 1)
        training = dataclasses.replace(base.training, label_smoothing=smoothing, steps=steps)
        assert dataclasses.replace(config.model, **explicit) == model, row
        assert config.training == training, row
        assert ROWS[row].parameters == PRINTED[row][-1]
        assert (config.data, config.search) == (base.data, base.search)


def test_base_equals_the_papers():
    base = row_config("base")
    assert dataclasses.replace(base.model, compute_dtype="float32") == Config().model
    assert (base.search, base.training.steps) == (Config().search, 100_000)
    files = {"corpus": "tfds", "train": "train", "valid": "validation"}
    assert dataclasses.replace(base.data, **files) == Config().data


def test_an_unknown_row_is_refused():
    with pytest.raises(UserError, match="unknown row 'F' of Table 3; known rows: base, A1"):
        row_config("F")


@pytest.mark.parametrize("scale", ["paper", "small"])
def test_data_are_where_the_folder_is_when_a_config_is_made(scale, tmp_path, monkeypatch):
    """The folder of data may be named after this module was imported."""
    monkeypatch.setenv("JAXFORMER_DATA", str(tmp_path))
    assert row_config("A1", scale).data.train.startswith(f"{tmp_path}/")
