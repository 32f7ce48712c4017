"""Where sentence pairs come from: text files, TensorFlow Datasets, treebanks, or numerals."""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from jaxformer.config import DataConfig
from jaxformer.data.numerals import NumeralsCorpus
from jaxformer.data.text_corpus import TextCorpus
from jaxformer.data.treebank import TreesCorpus


@runtime_checkable
class Corpus(Protocol):
    """Sentence pairs in named parts, such as training and validation.

    Attributes:
      target_symbols: Whether a target is not text, but symbols with spaces between them, such as
        the brackets of a tree.
    """

    target_symbols: bool

    def pairs(self, part: str) -> Iterator[tuple[str, str]]:
        """Source and target sentences of a part, in a fixed order, read as they are asked for."""
        ...

    def fingerprint(self, part: str) -> str:
        """A hash of the part's content, hexadecimal: the same content, the same fingerprint."""
        ...


def open_corpus(config: DataConfig) -> Corpus:
    """The corpus that the config names. Nothing is read before a part is asked for.

    Raises:
      UserError: The corpus has other languages.
    """
    languages = (config.source_language, config.target_language)
    if config.corpus == "text":
        return TextCorpus(*languages)
    if config.corpus == "numerals":
        return NumeralsCorpus(*languages)
    if config.corpus == "trees":
        return TreesCorpus()
    # Imported here: TensorFlow Datasets is slow to import, and few corpora need it.
    from jaxformer.data.tfds import TfdsCorpus

    return TfdsCorpus(config.builder, config.directory, *languages)
