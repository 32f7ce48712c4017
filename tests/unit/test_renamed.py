"""Names of the previous release are understood, with a warning that names the new one."""

import jax
import numpy as np
import pytest

import jaxformer
from jaxformer import BeamSearch, Translator, beam_search, cross_entropy, sample
from jaxformer.renamed import renamed_arguments, renamed_method
from jaxformer.search import take_sentences


def step_fn(tokens, cache):
    return jax.nn.one_hot(tokens, 3), cache


@pytest.mark.parametrize("search", [beam_search, sample])
def test_arguments_of_searches(search):
    expected = jax.eval_shape(lambda: search(step_fn, (), max_lengths=[4], capacity=4))
    with pytest.warns(FutureWarning) as found:
        assert expected == jax.eval_shape(lambda: search(step_fn, (), limits=[4], max_length=4))
    assert [str(warning.message) for warning in found] == [
        f"limits of {search.__name__} is now max_lengths",
        f"max_length of {search.__name__} is now capacity",
    ]


def test_max_length_beside_a_capacity_is_the_setting():
    @renamed_arguments(max_length="capacity")
    def search(*, capacity, **settings):
        return capacity, settings

    assert search(capacity=4, max_length=1) == (4, {"max_length": 1})
    jax.eval_shape(lambda: beam_search(step_fn, (), max_lengths=[4], capacity=4, max_length=1))


def test_ids_of_sentences():
    seen = []

    def note(logits, context):
        with pytest.warns(FutureWarning, match=r"SearchContext\.rows is now sentence_ids"):
            seen.append(context.rows is context.sentence_ids)
        return logits

    @jax.jit
    def ids(rows):
        search = BeamSearch(beam_size=1, constraints=(note,))
        with pytest.warns(FutureWarning, match="rows of Algorithm.start is now sentence_ids"):
            state = search.start((), [2, 2], 2, rows=rows)
        search.advance(step_fn, state, 1)
        with pytest.warns(FutureWarning, match="rows of take_sentences is now indices"):
            return state.sentence_ids, take_sentences(state, rows=np.array([1])).sentence_ids

    started, taken = ids(np.array([5, 7]))
    assert (started.tolist(), taken.tolist()) == ([5, 7], [7])
    assert seen[0]


def test_the_loss():
    @jax.jit
    def losses(*rows):
        with pytest.warns(FutureWarning, match="smoothing of cross_entropy is now label_smoothing"):
            old = cross_entropy(*rows, smoothing=0.1)
        return old, cross_entropy(*rows, label_smoothing=0.1)

    hidden, embedding = np.eye(2, 3, dtype=np.float32), np.eye(5, 3, dtype=np.float32)
    old, new = losses(hidden, embedding, np.array([1, 2]), np.ones(2, np.float32))
    assert old == new


def test_methods_and_moved_names():
    class New:
        def ids(self, text):
            return len(text)

        encode = renamed_method("New.encode", ids)

    with pytest.warns(FutureWarning, match=r"^New\.encode is now .*New\.ids$"):
        assert New().encode("ten") == 3
    assert Translator.encode.__wrapped__ is Translator.source_ids
    with pytest.warns(FutureWarning, match=r"jaxformer\.KVCache is now jaxformer\.nn\.KVCache"):
        assert jaxformer.KVCache is jaxformer.nn.KVCache
