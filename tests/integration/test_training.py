"""The training loop: a resumed run equals an uninterrupted one, bit for bit."""

import collections
import contextlib
import dataclasses
import gzip
import itertools
import json
import re
import shutil
import signal
import threading
import time
from unittest import mock

import jax
import numpy as np
import pytest

from jaxformer import config as config_lib
from jaxformer import experiment
from jaxformer.checkpoint import Checkpoints
from jaxformer.errors import RESUMABLE, UserError
from jaxformer.experiment import make_optimizer, train
from jaxformer.files import lock_folder
from jaxformer.inference.translator import Translator
from jaxformer.models.flops import training_flops
from jaxformer.tasks import translation
from jaxformer.training import fitting

from .compilations import Compilations
from .training_process import start_training


def assert_equal_states(actual, expected):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(actual), jax.device_get(expected))


def read_metrics(folder):
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def uninterrupted(tiny_config, tiny_workdir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    shutil.copytree(tiny_workdir, folder)
    return train(tiny_config(), folder), folder


@pytest.mark.smoke
def test_resumed_equals_uninterrupted(tiny_config, tmp_path, uninterrupted):
    train(tiny_config(steps=2, eval_sentences=0), tmp_path)
    train(tiny_config(steps=4, eval_sentences=0), tmp_path)
    assert_equal_states(train(tiny_config(), tmp_path), uninterrupted[0])
    last, expected = read_metrics(tmp_path)[-1], read_metrics(uninterrupted[1])[-1]
    assert (last["loss"], last["exact_match"]) == (expected["loss"], expected["exact_match"])


def test_every_step_is_reported_once(tiny_config, tmp_path, uninterrupted):
    # The first run reports step 3, but loses its checkpoint, so that the next resumes from step 2.
    train(tiny_config(steps=3, eval_sentences=0), tmp_path)
    (tmp_path / "checkpoints" / "3").rename(tmp_path / "removed")
    train(tiny_config(eval_sentences=0), tmp_path)
    reports = [(r["kind"], r["step"]) for r in read_metrics(tmp_path)]
    assert reports == [("train", 2), ("train", 4), ("train", 6), ("valid", 6)]
    losses = [r["loss"] for r in read_metrics(tmp_path)]
    assert losses == [r["loss"] for r in read_metrics(uninterrupted[1])]


def test_damaged_newest_checkpoint_falls_back_to_the_one_before(
    tiny_config, tmp_path, uninterrupted, caplog
):
    train(tiny_config(steps=4, eval_sentences=0), tmp_path)
    damaged = max(
        (p for p in (tmp_path / "checkpoints" / "4").rglob("*") if p.is_file()),
        key=lambda p: p.stat().st_size,
    )
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    state = train(tiny_config(eval_sentences=0), tmp_path)
    assert "damaged" in caplog.text
    assert_equal_states(state, uninterrupted[0])


def newest_step(folder):
    steps = (path.name for path in (folder / "checkpoints").glob("*"))
    return max((int(step) for step in steps if step.isdigit()), default=0)


def wait_for_step(folder, step, process):
    deadline = time.monotonic() + 120
    while newest_step(folder) < step:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.nightly
def test_kill_and_termination_lose_nothing(tmp_path):
    """One run is killed, hung up, terminated, and then finished; the other is uninterrupted.

    Nobody reads the output of some of these processes.
    """

    def start(folder, steps):
        off = {"training.eval_every": 10_000, "training.eval_sentences": 0}
        return start_training(folder, **{"training.steps": steps}, **off)

    folder = tmp_path / "interrupted"
    killed = start(folder, 5000)
    wait_for_step(folder, 20, killed)
    killed.kill()
    killed.communicate()
    left = start(folder, 5000)
    left.stderr.close()
    wait_for_step(folder, newest_step(folder) + 20, left)
    left.send_signal(signal.SIGHUP)
    left.send_signal(signal.SIGHUP)
    assert left.wait(timeout=60) == RESUMABLE
    assert Checkpoints(folder / "checkpoints").newest_good_step() == newest_step(folder)
    assert read_metrics(folder)[-1]["step"] > newest_step(folder) - 10
    stopped = start(folder, 5000)
    wait_for_step(folder, newest_step(folder) + 20, stopped)
    stopped.send_signal(signal.SIGTERM)
    _, errors = stopped.communicate(timeout=60)
    assert stopped.returncode == RESUMABLE
    assert "resumed from step" in errors
    saved = newest_step(folder)
    assert f"SIGTERM: step {saved} is saved; the same command resumes there" in errors
    finished, whole = start(folder, saved + 20), start(tmp_path / "whole", saved + 20)
    whole.stderr.close()  # nobody reads its output
    _, errors = finished.communicate(timeout=180)
    assert finished.returncode == 0, errors
    assert f"resumed from step {saved}" in errors
    assert whole.wait(timeout=180) == 0
    states, kept = [], []
    for run in (tmp_path / "whole", folder):
        checkpoints = Checkpoints(run / "checkpoints")
        kept.append(checkpoints.steps())
        config = config_lib.load(run / "config.json")
        mesh = fitting.make_mesh(devices=jax.devices()[:1])
        template = fitting.abstract_state(
            translation.make_init(config.model), make_optimizer(config), mesh
        )
        states.append(checkpoints.restore(template).state)
    assert kept[0] == kept[1]
    assert kept[0][-1] == saved + 20
    assert_equal_states(*states)


def test_checkpoints_of_another_vocabulary_are_refused(tiny_config, tmp_path, uninterrupted):
    state, folder = uninterrupted
    run = shutil.copytree(folder, tmp_path / "run")
    with Checkpoints(run / "checkpoints", keep=3) as checkpoints:
        checkpoints.save(7, state._replace(step=state.step + 1), metadata={"tokenizer": "another"})
    with pytest.raises(UserError, match="but they are of another; use another --workdir"):
        train(tiny_config(steps=8), run)
    with pytest.raises(UserError, match="but these are of another; copy the whole workdir"):
        Translator.load(run)


@pytest.mark.parametrize(
    ("section", "changes", "words"),
    [
        ("model", {"num_layers": 2}, r"holds a run with model\.num_layers=1, but 2 was given"),
        ("data", {"tokens_per_batch": 1024}, r"data\.tokens_per_batch=512, but 1024 was given"),
        ("training", {"seed": 5}, r"training\.seed=0, but 5 was given"),
        ("training", {"warmup_steps": 9}, r"training\.warmup_steps=10, but 9 was given"),
    ],
)
def test_workdir_of_another_experiment_is_refused(
    tiny_config, uninterrupted, section, changes, words
):
    config = tiny_config()
    part = dataclasses.replace(getattr(config, section), **changes)
    with pytest.raises(UserError, match=words):
        train(dataclasses.replace(config, **{section: part}), uninterrupted[1])


def test_a_second_run_in_the_same_folder_is_refused(tiny_config, tmp_path, uninterrupted):
    train(tiny_config(steps=2, eval_sentences=0), tmp_path)
    with (
        lock_folder(tmp_path),
        pytest.raises(UserError, match="another process is training in this folder; stop it or"),
    ):
        train(tiny_config(), tmp_path)
    assert_equal_states(train(tiny_config(), tmp_path), uninterrupted[0])


def test_a_run_that_took_the_workdir_before_the_lock_is_noticed(
    tiny_config, tmp_path, uninterrupted, monkeypatch
):
    """Another run began and ended between the first check of the folder and the lock."""
    run = tmp_path / "run"

    @contextlib.contextmanager
    def locked_too_late(folder):
        shutil.copytree(uninterrupted[1], run)
        yield

    monkeypatch.setattr(fitting, "only_run_in", locked_too_late)
    with pytest.raises(UserError, match=r"training\.seed=0, but 5 was given"):
        train(tiny_config(seed=5), run)


def test_a_signal_ends_a_validation(tiny_config, tmp_path, uninterrupted, monkeypatch):
    """The validation ends between two batches, and the checkpoint has no score."""
    load_batches, often = translation.load_batches, {"eval_every": 2, "eval_sentences": 0}

    def interrupted(*arguments, start=None, **rest):
        if start is not None:  # batches to train on
            yield from load_batches(*arguments, start=start, **rest)
        for batch in load_batches(*arguments, **rest):
            yield batch
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(translation, "load_batches", interrupted)
        with pytest.raises(KeyboardInterrupt, match="SIGTERM: step 2 is saved"):
            train(tiny_config(**often), tmp_path)
    assert [r["kind"] for r in read_metrics(tmp_path)] == ["train"]
    assert Checkpoints(tmp_path / "checkpoints").best_step() is None
    assert_equal_states(train(tiny_config(**often), tmp_path), uninterrupted[0])
    # A resumed run begins with the interrupted validation.
    reports = [r for r in read_metrics(tmp_path) if r["kind"] == "valid"]
    assert [r["step"] for r in reports] == [2, 4, 6]
    best = min(reports, key=lambda r: r["loss"])["step"]
    assert Checkpoints(tmp_path / "checkpoints").best_step() == best


@pytest.mark.ci
def test_a_failing_validation_costs_only_its_score(
    tiny_config, tmp_path, uninterrupted, monkeypatch, capsys
):
    """The store of the validation split is damaged on the disk while the run reads it."""
    monkeypatch.setenv("JAXFORMER_CACHE", str(tmp_path / "cache"))
    run, often = tmp_path / "run", {"eval_every": 2, "eval_sentences": 0}

    def damage():
        deadline = time.monotonic() + 120
        while not (run / "config.json").exists():  # written when the stores are open
            assert time.monotonic() < deadline
            time.sleep(0.001)
        stores = (tmp_path / "cache").rglob("offsets.bin")
        with min(stores, key=lambda path: path.stat().st_size).open("r+b") as offsets:
            offsets.seek(8)  # the end of the first source
            offsets.write(b"\x7f" * 8)

    thread = threading.Thread(target=damage)
    thread.start()
    state = train(tiny_config(**often), run)
    thread.join()
    assert_equal_states(state, uninterrupted[0])
    failed = [r for r in read_metrics(run) if r["kind"] == "failed_validation"]
    assert [r["step"] for r in failed] == [2, 4, 6]
    assert "step 2/6  validation failed, the checkpoint has no score: " in capsys.readouterr().err
    checkpoints = Checkpoints(run / "checkpoints")
    assert (checkpoints.steps(), checkpoints.best_step()) == ([2, 4, 6], None)
    # The same command rebuilds the store, and repeats the last validation.
    train(tiny_config(**often), run)
    assert read_metrics(run)[-1]["loss"] == read_metrics(uninterrupted[1])[-1]["loss"]
    assert checkpoints.best_step() == 6


def test_a_signal_ends_the_translation_of_a_validation(tiny_config, tmp_path, monkeypatch):
    decode = translation.Translator.translate

    def interrupted(self, sentences, **rest):
        signal.raise_signal(signal.SIGTERM)
        return decode(self, sentences, **rest)

    monkeypatch.setattr(translation.Translator, "translate", interrupted)
    with pytest.raises(KeyboardInterrupt, match="SIGTERM: step 2 is saved"):
        train(tiny_config(eval_every=2), tmp_path)


def test_a_signal_during_the_last_save_does_not_stop_it(tiny_config, tmp_path, monkeypatch):
    wait = Checkpoints.wait

    def interrupted(self):
        if self._saving is not None and self._saving.step == 2:
            signal.raise_signal(signal.SIGINT)
        wait(self)

    monkeypatch.setattr(Checkpoints, "wait", interrupted)
    assert int(train(tiny_config(steps=2, eval_sentences=0), tmp_path).step) == 2
    assert Checkpoints(tmp_path / "checkpoints").steps() == [2]


def write_text_corpus(folder, lines):
    for split in ("train", "valid"):
        for language in ("en", "de"):
            text = "".join(f"{language} line {n} of {n % 7}\n" for n in range(lines))
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")


def text_config(tiny_config, folder, **training):
    config = tiny_config(**training)
    data = dataclasses.replace(
        config.data, corpus="text", train=str(folder / "train"), valid=str(folder / "valid")
    )
    return dataclasses.replace(config, data=data)


def test_changed_data_is_refused(tiny_config, tmp_path):
    write_text_corpus(tmp_path, 200)
    config = text_config(tiny_config, tmp_path, steps=2, eval_sentences=0)
    train(config, tmp_path / "run")
    write_text_corpus(tmp_path, 201)
    with pytest.raises(UserError, match="the run began with other data: train was"):
        train(config, tmp_path / "run")


@pytest.mark.parametrize(
    ("dtype", "emulated", "reported"),
    [("bfloat16", True, True), ("bfloat16", False, False), ("float32", True, False)],
)
def test_a_new_run_in_emulated_bfloat16_is_told_what_is_faster(
    dtype, emulated, reported, tiny_config, tmp_path, monkeypatch, capsys
):
    config = tiny_config()
    model = dataclasses.replace(config.model, compute_dtype=dtype)
    monkeypatch.setattr(experiment, "emulates_bfloat16", lambda: emulated)
    monkeypatch.setattr(experiment, "fit", mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        train(dataclasses.replace(config, model=model), tmp_path)
    advice = "a new run is faster with --config.model.compute_dtype=float32\n"
    assert (advice in capsys.readouterr().err) == reported


def test_a_longer_schedule_is_announced(tiny_config, tiny_workdir, tmp_path, monkeypatch, capsys):
    def resume(**training):
        with pytest.raises(KeyboardInterrupt):
            train(tiny_config(warmup_steps=2, **training), tmp_path / "run")
        return capsys.readouterr().err

    monkeypatch.setattr(experiment, "fit", mock.Mock(side_effect=KeyboardInterrupt))
    shutil.copytree(tiny_workdir, tmp_path / "run")
    for schedule, announced in {"cosine": True, "inverse_sqrt": False}.items():
        config = tiny_config(warmup_steps=2, schedule=schedule)
        config_lib.save(config, tmp_path / "run" / "config.json")
        assert "schedule" not in resume(schedule=schedule)
        message = "training.steps was 6: the cosine schedule now falls to 0 after step 8, so"
        assert (message in resume(schedule=schedule, steps=8)) == announced


def test_data_may_move(tiny_config, tmp_path, capsys):
    (tmp_path / "old").mkdir()
    write_text_corpus(tmp_path / "old", 200)
    two, four = ({"steps": steps, "eval_sentences": 0} for steps in (2, 4))
    train(text_config(tiny_config, tmp_path / "old", **two), tmp_path / "run")
    (tmp_path / "old").rename(tmp_path / "new")
    train(text_config(tiny_config, tmp_path / "new", **four), tmp_path / "run")
    assert "resumed from step 2" in capsys.readouterr().err


@pytest.mark.smoke
def test_over_long_pairs_are_skipped_counted_and_reported(tiny_config, tmp_path, capsys):
    write_text_corpus(tmp_path, 200)
    for path in tmp_path.glob("*.*"):
        # First in the file, so that it is among the sentences that validation translates.
        bad = "word " * 100 + "\n" + ("\n" if path.suffix == ".en" else "text\n")
        path.write_text(bad + path.read_text(encoding="utf-8"), encoding="utf-8")
    train(text_config(tiny_config, tmp_path, steps=2), tmp_path / "run")
    said = capsys.readouterr().err
    assert "200 training pairs, 2 skipped (1 longer than 64 tokens, 1 with an empty side)" in said
    assert "200 validation pairs, 2 skipped" in said
    assert "(cased, 13a tokenizer)" in said


@pytest.mark.nightly
def test_each_shape_is_compiled_when_it_first_comes(tiny_config, tmp_path, monkeypatch, capsys):
    write_text_corpus(tmp_path, 200)
    for path in tmp_path.glob("*.*"):
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        longer = [" ".join([line] * (1 + i % 5)) for i, line in enumerate(lines)]
        path.write_text("\n".join(longer) + "\n", encoding="utf-8")
    often = {"steps": 30, "log_every": 1, "checkpoint_every": 30, "eval_every": 30}
    config = text_config(tiny_config, tmp_path, **often, eval_sentences=0)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, batching="buckets"))
    seen, counts, shapes = Compilations(), [], []
    to_devices, report = fitting.to_devices, fitting.Reporter.train
    monkeypatch.setattr(
        fitting,
        "to_devices",
        lambda *a: (shapes.append((a[1].src.shape, a[1].tgt_in.shape)), to_devices(*a))[1],
    )
    monkeypatch.setattr(
        fitting.Reporter, "train", lambda *a: (counts.append(seen.count), report(*a))[1]
    )
    with seen:
        train(config, tmp_path / "run")
    assert len(counts) == len(shapes) == 30
    assert 2 < len(set(shapes)) < 10
    # The first two steps compile other small programs, too.
    new = [shapes[i] not in shapes[:i] for i in range(2, 30)]
    assert [after - before for before, after in itertools.pairwise(counts[1:])] == new
    # Each is announced before.
    announced = re.findall(
        r"compiling the step for shape (\d+) of (\d+): ", capsys.readouterr().err
    )
    assert [int(number) for number, _ in announced] == [*range(1, len(set(shapes)) + 1)]
    assert all(int(total) >= len(set(shapes)) for _, total in announced)


def test_speed_is_compared_with_the_peak_where_it_is_known(
    tiny_config, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(fitting, "peak_flops", lambda kind: 5e11 if kind == "cpu" else None)
    config = tiny_config(steps=2, eval_sentences=0)
    train(config, tmp_path)
    (report,) = (r for r in read_metrics(tmp_path) if r["kind"] == "train")
    # Packed batches of 512 source and 512 target tokens have 8 rows of 64.
    flops = training_flops(config.model, 8, 64, 64)
    expected = flops / report["seconds_per_step"] / 1e12
    assert report["teraflops_per_second"] == pytest.approx(expected)
    assert report["mfu"] == pytest.approx(expected * 1e12 / (5e11 * jax.device_count()))
    assert re.search(r"  [\d.e-]+ TFLOP/s  MFU [\d.]+%  ", capsys.readouterr().err)


@pytest.mark.ci
def test_steps_are_profiled(tiny_config, tmp_path, capsys):
    state = train(tiny_config(steps=6, eval_sentences=0, profile="2:4"), tmp_path / "profiled")
    assert_equal_states(state, train(tiny_config(steps=6, eval_sentences=0), tmp_path / "plain"))
    assert "profiled up to step 4: open the perfetto_trace.json.gz" in capsys.readouterr().err
    assert len(list((tmp_path / "profiled" / "profile").rglob("*.xplane.pb"))) == 1
    (trace,) = (tmp_path / "profiled" / "profile").rglob("perfetto_trace.json.gz")
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    executions = [e for e in events if e.get("name", "").endswith("Execute (jit_train_step)")]
    per_device = collections.Counter(event["name"] for event in executions)
    assert per_device
    assert set(per_device.values()) == {2}  # steps 3 and 4
    assert len(events) < 100_000  # no Python calls


def test_hopeless_run_stops_and_keeps_its_good_checkpoint(tiny_config, tmp_path, monkeypatch):
    train(tiny_config(steps=2, eval_sentences=0), tmp_path)
    restore = Checkpoints.restore

    def poisoned(self, template):
        restored = restore(self, template)
        params = dict(restored.state.params)
        params["embedding"] = params["embedding"] * np.nan
        return restored._replace(state=restored.state._replace(params=params))

    monkeypatch.setattr(Checkpoints, "restore", poisoned)
    with pytest.raises(FloatingPointError, match=r"NaN or Inf for the last 18 steps.*of step 2\."):
        train(tiny_config(steps=40, log_every=10, checkpoint_every=20, eval_every=20), tmp_path)
    assert Checkpoints(tmp_path / "checkpoints").steps() == [2]


def test_finished_run_is_left_alone(tiny_config, uninterrupted, capsys):
    state, folder = uninterrupted
    before = read_metrics(folder)
    assert_equal_states(train(tiny_config(), folder), state)
    assert read_metrics(folder) == before
    assert "nothing to do: training.steps=6 are done" in capsys.readouterr().err
    config = (folder / "config.json").read_bytes()
    train(tiny_config(steps=5), folder)
    assert "nothing to do: training.steps=5 are done" in capsys.readouterr().err
    assert (folder / "config.json").read_bytes() == config  # step 6 was taken


def test_tensorboard_files_are_written(uninterrupted):
    pytest.importorskip("tensorboardX")
    assert list((uninterrupted[1] / "tensorboard").glob("events.out.tfevents.*"))
