"""Tensors of torch.save, read without PyTorch and without unpickling.

tests/integration/test_hostile_files.py has files that are refused.
"""

import os
import pathlib

import numpy as np
import pytest

from jaxformer.errors import UserError
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


def test_missing_files_and_other_formats_are_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.bin: cannot be read: No such file"):
        read_torch(tmp_path / "none.bin")
    os.mkfifo(tmp_path / "pipe.bin")
    with pytest.raises(UserError, match=r"pipe\.bin: expected a regular file, found a FIFO$"):
        read_torch(tmp_path / "pipe.bin")
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(b"\x80\x02}.")
    with pytest.raises(UserError, match=r"not a zip archive; PyTorch before 1\.6.*save_pretrained"):
        read_torch(path)
