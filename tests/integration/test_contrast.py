"""Contrastive translation: the scores of whole passes, from Python and the command line."""

import functools
import json
from typing import NamedTuple

import jax
import numpy as np
import pytest

from jaxformer.cli import main
from jaxformer.config import Config, DataConfig, ModelConfig
from jaxformer.data.bpe import train_tokenizer
from jaxformer.data.numerals import NumeralsCorpus
from jaxformer.data.tokenizer import BOS, EOS, PAD
from jaxformer.errors import UserError
from jaxformer.inference.pair_scores import score_pairs
from jaxformer.inference.translator import Translator
from jaxformer.models.transformer import Transformer
from jaxformer.search import BeamSearch, Sampling

from ..unit.nn.weights import random_params

LINES = [side for pair in NumeralsCorpus().pairs("held_out") for side in pair]
TOKENIZER = train_tokenizer(LINES, 300)
SIZES = {"vocab_size": 300, "num_heads": 2, "num_layers": 1, "max_length": 24, "biases": True}
EXPERT = ModelConfig(**SIZES, d_model=16, d_ff=16)
AMATEUR = ModelConfig(**SIZES, d_model=8, d_ff=8)
SENTENCES = ["ninety-nine", "one thousand", "six"]
ALPHA = 0.3
GREEDY = BeamSearch(beam_size=1, max_length=8)


def make(model, search=GREEDY, scale=0.5):
    tokens = np.ones((1, 1), np.int32)
    params = random_params(Transformer(model), tokens, tokens, scale=scale)
    params["logits_bias"][PAD] = -1e9
    config = Config(model=model, data=DataConfig(max_length=24), search=search)
    return Translator(config, jax.device_put(params), TOKENIZER)


def contrasted(search=GREEDY, alpha=ALPHA):
    return make(EXPERT, search).contrast_with(make(AMATEUR, scale=0.3), alpha)


@functools.cache
def whole_pass(model):
    return jax.jit(model.apply)


def log_probs_of(translator, source, tokens):
    """Returns log probabilities of the next token in float64, of a whole pass without a cache."""
    ((model, params),) = translator.models
    src = np.full((1, 24), PAD, np.int32)
    tgt_in = np.full((1, 24), PAD, np.int32)
    src[0, : len(source)] = source
    tgt_in[0, : len(tokens) + 1] = [BOS, *tokens]

    all_logits = whole_pass(model)({"params": params}, src, tgt_in)  # [1, T, V]
    logits = np.asarray(all_logits, np.float64)[0, len(tokens)]
    return logits - np.log(np.exp(logits).sum())


class Greedy(NamedTuple):
    """Tokens, their log probability under the expert, and the sum of their differences."""

    tokens: list[int]
    log_prob: float
    difference: float


def greedy(source, forced=()):
    """Returns what greedy search by the contrast finds, after tokens that are forced."""
    expert = make(EXPERT)
    amateur = make(AMATEUR, scale=0.3)
    tokens = []
    log_prob = 0.0
    total = 0.0
    while len(tokens) < 8 and EOS not in tokens:
        own = log_probs_of(expert, source, tokens)  # [V]
        difference = own - log_probs_of(amateur, source, tokens)
        if len(tokens) < len(forced):
            token = forced[len(tokens)]
        else:
            plausible = own >= own.max() + np.log(ALPHA)
            token = int(np.where(plausible, difference, -np.inf).argmax())

        log_prob += own[token]
        total += difference[token]
        tokens.append(token)
    return Greedy(tokens, log_prob, total)


def test_greedy_search_equals_whole_passes_in_a_batch_and_alone():
    translator = contrasted()
    sources = [translator.source_ids(sentence) for sentence in SENTENCES]
    found = translator.translate_ids(sources)
    for source, decoded in zip(sources, found, strict=True):
        expected = greedy(source)
        assert decoded.tokens == [expected.tokens]
        np.testing.assert_allclose(decoded.log_probs, [expected.log_prob], atol=1e-4)

        penalty = ((5 + len(expected.tokens)) / 6) ** 0.6
        score = expected.difference / penalty
        np.testing.assert_allclose(decoded.scores, [score], atol=1e-4)

        (alone,) = translator.translate_ids([source])
        assert alone.tokens == decoded.tokens

    without_contrast = make(EXPERT).translate_ids(sources)
    assert [each.tokens for each in found] != [each.tokens for each in without_contrast]

    # The log probability is the one that scoring gives.
    targets = [decoded.tokens[0] for decoded in found]
    log_probs = [decoded.log_probs[0] for decoded in found]
    scores = score_pairs(translator, list(zip(sources, targets, strict=True)))
    scored = [score.log_prob for score in scores]
    np.testing.assert_allclose(scored, log_probs, atol=1e-4)


def test_forced_tokens_outside_the_plausible_set_are_kept():
    translator = contrasted()
    expert = make(EXPERT)
    sources = [translator.source_ids(sentence) for sentence in SENTENCES]

    # Prefixes of one, two and three times an improbable token. The first token of each is read in
    # a pass, the others one by one.
    prefixes = []
    for times, source in enumerate(sources, start=1):
        from_worst = log_probs_of(expert, source, []).argsort()
        prefixes.append([int(from_worst[3])] * times)

    found = translator.translate_ids(sources, prefixes)
    for source, prefix, decoded in zip(sources, prefixes, found, strict=True):
        expected = greedy(source, forced=prefix)
        assert decoded.tokens == [expected.tokens]
        assert expected.tokens[: len(prefix)] == prefix
        np.testing.assert_allclose(decoded.log_probs, [expected.log_prob], rtol=1e-4)


@pytest.mark.parametrize(
    "search",
    [BeamSearch(beam_size=3), Sampling(num_samples=3, seed=5)],
    ids=["beam", "samples"],
)
def test_hypotheses_keep_the_expert_s_log_probabilities(search):
    """They need a second stage, and are ranked by their score."""
    translator = contrasted(search)
    sources = [translator.source_ids(sentence) for sentence in SENTENCES]
    found = translator.translate_ids(sources)
    pairs = []
    for source, decoded in zip(sources, found, strict=True):
        assert decoded.scores == sorted(decoded.scores, reverse=True)
        pairs += [(source, tokens) for tokens in decoded.tokens]
    assert max(len(tokens) for _, tokens in pairs) > 16

    log_probs = [log_prob for decoded in found for log_prob in decoded.log_probs]
    scored = [score.log_prob for score in score_pairs(make(EXPERT), pairs)]
    np.testing.assert_allclose(log_probs, scored, rtol=1e-4)

    (alone,) = translator.translate_ids(sources[1:2], first=2)
    assert alone.tokens == found[1].tokens


def test_another_tokenizer_is_refused():
    other = make(AMATEUR)
    other.tokenizer = train_tokenizer(LINES[::2], 300)
    with pytest.raises(UserError, match="expert and amateur must share a tokenizer"):
        make(EXPERT).contrast_with(other)


def test_commands_contrast_or_refuse_it(learned_workdir, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("nine\n")
    run = str(learned_workdir)
    options = ["--workdir", run, "--amateur", run]

    # Without a difference, all plausible tokens have the score 0; alpha = 1 leaves the best one.
    json_options = ["--json", "--contrast", "1", "--input", "in.txt"]
    assert main(["translate", *options, *json_options]) == 0

    out, err = capsys.readouterr()
    (hypothesis,) = json.loads(out)["hypotheses"]
    assert err.count(f"{run}: ") == 2
    assert hypothesis["score"] == 0
    assert hypothesis["log_prob"] < 0
    greedy = Translator.load(learned_workdir, search=BeamSearch(beam_size=1))
    assert hypothesis["text"] == greedy.translate(["nine"])[0]

    files = ["--source", "in.txt", "--target", "in.txt"]
    for words, error in (
        (["translate", "--workdir", run, "--contrast", "0.1"], "--contrast needs --amateur DIR"),
        (["translate", *options, "--contrast", "2"], "--contrast must be from 0 to 1: got 2.0"),
        (["score", *options, *files], "scored as they are: leave --amateur out"),
        (["export", "safetensors", *options, "--output", "out"], "--amateur"),
    ):
        assert main(words) == 2
        assert error in capsys.readouterr().err
