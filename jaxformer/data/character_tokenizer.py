"""The tokenizer of a language model of characters."""

import json
from collections.abc import Iterable
from typing import SupportsIndex

from jaxformer.checks import check_tokens
from jaxformer.data.tokenizer import SPECIAL_PIECES, UNK, Vocabulary
from jaxformer.errors import MALFORMED, UserError, prefix_errors


class CharacterTokenizer(Vocabulary):
    """Converts characters to token ids and back, without loss.

    The serialized form is a JSON object with the characters in the order of their ids, which begin
    after the special ids.
    """

    form = "character"
    uses = ("stream",)

    def __init__(self, serialized: bytes) -> None:
        with prefix_errors("expected the tokenizer of a language model", *MALFORMED):
            values = json.loads(serialized)
            self._characters = str(values["characters"])

        super().__init__(serialized)
        self._pieces = [*SPECIAL_PIECES, *self._characters]
        self.vocab_size = len(self._pieces)

        self._ids = {}
        for number, character in enumerate(self._characters, start=UNK + 1):
            self._ids[character] = number

    @classmethod
    def assemble(cls, characters: Iterable[str]) -> "CharacterTokenizer":
        """Creates a tokenizer from its characters, in the order of their ids."""
        values = {
            "tokenizer": cls.form,
            "characters": "".join(characters),
        }
        serialized = json.dumps(values)
        return cls(serialized.encode())

    def _encode(self, texts: list[str], *, target: bool = False) -> list[list[int]]:
        rows = []
        try:
            for text in texts:
                row = [self._ids[character] for character in text]
                rows.append(row)

        except KeyError as error:
            [character] = error.args
            raise UserError(
                f"the model has never seen the character {character!r}; it knows "
                f"{self._characters!r}"
            ) from None

        return rows

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        tokens = check_tokens(ids, self.vocab_size, "token ids")
        characters = [self._pieces[token] for token in tokens if token > UNK]
        return "".join(characters)


TOKENIZER = CharacterTokenizer
