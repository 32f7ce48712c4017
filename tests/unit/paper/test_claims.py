"""The measurements of claims against closed formulas, brute force and plain loops."""

import math
import re

import jax
import numpy as np
import pytest

from jaxformer.inference.head_masking import Head, MaskedHeads, Quality
from jaxformer.paper import claims
from jaxformer.paper.claims import __main__ as command
from jaxformer.paper.claims import (
    additive,
    batch_norm,
    bias,
    bpe,
    coreference,
    extrapolation,
    gradients_in_time,
    heads,
    masked_heads,
    order,
    paths,
    residual,
    scaling,
    sinusoids,
    teacher_forcing,
)
from jaxformer.paper.claims.claim import Claim, digits
from jaxformer.paper.claims.small_runs import Experiment
from jaxformer.registry import find_entries

from ...printed import DOCS


def test_residual_signals_of_one_layer_without_sublayers_are_those_of_the_input():
    """At depth 0 the output is the input, whatever the connection."""
    signals = jax.jit(residual.signals_function(residual.CONNECTIONS["neither"]))
    found = jax.device_get(signals(0, 0))

    _, of_input, of_loss = jax.random.split(jax.random.key(0), 3)
    shape = (1, residual.POSITIONS, residual.WIDTH)
    x = np.asarray(jax.random.normal(of_input, shape))
    direction = np.asarray(jax.random.normal(of_loss, shape))
    assert found.gradient == pytest.approx(np.linalg.norm(direction / direction.size), rel=1e-5)
    assert found.scale == pytest.approx(x.std(), rel=1e-5)

    cosines = []
    for i, j in np.ndindex(residual.POSITIONS, residual.POSITIONS):
        if i != j:
            a = x[0, i]
            b = x[0, j]
            cosines.append(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    assert found.similarity == pytest.approx(np.mean(cosines), abs=1e-5)

    # Without a norm and a residual connection, signals die.
    deep = jax.device_get(signals(0, 24))
    assert deep.gradient < 1e-6
    assert deep.similarity > 0.99


@pytest.mark.parametrize("d_k", [4, 64])
def test_variances_of_scores_are_those_of_the_theory(d_k):
    found = jax.device_get(scaling.softmax_of_scores(d_k))
    expected = {"dot product": d_k, "dot product / √d_k": 1, "cosine": 1 / d_k}
    for name, variance in expected.items():
        assert found[name].variance == pytest.approx(variance, rel=0.1)


def test_cost_of_heads_is_the_sum_of_the_matmuls():
    width = 64
    positions = 32
    for number in (1, 8):
        cost = heads.cost(number, width, positions)
        assert cost.parameters == 4 * width**2
        # Queries, keys, values, output; then scores and weighted sums; two operations each.
        matmuls = 2 * (4 * positions * width**2 + 2 * positions**2 * width)
        assert cost.matmul_operations == matmuls
        assert matmuls <= cost.operations < 1.3 * matmuls
        assert cost.score_bytes == number * positions**2 * 4


def test_masked_heads_are_compared_with_the_whole_model():
    head = Head("cross", layer=1, number=2, path=(), index=None)
    whole = Quality(loss=0.5, score=40.0)
    figures = MaskedHeads(whole, {head: Quality(loss=0.75, score=30.0)})
    found = masked_heads.report(figures)
    assert "| cross, layer 1 | +0.250 |" in found
    assert "| cross, layer 1 | -10.0 |" in found
    np.testing.assert_array_equal(figures.losses_gained()["cross"], [[np.nan, 0.25]])


def test_batch_norm_depends_on_other_sentences_and_layer_norm_does_not():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 2, 4, 6)).astype(np.float32)
    x[:, 0] = x[0, 0]
    is_token = np.ones((3, 2, 4), bool)
    is_token[:, 1, 3:] = False

    found = batch_norm.spread(x, is_token, length=4)

    expected = []
    for batch, real in zip(x, is_token, strict=True):
        tokens = batch[real]
        expected.append((batch[0] - tokens.mean(axis=0)) / tokens.std(axis=0))
    assert found.batch_norm == pytest.approx(np.std(expected, axis=0).mean(), rel=1e-3)
    assert found.layer_norm == 0


def test_sinusoids_are_sums_of_cosines_and_shift_by_a_rotation():
    figures = sinusoids.measure()
    frequencies = 10_000.0 ** (-np.arange(0, sinusoids.WIDTH, 2) / sinusoids.WIDTH)
    for distance, cosine in zip(sinusoids.DISTANCES, figures.cosine, strict=True):
        assert cosine == pytest.approx(np.cos(distance * frequencies).mean(), abs=1e-6)
    assert figures.shift_error < 1e-9
    assert 0 < figures.smallest <= figures.cosine.min()
    assert figures.nearest[0] == -1 / 2
    assert figures.widest[0] == -1 / 256
    assert figures.bucket[-1] == figures.bucket[-3] == 31


def test_an_untrained_decoder_guesses_at_every_place():
    train = jax.jit(extrapolation.train_function("alibi", 0))
    right = np.asarray(train(0))
    assert len(right) == extrapolation.TESTED
    assert (right[: extrapolation.DELAY] == 0).all()
    guessed = right[extrapolation.DELAY :].mean()
    assert guessed == pytest.approx(1 / extrapolation.TOKENS, abs=0.04)


def test_only_an_encoder_without_positions_is_blind_to_order():
    assert sorted(order.SENTENCE) == sorted(order.OTHER)
    same = np.arange(len(order.SENTENCE))
    changed = same[::-1].copy()

    program = jax.jit(order.distances_of_seed)
    for places, is_same in ((same, True), (changed, False)):
        found = jax.device_get(program(0, places))
        assert found["encoder, no positions"].max() < 1e-5
        for name in ("encoder, sinusoids", "decoder, no positions"):
            assert (found[name].max() < 1e-5) == is_same


def test_a_recurrence_cannot_carry_more_than_its_matrix_allows():
    """The tanh's derivative is at most 1, so a norm of 1/2 halves gradients at each step."""

    def layer(key, x):
        return gradients_in_time.recurrent(key, x, radius=0.5)

    norms = np.asarray(jax.jit(lambda: gradients_in_time.gradient_norms(layer, 0))())
    assert len(norms) == gradients_in_time.LENGTH
    assert norms[30] <= 0.5**29 * norms[0] * 10
    assert norms[1] > norms[30]


def test_paths_have_the_lengths_of_the_paper():
    figures = paths.measure()
    for n in paths.LENGTHS:
        found = [counts[n] for counts in figures.values()]
        dilated = math.ceil(math.log(2 * (n - 1) + 1, paths.KERNEL))
        assert found == [1, n - 1, n - 1, dilated]


def test_one_pass_equals_its_branches():
    found = teacher_forcing.compare(5)
    assert found.loss_error < 1e-5
    assert found.gradient_error < 1e-5
    assert found.tokens_of_branches == sum(range(1, 6))


def test_bpe_reaches_one_text_by_either_choice():
    found = bpe.measure()
    assert [result.texts[-1] for result in found] == ["XdXac"] * len(found)
    assert [dict(result.merges)["Y"] for result in found] == ["Za", "ab"]
    assert bpe.encode("aaabdaaabac", found[0].merges) == "XdXac"
    assert [bpe.encode("cab", result.merges) for result in found] == ["cab", "cY"]


def test_pronouns_are_counted_where_they_are_right_and_where_not():
    """The second of three pronouns always has a probability of 1/2, and the others 1/4."""
    log_probs = np.log([[0.01, 0.02, 0.01]] * 8)
    probabilities = coreference.shares(log_probs)
    np.testing.assert_allclose(probabilities, [[0.25, 0.5, 0.25]] * 8)

    figures = {}
    for distance in coreference.MIDDLES:
        for pronoun in coreference.NOUNS:
            figures[distance, pronoun] = probabilities
    assert coreference.rights(figures)["sie"] == dict.fromkeys(coreference.MIDDLES, 100)
    assert coreference.rights(figures)["er"] == dict.fromkeys(coreference.MIDDLES, 0)
    means = coreference.mean_probabilities(figures)
    assert means["sie, where it is wrong"] == pytest.approx(dict.fromkeys(coreference.MIDDLES, 50))


def test_sentences_differ_in_the_pronoun_or_the_form_only():
    pairs = coreference.sentences(3, "Die", "lamp", "Lampe")
    assert pairs[1] == (
        "The lamp is good because it is new.",
        "Die Lampe ist gut, weil sie neu ist.",
    )
    assert len({source for source, _ in pairs}) == 1
    for distance in coreference.MIDDLES:
        [(_, translation), *_] = coreference.sentences(distance, "Die", "lamp", "Lampe")
        words = translation.split()
        assert words.index("er") - words.index("Lampe") - 1 == distance

    doctor = bias.Occupation("doctor", "Arzt", "Ärztin")
    source = "The doctor says that she is tired."
    assert bias.both_forms("she", doctor) == [
        (source, "Der Arzt sagt, dass sie müde ist."),
        (source, "Die Ärztin sagt, dass sie müde ist."),
    ]


def test_additive_and_dot_product_attention_are_compared_on_the_same_inputs(monkeypatch):
    monkeypatch.setattr(additive, "LENGTHS", (2, 4))
    monkeypatch.setattr(additive, "ROUNDS", 1)
    times = additive.measure()
    assert list(times) == [additive.DOT, additive.ADDITIVE]
    assert all(seconds > 0 for values in times.values() for seconds in values.values())
    assert "| additive / dot product |" in additive.report(times)


def test_a_claim_is_printed_written_and_drawn(tmp_path, capsys, pages):
    command.main(["bpe", f"--output={tmp_path}"])
    printed = capsys.readouterr().out
    assert (tmp_path / "bpe.md").read_text() in printed
    assert len(pages[-1].axes[0].lines) == 2

    with pytest.raises(SystemExit, match="2"):
        command.main(["nonsense"])
    assert "invalid choice: 'nonsense'" in capsys.readouterr().err


def test_every_claim_has_a_section_a_table_and_a_picture():
    known = find_entries(claims, Claim)
    chinese = set(DOCS.glob("claims_*.zh-CN.md"))
    english = set(DOCS.glob("claims_*.md")) - chinese
    for pages in (english, chinese):
        text = "".join(path.read_text(encoding="utf-8") for path in pages)
        for name in known:
            assert text.count(f"python -m jaxformer.paper.claims {name}\n") == 1
            assert text.count(f"(claims/{name}.png)") == 1
            assert text.count(f"<!-- generated: claim_{name} -->") == 1
    assert {path.stem for path in (DOCS / "claims").glob("*.png")} == set(known)


def numbers(text):
    found = re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]\d+)?", text)
    return list(map(float, found))


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(find_entries(claims, Claim)))
def test_commands_print_the_figures_of_the_page(name, pages, tmp_path):
    """Up to the rounding of another machine; times and trained models differ more."""
    claim = find_entries(claims, Claim)[name]
    figures = claim.measure()
    claim.draw(figures, tmp_path / "picture.png")
    assert pages[-1].axes

    printed = claim.report(figures).replace(",", "")
    page = (DOCS / "claims" / f"{name}.md").read_text(encoding="utf-8").replace(",", "")
    is_trained = isinstance(getattr(claim.measure, "__self__", None), Experiment)
    if is_trained or name in ("additive", "extrapolation", "masked_heads"):
        assert len(printed.splitlines()) == len(page.splitlines())
    else:
        assert numbers(printed) == pytest.approx(numbers(page), rel=0.2, abs=1e-7)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, "0"), (1234.5, "1,234"), (0.98765, "0.988"), (2.7e-5, "2.7e-05"), (-0.5, "-0.5")],
)
def test_digits(value, expected):
    assert digits(value) == expected
