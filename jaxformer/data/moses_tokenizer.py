"""SentencePiece on text preprocessed with Moses' scripts, as in much published work.

The steps are ``lowercase.perl``, ``normalize-punctuation.perl`` and ``tokenizer.perl``, as ported
by ``sacremoses``. Apostrophes and some other characters are escaped, as in ``&apos;s``.
"""

import base64
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, SupportsIndex

import sacremoses

from jaxformer.data.corpus import Corpus
from jaxformer.data.tokenizer import Tokenizer, Vocabulary
from jaxformer.errors import MALFORMED, UserError, prefix_errors
from jaxformer.fields import check_values


class _Scripts(NamedTuple):
    """Moses' scripts for one language."""

    normalizer: sacremoses.MosesPunctNormalizer
    tokenizer: sacremoses.MosesTokenizer
    detokenizer: sacremoses.MosesDetokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """Options of Moses' scripts, as in :class:`~jaxformer.data.corpus.DataConfig`."""

    source_language: str
    target_language: str
    lowercase: bool = False
    detokenize: bool = True

    def __post_init__(self) -> None:
        check_values(self, "moses")

        for code in (self.source_language, self.target_language):
            if not re.fullmatch("[a-z]{2,3}", code):
                raise UserError(f"expected language codes, such as en and de: got {code!r}")

    def apply(self, text: str, *, target: bool = False) -> str:
        """Returns a source, or a target, as words separated by spaces."""
        scripts = _scripts_for(self.target_language if target else self.source_language)
        if self.lowercase:
            text = text.lower()

        normalized = scripts.normalizer.normalize(text)
        return " ".join(scripts.tokenizer.tokenize(normalized))


@dataclasses.dataclass
class PreprocessedCorpus:
    """The preprocessed sentence pairs of a corpus, to learn a vocabulary from."""

    corpus: Corpus
    preprocessing: Preprocessing
    target_symbols: bool = False

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        for source, target in self.corpus.pairs(split):
            source_words = self.preprocessing.apply(source)
            target_words = self.preprocessing.apply(target, target=True)
            yield source_words, target_words

    def fingerprint(self, split: str) -> str:
        """Returns a hash of the split, the preprocessing and the version of sacremoses."""
        version = importlib.metadata.version("sacremoses")
        parts = (self.corpus.fingerprint(split), version, self.preprocessing)
        return hashlib.sha256(repr(parts).encode()).hexdigest()


class MosesTokenizer(Tokenizer):
    """A tokenizer that prepares text with Moses' scripts before encoding, and detokenizes outputs.

    The serialized form is a JSON object with the options and the SentencePiece model.
    """

    form = "moses"
    _appends = False  # Detokenization moves quotation marks and replaces escapes.

    def __init__(self, serialized: bytes) -> None:
        with prefix_errors("expected a Moses tokenizer, a JSON object", *MALFORMED):
            values = json.loads(serialized)
            self.preprocessing = Preprocessing(**values["moses"])
            super().__init__(base64.b64decode(values["sentencepiece"], validate=True))

        # The tokenizer's file and hash are of the JSON object, not only of the SentencePiece model.
        Vocabulary.__init__(self, serialized)

    @classmethod
    def assemble(cls, preprocessing: Preprocessing, model: bytes) -> "MosesTokenizer":
        """Creates a tokenizer from its options and a serialized SentencePiece model."""
        values = {
            "tokenizer": cls.form,
            "moses": dataclasses.asdict(preprocessing),
            "sentencepiece": base64.b64encode(model).decode(),
        }
        return cls(json.dumps(values).encode())

    def _encode(self, texts: list[str], *, target: bool = False) -> list[list[int]]:
        words = [self.preprocessing.apply(text, target=target) for text in texts]
        return super()._encode(words, target=target)

    def unknown_characters(self, text: str, ids: Sequence[int] | None = None) -> str:
        return super().unknown_characters(self.preprocessing.apply(text), ids)

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        words = super().decode(ids)
        if not self.preprocessing.detokenize:
            return words

        scripts = _scripts_for(self.preprocessing.target_language)
        return scripts.detokenizer.detokenize(words.split())


@functools.cache
def _scripts_for(language: str) -> _Scripts:
    return _Scripts(
        normalizer=sacremoses.MosesPunctNormalizer(language, perl_parity=True),
        tokenizer=sacremoses.MosesTokenizer(language),
        detokenizer=sacremoses.MosesDetokenizer(language),
    )


TOKENIZER = MosesTokenizer
