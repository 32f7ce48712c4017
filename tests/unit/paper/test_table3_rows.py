"""The rows of Table 3: parameter counts by a closed formula and as the paper prints them."""

import dataclasses
from typing import NamedTuple

import jax
import pytest

from jaxformer.config import Config
from jaxformer.errors import UserError
from jaxformer.inference.parameter_arrays import abstract_params
from jaxformer.paper.table3_rows import ROWS, SCALES, row_config

from ...profiles import by_profile


class Printed(NamedTuple):
    """A row of Table 3 as the paper prints it, with parameters in millions; None if blank."""

    num_layers: int
    d_model: int
    d_ff: int
    num_heads: int
    d_k: int
    d_v: int
    dropout_rate: float
    label_smoothing: float
    parameters: int | None


# N, d_model, d_ff, h, d_k, d_v, P_drop, e_ls, 10^6
PRINTED = {
    "base": Printed(6, 512, 2048, 8, 64, 64, 0.1, 0.1, 65),
    "A1": Printed(6, 512, 2048, 1, 512, 512, 0.1, 0.1, None),
    "A2": Printed(6, 512, 2048, 4, 128, 128, 0.1, 0.1, None),
    "A3": Printed(6, 512, 2048, 16, 32, 32, 0.1, 0.1, None),
    "A4": Printed(6, 512, 2048, 32, 16, 16, 0.1, 0.1, None),
    "B1": Printed(6, 512, 2048, 8, 16, 64, 0.1, 0.1, 58),
    "B2": Printed(6, 512, 2048, 8, 32, 64, 0.1, 0.1, 60),
    "C1": Printed(2, 512, 2048, 8, 64, 64, 0.1, 0.1, 36),
    "C2": Printed(4, 512, 2048, 8, 64, 64, 0.1, 0.1, 50),
    "C3": Printed(8, 512, 2048, 8, 64, 64, 0.1, 0.1, 80),
    "C4": Printed(6, 256, 2048, 8, 32, 32, 0.1, 0.1, 28),
    "C5": Printed(6, 1024, 2048, 8, 128, 128, 0.1, 0.1, 168),
    "C6": Printed(6, 512, 1024, 8, 64, 64, 0.1, 0.1, 53),
    "C7": Printed(6, 512, 4096, 8, 64, 64, 0.1, 0.1, 90),
    "D1": Printed(6, 512, 2048, 8, 64, 64, 0.0, 0.1, None),
    "D2": Printed(6, 512, 2048, 8, 64, 64, 0.2, 0.1, None),
    "D3": Printed(6, 512, 2048, 8, 64, 64, 0.1, 0.0, None),
    "D4": Printed(6, 512, 2048, 8, 64, 64, 0.1, 0.2, None),
    "E": Printed(6, 512, 2048, 8, 64, 64, 0.1, 0.1, None),
    "big": Printed(6, 1024, 4096, 16, 64, 64, 0.3, 0.1, 213),
}


def closed_formula(row, vocabulary, positions=0):
    """Counts a tied embedding, bias-free attention, feed-forward biases, and layer norms."""
    printed = PRINTED[row]
    d = printed.d_model
    d_ff = printed.d_ff

    head = 2 * d * (printed.d_k + printed.d_v)
    attention = printed.num_heads * head
    feed_forward = 2 * d * d_ff + d_ff + d
    norm = 2 * d
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    layers = printed.num_layers * (encoder_layer + decoder_layer)
    embedding = vocabulary * d
    learned_positions = 2 * positions * d
    return embedding + layers + learned_positions


@pytest.mark.parametrize("row", by_profile(["base", "A1", "B1", "C1", "E", "big"], nightly=ROWS))
def test_counts_equal_the_formula(row):
    model = row_config(row).model
    positions = model.max_length if row == "E" else 0

    params = jax.tree.leaves(abstract_params(model))

    size = sum(leaf.size for leaf in params)
    assert size == closed_formula(row, 37_000, positions)


@pytest.mark.parametrize("row", ["B1", "B2", "C1", "C2", "C3", "C6", "C7"])
def test_differences_equal_the_papers(row):
    """Differences do not depend on the vocabulary size, which the paper does not state."""
    difference = closed_formula(row, 37_000) - closed_formula("base", 37_000)
    printed = PRINTED[row].parameters - PRINTED["base"].parameters
    # Two rounding errors of 1/2.
    assert abs(difference / 1e6 - printed) < 1


@pytest.mark.parametrize("scale", ["paper", "small", "smoke"])
def test_a_row_changes_what_the_paper_says_and_nothing_else(scale):
    width = SCALES[scale].width
    depth = SCALES[scale].depth
    base = row_config("base", scale)

    for row, printed in PRINTED.items():
        config = row_config(row, scale)
        model = dataclasses.replace(
            base.model,
            num_layers=printed.num_layers // depth,
            d_model=printed.d_model // width,
            d_ff=printed.d_ff // width,
            num_heads=printed.num_heads,
            d_k=printed.d_k // width,
            d_v=printed.d_v // width,
            dropout_rate=printed.dropout_rate,
            positions="learned" if row == "E" else "sinusoidal",
        )
        times = 3 if row == "big" else 1
        training = dataclasses.replace(
            base.training,
            label_smoothing=printed.label_smoothing,
            steps=base.training.steps * times,
        )

        explicit = {
            "d_k": config.model.key_size,
            "d_v": config.model.value_size,
        }
        assert dataclasses.replace(config.model, **explicit) == model, row
        assert config.training == training, row
        assert ROWS[row].parameters == printed.parameters
        assert config.data == base.data
        assert config.search == base.search


def test_base_equals_the_papers():
    base = row_config("base")
    default = Config()
    files = {"corpus": "tfds", "train": "train", "valid": "validation"}

    assert dataclasses.replace(base.model, compute_dtype="float32") == default.model
    assert dataclasses.replace(base.data, **files) == default.data
    assert base.search == default.search
    assert base.training.steps == 100_000


def test_an_unknown_row_is_refused():
    with pytest.raises(UserError, match="unknown row 'F' of Table 3; known rows: base, A1"):
        row_config("F")


@pytest.mark.parametrize("scale", ["paper", "small"])
def test_data_are_where_the_folder_is_when_a_config_is_made(scale, tmp_path, monkeypatch):
    """The folder of data may be named after this module was imported."""
    monkeypatch.setenv("JAXFORMER_DATA", str(tmp_path))
    config = row_config("A1", scale)
    assert config.data.train.startswith(f"{tmp_path}/")
