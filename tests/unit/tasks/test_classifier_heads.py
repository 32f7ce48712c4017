"""Masked heads of a classifier against heads without values, one text at a time, in NumPy."""

import itertools
from typing import Any

import flax.traverse_util
import jax
import numpy as np
import pytest

from jaxformer.config import Config
from jaxformer.data.labeled import LabeledConfig
from jaxformer.errors import UserError
from jaxformer.inference.parameter_arrays import abstract_params
from jaxformer.kinds.classification import CLASSIFICATION
from jaxformer.models.encoder import Encoder, EncoderConfig
from jaxformer.tasks.classification.classifier_heads import mask_classifier_heads, measure_labels
from jaxformer.tasks.classification.text_classifier import Classifier

MODEL = EncoderConfig(vocab_size=13, d_model=8, d_ff=8, num_heads=2, num_layers=2, max_length=8)
TEXTS = ["", *map("".join, itertools.product("abcde", repeat=2))]
LABELS = ["good", "bad"] * 13
PATH = ("encoder", "layers", "self_attention")
SILENT = (1, 0)  # the layer and the head, from 0, whose rows of the output projection are zero


class Letters:
    """A tokenizer whose tokens are the letters from a to e."""

    vocab_size = MODEL.vocab_size

    def __init__(self, *symbols):
        self.symbols = list(symbols)

    def encode_batch(self, texts):
        return [[8 + "abcde".index(letter) for letter in text] for text in texts]


def classifier(*symbols):
    random = np.random.default_rng(0)
    config = Config(model=MODEL, data=LabeledConfig(max_length=8))
    flat: Any = flax.traverse_util.flatten_dict(abstract_params(MODEL, CLASSIFICATION))
    for path, leaf in flat.items():
        # Random biases would give all texts one label.
        is_bias = path[-1].endswith("bias")
        values = np.zeros(leaf.shape) if is_bias else random.normal(size=leaf.shape)
        flat[path] = values.astype(np.float32)
    layer, head = SILENT
    flat[*PATH, "output"][layer, 4 * head : 4 * head + 4] = 0  # d_v is 4
    tokenizer: Any = Letters(*symbols)
    return Classifier(config, flax.traverse_util.unflatten_dict(flat), tokenizer)


logits_of = jax.jit(Encoder(MODEL).apply)


def quality(params):
    """Loss and accuracy from the logits of each text by itself."""
    losses = []
    correct = 0
    for text, label in zip(TEXTS, LABELS, strict=True):
        [ids] = Letters().encode_batch([text])
        tokens = np.array([[*ids, 1, 0, 0]])[:, :3]
        [logits] = np.asarray(logits_of({"params": params}, tokens), np.float64)
        true = ["bad", "good"].index(label)
        losses.append(np.log(np.exp(logits).sum()) - logits[true])
        correct += int(logits[true] > logits[1 - true])
    return np.mean(losses), 100 * correct / len(TEXTS)


def without_values(params, layer, head):
    flat: Any = flax.traverse_util.flatten_dict(jax.device_get(params))
    values = np.array(flat[*PATH, "value"])  # [L, D, H, V]
    values[layer, :, head] = 0
    flat[*PATH, "value"] = values
    return flax.traverse_util.unflatten_dict(flat)


def test_each_head_is_masked_alone_and_measured_on_all_texts():
    model = classifier("bad", "good")
    finished = []
    found = mask_classifier_heads(model, TEXTS, LABELS, report=finished.append)
    assert finished == [1] * 5
    assert found.whole == pytest.approx(quality(model.params), rel=1e-4)

    assert [head[:3] for head in found.without] == [
        ("encoder", layer, number) for layer in (1, 2) for number in (1, 2)
    ]
    for head, measured in found.without.items():
        place = (head.layer - 1, head.number - 1)
        expected = quality(without_values(model.params, *place))
        assert measured == pytest.approx(expected, rel=1e-4)
        if place == SILENT:
            assert measured == found.whole
        else:
            assert abs(measured.loss - found.whole.loss) > 1e-3
    assert len({measured.score for measured in found.without.values()}) > 1


def test_a_probability_that_float32_lacks_has_a_finite_loss():
    loss, accuracy = measure_labels(np.array([[1, 0], [0.5, 0.5]], np.float32), np.array([1, 0]))
    assert loss == pytest.approx((126 * np.log(2) + np.log(2)) / 2)
    assert accuracy == 50


def test_a_classifier_whose_only_label_cannot_be_wrong_is_refused():
    model = classifier("good")
    with pytest.raises(UserError, match="at least two labels, got one of 1"):
        mask_classifier_heads(model, TEXTS, ["good"] * len(TEXTS))
