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
        with prefix_errors("expected the letters of transcripts", *MALFORMED):
            values = json.loads(serialized)
            self._theirs = [str(token) for token in values["letters"]]
            special = {name: values["special"][name] for name in _NAMES}
            self.delimiter = str(values["delimiter"])
            self.special = {name: _optional_id(each) for name, each in special.items()}
            self._check()
        super().__init__(serialized)

        owned = {number: name for name, number in self.special.items() if number is not None}
        others = [number for number in range(len(self._theirs)) if number not in owned]
        absent = [name for name in _NAMES if self.special[name] is None]
        self.absent = " ".join(absent)

        own = [-1 if self.special[name] is None else self.special[name] for name in _NAMES]
        self.their_ids = np.array([*own, *others])
        self.our_ids = np.zeros(len(self._theirs), np.int64)
        for number, theirs in enumerate(self.their_ids):
            if theirs >= 0:
                self.our_ids[theirs] = number

        self.vocab_size = len(self.their_ids)
        self.target_vocab_size = self.vocab_size
        self._pieces = [*SPECIAL_PIECES, *(self._theirs[number] for number in others)]
        self._ids = {}
        for number, piece in enumerate(self._pieces):
            if number > UNK and piece:
                self._ids[" " if piece == self.delimiter else piece] = number

    def _check(self) -> None:
        """Refuses tokens that are not letters, and special tokens that do not fit."""
        named = [token for token in self._theirs if token]
        if len(set(named)) < len(named):
            raise UserError("expected each token once")
        if self.special["pad"] is None or self.delimiter not in named:
            raise UserError("expected padding, the blank of CTC, and a delimiter of words")

        numbers = [number for number in self.special.values() if number is not None]
        if not set(numbers) <= set(range(len(self._theirs))) or len(set(numbers)) < len(numbers):
            raise UserError(f"expected special tokens with ids of their own, got {self.special}")
        for number, token in enumerate(self._theirs):
            if len(token) > 1 and number not in numbers:
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
        letters = sorted(set().union(*transcripts) - set(" \t"))
        if DELIMITER in letters:
            raise UserError(f"expected transcripts without {DELIMITER}, which stands for a space")
        special = {name: number for number, name in enumerate(_NAMES)}
        return cls.assemble([*SPECIAL_PIECES, DELIMITER, *letters], special)

    def files(self) -> dict[str, bytes]:
        """Returns the files that the class in transformers reads, by their names."""
        vocabulary = {token: number for number, token in enumerate(self._theirs) if token}
        return {"vocab.json": json.dumps(vocabulary, ensure_ascii=False).encode()}

    def special_pieces(self, names: Mapping[str, str]) -> dict[str, str | None]:
        """Returns the special tokens under other names, None for one that they lack."""
        pieces: dict[str, str | None] = {"word_delimiter_token": self.delimiter}
        for ours, theirs in names.items():
            number = self.special.get(ours)
            pieces[theirs] = None if number is None else self._theirs[number]
        return pieces

    def _encode(self, texts: list[str], *, target: bool = False) -> list[list[int]]:
        rows = []
        for text in texts:
            spaced = " ".join(text.split())
            unknown = sorted(set(spaced) - self._ids.keys())
            if unknown:
                known = "".join(self._ids)
                raise UserError(
                    f"expected a transcript of the letters {known!r:.80}, got {unknown[0]!r} in "
                    f"{spaced!r:.80}; change the transcript, or its case"
                )
            rows.append([self._ids[letter] for letter in spaced])
        return rows

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        tokens = check_tokens(ids, self.vocab_size, "token ids")
        letters = [self._pieces[token] for token in tokens if token > UNK]
        spaced = [" " if letter == self.delimiter else letter for letter in letters]
        return "".join(spaced).strip()


TOKENIZER = LettersTokenizer


def _optional_id(value: object) -> int | None:
    return None if value is None else operator.index(value)  # pyright: ignore[reportArgumentType]
