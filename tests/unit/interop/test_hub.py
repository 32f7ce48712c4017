"""Downloads of models from a server on this machine that answers as the Hugging Face hub does."""

import hashlib
import http.server
import json
import pathlib
import threading
from collections.abc import Iterator

import pytest

from jaxformer.cli import main
from jaxformer.data import download
from jaxformer.errors import UserError
from jaxformer.files import lock_folder
from jaxformer.interop.hub import marian_folder

FIXTURE = pathlib.Path(__file__).parents[2] / "fixtures" / "marian" / "swish_tied"
FILES = {path.name: path.read_bytes() for path in FIXTURE.iterdir() if path.name != "outputs.npz"}
NAME = pathlib.Path("Helsinki-NLP/opus-mt-en-de")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.ThreadingHTTPServer):
    """A hub with one model; tests may change ``files`` and ``listing``."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = dict(FILES)
        digest = hashlib.sha256(FILES["model.safetensors"]).hexdigest()
        siblings: list[dict] = [{"rfilename": name} for name in self.files]
        siblings[list(self.files).index("model.safetensors")]["lfs"] = {"sha256": digest}
        self.listing: object = {"sha": COMMIT, "siblings": siblings}
        self.requests: list[str] = []


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Hub)
        self.server.requests.append(self.path)
        folder = f"/{NAME}/resolve/{COMMIT}/"
        content = self.server.files.get(self.path.removeprefix(folder))
        if self.path == f"/api/models/{NAME}?blobs=true":
            content = json.dumps(self.server.listing).encode()
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Iterator[Hub]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("JAXFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(download, "_PAUSE_SECONDS", 0)
    with Hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}/")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_model_is_imported_by_its_name(hub, tmp_path, capsys):
    command = ["import", "marian", f"https://huggingface.co/{NAME}"]
    assert main([*command, "--workdir", str(tmp_path / "run")]) == 0
    assert "68 tokens" in capsys.readouterr().out
    folder = tmp_path / "cache" / "hub" / NAME / COMMIT
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES


def test_what_is_there_is_not_downloaded_again(hub):
    marian_folder(NAME)
    hub.requests.clear()
    marian_folder(NAME)
    assert hub.requests == [f"/api/models/{NAME}?blobs=true"]


def test_weights_of_torch_are_taken_if_there_are_no_others(hub):
    hub.files["pytorch_model.bin"] = b"weights"
    hub.listing["siblings"] = [
        {"rfilename": name} for name in hub.files if name != "model.safetensors"
    ]
    folder = marian_folder(NAME)
    assert (folder / "pytorch_model.bin").read_bytes() == b"weights"
    assert not (folder / "model.safetensors").exists()


def test_a_local_folder_comes_first(hub, tmp_path):
    (tmp_path / NAME).mkdir(parents=True)
    assert marian_folder(NAME) == NAME
    assert marian_folder(tmp_path / "none") == tmp_path / "none"
    assert marian_folder(pathlib.Path("../opus")) == pathlib.Path("../opus")
    assert hub.requests == []


def test_damaged_weights_are_refused(hub, tmp_path):
    hub.files["model.safetensors"] = hub.files["model.safetensors"][:-1] + b"x"
    with pytest.raises(UserError, match=r"model\.safetensors: .*expected SHA-256"):
        marian_folder(NAME)
    assert not list((tmp_path / "cache").rglob("model.safetensors"))


@pytest.mark.parametrize(
    "listing", [[], {}, {"sha": "../..", "siblings": []}, {"sha": COMMIT, "siblings": [1]}]
)
def test_other_answers_are_refused(hub, listing):
    hub.listing = listing
    with pytest.raises(UserError, match=r"listing.json: expected|as the Hugging Face hub lists"):
        marian_folder(NAME)


def test_models_of_other_kinds_are_refused(hub):
    hub.listing["siblings"] = [{"rfilename": "config.json"}, {"rfilename": "tokenizer.json"}]
    with pytest.raises(UserError, match=r"expected a Marian model, but it has no source\.spm"):
        marian_folder(NAME)


def test_without_a_network_the_model_that_is_there_is_taken(hub, monkeypatch):
    folder = marian_folder(NAME)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert marian_folder(NAME) == folder


def test_two_processes_do_not_write_the_same_files(hub, tmp_path):
    with (
        lock_folder(tmp_path / "cache" / "hub" / NAME),
        pytest.raises(UserError, match="another process is writing here"),
    ):
        marian_folder(NAME)


def test_other_names_and_addresses_are_refused(hub, tmp_path, monkeypatch, capsys):
    assert marian_folder(pathlib.Path("modèles/opus")) == pathlib.Path("modèles/opus")
    monkeypatch.setenv("HF_ENDPOINT", "hf-mirror.com")
    with pytest.raises(UserError, match="HF_ENDPOINT: expected an address such as https://"):
        marian_folder(NAME)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").touch()
    assert main(["import", "marian", str(NAME), "--workdir", str(tmp_path / "run")]) == 2
    assert "expected a new workdir" in capsys.readouterr().err
    assert hub.requests == []


def test_without_a_network_the_message_names_the_files(hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"Without a network, get config.json, .* give that folder"):
        marian_folder(NAME)
