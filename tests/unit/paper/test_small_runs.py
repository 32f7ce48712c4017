"""Small runs against closed formulas: one step of Adam, brute-force tasks, plain attention."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxformer.data.numerals import numbers_in, spell_chinese, spell_english
from jaxformer.data.tokenizer import EOS
from jaxformer.paper.claims import (
    copy_distance,
    free_running,
    scaling_law,
    smoothed_translation,
    trained_scores,
)
from jaxformer.paper.claims.small_runs import (
    RIGHT,
    TEST_LOSS,
    Batch,
    Course,
    Curves,
    Experiment,
    Setting,
    interval,
    train,
)
from jaxformer.paper.claims.small_tasks import Echo, Sums, Text, read_topics

VOCABULARY = 4


class Constant(nn.Module):
    """Predicts the same distribution everywhere."""

    @nn.compact
    def __call__(self, tokens):
        logits = self.param("logits", nn.initializers.zeros, (VOCABULARY,))
        return jnp.broadcast_to(logits, (*tokens.shape, VOCABULARY))


@dataclasses.dataclass(frozen=True)
class Repeated:
    """Rows of the token 2, whose last place does not count."""

    def train_rows(self, key, rows):
        tokens = jnp.full((rows, 3), 2)
        targets = jnp.array([2, 2, 0])
        is_scored = jnp.array([True, True, False])
        return Batch(
            tokens,
            jnp.broadcast_to(targets, tokens.shape),
            jnp.broadcast_to(is_scored, tokens.shape),
        )

    def test_rows(self):
        return self.train_rows(None, rows=2)


SETTING = Setting(network=Constant(), task=Repeated(), steps=2, learning_rate=0.5, tests=2)


@pytest.mark.parametrize(("smoothing", "warmup"), [(0.0, 0), (0.2, 1)])
def test_steps_of_adam_have_the_length_of_the_rate(smoothing, warmup):
    """The first step of Adam is as long as the rate, which is 0 where warm-up begins."""
    setting = dataclasses.replace(SETTING, label_smoothing=smoothing, warmup=warmup)
    found = train(setting, seeds=2)
    assert found.train_loss.shape == (2, 2)

    # Uniform probabilities give the logarithm of the vocabulary, with and without smoothing.
    first_rate = 0.0 if warmup else 0.5
    np.testing.assert_allclose(found.train_loss[:, 0], np.log(VOCABULARY), rtol=1e-6)
    logits = np.array([-first_rate, -first_rate, first_rate, -first_rate])
    log_probs = logits - np.log(np.exp(logits).sum())
    np.testing.assert_allclose(found.test_loss[:, 0], -log_probs[2], rtol=1e-5)
    np.testing.assert_allclose(
        found.train_loss[:, 1],
        -(1 - smoothing) * log_probs[2] - smoothing * log_probs.mean(),
        rtol=1e-5,
    )
    assert (found.right[:, -1] == 1).all()


def fake_course(test_losses):
    values = np.array([test_losses]).T
    return Course(train_loss=values, test_loss=values, right=values / 10)


def test_experiments_tabulate_and_draw_medians_with_their_range(tmp_path, pages):
    experiment = Experiment(
        about="Nothing.",
        x_label="layers",
        column="{} layers",
        settings={},
        measures=[RIGHT, TEST_LOSS],
    )
    figures = {
        "one": {2: fake_course([3.0, 1.0, 2.0])},
        "other": {2: fake_course([4.0, 4.0, 4.0]), 8: fake_course([5.0, 9.0, 6.0])},
    }
    report = experiment.report(figures)
    assert report.startswith("Nothing. Median of 3 seeds, with the lowest and the highest.\n")
    assert "| right tokens, % | 2 layers | 8 layers |" in report
    assert "| one | 20 (10 to 30) | - |" in report
    assert "| other | 4.000 (4.000 to 4.000) | 6.000 (5.000 to 9.000) |" in report

    experiment.draw(figures, tmp_path / "picture.png")
    rights, losses = pages[-1].axes
    assert rights.get_title(loc="left") == "Right tokens, %"
    assert [list(line.get_ydata()) for line in losses.lines] == [[2], [4, 6]]
    # The first line is visible where the second has the same values.
    first, second = losses.lines
    assert first.get_linewidth() > second.get_linewidth()
    assert first.get_markersize() > second.get_markersize()
    assert interval(np.array([0.5, 0.25]), ".2f") == "0.38 (0.25 to 0.50)"


def test_curves_have_a_place_for_each_test():
    settings = {"constant": {2: SETTING}}
    curves = Curves(
        about="", x_label="", column="{}", settings=settings, measures=[TEST_LOSS], seeds=1
    )
    by_steps = curves.measure()["constant"]
    assert list(by_steps) == [1, 2]
    assert by_steps[1].test_loss.shape == (1, 1)
    assert TEST_LOSS.values(by_steps[1]) > TEST_LOSS.values(by_steps[2])


def test_rows_of_tasks_are_right():
    program = jax.jit(
        lambda key: (
            Echo(delay=2, length=5).train_rows(key, 3),
            Sums(terms=3, length=6).train_rows(key, 3),
            Text(train_size=500, length=7).train_rows(key, 3),
        )
    )
    echo, sums, text = jax.device_get(program(jax.random.key(0)))
    np.testing.assert_array_equal(echo.targets[:, 2:], echo.tokens[:, :-2])
    np.testing.assert_array_equal(echo.is_scored, [[False, False, True, True, True]] * 3)

    # Two digits are given before the first sum, which is the target of the third place.
    np.testing.assert_array_equal(sums.tokens[:, 1:], sums.targets[:, :-1])
    for place in range(2, 6):
        expected = sums.tokens[:, place - 2 : place + 1].sum(axis=1) % 10
        np.testing.assert_array_equal(sums.targets[:, place], expected)
    np.testing.assert_array_equal(sums.is_scored, [[False, False, True, True, True, True]] * 3)

    training = bytes(read_topics().train[:500].tolist())
    for tokens, targets in zip(text.tokens, text.targets, strict=True):
        assert bytes([*tokens.tolist(), int(targets[-1])]) in training
        assert tokens[1:].tolist() == targets[:-1].tolist()


def test_the_text_of_tests_is_not_trained_on():
    train_paragraphs = bytes(read_topics().train.tolist()).split(b"\n\n")
    test_paragraphs = bytes(read_topics().test.tolist()).split(b"\n\n")
    # The paragraph at the cut is in both, in parts.
    common = set(train_paragraphs[1:]) & set(test_paragraphs[:-1])
    assert not common
    assert len(test_paragraphs) > 50


def test_own_inputs_are_the_predictions_of_the_network():
    rows = jax.device_get(jax.jit(lambda: free_running.TASK.train_rows(jax.random.key(0), 4))())

    def follow_rule(tokens):
        before = jnp.pad(tokens, ((0, 0), (2, 0)))
        sums = (before[:, :-2] + before[:, 1:-1] + before[:, 2:]) % 10
        return jax.nn.one_hot(sums, 10)

    def say_seven(tokens):
        return jax.nn.one_hot(jnp.full_like(tokens, 7), 10)

    program = jax.jit(
        lambda rows: [free_running.own_inputs(each, rows) for each in (follow_rule, say_seven)]
    )
    right, wrong = jax.device_get(program(rows))
    np.testing.assert_array_equal(right.tokens, rows.tokens)
    np.testing.assert_array_equal(wrong.tokens[:, :3], rows.tokens[:, :3])
    assert (wrong.tokens[:, 3:] == 7).all()
    np.testing.assert_array_equal(wrong.targets, rows.targets)


def test_additive_attention_is_a_network_for_each_pair():
    layer = trained_scores.AdditiveAttention(1, d_k=4, d_v=3)
    x = np.random.default_rng(0).normal(size=(1, 5, 6)).astype(np.float32)
    mask = np.tril(np.ones((5, 5), bool))[None, None]

    def both(x):
        params = layer.init(jax.random.key(0), x, mask=mask)
        return params["params"], layer.apply(params, x, mask=mask)

    params, found = jax.device_get(jax.jit(both)(x))
    queries = x[0] @ params["query"][:, 0]
    keys = x[0] @ params["key"][:, 0]
    values = x[0] @ params["value"][:, 0]
    for place in range(5):
        scores = [params["vector"][0] @ np.tanh(queries[place] + keys[i]) for i in range(place + 1)]
        weights = np.exp(scores) / np.exp(scores).sum()
        expected = weights @ values[: place + 1] @ params["output"]
        np.testing.assert_allclose(found[0, place], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("dilations", "reach"), [((1, 1), 4), ((1, 3), 8)])
def test_convolutions_see_the_places_that_their_dilations_allow(dilations, reach):
    network = copy_distance.Convolutional(vocab_size=3, size=8, dilations=dilations)
    tokens = np.zeros((12, 12), np.int32)
    np.fill_diagonal(tokens, 1)

    def both(tokens):
        params = network.init(jax.random.key(0), tokens)
        return network.apply(params, tokens), network.apply(params, jnp.zeros_like(tokens))

    changed, same = jax.device_get(jax.jit(both)(tokens))
    sees = np.abs(changed - same).max(axis=-1) > 1e-6  # by place of the other token, and output
    back = np.arange(12)[None] - np.arange(12)[:, None]
    np.testing.assert_array_equal(sees, (back >= 0) & (back <= reach))


def test_networks_that_copy_are_of_equal_size():
    tokens = jax.ShapeDtypeStruct((1, 4), jnp.int32)
    for settings in copy_distance.SETTINGS.values():
        for distance, setting in settings.items():
            assert isinstance(setting.task, Echo)
            assert setting.task.delay == distance
            params = jax.eval_shape(setting.network.init, jax.random.key(0), tokens)["params"]
            assert 24_000 < sum(leaf.size for leaf in jax.tree.leaves(params)) < 28_000
    rows = copy_distance.SETTINGS["GRU, one token per row"][8].task.test_rows()
    assert rows.is_scored.sum(axis=1).tolist() == [1] * 128


def test_power_laws_are_found():
    losses = {size: 5 * size**-0.25 for size in (10, 100, 1000)}
    law = scaling_law.fit_power_law(losses)
    assert law.factor == pytest.approx(5)
    assert law.exponent == pytest.approx(0.25)
    assert law.predict(10_000) == pytest.approx(0.5)
    assert scaling_law.law_of_smaller({**losses, 10_000: 7.0}) == law

    layers = scaling_law.SETTINGS[scaling_law.matrix_parameters(8)]
    tokens = jax.ShapeDtypeStruct((1, 4), jnp.int32)
    params = jax.eval_shape(layers.network.init, jax.random.key(0), tokens)["params"]
    matrices = [leaf.size for leaf in jax.tree.leaves(params["decoder"]) if leaf.ndim > 2]
    assert sum(matrices) == scaling_law.matrix_parameters(8)


def test_what_is_examined_has_the_axes_of_seeds_and_tests():
    setting = dataclasses.replace(SETTING, examine=lambda params: params["logits"])
    course = train(setting, seeds=2)
    assert course.examined.shape == (2, 2, VOCABULARY)
    # All seeds begin with the same logits, and the second test is after one more step.
    np.testing.assert_array_equal(course.examined[0], course.examined[1])
    assert (course.examined[:, 1, 2] > course.examined[:, 0, 2]).all()


def test_greedy_translations_are_the_most_probable_words_one_by_one(monkeypatch):
    pairs = smoothed_translation.read_pairs("held_out")
    few = smoothed_translation.Pairs(pairs.source[:2], pairs.target[:2])
    monkeypatch.setattr(smoothed_translation, "read_pairs", lambda split: few)
    greedy = {"greedy": smoothed_translation.SEARCHES["greedy"]}
    monkeypatch.setattr(smoothed_translation, "SEARCHES", greedy)

    network = smoothed_translation.Translator(smoothed_translation.CONFIG)
    batch = smoothed_translation.as_rows(jnp.asarray(few.source), jnp.asarray(few.target))
    params = jax.jit(network.init)(jax.random.key(0), batch.tokens)
    found = jax.jit(smoothed_translation.translate)(params["params"])["greedy"]

    logits_of = jax.jit(
        lambda words: network.apply(
            params, smoothed_translation.as_rows(jnp.asarray(few.source), words).tokens
        )
    )
    length = smoothed_translation.LENGTH
    words = np.zeros((2, length), np.int32)
    for place in range(length):
        logits = np.asarray(logits_of(words))[:, length + place]
        words[:, place] = logits.argmax(axis=-1)
    for translation, expected in zip(np.asarray(found), words, strict=True):
        ends = np.flatnonzero(expected == EOS)
        until = ends[0] if len(ends) else length - 1
        np.testing.assert_array_equal(translation[:until], expected[:until])


def test_symbols_are_those_of_all_numbers():
    held_out = numbers_in("held_out")
    assert len(held_out) == smoothed_translation.HELD_OUT
    found = set()
    for number in numbers_in("train") + held_out:
        found.update(spell_chinese(number), smoothed_translation.english_words(number))
    assert smoothed_translation.symbols() == sorted(found)


def test_targets_are_the_words_of_the_numbers():
    number = numbers_in("held_out")[0]
    [target, *_] = smoothed_translation.read_pairs("held_out").target
    words = spell_english(number).replace("-", " ")
    assert smoothed_translation.as_text(target) == words
