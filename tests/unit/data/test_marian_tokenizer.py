"""Marian's tokenizer against transformers' MarianTokenizer.

``tests/fixtures/make_marian.py`` makes the fixture.
"""

import json
import pathlib

import pytest

from jaxformer.data.marian_tokenizer import MarianTokenizer
from jaxformer.data.tokenizer import EOS, PAD, UNK, Tokenizer
from jaxformer.errors import UserError

FIXTURES = pathlib.Path(__file__).parents[2] / "fixtures" / "marian"
MODEL = FIXTURES / "swish_tied"
SPECIAL = {"<pad>": PAD, "</s>": EOS, "<unk>": UNK}


@pytest.fixture(scope="module")
def vocabulary():
    ids = json.loads((MODEL / "vocab.json").read_text())
    return sorted(ids, key=ids.__getitem__)


@pytest.fixture(scope="module")
def tokenizer(vocabulary):
    pieces = [piece for piece in vocabulary if piece not in SPECIAL]
    source = (MODEL / "source.spm").read_bytes()
    target = (MODEL / "target.spm").read_bytes()
    return MarianTokenizer.assemble(source, target, pieces)


@pytest.fixture(scope="module")
def ours(tokenizer, vocabulary):
    """Returns our id for each of Marian's ids, found by piece."""
    ids = range(UNK + 1, tokenizer.vocab_size)
    of_piece = {tokenizer.piece(i): i for i in ids}
    of_piece |= SPECIAL
    return [of_piece.get(piece, -1) for piece in vocabulary]


@pytest.fixture(scope="module")
def texts():
    return json.loads((FIXTURES / "texts.json").read_text())


@pytest.mark.parametrize("side", ["encode", "encode_target"])
def test_encodes_as_transformers_does(side, tokenizer, ours, texts):
    encode = getattr(tokenizer, side)
    encode_batch = getattr(tokenizer, f"{side}_batch")
    lines = [entry["text"] for entry in texts[side]]

    rows = [encode(line) for line in lines]
    for row, entry in zip(rows, texts[side], strict=True):
        expected = [ours[i] for i in entry["ids"]]
        assert [*row, EOS] == expected, entry

    assert encode_batch(lines) == rows
    assert tokenizer.encode_batch(lines) != tokenizer.encode_target_batch(lines)


def test_decodes_as_transformers_does(tokenizer, ours, texts):
    for entry in texts["decode"]:
        ids = [ours[i] for i in entry["ids"]]
        assert tokenizer.decode(ids) == entry["text"], entry

    assert len(texts["decode"]) > 60


def test_unknown_characters(tokenizer):
    assert tokenizer.unknown_characters(">>deu<< the 漢字 cat漢 🙂") == "漢字🙂"


def test_a_language_code_is_one_token_only_at_the_beginning(tokenizer):
    code, *rest = tokenizer.encode(">>deu<< the cat")
    assert tokenizer.piece(code) == ">>deu<<"
    assert rest == tokenizer.encode("the cat")

    assert code not in tokenizer.encode("the >>deu<< cat")
    assert tokenizer.encode(" >>deu<< the cat") == [code, *rest]
    assert tokenizer.encode(">>xyz<<the cat") == [UNK, *rest]


def test_languages_are_those_of_the_codes(tokenizer):
    assert tokenizer.language_codes == (">>deu<<", ">>fra<<")

    values = json.loads(tokenizer.serialized) | {"pieces": ["a"]}
    without = MarianTokenizer(json.dumps(values).encode())
    with pytest.raises(UserError, match=r"f:1: expected text, .* no language codes: got >>deu<<"):
        without.check_language(">>deu<< the cat", "f:1")


def test_files_that_are_not_tokenizers_are_refused(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.model"
    with pytest.raises(UserError, match=r"tokenizer\.model: cannot be read: No such file"):
        Tokenizer.load(path)

    values = json.loads(tokenizer.serialized)
    changes = (
        {"source": 3},
        {"target": "???"},
        {"pieces": ["a", 1]},
        {"pieces": ["a", "a"]},
    )
    contents = [json.dumps(values | change).encode() for change in changes]
    contents += [b"{}", b'{"a": \xff}', b'{"a":' * 100_000, b""]

    for content in contents:
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"tokenizer\.model: expected a (Marian|Sentence)"):
            Tokenizer.load(path)
