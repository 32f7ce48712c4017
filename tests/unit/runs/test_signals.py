"""Real signals are collected, end the process, or stay ignored."""

import signal

import pytest

from jaxformer.errors import StoppedError
from jaxformer.runs.signals import StopSignals


@pytest.fixture(autouse=True)
def _handlers():
    """Restores the handlers of the process, and checks that the test left them unchanged."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    old = {number: signal.getsignal(number) for number in numbers}
    yield
    found = {number: signal.getsignal(number) for number in numbers}

    for number, handler in old.items():
        signal.signal(number, handler)
    assert found == old


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_process(first, second):
    with StopSignals():
        signal.raise_signal(first)
        with pytest.raises(KeyboardInterrupt, match="stopped at once") as stopped:
            signal.raise_signal(second)

    # Only Ctrl-C gives exit code 130, not a preemption.
    is_preemption = second == signal.SIGTERM
    assert (stopped.type is StoppedError) == is_preemption


def test_a_signal_ends_a_block_that_has_nothing_to_save():
    with StopSignals() as stop:
        with pytest.raises(StoppedError, match="SIGHUP: nothing to save"), stop.raise_at_once():
            signal.raise_signal(signal.SIGHUP)
        with pytest.raises(StoppedError), stop.raise_at_once():
            pytest.fail("the signal came before this block")

        signal.raise_signal(signal.SIGHUP)  # collected again

    assert stop.received == [signal.SIGHUP, signal.SIGHUP]


@pytest.mark.parametrize(
    "numbers",
    [
        (signal.SIGTERM,),
        (signal.SIGINT,),
        (signal.SIGHUP, signal.SIGHUP),  # a closed terminal: the kernel and the shell send one each
        (signal.SIGHUP, signal.SIGTERM),  # a logout
        (signal.SIGTERM, signal.SIGHUP),  # systemd with SendSIGHUP
    ],
)
def test_signals_are_collected_and_sighup_does_not_end_the_process(numbers):
    with StopSignals() as stop:
        assert not stop.should_stop()
        for number in numbers:
            signal.raise_signal(number)
            assert stop.should_stop()
    assert tuple(stop.received) == numbers


def test_sighup_stays_ignored_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSignals() as stop:
        signal.raise_signal(signal.SIGHUP)

    assert stop.received == []
    assert signal.signal(signal.SIGHUP, before) == signal.SIG_IGN
