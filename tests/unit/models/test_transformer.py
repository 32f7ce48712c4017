"""The Transformer: masking, packing, embeddings, and dropout.

All calls have one shape, so that each model is compiled once. A test of several changes makes one
in each row: rows are compared with the same row of another call, to which they must be identical.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxformer.config import ModelConfig
from jaxformer.errors import UserError
from jaxformer.kinds.translation import TRANSLATION
from jaxformer.models.t5 import T5Config
from jaxformer.models.transformer import Transformer

from ...profiles import by_profile
from ..nn.weights import random_params

TINY = ModelConfig(
    vocab_size=37,
    d_model=16,
    d_ff=24,
    num_heads=4,
    d_k=3,
    d_v=5,
    num_layers=1,
    max_length=32,
)
T5_TINY = T5Config(
    vocab_size=37,
    d_model=16,
    d_ff=24,
    num_heads=4,
    d_k=3,
    num_layers=1,
    num_buckets=4,
)
SEPARATE = dataclasses.replace(TINY, embeddings="separate", biases=True)
ROWS = 8
SOURCE = 9
TARGET = 10


def random_tokens(seed, *shape):
    rng = np.random.default_rng(seed)
    return rng.integers(3, 37, shape).astype(np.int32)


# One pair in every row.
SRC = random_tokens(0, 1, SOURCE).repeat(ROWS, axis=0)
TGT = random_tokens(1, 1, TARGET).repeat(ROWS, axis=0)


@functools.cache
def params_of(config):
    model = TRANSLATION.build(config)
    tokens = jnp.asarray(np.ones((1, 1), np.int32))
    return random_params(model, tokens, tokens)


@functools.cache
def compiled(config, **static):
    model = TRANSLATION.build(config)
    apply = functools.partial(model.apply, **static)
    return jax.jit(apply)


def logits_of(config, src, tgt, params=None, **segments):
    """Returns logits as a NumPy array; segments and positions default to one pair in each row."""
    for side, tokens in (("src", src), ("tgt", tgt)):
        one_segment = np.ones(tokens.shape, np.int32)
        positions = np.arange(tokens.shape[1], dtype=np.int32)
        of_each_row = np.broadcast_to(positions, tokens.shape)
        segments.setdefault(f"{side}_segments", one_segment)
        segments.setdefault(f"{side}_positions", of_each_row)

    if params is None:
        params = params_of(config)
    apply = compiled(config)
    logits = apply({"params": params}, src, tgt, **segments)
    return np.asarray(logits)


@pytest.mark.parametrize("norm_position", by_profile(["post"], nightly=["post", "pre"]))
def test_padding_leaks_nothing(norm_position):
    config = dataclasses.replace(TINY, norm_position=norm_position)
    src_lengths = np.arange(2, ROWS + 2)
    tgt_lengths = np.arange(3, ROWS + 3)[::-1]
    src_real = np.arange(SOURCE) < src_lengths[:, None]
    tgt_real = np.arange(TARGET) < tgt_lengths[:, None]
    segments = {
        "src_segments": src_real.astype(np.int32),
        "tgt_segments": tgt_real.astype(np.int32),
    }

    before = logits_of(config, SRC, TGT, **segments)
    other_src = np.where(src_real, SRC, 7)
    other_tgt = np.where(tgt_real, TGT, 9)
    after = logits_of(config, other_src, other_tgt, **segments)

    np.testing.assert_array_equal(before[tgt_real], after[tgt_real])


def test_target_sees_no_later_token():
    # From token n in row n - 1.
    first_changed = np.arange(1, ROWS + 1)
    changed = np.arange(TARGET) >= first_changed[:, None]
    others = 3 + (TGT - 2) % 34
    other_tgt = np.where(changed, others, TGT)

    before = logits_of(TINY, SRC, TGT)
    after = logits_of(TINY, SRC, other_tgt)

    differs = (before != after).any(axis=-1)
    np.testing.assert_array_equal(differs, changed)


def packed(side, lengths):
    """Returns segments and positions of three pairs of these lengths, the same in every row."""
    segments = np.repeat([1, 2, 3], lengths).astype(np.int32)
    positions = np.concatenate([np.arange(length) for length in lengths])
    positions = positions.astype(np.int32)
    return {
        f"{side}_segments": np.tile(segments, (ROWS, 1)),
        f"{side}_positions": np.tile(positions, (ROWS, 1)),
    }


def unpacked(tokens, lengths):
    """Returns tokens and segments with pair n in rows n, n + 3 and so on, and padding after it."""
    pairs = np.arange(ROWS) % 3
    starts = np.cumsum(lengths) - lengths
    packed_row = tokens[0]
    rows = [np.roll(packed_row, -start) for start in starts[pairs]]

    ends = lengths[pairs][:, None]
    real = np.arange(len(packed_row)) < ends
    return np.stack(rows), real.astype(np.int32)


@pytest.mark.parametrize("config", [TINY, T5_TINY])
def test_packed_segments_leak_nothing_and_equal_unpacked(config):
    src_lengths = np.array([2, 3, 4])
    tgt_lengths = np.array([5, 3, 2])
    together = packed("src", src_lengths) | packed("tgt", tgt_lengths)
    src, src_segments = unpacked(SRC, src_lengths)
    tgt, tgt_segments = unpacked(TGT, tgt_lengths)

    found = logits_of(config, SRC, TGT, **together)
    expected = logits_of(
        config,
        src,
        tgt,
        src_segments=src_segments,
        tgt_segments=tgt_segments,
    )

    pairs = together["tgt_segments"][0]
    for n, length in enumerate(tgt_lengths):
        of_pair = found[0, pairs == n + 1]
        np.testing.assert_allclose(of_pair, expected[n, :length], rtol=1e-5, atol=1e-5)

    # Changes of the second pair change the logits of this pair only.
    in_src = together["src_segments"] == 2
    in_tgt = together["tgt_segments"] == 2
    other_src = np.where(in_src, 5, SRC)
    other_tgt = np.where(in_tgt, 5, TGT)
    after = logits_of(config, other_src, other_tgt, **together)
    differs = (after != found).any(axis=-1)
    np.testing.assert_array_equal(differs, in_tgt)


def test_embedding_is_shared_three_ways():
    """A model with three equal tables, and with biases of zero, is the tied model."""
    params = params_of(TINY)
    tied = flatten_dict(params)
    separate = flatten_dict(params_of(SEPARATE))
    tables = [name for name in params if "embedding" in name]
    assert tables == ["embedding"]

    only_separate = separate.keys() - tied.keys()
    assert {path[-1] for path in only_separate} == {
        "query_bias",
        "value_bias",
        "key_bias",
        "output_bias",
        "logits_bias",
        "src_embedding",
        "tgt_embedding",
        "output_embedding",
    }

    zeros = {path: 0 * leaf for path, leaf in separate.items()}
    same = zeros | tied
    for side in ("src", "tgt", "output"):
        same[(f"{side}_embedding",)] = params["embedding"]

    found = logits_of(SEPARATE, SRC, TGT, params=unflatten_dict(same))
    expected = logits_of(TINY, SRC, TGT)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_biases_are_added_to_what_they_are_named_after():
    params = params_of(SEPARATE)
    before = logits_of(SEPARATE, SRC, TGT)

    # Any numbers, one for each token of the vocabulary.
    added = np.arange(37, dtype=np.float32)
    biased = params | {"logits_bias": params["logits_bias"] + added}
    after = logits_of(SEPARATE, SRC, TGT, params=biased)
    np.testing.assert_allclose(after, before + added, rtol=1e-5, atol=1e-5)

    # Softmax ignores what is added to all scores of a query, as biases of keys do.
    flat = flatten_dict(params)
    names = {path[-1] for path in flat}
    biases = {name for name in names if name.endswith("_bias")}
    for changed in biases - {"key_bias"}:
        other = dict(flat)
        for path, leaf in flat.items():
            if path[-1] == changed:
                other[path] = leaf + 1

        after = logits_of(SEPARATE, SRC, TGT, params=unflatten_dict(other))
        differs = (after != before).any(axis=-1)
        assert differs.all(), changed


def test_separate_embeddings_have_one_use_each():
    model = Transformer(SEPARATE)

    def logit(params, src, tgt):
        logits = model.apply({"params": params}, src, tgt)
        return logits[0, :, 3].sum()

    gradient_of = jax.jit(jax.grad(logit))
    gradients = gradient_of(params_of(SEPARATE), SRC[:1], TGT[:1])

    def used(name):
        gradient = np.asarray(gradients[f"{name}_embedding"])
        return set(np.flatnonzero(gradient.any(axis=1)))

    assert used("src") == {*SRC[0]}
    assert used("tgt") == {*TGT[0]}
    assert used("output") == {3}


def test_target_may_have_fewer_ids_than_source():
    """The logits are the first nine of a vocabulary of 37 on both sides."""
    config = dataclasses.replace(SEPARATE, target_vocab_size=9)
    tgt = TGT % 9
    params = params_of(config)
    larger = params_of(SEPARATE) | params
    for name in ("tgt_embedding", "output_embedding", "logits_bias"):
        others = params_of(SEPARATE)[name][9:]
        larger[name] = np.concatenate([params[name], others])

    found = logits_of(config, SRC, tgt)
    expected = logits_of(SEPARATE, SRC, tgt, params=larger)

    # Small logits are sums of larger terms, which a matmul of another width may round otherwise.
    np.testing.assert_allclose(found, expected[..., :9], rtol=1e-6, atol=1e-6)


def test_recording_attention_weights_does_not_change_the_output():
    variables = {"params": params_of(TINY)}

    record = compiled(TINY, mutable="intermediates")
    logits, recorded = record(variables, SRC, TGT)

    apply = compiled(TINY)
    np.testing.assert_array_equal(logits, apply(variables, SRC, TGT))

    shapes = {}
    for path, leaf in jax.tree.leaves_with_path(recorded["intermediates"]):
        keys = [str(getattr(key, "key", "")) for key in path]
        name = "/".join(keys)
        shapes[name] = leaf.shape
    assert shapes == {
        "encoder/layers/self_attention/weights/": (1, ROWS, 4, SOURCE, SOURCE),
        "decoder/layers/self_attention/weights/": (1, ROWS, 4, TARGET, TARGET),
        "decoder/layers/cross_attention/weights/": (1, ROWS, 4, TARGET, SOURCE),
    }


def test_bfloat16_is_close_to_float32_and_keeps_float32_parameters():
    config = dataclasses.replace(TINY, compute_dtype="bfloat16")
    model = Transformer(config)
    tokens = jnp.asarray(np.ones((1, 1), np.int32))

    fresh = jax.eval_shape(lambda: model.init(jax.random.key(0), tokens, tokens))
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(fresh)}
    assert dtypes == {np.dtype("float32")}

    exact = logits_of(TINY, SRC, TGT)
    rough = logits_of(config, SRC, TGT, params=params_of(TINY))
    assert rough.dtype == np.float32
    error = np.abs(rough - exact).max()
    assert 0 < error < 0.1 * np.abs(exact).max()


def test_dropout_depends_on_the_row_id_only():
    config = dataclasses.replace(TINY, dropout_rate=0.5)
    run = compiled(config, deterministic=False)
    variables = {"params": params_of(TINY)}

    def logits(row_ids):
        found = run(
            variables,
            SRC,
            TGT,
            row_ids=row_ids,
            rngs={"dropout": jax.random.key(3)},
        )
        return np.asarray(found)

    row_ids = np.arange(ROWS, dtype=np.int32)
    order = np.random.default_rng(0).permutation(row_ids)
    whole = logits(row_ids)

    np.testing.assert_allclose(logits(order), whole[order], rtol=1e-5, atol=1e-5)
    differs_from_first = (whole[1:] != whole[:1]).any(axis=(1, 2))
    assert differs_from_first.all()
    without = logits_of(TINY, SRC, TGT)
    assert (whole != without).any()


def test_too_long_sequences_are_refused():
    too_long = random_tokens(0, 1, 33)
    with pytest.raises(UserError, match="sequence of 33 tokens: the model allows at most 32"):
        random_params(Transformer(TINY), too_long, TGT[:1])
