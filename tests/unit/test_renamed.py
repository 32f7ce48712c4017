"""Names of the previous release are understood, with a warning that names the new one."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxformer
from jaxformer import BeamSearch, Translator, beam_search, cross_entropy, sample
from jaxformer.renamed import renamed_method
from jaxformer.search import take_sentences

LOGITS = jnp.log(jnp.array([[0.0, 0.4, 0.6], [0.0, 0.9, 0.1], [0.0, 0.5, 0.5]]))


def step_fn(tokens, cache):
    return LOGITS[tokens], cache


@pytest.mark.parametrize("search", [beam_search, sample])
def test_arguments_of_searches(search):
    expected = search(step_fn, (), max_lengths=[4], capacity=4)
    with pytest.warns(FutureWarning) as found:
        result = search(step_fn, (), limits=[4], max_length=4)
    np.testing.assert_array_equal(result.tokens, expected.tokens)
    assert [str(warning.message) for warning in found] == [
        f"limits of {search.__name__} is now max_lengths",
        f"max_length of {search.__name__} is now capacity",
    ]


def test_max_length_beside_a_capacity_is_the_setting():
    result = beam_search(step_fn, (), max_lengths=[4], capacity=4, max_length=1)
    assert result.lengths.max() == 1


def test_ids_of_sentences():
    seen = []

    def note(logits, context):
        with pytest.warns(FutureWarning, match=r"SearchContext\.rows is now sentence_ids"):
            seen.append(context.rows is context.sentence_ids)
        return logits

    search = BeamSearch(beam_size=1, constraints=(note,))
    with pytest.warns(FutureWarning, match="rows of Algorithm.start is now sentence_ids"):
        state = search.start((), [2, 2], 2, rows=jnp.array([5, 7]))
    assert state.sentence_ids.tolist() == [5, 7]
    search.advance(step_fn, state, 1)
    assert seen[0]
    with pytest.warns(FutureWarning, match="rows of take_sentences is now indices"):
        assert take_sentences(state, rows=jnp.array([1])).sentence_ids.tolist() == [7]


def test_the_loss():
    rows = (jnp.zeros((2, 3)), jnp.zeros((5, 3)), jnp.array([1, 2]), jnp.ones(2))
    with pytest.warns(FutureWarning, match="smoothing of cross_entropy is now label_smoothing"):
        assert cross_entropy(*rows, smoothing=0.1) == cross_entropy(*rows, label_smoothing=0.1)


def test_methods():
    class New:
        def ids(self, text):
            return len(text)

        encode = renamed_method("New.encode", ids)

    with pytest.warns(FutureWarning, match=r"^New\.encode is now .*New\.ids$"):
        assert New().encode("ten") == 3
    assert Translator.encode.__wrapped__ is Translator.source_ids


def test_moved_names():
    with pytest.warns(FutureWarning, match=r"jaxformer\.KVCache is now jaxformer\.nn\.KVCache"):
        assert jaxformer.KVCache is jaxformer.nn.KVCache
