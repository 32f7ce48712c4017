"""A Hugging Face Hub on this machine."""

import pytest

from .local_hub import TOKEN, LocalHub


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Takes the place of the Hub for huggingface_hub; caches are in the test's folder."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("JAXFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)

    server = LocalHub()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    address = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address)
    yield server
    server.stop()
