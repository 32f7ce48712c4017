"""Reports: plain lines or a bar, and metrics.jsonl, which a resumed run continues."""

import json
import math
import pathlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.runs import reporting, writers
from jaxformer.runs.reporting import Reporter
from jaxformer.runs.workdir import Workdir

VALUES = {
    "loss": 2.5,
    "perplexity": 9.87,
    "learning_rate": 1e-3,
    "tokens_per_second": 12345.6,
    "seconds_per_step": 12.0,
    "waiting": 0.01,
    "skipped": 0.0,
}


def records(folder):
    lines = folder.metrics.read_text(encoding="utf-8").splitlines()
    return [json.loads(line, parse_constant=pytest.fail) for line in lines]


def steps(folder):
    found = records(folder)
    return [(record["kind"], record["step"]) for record in found]


@pytest.fixture
def folder(tmp_path):
    return Workdir(tmp_path)


def test_reports_are_plain_lines_and_json(folder, capsys):
    """Without a terminal; NaN is null in JSON."""
    with Reporter(folder, start=0, steps=10) as reporter:
        reporter.write(5, "train", VALUES)
        assert records(folder) == [{"kind": "train", "step": 5, **VALUES}]  # before the run ends
        reporter.write(9, "valid", {"loss": 2.0, "perplexity": 7.39})
        reporter.report_failure(10, ValueError("a store\nis damaged"))
        reporter.write(10, "train", VALUES | {"loss": math.nan})

    train, valid, failed, *_ = capsys.readouterr().err.splitlines()
    assert train.startswith("step 5/10  loss 2.500  ppl 9.87  lr 1.00e-03  12,346 tokens/s")
    assert valid == "step 9/10  validation: loss 2.000  ppl 7.39"
    failure = "validation failed, the checkpoint has no score: ValueError: a store"
    assert failed == f"step 10/10  {failure}"

    _, _, error, last = records(folder)
    assert error == {"kind": "failed_validation", "step": 10, "error": "ValueError: a store"}
    assert last["loss"] is None


def test_the_time_left_counts_validations_but_no_compilation(capsys, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(writers, "time", types.SimpleNamespace(monotonic=lambda: now))
    terminal = writers.Terminal(start=20, steps=100)

    now += 30  # to compile the step
    terminal.exclude_compilation(30)

    # Faster steps after the first report, and a validation of a minute in 20 steps.
    reports = (
        (30, 12.0, 0, "14:00"),
        (40, 6.0, 60, "09:00"),
    )
    for step, rate, others, left in reports:
        now += 10 * rate + others
        terminal.write(step, "train", VALUES | {"seconds_per_step": rate})
        assert capsys.readouterr().err.endswith(f"  {left} left\n")


def test_means_are_per_count_without_skipped_steps():
    """Perplexity is computed from the sum of likelihoods; NaN if all batches were skipped."""
    good = {"loss": 3.0, "nll": 2.0, "hits": 1, "count": 2, "tokens": 5, "skipped": 0}
    bad = dict.fromkeys(good, math.nan) | {"skipped": 1}

    means = reporting.mean_values([good, bad, good | {"count": 6}])
    perplexity = pytest.approx(math.exp(4 / 8))
    assert means == {"loss": 6 / 8, "hits": 2 / 8, "perplexity": perplexity}
    assert list(means) == ["loss", "perplexity", "hits"]

    without_any = reporting.mean_values([bad])
    assert {math.isnan(mean) for mean in without_any.values()} == {True}


def test_removed_reports_are_kept_in_another_file(folder):
    """Each removed report is kept once; an incomplete line is not a report."""
    with Reporter(folder, start=0, steps=10) as reporter:
        for step in (2, 4, 6):
            reporter.write(step, "train", VALUES)
    first, second, third = folder.metrics.read_bytes().splitlines(keepends=True)
    cut = folder.path / "metrics.after-4.jsonl"

    folder.metrics.write_bytes(first + second + third + b'{"kind": "train", "st')
    for _ in range(2):
        with Reporter(folder, start=4, steps=10):
            assert folder.metrics.read_bytes() == first + second
            assert cut.read_bytes() == third

    # Resume from the same step again, with a report without its line end and a damaged line.
    damaged = b'{"step": 5\x00}\n'
    folder.metrics.write_bytes(first + damaged + third.rstrip())
    with Reporter(folder, start=4, steps=10):
        assert folder.metrics.read_bytes() == first
    assert cut.read_bytes() == third + damaged + third

    names = sorted(path.name for path in folder.path.glob("metrics*"))
    assert names == ["metrics.after-4.jsonl", "metrics.jsonl"]


def test_reports_of_a_resumed_run_are_not_repeated(folder, capsys):
    """The run reports skipped steps after the checkpoint that it resumes from."""

    def run(reporter):
        reporter.report_failure(7, ValueError("no data"))
        reporter.write(10, "train", VALUES)
        reporter.report_skipped(5, "", [3], now=10)
        reporter.report_failure(14, ValueError("no data"))

    with Reporter(folder, start=0, steps=20) as reporter:
        run(reporter)
    uninterrupted = folder.metrics.read_bytes()
    capsys.readouterr()

    with Reporter(folder, start=7, steps=20) as reporter:
        assert steps(folder) == [("failed_validation", 7)]
        run(reporter)
    assert folder.metrics.read_bytes() == uninterrupted
    assert capsys.readouterr().err.count("step 7/20  validation failed") == 1


def step_sums(**values):
    values = {"loss": 1.0, "count": 2, "grad_norm": 1.0, "skipped": 0} | values
    return jax.device_put(jax.tree.map(np.asarray, values))


def test_the_loop_is_only_a_few_steps_ahead_of_the_device():
    """Otherwise Ctrl-C would wait for all steps until the next report."""

    def multiply(_, x):
        return jnp.tanh(x @ x)

    @jax.jit
    def slow(x):
        return jax.lax.fori_loop(0, 20, multiply, x)

    window = reporting.ReportWindow()
    x = np.eye(300, dtype=np.float32)
    behind = []
    for step in range(1, 21):
        x = slow(x)
        window.add(step, {"loss": x, "count": x})
        are_ready = [sums["loss"].is_ready() for _, sums in window._pending]
        behind.append(are_ready.count(False))

    assert 1 <= max(behind) <= 4


def test_the_time_of_a_run_is_told_by_its_work(folder, monkeypatch, capsys):
    """100 seconds: 10 to start, 20 in a validation that fails, 5 for batches, 0.4 for a save."""
    clock = types.SimpleNamespace(now=1000.0)
    monkeypatch.setattr(reporting.time, "monotonic", lambda: clock.now)
    use = reporting.TimeUse()

    def spend(work, seconds):
        with use.measure(work):
            clock.now += seconds
            if work == "validation":
                raise OSError

    spend("start", 10)
    window = reporting.ReportWindow(time_use=use)
    batches = window.time_batches(iter([1, 2]))
    next(batches)
    clock.now += 64.6
    with pytest.raises(OSError, match=r"^$"):
        spend("validation", 20)
    with window.pause_clock("checkpoints"):
        clock.now += 0.4
    use.add("waiting", 5)
    clock.now += 5
    assert window.totals().seconds == pytest.approx(89.6)  # all but the start and the save

    with Reporter(folder, start=0, steps=7) as reporter:
        reporter.report_time(7, use)
    said = "time 01:40: 65% for steps, 10% to start, 5% to wait for batches, 20% to validate\n"
    assert capsys.readouterr().err == said

    [record] = records(folder)
    assert (record.pop("kind"), record.pop("step")) == ("time", 7)
    assert record.pop("seconds") == pytest.approx(100)
    assert sum(record.values()) == pytest.approx(1)
    assert record["checkpoints"] == pytest.approx(0.004)


@pytest.fixture
def full():
    """A file on a full disk."""
    with pathlib.Path("/dev/full").open("wb", buffering=0) as file:
        yield file


def test_tensorboard_that_cannot_be_opened_is_dropped(folder, capsys):
    pytest.importorskip("tensorboardX")
    folder.tensorboard.touch()  # not a folder

    with Reporter(folder, start=0, steps=10) as reporter:
        reporter.write(5, "train", VALUES)

    assert steps(folder) == [("train", 5)]
    assert "TensorBoard failed and gets no more reports: FileExistsErr" in capsys.readouterr().err


def test_metrics_on_a_full_disk_close_all_writers_and_name_the_file(folder, full):
    closed = []
    user = types.SimpleNamespace(
        write=lambda *_: None,
        close=lambda: closed.append(True),
    )
    reporter = Reporter(folder, start=0, steps=10, writers=[user])
    reporter._metrics.close()
    reporter._metrics._file = full

    message = r"^/dev/full: No space left on device; free or repair the disk"
    with pytest.raises(OSError, match=message), reporter:
        reporter.write(5, "train", VALUES)

    assert closed == [True]


def test_corrupt_reports_are_moved_away(folder):
    good = '{"kind": "train", "step": 1}\n'
    corrupt = ["[" * 100_000, '{"kind": [], "step": 3}', "9" * 5000, '{"step": []}']
    lines = [f"{line}\n" for line in corrupt]
    folder.metrics.write_text(good + "".join(lines))

    for _ in range(2):  # The second run reads what the first one has moved.
        with Reporter(folder, start=1, steps=10):
            assert folder.metrics.read_text() == good

    moved = folder.path / "metrics.after-1.jsonl"
    assert moved.read_text().splitlines() == corrupt


def test_spikes_of_the_gradient_norm_are_described():
    window = reporting.ReportWindow()
    for step, norm in enumerate([90.0, 4.0, 4.0, 2.0], start=-3):  # Norms begin large.
        window.add(step, step_sums(grad_norm=norm))
    assert window.describe_spike() == ""
    assert window.means(updates=4)["grad_norm"] == 25

    window.add(0, step_sums(grad_norm=1.0))
    window.means(updates=5)

    for step, norm in enumerate([1.0, 2.0, 40.0, 3.0], start=1):
        window.add(step, step_sums(grad_norm=norm))
    window.add(5, step_sums(grad_norm=math.nan, skipped=1))
    assert window.describe_spike().startswith("step 3: its gradient norm of 40 is a spike; the me")
    assert window.means(updates=4)["grad_norm"] == 46 / 4

    window.add(6, step_sums(grad_norm=30.0))
    assert window.describe_spike() == ""  # nothing to compare with
