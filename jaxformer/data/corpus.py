"""Corpora of sentence pairs: text, Parquet, JSONL or TSV files, TFDS, treebanks, or numerals."""

import abc
import contextlib
import dataclasses
import hashlib
import itertools
import re
from collections.abc import Callable, Iterator
from typing import ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from jaxformer.data import corpora
from jaxformer.errors import UserError, prefix_errors
from jaxformer.fields import check_one_of, check_values, setting
from jaxformer.files import local_path
from jaxformer.registry import find_entries

# Stands for the languages of an imported model whose files do not name them, such as T5.
UNKNOWN_LANGUAGE = "unknown"
_LARGEST_WEIGHT = 1000
# Values of data.train in messages, where they are not my/train.KIND.
_EXAMPLES = {"tfds": "train", "labeled": "my/train.tsv", "masked": "my/train.txt"}
_WEIGHTED = re.compile(r"(.+):(\d[\d.]*)")
# A placeholder, but no special token.
_SYMBOL = re.compile(r"(?!(</?s>|<pad>|<unk>)$)\S+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSection(abc.ABC):
    """The data section of a config: source of the examples, and how they form batches.

    Attributes:
      corpus: Kind of the source, which selects the kind of the experiment.
      tokenizer: Tokenizer of a new run; None learns one from the training text.
      length_field: Name of the field with the maximum row length in tokens, if any; not itself a
        field.
    """

    corpus: str
    tokenizer: str | None = setting(None, may_move=True)
    length_field: ClassVar[str | None] = "max_length"

    @property
    @abc.abstractmethod
    def batch(self) -> tuple[str, str]:
        """A description of the batch size, and the fields to lower for a smaller batch."""

    def check_named(self) -> None:
        """Asks for data that a config leaves to the user; by default, it leaves none."""
        return None

    def check_paths(self, *names: str) -> None:
        """Checks that the fields that are paths are on a local disk."""
        for name in names:
            with prefix_errors(f"data.{name}"):
                local_path(getattr(self, name) or "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(DataSection):
    """Source of sentence pairs, and how they form batches (section 5.1).

    Attributes:
      corpus: "text" reads line-aligned files, "parquet" and "jsonl" files of rows with a column
        "translation", "tsv" files with source, tab and target on each line, "csv" files with named
        columns, "tmx" and "xliff" translation memories, "tfds" a TensorFlow Datasets translation
        builder, "numerals" generates number words, in English, German or Chinese, "trees" reads
        treebanks: the source is the words, the target is the tree (section 6.3).
      builder: For "tfds": the builder, for example "wmt14_translate/de-en".
      directory: For "tfds": the data directory; the default of TFDS when empty.
      source_language: Language code of the source; also the file extension for "text".
      target_language: Language code of the target; also the file extension for "text". It selects
        sacreBLEU's tokenizer for BLEU.
      train: Training split; for "text", a path prefix: "data/train" means data/train.en and
        data/train.de, or the same with .gz, .bz2, .xz or .zst. Comma-separated files for "trees",
        "parquet", "jsonl", "tsv", "csv", "tmx" and "xliff"; all but the first accept patterns such
        as ``data/train-*.parquet``. Otherwise a split name. Several splits need weights:
        "news:1,captions:3" uses each pair of the second one three times per epoch.
      valid: Validation split, in the same form, or a share of the training text, such as "5%",
        above 0% and below 100%; see :mod:`jaxformer.data.held_out`.
      columns: For "csv", "jsonl" and "parquet": names of the columns of source and target, such as
        "English,German"; the language codes when empty.
      tokenizer: Tokenizer of a new run: a file, a workdir, or "pretrained" for the tokenizer of
        the model that comes with jaxformer. None takes the tokenizer of ``training.init_from``;
        without it, a tokenizer is learned from the training text, as with "new".
      user_defined_symbols: Placeholders, such as "<name>,<url>". Each is one token on both sides,
        as with the same option of spm_train. An existing ``tokenizer`` must have them.
      pretokenizer: "moses" normalizes punctuation and separates it from words, as Moses' scripts
        do; see :mod:`jaxformer.data.moses_tokenizer`. "none" leaves text unchanged.
      lowercase: Convert all text to lower case; needs a pretokenizer.
      detokenize: Detokenize translations to plain text; False leaves Moses' words and escapes.
      batching: "buckets" groups pairs of similar length as the paper does; "packing" puts several
        pairs into one row.
      tokens_per_batch: Upper limit of source tokens, and of target tokens, in one global batch,
        including padding. Empty rows may be added so that the rows divide evenly among devices.
      max_length: Longest side of a training pair in tokens, including end-of-sentence. Longer pairs
        are skipped, counted and reported. With packing, also the length of a row.

    Departs from the paper: training pairs longer than ``max_length``, 256, are skipped.
    """

    corpus: str = "tfds"
    builder: str = "wmt14_translate/de-en"
    directory: str = setting("", may_change=True)
    source_language: str = "en"
    target_language: str = "de"
    train: str = setting("train", may_change=True, is_usual=True)
    valid: str = setting("validation", may_change=True, is_usual=True)
    columns: str = ""
    user_defined_symbols: str = ""
    pretokenizer: Literal["none", "moses"] = "none"
    lowercase: bool = False
    detokenize: bool = True
    batching: Literal["buckets", "packing"] = "buckets"
    tokens_per_batch: int = setting(25_000, "positive", is_usual=True)
    max_length: int = setting(256, "positive")

    def __post_init__(self) -> None:
        check_values(self, "data")
        self.check_corpus()
        self.check_paths("directory", "train", "valid", "tokenizer")

        uses_moses = self.lowercase or not self.detokenize
        if self.pretokenizer == "none" and uses_moses:
            raise UserError(
                "data.lowercase and data.detokenize=False need data.pretokenizer=moses: got none"
            )

        are_symbols = all(map(_SYMBOL.fullmatch, self.symbols()))
        if not are_symbols:
            raise UserError(
                "data.user_defined_symbols must be words with commas between, as in <name>,<url>, "
                f"and no special tokens: got {self.user_defined_symbols!r}"
            )

        if self.tokens_per_batch < self.max_length:
            raise UserError(
                "data.tokens_per_batch must hold at least one sentence of data.max_length: got "
                f"tokens_per_batch={self.tokens_per_batch}, max_length={self.max_length}"
            )

    @property
    def batch(self) -> tuple[str, str]:
        return (
            f"{self.tokens_per_batch:,} tokens per side in sentences of {self.max_length}",
            "data.tokens_per_batch or data.max_length",
        )

    @property
    def languages(self) -> tuple[str, str]:
        """The languages of source and target."""
        return self.source_language, self.target_language

    def check_corpus(self) -> None:
        """Checks that there is such a source of sentence pairs, and that it has its fields."""
        sources = known_sources()
        check_one_of("data.corpus", self.corpus, sources)
        if not self.columns:
            return

        if not sources[self.corpus].has_columns:
            able = [name for name, source in sources.items() if source.has_columns]
            raise UserError(
                f"data.columns needs data.corpus={' or '.join(able)}: got {self.corpus}"
            )
        if len(self.names_of_columns()) != 2:
            raise UserError(
                "data.columns: expected the names of the columns of source and target, with a "
                f"comma between: got {self.columns!r}"
            )

    def names_of_columns(self) -> list[str]:
        """Returns the names of the columns of source and target in files with named columns."""
        return self.columns.split(",") if self.columns else list(self.languages)

    def check_named(self) -> None:
        if not self.train:
            raise UserError(
                "data.train: expected your own training text, got none; give --config.data.train="
                f"{self._example()}, for example; docs/data.md lists all formats"
            )

        if not self.valid:
            raise UserError(
                "data.valid: expected a validation text, or a share of the training text, got "
                "none; give --config.data.valid=5%, for example"
            )

    def _example(self) -> str:
        """Returns a value of ``train`` for messages, with an explanation."""
        if self.corpus != "text":
            return _EXAMPLES.get(self.corpus, f"my/train.{self.corpus}")

        source = self.source_language
        target = self.target_language
        return f"my/train for the files my/train.{source} and my/train.{target}"

    def symbols(self) -> list[str]:
        """Returns ``user_defined_symbols`` as a list."""
        if not self.user_defined_symbols:
            return []
        return self.user_defined_symbols.split(",")


class PairSource(NamedTuple):
    """A source of sentence pairs.

    Attributes:
      name: The value of ``data.corpus`` that selects it.
      place: Number that sorts the sources in messages.
      open: Returns the corpus of a config; None if only a task can read it.
      has_columns: Whether its files have columns that ``data.columns`` can name.
    """

    name: str
    place: int
    open: Callable[[DataConfig], "Corpus"] | None
    has_columns: bool = False


def known_sources() -> dict[str, PairSource]:
    """Returns all sources of sentence pairs by name."""
    return find_entries(corpora, PairSource)


@runtime_checkable
class Corpus(Protocol):
    """Sentence pairs in named splits, such as training and validation.

    A corpus may have three more methods, for messages. ``place(split, number, side)`` returns where
    the source (side 0) or the target (side 1) of a pair is, such as ``"train.en:17"``; pairs are
    numbered from 0. ``notes(split)`` returns a list of lines for the log. ``origins(split)`` yields
    the name of the corpus of each pair, for a split of several corpora.

    Attributes:
      target_symbols: True if targets are not text but space-separated symbols, such as the brackets
        of a tree.
    """

    target_symbols: bool

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Yields source and target sentences of a split, lazily and in a fixed order."""
        ...

    def fingerprint(self, split: str) -> str:
        """Returns a hexadecimal hash of the content of a split.

        It is called before and after all pairs are read, to detect pairs that change meanwhile.
        """
        ...


def parse_mixture(split: str) -> dict[str, int]:
    """Returns the corpora of a mixture and their weights; none if the split is a single corpus.

    >>> parse_mixture("news:1,captions:3"), parse_mixture("news")
    ({'news': 1, 'captions': 3}, {})
    """
    names = [name.strip() for name in split.split(",")]
    matches = [_WEIGHTED.fullmatch(name) for name in names]
    found = [match for match in matches if match]
    if len(names) == 1 or not found:
        return {}

    if len(found) < len(names):
        raise UserError(
            "expected a weight for each corpus, such as news:1,captions:3, or for none: got "
            f"{split!r}"
        )

    for match in found:
        weight = match[2]
        if not weight.isdigit() or not 1 <= int(weight) <= _LARGEST_WEIGHT:
            raise UserError(
                f"expected weights that are whole numbers from 1 to {_LARGEST_WEIGHT}, how often a "
                f"pair comes in an epoch: got {weight} in {split!r}"
            )

    mixture = {match[1]: int(match[2]) for match in found}
    if len(mixture) < len(found):
        raise UserError(f"expected different corpora: got {split!r}")
    return mixture


class VerifiedCorpus:
    """A corpus that raises an error if its pairs do not match its fingerprint.

    It also implements the optional methods of a corpus, and mixtures as splits, such as
    "news:1,captions:3": the pairs of several splits in turn, each pair once.
    """

    def __init__(self, corpus: Corpus) -> None:
        self.target_symbols = corpus.target_symbols
        self._corpus = corpus
        self._fingerprints: dict[str, str] = {}
        self._sizes: dict[str, int] = {}

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        for each in parse_mixture(split) or [split]:
            before = self.fingerprint(each)

            size = 0
            for pair in self._corpus.pairs(each):
                size += 1
                yield pair

            if self._corpus.fingerprint(each) != before:
                raise UserError(
                    f"{each}: expected the same sentence pairs each time they are read, but they "
                    "changed meanwhile; start again when nothing writes to them"
                )
            self._sizes[each] = size

    def fingerprint(self, split: str) -> str:
        """Returns the first fingerprint of a split; for a mixture, a hash without the weights."""
        mixture = parse_mixture(split)
        if mixture:
            fingerprints = " ".join(map(self.fingerprint, mixture))
            return hashlib.sha256(fingerprints.encode()).hexdigest()

        if split not in self._fingerprints:
            self._fingerprints[split] = self._corpus.fingerprint(split)
        return self._fingerprints[split]

    def place(self, split: str, number: int, side: int) -> str:
        """Returns the place of a side of a pair; by default, the number of the pair."""
        # The files may be gone, since a resumed run no longer needs them.
        with contextlib.suppress(LookupError, OSError, UserError):
            for each in parse_mixture(split):
                if number < self._size(each):
                    return self.place(each, number, side)
                number -= self._size(each)

            place = getattr(self._corpus, "place", None)
            if place is not None:
                return place(split, number, side)

        return f"{split}: pair {number + 1}"

    def notes(self, split: str) -> list[str]:
        """Returns log messages about a split."""
        notes = []
        mixture = parse_mixture(split)
        for each, weight in mixture.items():
            size = self._size(each)
            notes.append(f"{each}: {size:,} pairs, each {weight} times an epoch")

        notes_of = getattr(self._corpus, "notes", None)
        if notes_of is not None:
            for each in mixture or [split]:
                notes += notes_of(each)

        return notes

    def origins(self, split: str) -> Iterator[str]:
        """Yields the corpus of each pair of a split; by default the split itself, without end."""
        origins_of = getattr(self._corpus, "origins", itertools.repeat)
        return origins_of(split)

    def repetitions(self, split: str, numbers: np.ndarray) -> np.ndarray | None:
        """Returns how often each of the numbered pairs is used per epoch; None: once."""
        mixture = parse_mixture(split)
        if not mixture:
            return None

        sizes = [self._size(each) for each in mixture]
        weights = np.repeat(list(mixture.values()), sizes)
        return weights[numbers]

    def _size(self, split: str) -> int:
        if split not in self._sizes:
            for _ in self.pairs(split):  # Counts the pairs.
                pass
        return self._sizes[split]


def open_corpus(config: DataConfig) -> Corpus:
    """Returns the corpus of the config, except treebanks, which :mod:`jaxformer.tasks` reads."""
    source = known_sources()[config.corpus]
    assert source.open is not None, "a task reads this corpus"
    return source.open(config)
