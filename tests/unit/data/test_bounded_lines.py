"""A small compressed file cannot take much memory."""

import gzip
import io
import tracemalloc

import pytest

from jaxformer.data.text_files import bounded_lines, fingerprint_files, read_file
from jaxformer.errors import UserError


@pytest.mark.parametrize(
    "read", [lambda path: list(read_file(path)), lambda p: fingerprint_files([p])]
)
def test_line_of_100_megabytes_is_refused(read, tmp_path):
    path = tmp_path / "text.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"one line\n")
        for _ in range(100):
            file.write(b"a" * 1_000_000)
    assert path.stat().st_size < 1_000_000
    tracemalloc.start()
    with pytest.raises(
        UserError, match=r"text\.gz:2: expected one sentence a line, of at most 1,000,000"
    ):
        read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000


def test_longest_line():
    lines = [b"a" * 999_999 + b"\n", b"b\r\n", b"c"]
    assert list(bounded_lines(io.BytesIO(b"".join(lines)).readline, "text")) == lines
    with pytest.raises(UserError, match="text:1: "):
        list(bounded_lines(io.BytesIO(b"a" + b"".join(lines)).readline, "text"))
