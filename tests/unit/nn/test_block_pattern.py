import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.nn.block_pattern import BlockPattern
from jaxformer.nn.dropout import RowDropout
from jaxformer.nn.kernels import KeyValues, attend, attention, windowed_attention
from jaxformer.nn.keys import Keys

from ...multiplications import multiplications

SIZE = 3
LENGTH = 38
LENGTHS = (38, 30, 22, 5)  # the last one is short
SEGMENTS = (np.arange(LENGTH) < np.array(LENGTHS)[:, None]).astype(np.int32)
RNG = np.random.default_rng(0)


def counts_by_hand(length, num_random, draws):
    """Returns how often each token of a row sees each other one, by the paper's rules."""
    last = (length - 1) // SIZE
    counts = np.zeros((length, length), int)
    for query in range(length):
        for key in range(length):
            q = query // SIZE
            k = key // SIZE
            is_short = length <= (5 + 2 * num_random) * SIZE
            sees_all = is_short or q in (0, last)
            counts[query, key] = sees_all or abs(q - k) <= 1 or k in (0, last)
            if not sees_all:
                chosen = [int(draw * (last + 1)) for draw in draws[q]]
                counts[query, key] += chosen.count(k)
    return counts


@pytest.mark.parametrize("is_training", [False, True])
def test_tokens_see_what_the_paper_says(is_training):
    pattern = BlockPattern(SIZE, 1)
    draws = np.zeros((13, 1))
    if is_training:
        pattern = pattern.draw(jax.random.key(0), LENGTH)
        draws = np.asarray(pattern.draws)

    counts = jax.jit(lambda segments: pattern.counts(LENGTH, segments))
    found = np.asarray(counts(SEGMENTS))[:, 0]
    for row, length in zip(found, LENGTHS, strict=True):
        expected = counts_by_hand(length, num_random=1, draws=draws)
        np.testing.assert_array_equal(row[:length, :length], expected)


def random_arrays(rows, length):
    shape = (rows, length, 2, 4)
    return [RNG.normal(size=shape).astype(np.float32) for _ in range(3)]


@pytest.mark.parametrize("segments", [SEGMENTS, None])
def test_the_efficient_kernel_computes_the_same(segments):
    queries, keys, values = random_arrays(4, LENGTH)
    pattern = BlockPattern(SIZE, 2).draw(jax.random.key(1), LENGTH)
    visible = Keys.of_sequence(LENGTH, segments, blocks=pattern)

    @jax.jit
    def both(queries, key_values):
        expected, _ = attend(queries, key_values, visible)
        return attention(queries, key_values, visible), expected

    found, expected = jax.device_get(both(queries, KeyValues(keys, values)))
    is_token = SEGMENTS != 0
    np.testing.assert_allclose(found[is_token], expected[is_token], rtol=1e-4, atol=1e-5)


def test_a_row_alone_attends_as_in_a_batch():
    queries, keys, values = random_arrays(4, LENGTH)

    def run(queries, keys, values, segments):
        visible = Keys.of_sequence(segments.shape[1], segments, blocks=BlockPattern(SIZE, 1))
        return attention(queries, KeyValues(keys, values), visible)

    run = jax.jit(run)
    together = run(queries, keys, values, SEGMENTS)
    for row, length in ((1, 30), (3, 5)):
        own = [array[row : row + 1, :length] for array in (queries, keys, values, SEGMENTS)]
        alone = run(*own)
        np.testing.assert_allclose(together[row, :length], alone[0], rtol=1e-4, atol=1e-5)


def test_the_cost_is_proportional_to_the_length():
    def cost(length):
        visible = Keys.of_sequence(length, blocks=BlockPattern(4, 1))
        shape = jax.ShapeDtypeStruct((1, length, 2, 4), jnp.float32)

        def run(queries, keys, values):
            return attention(queries, KeyValues(keys, values), visible)

        return multiplications(jax.make_jaxpr(run)(shape, shape, shape).jaxpr)

    assert cost(256) - cost(192) == cost(192) - cost(128)


def test_dropout_is_of_each_block():
    queries, keys, values = random_arrays(2, LENGTH)
    visible = Keys.of_sequence(LENGTH, blocks=BlockPattern(SIZE, 1))

    @jax.jit
    def run(queries, key_values):
        drop = RowDropout(jnp.array([1, 2], jnp.uint32), jnp.arange(2), 0.5)
        return attention(queries, key_values, visible, drop)

    # The mean over equal values is the sum of the weights that are kept.
    sums = np.asarray(run(queries, KeyValues(keys, np.ones_like(values))))[..., 0]
    assert abs(sums.mean() - 1) < 0.2
    assert len(np.unique(sums.round(5))) > 0.5 * sums.size


def test_other_kernels_refuse_blocks():
    queries, keys, values = random_arrays(1, 4)
    visible = Keys.of_sequence(4, blocks=BlockPattern(SIZE, 1))
    visible = dataclasses.replace(visible, window=1)
    with pytest.raises(UserError, match="windowed_attention: expected no blocks, a rule that it"):
        windowed_attention(queries, KeyValues(keys, values), visible)
