"""Validation of the arguments of a translator."""

import pathlib

import jax
import numpy as np
import pytest

from jaxformer.config import Config, DataConfig, ModelConfig
from jaxformer.data.numerals import NumeralsCorpus
from jaxformer.data.tokenizer import train_tokenizer
from jaxformer.errors import UserError
from jaxformer.inference.alignment import align, word_attention
from jaxformer.inference.attention_view import record_attention
from jaxformer.inference.pair_scores import score_pairs
from jaxformer.inference.translator import Translator
from jaxformer.tasks.parsing.parser import Parser

LINES = [side for pair in NumeralsCorpus().pairs("held_out") for side in pair]
CONFIG = Config(
    model=ModelConfig(vocab_size=300, d_model=8, d_ff=8, num_heads=2, max_length=16),
    data=DataConfig(corpus="trees", max_length=16),
)


@pytest.fixture(scope="module")
def translator() -> Translator:
    """A translator without parameters, so that running the model would fail."""
    return Translator(CONFIG, {}, train_tokenizer(LINES, 300))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t: t.translate("ten"), "sentences: .*got one string, 'ten'; put it.*: \\['ten'\\]"),
        (lambda t: t.hypotheses("ten"), "sentences: expected a list of texts, got one string"),
        (lambda t: t.translate(["ten"], prefixes="z"), "prefixes: expected a list of texts"),
        (lambda t: align(t, "ten", [("zehn", [5, 1])] * 3), "sources: expected a list of texts"),
        (lambda t: word_attention(t, "t", [("z", [5])]), "sources: expected a list of texts"),
        (lambda t: Parser(t).parse("It works"), "sentences: expected a list of sentences, got one"),
        (
            lambda t: Parser(t).parse(["It works"]),
            "sentences\\[0\\]: expected a list of words, got",
        ),
        (lambda t: t.tokenizer.encode_batch("ten"), "texts: expected a list of texts, got one"),
        (lambda t: t.tokenizer.encode_target_batch("ten"), "texts: expected a list of texts"),
    ],
)
def test_a_string_is_refused_as_a_list_of_sentences(translator, call, words):
    with pytest.raises(UserError, match=words):
        call(translator)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda t: t.translate_ids([[5, 1], [300, 1]]),
            "sources\\[1\\]: .* ids from 0 to 299, got 300; enc",
        ),
        (lambda t: t.translate_ids([[-1, 1]]), "sources\\[0\\]: expected token ids .*, got -1"),
        (
            lambda t: t.translate_ids([[5, 1]], [[300]]),
            "prefixes\\[0\\]: expected token ids .*, got 300",
        ),
        (
            lambda t: t.translate_ids([[5] * 17]),
            "expected at most 16 tokens \\(model.max_length\\), got 17",
        ),
        (lambda t: score_pairs(t, [([5, 1], [300, 1])]), "target of pairs\\[0\\]: .*, got 300"),
        (lambda t: score_pairs(t, [([300], [5, 1])]), "source of pairs\\[0\\]: .*, got 300"),
        (lambda t: score_pairs(t, [([5], [5] * 17)]), "target of pairs.*at most 16 tokens .* 17"),
        (lambda t: align(t, ["ten"], [("zehn", [300, 1])]), "target of pairs\\[0\\]: .*, got 300"),
        (lambda t: t.detokenize([5, 300]), "token ids: expected token ids from 0 to 299, got 300"),
        (lambda t: t.tokenizer.decode([-7]), "token ids from 0 to 299, got -7"),
        (lambda t: t.tokenizer.piece(300), "token id: expected token ids from 0 to 299, got 300"),
    ],
)
def test_token_ids_out_of_range_are_refused(translator, call, words):
    with pytest.raises(UserError, match=words):
        call(translator)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda t: t.translate(["a", "b"], prefixes=["c"]),
            "prefixes: .* each of 2 sentences, got 1",
        ),
        (
            lambda t: t.translate_ids([[5, 1]], []),
            "prefixes: expected one for each of 1 sources, got 0",
        ),
        (lambda t: align(t, ["a", "b"], []), "targets: expected one for each of 2 sources, got 0"),
        (lambda t: Parser(t).parse([["a"]], tags=[]), "tags: .* each of 1 sentences, got 0"),
        (lambda t: record_attention(t, " "), "expected a sentence, got an empty one"),
        (lambda t: t.warm_up(sentences=0), "sentences must be at least 1: got 0"),
        (lambda t: t.warm_up(tokens=0), "tokens must be at least 1: got 0"),
    ],
)
def test_other_invalid_arguments_are_refused(translator, call, words):
    with pytest.raises(UserError, match=words):
        call(translator)


def test_ids_may_be_of_any_integer_type(translator):
    ids = translator.source_ids("ten")
    assert ids[-1] == 1
    text = translator.detokenize(ids)
    for array in (np.array(ids), jax.numpy.array(ids)):
        assert text == translator.detokenize(array)


def test_programs_are_cached_like_those_of_commands(monkeypatch, tmp_path: pathlib.Path):
    monkeypatch.setenv("JAXFORMER_CACHE", str(tmp_path))
    tokenizer, before = train_tokenizer(LINES, 300), jax.config.values["jax_compilation_cache_dir"]
    try:
        for given, expected in ((None, str(tmp_path / "programs")), ("/mine", "/mine")):
            jax.config.update("jax_compilation_cache_dir", given)
            Translator(CONFIG, {}, tokenizer)
            assert jax.config.values["jax_compilation_cache_dir"] == expected
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
