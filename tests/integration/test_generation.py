"""Language models decode together, in batches at the same time, and by kept programs."""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxformer.config import Config, ModelConfig, StreamConfig
from jaxformer.data.character_tokenizer import CharacterTokenizer
from jaxformer.errors import UserError
from jaxformer.inference import decoder, kept_programs, windows
from jaxformer.inference.generator import Generator
from jaxformer.inference.members import Ensemble
from jaxformer.inference.text_scores import score_texts
from jaxformer.models.language_model import LanguageModel
from jaxformer.search import BeamSearch, Sampling
from jaxformer.training.mesh import MeshConfig, make_mesh

from ..unit.nn.weights import random_params

LETTERS = "\nabcdefghijklmnop"
TOKENIZER = CharacterTokenizer.assemble(sorted(LETTERS))
GREEDY = BeamSearch(beam_size=1)
SIZES = {"vocab_size": TOKENIZER.vocab_size, "num_heads": 2, "num_layers": 1, "max_length": 32}
SMALL = ModelConfig(**SIZES, d_model=8, d_ff=8)
LARGE = ModelConfig(**SIZES, d_model=16, d_ff=24, positions="rotary")
PROMPTS = ["abc", "d", "fgh", "mn", "p"]


def make(model=LARGE, search=GREEDY, scale=0.6, **changes):
    """Returns a generator with random parameters."""
    tokens = np.ones((1, 2), np.int32)
    params = random_params(LanguageModel(model), tokens, scale=scale)
    model = dataclasses.replace(model, **changes)
    config = Config(model=model, data=StreamConfig(file="none", length=32), search=search)
    return Generator(config, jax.device_put(params), TOKENIZER)


@functools.cache
def whole_pass(model):
    return jax.jit(model.apply)


def log_probs_of(generator, tokens):
    """Returns log probabilities of the next token in float64, of a whole pass without a cache."""
    ((model, params),) = generator.models
    padded = np.zeros((1, 32), np.int32)
    padded[0, : len(tokens)] = tokens
    all_logits = whole_pass(model)({"params": params}, padded)  # [1, T, V]
    logits = np.asarray(all_logits, np.float64)[0, len(tokens) - 1]
    return logits - np.log(np.exp(logits).sum())


def greedy(choose, prompt, count):
    """Returns a continuation whose tokens are chosen one by one, given all tokens so far."""
    tokens = TOKENIZER.encode_prompt(prompt)
    start = len(tokens)
    for _ in range(count):
        tokens.append(int(choose(tokens)))
    return TOKENIZER.decode(tokens[start:])


def test_an_ensemble_averages_probabilities():
    one = make(SMALL)
    other = make(LARGE)
    together = one.ensemble_with(other)

    def mean(tokens):
        of_one = np.exp(log_probs_of(one, tokens))
        of_other = np.exp(log_probs_of(other, tokens))
        return (of_one + of_other) / 2

    def choose(tokens):
        return 4 + mean(tokens)[4:].argmax()  # no special token

    found = together.generate(PROMPTS, max_tokens=12)
    assert found == [greedy(choose, prompt, 12) for prompt in PROMPTS]
    assert found != one.generate(PROMPTS, max_tokens=12)
    assert found != other.generate(PROMPTS, max_tokens=12)

    # The score of a text is the log of its probability under this mean.
    text = TOKENIZER.encode("abcd")
    start = together.prompt_ids("")
    log_prob = 0.0
    for length, token in enumerate(text):
        probabilities = mean([*start, *text[:length]])
        log_prob += np.log(probabilities[token])
    (score,) = score_texts(together, [text])
    np.testing.assert_allclose(score.log_prob, log_prob, rtol=1e-5)


def test_a_tokenizer_of_another_model_is_refused():
    other = make()
    other.tokenizer = CharacterTokenizer.assemble(sorted(LETTERS[::-1] + "Z"))
    with pytest.raises(UserError, match="models of an ensemble must share a tokenizer"):
        make().ensemble_with(other)


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


@pytest.mark.parametrize("search", [Sampling(num_samples=1, seed=3), BeamSearch(beam_size=2)])
def test_programs_of_another_process_give_the_same_texts(search, traces, monkeypatch, tmp_path):
    generator = make(search=search)
    expected = generator.continuations(PROMPTS[:3], max_tokens=20)
    assert traces

    # As in two other processes: the first keeps its programs.
    monkeypatch.setattr(kept_programs, "kept_folder", lambda: tmp_path)
    for process in range(2):
        for program in (windows._start_window, windows._advance_window):
            monkeypatch.setattr(program, "_programs", {})
            monkeypatch.setattr(program, "_structures", {})

        traces.clear()
        assert generator.continuations(PROMPTS[:3], max_tokens=20) == expected
        assert bool(traces) == (process == 0)

    assert len(list(tmp_path.iterdir())) == 2


def test_batches_at_the_same_time_give_the_same_texts(monkeypatch):
    generator = make(search=Sampling(num_samples=2))
    monkeypatch.setattr(windows, "BATCH_SIZES", (4,))
    assert decoder.can_thread(generator.models)
    at_the_same_time = generator.continuations(PROMPTS, max_tokens=40)

    monkeypatch.setattr(decoder, "can_thread", lambda models: False)
    assert generator.continuations(PROMPTS, max_tokens=40) == at_the_same_time
    alone = generator.continuations(PROMPTS[2:3], max_tokens=40, first=2)
    assert alone == at_the_same_time[2:3]


ALPHA = 0.2


def contrasted(expert, amateur, **changes):
    other = make(amateur, scale=0.4, **changes)
    return make(expert, **changes).contrast_with(other, ALPHA)


@functools.cache
def texts_of_numpy():
    """Returns greedy continuations by the contrast, from whole passes without a cache."""
    expert = make(LARGE)
    amateur = make(SMALL, scale=0.4)

    def choose(tokens):
        own = log_probs_of(expert, tokens)[4:]  # no special token
        difference = own - log_probs_of(amateur, tokens)[4:]
        plausible = own >= own.max() + np.log(ALPHA)
        return 4 + np.where(plausible, difference, -np.inf).argmax()

    return [greedy(choose, prompt, 12) for prompt in PROMPTS]


def test_contrastive_search_equals_whole_passes():
    generator = contrasted(LARGE, SMALL)
    assert generator.generate(PROMPTS, max_tokens=12) == texts_of_numpy()

    alone = [generator.generate([prompt], max_tokens=12)[0] for prompt in PROMPTS[:2]]
    assert alone == texts_of_numpy()[:2]
    streamed = "".join(generator.stream(PROMPTS[0], max_tokens=12))
    assert streamed == texts_of_numpy()[0]

    assert make(LARGE).generate(PROMPTS, max_tokens=12) != texts_of_numpy()
    assert generator.weights == "given; amateur: given"


def test_contrastive_samples_do_not_depend_on_the_batch_and_pass_the_context():
    generator = contrasted(LARGE, SMALL, search=Sampling(num_samples=2, seed=1))
    together = generator.continuations(PROMPTS, max_tokens=40)
    for text in itertools.chain(*together):
        assert len(text) == 40

    alone = generator.continuations(PROMPTS[1:2], max_tokens=40, first=1)
    assert alone == together[1:2]


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_contrastive_search_on_a_mesh_of_two_devices(dtype):
    generator = contrasted(LARGE, SMALL, compute_dtype=dtype)
    expected = generator.generate(PROMPTS[:1], max_tokens=12)
    if dtype == "float32":
        assert expected == texts_of_numpy()[:1]

    mesh = make_mesh(MeshConfig(data=2), jax.devices()[:2])
    replicated = NamedSharding(mesh, PartitionSpec())
    generator.models = jax.device_put(generator.models, replicated)
    assert not decoder.can_thread(generator.models)
    assert generator.generate(PROMPTS[:1], max_tokens=12) == expected


def test_scores_of_a_contrast_are_the_expert_s():
    text = TOKENIZER.encode("abcd")
    (expected,) = score_texts(make(LARGE), [text])
    assert score_texts(contrasted(LARGE, SMALL), [text]) == [expected]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda one, both: one.contrast_with(one, 1.5), "alpha must be from 0 to 1: got 1.5"),
        (lambda one, both: one.contrast_with(both), "a contrast is made of two models or ensem"),
        (lambda one, both: one.ensemble_with(both), "form the ensemble first, then contrast it"),
    ],
)
def test_combinations_that_have_no_meaning_are_refused(call, words):
    with pytest.raises(UserError, match=words):
        call(make(SMALL), contrasted(SMALL, SMALL))
