"""Downloads of models from a server on this machine that answers as the Hugging Face Hub does."""

import functools
import json
import pathlib
import sys

import pytest
from huggingface_hub import constants

from jaxformer.cli import main
from jaxformer.errors import UserError
from jaxformer.interop.hub import model_folder
from jaxformer.interop.huggingface.importer import FILES as HUGGINGFACE
from jaxformer.interop.marian.importer import FILES as MARIAN


def contents(folder):
    """Returns the content of each file of a folder, by its name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def fixture(name):
    """Returns the files of a model of the fixtures, without the outputs beside them."""
    files = contents(pathlib.Path(__file__).parents[2] / "fixtures" / name)
    del files["outputs.npz"]
    return files


FILES = fixture("marian/swish_tied")
NAME = pathlib.Path("Helsinki-NLP/opus-mt-en-de")
marian_folder = functools.partial(model_folder, files=MARIAN)


@pytest.fixture
def publish(server, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    address = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address)

    def publish(files):
        commit = server.commit
        info = json.dumps({"id": str(NAME), "sha": commit}).encode()
        api = f"/api/models/{NAME}"
        server.files = {f"{api}/revision/main": info, f"{api}/revision/v1": info}

        tree = []
        for name, content in files.items():
            server.files[f"/{NAME}/resolve/{commit}/{name}"] = content
            tree.append({"type": "file", "path": name, "size": len(content), "oid": name})
        server.files[f"{api}/tree/{commit}"] = json.dumps(tree).encode()

    return publish


def test_a_model_is_imported_by_its_name_and_downloaded_once(server, publish, tmp_path, capsys):
    publish(FILES | {"pytorch_model.bin": b"large", "tf_model.h5": b"larger"})
    command = ["import", "marian", f"https://huggingface.co/{NAME}"]
    assert main([*command, "--workdir", str(tmp_path / "run")]) == 0
    assert "68 tokens" in capsys.readouterr().out

    folder = marian_folder(NAME)
    assert contents(folder) == FILES
    requests = [path for path in server.requests if "/resolve/" in path]
    assert len(requests) == 2 * len(FILES)  # HEAD and GET
    assert marian_folder(pathlib.Path(f"{NAME}@v1")) == folder

    server.shutdown()
    server.server_close()  # no network
    assert marian_folder(NAME) == folder
    with pytest.raises(UserError, match=r"/a/b: cannot be downloaded, .*config\.json, .*: Got"):
        marian_folder(pathlib.Path("a/b"))


def test_the_weights_of_pytorch_are_the_second_choice(publish):
    files = dict(FILES)
    files["pytorch_model.bin"] = files.pop("model.safetensors")
    publish(files)

    assert (marian_folder(NAME) / "pytorch_model.bin").is_file()


def test_weights_may_be_in_several_files(publish):
    files = fixture("huggingface/llama_grouped")
    publish({**files, "model.gguf": b"large"})

    folder = model_folder(NAME, HUGGINGFACE)
    assert contents(folder) == files


def test_a_name_may_have_no_owner(server, publish, monkeypatch):
    """As the names of every tutorial; a folder of this name comes first."""
    old = pathlib.Path("opus-mt")
    monkeypatch.setattr(sys.modules[__name__], "NAME", old)
    publish(FILES)

    folder = marian_folder(old)
    assert contents(folder) == FILES
    assert marian_folder(pathlib.Path("opus-mt@v1")) == folder
    with pytest.raises(UserError, match=f"{server.url}/opus-nt: .* opus-nt, which is not a folder"):
        marian_folder(pathlib.Path("opus-nt"))

    old.mkdir()
    assert marian_folder(old) == old

    server.shutdown()
    server.server_close()  # no network
    for name in ("gpt2", "t5-small", "bert-base-uncased"):
        with pytest.raises(UserError, match=f"/{name}: cannot be downloaded, .* no folder {name};"):
            marian_folder(pathlib.Path(name))


def test_other_answers_are_explained(server, publish, monkeypatch):
    publish({"config.json": b"{}", "model.safetensors": b"large"})
    with pytest.raises(UserError, match=r"expected a Marian model, but it has no source\.spm"):
        marian_folder(NAME)
    assert not any("safetensors" in path for path in server.requests)

    with pytest.raises(UserError, match="expected a model, but there is none, or it is private"):
        marian_folder(pathlib.Path("a/b..c"))
    for error, message in (
        ("RepoNotFound", "expected a model, but there is none, or it is private; check the name"),
        ("GatedRepo", "its authors ask to accept their conditions; do so at this address"),
    ):
        server.error = error
        with pytest.raises(UserError, match=rf"{server.url}/a/b: .*{message}"):
            marian_folder(pathlib.Path("a/b"))

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"huggingface_hub.*pip install '\.\[interop\]'$"):
        marian_folder(NAME)
