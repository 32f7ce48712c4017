"""Marian's tokenizer against transformers' MarianTokenizer.

``tests/fixtures/make_marian.py`` makes the fixture.
"""

import json
import pathlib

import pytest

from jaxformer.data.marian_tokenizer import MarianTokenizer, load_tokenizer
from jaxformer.data.tokenizer import EOS, PAD, UNK, Tokenizer, train_tokenizer
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
    source, target = ((MODEL / f"{side}.spm").read_bytes() for side in ("source", "target"))
    return MarianTokenizer.assemble(source, target, pieces)


@pytest.fixture(scope="module")
def ours(tokenizer, vocabulary):
    """Returns our id for each of Marian's ids, found by piece."""
    of_piece = {tokenizer.piece(i): i for i in range(UNK + 1, tokenizer.vocab_size)}
    return [SPECIAL.get(piece, of_piece.get(piece, -1)) for piece in vocabulary]


@pytest.fixture(scope="module")
def texts():
    return json.loads((FIXTURES / "texts.json").read_text())


def test_encodes_as_transformers_does(tokenizer, ours, texts):
    for entry in texts["encode"]:
        assert [*tokenizer.encode(entry["text"]), EOS] == [ours[i] for i in entry["ids"]], entry
    batch = tokenizer.encode_batch([entry["text"] for entry in texts["encode"]])
    assert batch == [tokenizer.encode(entry["text"]) for entry in texts["encode"]]


def test_encodes_targets_as_transformers_does(tokenizer, ours, texts):
    for entry in texts["encode_target"]:
        found = [*tokenizer.encode_target(entry["text"]), EOS]
        assert found == [ours[i] for i in entry["ids"]], entry
    assert any(
        tokenizer.encode(entry["text"]) != tokenizer.encode_target(entry["text"])
        for entry in texts["encode_target"]
    )


def test_decodes_as_transformers_does(tokenizer, ours, texts):
    for entry in texts["decode"]:
        assert tokenizer.decode([ours[i] for i in entry["ids"]]) == entry["text"], entry
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
    assert tokenizer.language_codes == (">>deu<<", ">>fra<<")
    values = json.loads(tokenizer.serialized) | {"pieces": ["a"]}
    with pytest.raises(UserError, match=r"f:1: expected text, .* no language codes: got >>deu<<"):
        MarianTokenizer(json.dumps(values).encode()).check_language(">>deu<< the cat", "f:1")


def test_a_file_keeps_everything(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.model"
    tokenizer.save(path)
    loaded = load_tokenizer(path)
    assert isinstance(loaded, MarianTokenizer)
    assert loaded.sha256 == tokenizer.sha256
    text = ">>deu<< the cat sees a dog"
    assert loaded.encode(text) == tokenizer.encode(text)
    train_tokenizer(["a few words"], 270).save(path)
    assert type(load_tokenizer(path)) is Tokenizer


def test_hostile_values_are_refused(tokenizer):
    for change, message in (
        ({"source": 3}, "a SentencePiece model as source: found none"),
        ({"target": "???"}, "a SentencePiece model as target: found none"),
        ({"pieces": ["a", 1]}, "a list of strings as pieces"),
        ({"pieces": ["a", "a"]}, "different pieces"),
    ):
        values = json.loads(tokenizer.serialized) | change
        with pytest.raises(UserError, match=message):
            MarianTokenizer(json.dumps(values).encode())


def test_files_that_are_not_tokenizers_are_refused(tmp_path):
    path = tmp_path / "tokenizer.model"
    with pytest.raises(UserError, match=r"tokenizer\.model: cannot be read: No such file"):
        load_tokenizer(path)
    for content in (b"{}", b'{"a": \xff}', b'{"a":' * 100_000, b""):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"tokenizer\.model: expected a (Marian|Sentence)"):
            load_tokenizer(path)
