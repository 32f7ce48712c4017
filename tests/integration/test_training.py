"""The training loop: a resumed run equals an uninterrupted one, bit for bit."""

import collections
import contextlib
import gzip
import importlib.util
import io
import json
import os
import pathlib
import re
import shutil
import signal
from typing import Any, NamedTuple
from unittest import mock

import jax
import pytest

from jaxformer import experiment
from jaxformer.errors import UserError
from jaxformer.experiment import train
from jaxformer.files import lock_folder
from jaxformer.inference.translator import Translator
from jaxformer.runs.checkpoints import Checkpoints
from jaxformer.training import fitting
from jaxformer.training.flops import training_flops
from jaxformer.training.train_state import evaluate_at

from ..runs import changed, flip_a_bit, reports, write_pairs
from .test_user_task import assert_equal

# Compiles the shared programs first, in any order of the tests, so that they do not count here.
pytestmark = pytest.mark.usefixtures("tiny_workdir")


class FinishedRun(NamedTuple):
    """The final state of a run, and its folder."""

    state: Any
    folder: pathlib.Path


@pytest.fixture(scope="module")
def uninterrupted(tiny_config, tiny_workdir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    shutil.copytree(tiny_workdir, folder)
    return FinishedRun(train(tiny_config(), folder), folder)


@pytest.mark.smoke
def test_resumed_equals_uninterrupted(tiny_config, tmp_path, uninterrupted, caplog):
    """The run reports step 3, but its checkpoint is damaged: the next run resumes from step 2."""
    train(tiny_config(steps=3, eval_sentences=0), tmp_path)
    with (
        lock_folder(tmp_path),
        pytest.raises(UserError, match="another process is training in this folder; stop it or"),
    ):
        train(tiny_config(), tmp_path)

    flip_a_bit(tmp_path / "checkpoints" / "3")
    state = train(tiny_config(), tmp_path)
    assert_equal(state, uninterrupted.state)
    assert "damaged" in caplog.text

    found = reports(tmp_path)
    expected = reports(uninterrupted.folder)
    kinds = [(report["kind"], report["step"]) for report in found]
    assert kinds == [("train", 2), ("train", 4), ("train", 6), ("valid", 6)]
    for name in ("loss", "exact_match"):
        values = [report.get(name) for report in found]
        assert values == [report.get(name) for report in expected]


def test_checkpoints_of_another_vocabulary_are_refused(tiny_config, tmp_path, uninterrupted):
    state, folder = uninterrupted
    run = shutil.copytree(folder, tmp_path / "run")
    later = state._replace(step=state.step + 1)
    with Checkpoints(run / "checkpoints", keep=3) as checkpoints:
        checkpoints.save(7, evaluate_at(later, None), metadata={"tokenizer": "another"})

    with pytest.raises(UserError, match="but they are of another; use another --workdir"):
        train(tiny_config(steps=8), run)
    with pytest.raises(UserError, match="but they are of another; copy the whole workdir"):
        Translator.load(run)


def test_workdir_of_another_experiment_is_refused(tiny_config, uninterrupted):
    config = tiny_config()
    for section, changes, words in [
        ("model", {"num_layers": 2}, r"num_layers=1, but 2 was .* config, or another folder$"),
        ("data", {"tokens_per_batch": 1024}, r"but 1024 .*init_from=\S+ --workdir NEW to begin"),
        ("training", {"seed": 5}, r"training\.seed=0, but 5 was given"),
        ("training", {"warmup_steps": 9}, r"training\.warmup_steps=10, but 9 was given"),
    ]:
        with pytest.raises(UserError, match=words):
            train(changed(config, **{section: changes}), uninterrupted.folder)


def test_divergence_names_the_rate_that_is_set(tiny_config, tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "Run", mock.Mock(side_effect=FloatingPointError("NaN")))
    for rate, field in ((None, "learning_rate_scale"), (1e12, "learning_rate")):
        with pytest.raises(FloatingPointError, match=rf"NaN\. .* a lower training\.{field}, more"):
            train(tiny_config(learning_rate=rate), tmp_path)


@pytest.mark.ci
def test_a_failing_validation_costs_only_its_score(
    tiny_config, tmp_path, uninterrupted, monkeypatch, capsys
):
    """The store of the validation split is damaged on the disk while the run reads it."""
    run = tmp_path / "run"
    cache = tmp_path / "cache"
    monkeypatch.setenv("JAXFORMER_CACHE", str(cache))
    config = tiny_config(eval_every=2, eval_sentences=0)

    def damage(step, *_):
        if step != 3:
            return
        files = cache.rglob("offsets.bin")
        smallest = min(files, key=lambda path: path.stat().st_size)
        with smallest.open("r+b") as offsets:
            offsets.seek(8)  # the end of the first source
            offsets.write(b"\x7f" * 8)

    state = train(config, run, hooks=[damage])
    assert_equal(state, uninterrupted.state)
    failed = [report["step"] for report in reports(run, "failed_validation")]
    assert failed == [4, 6]
    assert "step 4/6  validation failed, the checkpoint has no score: " in capsys.readouterr().err

    checkpoints = Checkpoints(run / "checkpoints")
    assert checkpoints.steps() == [2, 4, 6]
    assert checkpoints.best_step() == 2

    # The same command rebuilds the store, and repeats the last validation.
    train(config, run)
    *_, found = reports(run)
    *_, expected = reports(uninterrupted.folder)
    assert found["loss"] == expected["loss"]
    assert checkpoints.best_step() == 6


def write_text_corpus(folder, lines):
    for split in ("train", "valid"):
        pairs = []
        for n in range(lines):
            ending = f"line {n} of {n % 7}"
            pairs.append((f"en {ending}", f"de {ending}"))
        write_pairs(folder / split, pairs)


def text_config(tiny_config, folder, **training):
    data = {
        "corpus": "text",
        "train": str(folder / "train"),
        "valid": str(folder / "valid"),
    }
    return changed(tiny_config(**training), data=data)


@pytest.mark.smoke
def test_data_may_move_but_not_change(tiny_config, tmp_path, capsys):
    """Pairs that are too long or empty are skipped, counted and reported."""
    old = tmp_path / "old"
    new = tmp_path / "new"
    run = tmp_path / "run"
    old.mkdir()
    write_text_corpus(old, 200)
    for path in old.glob("*.*"):
        too_long = "word " * 100
        empty_or_not = "" if path.suffix == ".en" else "text"
        good = path.read_text(encoding="utf-8")
        # First in the file, so that it is among the sentences that validation translates.
        path.write_text(f"{too_long}\n{empty_or_not}\n{good}", encoding="utf-8")

    train(text_config(tiny_config, old, steps=2), run)
    log = capsys.readouterr().err
    assert "200 training pairs, 2 skipped (1 longer than 64 tokens, 1 with an empty side)" in log
    assert "200 validation pairs, 2 skipped" in log
    assert "(cased, 13a tokenizer)" in log

    old.rename(new)
    train(text_config(tiny_config, new, steps=4, eval_sentences=0), run)
    assert "resumed from step 2" in capsys.readouterr().err

    write_text_corpus(new, 201)
    with pytest.raises(UserError, match="the run began with other data: train was"):
        train(text_config(tiny_config, new, steps=4, eval_sentences=0), run)


class ShortRun(NamedTuple):
    """The folder, state and log of two steps."""

    folder: pathlib.Path
    state: Any
    log: str


@pytest.fixture(scope="module")
def short_run(tiny_config, tmp_path_factory):
    """Returns a run on devices whose peak is known. A signal comes during the last save."""
    folder = tmp_path_factory.mktemp("short") / "run"
    log = io.StringIO()
    wait = Checkpoints.wait

    def interrupted(self):
        if self._saving is not None and self._saving.step == 2:
            signal.raise_signal(signal.SIGINT)
        wait(self)

    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(log):
        patch.setattr(fitting, "peak_flops", lambda kind: 5e11 if kind == "cpu" else None)
        patch.setattr(Checkpoints, "wait", interrupted)
        state = train(tiny_config(steps=2, eval_sentences=0), folder)
    return ShortRun(folder, state, log.getvalue())


def test_a_signal_during_the_last_save_does_not_stop_it(short_run):
    assert int(short_run.state.step) == 2
    assert Checkpoints(short_run.folder / "checkpoints").steps() == [2]


def test_speed_is_compared_with_the_peak_where_it_is_known(short_run, tiny_config):
    (report,) = reports(short_run.folder, "train")
    # Packed batches of 512 source and 512 target tokens have 8 rows of 64.
    flops = training_flops(tiny_config().model, 8, 64, 64)
    per_second = flops / report["seconds_per_step"]
    peak = 5e11 * jax.device_count()

    assert report["teraflops_per_second"] == pytest.approx(per_second / 1e12)
    assert report["mfu"] == pytest.approx(per_second / peak)
    assert re.search(r"  [\d.e-]+ TFLOP/s  MFU [\d.]+%  ", short_run.log)


@pytest.mark.ci
def test_steps_are_profiled(tiny_config, tmp_path, uninterrupted, capsys):
    state = train(tiny_config(eval_sentences=0, profile="2:4"), tmp_path)
    assert_equal(state, uninterrupted.state)
    assert "profiled up to step 4: open the perfetto_trace.json.gz" in capsys.readouterr().err

    profile = tmp_path / "profile"
    assert len(list(profile.rglob("*.xplane.pb"))) == 1
    (trace,) = profile.rglob("perfetto_trace.json.gz")
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    names = [event.get("name", "") for event in events]
    executions = [name for name in names if name.endswith("Execute (jit_train_step)")]
    per_device = collections.Counter(executions)
    assert per_device
    assert set(per_device.values()) == {2}  # steps 3 and 4
    assert len(events) < 100_000  # no Python calls


def test_finished_run_is_left_alone(tiny_config, uninterrupted, capsys):
    state, folder = uninterrupted
    before = reports(folder)
    again = train(tiny_config(), folder)
    assert_equal(again, state)
    assert reports(folder) == before
    assert (
        "nothing to do: training.steps=6 are done, and the parameters come from the checkpoint of "
        f"step 6 in {folder}; to train again after a change of code or data, use another workdir; "
        "to train longer, raise training.steps\n"
    ) in capsys.readouterr().err

    config = (folder / "config.json").read_bytes()
    train(tiny_config(steps=5), folder)
    log = capsys.readouterr().err
    assert "nothing to do: training.steps=5 are done, and the parameters come from" in log
    assert f"the checkpoint of step 6 in {folder}; " in log
    assert (folder / "config.json").read_bytes() == config  # step 6 was taken

    if importlib.util.find_spec("tensorboardX"):
        assert list((folder / "tensorboard").glob("events.out.tfevents.*"))


UNTRUSTED = [("config.json", "FIFO"), ("metrics.jsonl", "link"), ("checkpoints", "folder")]


@pytest.mark.ci
@pytest.mark.parametrize(("name", "kind"), UNTRUSTED)
def test_an_untrusted_workdir_is_refused(name, kind, tiny_workdir, tiny_config, tmp_path):
    """Nothing outside of it is touched, and nothing waits."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")

    run = shutil.copytree(tiny_workdir, tmp_path / "run")
    path = run / name
    if path.is_dir():
        path.rename(tmp_path / "kept")
    else:
        path.unlink(missing_ok=True)
    match kind:
        case "FIFO":
            os.mkfifo(path)
        case "link":
            path.symlink_to(outside / "new")
        case "folder":
            path.symlink_to(outside)

    signal.alarm(100)  # A FIFO would wait without end.
    with pytest.raises(UserError, match=r"found a (FIFO|link)|not of a folder or link|to lock"):
        train(tiny_config(steps=8), run)
    signal.alarm(0)

    assert [path.name for path in outside.iterdir()] == ["mine"]
    assert (outside / "mine").read_text() == "mine"
