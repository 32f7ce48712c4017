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
    vocab_size=37, d_model=16, d_ff=24, num_heads=4, d_k=3, d_v=5, num_layers=1, max_length=32
)
T5_TINY = T5Config(
    vocab_size=37, d_model=16, d_ff=24, num_heads=4, d_k=3, num_layers=1, num_buckets=4
)
SEPARATE = dataclasses.replace(TINY, embeddings="separate", biases=True)
ROWS, SOURCE, TARGET = 8, 9, 10


def random_tokens(seed, *shape):
    return np.random.default_rng(seed).integers(3, 37, shape).astype(np.int32)


# One pair in every row.
SRC = random_tokens(0, 1, SOURCE).repeat(ROWS, axis=0)
TGT = random_tokens(1, 1, TARGET).repeat(ROWS, axis=0)


@functools.cache
def params_of(config):
    tokens = jnp.asarray(np.ones((1, 1), np.int32))
    return random_params(TRANSLATION.build(config), tokens, tokens)


@functools.cache
def compiled(config, **static):
    return jax.jit(functools.partial(TRANSLATION.build(config).apply, **static))


def logits_of(config, src, tgt, params=None, **segments):
    """Returns logits as a NumPy array; segments and positions default to one pair in each row."""
    for side, tokens in (("src", src), ("tgt", tgt)):
        segments.setdefault(f"{side}_segments", np.ones(tokens.shape, np.int32))
        positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
        segments.setdefault(f"{side}_positions", positions)
    params = params_of(config) if params is None else params
    return np.asarray(compiled(config)({"params": params}, src, tgt, **segments))


@pytest.mark.parametrize("norm_position", by_profile(["post"], nightly=["post", "pre"]))
def test_padding_leaks_nothing(norm_position):
    config = dataclasses.replace(TINY, norm_position=norm_position)
    segments = {
        "src_segments": np.arange(SOURCE) < np.arange(2, ROWS + 2)[:, None],
        "tgt_segments": np.arange(TARGET) < np.arange(3, ROWS + 3)[::-1, None],
    }
    segments = {name: mask.astype(np.int32) for name, mask in segments.items()}
    before = logits_of(config, SRC, TGT, **segments)
    other_src = np.where(segments["src_segments"], SRC, 7)
    after = logits_of(config, other_src, np.where(segments["tgt_segments"], TGT, 9), **segments)
    real = segments["tgt_segments"] != 0
    np.testing.assert_array_equal(before[real], after[real])


def test_target_sees_no_later_token():
    changed = np.arange(TARGET) >= np.arange(1, ROWS + 1)[:, None]  # From token n in row n - 1.
    before = logits_of(TINY, SRC, TGT)
    after = logits_of(TINY, SRC, np.where(changed, 3 + (TGT - 2) % 34, TGT))
    np.testing.assert_array_equal((before != after).any(axis=-1), changed)


@pytest.mark.parametrize("config", [TINY, T5_TINY])
def test_packed_segments_leak_nothing_and_equal_unpacked(config):
    lengths = {"src": np.array([2, 3, 4]), "tgt": np.array([5, 3, 2])}  # Of three pairs.
    packed, alone = {}, {}
    for side, tokens in (("src", SRC), ("tgt", TGT)):
        sizes = lengths[side]
        rows = np.arange(ROWS)[:, None]
        packed[f"{side}_segments"] = np.repeat([[1, 2, 3]] * ROWS, sizes, axis=1)
        packed[f"{side}_positions"] = np.concatenate([np.arange(n) for n in sizes])[None] + 0 * rows
        # Pair n in row n, with padding after it.
        starts = (np.cumsum(sizes) - sizes)[np.arange(ROWS) % 3]
        alone[side] = np.stack([np.roll(tokens[0], -start) for start in starts])
        real = np.arange(tokens.shape[1]) < sizes[np.arange(ROWS) % 3][:, None]
        alone[f"{side}_segments"] = real.astype(np.int32)
    packed = {name: array.astype(np.int32) for name, array in packed.items()}
    together = logits_of(config, SRC, TGT, **packed)
    expected = logits_of(config, **alone)
    for n in range(3):
        found = together[0, packed["tgt_segments"][0] == n + 1]
        np.testing.assert_allclose(found, expected[n, : len(found)], rtol=1e-5, atol=1e-5)
    second = {side: packed[f"{side}_segments"] == 2 for side in lengths}
    other = np.where(second["src"], 5, SRC), np.where(second["tgt"], 5, TGT)
    changed = (logits_of(config, *other, **packed) != together).any(axis=-1)
    np.testing.assert_array_equal(changed, second["tgt"])


def test_embedding_is_shared_three_ways():
    """A model with three equal tables, and with biases of zero, is the tied model."""
    params = params_of(TINY)
    assert [name for name in params if "embedding" in name] == ["embedding"]
    separate = flatten_dict(params_of(SEPARATE))
    same = {path: 0 * leaf for path, leaf in separate.items()} | flatten_dict(params)
    same |= {(f"{side}_embedding",): params["embedding"] for side in ("src", "tgt", "output")}
    assert {path[-1] for path in separate.keys() - flatten_dict(params).keys()} == {
        *("query_bias", "value_bias", "key_bias", "output_bias", "logits_bias"),
        *("src_embedding", "tgt_embedding", "output_embedding"),
    }
    found = logits_of(SEPARATE, SRC, TGT, unflatten_dict(same))
    np.testing.assert_allclose(found, logits_of(TINY, SRC, TGT), rtol=1e-5, atol=1e-5)


def test_biases_are_added_to_what_they_are_named_after():
    params = params_of(SEPARATE)
    before, added = logits_of(SEPARATE, SRC, TGT), np.arange(37, dtype=np.float32)
    biased = params | {"logits_bias": params["logits_bias"] + added}
    after = logits_of(SEPARATE, SRC, TGT, biased)
    np.testing.assert_allclose(after, before + added, rtol=1e-5, atol=1e-5)
    names = {path[-1].key for path, _ in jax.tree.leaves_with_path(params)}
    for changed in {name for name in names if name.endswith("_bias")} - {"key_bias"}:
        other = jax.tree.map_with_path(
            lambda path, leaf, changed=changed: leaf + 1 * (path[-1].key == changed), params
        )
        assert (logits_of(SEPARATE, SRC, TGT, other) != before).any(axis=-1).all(), changed


def test_separate_embeddings_have_one_use_each():
    def logit(params, src, tgt):
        return Transformer(SEPARATE).apply({"params": params}, src, tgt)[0, :, 3].sum()

    found = jax.jit(jax.grad(logit))(params_of(SEPARATE), SRC[:1], TGT[:1])
    used = {
        name: set(np.flatnonzero(np.asarray(found[f"{name}_embedding"]).any(axis=1)))
        for name in ("src", "tgt", "output")
    }
    assert used == {"src": {*SRC[0]}, "tgt": {*TGT[0]}, "output": {3}}


def test_target_may_have_fewer_ids_than_source():
    """The logits are the first nine of a vocabulary of 37 on both sides."""
    config = dataclasses.replace(SEPARATE, target_vocab_size=9)
    params, larger, tgt = params_of(config), dict(params_of(SEPARATE)), TGT % 9
    for name, leaf in params.items():
        if name in ("tgt_embedding", "output_embedding", "logits_bias"):
            leaf = np.concatenate([leaf, larger[name][9:]])
        larger[name] = leaf
    found = logits_of(config, SRC, tgt)
    # Small logits are sums of larger terms, which a matmul of another width may round otherwise.
    expected = logits_of(SEPARATE, SRC, tgt, larger)[..., :9]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_recording_attention_weights_does_not_change_the_output():
    variables = {"params": params_of(TINY)}
    logits, recorded = compiled(TINY, mutable="intermediates")(variables, SRC, TGT)
    np.testing.assert_array_equal(logits, compiled(TINY)(variables, SRC, TGT))
    shapes = {
        "/".join(str(getattr(k, "key", "")) for k in path): leaf.shape
        for path, leaf in jax.tree.leaves_with_path(recorded["intermediates"])
    }
    assert shapes == {
        "encoder/layers/self_attention/weights/": (1, ROWS, 4, SOURCE, SOURCE),
        "decoder/layers/self_attention/weights/": (1, ROWS, 4, TARGET, TARGET),
        "decoder/layers/cross_attention/weights/": (1, ROWS, 4, TARGET, SOURCE),
    }


def test_bfloat16_is_close_to_float32_and_keeps_float32_parameters():
    config = dataclasses.replace(TINY, compute_dtype="bfloat16")
    tokens = jnp.asarray(np.ones((1, 1), np.int32))
    fresh = jax.eval_shape(lambda: Transformer(config).init(jax.random.key(0), tokens, tokens))
    assert {leaf.dtype for leaf in jax.tree.leaves(fresh)} == {np.dtype("float32")}
    exact = logits_of(TINY, SRC, TGT)
    rough = logits_of(config, SRC, TGT, params_of(TINY))
    assert rough.dtype == np.float32
    assert 0 < np.abs(rough - exact).max() < 0.1 * np.abs(exact).max()


def test_dropout_depends_on_the_row_id_only():
    config = dataclasses.replace(TINY, dropout_rate=0.5)
    run = compiled(config, deterministic=False)

    def logits(row_ids):
        rngs = {"dropout": jax.random.key(3)}
        return np.asarray(run({"params": params_of(TINY)}, SRC, TGT, row_ids=row_ids, rngs=rngs))

    row_ids = np.arange(ROWS, dtype=np.int32)
    whole, order = logits(row_ids), np.random.default_rng(0).permutation(row_ids)
    np.testing.assert_allclose(logits(order), whole[order], rtol=1e-5, atol=1e-5)
    assert (whole[1:] != whole[:1]).any(axis=(1, 2)).all()
    assert (whole != logits_of(TINY, SRC, TGT)).any()


def test_too_long_sequences_are_refused():
    with pytest.raises(UserError, match="sequence of 33 tokens: the model allows at most 32"):
        random_params(Transformer(TINY), random_tokens(0, 1, 33), TGT[:1])
