"""Names of the previous release are understood, with a warning that names the new one."""

import jax
import pytest

import jaxformer
from jaxformer import Translator, beam_search


def step_fn(tokens, cache):
    return jax.nn.one_hot(tokens, 3), cache


def test_arguments_of_searches():
    expected = jax.eval_shape(lambda: beam_search(step_fn, (), max_lengths=[4], capacity=4))
    with pytest.warns(FutureWarning, match="of beam_search is now (max_lengths|capacity)"):
        found = jax.eval_shape(lambda: beam_search(step_fn, (), limits=[4], max_length=4))
    assert found == expected


def test_methods_and_moved_names():
    assert Translator.encode.__wrapped__ is Translator.source_ids
    with pytest.warns(FutureWarning, match=r"jaxformer\.KVCache is now jaxformer\.nn\.KVCache"):
        assert jaxformer.KVCache is jaxformer.nn.KVCache
