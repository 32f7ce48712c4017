"""Lines of progress bars fit the terminal, with the longest numbers and names."""

import io
import time

import pytest

from jaxformer.progress import ProgressBar

HOURS = 12 * 3600 + 34 * 60 + 56
VALUES = [
    "loss 12.345",
    "ppl 230,000.12",
    "norm 1.23e+03",
    "lr 1.23e-04",
    "1,234,567 tokens/s",
    "123 TFLOP/s",
    "MFU 45.6%",
    "masked accuracy 0.123",
]


def line(columns, done, total, *, values=(), **options):
    """Returns the line of a bar that began half a day ago."""
    bar = ProgressBar(total=total, file=io.StringIO(), ncols=columns, **options)
    bar.values = values
    bar.n = done
    bar.start_t = time.time() - HOURS
    bar.last_print_t = bar.start_t

    found = str(bar)
    bar.disable = True
    return found


@pytest.mark.parametrize("columns", [80, 100, 200])
@pytest.mark.parametrize(
    ("done", "total", "options"),
    [
        (12_345, 1_000_000, {"unit": "step", "values": VALUES}),
        (1, 1_000_000, {"unit": "step", "values": VALUES}),
        (123_456_789, 999_999_999, {"unit": "sentence", "smoothing": 0}),
        (123_456_789, None, {"unit": "sentence", "smoothing": 0}),
        (123_456_789, None, {"unit": " pairs", "desc": f"tokenizing {'/a/long/folder' * 9}/tr"}),
        (12_345, 234_567, {"desc": "steps 1234567 to 2345678"}),
        (3, 4, {"unit": "metric"}),
    ],
)
def test_a_line_is_not_cut(columns, done, total, options):
    found = line(columns, done, total, **options)

    assert len(found) <= columns
    assert "12:34:56" in found
    assert found.endswith("]")

    if "values" in options:
        # The first values that fit; 200 columns hold all.
        shown = sum(value in found for value in VALUES)
        assert found.endswith(f"step, {', '.join(VALUES[:shown])}]")
        assert (shown == len(VALUES)) == (columns == 200)
        assert shown > 0

    if "tokenizing" in options.get("desc", ""):
        assert found.partition(": ")[0].endswith("folder/tr")


def test_a_narrow_terminal_keeps_the_numbers():
    assert line(30, 5, 10, unit="step", desc="a long name").startswith(" 50%|")
    for columns in (None, 0):
        assert line(columns, 5, 10, values=["loss 1"]).endswith(", loss 1]")
