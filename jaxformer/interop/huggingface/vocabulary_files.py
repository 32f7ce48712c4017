"""Vocabularies of tokenizers: of tokenizer.json, or of the files that transformers 1 to 3 wrote."""

import base64
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxformer.data.tokenizer import open_processor
from jaxformer.errors import MALFORMED, UserError, prefix_errors
from jaxformer.files import read_object, read_whole
from jaxformer.interop.huggingface.tokenizer_classes import Pieces, Step, TokenizerClass
from jaxformer.interop.json_fields import JsonFields

# Types of pieces in a SentencePiece model.
_CONTROL = 3
_USER_DEFINED = 4


class VocabularySource(NamedTuple):
    """A vocabulary, and what else a class takes from files."""

    vocab: Mapping[str, int] | Pieces
    merges: list[Any]
    charsmap: str | None = None  # table of the normalizer of a SentencePiece model, in base 64
    added_tokens: Sequence[Step] = ()  # of tokenizer.json, in the order of their ids
    symbols: Sequence[Step] = ()  # added tokens of a SentencePiece model
    post_processor: Step | None = None


def of_pipeline(pipeline: Step) -> VocabularySource:
    """Returns the vocabulary of a tokenizer.json."""
    normalizer = pipeline.get("normalizer") or {}
    charsmap = None
    for step in normalizer.get("normalizers", [normalizer]):
        charsmap = charsmap or step.get("precompiled_charsmap")

    model = pipeline["model"]
    return VocabularySource(
        vocab=model["vocab"],
        merges=model.get("merges", []),
        charsmap=charsmap,
        added_tokens=pipeline.get("added_tokens", ()),
        post_processor=pipeline.get("post_processor"),
    )


def read_vocabulary(
    directory: pathlib.Path,
    tokenizer_class: TokenizerClass,
    settings: JsonFields,
) -> VocabularySource:
    """Reads the files of a class, which all exist."""
    main, *others = [directory / name for name in tokenizer_class.files]
    if tokenizer_class.model == "WordPiece":
        return VocabularySource(_read_words(main), merges=[])

    if main.suffix == ".json":
        merges = others[0]
        vocab = read_object(main, advice="byte-level BPE has one beside merges.txt")
        return VocabularySource(vocab, _read_merges(merges))
    return _read_sentence_pieces(main, tokenizer_class, settings)


def _lines(path: pathlib.Path) -> list[str]:
    """Returns the lines of a text, which end with a line feed only."""
    with prefix_errors(f"{path}: expected UTF-8", UnicodeDecodeError):
        text = read_whole(path).decode()
    return text.removesuffix("\n").split("\n")


def _read_words(path: pathlib.Path) -> dict[str, int]:
    """Reads vocab.txt: a word a line; the last of equal words counts."""
    words = [line.rstrip() for line in _lines(path)]
    return {word: number for number, word in enumerate(words)}


def _read_merges(path: pathlib.Path) -> list[list[str]]:
    """Reads merges.txt: two tokens a line, the first to merge first."""
    merges = []
    for number, line in enumerate(_lines(path), start=1):
        if line.startswith("#version"):
            continue

        merge = line.rstrip("\r").split(" ")
        if len(merge) != 2:
            raise UserError(f"{path}:{number}: expected two tokens to merge: got {line!r:.80}")
        merges.append(merge)
    return merges


def _read_sentence_pieces(
    path: pathlib.Path,
    tokenizer_class: TokenizerClass,
    settings: JsonFields,
) -> VocabularySource:
    """Reads a SentencePiece model."""
    # pyright does not see generated classes.
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # pyright: ignore

    content = read_whole(path)
    with prefix_errors(str(path), UserError, *MALFORMED):
        open_processor(content)  # refuses other files
        model = ModelProto.FromString(content)

    symbols = []
    for piece in model.pieces:
        if piece.type not in (_CONTROL, _USER_DEFINED):
            continue

        symbol = {
            "content": piece.piece,
            "normalized": False,
            "special": piece.type == _CONTROL,
        }
        symbols.append(symbol)

    pieces = [(piece.piece, piece.score) for piece in model.pieces]
    vocab: Mapping[str, int] | Pieces = tokenizer_class.arrange(pieces, settings)
    merges: list[Any] = []
    if tokenizer_class.model == "BPE":
        vocab = {piece: number for number, (piece, _) in enumerate(vocab)}
        merges = _merges_of(vocab)

    content = model.normalizer_spec.precompiled_charsmap
    charsmap = base64.b64encode(content).decode()
    return VocabularySource(
        vocab,
        merges,
        charsmap=charsmap or None,
        symbols=symbols,
    )


def _merges_of(vocab: Mapping[str, int]) -> list[list[str]]:
    """Returns all pairs of pieces that make a piece, sorted by the id of the piece."""
    ranked = []
    for piece, number in vocab.items():
        for middle in range(1, len(piece)):
            left = piece[:middle]
            right = piece[middle:]
            if left in vocab and right in vocab:
                rank = (number, len(left), len(right), vocab[left], vocab[right])
                ranked.append((rank, [left, right]))
    return [merge for _, merge in sorted(ranked)]
