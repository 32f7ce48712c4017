"""BERT's heads for spans, tags, scores and choices against transformers, and their training.

The fixtures are made by ``tests/fixtures/make_heads.py``.
"""

import functools
import json

import jax
import numpy as np
import pytest
import safetensors.numpy

from jaxformer import Embedder, load_model, quantize, record_text
from jaxformer.errors import UserError
from jaxformer.interop.export import export_model

from .families import imported, relative_difference, write_model

pytest.importorskip("tokenizers")

METHODS = {
    "spans": "span_logits",
    "tags": "tag_logits",
    "score": "scores",
    "choice": "choice_logits",
}
HEADS = [f"bert_{head}" for head in METHODS]
FAMILIES = ["albert", "distilbert", "electra", "roberta", "roformer"]
NAMES = [*HEADS, *(f"{family}_{head}" for family in FAMILIES for head in ("spans", "tags"))]


@functools.cache
def logits_of(name):
    """Returns our logits for the rows of a fixture, and its tokens and logits."""
    family = imported(name)
    head = name.partition("_")[2]
    expected = family.outputs
    tokens = family.trained.tokenizer.our_ids[expected["tokens"]]
    types = expected["types"].astype(np.int32)

    model, params = load_model(family.workdir)
    apply = jax.jit(functools.partial(model.apply, method=METHODS[head]))
    found = apply({"params": params}, tokens, token_types=types)
    return np.asarray(found), tokens, expected[head]


@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_transformers(name):
    found, tokens, expected = logits_of(name)
    if name.endswith(("spans", "tags")):
        # Padding has no meaning in outputs of each token.
        is_token = tokens != 0
        found = found[is_token]
        expected = expected[is_token]
    assert relative_difference(found, expected) < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_exports_are_the_files_of_the_import(name, tmp_path):
    folder = write_model(name, tmp_path / "model")
    export_model("safetensors", imported(name).workdir, tmp_path / "out")

    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    exported = safetensors.numpy.load_file(tmp_path / "out" / "model.safetensors")
    assert exported.keys() == arrays.keys()
    for tensor, array in arrays.items():
        if "position_embeddings" in tensor:
            # RoBERTa's first two rows are of no token.
            is_read = exported[tensor].any(axis=1)
            assert is_read.sum() >= len(array) - 2
            array[~is_read] = 0
        np.testing.assert_array_equal(exported[tensor], array)

    fields = json.loads((folder / "config.json").read_text())
    ours = json.loads((tmp_path / "out" / "config.json").read_text())
    assert ours["architectures"] == fields["architectures"]
    for name in ("id2label", "problem_type"):
        if fields.get(name) is not None:
            assert ours[name] == fields[name]


@pytest.mark.parametrize("name", HEADS)
def test_attention_and_int8_work_with_every_head(name, tmp_path):
    workdir = imported(name).workdir
    view = record_text(workdir, "a dog runs")
    assert view.encoder is not None
    assert view.encoder.shape[:2] == (2, 2)  # layers and heads

    quantize(workdir, tmp_path / "int8")
    exact = Embedder.load(workdir).embed(["a dog runs"])
    rounded = Embedder.load(tmp_path / "int8").embed(["a dog runs"])
    assert 0 < relative_difference(rounded, exact) < 0.2


def test_a_model_without_the_head_is_refused():
    model, params = load_model(imported("bert_tags").workdir)
    tokens = np.ones((1, 2, 3), np.int32)
    for method, message in (
        ("span_logits", r"expected spans among model\.heads, got ''"),
        ("scores", "expected score among"),
        ("choice_logits", "expected choice among"),
    ):
        rows = tokens if method == "choice_logits" else tokens[0]
        with pytest.raises(UserError, match=message):
            model.apply({"params": params}, rows, method=method)

    model, params = load_model(imported("bert_spans").workdir)
    with pytest.raises(UserError, match=r"expected model\.num_tags above 0, got 0"):
        model.apply({"params": params}, tokens[0], method="tag_logits")
