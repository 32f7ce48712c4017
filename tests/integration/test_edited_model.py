"""An edited option of a model in ``config.json`` is noticed, though no array depends on it."""

import json
import shutil

import pytest

from jaxformer.errors import UserError
from jaxformer.experiment import train
from jaxformer.inference.conversions import average, quantize
from jaxformer.inference.translator import Translator
from jaxformer.inference.weights import load_model
from jaxformer.runs.workdir import Workdir

from ..runs import changed

# Options that no parameter shows, with another value.
EDITS = {
    "activation": "gelu",
    "norm_epsilon": 1e-3,
    "norm_position": "pre",
    "positions": "rotary",
    "max_length": 65,
    "num_heads": 4,
    "dropout_rate": 0.2,
    "attention_dropout_rate": 0.1,
}
# Arrays depend on these, so that the error may name an array instead.
SHOWN = ("norm_position", "num_heads")


@pytest.fixture(scope="module")
def trained(tiny_workdir, tmp_path_factory):
    run = shutil.copytree(tiny_workdir, tmp_path_factory.mktemp("edited") / "run")
    average(Workdir(run), 2)
    return run


def edit(run, **model):
    config = json.loads((run / "config.json").read_bytes())
    config["model"].update(model)
    (run / "config.json").write_text(json.dumps(config))
    return run


def test_edit_is_refused_however_it_is_loaded(trained, tmp_path, tiny_config):
    run = edit(shutil.copytree(trained, tmp_path / "run"), activation="gelu")
    other = changed(tiny_config(), model={"activation": "gelu"})

    for load in [
        lambda: load_model(run, weights="averaged"),
        lambda: load_model(run, weights="4"),
        lambda: average(Workdir(run), 1),
        lambda: quantize(run, tmp_path / "int8"),
        lambda: train(other, run),  # both configs were edited
    ]:
        with pytest.raises(UserError, match=r"model\.activation='relu', but the config has 'gelu'"):
            load()


def test_edit_is_refused_with_both_values(trained, tmp_path):
    for name, value in EDITS.items():
        run = shutil.copytree(trained, tmp_path / name)
        before = json.loads((run / "config.json").read_bytes())["model"][name]
        edit(run, **{name: value})

        with pytest.raises(UserError) as caught:
            Translator.load(run)
        message = str(caught.value)
        both_values = f"model.{name}={before!r}, but the config has {value!r}"
        if name in SHOWN:
            assert both_values in message or "found" in message
        else:
            assert both_values in message
