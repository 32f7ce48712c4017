"""BERT's heads for spans, tags, scores and choices against transformers, and their training.

The fixtures are made by ``tests/fixtures/make_heads.py``.
"""

import functools
import json

import jax
import numpy as np
import pytest
import safetensors.numpy

from jaxformer import load_model
from jaxformer.interop.export import export_model

from .families import imported, relative_difference, write_model

pytest.importorskip("tokenizers")

NETWORKS = {"spans": "BertForQuestionAnswering", "tags": "BertForTokenClassification"}
METHODS = {"spans": "span_logits", "tags": "tag_logits"}


@functools.cache
def logits_of(head):
    """Returns our logits for the rows of a fixture, and its tokens and logits."""
    family = imported(f"bert_{head}")
    expected = family.outputs
    tokens = family.trained.tokenizer.our_ids[expected["tokens"]]
    types = expected["types"].astype(np.int32)

    model, params = load_model(family.workdir)
    apply = jax.jit(functools.partial(model.apply, method=METHODS[head]))
    found = apply({"params": params}, tokens, token_types=types)
    return np.asarray(found), tokens, expected[head]


@pytest.mark.parametrize("head", NETWORKS)
def test_logits_equal_transformers(head):
    found, tokens, expected = logits_of(head)
    if head in ("spans", "tags"):
        # Padding has no meaning in outputs of each token.
        is_token = tokens != 0
        found = found[is_token]
        expected = expected[is_token]
    assert relative_difference(found, expected) < 1e-5


@pytest.mark.parametrize(("head", "network"), NETWORKS.items())
def test_exports_are_the_files_of_the_import(head, network, tmp_path):
    folder = write_model(f"bert_{head}", tmp_path / "model")
    export_model("safetensors", imported(f"bert_{head}").workdir, tmp_path / "out")

    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    exported = safetensors.numpy.load_file(tmp_path / "out" / "model.safetensors")
    jax.tree.map(np.testing.assert_array_equal, exported, arrays)

    fields = json.loads((folder / "config.json").read_text())
    ours = json.loads((tmp_path / "out" / "config.json").read_text())
    assert ours["architectures"] == [network]
    for name in ("id2label", "problem_type"):
        if fields.get(name) is not None:
            assert ours[name] == fields[name]
