"""The encoder of LongT5: its blocks, by brute force, and rows of several sources."""

import jax
import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.models.longt5 import LongT5, LongT5Config, blocks_of
from jaxformer.nn.keys import Tokens

SIZE = 3
LENGTHS = [7, 2, 3, 5]  # of the sources of a row, with 2 tokens of padding


def row():
    segments = np.repeat([*range(1, len(LENGTHS) + 1), 0], [*LENGTHS, 2])
    positions = np.concatenate([*map(np.arange, LENGTHS), [0, 0]])
    return segments[None].astype(np.int32), positions[None].astype(np.int32)


def test_tokens_are_in_the_whole_blocks_of_their_source():
    """Tokens after the last whole block belong to it; a source shorter than a block has none."""
    segments, positions = row()

    @jax.jit
    def find(segments, positions):
        return blocks_of(Tokens.of(segments.shape[1], segments, positions), SIZE)

    found = jax.device_get(find(segments, positions))
    of_token = found.of_token[0]

    expected = []
    for segment, position in zip(segments[0], positions[0], strict=True):
        whole = LENGTHS[segment - 1] // SIZE if segment else 0
        block = min(position // SIZE, whole - 1)
        expected.append((segment, block) if whole else None)

    for block, name in zip(of_token, expected, strict=True):
        assert (block < 0) == (name is None)
        if name is not None:
            assert (found.segments[0, block], found.numbers[0, block]) == name

    used = {block for block in of_token.tolist() if block >= 0}
    assert {i for i, segment in enumerate(found.segments[0].tolist()) if segment} == used


def test_sources_of_a_packed_row_are_encoded_as_alone():
    """The packed row is long enough for blocks of the window, and the sources are not."""
    config = LongT5Config(
        vocab_size=20,
        d_model=8,
        d_ff=16,
        num_heads=2,
        d_k=4,
        num_layers=2,
        local_radius=2,
        global_block_size=SIZE,
    )
    model = LongT5(config)
    segments, positions = row()
    tokens = np.random.default_rng(0).integers(4, 20, segments.shape) * (segments > 0)
    variables = jax.device_get(jax.jit(model.init)(jax.random.key(0), tokens, tokens))
    noise = np.random.default_rng(1)
    variables = jax.tree.map(lambda x: x + noise.normal(scale=0.3, size=x.shape), variables)

    encode = jax.jit(lambda *given: model.apply(variables, *given, method="encode"))
    packed = np.asarray(encode(tokens, segments, positions))
    for segment in range(1, len(LENGTHS) + 1):
        is_own = segments[0] == segment
        alone = np.zeros((1, 8), np.int32)
        alone[0, : is_own.sum()] = tokens[0, is_own]
        found = encode(alone, (alone > 0).astype(np.int32), np.arange(8)[None])
        expected = np.asarray(found)[0, : is_own.sum()]
        np.testing.assert_allclose(packed[0, is_own], expected, atol=1e-5)


def test_layers_share_a_bias():
    with pytest.raises(UserError, match=r"bias_per_layer must be false for LongT5"):
        LongT5Config(bias_per_layer=True)
