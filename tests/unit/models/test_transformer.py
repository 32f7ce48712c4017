"""The Transformer: parameter counts, masking, packing, and decoding with a cache."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.config import ModelConfig
from jaxformer.inference.weights import prepare_params
from jaxformer.models.transformer import Transformer

TINY = ModelConfig(
    vocab_size=37, d_model=16, d_ff=24, num_heads=4, d_k=3, d_v=5, num_layers=1, max_length=32
)
DEEP = dataclasses.replace(TINY, num_layers=2)


def variant(**changes):
    return dataclasses.replace(TINY, **changes)


def random_tokens(seed, batch, length, vocab_size=37):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.integers(3, vocab_size, (batch, length)), jnp.int32)


class Model:
    """A model whose calls are compiled once, which is faster than op by op."""

    def __init__(self, config):
        self.module = Transformer(config)
        static = ("method", "deterministic", "mutable", "num_beams", "capacity")
        self.apply = jax.jit(self.module.apply, static_argnames=static)


@functools.cache
def make(config, seed=0):
    """Returns a model, and parameters perturbed away from symmetric initial values."""
    model = Model(config)
    tokens = jnp.ones((1, 1), jnp.int32)
    shapes = jax.eval_shape(model.module.init, jax.random.key(0), tokens, tokens)
    rng = np.random.default_rng(seed)
    return model, jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(0, 0.3, leaf.shape), jnp.float32), shapes
    )


def count_parameters(config):
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    shapes = jax.eval_shape(Transformer(config).init, jax.random.key(0), tokens, tokens)
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def closed_formula(c):
    """Counts a tied embedding, attention without biases, two biases per FFN, two per layer norm."""
    attention = c.d_model * c.num_heads * (2 * c.key_size + 2 * c.value_size)
    feed_forward = 2 * c.d_model * c.d_ff + c.d_ff + c.d_model
    norm = 2 * c.d_model
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    final_norms = 2 * norm if c.norm_position == "pre" else 0
    positions = 2 * c.max_length * c.d_model if c.positions == "learned" else 0
    layers = c.num_layers * (encoder + decoder)
    return c.vocab_size * c.d_model + layers + final_norms + positions


def test_parameter_counts_of_the_paper():
    assert count_parameters(ModelConfig()) == 63_045_632
    assert count_parameters(ModelConfig(d_model=1024, d_ff=4096, num_heads=16)) == 214_171_648


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_heads": 1, "d_k": 512, "d_v": 512},
        {"num_heads": 32, "d_k": 16, "d_v": 16},
        {"d_k": 16},
        {"d_k": 32},
        {"num_layers": 2},
        {"num_layers": 8},
        {"d_model": 256, "d_k": 32, "d_v": 32},
        {"d_model": 1024, "d_k": 128, "d_v": 128},
        {"d_ff": 1024},
        {"positions": "learned"},
        {"norm_position": "pre"},
    ],
)
def test_parameter_counts_of_table_3_follow_the_formula(changes):
    config = dataclasses.replace(ModelConfig(), **changes)
    assert count_parameters(config) == closed_formula(config)


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_padding_leaks_nothing(norm_position):
    model, variables = make(variant(norm_position=norm_position))
    src, tgt = random_tokens(0, 2, 6), random_tokens(1, 2, 5)
    src_segments = jnp.ones((2, 6), jnp.int32).at[0, 4:].set(0)
    tgt_segments = jnp.ones((2, 5), jnp.int32).at[0, 3:].set(0)
    segments = {"src_segments": src_segments, "tgt_segments": tgt_segments}
    before = model.apply(variables, src, tgt, **segments)
    other_src, other_tgt = src.at[0, 4:].set(7), tgt.at[0, 3:].set(9)
    after = model.apply(variables, other_src, other_tgt, **segments)
    real = tgt_segments != 0
    np.testing.assert_array_equal(before[real], after[real])


def test_target_sees_no_later_token():
    model, variables = make(DEEP)
    src, tgt = random_tokens(0, 1, 6), random_tokens(1, 1, 8)
    before = model.apply(variables, src, tgt)
    for t in range(1, 8):
        other = tgt.at[0, t:].set(random_tokens(2, 1, 8 - t)[0])
        after = model.apply(variables, src, other)
        np.testing.assert_array_equal(before[0, :t], after[0, :t])
        assert (before[0, t:] != after[0, t:]).any()


def test_every_target_position_attends_to_the_whole_source():
    model, variables = make(TINY)
    src, tgt = random_tokens(0, 1, 6), random_tokens(1, 1, 4)
    before = model.apply(variables, src, tgt)
    for s in range(6):
        other = src.at[0, s].set(3 + (src[0, s] - 2) % 34)
        assert (model.apply(variables, other, tgt) != before).any(axis=-1).all()


def test_packed_segments_leak_nothing_and_equal_unpacked():
    model, variables = make(TINY)
    pairs = [(random_tokens(i, 1, 3 + i)[0], random_tokens(9 + i, 1, 5 - i)[0]) for i in range(3)]
    packed = {
        side: jnp.concatenate([pair[i] for pair in pairs])[None]
        for i, side in enumerate(["src", "tgt_in"])
    }
    arguments = {}
    for i, side in enumerate(["src", "tgt"]):
        lengths = [len(pair[i]) for pair in pairs]
        arguments[f"{side}_segments"] = jnp.repeat(jnp.arange(1, 4), jnp.array(lengths))[None]
        arguments[f"{side}_positions"] = jnp.concatenate([jnp.arange(n) for n in lengths])[None]
    together = model.apply(variables, **packed, **arguments)
    start = 0
    for src, tgt in pairs:
        alone = model.apply(variables, src[None], tgt[None])
        np.testing.assert_allclose(
            together[:, start : start + len(tgt)], alone, rtol=1e-5, atol=1e-5
        )
        start += len(tgt)
    other = {
        "src": jnp.where(arguments["src_segments"] == 2, 5, packed["src"]),
        "tgt_in": jnp.where(arguments["tgt_segments"] == 2, 5, packed["tgt_in"]),
    }
    changed = model.apply(variables, **other, **arguments)
    second = arguments["tgt_segments"] == 2
    np.testing.assert_array_equal(together[~second], changed[~second])
    assert (together[second] != changed[second]).any()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param({"norm_position": "pre"}, marks=pytest.mark.ci),
        pytest.param({"positions": "learned"}, marks=pytest.mark.ci),
        {"norm_position": "pre", "positions": "learned"},
        {"positions": "rotary", "d_k": 4},
        {"activation": "swish", "biases": True, "embeddings": "separate"},
    ],
)
def test_cached_decoding_equals_the_full_pass(changes):
    model, variables = make(variant(num_layers=2, **changes))
    src, tgt = random_tokens(0, 2, 6), random_tokens(1, 6, 7)
    src = src.at[1, 4:].set(0)
    beams = 3
    full = model.apply(variables, jnp.repeat(src, beams, axis=0), tgt)
    cache = model.apply(variables, src, num_beams=beams, capacity=7, method="start")
    for t in range(7):
        tokens = tgt[:, t].reshape(2, beams)
        logits, cache = model.apply(variables, tokens, cache, method="step")
        np.testing.assert_allclose(
            logits.reshape(6, -1), full[:, t], rtol=1e-5, atol=1e-5, err_msg=f"position {t}"
        )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param(
            {"norm_position": "pre", "positions": "learned", "biases": True},
            marks=pytest.mark.ci,
        ),
        pytest.param({"compute_dtype": "int8"}, marks=pytest.mark.ci),
    ],
)
@pytest.mark.parametrize("kept", [5, 3])
def test_prefill_equals_token_by_token(changes, kept):
    """Also if only some tokens are kept: the others are overwritten and never attended to."""
    config = variant(num_layers=2, **changes)
    model, variables = make(dataclasses.replace(config, compute_dtype="float32"))
    model = Model(config)
    variables = {"params": prepare_params(config, variables["params"])}
    src, prompt, rest = random_tokens(0, 2, 6), random_tokens(1, 2, 5), random_tokens(2, 2, 3)
    src = src.at[1, 4:].set(0)
    beams = 3

    def start():
        return model.apply(variables, src, num_beams=beams, capacity=9, method="start")

    def steps(tokens, cache):
        found = []
        for t in range(tokens.shape[1]):
            newest = jnp.broadcast_to(tokens[:, t], (beams, 2)).T
            if tokens is rest:  # Each beam continues with its own tokens.
                newest = (newest + jnp.arange(beams)) % 37
            logits, cache = model.apply(variables, newest, cache, method="step")
            found.append(logits)
        return jnp.stack(found, axis=2), cache

    expected, cache = steps(prompt[:, :kept], start())
    expected_rest, _ = steps(rest, cache)
    features, cache = model.apply(variables, prompt, start(), kept, method="prefill")
    logits = model.apply(variables, features, method="logits")[:, :kept]
    np.testing.assert_allclose(logits, expected[:, 0], rtol=1e-5, atol=1e-5)
    found_rest, _ = steps(rest, cache)
    np.testing.assert_allclose(found_rest, expected_rest, rtol=1e-5, atol=1e-5)


def test_embedding_is_shared_three_ways():
    model, variables = make(TINY)
    names = {"/".join(k.key for k in path) for path, _ in jax.tree.leaves_with_path(variables)}
    assert [name for name in names if "embedding" in name] == ["params/embedding"]
    src, tgt = random_tokens(0, 1, 4), random_tokens(1, 1, 4)
    features = jnp.ones((1, 4, 16))
    np.testing.assert_allclose(
        model.apply(variables, features, method="logits"),
        features @ variables["params"]["embedding"].T,
        rtol=1e-5,
    )
    gradient = jax.grad(lambda v: model.apply(v, src, tgt)[0, :, 3].sum())(variables)
    embedding = np.asarray(gradient["params"]["embedding"])
    used = {*src[0].tolist(), *tgt[0].tolist(), 3}  # As source, as target, as output.
    assert {i for i in range(37) if embedding[i].any()} == used


def test_separate_embeddings_have_one_use_each():
    model, variables = make(variant(embeddings="separate"))
    src, tgt = random_tokens(0, 1, 4), random_tokens(1, 1, 4)
    gradient = jax.grad(lambda v: model.apply(v, src, tgt)[0, :, 3].sum())(variables)["params"]
    used = {
        name: {i for i in range(37) if np.asarray(gradient[f"{name}_embedding"])[i].any()}
        for name in ("src", "tgt", "output")
    }
    assert used == {"src": {*src[0].tolist()}, "tgt": {*tgt[0].tolist()}, "output": {3}}


def test_target_may_have_fewer_ids_than_source():
    model, variables = make(variant(embeddings="separate", target_vocab_size=9, biases=True))
    src, tgt = jnp.array([[36, 20, 1]]), jnp.array([[2, 8]])
    logits = model.apply(variables, src, tgt)
    # The same as a vocabulary of 37 on both sides, whose first nine ids are compared.
    larger, padded = make(variant(embeddings="separate", biases=True))
    padded = {"params": {**padded["params"], **variables["params"]}}
    for name in ("tgt_embedding", "output_embedding", "logits_bias"):
        leaf = variables["params"][name]
        padding = [(0, 37 - 9)] + [(0, 0)] * (leaf.ndim - 1)
        padded["params"][name] = jnp.pad(leaf, padding, constant_values=3.0)
    assert logits.shape == (1, 2, 9)
    # Small logits are sums of larger terms, which a matmul of another width may round otherwise.
    expected = larger.apply(padded, src, tgt)[..., :9]
    np.testing.assert_allclose(logits, expected, rtol=1e-6, atol=1e-6)


def test_biases_are_added_to_what_they_are_named_after():
    model, variables = make(variant(biases=True))
    plain, _ = make(TINY)
    params = variables["params"]
    features = jnp.ones((1, 2, 16))
    np.testing.assert_allclose(
        model.apply(variables, features, method="logits"),
        plain.apply(variables, features, method="logits") + params["logits_bias"],
        rtol=1e-5,
        atol=1e-5,
    )
    without = jax.tree.map_with_path(
        lambda path, leaf: 0 * leaf if path[-1].key.endswith("_bias") else leaf, variables
    )
    src, tgt = random_tokens(0, 1, 4), random_tokens(1, 1, 4)
    # All other parameters are neutral. The paper has biases in the feed-forward network, too.
    np.testing.assert_allclose(
        model.apply(without, src, tgt), plain.apply(without, src, tgt), rtol=1e-5, atol=1e-5
    )
    assert (model.apply(variables, src, tgt) != model.apply(without, src, tgt)).all()


def test_embeddings_are_scaled_by_sqrt_d_model():
    model, variables = make(variant(dropout_rate=0.0))
    tokens = random_tokens(0, 1, 4)
    table = variables["params"]["embedding"]
    embedded = model.apply(variables, tokens, None, table, jnp.zeros((32, 16)), method="_embed")
    expected = np.asarray(table)[tokens] * 4.0
    np.testing.assert_allclose(embedded, expected, rtol=1e-6)


def test_recording_attention_weights_does_not_change_the_output():
    model, variables = make(DEEP)
    src, tgt = random_tokens(0, 2, 6), random_tokens(1, 2, 5)
    logits, recorded = model.apply(variables, src, tgt, mutable="intermediates")
    np.testing.assert_array_equal(logits, model.apply(variables, src, tgt))
    shapes = {
        "/".join(str(getattr(k, "key", "")) for k in path): leaf.shape
        for path, leaf in jax.tree.leaves_with_path(recorded["intermediates"])
    }
    assert shapes == {
        "encoder/layers/self_attention/weights/": (2, 2, 4, 6, 6),
        "decoder/layers/self_attention/weights/": (2, 2, 4, 5, 5),
        "decoder/layers/cross_attention/weights/": (2, 2, 4, 5, 6),
    }


def test_bfloat16_is_close_to_float32_and_keeps_float32_parameters():
    model, variables = make(TINY)
    src, tgt = random_tokens(0, 2, 6), random_tokens(1, 2, 5)
    exact = model.apply(variables, src, tgt)
    model = Model(variant(compute_dtype="bfloat16"))
    fresh = jax.eval_shape(model.module.init, jax.random.key(0), src, tgt)
    assert {leaf.dtype for leaf in jax.tree.leaves(fresh)} == {jnp.dtype("float32")}
    rough = model.apply(variables, src, tgt)
    assert rough.dtype == jnp.float32
    assert 0 < np.abs(rough - exact).max() < 0.1 * np.abs(exact).max()


def test_layers_differ_at_initialization():
    tokens = jnp.ones((1, 1), jnp.int32)
    params = jax.jit(Transformer(DEEP).init)(jax.random.key(0), tokens, tokens)["params"]
    query = params["encoder"]["layers"]["self_attention"]["query"]
    assert query.shape == (2, 16, 4, 3)
    assert (query[0] != query[1]).any()


def test_dropout_depends_on_the_row_id_only():
    model, variables = make(variant(dropout_rate=0.5))
    src, tgt = random_tokens(0, 4, 6), random_tokens(1, 4, 5)

    def run(rows):
        return model.apply(
            variables,
            src[jnp.asarray(rows)],
            tgt[jnp.asarray(rows)],
            row_ids=jnp.asarray(rows),
            deterministic=False,
            rngs={"dropout": jax.random.key(3)},
        )

    whole = run([0, 1, 2, 3])
    np.testing.assert_allclose(run([3, 1]), whole[jnp.array([3, 1])], rtol=1e-5, atol=1e-5)
    assert (whole != model.apply(variables, src, tgt)).any()


def test_too_long_sequences_are_refused():
    model, variables = make(TINY)
    with pytest.raises(ValueError, match="sequence of 33 tokens: the model allows at most 32"):
        model.apply(variables, random_tokens(0, 1, 33), random_tokens(1, 1, 3))


def test_works_under_vmap_and_grad():
    model, variables = make(TINY)
    src, tgt = random_tokens(0, 3, 6), random_tokens(1, 3, 5)
    one_by_one = jax.vmap(lambda s, t: model.apply(variables, s[None], t[None])[0])(src, tgt)
    np.testing.assert_allclose(one_by_one, model.apply(variables, src, tgt), rtol=1e-5, atol=1e-5)
