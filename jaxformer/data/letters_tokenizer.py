"""Letters of transcripts, for models of speech that predict a letter or nothing in each frame."""

import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import SupportsIndex

import numpy as np

from jaxformer.checks import check_tokens
from jaxformer.data.tokenizer import SPECIAL_PIECES, UNK, Vocabulary
from jaxformer.errors import MALFORMED, UserError, prefix_errors

# Special tokens, in the order of our ids.
_NAMES = ("pad", "eos", "bos", "unk")
DELIMITER = "|"  # between words


class LettersTokenizer(Vocabulary):
    """Converts transcripts to letters and back, as Wav2Vec2CTCTokenizer does in transformers.

    The padding token is the blank of CTC. The serialized form is a JSON object with

    * ``letters``: the tokens in the order of their ids, which are called theirs: letters, the
      special tokens, the delimiter of words, and "" for ids without a token,
    * ``special``: their ids of the special tokens; None for one that they lack,
    * ``delimiter``: the token that stands for a space.

    ``their_ids``, ``our_ids`` and ``absent`` are as in HuggingFaceTokenizer.
    """

    form = "letters"
    forced_start = None
    has_types = False
    languages = ()
    mask_token = None
    their_class = "Wav2Vec2CTCTokenizer"

    def __init__(self, serialized: bytes) -> None:
        self.special: dict[str, int | None] = {}
        with prefix_errors("expected the letters of transcripts", *MALFORMED):
            values = json.loads(serialized)
            self._theirs = [str(token) for token in values["letters"]]
            special = {name: values["special"][name] for name in _NAMES}
            self.delimiter = str(values["delimiter"])
            for name, value in special.items():
                self.special[name] = _optional_id(value)
            self._check()
        super().__init__(serialized)

        own_ids = []
        absent = []
        for name in _NAMES:
            number = self.special[name]
            if number is None:
                absent.append(name)
                number = -1
            own_ids.append(number)
        self.absent = " ".join(absent)

        # Our ids begin with the special tokens; the others follow in their order.
        other_ids = []
        for number in range(len(self._theirs)):
            if number not in own_ids:
                other_ids.append(number)

        self.their_ids = np.array([*own_ids, *other_ids])
        self.our_ids = np.zeros(len(self._theirs), np.int64)
        for ours, theirs in enumerate(self.their_ids):
            if theirs >= 0:
                self.our_ids[theirs] = ours

        other_pieces = [self._theirs[number] for number in other_ids]
        self._pieces = [*SPECIAL_PIECES, *other_pieces]
        self.vocab_size = len(self._pieces)
        self.target_vocab_size = self.vocab_size

        self._ids = {}
        for number, piece in enumerate(self._pieces):
            is_letter = number > UNK and piece != ""
            if is_letter:
                letter = self._letter(piece)
                self._ids[letter] = number

    def _letter(self, piece: str) -> str:
        """Returns the character of a transcript that a piece stands for."""
        if piece == self.delimiter:
            return " "
        return piece

    def _check(self) -> None:
        """Refuses tokens that are not letters, and special tokens that do not fit."""
        named = [token for token in self._theirs if token]
        if len(set(named)) < len(named):
            raise UserError("expected each token once")
        if self.special["pad"] is None or self.delimiter not in named:
            raise UserError("expected padding, the blank of CTC, and a delimiter of words")

        numbers = [number for number in self.special.values() if number is not None]
        distinct = set(numbers)
        all_exist = distinct <= set(range(len(self._theirs)))
        if not all_exist or len(distinct) < len(numbers):
            raise UserError(f"expected special tokens with ids of their own, got {self.special}")

        for number, token in enumerate(self._theirs):
            is_letter = len(token) <= 1
            if not is_letter and number not in distinct:
                raise UserError(f"expected letters, got the token {token!r:.40}")

    @classmethod
    def assemble(
        cls,
        letters: Sequence[str],
        special: Mapping[str, int | None],
        delimiter: str = DELIMITER,
    ) -> "LettersTokenizer":
        """Creates a tokenizer from its tokens, in the order of their ids; see the class."""
        values = {
            "tokenizer": cls.form,
            "letters": list(letters),
            "special": dict(special),
            "delimiter": delimiter,
        }
        return cls(json.dumps(values).encode())

    @classmethod
    def learn(cls, transcripts: Iterable[str]) -> "LettersTokenizer":
        """Creates a tokenizer of all letters in transcripts, sorted.

        >>> LettersTokenizer.learn(["a b"]).encode("b a")
        [6, 4, 5]
        """
        characters = set().union(*transcripts)
        letters = sorted(characters - set(" \t"))
        if DELIMITER in letters:
            raise UserError(f"expected transcripts without {DELIMITER}, which stands for a space")

        tokens = [*SPECIAL_PIECES, DELIMITER, *letters]
        special = {name: number for number, name in enumerate(_NAMES)}
        return cls.assemble(tokens, special)

    def files(self) -> dict[str, bytes]:
        """Returns the files that the class in transformers reads, by their names."""
        vocabulary = {}
        for number, token in enumerate(self._theirs):
            if token:
                vocabulary[token] = number

        text = json.dumps(vocabulary, ensure_ascii=False)
        return {"vocab.json": text.encode()}

    def special_pieces(self, names: Mapping[str, str]) -> dict[str, str | None]:
        """Returns the special tokens under other names, None for one that they lack."""
        pieces: dict[str, str | None] = {"word_delimiter_token": self.delimiter}
        for ours, theirs in names.items():
            number = self.special.get(ours)
            if number is None:
                pieces[theirs] = None
            else:
                pieces[theirs] = self._theirs[number]
        return pieces

    def _encode(self, texts: list[str], *, target: bool = False) -> list[list[int]]:
        rows = []
        for text in texts:
            words = text.split()
            spaced = " ".join(words)

            unknown = sorted(set(spaced) - self._ids.keys())
            if unknown:
                known = "".join(self._ids)
                raise UserError(
                    f"expected a transcript of the letters {known!r:.80}, got {unknown[0]!r} in "
                    f"{spaced!r:.80}; change the transcript, or its case"
                )

            row = [self._ids[letter] for letter in spaced]
            rows.append(row)
        return rows

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        tokens = check_tokens(ids, self.vocab_size, "token ids")
        letters = []
        for token in tokens:
            if token > UNK:
                letter = self._letter(self._pieces[token])
                letters.append(letter)
        return "".join(letters).strip()


TOKENIZER = LettersTokenizer


def _optional_id(value: object) -> int | None:
    if value is None:
        return None
    return operator.index(value)  # pyright: ignore[reportArgumentType]
