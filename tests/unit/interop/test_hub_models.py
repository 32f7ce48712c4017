"""Models by their address, from a Hub on this machine: fetched once, and then used without it."""

import dataclasses
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from jaxformer import Generator, TrainingConfig, Translator
from jaxformer.cli import main
from jaxformer.errors import UserError
from jaxformer.files import model_path, run_path
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop.huggingface.importer import import_huggingface
from jaxformer.tasks.initialization import check_initialization
from jaxformer.version import __version__

from ... import printed

FIXTURES = pathlib.Path(__file__).parents[2] / "fixtures"
GPT2 = FIXTURES / "huggingface" / "gpt2"
RUN = FIXTURES / "workdir_0_3_0" / "run"
NAME = "someone/gpt2"
ADDRESS = f"hf://{NAME}"


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "outputs.npz"
    }


def downloads(hub):
    return [path for method, path in hub.calls if method == "GET" and "/resolve/" in path]


def test_a_model_of_transformers_is_imported_once(hub, tmp_path):
    commit = hub.publish(NAME, contents(GPT2))
    workdir = model_path(ADDRESS)
    assert workdir == tmp_path / "cache" / "models" / "someone--gpt2" / f"{commit}-{__version__}"
    assert len(downloads(hub)) == 3

    import_huggingface(GPT2, tmp_path / "run")
    expected = TrainedModel.load(tmp_path / "run")
    found = TrainedModel.load(ADDRESS)
    assert found.weights == f"imported from Hugging Face: {NAME}"
    assert found.config == expected.config
    jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)
    assert Generator.load(ADDRESS).tokenizer.sha256 == expected.tokenizer.sha256
    assert len(downloads(hub)) == 3
    assert len(list(workdir.parent.iterdir())) == 1


def test_a_fetched_model_needs_no_network(hub):
    commit = hub.publish(NAME, contents(GPT2))
    workdir = model_path(ADDRESS)
    hub.stop()

    assert model_path(ADDRESS) == workdir
    num_calls = len(hub.calls)
    assert model_path(f"{ADDRESS}@{commit}") == workdir
    assert len(hub.calls) == num_calls
    message = "/someone/other: cannot be downloaded, and is not in the cache: "
    with pytest.raises(UserError, match=message) as error:
        Translator.load("hf://someone/other")
    assert "\n" not in str(error.value)


def test_a_revision_is_a_model_of_its_own(hub):
    first = hub.publish(NAME, contents(GPT2))
    hub.publish(NAME, contents(FIXTURES / "huggingface" / "llama"), "v2")

    assert TrainedModel.load(ADDRESS).config.model.architecture == "gpt2"
    assert TrainedModel.load(f"{ADDRESS}@v2").config.model.architecture == "llama"
    assert TrainedModel.load(f"{ADDRESS}@{first}").config.model.architecture == "gpt2"

    hub.publish(NAME, contents(FIXTURES / "huggingface" / "llama"))
    assert TrainedModel.load(ADDRESS).config.model.architecture == "llama"


def test_a_flax_model_is_imported(hub):
    """The only weights of many repositories."""
    files = contents(GPT2) | contents(FIXTURES / "flax" / "huggingface" / "gpt2")
    del files["model.safetensors"]
    hub.publish(NAME, files | {"pytorch_model.bin": b"large"})

    assert TrainedModel.load(ADDRESS).config.model.architecture == "gpt2"
    assert not any("pytorch" in path for path in downloads(hub))


def test_a_run_of_jaxformer_is_used_as_it_is(hub):
    hub.publish(NAME, {**contents(RUN), "README.md": b"A card", "events.out": b"large"})
    workdir = model_path(ADDRESS)
    assert contents(workdir) == contents(RUN)
    assert not any(path.is_symlink() for path in workdir.rglob("*"))

    expected = TrainedModel.load(RUN)
    found = TrainedModel.load(ADDRESS)
    assert found.weights == expected.weights
    jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)


def test_a_marian_model_is_imported_as_such(hub):
    hub.publish(NAME, contents(FIXTURES / "marian" / "swish_tied"))
    assert TrainedModel.load(ADDRESS).weights == f"imported from Marian: {NAME}"


def test_commands_take_addresses(hub, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hub.publish(NAME, contents(GPT2))
    hub.publish("someone/run", contents(RUN))

    command = ["generate", "--workdir", ADDRESS, "--prompt", "the old house", "--tokens", "2"]
    assert main([*command, "--beam-size", "1"]) == 0
    assert capsys.readouterr().out.startswith("the old house")
    assert main(["quantize", "--workdir", ADDRESS, "--output", "int8"]) == 0
    assert "times smaller" in capsys.readouterr().out
    assert main(["import", "hf", ADDRESS, "--workdir", "imported"]) == 0
    assert "GPT2LMHeadModel" in capsys.readouterr().out

    # An image is not written to the cache.
    pytest.importorskip("matplotlib")
    assert main(["plot", "--workdir", "hf://someone/run"]) == 0
    assert (tmp_path / "learning_curve.png").is_file()
    assert contents(model_path("hf://someone/run")) == contents(RUN)


def test_the_page_is_executed(hub):
    hub.publish("openai-community/gpt2", contents(GPT2))
    hub.publish("Helsinki-NLP/opus-mt-en-de", contents(FIXTURES / "marian" / "swish_tied"))

    page = printed.DOCS / "hugging_face.md"
    [code] = [
        block.text
        for block in printed.blocks(page)
        if block.heading == "Models by name" and block.language == "python"
    ]
    names = {}
    exec(code, names)
    assert names["generator"].weights == "imported from Hugging Face: openai-community/gpt2"
    assert names["translator"].weights == "imported from Marian: Helsinki-NLP/opus-mt-en-de"


def test_a_run_begins_with_a_fetched_model(hub, tmp_path):
    """As one that begins with a workdir."""
    hub.publish(NAME, contents(GPT2))
    config = TrainedModel.load(ADDRESS).config
    training = TrainingConfig(init_from=ADDRESS)
    check_initialization(dataclasses.replace(config, training=training))


def test_two_processes_at_once_write_one_model(hub, monkeypatch):
    """The second one finds the folder of the first, and removes its own."""
    from jaxformer.interop import hub_models

    hub.publish(NAME, contents(RUN))
    copy_run = hub_models._copy_run

    def copy_slowly(folder, workdir):
        copy_run(folder, workdir)
        monkeypatch.setattr(hub_models, "_copy_run", copy_run)
        model_path(ADDRESS)  # of the other process, which began later and is faster

    monkeypatch.setattr(hub_models, "_copy_run", copy_slowly)
    workdir = model_path(ADDRESS)
    assert contents(workdir) == contents(RUN)
    assert list(workdir.parent.iterdir()) == [workdir]


def test_a_failed_import_leaves_nothing(hub, tmp_path):
    files = contents(GPT2)
    hub.publish(NAME, files | {"model.safetensors": b"damaged"})
    with pytest.raises(UserError, match=f"{ADDRESS}: .*expected a safetensors file"):
        model_path(ADDRESS)
    assert list((tmp_path / "cache" / "models" / "someone--gpt2").iterdir()) == []

    hub.publish(NAME, files)
    assert model_path(ADDRESS).is_dir()


def test_mistakes_are_explained(hub, capsys):
    hub.publish("a/empty", {"README.md": b""})
    hub.publish("a/other", {"config.json": b'{"model_type": "resnet"}'})
    hub.publish("a/pairs", {"config.json": b'{"model_type": "m2m_100"}'})
    hub.publish("a/run", {"config.json": b'{"model": {}}'})
    for address, message in [
        ("hf://", "hf://: expected hf://OWNER/NAME, or hf://OWNER/NAME@REVISION"),
        ("hf://a/b/c", "hf://a/b/c: expected hf://OWNER/NAME"),
        ("hf://../b", r"hf://\.\./b: expected hf://OWNER/NAME"),
        ("hf://a/none", "/a/none: expected a model, but there is none, or it is private; check"),
        ("hf://a/empty@v9", "/a/empty: expected a model, but there is none"),
        (
            "hf://a/empty",
            "/a/empty: expected a model of jaxformer or .*, but it has no config",
        ),
        ("hf://a/run", "/a/run: expected a run of jaxformer, but it has no identity.json"),
        ("hf://a/other", "hf://a/other: expected model_type to be marian or bert or .*: got 'resn"),
        ("hf://a/pairs", "hf://a/pairs: a model of many languages; convert it with jaxformer impo"),
    ]:
        with pytest.raises(UserError, match=message) as error:
            Translator.load(address)
        assert "\n" not in str(error.value)

    assert main(["translate", "--workdir", "hf://a/none"]) == 2
    assert "/a/none: expected a model, but there is none, or" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"hf://a/run is a model to read, .*init_from=hf://a/run$"):
        run_path("hf://a/run")


def test_addresses_need_the_package(hub, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"huggingface_hub.*pip install '\.\[interop\]'$"):
        Translator.load(ADDRESS)


def test_the_package_itself_imports_no_importer():
    """The scheme hf:// costs nothing until it is used."""
    code = "import sys, jaxformer; print([m for m in sys.modules if m.startswith('jaxformer.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['jaxformer.addresses', 'jaxformer.version']"
