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
from jaxformer.inference import batched_search, kept_programs, threads
from jaxformer.inference.batched_search import Decoded, search_batches
from jaxformer.inference.conversions import average, quantize
from jaxformer.inference.members import Ensemble, Member
from jaxformer.inference.threads import can_thread
from jaxformer.inference.translator import Translator
from jaxformer.models.stepwise import step_fn
from jaxformer.models.transformer import Transformer
from jaxformer.nn import backend, use_backend
from jaxformer.runs.manifest import Manifest
from jaxformer.runs.workdir import Workdir
from jaxformer.search import BeamSearch, Sampling

from ..profiles import by_profile
from ..runs import changed
from ..unit.nn.weights import random_params
from ..unit.search.oracles import hypotheses

SENTENCES = [spell_english(n) for n in np.random.default_rng(0).integers(0, 100_000, 200).tolist()]


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
    same([shuffled[n] for n in np.argsort(order)], expected)
    for size in by_profile([7], nightly=[1, 2, 7, 32]):
        # Seven sentences get a smaller batch shape than 32 sentences.
        buckets = ((32 if size < 32 else 64, size),)
        monkeypatch.setattr(batched_search, "_BUCKETS", buckets)
        monkeypatch.setattr(batched_search, "_FEW_ROWS", ())
        found = translator.translate_ids(sources if size > 1 else sources[:40])
        same(found, expected[: len(found)])


def biased_model(longest: int, ending: float):
    """A random model that ends a translation with some probability at every token."""
    config = ModelConfig(
        **{"vocab_size": 50, "d_model": 16, "d_ff": 16, "num_heads": 2, "num_layers": 1},
        **{"max_length": longest, "biases": True},
    )
    tokens = np.ones((1, 1), np.int32)
    params = random_params(Transformer(config), tokens, tokens)
    # Padding is never generated, since force-decoding would mask it.
    params["logits_bias"][:2] = -1e9, ending
    return Ensemble((Member(Transformer(config), jax.device_put(params)),))


@pytest.fixture
def traces(monkeypatch):
    """Returns a list with an entry for each program of a search that was traced."""
    step_fn, traced = Ensemble.step_fn, []

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
    model, settings = biased_model(96, ending=0.0), BeamSearch(beam_size=2, max_extra_length=80)
    sources = [[5, 6, 1]] * 2 + [[7, 1]] * 4
    expected = search_batches(model, settings, sources)
    assert max(len(e.tokens[0]) for e in expected) > 32  # the second stage
    monkeypatch.setattr(kept_programs, "kept_folder", lambda: tmp_path)
    for process in range(2):
        for program in (batched_search._first_stage, batched_search._second_stage):
            monkeypatch.setattr(program, "_programs", {})
            monkeypatch.setattr(program, "_structures", {})
        traces.clear()
        assert search_batches(model, settings, sources) == expected
        assert bool(traces) == (process == 0)
    assert len(list(tmp_path.iterdir())) == 2


def test_batches_at_the_same_time_give_the_same_translations(traces, monkeypatch):
    model, settings = biased_model(32, ending=1.0), BeamSearch(beam_size=2)
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
        monkeypatch.setattr(threads, "can_thread", lambda models: False)
        assert search_batches(model, settings, sources) == found


def test_stages_do_not_change_translations():
    """Growing the capacity gives the same translations as full capacity from the start."""
    model = biased_model(128, ending=0.0)
    sources = [[5, 6, 1]] * 3 + [[7, 1]] * 9
    settings = BeamSearch(beam_size=2, max_extra_length=100)
    found = search_batches(model, settings, sources)
    assert max(len(f.tokens[0]) for f in found) > 32

    @jax.jit
    def at_once(member, src, limits):
        cache = member(src, num_beams=2, capacity=128, method="start")
        step = step_fn(Transformer(member.config), member.params)
        return settings(step, cache, max_lengths=limits, capacity=128)

    src, limits = np.array([[5, 6, 1], [7, 1, 0]]), np.array([103, 102])
    result = jax.device_get(at_once(*model, src, limits))
    for decoded, row in zip(found, [0] * 3 + [1] * 9, strict=True):
        expected = hypotheses(result, row)
        assert decoded.tokens == [list(tokens) for *_, tokens in expected]
        np.testing.assert_allclose(decoded.scores, [score for score, *_ in expected], atol=1e-5)


@pytest.mark.ci
def test_settings_reach_the_search():
    model = biased_model(16, ending=1.0)
    sources = [[5, 6, 7, 8, 1], [9, 10, 1]]

    def found(prefixes=None, search=None, **settings):
        search = search or BeamSearch(beam_size=4, **settings)
        return search_batches(model, search, sources, prefixes)

    plain = found()
    assert all(len(tokens) <= 3 for f in found(max_length=3) for tokens in f.tokens)
    forced = found(prefixes=[[20, 21], []])
    assert all(tokens[:2] == [20, 21] for tokens in forced[0].tokens)
    assert forced[1] == plain[1]
    # One test for all settings, since every search must be compiled.
    many = found(
        **{"min_length": 10, "max_extra_length": 2},  # The minimum length extends the other.
        **{"no_repeat_ngram": 1, "diversity_groups": 4, "diversity_penalty": 5.0},
        **{"penalty": "power", "length_penalty": 1.0},
    )
    assert len({tokens[0] for tokens in many[0].tokens}) == 4
    for f in many:
        for tokens, score, log_prob in zip(*f, strict=True):
            assert len(set(tokens)) == len(tokens) > 10
            assert score == pytest.approx(log_prob / len(tokens), rel=1e-5)
    with pytest.raises(UserError, match=r"min_length must be less than model\.max_length=16"):
        found(min_length=16)
    draws = [found(search=Sampling(num_samples=4, seed=seed))[0].tokens for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


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
    sources, search = [[5, 6, 1], [], [7, 8, 9, 1]], BeamSearch(beam_size=2)
    alone = search_batches(model, search, sources)
    twice = search_batches(Ensemble(model.members * 2), search, sources)
    assert alone[1] == twice[1] == Decoded([], [], [])
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
    found, expected = quantized.hypotheses(sentences), exact.hypotheses(sentences)
    pairs = [(f[0], e[0]) for f, e in zip(found, expected, strict=True)]
    agreeing = [f.log_prob - e.log_prob for f, e in pairs if f.text == e.text]
    assert len(agreeing) >= 30
    assert 0 < np.abs(agreeing).max() < 0.5
    on_the_fly = Translator.load(learned_workdir, search=search, compute_dtype="int8")
    assert on_the_fly.hypotheses(sentences) == found


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
