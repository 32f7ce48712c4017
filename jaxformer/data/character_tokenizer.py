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
            self._characters = str(json.loads(serialized)["characters"])

        super().__init__(serialized)
        self._pieces = [*SPECIAL_PIECES, *self._characters]
        self._ids = {piece: i for i, piece in enumerate(self._pieces) if i > UNK}
        self.vocab_size = len(self._pieces)

    @classmethod
    def assemble(cls, characters: Iterable[str]) -> "CharacterTokenizer":
        """Creates a tokenizer from its characters, in the order of their ids."""
        values = {"tokenizer": cls.form, "characters": "".join(characters)}
        return cls(json.dumps(values).encode())

    def _encode(self, texts: list[str], *, target: bool = False) -> list[list[int]]:
        try:
            return [[self._ids[character] for character in text] for text in texts]
        except KeyError as error:
            raise UserError(
                f"the model has never seen the character {error.args[0]!r}; it knows "
                f"{self._characters!r}"
            ) from None

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        tokens = check_tokens(ids, self.vocab_size, "token ids")
        return "".join(self._pieces[i] for i in tokens if i > UNK)


TOKENIZER = CharacterTokenizer
