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
from collections.abc import Iterable, Iterator
from typing import SupportsIndex

from sacremoses import MosesDetokenizer, MosesPunctNormalizer
from sacremoses import MosesTokenizer as Scripts

from jaxformer.data.corpus import Corpus
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """Options of Moses' scripts.

    Attributes:
      source_language: Language code of the source, which selects the rules.
      target_language: Language code of the target.
      lowercase: Convert to lower case.
      detokenize: Detokenize outputs to plain text; otherwise they are words with escapes.
    """

    source_language: str
    target_language: str
    lowercase: bool = False
    detokenize: bool = True

    def __post_init__(self) -> None:
        codes = (self.source_language, self.target_language)
        flags = (self.lowercase, self.detokenize)
        if not all(isinstance(code, str) and re.fullmatch("[a-z]{2,3}", code) for code in codes):
            raise UserError(f"expected language codes, such as en and de: got {codes}")
        if not all(isinstance(flag, bool) for flag in flags):
            raise UserError(f"expected True or False as lowercase and detokenize: got {flags}")

    def source(self, text: str) -> str:
        return self._words(text, self.source_language)

    def target(self, text: str) -> str:
        return self._words(text, self.target_language)

    def output(self, words: str) -> str:
        """Returns the text of an output, detokenized unless ``detokenize`` is False."""
        if not self.detokenize:
            return words
        return _detokenizer(self.target_language).detokenize(words.split())

    def _words(self, text: str, language: str) -> str:
        text = text.lower() if self.lowercase else text
        normalizer, scripts = _scripts(language)
        return " ".join(scripts.tokenize(normalizer.normalize(text)))


class PreprocessedCorpus:
    """The preprocessed sentence pairs of a corpus, to learn a vocabulary from."""

    target_symbols = False

    def __init__(self, corpus: Corpus, preprocessing: Preprocessing) -> None:
        self._corpus = corpus
        self._preprocessing = preprocessing

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Yields the preprocessed pairs of a split."""
        for source, target in self._corpus.pairs(split):
            yield self._preprocessing.source(source), self._preprocessing.target(target)

    def fingerprint(self, split: str) -> str:
        """Returns a hash of the split, the preprocessing and the version of sacremoses."""
        version = importlib.metadata.version("sacremoses")
        parts = (self._corpus.fingerprint(split), version, self._preprocessing)
        return hashlib.sha256(repr(parts).encode()).hexdigest()


class MosesTokenizer(Tokenizer):
    """A tokenizer that prepares text with Moses' scripts before encoding, and detokenizes outputs.

    The serialized form is a JSON object with the options and the SentencePiece model.

    Attributes:
      preprocessing: The options.
    """

    def __init__(self, serialized: bytes) -> None:
        """Parses the JSON object.

        Raises:
          UserError: The bytes are not such an object.
        """
        try:
            values = json.loads(serialized)
            self.preprocessing = Preprocessing(**values["moses"])
            super().__init__(base64.b64decode(values["sentencepiece"], validate=True))
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise UserError(f"expected a Moses tokenizer, a JSON object: {error}") from None
        self.serialized = serialized
        self.sha256 = hashlib.sha256(serialized).hexdigest()

    @classmethod
    def assemble(cls, preprocessing: Preprocessing, model: bytes) -> "MosesTokenizer":
        """Creates a tokenizer from its options and a serialized SentencePiece model."""
        encoded = base64.b64encode(model).decode()
        values = {"moses": dataclasses.asdict(preprocessing), "sentencepiece": encoded}
        return cls(json.dumps(values).encode())

    def _encode(self, texts: list[str], *, target: bool = False) -> list[list[int]]:
        prepare = self.preprocessing.target if target else self.preprocessing.source
        return super()._encode([*map(prepare, texts)], target=target)

    def unknown_characters(self, text: str) -> str:
        return super().unknown_characters(self.preprocessing.source(text))

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        return self.preprocessing.output(super().decode(ids))


@functools.cache
def _scripts(language: str) -> tuple[MosesPunctNormalizer, Scripts]:
    return MosesPunctNormalizer(language, perl_parity=True), Scripts(language)


@functools.cache
def _detokenizer(language: str) -> MosesDetokenizer:
    return MosesDetokenizer(language)
