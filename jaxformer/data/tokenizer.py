"""SentencePiece byte-pair encoding with one vocabulary for both languages (section 5.1).

Departs from the paper: BPE tokens are learned from plain text, spaces included, of two million
sentences at most, and every byte is a token, so that nothing is unknown.
"""

import hashlib
import io
import itertools
import pathlib
import random
import re
import sys
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, SupportsIndex

from jaxformer.checks import check_text, check_texts, check_tokens
from jaxformer.data.characters import is_blank
from jaxformer.data.corpus import Corpus, verified
from jaxformer.data.normalization import normalization_rules
from jaxformer.errors import UserError
from jaxformer.files import read_whole, readable, write_file

# sentencepiece is imported only where it is used: most importers of this module need only the ids.
PAD, EOS, BOS, UNK = 0, 1, 2, 3
SPECIAL_PIECES = ("<pad>", "</s>", "<s>", "<unk>")

# The special ids, and a piece for every byte as a fallback for any text.
_SMALLEST_VOCABULARY = 4 + 256
# Largest number of lines to learn a vocabulary from; a sample of a larger corpus is as good.
_MOST_LINES = 2_000_000
_DIGEST_BYTES = 32
# The key of every cached tokenizer includes it; increase it when the same files give other pairs.
_FORMAT = 3
# SentencePiece writes a space as this character, and would read it as a space.
SPACE_SYMBOL = "\u2581"
_BYTE = re.compile("<0x[0-9A-F]{2}>")


class Tokenizer:
    """Converts text to token ids and back.

    Ids 0 to 3 are PAD, EOS, BOS and UNK. :func:`train_tokenizer` learns a tokenizer, and
    :meth:`load` reads one.

    Targets can be space-separated symbols instead of text, such as the brackets of trees. Each
    symbol is then one token, and no text contains its id.

    Attributes:
      vocab_size: Number of ids.
      target_symbols: True if targets are symbols.
      target_vocab_size: Number of ids up to the last one that a target can have.
      serialized: The SentencePiece model, as in its file.
      sha256: Hash of ``serialized``, hexadecimal. It identifies the vocabulary of a trained model.
      language_codes: Codes of target languages, such as ">>deu<<"; empty except for imported models
        with several target languages.
    """

    language_codes: tuple[str, ...] = ()

    def __init__(self, model: bytes) -> None:
        """Takes a serialized SentencePiece model.

        Raises:
          UserError: The bytes are not such a model, or it has other special ids.
        """
        if isinstance(model, str | pathlib.Path):
            raise UserError(
                f"expected the bytes of a SentencePiece model, got {str(model)!r}; read a file "
                "with Tokenizer.load"
            )
        processor = self._processor = open_processor(model)
        check_special_ids(processor)
        self.serialized = model
        self.vocab_size: int = processor.vocab_size()
        known = range(UNK + 1, self.vocab_size)
        self._symbols = {processor.id_to_piece(i): i for i in known if processor.is_control(i)}
        self.target_symbols = bool(self._symbols)
        self.target_vocab_size = max(self._symbols.values(), default=self.vocab_size - 1) + 1
        self.sha256 = hashlib.sha256(model).hexdigest()

    @classmethod
    def load(cls, path: str | pathlib.Path) -> "Tokenizer":
        """Reads a SentencePiece model file.

        Raises:
          UserError: There is no such file, or it is not a SentencePiece model.
        """
        with readable(pathlib.Path(path)):
            content = read_whole(pathlib.Path(path))
        try:
            return cls(content)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    def save(self, path: str | pathlib.Path) -> None:
        """Writes the SentencePiece model atomically."""
        write_file(pathlib.Path(path), self.serialized)

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of a sentence, without BOS and EOS; empty for a blank sentence.

        Raises:
          UserError: The argument is not a string.
        """
        check_text(text, "text")
        if SPACE_SYMBOL in text:
            return self._encode_space_symbol(text)
        return self._processor.encode(text)

    def encode_target(self, text: str) -> list[int]:
        """Returns the token ids of a target sentence, without BOS and EOS; empty for a blank one.

        Raises:
          UserError: The argument is not a string.
        """
        check_text(text, "text")
        return self.encode_target_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the token ids of many sentences, using all cores.

        Raises:
          UserError: The argument is a single string, or not strings.
        """
        texts = check_texts(texts, "texts")
        rows = self._processor.encode(texts)
        for number, text in enumerate(texts):
            if SPACE_SYMBOL in text:
                rows[number] = self._encode_space_symbol(text)
        return rows

    def _encode_space_symbol(self, text: str) -> list[int]:
        """Returns the token ids of a text with U+2581, which is encoded as its bytes."""
        # A character that is neither in the text nor in the vocabulary is encoded as bytes, too.
        known = self._processor.piece_to_id
        characters = map(chr, range(sys.maxunicode, 0xE000, -1))
        other = next(c for c in characters if c not in text and known(c) == UNK)
        pieces = self._processor.encode(text.replace(SPACE_SYMBOL, other), out_type=str)
        # Pieces contain no spaces, so they can be separated by spaces.
        written = " ".join(pieces).replace(_byte_pieces(other), _byte_pieces(SPACE_SYMBOL))
        return known(written.split(" "))

    def encode_target_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the token ids of many target sentences; the sides share pieces, but not symbols.

        Raises:
          UserError: The argument is a single string, or not strings.
        """
        if not self._symbols:
            return self.encode_batch(texts)
        texts = check_texts(texts, "texts")
        return [[self._symbols.get(symbol, UNK) for symbol in split_spaces(text)] for text in texts]

    def unknown_characters(self, text: str) -> str:
        """Returns the distinct characters of a sentence that are encoded as bytes or UNK."""

        def is_unknown(text: str) -> bool:
            return any(i == UNK or _BYTE.fullmatch(self.piece(i)) for i in self.encode(text))

        code = next(filter(text.startswith, self.language_codes), "")
        characters = dict.fromkeys(text.removeprefix(code))
        return "".join(filter(is_unknown, characters)) if is_unknown(text) else ""

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """Returns the target sentence of token ids, without special tokens.

        Raises:
          UserError: An id is out of range.
        """
        tokens = [i for i in check_tokens(ids, self.vocab_size, "token ids") if i > UNK]
        if self._symbols:
            return " ".join(map(self.piece, tokens))
        return self._processor.decode(tokens)

    def piece(self, token: SupportsIndex) -> str:
        """Returns the piece of a token, as a label; "▁" stands for a space.

        Raises:
          UserError: The id is out of range.
        """
        return self._processor.id_to_piece(*check_tokens([token], self.vocab_size, "token id"))


def check_special_ids(processor: Any) -> None:
    """Checks that a SentencePieceProcessor has our special ids.

    Raises:
      UserError: It has others.
    """
    ids = (processor.pad_id(), processor.eos_id(), processor.bos_id(), processor.unk_id())
    if ids != (PAD, EOS, BOS, UNK):
        raise UserError(
            "expected a SentencePiece model with the ids pad=0, eos=1, bos=2, unk=3: got "
            "pad={}, eos={}, bos={}, unk={}; give spm_train the options --pad_id=0 --eos_id=1 "
            "--bos_id=2 --unk_id=3, or let a training run learn one".format(*ids)
        )


def open_processor(model: bytes) -> Any:
    """Returns the SentencePieceProcessor of a serialized model.

    Raises:
      UserError: The bytes are not such a model, or not all of its pieces are text.
    """
    import sentencepiece

    try:
        # SentencePiece takes empty bytes for a model that will be loaded later.
        processor = sentencepiece.SentencePieceProcessor(model_proto=model or b"none")
        processor.id_to_piece(list(range(processor.vocab_size())))
    except (RuntimeError, UnicodeDecodeError):
        raise UserError("expected a SentencePiece model; these bytes are none") from None
    return processor


def train_tokenizer(
    lines: Iterable[str],
    vocab_size: int,
    symbols: Sequence[str] = (),
    **options: Any,
) -> Tokenizer:
    """Learns a byte-pair encoding. The same lines give the same tokenizer, bit for bit.

    The tokenizer normalizes all text, sources and targets alike, to the characters of these lines;
    see :func:`~jaxformer.data.normalization.normalization_rules`. It merges runs of
    whitespace into one space. Translations therefore have neither U+00A0 nor invisible characters.

    Args:
      lines: Sentences of both languages. A fixed sample is used of more than two million.
      vocab_size: Number of ids, including special ids, bytes and symbols.
      symbols: Symbols of the target side, if it is not text.
      **options: More options of SentencePiece's trainer, such as ``user_defined_symbols``.

    Raises:
      UserError: The text is too small, or too varied, for a vocabulary of this size.
    """
    placeholders = options.get("user_defined_symbols", ())
    smallest = _SMALLEST_VOCABULARY + len(symbols) + len(placeholders)
    if vocab_size < smallest:
        what = (
            "the special ids, the bytes and the symbols"
            if smallest > _SMALLEST_VOCABULARY
            else "the special ids and the bytes"
        )
        raise UserError(
            f"model.vocab_size must be at least {smallest}, for {what}: got {vocab_size}"
        )
    sample = _sample(itertools.filterfalse(is_blank, lines), _MOST_LINES)
    if not sample:
        raise UserError("expected text to learn a vocabulary from: all lines are empty")
    try:
        model = _train_normalized(sample, vocab_size, control_symbols=list(symbols), **options)
    except RuntimeError as error:
        raise _size_error(vocab_size, str(error)) from None
    return Tokenizer(model)


def _train_normalized(lines: Sequence[str], vocab_size: int, **options: Any) -> bytes:
    """Calls :func:`train_byte_pair_model` with normalization rules for the characters of the lines.

    Raises:
      RuntimeError: SentencePiece refuses the size.
    """
    with tempfile.NamedTemporaryFile("w", encoding="ascii") as file:
        for rule in normalization_rules(set().union(*lines)).items():
            codes = (" ".join(f"{ord(character):X}" for character in text) for text in rule)
            file.write("\t".join(codes) + "\n")
        file.flush()
        options["normalization_rule_tsv"] = file.name
        model = train_byte_pair_model(iter(lines), vocab_size, **options)
    # The model must not depend on the file's name. A protocol buffer keeps the last value of a
    # field that occurs twice, so this makes normalizer_spec.normalization_rule_tsv empty.
    return open_processor(model + b"\x1a\x02\x32\x00").serialized_model_proto()


def train_byte_pair_model(lines: Iterator[str], vocab_size: int, **options: Any) -> bytes:
    """Returns a serialized SentencePiece model of byte pairs, with all bytes and our special ids.

    Args:
      lines: Text to learn from.
      vocab_size: Number of ids.
      **options: More options of SentencePiece's trainer.

    Raises:
      RuntimeError: SentencePiece refuses the size.
    """
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines,
        model_writer=model,
        model_type="bpe",
        vocab_size=vocab_size,
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        pad_id=PAD,
        eos_id=EOS,
        bos_id=BOS,
        unk_id=UNK,
        num_threads=1,  # more threads would divide the work differently each time
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def cached_tokenizer(
    corpus: Corpus,
    split: str,
    vocab_size: int,
    cache_directory: pathlib.Path,
    **options: Any,
) -> Tokenizer:
    """Returns the tokenizer learned from all text of a split, from the cache if it is there.

    The file's name is a hash of all inputs, and the file begins with the hash of its content, so
    that a damaged file is detected and replaced.

    Raises:
      UserError: The corpus cannot be read, changes meanwhile, or does not suit the size of the
        vocabulary.
    """
    import sentencepiece

    corpus = verified(corpus)
    version = f"{sentencepiece.__version__} {unicodedata.unidata_version}"
    trained = (vocab_size, version, _MOST_LINES, sorted(options.items()))
    inputs = (_FORMAT, corpus.fingerprint(split), *trained)
    key = hashlib.sha256(repr(inputs).encode()).hexdigest()
    path = cache_directory / f"tokenizer-{key[:32]}"
    if path.is_file():
        content = path.read_bytes()
        digest, model = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(model).digest() == digest:
            return Tokenizer(model)
    if corpus.target_symbols:
        symbols = sorted({s for _, target in corpus.pairs(split) for s in split_spaces(target)})
        lines = (source for source, _ in corpus.pairs(split))
    else:
        symbols, lines = [], itertools.chain.from_iterable(corpus.pairs(split))
    lines = itertools.filterfalse(is_blank, lines)
    if not (first := list(itertools.islice(lines, 1))):
        raise UserError(f"{split}: expected text to learn a vocabulary from: all lines are empty")
    lines = itertools.chain(first, lines)
    tokenizer = train_tokenizer(lines, vocab_size, symbols, **options)
    model = tokenizer.serialized
    write_file(path, hashlib.sha256(model).digest() + model)
    return tokenizer


def _byte_pieces(character: str) -> str:
    return " ".join(f"<0x{byte:02X}>" for byte in character.encode())


def split_spaces(text: str) -> list[str]:
    """Returns the words between spaces; other whitespace, such as U+00A0, belongs to a word."""
    return [word for word in text.split(" ") if word]


def _sample(lines: Iterable[str], size: int) -> list[str]:
    """Returns all lines, or a uniform sample of ``size``: reservoir sampling with a fixed seed.

    SentencePiece's own sampling uses one random generator per process, so that its result would
    depend on earlier calls.
    """
    stream = iter(lines)
    sample = list(itertools.islice(stream, size))
    generator = random.Random(0)
    for seen, line in enumerate(stream, size + 1):
        place = int(generator.random() * seen)
        if place < size:
            sample[place] = line
    return sample


def _size_error(vocab_size: int, message: str) -> UserError:
    """Explains why SentencePiece refused the size; its message has a size that would work."""
    if found := re.search(r"set it to a value <= (\d+)", message):
        return UserError(
            f"model.vocab_size is too large for the training text: got {vocab_size}, at most "
            f"{found[1]} is possible; set --config.model.vocab_size={found[1]} or less"
        )
    if found := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return UserError(
            f"model.vocab_size is too small for the training text, which has many characters: got "
            f"{vocab_size}, at least {found[1]} is needed; set --config.model.vocab_size="
            f"{found[1]} or more"
        )
    if "sentences_.empty()" in message:
        return UserError(
            "expected lines of at most 4,192 bytes to learn a vocabulary from: all lines are "
            "longer; write one sentence on each line"
        )
    return UserError(f"SentencePiece cannot learn {vocab_size} pieces from the text: {message}")
