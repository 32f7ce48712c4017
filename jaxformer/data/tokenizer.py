"""Converts text to token ids and back with SentencePiece: one vocabulary for both languages."""

import abc
import functools
import hashlib
import operator
import pathlib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, SupportsIndex, TypeAlias

from jaxformer import data
from jaxformer.checks import check_texts, check_tokens, check_unicode
from jaxformer.errors import UserError, did_you_mean, prefix_errors
from jaxformer.files import read_whole, write_file
from jaxformer.registry import find_module
from jaxformer.version import __version__

# sentencepiece is imported only where it is used: most modules import only the ids from here.
PAD = 0
EOS = 1
BOS = 2
UNK = 3
SPECIAL_PIECES = ("<pad>", "</s>", "<s>", "<unk>")

# SentencePiece writes a space as this character, and would read it as a space.
SPACE_SYMBOL = "\u2581"
_BYTE = re.compile("<0x[0-9A-F]{2}>")


# What a tokenizer is for: sentence pairs, also of a text and its label, or one text.
Use: TypeAlias = Literal["pairs", "stream"]
# The form of files that other programs write, too, which do not name it.
SENTENCEPIECE = "sentencepiece"
# All other files are JSON objects that begin with their form.
_FORM = re.compile(rb'\{"tokenizer": ?"(\w+)"')
# The first names in the files of jaxformer 0.2, by their form; Marian's have several.
_OLD_FORMS = {
    b'{"moses"': "moses",
    b'{"huggingface"': "huggingface",
    b'{"languages"': "m2m100",
    b'{"characters"': "character",
}
_OLD_DEFAULT = "marian"


class Vocabulary(abc.ABC):
    """Base of tokenizers, whose ids 0 to 3 are PAD, EOS, BOS and UNK."""

    form: ClassVar[str]  # names the module that reads the file
    uses: ClassVar[tuple[Use, ...]] = ("pairs",)
    vocab_size: int
    target_vocab_size: int  # number of ids up to the largest id of a target
    target_symbols = False  # Targets are symbols, such as labels, with ``_symbols`` as ids.
    # Stands for masked tokens; no text contains BOS. None for a foreign model without a mask.
    mask_token: int | None = BOS
    # Codes such as ">>deu<<", for imported models with several target languages.
    language_codes: tuple[str, ...] = ()
    # Begin each target of such a model; the search neither chooses them nor counts their log_prob.
    target_start: tuple[int, ...] = ()
    source_end = EOS  # the last token of each source; targets end with EOS
    other_ends: tuple[int, ...] = ()  # more tokens that end a generated text
    ends_texts = False  # EOS ends the texts that a language model was trained on.
    keeps_lines = True  # No token holds a line break and the text after it.
    _appends = True  # Later tokens leave the decoded text of earlier ones unchanged.
    _pieces: Sequence[str]  # in the order of their ids
    _symbols: Mapping[str, int] = {}
    _codes: Sequence[int] = ()  # of the languages of source and target

    def __init__(self, serialized: bytes) -> None:
        """Takes the content of the tokenizer's file; its hash identifies the vocabulary."""
        self.serialized = serialized
        self.sha256 = hashlib.sha256(serialized).hexdigest()

    def _add_language(self, ids: list[int], *, target: bool = False) -> list[int]:
        """Returns the ids of a text after its language's code; a blank source has no code."""
        if not self._codes or not (ids or target):
            return ids
        return [self._codes[target], *ids]

    @property
    def symbols(self) -> list[str]:
        """Symbols of targets, such as labels, in the order of their ids."""
        return list(self._symbols)

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of a text, without BOS and the end; empty for a blank sentence.

        Raises:
          UserError: The argument is not a string, or UTF-8 cannot encode it.
        """
        check_unicode(text, "text")
        [ids] = self._encode([text])
        return ids

    def encode_prompt(self, text: str) -> list[int]:
        """Returns the token ids of a text to continue; of a line break if it is empty."""
        return self.encode(text or "\n")

    def encode_target(self, text: str) -> list[int]:
        """Works as :meth:`encode` does, for a target; the sides share pieces, but not symbols."""
        [ids] = self.encode_target_batch([text])
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Works as :meth:`encode` does, for many sentences, using all cores if it can."""
        return self._encode(check_texts(texts, "texts"))

    def encode_target_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Works as :meth:`encode_target` does, for many sentences, using all cores if it can."""
        return self._encode(check_texts(texts, "texts"), target=True)

    @abc.abstractmethod
    def _encode(self, texts: list[str], *, target: bool = False) -> list[list[int]]: ...

    @abc.abstractmethod
    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """Returns the text of token ids, without special tokens."""

    def decode_after(self, prompt: Sequence[int], ids: Iterable[SupportsIndex]) -> str:
        """Returns the text that token ids add to the text of the prompt before them.

        Decoded on their own, they would lack the space before a first word, for instance.
        """
        before = self.decode(prompt)
        whole = self.decode([*prompt, *ids])
        return whole[len(before) :]

    def decode_settled(self, prompt: Sequence[int], ids: Sequence[SupportsIndex]) -> str:
        """Returns the beginning of :meth:`decode_after` that does not depend on later tokens.

        A character may be several tokens, and bytes may be valid only without the next one.
        """
        settled = len(ids) if self._appends else 0
        while settled:
            last = operator.index(ids[settled - 1])
            if last not in self._open_ids:
                break
            settled -= 1

        if not settled:
            return ""
        text = self.decode_after(prompt, ids[:settled])
        return text.rstrip("\ufffd")

    def with_symbols(self, targets: Iterable[str]) -> "Vocabulary":
        """Returns a tokenizer for new targets, if its symbols can change; by default, this one."""
        return self

    def piece(self, token: SupportsIndex) -> str:
        """Returns the piece of a token, as a label; "▁" stands for a space.

        Raises:
          UserError: The id is out of range.
        """
        [index] = check_tokens([token], self.vocab_size, "token id")
        return self._pieces[index]

    def spelled_piece(self, token: int) -> str | None:
        """Returns the piece of a token that spells text, and None for all others.

        The language codes that a tokenizer adds spell nothing. UNK may spell any character, U+FFFD.
        """
        if token == UNK:
            return "\ufffd"
        if token in self._special_ids:
            return None
        return self.piece(token)

    def check_language(self, text: str, place: str) -> None:
        """Raises a ``UserError`` if a sentence begins with an unknown language code."""
        return None

    def unknown_characters(self, text: str, ids: Sequence[int] | None = None) -> str:
        """Returns the distinct characters of a sentence that are encoded as bytes or UNK.

        ``ids`` are its token ids, if they are known.
        """
        if ids is None:
            ids = self.encode(text)
        if self._unknown_ids.isdisjoint(ids):
            return ""

        for code in self.language_codes:
            if text.startswith(code):
                text = text.removeprefix(code)
                break
        characters = dict.fromkeys(text)
        unknown = [character for character in characters if self._has_unknown(character)]
        return "".join(unknown)

    def _has_unknown(self, text: str) -> bool:
        ids = self.encode(text)
        return not self._unknown_ids.isdisjoint(ids)

    @functools.cached_property
    def _unknown_ids(self) -> set[int]:
        return {UNK, *self._byte_ids}

    @functools.cached_property
    def _open_ids(self) -> set[int]:
        """Tokens that leave a run of bytes unfinished: bytes, and tokens without text."""
        return {UNK, *self._special_ids, *self._byte_ids}

    @functools.cached_property
    def _special_ids(self) -> set[int]:
        return {PAD, EOS, BOS, *self._codes}

    @functools.cached_property
    def _byte_ids(self) -> set[int]:
        found = set()
        for token in range(self.vocab_size):
            if _BYTE.fullmatch(self.piece(token)):
                found.add(token)
        return found


class Tokenizer(Vocabulary):
    """Converts sentences of two languages to token ids and back, with SentencePiece.

    :func:`~jaxformer.data.bpe.train_tokenizer` learns a tokenizer, and :meth:`load` reads one.

    Targets can be space-separated symbols instead of text, such as the brackets of trees. Each
    symbol is then one token, and no text contains its id.
    """

    form = SENTENCEPIECE

    def __init__(self, model: bytes) -> None:
        """Takes a serialized SentencePiece model.

        Raises:
          UserError: The bytes are not such a model, or it has other special ids.
        """
        processor = open_processor(model)
        ids = (
            processor.pad_id(),
            processor.eos_id(),
            processor.bos_id(),
            processor.unk_id(),
        )
        if ids != (PAD, EOS, BOS, UNK):
            raise UserError(
                "expected a SentencePiece model with the ids pad=0, eos=1, bos=2, unk=3: got "
                "pad={}, eos={}, bos={}, unk={}; give spm_train the options --pad_id=0 --eos_id=1 "
                "--bos_id=2 --unk_id=3, or let a training run learn one".format(*ids)
            )

        super().__init__(model)
        self._processor = processor
        all_ids = list(range(processor.vocab_size()))
        self._pieces = processor.id_to_piece(all_ids)
        self.vocab_size = len(self._pieces)

        self._symbols = {}
        for number in range(UNK + 1, self.vocab_size):
            if processor.is_control(number):
                symbol = self._pieces[number]
                self._symbols[symbol] = number
        self.target_symbols = bool(self._symbols)

        largest_target = max(self._symbols.values(), default=self.vocab_size - 1)
        self.target_vocab_size = largest_target + 1

    @staticmethod
    def load(path: str | pathlib.Path) -> Vocabulary:
        """Reads the tokenizer of a translation model's workdir, or a SentencePiece model file.

        Raises:
          UserError: There is no such file, or it is not a tokenizer.
        """
        content = read_whole(pathlib.Path(path))
        with prefix_errors(str(path)):
            return open_tokenizer(content, "pairs")

    def save(self, path: str | pathlib.Path) -> None:
        """Writes the file of the tokenizer atomically."""
        write_file(pathlib.Path(path), self.serialized)

    def _encode(self, texts: list[str], *, target: bool = False) -> list[list[int]]:
        if target and self._symbols:
            return [self._symbol_ids(text) for text in texts]

        rows = encode_all(self._processor, texts)
        for number, text in enumerate(texts):
            if SPACE_SYMBOL in text:
                rows[number] = self._encode_space_symbol(text)
        return rows

    def _symbol_ids(self, text: str) -> list[int]:
        words = split_spaces(text)
        return [self._symbols.get(word, UNK) for word in words]

    def _encode_space_symbol(self, text: str) -> list[int]:
        """Returns the token ids of a text with U+2581, which is encoded as its bytes."""
        known = self._processor.piece_to_id

        # A character outside the text and the vocabulary is also encoded as bytes.
        for code in range(sys.maxunicode, 0xE000, -1):
            other = chr(code)
            if other not in text and known(other) == UNK:
                break
        else:
            raise AssertionError("a text has not all characters of Unicode")

        replaced = text.replace(SPACE_SYMBOL, other)
        pieces = self._processor.encode(replaced, out_type=str)

        # Pieces contain no spaces, so they can be separated by spaces.
        written = " ".join(pieces)
        written = written.replace(_byte_pieces(other), _byte_pieces(SPACE_SYMBOL))
        return known(written.split(" "))

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """Returns the target sentence of token ids, without special tokens.

        Raises:
          UserError: An id is out of range.
        """
        ids = check_tokens(ids, self.vocab_size, "token ids")
        tokens = [token for token in ids if token > UNK]

        if self._symbols:
            symbols = [self.piece(token) for token in tokens]
            return " ".join(symbols)
        return self._processor.decode(tokens)


def form_of(content: bytes) -> str:
    """Returns the form of a tokenizer's file, such as "moses"."""
    if not content.startswith(b"{"):
        return SENTENCEPIECE

    found = _FORM.match(content)
    if found:
        return found[1].decode()

    for start, form in _OLD_FORMS.items():
        if content.startswith(start):
            return form
    return _OLD_DEFAULT


def open_tokenizer(content: bytes, use: Use) -> Vocabulary:
    """Returns the tokenizer of a file; the module NAME_tokenizer of this package has its class.

    Raises:
      UserError: The content is not a tokenizer, or it has another use.
    """
    form = form_of(content)
    if form == SENTENCEPIECE:
        return Tokenizer(content)

    # Only this module is imported, since others need extras, or are slow to import.
    module = find_module(data, f"{form}_tokenizer")
    if module is None:
        raise UserError(
            f"expected a tokenizer that jaxformer {__version__} knows: got the form {form:.80}"
        )

    tokenizer = module.TOKENIZER
    if use not in tokenizer.uses:
        expected = "a tokenizer of pairs"
        if use == "stream":
            expected = "the tokenizer of a language model"
        raise UserError(f"expected {expected}, got one of the form {form}")
    return tokenizer(content)


def find_language(language: str, codes: Mapping[str, int]) -> int:
    if language not in codes:
        known = ", ".join(codes) or "none"
        hint = did_you_mean(language, codes, f"choose from {known}")
        raise UserError(f"expected a language of the model, got {language!r:.80}; {hint}")

    return codes[language]


def encode_all(
    processor: Any,
    texts: list[str],
    **options: Any,
) -> list[Any]:
    """Calls a SentencePieceProcessor's ``encode``, without its threads if there is one text."""
    if len(texts) == 1:
        return [processor.encode(texts[0], **options)]
    return processor.encode(texts, **options)


def open_processor(model: bytes) -> Any:
    """Returns the SentencePieceProcessor of a serialized model, whose pieces must all be text."""
    import sentencepiece

    try:
        # SentencePiece accepts empty bytes, for a model that is loaded later.
        processor = sentencepiece.SentencePieceProcessor(model_proto=model or b"none")
        all_ids = list(range(processor.vocab_size()))
        processor.id_to_piece(all_ids)
    except (RuntimeError, UnicodeDecodeError):
        raise UserError("expected a SentencePiece model; these bytes are none") from None

    return processor


def _byte_pieces(character: str) -> str:
    pieces = [f"<0x{byte:02X}>" for byte in character.encode()]
    return " ".join(pieces)


def split_spaces(text: str) -> list[str]:
    """Returns the words between spaces; other whitespace, such as U+00A0, belongs to a word."""
    return [word for word in text.split(" ") if word]
