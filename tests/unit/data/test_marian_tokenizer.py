"""Marian's tokenizer against transformers' MarianTokenizer.

``tests/fixtures/make_marian.py`` makes the fixture.
"""

import base64
import json
import pathlib

import pytest

from jaxformer.data.marian_tokenizer import MarianTokenizer, load_tokenizer
from jaxformer.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer, train_tokenizer
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


def test_a_language_code_is_one_token_only_at_the_beginning(tokenizer):
    code, *rest = tokenizer.encode(">>deu<< the cat")
    assert tokenizer.piece(code) == ">>deu<<"
    assert rest == tokenizer.encode("the cat")
    assert code not in tokenizer.encode("the >>deu<< cat")
    assert tokenizer.encode(">>xyz<<the cat") == [UNK, *rest]


def test_special_tokens_are_never_made_from_text_nor_decoded(tokenizer):
    ids = tokenizer.encode("</s> <pad> <s> >>deu<<")
    assert not {PAD, EOS, BOS} & set(ids)
    assert tokenizer.encode("") == tokenizer.encode("   ") == []
    assert tokenizer.encode_batch([]) == []
    assert tokenizer.decode([]) == tokenizer.decode([PAD, EOS, BOS, UNK]) == ""


def test_a_file_keeps_everything(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.model"
    tokenizer.save(path)
    loaded = load_tokenizer(path)
    assert isinstance(loaded, MarianTokenizer)
    assert loaded.sha256 == tokenizer.sha256
    assert loaded.vocab_size == tokenizer.vocab_size
    text = ">>deu<< the cat sees a dog"
    assert loaded.encode(text) == tokenizer.encode(text)
    assert load_tokenizer(path).decode(range(20)) == tokenizer.decode(range(20))


def test_a_file_of_the_other_kind_is_recognized(tmp_path):
    path = tmp_path / "tokenizer.model"
    trained = train_tokenizer(["a few words"], 270)
    trained.save(path)
    loaded = load_tokenizer(path)
    assert type(loaded) is Tokenizer
    assert loaded.encode("words") == trained.encode("words")


def test_hostile_values_are_refused(tokenizer):
    for change, message in (
        ({"source": None}, "a SentencePiece model as source: found none"),
        ({"source": 3}, "a SentencePiece model as source: found none"),
        ({"source": ""}, "a SentencePiece model as source: found none"),
        ({"target": "???"}, "a SentencePiece model as target: found none"),
        ({"target": "ä"}, "a SentencePiece model as target: found none"),
        ({"target": base64.b64encode(b"x" * 9).decode()}, "SentencePiece model as target: found"),
        ({"pieces": None}, "a list of strings as pieces"),
        ({"pieces": "abc"}, "a list of strings as pieces"),
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
    for content in (b"{", b"{}", b"[]", b'{"a": \xff}', b'{"a":' * 100_000, b"", b"{\x00"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"tokenizer\.model: expected a (Marian|Sentence)"):
            load_tokenizer(path)


def test_ids_out_of_range_and_a_string_for_a_list_are_refused(tokenizer):
    size = tokenizer.vocab_size
    for call in (lambda: tokenizer.decode([5, size]), lambda: tokenizer.piece(size)):
        with pytest.raises(UserError, match=f"token ids from 0 to {size - 1}, got {size}"):
            call()
    with pytest.raises(UserError, match="got -1"):
        tokenizer.decode([-1])
    for encode in (tokenizer.encode_batch, tokenizer.encode_target_batch):
        with pytest.raises(UserError, match="expected a list of texts, got one string, 'ten'"):
            encode("ten")
