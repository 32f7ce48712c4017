"""Tensors of torch.save, read without PyTorch and without unpickling.

tests/integration/test_hostile_files.py has files that are refused.
"""

import pathlib

import numpy as np
import pytest

from jaxformer.interop.torch_file import read_torch

# Made by PyTorch: tests/fixtures/make_torch.py.
FIXTURE = pathlib.Path(__file__).parents[2] / "fixtures" / "torch_tensors.bin"


def test_tensors_of_every_kind():
    numbers = np.arange(12.0)
    expected = {
        "whole": ("float32", numbers),
        "rows": ("float32", numbers.reshape(3, 4)),
        "transposed": ("float32", numbers.reshape(3, 4).T),
        "last": ("float32", numbers[7:]),
        "half": ("float16", numbers),
        "bfloat16": ("bfloat16", numbers),
        "double": ("float64", numbers),
        "scalar": ("float32", numbers[5]),
        "none": ("float32", numbers[:0]),
    }
    found = read_torch(FIXTURE)
    assert list(found) == list(expected)
    for name, (dtype, values) in expected.items():
        assert found[name].dtype == dtype
        np.testing.assert_array_equal(found[name].astype(float), values)
    # Arrays are views of the file: sizes that the pickle claims allocate nothing.
    assert np.shares_memory(found["whole"], found["transposed"])
    with pytest.raises(ValueError, match="read-only"):
        found["rows"][0, 0] = 1
