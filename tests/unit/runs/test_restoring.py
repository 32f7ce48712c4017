"""Limits on what an untrusted checkpoint may make the process read."""

import json

import jax
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.runs import manifest, restoring
from jaxformer.runs.restoring import check_memory


def test_arrays_are_in_proportion_to_their_files(tmp_path):
    (tmp_path / "data").write_bytes(bytes(1000))
    most = restoring._SMALL + restoring._COMPRESSION * 1000

    def message(size):
        with pytest.raises(UserError) as caught:
            check_memory(tmp_path, jax.ShapeDtypeStruct((size,), np.uint8))
        return str(caught.value)

    assert f"expected files for arrays of {most + 1:,} bytes, found 1,000" in message(most + 1)

    # The size is possible, and the next check refuses the file.
    (tmp_path / manifest.METADATA).write_text("{}")
    assert "expected arrays in the formats" in message(most)


def metadata(chunks, dtype):
    return json.dumps({"chunks": chunks, "dtype": dtype}).encode()


def test_chunks_are_as_large_as_the_largest_numbers():
    found = restoring._chunk_size("place", metadata([3, 4], "<f4"))
    assert found == 12 * restoring._LARGEST_NUMBER


@pytest.mark.parametrize(
    ("chunks", "dtype"),
    [
        ([3, -4], "<f4"),
        ([3, 4.0], "<f4"),
        ([True], "<f4"),
        ([3, 4], [["a", "<f4"]]),
        ([3, 4], "|V99999999"),
    ],
)
def test_chunks_have_whole_sizes_and_numbers(chunks, dtype):
    with pytest.raises(UserError, match="place: expected the metadata of an array of numbers"):
        restoring._chunk_size("place", metadata(chunks, dtype))
