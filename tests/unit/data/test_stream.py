"""Text as a stream: exact round trips, rows as a function of the step, complete windows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data import stream
from jaxformer.data.bpe import train_tokenizer
from jaxformer.data.character_tokenizer import CharacterTokenizer
from jaxformer.errors import UserError

from ...profiles import by_profile

TEXT = "First Citizen:\nBefore we proceed any further,  hear me speak.\n\nAll:\nSpeak, speak.\n" * 9
BYTE_PAIRS = stream.train_byte_pairs(TEXT, 300)
CHARACTERS = CharacterTokenizer.assemble(sorted(set(TEXT)))


@settings(max_examples=by_profile(40, nightly=100))
@given(st.text(st.characters(exclude_categories=["Cs"])) | st.text("ab \n\t\r▁é½😀"))
def test_byte_pairs_round_trip(text):
    assert BYTE_PAIRS.decode(BYTE_PAIRS.encode(text)) == text


@settings(max_examples=by_profile(40, nightly=100))
@given(st.text(sorted(set(TEXT))))
def test_characters_round_trip(text):
    ids = CHARACTERS.encode(text)
    assert CHARACTERS.decode(ids) == text
    assert len(ids) == len(text)


def test_unknown_characters_are_named():
    with pytest.raises(UserError, match=r"never seen the character 'é'; it knows '\\n ,\.:"):
        CHARACTERS.encode("é")

    byte_pairs = stream.ByteFallbackTokenizer(BYTE_PAIRS.serialized)
    with pytest.raises(UserError, match="not UTF-8"):
        byte_pairs.encode("\ud800")


@pytest.mark.parametrize("tokenizer", [BYTE_PAIRS, CHARACTERS])
def test_tokenizers_are_saved_and_loaded(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(tokenizer.serialized)

    loaded = stream.load_stream_tokenizer(path)

    assert type(loaded) is type(tokenizer)
    assert loaded.sha256 == tokenizer.sha256
    assert loaded.vocab_size == tokenizer.vocab_size
    assert loaded.encode("All:\n") == tokenizer.encode("All:\n")


@pytest.mark.parametrize("content", [b"", b"{}", b"[", b"\xff\x00"])
def test_files_that_are_not_tokenizers_are_refused(content, tmp_path):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(content)
    with pytest.raises(UserError, match="expected the tokenizer of a language model"):
        stream.load_stream_tokenizer(path)


def test_tokenizers_that_change_a_text_are_refused(tmp_path):
    """Tokenizers of translation models merge spaces."""
    path = tmp_path / "of translation.model"
    train_tokenizer(TEXT.split("\n"), 300).save(path)
    with pytest.raises(UserError, match=r"of translation\.model: .* changes spaces"):
        stream.load_stream_tokenizer(path)


def test_long_lines_are_learned_from():
    """SentencePiece itself leaves out lines of more than 4,192 bytes."""
    words = " ".join(["zebra"] * 2000)
    tokenizer = stream.train_byte_pairs(f"short\n{words}\n", 280)

    assert len(tokenizer.encode(words)) < len(words) / 2
    for text in (words, " a ▁ b"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_rows_are_consecutive_tokens_and_a_function_of_the_step():
    data = stream.TokenStream.of(TEXT, CHARACTERS)
    batch = data.training_batch(7, 4, 10, seed=3)

    assert batch.shape == (4, 11)
    train = CHARACTERS.decode(data.train.tolist())
    for row in batch:
        assert CHARACTERS.decode(row.tolist()) in train

    fresh = stream.TokenStream.of(TEXT, CHARACTERS)
    np.testing.assert_array_equal(batch, fresh.training_batch(7, 4, 10, seed=3))

    other_step = data.training_batch(8, 4, 10, seed=3)
    other_seed = data.training_batch(7, 4, 10, seed=4)
    assert (batch != other_step).any()
    assert (batch != other_seed).any()


@pytest.mark.smoke
def test_positions_do_not_change_with_numpy():
    """NumPy does not promise it for ``integers``, and a resumed run would see other batches."""
    data = stream.TokenStream(
        CHARACTERS,
        np.arange(1_000_003),
        np.arange(5),
        valid_characters=5,
        text_sha256="",
    )
    expected = {
        7: [530754, 682057, 967426, 599985, 214610],
        1_000_000: [364638, 472030, 650474, 976, 473542],
    }

    for step, positions in expected.items():
        found = data.row_starts(step, 5, 256, seed=3)
        np.testing.assert_array_equal(found, positions)


@pytest.mark.parametrize(("rows", "length"), [(1, 7), (3, 8), (16, 5)])
def test_windows_have_every_validation_token_as_a_target_once(rows, length):
    data = stream.TokenStream.of(TEXT, CHARACTERS)

    batches = list(data.validation_windows(rows, length))
    assert {batch.shape for batch in batches} == {(rows, length + 1)}

    # All validation tokens, and padding after them.
    windows = np.concatenate(batches)
    inputs = windows[:, :-1]
    targets = windows[:, 1:].reshape(-1)
    count = len(data.valid)
    np.testing.assert_array_equal(targets[:count], data.valid)
    assert not targets[count:].any()

    # The first input of a window is the last target of the previous one.
    used = -(-count // length)
    first = inputs[:used, 0]
    last = windows[:used, -1]
    assert first[0] == data.train[-1]
    np.testing.assert_array_equal(first[1:], last[:-1])


PLAY = b"To be, or not to be.\n" * 20


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (PLAY + b"caf\xe9", r"play\.txt:21: not UTF-8, at byte 423; convert it, .* iconv"),
        (b"short", "expected at least 100 characters of text, found 5"),
    ],
)
def test_files_that_are_not_text_are_refused(content, message, tmp_path):
    path = tmp_path / "play.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        stream.read_text(path)
