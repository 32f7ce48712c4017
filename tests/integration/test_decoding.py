"""Decoding is independent of batching and needs few compilations; settings reach the search."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.checkpoint.manifest import Manifest
from jaxformer.config import ModelConfig
from jaxformer.data.numerals import english
from jaxformer.errors import UserError
from jaxformer.experiment import train
from jaxformer.inference import batched_search
from jaxformer.inference.batched_search import Decoded, search_batches
from jaxformer.inference.quantization import quantize
from jaxformer.inference.translator import Translator
from jaxformer.inference.weights import average, prepare_params
from jaxformer.models.transformer import Transformer
from jaxformer.search import BeamSearch, Sampling
from jaxformer.workdir import Workdir

from .compilations import Compilations

SENTENCES = [english(n) for n in np.random.default_rng(0).integers(0, 100_000, 200).tolist()]


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
    order = np.random.default_rng(1).permutation(len(sources))
    shuffled = translator.translate_ids([sources[n] for n in order])
    same([shuffled[n] for n in np.argsort(order)], expected)
    for size in (1, 2, 7, 32):
        # Seven sentences get a smaller batch shape than 32 sentences.
        buckets = ((32 if size < 32 else 64, size),)
        monkeypatch.setattr(batched_search, "_BUCKETS", buckets)
        monkeypatch.setattr(batched_search, "_FEW", ())
        jax.clear_caches()
        found = translator.translate_ids(sources if size > 1 else sources[:40])
        same(found, expected[: len(found)])


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
    tokens = jnp.ones((1, 1), jnp.int32)
    params = jax.jit(Transformer(config).init)(jax.random.key(0), tokens, tokens)["params"]
    # Padding is never generated, since force-decoding would mask it.
    params["logits_bias"] = params["logits_bias"].at[1].set(ending).at[0].set(-1e9)
    return config, prepare_params(config, params)


@pytest.mark.nightly
def test_a_thousand_sentences_need_few_compilations():
    config, params = biased_model(1024, ending=3.0)
    random = np.random.default_rng(0)
    sources = [[*random.integers(4, 50, n - 1).tolist(), 1] for n in range(1, 1001)]
    settings = BeamSearch(beam_size=2)
    compilations = Compilations()
    with compilations:
        search_batches((config,), settings, (params,), sources[:10])
    assert 1 <= compilations.count <= 4  # The listener works, and the warm-up compiles.
    compilations.count = 0
    with compilations:
        found = search_batches((config,), settings, (params,), sources)
    assert all(f.tokens for f in found)
    assert compilations.count <= 8
    with compilations:
        search_batches((config,), settings, (params,), sources[::-7])
    assert compilations.count <= 8  # All compilations since the warm-up.


def test_nothing_compiles_after_warm_up(tiny_workdir):
    # No other test uses this search, whose programs would be compiled already.
    search = BeamSearch(beam_size=4, length_penalty=0.123, max_extra_length=9)
    translator = Translator.load(tiny_workdir, search=search)
    compilations = Compilations()
    with compilations:
        translator.warm_up(sentences=1, tokens=16)
    assert compilations.count == 2
    compilations.count = 0
    with compilations:
        translator.translate(["one"])
        translator.translate(["two hundred"])
    assert compilations.count == 0


def test_stages_do_not_change_translations():
    """Growing the capacity gives the same translations as full capacity from the start."""
    config, params = biased_model(128, ending=-1.0)
    sources = [[5, 6, 1]] * 3 + [[7, 1]] * 9
    settings = BeamSearch(beam_size=3, max_extra_length=100)
    found = search_batches((config,), settings, (params,), sources)
    assert max(len(f.tokens[0]) for f in found) > 32
    whole = search_batches((config,), settings, (params,), sources, prefixes=[[]] * 12)
    same(found, whole)
    apply = jax.jit(Transformer(config).apply)
    for source, decoded in zip(sources[2:5], found[2:5], strict=True):
        for tokens, log_prob in zip(decoded.tokens, decoded.log_probs, strict=True):
            src, tgt_in = np.zeros((1, 3), np.int32), np.zeros((1, 128), np.int32)
            src[0, : len(source)], tgt_in[0, : len(tokens)] = source, [2, *tokens[:-1]]
            log_probs = np.asarray(jax.nn.log_softmax(apply({"params": params}, src, tgt_in)))
            forced = log_probs[0, np.arange(len(tokens)), tokens]
            assert log_prob == pytest.approx(float(forced.sum()), abs=1e-4)


@pytest.mark.ci
def test_settings_reach_the_search():
    config, params = biased_model(16, ending=1.0)
    sources = [[5, 6, 7, 8, 1], [9, 10, 1]]

    def found(prefixes=None, search=None, **settings):
        search = search or BeamSearch(beam_size=4, **settings)
        return search_batches((config,), search, (params,), sources, prefixes)

    plain = found()
    assert all(len(tokens) <= 3 for f in found(max_length=3) for tokens in f.tokens)
    forced = found(prefixes=[[20, 21], []])
    assert all(tokens[:2] == [20, 21] for tokens in forced[0].tokens)
    assert forced[1] == plain[1]
    # One test for all settings, since every search must be compiled.
    many = found(
        min_length=10,
        no_repeat_ngram=1,
        diversity_groups=4,
        diversity_penalty=5.0,
        penalty="power",
        length_penalty=1.0,
    )
    assert len({tokens[0] for tokens in many[0].tokens}) == 4
    for f in many:
        for tokens, score, log_prob in zip(*f, strict=True):
            assert len(set(tokens)) == len(tokens) > 10
            assert score == pytest.approx(log_prob / len(tokens), rel=1e-5)
    draws = [found(search=Sampling(num_samples=4, seed=seed))[0].tokens for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_samples_do_not_depend_on_the_batch():
    config, params = biased_model(16, ending=1.0)
    settings = Sampling(num_samples=2, seed=3)
    sources = [[n, n + 1, 1] for n in range(4, 14)]
    together = search_batches((config,), settings, (params,), sources)
    for n in (0, 3, 9):
        (alone,) = search_batches((config,), settings, (params,), [sources[n]], first=n)
        assert alone.tokens == together[n].tokens
    assert (
        together[0].tokens
        != search_batches((config,), settings, (params,), sources[:1], first=5)[0].tokens
    )


def test_an_ensemble_of_a_model_with_itself_is_the_model():
    config, params = biased_model(16, ending=1.0)
    sources = [[5, 6, 1], [], [7, 8, 9, 1]]
    alone = search_batches((config,), BeamSearch(), (params,), sources)
    twice = search_batches((config, config), BeamSearch(), (params, params), sources)
    assert alone[1] == twice[1] == Decoded([], [], [])
    same([alone[0], alone[2]], [twice[0], twice[2]])


def test_quantized_parameters_translate_like_exact_ones(learned_workdir, tmp_path):
    output = tmp_path / "int8"
    before, after = quantize(learned_workdir, output)
    assert 3.0 < before / after < 4.0
    exact, quantized = Translator.load(learned_workdir), Translator.load(output)
    assert quantized.config.model.compute_dtype == "int8"
    assert quantized.weights == "step 0"
    sentences = SENTENCES[:40]
    found, expected = quantized.hypotheses(sentences), exact.hypotheses(sentences)
    pairs = [(f[0], e[0]) for f, e in zip(found, expected, strict=True)]
    agreeing = [f.log_prob - e.log_prob for f, e in pairs if f.text == e.text]
    assert len(agreeing) >= 30
    assert 0 < np.abs(agreeing).max() < 0.5
    on_the_fly = Translator.load(learned_workdir, compute_dtype="int8").hypotheses(sentences)
    assert on_the_fly == found


def test_invalid_quantizations_are_refused(learned_workdir, tmp_path):
    output = tmp_path / "int8"
    quantize(learned_workdir, output)
    with pytest.raises(UserError, match="expected the name of a new folder, but it exists"):
        quantize(learned_workdir, output)
    with pytest.raises(UserError, match="but it is int8 already"):
        quantize(output, tmp_path / "again")
    with pytest.raises(
        UserError, match="quantized to int8: expected to compute in int8, got float32"
    ):
        Translator.load(output, compute_dtype="float32")


def test_a_failed_quantization_can_be_repeated(learned_workdir, tmp_path, monkeypatch):
    output = tmp_path / "int8"

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "write", full)
        with pytest.raises(OSError, match="No space left"):
            quantize(learned_workdir, output)
    quantize(learned_workdir, output)
    assert Translator.load(output).translate(SENTENCES[:40]) != [""] * 40


def test_quantized_checkpoints_are_not_averaged(learned_workdir, tmp_path):
    quantize(learned_workdir, tmp_path / "int8")
    with pytest.raises(UserError, match="quantized to int8; average the run that it was made from"):
        average(Workdir(tmp_path / "int8"), 1)


def test_training_in_int8_is_refused(tiny_config, tmp_path):
    config = tiny_config()
    model = dataclasses.replace(config.model, compute_dtype="int8")
    with pytest.raises(UserError, match="int8 is for decoding only: train in float32"):
        train(dataclasses.replace(config, model=model), tmp_path / "run")
