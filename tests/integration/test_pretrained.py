"""The model that comes with the package."""

import hashlib
import json
import pathlib
import re
import subprocess
import sys
from unittest.mock import Mock

import jax
import optax
import pytest

from jaxformer import Config, Task, UserError, fit, load_model, pretrained, quantize, train
from jaxformer.config import read_config
from jaxformer.evaluation.bleu_report import translation_report
from jaxformer.inference.translator import Translator
from jaxformer.nn.precision import dequantize
from jaxformer.runs.workdir import Workdir


def test_it_is_small_and_names_no_place_of_the_machine_that_trained_it():
    files = [path for path in pretrained.WORKDIR.parent.rglob("*") if path.suffix != ".pyc"]
    contents = [path.read_bytes() for path in files if path.is_file()]
    assert sum(map(len, contents)) <= 8_000_000

    config = json.loads((pretrained.WORKDIR / "config.json").read_text())
    assert config["data"]["train"] == "distilled:1,variants:1"
    for content in contents:
        for place in (b"/work", b"/tmp", b"/root", b"/home"):
            assert place not in content


def test_translates_without_a_workdir(tmp_path):
    """In a process of its own, however the text is typed; lines without visible text stay blank."""
    same = [
        "Where is the station?",
        "\ufeffWhere\u00a0 is\u3000the sta\u00adtion\uff1f\r",
        "\u200b Where\tis\u202fthe \u2009station?\u00a0 ",
        "Where is the\x85station\u2060?",
    ]

    found = subprocess.run(
        [sys.executable, "-m", "jaxformer", "translate"],
        input="\n".join([*same, "\u3000\u200b\t\u00ad", "I love you \U0001f642.", ""]),
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )

    assert found.stdout.startswith("Wo ist der Bahnhof?\n" * len(same) + "\nIch liebe dich")
    # XLA of JAX 0.10 writes before it when it loads a compiled program.
    assert f"the {pretrained.DESCRIPTION}; --workdir names another\n" in found.stderr
    (note,) = [line for line in found.stderr.split("\n") if line.startswith("note: ")]
    assert note.startswith("note: standard input:6: '\U0001f642' (U+1F642) is not in the voc")
    assert list(tmp_path.iterdir()) == []


def test_its_name_is_read_in_python_but_not_written(tmp_path, monkeypatch):
    """A folder of that name has another path, as in training.init_from."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pretrained").mkdir()
    expected = read_config(Workdir(pretrained.WORKDIR))
    translator = Translator.load("pretrained")
    model, params = load_model("pretrained")
    assert translator.config == expected
    assert model.config == expected.model

    shapes = jax.eval_shape(dequantize, params)
    size = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    words = f"a model of sentence pairs, {size:,} parameters, quantized from step 500"
    assert repr(translator) == f"<Translator: {words}, BeamSearch of 4>"

    for own in ("./pretrained", pathlib.Path("pretrained")):
        with pytest.raises(UserError, match=r"^pretrained/config.json: no such file; give"):
            load_model(own)

    for write in (
        lambda: train(Config(), "pretrained"),
        lambda: fit(Mock(spec=Task), optax.sgd(1.0), "pretrained"),
        lambda: quantize(pretrained.WORKDIR, "pretrained"),
    ):
        with pytest.raises(UserError, match=r"^pretrained is the model that comes with jaxformer"):
            write()

    assert list((tmp_path / "pretrained").iterdir()) == []


@pytest.mark.nightly
def test_the_score_on_its_card(real_data):
    folder = real_data("tatoeba-en-de")
    card = (pretrained.WORKDIR.parent / "README.md").read_text(encoding="utf-8")
    if hashlib.sha256((folder / "valid.en").read_bytes()).hexdigest() not in card:
        pytest.skip(f"{folder} has another edition of Tatoeba than the card")

    english = (folder / "valid.en").read_text(encoding="utf-8").split("\n")[:-1]
    german = (folder / "valid.de").read_text(encoding="utf-8").split("\n")[:-1]
    translations = Translator.load().translate(english)
    report = translation_report(translations, german, target_language="de")
    assert report.sacrebleu.score >= 36

    (given,) = re.findall(r"^\| sacreBLEU on the validation set \| (.*) \|$", card, flags=re.M)
    # Other CPUs round int8 activations differently.
    assert report.sacrebleu.score == pytest.approx(float(given), abs=0.2)
