"""Downloads of models from a server on this machine that answers as the Hugging Face hub does."""

import hashlib
import http.server
import json
import pathlib
import threading

import pytest

from jaxformer.cli import main
from jaxformer.data import download
from jaxformer.errors import UserError
from jaxformer.interop.hub import marian_folder

FIXTURE = pathlib.Path(__file__).parents[2] / "fixtures" / "marian" / "swish_tied"
FILES = {path.name: path.read_bytes() for path in FIXTURE.iterdir() if path.name != "outputs.npz"}
NAME = pathlib.Path("Helsinki-NLP/opus-mt-en-de")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.ThreadingHTTPServer):
    """A hub with one model; tests may change ``files`` and ``listing``."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = dict(FILES)
        digest = hashlib.sha256(FILES["model.safetensors"]).hexdigest()
        siblings = [{"rfilename": name} for name in self.files]
        siblings[list(self.files).index("model.safetensors")]["lfs"] = {"sha256": digest}
        self.listing = {"sha": COMMIT, "siblings": siblings}
        self.requests = []


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
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

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch, tmp_path):
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


def test_a_model_is_imported_by_its_name_and_downloaded_once(hub, tmp_path, capsys, monkeypatch):
    command = ["import", "marian", f"https://huggingface.co/{NAME}"]
    assert main([*command, "--workdir", str(tmp_path / "run")]) == 0
    assert "68 tokens" in capsys.readouterr().out
    folder = tmp_path / "cache" / "hub" / NAME / COMMIT
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    hub.requests.clear()
    assert marian_folder(NAME).samefile(folder)
    assert hub.requests == [f"/api/models/{NAME}?blobs=true"]
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # no network
    assert marian_folder(NAME).samefile(folder)


def test_damaged_weights_are_refused(hub, tmp_path):
    hub.files["model.safetensors"] = hub.files["model.safetensors"][:-1] + b"x"
    with pytest.raises(UserError, match=r"model\.safetensors: .*expected SHA-256"):
        marian_folder(NAME)
    assert not list((tmp_path / "cache").rglob("model.safetensors"))


def test_other_answers_are_refused(hub):
    other = r"listing.json: expected|as the Hugging Face hub lists"
    files = [{"rfilename": "config.json"}, {"rfilename": "tokenizer.json"}]
    for listing, message in (
        ([], other),
        ({"sha": "../..", "siblings": []}, other),
        ({"sha": COMMIT, "siblings": files}, r"expected a Marian model, but it has no source\.spm"),
    ):
        hub.listing = listing
        with pytest.raises(UserError, match=message):
            marian_folder(NAME)
