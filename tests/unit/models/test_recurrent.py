"""Bahdanau's model against NumPy: logits and attention, also of packed rows; its mistakes."""

import functools

import jax
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.inference.members import recorded_weights
from jaxformer.models.recurrent import Recurrent, RecurrentConfig
from jaxformer.nn.keys import Keys
from jaxformer.nn.recurrent import AttentiveGRU, BidirectionalGRU
from jaxformer.training.flops import training_flops

from ...multiplications import multiplications
from ..nn.weights import normal, random_params

CONFIG = RecurrentConfig(vocab_size=23, d_model=10, hidden_size=7, max_length=32)
MODEL = Recurrent(CONFIG)
SOURCES = [[5, 9, 4, 7, 1], [8, 3, 1]]
TARGETS = [[2, 6, 11, 13], [2, 9, 9, 20, 4, 17]]


def padded(rows):
    width = max(map(len, rows))
    return np.array([row + [0] * (width - len(row)) for row in rows], np.int32)


@functools.cache
def parameters():
    token = np.ones((1, 1), np.int32)
    return random_params(MODEL, token, token)


@functools.cache
def forward():
    @jax.jit
    def apply(params, src, tgt_in, packing):
        return MODEL.apply({"params": params}, src, tgt_in, **packing, mutable="intermediates")

    return apply


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru(state, inputs, gates, candidate):
    """Equations of appendix A.1.1, for one sentence."""
    size = len(state)
    z, r = np.split(sigmoid(inputs[: 2 * size] + state @ gates), 2)
    new = np.tanh(inputs[2 * size :] + (r * state) @ candidate)
    return (1 - z) * state + z * new


def numpy_translation(params, source, target):
    """Returns logits [T, V] and attention weights [T, S] of one pair, in float64."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    table = params["embedding"]
    encoder = params["encoder"]
    decoder = params["decoder"]

    read = {}
    for direction, order in (("forward", source), ("backward", source[::-1])):
        state = np.zeros(CONFIG.hidden_size)
        states = []
        for token in order:
            inputs = np.sqrt(CONFIG.d_model) * table[token] @ encoder[f"{direction}_input"]
            inputs = inputs + encoder[f"{direction}_bias"]
            matrices = (encoder[f"{direction}_gates"], encoder[f"{direction}_candidate"])
            state = gru(state, inputs, *matrices)
            states.append(state)
        read[direction] = states
    backward = read["backward"][::-1]
    annotations = np.concatenate([read["forward"], backward], axis=1)  # [S, 2 H]

    attention = decoder["cross_attention"]
    state = np.tanh(backward[0] @ decoder["first"] + decoder["first_bias"])
    logits = []
    weights_of_steps = []
    for token in target:
        hidden = np.tanh(state @ attention["query"] + annotations @ attention["key"])
        weights = np.exp(hidden @ attention["vector"])
        weights /= weights.sum()
        context = weights @ annotations

        embedded = np.sqrt(CONFIG.d_model) * table[token]
        inputs = embedded @ decoder["token_input"] + context @ decoder["context_input"]
        state = gru(state, inputs + decoder["input_bias"], decoder["gates"], decoder["candidate"])

        units = state @ decoder["state_output"] + embedded @ decoder["token_output"]
        units = units + context @ decoder["context_output"] + decoder["output_bias"]
        logits.append(np.maximum(units[::2], units[1::2]) @ table.T)
        weights_of_steps.append(weights)
    return np.array(logits), np.array(weights_of_steps)


def test_logits_and_attention_equal_numpy():
    """Also of padded rows."""
    logits, recorded = forward()(parameters(), padded(SOURCES), padded(TARGETS), {})
    weights = recorded_weights(MODEL, recorded, "decoder", "cross_attention")
    logits, weights = jax.device_get((logits, weights))
    assert weights.shape == (1, 2, 1, 6, 5)  # [L, B, H, T, S]

    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        expected, expected_weights = numpy_translation(parameters(), source, target)
        own = weights[0, row, 0, : len(target)]
        np.testing.assert_allclose(logits[row, : len(target)], expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(own[:, : len(source)], expected_weights, atol=1e-6)
        assert (own[:, len(source) :] == 0).all()


def test_packed_pairs_are_translated_as_alone():
    src = padded([SOURCES[0] + SOURCES[1]])
    tgt_in = padded([TARGETS[0] + TARGETS[1] + [0, 0]])
    packing = {
        "src_segments": np.repeat([1, 2], [5, 3])[None],
        "src_positions": np.r_[0:5, 0:3][None],
        "tgt_segments": np.repeat([1, 2, 0], [4, 6, 2])[None],
        "tgt_positions": np.r_[0:4, 0:6, 0, 0][None],
    }
    logits, _ = forward()(parameters(), src, tgt_in, packing)
    first, _ = numpy_translation(parameters(), SOURCES[0], TARGETS[0])
    second, _ = numpy_translation(parameters(), SOURCES[1], TARGETS[1])
    expected = np.concatenate([first, second])
    np.testing.assert_allclose(np.asarray(logits)[0, :10], expected, rtol=1e-5, atol=1e-5)


def test_operations_are_those_of_the_matmuls():
    rows, src_length, tgt_length = 2, 5, 4
    src = np.ones((rows, src_length), np.int32)
    tgt_in = np.ones((rows, tgt_length), np.int32)

    def apply(params):
        return MODEL.apply({"params": params}, src, tgt_in)

    counted = multiplications(jax.make_jaxpr(apply)(parameters()).jaxpr)
    assert 6 * counted == training_flops(CONFIG, rows, src_length, tgt_length)


def test_mistakes():
    x = normal(1, 3, 10)
    keys = Keys.of_sequence(3, window=1)
    encoder = BidirectionalGRU(d_model=10, size=7)
    message = "expected no window, since a recurrence reads the whole sentence"
    with pytest.raises(UserError, match=message):
        encoder.init(jax.random.key(0), x, keys)

    decoder = AttentiveGRU(d_model=10, size=7)
    with pytest.raises(UserError, match="expected causal keys"):
        decoder.init(jax.random.key(0), x, Keys.of_sequence(3), None)
    with pytest.raises(UserError, match="records encoder/self_attention"):
        recorded_weights(MODEL, {"intermediates": {}}, "encoder", "self_attention")
