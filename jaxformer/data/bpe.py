"""Learns byte-pair encodings with SentencePiece (section 5.1).

Departs from the paper: BPE is learned from plain text, including spaces, of at most two million
sentences, and every byte is a token, so that no text is unknown.
"""

import hashlib
import io
import itertools
import math
import pathlib
import random
import re
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jaxformer.data.characters import is_blank, normalization_rules
from jaxformer.data.corpus import Corpus, VerifiedCorpus
from jaxformer.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer, open_processor, split_spaces
from jaxformer.errors import UserError
from jaxformer.files import make_folder, write_file
from jaxformer.waits import announce

# Largest number of lines to learn a vocabulary from; a sample of a larger corpus is as good.
_MAX_LINES = 2_000_000
_MEASURED_LINES = 20_000  # lines from which sizes are estimated
_DIGEST_BYTES = 32
# Part of the key of every cached tokenizer. Increase it when the same files give other pairs.
_FORMAT = 3
# Error messages of SentencePiece about sizes, with a size that would work, and our explanations.
_REFUSALS = {
    r"set it to a value <= (\d+)": "model.vocab_size is too large for the training text: got {0}, "
    "at most {1} is possible; set --config.model.vocab_size={1} or less",
    r"smaller than required_chars\. \d+ vs (\d+)": "model.vocab_size is too small for the training "
    "text, which has many characters: got {0}, at least {1} is needed; set "
    "--config.model.vocab_size={1} or more",
    r"sentences_\.empty\(\)": "expected lines of at most 4,192 bytes to learn a vocabulary from: "
    "all lines are longer; write one sentence on each line",
}


def train_tokenizer(
    lines: Iterable[str],
    vocab_size: int,
    symbols: Sequence[str] = (),
    **options: Any,
) -> Tokenizer:
    """Learns a byte-pair encoding. The same lines give the same tokenizer, bit for bit.

    The tokenizer normalizes all text, sources and targets alike, to the characters of these lines;
    see :func:`~jaxformer.data.characters.normalization_rules`. It merges runs of
    whitespace into one space. Translations therefore have neither U+00A0 nor invisible characters.

    The lines are of both languages; of more than two million, a fixed sample is used. The size
    includes special ids, bytes, and the ``symbols`` of a target side that is not text. The options
    are SentencePiece's. Raises a ``UserError`` if the text does not suit the size.
    """
    sample = _sample(itertools.filterfalse(is_blank, lines), _MAX_LINES)
    if not sample:
        raise UserError("expected text to learn a vocabulary from: all lines are empty")

    with tempfile.NamedTemporaryFile("w", encoding="ascii") as file:
        alphabet = set().union(*sample)
        for text, replacement in normalization_rules(alphabet).items():
            file.write(f"{_code_points(text)}\t{_code_points(replacement)}\n")
        file.flush()

        options |= {"control_symbols": list(symbols), "normalization_rule_tsv": file.name}
        model = train_byte_pair_model(iter(sample), vocab_size, **options)

    # The model must not depend on the file's name. A protocol buffer keeps the last value of a
    # field that occurs twice, so this makes normalizer_spec.normalization_rule_tsv empty.
    without_name = open_processor(model + b"\x1a\x02\x32\x00")
    return Tokenizer(without_name.serialized_model_proto())


def _code_points(text: str) -> str:
    """Returns the code points of a text, hexadecimal, as SentencePiece's rules have them."""
    return " ".join(f"{ord(character):X}" for character in text)


def train_byte_pair_model(
    lines: Iterator[str],
    vocab_size: int,
    **options: Any,
) -> bytes:
    """Returns a serialized SentencePiece model of byte pairs, with all bytes and our own ids."""
    import sentencepiece

    model = io.BytesIO()
    try:
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
            num_threads=1,  # with more threads, the result would vary
            minloglevel=2,
            **options,
        )
    except RuntimeError as error:
        raise _size_error(vocab_size, str(error)) from None
    return model.getvalue()


def suitable_vocabulary(characters: int) -> int:
    """Returns the number of pieces that suits a text of this size, at least 500.

    It grows with the square root, from 2,000 for 5,000 pairs, as in the low-resource systems of
    Sennrich and Zhang (2019), to 37,000, as in the paper, for 130 million characters.
    """
    return max(500, 100 * round(3.2 * math.sqrt(characters) / 100))


def possible_vocabularies(lines: Iterable[str], symbols: int = 0) -> tuple[int, int]:
    """Returns the smallest vocabulary size for lines, and the largest, or a smaller one."""
    sample = [line for line in lines if not is_blank(line)]

    special_ids = UNK + 1
    byte_ids = 256
    characters = set().union(*sample, " ")
    smallest = special_ids + byte_ids + len(characters) + symbols

    # Without a hard limit, SentencePiece learns as many pieces as the lines have.
    measured = iter(sample[:_MEASURED_LINES])
    model = train_byte_pair_model(measured, 1_000_000, hard_vocab_limit=False)
    largest = open_processor(model).vocab_size() + symbols
    return smallest, max(largest, smallest)


def estimate_tokens(lines: Sequence[str], vocab_size: int) -> int:
    """Returns about how many tokens, with end-of-sentence, lines are with so many pieces."""
    first = lines[:_MEASURED_LINES]
    sample = [line for line in first if not is_blank(line)]
    model = train_byte_pair_model(iter(sample), vocab_size, hard_vocab_limit=False)

    encoded = open_processor(model).encode(sample)
    pieces = sum(map(len, encoded))
    ends = len(sample)
    return (pieces + ends) * len(lines) // len(sample)


def cached_tokenizer(
    corpus: Corpus,
    split: str,
    vocab_size: int,
    cache_directory: pathlib.Path,
    *,
    more_symbols: Sequence[str] = (),
    **options: Any,
) -> Tokenizer:
    """Returns the tokenizer learned from all text of a split, from the cache if it is there.

    Targets that are symbols may have ``more_symbols`` than the split. The file's name is a hash of
    all inputs, and the file begins with the hash of its content, so that a damaged file is detected
    and replaced.
    """
    import sentencepiece

    corpus = VerifiedCorpus(corpus)
    version = f"{sentencepiece.__version__} {unicodedata.unidata_version}"
    inputs = (
        _FORMAT,
        corpus.fingerprint(split),
        vocab_size,
        version,
        _MAX_LINES,
        sorted(options.items()),
        *sorted(more_symbols),
    )
    key = hashlib.sha256(repr(inputs).encode()).hexdigest()
    path = cache_directory / f"tokenizer-{key[:32]}"

    if path.is_file():
        content = path.read_bytes()
        digest = content[:_DIGEST_BYTES]
        model = content[_DIGEST_BYTES:]
        if hashlib.sha256(model).digest() == digest:
            return Tokenizer(model)

    make_folder(cache_directory, "JAXFORMER_CACHE")  # before the work
    tokenizer = _learn_tokenizer(corpus, split, vocab_size, more_symbols=more_symbols, **options)

    model = tokenizer.serialized
    write_file(path, hashlib.sha256(model).digest() + model)
    return tokenizer


def _learn_tokenizer(
    corpus: VerifiedCorpus,
    split: str,
    vocab_size: int,
    *,
    more_symbols: Sequence[str],
    **options: Any,
) -> Tokenizer:
    symbols = []
    lines = itertools.chain.from_iterable(corpus.pairs(split))
    if corpus.target_symbols:
        found = set(more_symbols)
        for _, target in corpus.pairs(split):
            found.update(split_spaces(target))
        symbols = sorted(found)
        lines = (source for source, _ in corpus.pairs(split))

    lines = itertools.filterfalse(is_blank, lines)
    first = list(itertools.islice(lines, 1))
    if not first:
        raise UserError(f"{split}: expected text to learn a vocabulary from: all lines are empty")

    with announce(f"learning a vocabulary of {vocab_size:,} tokens from {split}"):
        return train_tokenizer(itertools.chain(first, lines), vocab_size, symbols, **options)


def _sample(lines: Iterable[str], size: int) -> list[str]:
    """Returns all lines, or a uniform sample of ``size``: reservoir sampling with a fixed seed.

    SentencePiece's own sampling would depend on earlier calls in the process.
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
    for pattern, explanation in _REFUSALS.items():
        found = re.search(pattern, message)
        if found:
            return UserError(explanation.format(vocab_size, *found.groups()))

    return UserError(f"SentencePiece cannot learn {vocab_size} pieces from the text: {message}")
