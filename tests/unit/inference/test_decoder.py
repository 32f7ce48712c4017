"""A decoder runs any plan: it knows the order, the padding and the threads, but no models."""

import dataclasses
import threading

import jax.numpy as jnp
import pytest

from jaxformer.inference import decoder as decoding
from jaxformer.inference.decoder import Batch, Decoder, Plan
from jaxformer.search import BeamSearch

ITEMS = ["ab", "", "c", "def", "", "gh", "ijkl"]


@dataclasses.dataclass
class Letters(Plan[str, int, str]):
    """Gives longer and longer prefixes of texts, the longest texts first, in batches of rows."""

    rows: int
    threads: set[str] = dataclasses.field(default_factory=set)

    def batches(self, decoder, items):
        numbers = [number for number, item in enumerate(items) if item]
        numbers.sort(key=lambda number: -len(items[number]))
        for start in range(0, len(numbers), self.rows):
            yield Batch(numbers[start : start + self.rows], self.rows)

    def decode(self, decoder, items, shape):
        self.threads.add(threading.current_thread().name)
        padding = ["?"] * (shape - len(items))
        for end in range(1, 5):
            for row, item in enumerate([*items, *padding]):
                yield row, item[:end].upper()


@pytest.mark.parametrize("several_threads", [False, True])
def test_each_item_has_its_last_result_and_blank_ones_have_none(several_threads, monkeypatch):
    monkeypatch.setattr(decoding, "can_thread", lambda models: several_threads)
    reported = []
    plan = Letters(rows=2)
    decoder = Decoder(jnp.zeros(1), BeamSearch(), plan)
    found = decoder.decode(ITEMS, report=reported.append)

    assert found == {0: "AB", 2: "C", 3: "DEF", 5: "GH", 6: "IJKL"}
    assert reported == [2, 2, 2, 1]
    main = threading.current_thread().name
    assert (main in plan.threads) != several_threads


def test_a_stream_has_all_results_in_their_order():
    decoder = Decoder(jnp.zeros(1), BeamSearch(), Letters(rows=2))
    streamed = list(decoder.stream(["a", "", "bcd"]))
    assert streamed == [
        (2, "B"),
        (0, "A"),
        (2, "BC"),
        (0, "A"),
        (2, "BCD"),
        (0, "A"),
        (2, "BCD"),
        (0, "A"),
    ]


def test_an_error_stops_the_batches_that_follow(monkeypatch):
    monkeypatch.setattr(decoding, "can_thread", lambda models: False)
    plan = Letters(rows=1)
    decoder = Decoder(jnp.zeros(1), BeamSearch(), plan)
    reported = []

    def report(finished):
        reported.append(finished)
        if len(reported) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decoder.decode(ITEMS, report=report)
    assert reported == [2, 1, 1]
