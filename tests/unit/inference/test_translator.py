"""Validation of the arguments of a translator."""

import re

import jax
import numpy as np
import pytest

from jaxformer.config import Config, DataConfig, ModelConfig
from jaxformer.data.bpe import train_tokenizer
from jaxformer.data.numerals import NumeralsCorpus
from jaxformer.errors import UserError
from jaxformer.inference.alignment import align
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
def translator():
    """A translator without parameters, so that running the model would fail."""
    return Translator(CONFIG, {}, train_tokenizer(LINES, 300))


TEXTS = "expected a list of texts"
IDS = "expected token ids from 0 to 299, got"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        # A string is not a list of sentences.
        (lambda t: t.translate("ten"), f"sentences: {TEXTS}, got one string, 'ten'; put it"),
        (lambda t: t.translate(["ten"], prefixes="z"), f"prefixes: {TEXTS}"),
        (lambda t: align(t, "ten", [("zehn", [5, 1])] * 3), f"sources: {TEXTS}"),
        (lambda t: Parser(t).parse("It works"), "sentences[0]: expected a list of words, got one"),
        (lambda t: t.tokenizer.encode_batch("ten"), f"texts: {TEXTS}, got one"),
        # Token ids out of range.
        (lambda t: t.translate_ids([[5, 1], [300, 1]]), f"sources[1]: {IDS} 300; enc"),
        (lambda t: t.translate_ids([[5, 1]], [[300]]), f"prefixes[0]: {IDS} 300"),
        (lambda t: t.translate_ids([[5] * 17]), "at most 16 tokens (model.max_length), got 17"),
        (lambda t: score_pairs(t, [([5, 1], [300, 1])]), f"target of pairs[0]: {IDS} 300"),
        (lambda t: score_pairs(t, [([5], [5] * 17)]), "target of pairs[0]: expected at most 16"),
        (lambda t: align(t, ["ten"], [("zehn", [300, 1])]), f"target of pairs[0]: {IDS} 300"),
        (lambda t: t.detokenize([5, 300]), f"token ids: {IDS} 300"),
        (lambda t: t.tokenizer.decode([-7]), "token ids from 0 to 299, got -7"),
        # Other numbers.
        (lambda t: t.translate(["a", "b"], prefixes=["c"]), "for each of 2 sentences, got 1"),
        (lambda t: t.translate_ids([[5, 1]], n_best=5), "n_best must be from 0 to 4, "),
        (lambda t: t.translate_ids([[5, 1]], []), "prefixes: expected one for each of 1 sources, "),
        (lambda t: align(t, ["a", "b"], []), "targets: expected one for each of 2 sources, got 0"),
        (lambda t: Parser(t).parse([["a"]], tags=[]), "for each of 1 sentences, got 0"),
        (lambda t: record_attention(t, " "), "expected a sentence, got an empty one"),
        (lambda t: t.warm_up(sentences=0), "sentences must be at least 1: got 0"),
    ],
)
def test_invalid_arguments_are_refused(translator, call, words):
    with pytest.raises(UserError, match=re.escape(words)):
        call(translator)


def test_a_translation_is_one_line_without_tabs(translator):
    """Bytes can spell every character."""
    tokenizer = translator.tokenizer
    known = {tokenizer.piece(i): i for i in range(tokenizer.vocab_size)}

    def spelled(text):
        return [known[f"<0x{byte:02X}>"] for byte in text.encode()]

    separators = "\t\n\r\x0b\x0c\x1b\x1c\x1d\x1e\x7f\x85\u2028\u2029"
    for character in separators:
        ids = [known["a"], *spelled(character), known["b"]]
        assert tokenizer.decode(ids) == f"a{character}b"
        assert translator.detokenize(ids) == "a b"

    assert translator.detokenize(spelled("\xa0é")) == "\xa0é"


def test_ids_may_be_of_any_integer_type(translator):
    ids = translator.source_ids("ten")
    assert ids[-1] == 1

    text = translator.detokenize(ids)
    for array in (np.array(ids), jax.numpy.array(ids)):
        assert text == translator.detokenize(array)
