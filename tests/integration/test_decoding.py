"""Decoding is independent of batching and needs few programs; settings reach the search."""

import dataclasses
import re

import jax
import numpy as np
import pytest

from jaxformer.config import ModelConfig
from jaxformer.data.numerals import spell_english
from jaxformer.errors import UserError
from jaxformer.experiment import train
from jaxformer.inference import decoder, kept_programs, stages
from jaxformer.inference.conversions import average, quantize
from jaxformer.inference.decoder import can_thread
from jaxformer.inference.hypotheses import Decoded
from jaxformer.inference.members import Ensemble, Member
from jaxformer.inference.translator import Translator
from jaxformer.models.stepwise import step_fn
from jaxformer.models.transformer import Transformer
from jaxformer.nn import backend, use_backend
from jaxformer.runs.manifest import Manifest
from jaxformer.runs.workdir import Workdir
from jaxformer.search import BeamSearch, Sampling

from ..profiles import by_profile
from ..runs import changed
from ..searches import search_batches
from ..unit.nn.weights import random_params
from ..unit.search.oracles import hypotheses

NUMBERS = np.random.default_rng(0).integers(0, 100_000, 200)
SENTENCES = [spell_english(number) for number in NUMBERS.tolist()]


def same(found: list[Decoded], expected: list[Decoded]) -> None:
    assert [f.tokens[0] for f in found] == [e.tokens[0] for e in expected]
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f.scores[0], e.scores[0], atol=1e-5)


@pytest.mark.ci
def test_translations_do_not_depend_on_batch_order_or_padding(learned_workdir, monkeypatch):
    translator = Translator.load(learned_workdir)
    sources = [translator.source_ids(sentence) for sentence in SENTENCES]
    expected = translator.translate_ids(sources)
    assert len({tuple(e.tokens[0]) for e in expected}) > 50

    best = translator.translate_ids(sources, n_best=1)
    assert {len(found.tokens) for found in best} == {1}
    same(best, expected)

    order = np.random.default_rng(1).permutation(len(sources))
    shuffled = translator.translate_ids([sources[n] for n in order])
    in_order = [shuffled[n] for n in np.argsort(order)]
    same(in_order, expected)

    monkeypatch.setattr(stages, "_FEW_ROWS", ())
    for size in by_profile([7], nightly=[1, 2, 7, 32]):
        # Seven sentences get a smaller batch shape than 32 sentences.
        length = 32 if size < 32 else 64
        monkeypatch.setattr(stages, "_BUCKETS", ((length, size),))
        count = len(sources) if size > 1 else 40
        found = translator.translate_ids(sources[:count])
        same(found, expected[:count])


def biased_model(longest: int, ending: float):
    """A random model that ends a translation with some probability at every token."""
    config = ModelConfig(
        vocab_size=50,
        d_model=16,
        d_ff=16,
        num_heads=2,
        num_layers=1,
        max_length=longest,
        biases=True,
    )
    tokens = np.ones((1, 1), np.int32)
    params = random_params(Transformer(config), tokens, tokens)
    # Padding is never generated, since force-decoding would mask it.
    params["logits_bias"][:2] = [-1e9, ending]
    return Ensemble((Member(Transformer(config), jax.device_put(params)),))


@pytest.fixture
def traces(monkeypatch):
    """Returns a list with an entry for each program of a search that was traced."""
    step_fn = Ensemble.step_fn
    traced = []

    def noted(*arguments):
        traced.append(arguments)
        return step_fn(*arguments)

    monkeypatch.setattr(Ensemble, "step_fn", noted)
    return traced


def test_nothing_is_traced_after_warm_up(learned_workdir, traces):
    search = BeamSearch(beam_size=4, max_extra_length=9)
    translator = Translator.load(learned_workdir, search=search)
    translator.warm_up(sentences=1, tokens=16)
    assert traces

    traces.clear()
    translator.translate(["one"])
    translator.translate(["two hundred"])
    assert not traces


def test_programs_of_another_process_give_the_same_translations(traces, monkeypatch, tmp_path):
    model = biased_model(96, ending=0.0)
    settings = BeamSearch(beam_size=2, max_extra_length=80)
    sources = [[5, 6, 1]] * 2 + [[7, 1]] * 4
    expected = search_batches(model, settings, sources)
    assert max(len(e.tokens[0]) for e in expected) > 32  # the second stage

    def start_process():
        for program in (stages._first_stage, stages._second_stage):
            monkeypatch.setattr(program, "_programs", {})
            monkeypatch.setattr(program, "_structures", {})
        traces.clear()

    monkeypatch.setattr(kept_programs, "kept_folder", lambda: tmp_path)
    start_process()
    assert search_batches(model, settings, sources) == expected
    assert traces

    start_process()
    assert search_batches(model, settings, sources) == expected
    assert not traces
    assert len(list(tmp_path.iterdir())) == 2


def test_batches_at_the_same_time_give_the_same_translations(traces, monkeypatch):
    model = biased_model(32, ending=1.0)
    settings = BeamSearch(beam_size=2)
    random = np.random.default_rng(0)
    sources = [[*random.integers(4, 50, n % 12).tolist(), 1] for n in range(60)]
    reported = []

    def fail(finished):
        if finished:
            raise KeyboardInterrupt

    with use_backend(dataclasses.replace(backend(), max_hypotheses=18)):
        found = search_batches(model, settings, sources, report=reported.append)
        assert reported == [0] + [9] * 6 + [6]
        assert len(traces) == 2

        with pytest.raises(KeyboardInterrupt):
            search_batches(model, settings, sources, report=fail)

        with jax.default_matmul_precision("high"):  # holds in this thread only
            assert not can_thread(model)

        monkeypatch.setattr(decoder, "can_thread", lambda models: False)
        assert search_batches(model, settings, sources) == found


def test_stages_do_not_change_translations():
    """Growing the capacity gives the same translations as full capacity from the start."""
    model = biased_model(128, ending=0.0)
    short = [5, 6, 1]
    shorter = [7, 1]
    sources = [short] * 3 + [shorter] * 9
    settings = BeamSearch(beam_size=2, max_extra_length=100)
    found = search_batches(model, settings, sources)
    assert max(len(f.tokens[0]) for f in found) > 32

    @jax.jit
    def at_once(member, src, limits):
        cache = member(src, num_beams=2, capacity=128, method="start")
        step = step_fn(Transformer(member.config), member.params)
        return settings(step, cache, max_lengths=limits, capacity=128)

    src = np.array([short, [*shorter, 0]])  # [B, S]
    limits = np.array([103, 102])
    result = jax.device_get(at_once(*model, src, limits))
    for decoded, row in zip(found, [0] * 3 + [1] * 9, strict=True):
        expected = hypotheses(result, row)
        scores = [score for score, *_ in expected]
        assert decoded.tokens == [list(tokens) for *_, tokens in expected]
        np.testing.assert_allclose(decoded.scores, scores, atol=1e-5)


@pytest.mark.ci
def test_settings_reach_the_search():
    model = biased_model(16, ending=1.0)
    sources = [[5, 6, 7, 8, 1], [9, 10, 1]]

    def found(prefixes=None, search=None, **settings):
        search = search or BeamSearch(beam_size=4, **settings)
        return search_batches(model, search, sources, prefixes=prefixes)

    plain = found()
    for decoded in found(max_length=3):
        assert all(len(tokens) <= 3 for tokens in decoded.tokens)

    forced = found(prefixes=[[20, 21], []])
    assert all(tokens[:2] == [20, 21] for tokens in forced[0].tokens)
    assert forced[1] == plain[1]

    # One test for all settings, since every search must be compiled.
    many = found(
        min_length=10,
        max_extra_length=2,  # The minimum length extends the other.
        no_repeat_ngram=1,
        diversity_groups=4,
        diversity_penalty=5.0,
        penalty="power",
        length_penalty=1.0,
    )
    assert len({tokens[0] for tokens in many[0].tokens}) == 4
    for decoded in many:
        for tokens, score, log_prob in zip(*decoded, strict=True):
            assert len(tokens) > 10
            assert len(set(tokens)) == len(tokens)
            assert score == pytest.approx(log_prob / len(tokens), rel=1e-5)

    with pytest.raises(UserError, match=r"min_length must be less than model\.max_length=16"):
        found(min_length=16)

    def samples(seed):
        return found(search=Sampling(num_samples=4, seed=seed))[0].tokens

    drawn = samples(seed=0)
    assert samples(seed=0) == drawn
    assert samples(seed=1) != drawn


def test_samples_do_not_depend_on_the_batch():
    model = biased_model(16, ending=1.0)
    settings = Sampling(num_samples=2, seed=3)
    sources = [[n, n + 1, 1] for n in range(4, 14)]
    together = search_batches(model, settings, sources)

    def alone(n, first):
        return search_batches(model, settings, [sources[n]], first=first)[0].tokens

    for n in (0, 3, 9):
        assert alone(n, first=n) == together[n].tokens
    assert alone(0, first=5) != together[0].tokens


def test_an_ensemble_of_a_model_with_itself_is_the_model():
    model = biased_model(16, ending=1.0)
    sources = [[5, 6, 1], [], [7, 8, 9, 1]]
    search = BeamSearch(beam_size=2)

    alone = search_batches(model, search, sources)
    twice = search_batches(Ensemble(model.members * 2), search, sources)

    nothing = Decoded([], [], [])
    assert alone[1] == nothing
    assert twice[1] == nothing
    same([alone[0], alone[2]], [twice[0], twice[2]])


@pytest.fixture(scope="module")
def quantized_workdir(learned_workdir, tmp_path_factory):
    """Returns a quantized run, whose first attempt failed."""
    output = tmp_path_factory.mktemp("quantized") / "int8"

    def full(*_):
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Manifest, "write", full)
        with pytest.raises(OSError, match="No space left"):
            quantize(learned_workdir, output)

    before, after = quantize(learned_workdir, output)
    assert 3.0 < before / after < 4.0
    return output


def test_quantized_parameters_translate_like_exact_ones(learned_workdir, quantized_workdir):
    search = BeamSearch(beam_size=2, max_extra_length=50)
    exact = Translator.load(learned_workdir, search=search)
    quantized = Translator.load(quantized_workdir, search=search)
    assert quantized.config.model.compute_dtype == "int8"
    assert re.fullmatch(r"quantized from \w+, step \d+", quantized.weights)

    sentences = SENTENCES[:40]
    found = quantized.hypotheses(sentences)
    expected = exact.hypotheses(sentences)
    differences = []
    for (f, *_), (e, *_) in zip(found, expected, strict=True):
        if f.text == e.text:
            differences.append(f.log_prob - e.log_prob)
    assert len(differences) >= 30
    assert 0 < np.abs(differences).max() < 0.5

    on_the_fly = Translator.load(learned_workdir, search=search, compute_dtype="int8")
    assert on_the_fly.hypotheses(sentences) == found


def test_a_model_translates_in_float16_as_in_float32(learned_workdir):
    """Log probabilities differ by rounding to eleven bits."""
    search = BeamSearch(beam_size=2, max_extra_length=50)
    exact = Translator.load(learned_workdir, search=search, compute_dtype="float32")
    rounded = Translator.load(learned_workdir, search=search, compute_dtype="float16")

    sentences = SENTENCES[:40]
    found = rounded.hypotheses(sentences)
    expected = exact.hypotheses(sentences)
    differences = []
    for (f, *_), (e, *_) in zip(found, expected, strict=True):
        if f.text == e.text:
            differences.append(f.log_prob - e.log_prob)
    assert len(differences) >= 38
    assert 0 < np.abs(differences).max() < 0.1


def test_quantized_runs_are_refused_where_exact_ones_are_needed(
    learned_workdir, quantized_workdir, tmp_path
):
    with pytest.raises(UserError, match="expected a new workdir, but it has a run"):
        quantize(learned_workdir, quantized_workdir)
    with pytest.raises(UserError, match="but it is int8 already"):
        quantize(quantized_workdir, tmp_path / "again")
    with pytest.raises(UserError, match="quantized to int8; average the run that it was made from"):
        average(Workdir(quantized_workdir), 1)


def test_training_in_int8_is_refused(tiny_config, tmp_path):
    config = changed(tiny_config(), model={"compute_dtype": "int8"})
    with pytest.raises(UserError, match="int8 is for decoding only: train in float32"):
        train(config, tmp_path / "run")
