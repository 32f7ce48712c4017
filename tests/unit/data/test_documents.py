"""Documents and token files: pieces equal the whole text, files equal arrays."""

import pathlib

import numpy as np
import pytest

from jaxformer.data import documents
from jaxformer.data.bpe import train_byte_pair_model
from jaxformer.data.huggingface_tokenizer import HuggingFaceTokenizer
from jaxformer.data.stream import ByteFallbackTokenizer, TokenStream
from jaxformer.data.tokenizer import EOS
from jaxformer.errors import UserError

from .test_stream import BYTE_PAIRS, CHARACTERS, TEXT

FIXTURES = pathlib.Path(__file__).parents[2] / "fixtures" / "huggingface"


def of_lines(text, tokenizer, separator):
    """Returns the ids of a text, by a loop over its lines."""
    documents = [""]
    for line in text.splitlines(keepends=True):
        if line.strip() == separator:
            documents.append("")
        else:
            documents[-1] += line

    ids = []
    for document in documents:
        ids += [*tokenizer.encode(document), EOS]
    return ids if documents[-1] else ids[:-1]


@pytest.mark.parametrize("tokenizer", [BYTE_PAIRS, CHARACTERS])
@pytest.mark.parametrize("end", ["", "All:\n", "All:", "Speak\n", "Speak"])
def test_pieces_have_the_tokens_of_the_whole_text(tokenizer, end, monkeypatch):
    text = TEXT + end
    whole = tokenizer.encode(text[7:])
    by_document = of_lines(text, tokenizer, "All:")

    for size in (1, 30, 10**6):
        monkeypatch.setattr(documents, "_PIECE", size)
        found = documents.encode_documents(text, tokenizer, "", span=range(7, len(text)))
        assert found.tolist() == whole

        found = documents.encode_documents(text, tokenizer, "All:", span=range(len(text)))
        assert found.tolist() == by_document


def test_lines_are_not_separated_for_tokenizers_that_join_them(monkeypatch):
    assert BYTE_PAIRS.keeps_lines
    assert not HuggingFaceTokenizer.keeps_lines

    model = train_byte_pair_model(
        iter(TEXT.split("\n")),
        300,
        user_defined_symbols=["\n\n", "\n"],
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
    )
    tokenizer = ByteFallbackTokenizer(model)
    assert not tokenizer.keeps_lines

    monkeypatch.setattr(documents, "_PIECE", 1)
    found = documents.encode_documents(TEXT, tokenizer, "", span=range(len(TEXT)))
    assert found.tolist() == tokenizer.encode(TEXT)


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_token_files_have_the_batches_of_their_text(dtype, tmp_path):
    stream = TokenStream.of(TEXT, CHARACTERS)
    train = tmp_path / "train.bin"
    valid = tmp_path / "val.bin"
    stream.train.astype(dtype).tofile(train)
    stream.valid.astype(dtype).tofile(valid)

    files = TokenStream.of_files(train, valid, dtype, tokenizer=CHARACTERS)

    assert isinstance(files.train, np.memmap)
    ours = files.training_batch(3, 4, 10, seed=0)
    expected = stream.training_batch(3, 4, 10, seed=0)
    assert ours.dtype == np.int32
    assert expected.dtype == np.int32
    np.testing.assert_array_equal(ours, expected)

    np.testing.assert_array_equal(
        list(files.validation_windows(2, 8)),
        list(stream.validation_windows(2, 8)),
    )


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_one_token_file_has_the_parts_of_its_text(dtype, tmp_path):
    stream = TokenStream.of(TEXT, CHARACTERS)
    train = tmp_path / "train.bin"
    valid = tmp_path / "val.bin"
    stream.train.astype(dtype).tofile(train)
    stream.valid.astype(dtype).tofile(valid)
    files = TokenStream.of_files(train, valid, dtype, tokenizer=CHARACTERS)

    whole = tmp_path / "whole.bin"
    ids = np.concatenate([stream.train, stream.valid])
    ids.astype(dtype).tofile(whole)
    alone = TokenStream.of_files(whole, None, dtype, tokenizer=CHARACTERS)

    np.testing.assert_array_equal(alone.train, stream.train)
    np.testing.assert_array_equal(alone.valid, stream.valid)
    assert alone.text_sha256 != files.text_sha256


def test_token_files_of_hugging_face_have_the_original_ids(tmp_path):
    text = (FIXTURES / "llama" / "tokenizer.json").read_text()
    special = {"pad": None, "eos": 2, "bos": 1, "unk": 0}
    tokenizer = HuggingFaceTokenizer.assemble(text, special, 97)

    theirs = tokenizer._tokenizer.encode("the cat sat", add_special_tokens=False).ids
    path = tmp_path / "train.bin"
    np.array([2, *theirs] * 9, np.uint16).tofile(path)
    stream = TokenStream.of_files(path, None, "uint16", tokenizer=tokenizer)

    expected = np.array([EOS, *tokenizer.encode("the cat sat")] * 9)
    starts = stream.row_starts(0, 5, 12, seed=0)
    rows = stream.training_batch(0, 5, 12, seed=0)
    for row, start in zip(rows, starts, strict=True):
        np.testing.assert_array_equal(row, expected[start : start + 13])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected token ids as uint16, got 0 bytes"),
        (b"abc", "expected token ids as uint16, got 3 bytes"),
        (b"\x05\x00\xff\x00", r"expected token ids below \d+, .* as uint16: got 255; see data.tok"),
        (b"\x05\x00\x00\x00", "expected no token 0, which stands for padding"),
    ],
)
def test_files_that_are_not_token_ids_are_refused(content, message, tmp_path):
    path = tmp_path / "ids.bin"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"ids\.bin: {message}"):
        TokenStream.of_files(path, None, "uint16", tokenizer=CHARACTERS)
