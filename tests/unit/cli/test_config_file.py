"""Config files: mistakes in them, and fields that they choose."""

import pytest

from jaxformer.cli.config_file import load_config
from jaxformer.config import Config, save_config
from jaxformer.errors import UserError
from jaxformer.runs.run_directory import check_workdir
from jaxformer.runs.workdir import Workdir

NO_CONFIG = ": expected a function get_config that returns a config; add it or its return"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def get_config():\n    x = {}\n    return x['width']", ":3: KeyError: 'width'"),
        ("import no_module", ":1: ModuleNotFoundError: No module named 'no_module'"),
        (
            "from jaxformer import ModelConfig\n\nMODEL = ModelConfig(dmodel=3)\n",
            ":3: TypeError: ModelConfig.__init__() got an unexpected keyword argument 'dmodel'",
        ),
        ("x = 1", NO_CONFIG),
        ("def get_config():\n    pass\n", NO_CONFIG),
        ("def get_config(:\n", ":1: "),
        ("def get_config(variant): ...", ": TypeError: get_config() missing 1 required positional"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_line(code, words, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(code)
    for overrides in [], ["--config.model.d_model=8"]:
        with pytest.raises(UserError) as caught:
            load_config(str(path), overrides)
        assert str(caught.value).startswith(f"{path}{words}")
        assert "\n" not in str(caught.value)


# Chooses three sizes from a file; two of the choices can equal the values of get_config.
ADAPTED = """
import dataclasses, pathlib
from jaxformer.config import Config, TrainingConfig, to_config_dict

def get_config(variant=""):
    training = TrainingConfig(steps=100, warmup_steps=10, learning_rate=RATE)
    return to_config_dict(Config(training=training))

def adapt_config(config, variant, given):
    size = int(pathlib.Path("size").read_text())
    training, model = config.training, config.model
    if "training.steps" not in given:
        training = dataclasses.replace(training, steps=size)
    if "training.warmup_steps" not in given:
        training = dataclasses.replace(training, warmup_steps=training.steps // 10)
    if "model.vocab_size" not in given:
        model = dataclasses.replace(model, vocab_size=size)
    return dataclasses.replace(config, training=training, model=model)
"""


@pytest.fixture
def resume(tmp_path, monkeypatch):
    """Begins a run with a size and overrides; returns its config with other ones."""
    monkeypatch.chdir(tmp_path)

    def load(size, *words, rate="1e-3", workdir: str | None = "run"):
        (tmp_path / "size").write_text(str(size))
        (tmp_path / "mine.py").write_text(ADAPTED.replace("RATE", rate))
        return load_config("mine.py", [f"--config.{word}" for word in words], workdir)

    def resume(first, *words, began=(), place="run", **options):
        save_config(load(first, *began, workdir=None), tmp_path / place / "config.json")
        return load(options.pop("size", first), *words, **options)

    return resume


@pytest.mark.parametrize(
    ("began", "words", "size", "steps", "warmup", "vocab"),
    [
        ((), (), 300, 300, 30, 300),
        ((), (), 700, 300, 30, 300),  # The data has grown.
        ((), ("training.steps=900",), 300, 900, 30, 300),
        ((), ("training.steps=900", "training.warmup_steps=90"), 300, 900, 90, 300),
        ((), ("training.warmup_steps=7",), 300, 300, 7, 300),
        ((), ("model.vocab_size=44",), 300, 300, 30, 44),
        (("training.steps=50",), (), 300, 50, 5, 300),
        (("training.steps=50",), ("training.steps=60",), 300, 60, 5, 300),
        # The file's own values are what it now chooses.
        ((), (), 100, 300, 30, 300),
        ((), ("training.steps=40000",), 300, 40_000, 30, 300),
    ],
)
def test_a_resumed_run_keeps_what_the_file_chose(began, words, size, steps, warmup, vocab, resume):
    found = resume(300, *words, began=began, size=size)
    assert found.training.steps == steps
    assert found.training.warmup_steps == warmup
    assert found.model.vocab_size == vocab


def test_choices_that_equal_the_values_of_the_file_are_kept(resume):
    assert resume(100, size=300).training.steps == 100
    default = Config().model.vocab_size
    found = resume(300, size=default)
    assert (found.model.vocab_size, found.training.steps) == (300, 300)
    found = resume(default, size=300)
    assert (found.model.vocab_size, found.training.steps) == (default, default)


def test_the_mirror_has_the_choices_of_a_run_on_a_new_machine(resume):
    found = resume(300, "training.mirror=copy", size=700, place="copy")
    assert (found.model.vocab_size, found.training.steps) == (300, 300)


def test_choices_are_logged_and_an_edit_of_the_file_is_still_refused(resume, capsys, tmp_path):
    resumed = resume(300, "training.steps=900")
    assert capsys.readouterr().err == "run: keeps training.warmup_steps=30, as the run began\n"
    (tmp_path / "run" / "checkpoints").mkdir()
    check_workdir(Workdir(tmp_path / "run"), resumed)
    edited = resume(300, "training.steps=900", rate="2e-3")
    assert edited.training.warmup_steps == 30
    with pytest.raises(UserError, match=r"training\.learning_rate=0\.001, but 0.002 was given"):
        check_workdir(Workdir(tmp_path / "run"), edited)


def test_choices_that_contradict_an_override_name_the_run(resume):
    linear = "training.schedule=linear"
    with pytest.raises(UserError, match=r"^run: keeps what the run began with: .*got 30 and 20$"):
        resume(300, linear, "training.steps=20", began=(linear,))
