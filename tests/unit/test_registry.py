"""A new layout is one file, in the folder where all others are."""

import pytest

from jaxformer.interop.huggingface import importer, layouts

NEW_LAYOUT = """
import dataclasses
from jaxformer.interop.huggingface.layouts.llama import LLAMA
OLMO = dataclasses.replace(LLAMA, model_type="olmo")
"""


@pytest.fixture
def add_file(tmp_path, monkeypatch):
    """Returns a function that adds a file to a package, until the test ends."""

    def add(package, name, text):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])

    return add


def test_layouts(add_file):
    all_types = "bert gpt2 llama m2m_100 mistral mt5 qwen2 t5 umt5 vit"
    assert " ".join(importer.known_layouts()) == all_types

    add_file(layouts, "added_layout", NEW_LAYOUT)
    known = importer.known_layouts()
    assert known.keys() - all_types.split() == {"olmo"}
    assert known["olmo"].section is known["llama"].section
