"""The text of a continuation is what its tokens add to the text of the prompt, streamed or not."""

import types

import numpy as np
import pytest

from jaxformer.data import stream
from jaxformer.data.bpe import train_tokenizer
from jaxformer.data.character_tokenizer import CharacterTokenizer
from jaxformer.data.moses_tokenizer import MosesTokenizer, Preprocessing
from jaxformer.data.tokenizer import BOS, EOS
from jaxformer.inference.generator import Generator
from jaxformer.search import Sampling

from ...profiles import by_profile

tokenizers = pytest.importorskip("tokenizers")

from tokenizers import decoders, models, pre_tokenizers  # noqa: E402

from jaxformer.data.huggingface_tokenizer import HuggingFaceTokenizer  # noqa: E402

TEXT = 'The "old" café isn\'t here,  it was 5 ▁ feet high.\n\nOld houses stand here.\n' * 9
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = ["▁the", "▁old", "house", "s", "▁", "é", "\ufffd", "."]
SUBWORDS = ["the", "old", "##s", "house", "n't", ".", "é"]


def of_library(pieces, decoder, *, special=("<unk>", "<s>", "</s>", "<|user|>")):
    every_piece = [*special, *pieces]
    vocabulary = {piece: i for i, piece in enumerate(every_piece)}

    model = models.WordLevel(vocabulary, unk_token="<unk>")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(list(special))

    ids = {"pad": None, "eos": 2, "bos": 1, "unk": 0}
    return HuggingFaceTokenizer.assemble(tokenizer.to_str(), ids, len(vocabulary))


def in_sequence(*parts):
    return decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *parts,
        ]
    )


def moses():
    learned = train_tokenizer(["it &apos;s a &quot; house &quot; here ."] * 9, 300)
    options = Preprocessing(source_language="en", target_language="en")
    return MosesTokenizer.assemble(options, learned.serialized)


ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
TOKENIZERS = {
    "characters": CharacterTokenizer.assemble(sorted({*TEXT, "\ufffd"})),
    "byte pairs": stream.train_byte_pairs(TEXT, 300),
    "translation": train_tokenizer(TEXT.splitlines(), 300),
    "symbols": train_tokenizer(TEXT.splitlines(), 300, ["(S", ")"]),
    "Moses": moses(),
    "LLaMA 2": of_library([*WORDS, *BYTES], in_sequence(decoders.Strip(" ", 1, 0))),
    "Gemma": of_library([*WORDS, *BYTES], in_sequence()),
    "byte level": of_library([*ALPHABET, "Ġthe", "Ã©"], decoders.ByteLevel()),
    "Metaspace": of_library(WORDS, decoders.Metaspace()),
    "WordPiece": of_library(SUBWORDS, decoders.WordPiece()),
    "suffixes": of_library(["the</w>", "o", "ld</w>", ".</w>"], decoders.BPEDecoder()),
    "no decoder": of_library(SUBWORDS, None),
    # It joins two tokens into one character.
    "ligatures": of_library(["f", "i", "▁f"], in_sequence(decoders.Replace("fi", "ﬁ"))),
}


class FixedDecoder:
    """Gives given tokens, some at a time."""

    def __init__(self, tokens, chunk):
        self.tokens = tokens
        self.chunk = chunk

    def decode(self, prompts):
        assert len(prompts) == 1
        return {0: np.array([self.tokens])}

    def stream(self, prompts):
        for end in range(self.chunk, len(self.tokens), self.chunk):
            yield 0, np.array([self.tokens[:end]])
        yield from self.decode(prompts).items()


class Fixed(Generator):
    """Generates given tokens, some at a time, after given prompts."""

    def __init__(self, tokenizer, prompt, tokens, chunk=1):
        self.tokenizer = tokenizer
        self.config = types.SimpleNamespace(search=Sampling(num_samples=1))
        self.prompt = prompt
        self.decoder = FixedDecoder(tokens, chunk)

    def prompt_ids(self, text):
        return self.prompt

    def _decoder(self, max_tokens, search=None):
        return self.decoder


def random_tokens(tokenizer, random):
    """Returns random ids, among them special ones, and runs of the bytes of a few characters."""
    count = random.integers(12)
    ids = random.integers(0, tokenizer.vocab_size, count).tolist()

    byte_ids = sorted(tokenizer._byte_ids)
    if len(byte_ids) == 256 and random.random() < 0.7:
        run = [byte_ids[byte] for byte in "é€🎉".encode()]
        ends = random.integers(0, len(run) + 1, 2)
        start, end = sorted(ends.tolist())
        place = random.integers(len(ids) + 1)
        ids[place:place] = run[start:end]
    return ids


@pytest.mark.parametrize("name", TOKENIZERS)
def test_streams_continuations_and_whole_texts_agree(name):
    tokenizer = TOKENIZERS[name]
    random = np.random.default_rng(0)
    for _ in range(by_profile(200, nightly=5000)):
        prompt = random_tokens(tokenizer, random) or [BOS]
        tokens = [*random_tokens(tokenizer, random), EOS]
        chunk = int(random.integers(1, 5))

        before = tokenizer.decode(prompt)
        whole = tokenizer.decode([*prompt, *tokens])
        expected = whole[len(before) :]

        generator = Fixed(tokenizer, prompt, tokens, chunk)
        assert generator.continuations(["x"]) == [[expected]]
        assert "".join(generator.stream("x")) == expected


@pytest.mark.parametrize(
    ("name", "prompt", "pieces", "expected"),
    [
        ("LLaMA 2", ["▁the"], ["▁old", "house"], [" old", "house"]),
        ("LLaMA 2", ["<s>"], ["▁old", "▁the"], ["old", " the"]),
        ("Gemma", ["▁the"], ["▁old"], [" old"]),
        ("Metaspace", ["▁the"], ["▁old", "house"], [" old", "house"]),
        ("WordPiece", ["the"], ["house", "##s", "."], [" house", "s", "."]),
        ("no decoder", ["the"], ["old", "house"], [" old", " house"]),
        ("suffixes", ["the</w>"], ["o", "ld</w>"], [" o", "ld"]),
        ("byte level", ["Ġthe"], ["Ã", "©", "Ġthe"], ["é", " the"]),
        # A character of two bytes, and then a third byte, which makes all three invalid.
        ("LLaMA 2", ["▁the"], ["<0xC3>", "<0xA9>", "▁old"], ["é old"]),
        ("LLaMA 2", ["▁the"], ["<0xC3>", "<0xA9>", "<0xFF>", "▁old"], ["\ufffd" * 3 + " old"]),
        ("LLaMA 2", ["▁the"], ["<0xC3>", "<|user|>", "<0xA9>"], ["é"]),
        ("byte pairs", ["T"], ["<0xC3>", "<0xFF>"], ["\ufffd\ufffd"]),
        ("ligatures", ["▁f"], ["f", "i"], ["ﬁ"]),
    ],
)
def test_pieces_appear_when_no_later_token_can_change_them(name, prompt, pieces, expected):
    tokenizer = TOKENIZERS[name]
    ids = {tokenizer.piece(i): i for i in range(tokenizer.vocab_size)}
    if name == "byte level":  # Its pieces are letters for bytes.
        letters = tokenizers.Tokenizer.from_str(tokenizer.json).get_vocab()
        ids = {letter: int(tokenizer.our_ids[i]) for letter, i in letters.items()}

    prompt_ids = [ids[piece] for piece in prompt]
    tokens = [ids[piece] for piece in pieces]
    generator = Fixed(tokenizer, prompt_ids, tokens)
    assert list(generator.stream("x")) == expected
