"""Real signals are collected, end the process, or stay ignored."""

import signal
from collections.abc import Iterator

import pytest

from jaxformer.training.signals import StopAgreement, asked_to_stop, stop_signals


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Restores the handlers of the process, and checks that the test left them unchanged."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    old = {number: signal.getsignal(number) for number in numbers}
    yield
    found = {number: signal.getsignal(number) for number in numbers}
    for number, handler in old.items():
        signal.signal(number, handler)
    assert found == old


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_collected(number):
    with stop_signals() as received:
        assert not asked_to_stop(received, StopAgreement())
        signal.raise_signal(number)
        assert asked_to_stop(received, StopAgreement())
    assert received == [number]


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_process(first, second):
    with stop_signals():
        signal.raise_signal(first)
        with pytest.raises(KeyboardInterrupt, match="stopped at once"):
            signal.raise_signal(second)


@pytest.mark.parametrize(
    "numbers",
    [
        (signal.SIGHUP, signal.SIGHUP),  # a closed terminal: the kernel and the shell send one each
        (signal.SIGHUP, signal.SIGTERM),  # a logout
        (signal.SIGTERM, signal.SIGHUP),  # systemd with SendSIGHUP
    ],
)
def test_sighup_with_another_signal_does_not_end_the_process(numbers):
    with stop_signals() as received:
        for number in numbers:
            signal.raise_signal(number)
    assert tuple(received) == numbers


def test_sighup_stays_ignored_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stop_signals() as received:
        signal.raise_signal(signal.SIGHUP)
    assert received == []
    assert signal.signal(signal.SIGHUP, before) == signal.SIG_IGN
