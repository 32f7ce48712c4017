import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.nn.global_attention import GlobalAttention
from jaxformer.nn.keys import Keys

from ...multiplications import multiplications

D_MODEL = 8
HEADS = 2
RNG = np.random.default_rng(0)


def random_params(layer, keys, rows=1):
    x = jnp.zeros((rows, keys.queries.index.shape[1], D_MODEL))
    shapes = jax.eval_shape(lambda: layer.init(jax.random.key(0), x, keys, method="attend"))
    return jax.tree.map(lambda leaf: RNG.normal(size=leaf.shape).astype(np.float32), shapes)


def softmax(scores):
    odds = np.exp(scores - scores.max())
    return odds / odds.sum()


def by_hand(params, x, window, num_global, length):
    """Returns the output for one row, token by token."""
    p = params["params"]

    def projected(name, token):
        return np.einsum("d,dhk->hk", x[token], p[name]) + p[f"{name}_bias"]

    outputs = []
    for query in range(len(x)):
        is_global = query < num_global
        end = "_global" if is_global else ""
        seen = []
        for key in range(length):
            is_near = abs(query - key) <= window
            if is_global or is_near or key < num_global:
                seen.append(key)

        q = projected(f"query{end}", query)
        keys = np.array([projected(f"key{end}", key) for key in seen])  # [S, H, K]
        values = np.array([projected(f"value{end}", key) for key in seen])
        heads = []
        for head in range(HEADS):
            scores = keys[:, head] @ q[head] / np.sqrt(D_MODEL // HEADS)
            heads.append(softmax(scores) @ values[:, head])
        outputs.append(np.concatenate(heads) @ p["output"] + p["output_bias"])
    return np.array(outputs)


@pytest.mark.parametrize(("window", "num_global"), [(1, 1), (2, 3), (9, 2)])
def test_each_token_sees_what_the_paper_says(window, num_global):
    length = 12
    segments = np.array([[1] * 9 + [0] * 3, [1] * 12])
    keys = Keys.of_sequence(length, segments, window=window, global_tokens=num_global)
    layer = GlobalAttention(HEADS, use_bias=True)
    params = random_params(layer, keys, rows=2)

    x = RNG.normal(size=(2, length, D_MODEL)).astype(np.float32)
    run = jax.jit(lambda params, x: layer.apply(params, x, keys, method="attend")[0])
    found = run(params, x)
    for row, real in zip(range(2), (9, 12), strict=True):
        expected = by_hand(params, x[row], window, num_global, length=real)
        np.testing.assert_allclose(found[row, :real], expected[:real], rtol=1e-4, atol=1e-4)


def test_recorded_weights_are_of_all_tokens():
    keys = Keys.of_sequence(6, window=1, global_tokens=2)
    layer = GlobalAttention(HEADS)
    params = random_params(layer, keys)

    @jax.jit
    def record(params, x):
        return layer.apply(params, x, keys, method="attend", mutable=["intermediates"])[1]

    [weights] = record(params, np.ones((1, 6, D_MODEL), np.float32))["intermediates"]["weights"]
    assert weights.shape == (1, HEADS, 6, 6)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-5)
    assert (weights[0, :, :2] > 0).all()
    assert (weights[0, :, 3, 5] == 0).all()


def test_the_cost_is_proportional_to_the_length():
    layer = GlobalAttention(HEADS)

    def cost(length):
        keys = Keys.of_sequence(length, window=4, global_tokens=1)
        params = random_params(layer, keys)
        x = jnp.zeros((1, length, D_MODEL))
        traced = jax.make_jaxpr(lambda p, x: layer.apply(p, x, keys, method="attend")[0])(params, x)
        return multiplications(traced.jaxpr)

    assert cost(256) - cost(192) == cost(192) - cost(128)


def test_mistakes_are_refused():
    x = jnp.zeros((1, 4, D_MODEL))
    keys = Keys.of_sequence(4, window=1, global_tokens=1)
    rotary = GlobalAttention(HEADS, encode_positions=lambda heads, positions: heads)
    with pytest.raises(UserError, match="GlobalAttention: expected no encode_positions, which"):
        rotary.init(jax.random.key(0), x, keys, method="attend")
    with pytest.raises(UserError, match="GlobalAttention: expected neither a memory nor a cache"):
        GlobalAttention(HEADS).init(jax.random.key(0), x, keys, x, method="attend")
