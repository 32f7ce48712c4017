"""Output and error messages of the commands on a small trained model, and of ``train.py``."""

import json
import pathlib
import re
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

from jaxformer.cli import main
from jaxformer.config import read_config
from jaxformer.experiment import make_task
from jaxformer.inference.conversions import average
from jaxformer.inference.translator import Translator
from jaxformer.inference.weights import load_model
from jaxformer.runs.checkpoints import Checkpoints
from jaxformer.runs.workdir import Workdir
from jaxformer.search import BeamSearch
from jaxformer.training.mesh import make_mesh

from ..runs import changed, write_lines

# A shorter maximum needs one program instead of two.
SHORT = BeamSearch(max_length=16)


@pytest.fixture
def refused(capsys):
    def refuse(arguments, *words):
        assert main([str(argument) for argument in arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert "Traceback" not in err
        (error,) = [line for line in err.split("\n") if line.startswith("error: ")]
        for word in words:
            assert word in error

    return refuse


@pytest.fixture
def copy(tiny_workdir, tmp_path):
    """A copy of a workdir with checkpoints of the steps 2, 4 and 6 that tests may damage."""
    return shutil.copytree(tiny_workdir, tmp_path / "copy")


def test_folder_without_a_run_is_refused(tmp_path, refused):
    for command in (["translate", "--input", __file__], ["average"], ["attention", "one"]):
        refused([*command, "--workdir", tmp_path], str(tmp_path), "give the workdir of a")
    refused(["plot", "--workdir", tmp_path], str(tmp_path), "metrics.jsonl: no such file")


def test_files_of_another_model_are_refused(learned_workdir, tmp_path, refused):
    tokenizer = "the tokenizer that the model was trained with, SHA-256"
    for file, old, new, words in (
        ("tokenizer.model", b"", b"\0", tokenizer),
        ("config.json", b'"d_ff": 64', b'"d_ff": 32', "inner"),
    ):
        run = shutil.copytree(learned_workdir, tmp_path / file)
        content = (run / file).read_bytes()
        assert old in content
        (run / file).write_bytes(content.replace(old, new, 1))

        refused(["translate", "--workdir", run, "--input", __file__], words, "expected")


def write_pair(folder, sources, references):
    source = folder / "in.en"
    reference = folder / "ref.de"
    write_lines(source, sources)
    write_lines(reference, references)
    return ["--source", str(source), "--reference", str(reference)]


def test_evaluate_names_every_metric(learned_workdir, tmp_path, capsys):
    sources = ["one hundred and two", "nine"]
    translator = Translator.load(learned_workdir, search=SHORT)
    translations = translator.translate(sources)
    files = write_pair(tmp_path, sources, translations)
    command = ["evaluate", "--workdir", str(learned_workdir), "--max-length", "16", *files]

    assert main(command) == 0
    table = capsys.readouterr().out
    for name in ("sacreBLEU", "chrF", "tokenized BLEU", "compound-split BLEU", "exact match"):
        assert f"\n{name} " in table

    output = tmp_path / "out.de"
    options = ["--json", "--output", str(output), "--language", "zh"]
    assert main([*command, *options]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["sacrebleu"]["method"].startswith("nrefs:1|case:mixed|eff:no|tok:zh")
    assert report["exact_match"]["score"] == 100
    written = output.read_text(encoding="utf-8").splitlines()
    assert written == translations


@pytest.mark.parametrize(
    ("sources", "references", "options", "words"),
    [
        (["one", "two"], ["eins"], [], ["expected as many lines in", "got 2 and 1"]),
        (["one", "nine " * 200], ["eins", "neun"], [], ["in.en:2: expected at most"]),
        (["one"], ["eins"], ["--output", "in.en"], ["is an input; name another file"]),
    ],
)
def test_mistakes_of_evaluate(
    sources, references, options, words, learned_workdir, tmp_path, monkeypatch, refused
):
    monkeypatch.chdir(tmp_path)
    files = write_pair(tmp_path, sources, references)

    command = ["evaluate", "--workdir", learned_workdir, *files, *options]
    refused(command, *words)
    assert (tmp_path / "in.en").read_text(encoding="utf-8").startswith("one\n")


def test_average_is_the_mean_and_becomes_the_default(copy, monkeypatch):
    check = Workdir.check_tokenizer
    reads = []

    def note(folder):
        reads.append(check(folder))

    monkeypatch.setattr(Workdir, "check_tokenizer", note)
    ensemble = Translator.load(copy, weights="2,4,6")
    assert ensemble.weights == "step 2, step 4, step 6"
    assert len(reads) == 1

    parts = [params["embedding"] for _, params in ensemble.models]
    model, params = load_model(copy, weights=4)
    assert model.config == Translator.load(copy).config.model
    np.testing.assert_array_equal(params["embedding"], parts[1])

    assert average(Workdir(copy), 3) == [2, 4, 6]
    averaged = Translator.load(copy)
    assert averaged.weights == "average of steps 2, 4, 6"
    mean = np.mean(parts, axis=0, dtype=np.float64)
    found = averaged.models[0].params["embedding"]
    np.testing.assert_allclose(found, mean, rtol=1e-6)
    assert Translator.load(copy, weights="latest").weights == "step 6"
    assert Translator.load(copy, weights="best").weights == "step 6"

    # An average is not the default if there is a newer checkpoint.
    shutil.rmtree(copy / "checkpoints" / "6")
    newest = Translator.load(copy)
    assert newest.weights == "step 4; --weights averaged gives an average of other steps"
    assert Translator.load(copy, weights="averaged").weights == "average of steps 2, 4, 6"


@pytest.fixture
def next_steps(learned_workdir, tmp_path):
    """Returns a function to a copy of the learned run, which adds later checkpoints to it."""
    folder = Workdir(shutil.copytree(learned_workdir, tmp_path / "next"))
    _, params = load_model(folder.path, weights="latest")

    def add(*scales):
        """Adds a step with the parameters times each scale; returns the workdir and the steps."""
        with Checkpoints(folder.checkpoints, keep=9) as checkpoints:
            newest = max(checkpoints.steps())
            numbers = range(1, len(scales) + 1)
            steps = [newest + number for number in numbers]
            metadata = checkpoints.restore_params(params).metadata
            for step, scale in zip(steps, scales, strict=True):
                scaled = jax.tree.map(lambda p, scale=scale: np.asarray(scale * p), params)
                checkpoints.save(step, {"params": scaled}, metadata=metadata)
        return folder.path, steps

    return add


@pytest.fixture
def averaged(capsys):
    """Averages the two newest steps; returns both losses and the last line of the output."""

    def run(workdir):
        assert main(["average", "--workdir", str(workdir), "--last", "2"]) == 0
        first, *comparison, last = capsys.readouterr().out.splitlines()
        assert first.startswith(f"{workdir}/averaged: average of steps ")

        numbers = re.findall(r" (\d+\.\d+) of ", comparison[0])
        losses = list(map(float, numbers))
        return losses, last

    return run


def loss_of(workdir, weights):
    """The loss of a validation without decoding, computed from the task of a run."""
    config = changed(read_config(Workdir(workdir)), training={"eval_sentences": 0})
    task = make_task(config, Workdir(workdir))
    mesh = make_mesh(devices=jax.devices()[:1])
    _, params = load_model(workdir, weights=weights)
    return task.evaluate(params, mesh, lambda: None)["loss"]


def test_an_average_that_is_better_becomes_the_default(next_steps, averaged):
    """The parameters of the run are the mean of 0.7 and 1.3 times them."""
    workdir, (first, last) = next_steps(0.7, 1.3)
    losses, line = averaged(workdir)

    expected = [loss_of(workdir, weights) for weights in ("latest", "averaged")]
    np.testing.assert_allclose(losses, expected, atol=1e-4)
    assert losses[1] < losses[0]

    assert line.startswith("  other commands use the average; --weights latest uses the newest")
    assert Translator.load(workdir).weights == f"average of steps {first}, {last}"


def test_an_average_that_is_worse_does_not_become_the_default(next_steps, averaged):
    workdir, (first, last) = next_steps(0.5, 1.0)
    losses, line = averaged(workdir)

    expected = [loss_of(workdir, weights) for weights in ("latest", "averaged")]
    np.testing.assert_allclose(losses, expected, atol=1e-4)
    assert losses[1] > losses[0]

    assert line == (
        f"  the average is worse, so other commands use step {last}; --weights averaged uses the "
        "average"
    )

    def chosen(**options):
        return Translator.load(workdir, **options).weights

    higher = f"step {last}; --weights averaged gives an average with a higher validation loss"
    assert chosen() == higher
    assert chosen(weights="averaged") == f"average of steps {first}, {last}"
    assert chosen(weights="latest") == f"step {last}"


def test_an_average_without_validation_data_was_not_compared(next_steps, capsys):
    workdir, (first, last) = next_steps(0.5, 1.0)
    config = json.loads((workdir / "config.json").read_text())
    config["data"] |= {"corpus": "text", "train": "moved/train", "valid": "moved/valid"}
    (workdir / "config.json").write_text(json.dumps(config))

    assert main(["average", "--workdir", str(workdir), "--last", "2"]) == 0
    _, reason, line = capsys.readouterr().out.splitlines()
    assert reason.startswith(
        "  the validation data cannot be read, so the average was not compared with step "
        f"{last}: moved/train.en: no such file"
    )
    assert line.startswith("  other commands use the average; --weights latest uses the newest")
    assert Translator.load(workdir).weights == f"average of steps {first}, {last}"


def test_missing_checkpoints_are_named(copy, refused):
    refused(
        ["attention", "one", "--workdir", copy, "--weights", "5"],
        "--weights must be averaged, best, latest, auto or one of the steps 2, 4, 6: got 5",
    )
    refused(
        ["average", "--workdir", copy, "--last", "7"],
        "expected 7 checkpoints to average, found 3; use --last 3, or train longer with "
        "--config.training.keep_checkpoints=7",
    )

    shutil.rmtree(copy / "checkpoints" / "6")  # The only step that was validated.
    refused(
        ["attention", "one", "--workdir", copy, "--weights", "best"],
        "no checkpoint has been validated yet; use --weights latest",
    )


def test_plot_writes_images(learned_workdir, tmp_path, capsys, refused):
    output = tmp_path / "curve.png"
    command = ["plot", "--workdir", str(learned_workdir), "--output", str(output)]
    assert main(command) == 0
    assert re.match(re.escape(str(output)), capsys.readouterr().out)
    assert output.read_bytes().startswith(b"\x89PNG")

    words = "--output: expected a name that ends in .png or .svg: got"
    refused(["plot", "--workdir", tmp_path, "--output", tmp_path / "curve.pdf"], words, ".pdf")


PROJECT = pathlib.Path(__file__).parents[2]
BASE = "--config=configs/base.py"
MULTI30K = "--config=configs/multi30k.py"
MISTAKES = [
    ("--config=configs/bas.py", "configs/bas.py: no such file; did you mean configs/base.py?"),
    (f"{BASE} --workdir=", "expected --workdir DIR"),
    (BASE, "wmt14-de-en/train-*.parquet: no such file ... jaxformer data wmt14"),
    (f"{MULTI30K} --config.data.train=gs://b/x", "data.train: expected a path on a local disk"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_mistakes_of_train(arguments, message, tmp_path, monkeypatch, refused):
    """In this process: train.py is only a call of this function."""
    workdir = tmp_path / "run"
    monkeypatch.chdir(PROJECT)
    monkeypatch.setenv("JAXFORMER_DATA", "/nonexistent")

    refused(["train", f"--workdir={workdir}", *arguments.split()], *message.split(" ... "))
    assert not workdir.exists()


def test_the_script_has_help_and_exit_codes(tmp_path):
    """A process that gets --coordinator ends in a way of its own."""

    def run(*arguments):
        command = [sys.executable, "train.py", *arguments]
        return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)

    shown = run("--help")
    assert shown.stdout.startswith("usage: python train.py NAME|FILE.py --workdir DIR ")
    assert "python train.py is the same as jaxformer train" in shown.stdout

    others = ("--coordinator=localhost:9", "--num_processes=2", "--process_id=2")
    refused = run("numerals", f"--workdir={tmp_path / 'run'}", *others)
    assert refused.returncode == 2
    assert "error: --coordinator=HOST:PORT needs" in refused.stderr
    assert "--process_id=0 to N-1: got localhost:9, 2 and 2" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "run").exists()
