"""The page for users of transformers' Flax models against what the importer reads."""

import pathlib
import re

import pytest

pytest.importorskip("tokenizers")

from jaxformer.interop.huggingface.importer import known_layouts

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "from_flax.md"
# The folders of transformers 4.57 that have a modeling_flax_*.py.
FLAX = """
albert bart beit bert big_bird blenderbot blenderbot_small bloom clip dinov2 distilbert electra
encoder_decoder gemma gpt2 gpt_neo gptj llama longt5 marian mbart mistral mt5 opt pegasus regnet
resnet roberta roberta_prelayernorm roformer speech_encoder_decoder t5 vision_encoder_decoder
vision_text_dual_encoder vit wav2vec2 whisper xglm xlm_roberta
"""
HEADS = {
    "C": "ForSequenceClassification",
    "T": "ForTokenClassification",
    "Q": "ForQuestionAnswering",
    "M": "ForMaskedLM",
    "X": "ForMultipleChoice",
}


def rows():
    """Returns the cells of each row of the table of architectures."""
    table = PAGE.read_text(encoding="utf-8").partition("## The architectures")[2]
    found = []
    for line in table.splitlines():
        if line.startswith("| `Flax"):
            cells = line.strip("|").split("|")
            found.append([cell.strip() for cell in cells])
    return found


def types_in(text):
    """Returns the types of models that a text names."""
    return {name for name in re.findall("`([^`]+)`", text) if name in known_layouts()}


def test_every_flax_architecture_has_a_row():
    names = [re.sub("Flax|Model|[`…]", "", row[0]).lower() for row in rows()]
    assert sorted(names) == sorted(name.replace("_", "") for name in FLAX.split())


def test_every_known_type_is_named():
    text = PAGE.read_text(encoding="utf-8").partition("## The architectures")[2]
    assert types_in(text) == known_layouts().keys()


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0].strip("`…"))
def test_heads_are_those_of_the_importer(row):
    _, here, uses, difference = row
    types = types_in(here)
    if not types:
        # Another command reads it, or the row says why it is not read.
        assert "import marian" in here or (here == "no" and "not" in difference)
        return

    [model_type] = types
    tasks = known_layouts()[model_type].tasks
    letters = re.findall(r"\b[CTQMX]\b", uses)
    if letters:
        read = {letter for letter, task in HEADS.items() if task in tasks}
        assert set(letters) == read
