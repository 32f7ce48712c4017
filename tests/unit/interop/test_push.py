"""Uploads to a Hub on this machine, and what the address of the upload then loads."""

import pathlib
import sys

import jax
import numpy as np
import pytest
import safetensors.numpy

from jaxformer import Generator, Translator
from jaxformer.cli import main
from jaxformer.errors import UserError
from jaxformer.inference.conversions import quantize
from jaxformer.inference.parameter_arrays import params_sha256
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop.huggingface.importer import import_huggingface
from jaxformer.interop.push import push_model

FIXTURES = pathlib.Path(__file__).parents[2] / "fixtures"
RUN = FIXTURES / "workdir_8c81d1e" / "run"
GPT2 = FIXTURES / "huggingface" / "gpt2"
NAME = "someone/model"
ADDRESS = f"hf://{NAME}"

# huggingface_hub 2.4.0 gives httpx the file as data (2026-11).
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>' to upload:DeprecationWarning")


def check_equal(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def commits(hub):
    return [path for _, path in hub.calls if "/commit/" in path]


def test_a_run_is_uploaded_and_loaded_by_its_address(hub, capsys):
    command = ["push", str(RUN), NAME, "--license", "apache-2.0"]
    assert main(command) == 0
    printed, errors = capsys.readouterr()
    assert errors == ""
    assert printed.startswith(f"{hub.url}/{NAME}: a run directory of jaxformer, 0.")
    assert f"jaxformer translate --workdir {ADDRESS}" in printed
    assert len(commits(hub)) == 1
    assert hub.private == {NAME: False}

    expected = TrainedModel.load(RUN)
    found = TrainedModel.load(ADDRESS)
    assert found.config == expected.config
    assert found.weights == "run, step 1200"
    check_equal(found.params, expected.params)

    sentences = ["two hundred and six", "nine"]
    translations = Translator.load(RUN).translate(sentences)
    assert Translator.load(ADDRESS).translate(sentences) == translations

    # The state of the optimizer stays here.
    names = hub.files(NAME).keys()
    assert {"README.md", "config.json", "identity.json", "metrics.jsonl"} < names
    size = sum(map(len, hub.files(NAME).values()))
    assert size < 1.5 * sum(leaf.nbytes for leaf in jax.tree.leaves(expected.params))


def test_an_imported_model_is_uploaded_in_its_own_layout(hub, tmp_path):
    import_huggingface(GPT2, tmp_path / "gpt2")
    pushed = push_model(tmp_path / "gpt2", NAME, private=True)
    assert pushed.format == "GPT2LMHeadModel of transformers"
    assert hub.private == {NAME: True}

    files = hub.files(NAME)
    assert {"config.json", "model.safetensors", "tokenizer.json"} < files.keys()
    found = safetensors.numpy.load(files["model.safetensors"])
    expected = safetensors.numpy.load_file(GPT2 / "model.safetensors")
    check_equal(found, expected)

    check_equal(TrainedModel.load(ADDRESS).params, TrainedModel.load(tmp_path / "gpt2").params)
    assert Generator.load(ADDRESS).weights == f"imported from Hugging Face: {NAME}"


def test_int8_is_uploaded_as_the_layout_can_store_it(hub, tmp_path):
    quantize(RUN, tmp_path / "int8")
    push_model(tmp_path / "int8", NAME)
    expected = TrainedModel.load(tmp_path / "int8")
    found = TrainedModel.load(ADDRESS)
    assert found.config.model.compute_dtype == "int8"
    check_equal(found.params, expected.params)

    import_huggingface(GPT2, tmp_path / "gpt2")
    quantize(tmp_path / "gpt2", tmp_path / "rounded")
    push_model(tmp_path / "rounded", "someone/rounded")
    rounded = TrainedModel.load(tmp_path / "rounded", dequantized=True)
    check_equal(TrainedModel.load("hf://someone/rounded").params, rounded.params)


def test_the_card_describes_the_model(hub, tmp_path):
    push_model(RUN, NAME, license="mit")
    header, card = hub.files(NAME)["README.md"].decode().removeprefix("---\n").split("---\n\n", 1)
    assert header.splitlines() == [
        'library_name: "jaxformer"',
        'tags: ["jaxformer", "transformer"]',
        'license: "mit"',
        'language: ["en", "de"]',
    ]
    digest = params_sha256(jax.device_get(TrainedModel.load(RUN).params))
    for text in (
        "# model\n",
        "| languages | en to de |",
        "| license | mit |",
        "| checkpoint | step 1200 |",
        f"| SHA-256 of the parameters | {digest} |",
        "| validation loss at step 1200 | 0.919 |",
        "| validation exact match at step 1200 | 92 |",
        f"translate with `jaxformer translate --workdir {ADDRESS}`",
        f'load_model("{ADDRESS}")',
    ):
        assert text in card

    import_huggingface(GPT2, tmp_path / "gpt2")
    push_model(tmp_path / "gpt2", "someone/gpt2")
    card = hub.files("someone/gpt2")["README.md"].decode()
    assert 'library_name: "transformers"' in card
    assert 'GPT2LMHeadModel.from_pretrained("someone/gpt2")' in card
    assert '"."' not in card
    assert "| license | (please fill in) |" in card


def test_an_update_replaces_all_files(hub, tmp_path):
    push_model(RUN, NAME)
    with pytest.raises(UserError, match=f"{hub.url}/{NAME}: exists already; give --update to re"):
        push_model(RUN, NAME)
    assert len(commits(hub)) == 1

    import_huggingface(GPT2, tmp_path / "gpt2")
    push_model(tmp_path / "gpt2", NAME, update=True)
    assert ".gitattributes" in hub.files(NAME)
    assert not any("checkpoints" in name for name in hub.files(NAME))
    assert TrainedModel.load(ADDRESS).config.model.architecture == "gpt2"


def test_a_branch_is_written_alone(hub):
    push_model(RUN, f"{NAME}@v2")
    assert hub.files(NAME).keys() == {".gitattributes"}
    assert "config.json" in hub.files(NAME, "v2")
    assert TrainedModel.load(f"{ADDRESS}@v2").weights == "run, step 1200"
    assert f"{ADDRESS}@v2" in hub.files(NAME, "v2")["README.md"].decode()


def test_mistakes_are_explained(hub, tmp_path, monkeypatch, capsys):
    def refused(message, name=NAME, **options):
        with pytest.raises(UserError, match=message) as error:
            push_model(RUN, name, **options)
        assert "\n" not in str(error.value)

    refused("^gpt2: expected the name of a model to upload, OWNER/NAME", name="gpt2")
    refused("^a/b/c: expected the name of a model to upload", name="a/b/c")
    refused("--license: expected an identifier, such as apache-2.0: got 'a: b'", license="a: b")
    with pytest.raises(UserError, match=r"nothing/config\.json: no such file"):
        push_model(tmp_path / "nothing", NAME)

    hub.refuses = True
    refused(f"{hub.url}/{NAME}: expected a token that may write there: it may not; set another")
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    refused(f"{hub.url}/{NAME}: expected a token that the Hub knows: it refuses this one; set")

    hub.stop()
    refused(f"{hub.url}/{NAME}: cannot be written: .*refused")
    assert main(["push", str(RUN), NAME]) == 2
    assert "cannot be written" in capsys.readouterr().err

    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    refused("expected a token of the Hugging Face Hub that may write: there is none; set HF_TOKEN")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refused(r"huggingface_hub, which uploads models; .*pip install '\.\[interop\]'$")
    assert hub.commits == {}
