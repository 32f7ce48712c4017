"""Translation corpora from TensorFlow Datasets, such as WMT14, read without TensorFlow."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow_datasets as tfds
import tensorflow_datasets.translate  # registers wmt14_translate and others

from jaxformer.errors import UserError


class TfdsCorpus:
    """A translation builder that has been downloaded and prepared as ArrayRecord files."""

    target_symbols = False

    def __init__(
        self,
        builder: str,
        directory: str,
        source_language: str,
        target_language: str,
    ) -> None:
        self._name = builder
        self._directory = directory
        self._source_language = source_language
        self._target_language = target_language

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        examples = self._open(split)
        count = 0
        try:
            for example in examples:
                source = self._text(example, self._source_language)
                target = self._text(example, self._target_language)
                yield source, target
                count += 1
        except UnicodeDecodeError as error:
            raise self._damage_error(split, f"record {count}: not UTF-8: {error.reason}") from None
        except RuntimeError as error:  # ArrayRecord raises it for damaged files
            raise self._damage_error(split, str(error).splitlines()[0]) from None

        if count != len(examples):
            raise self._damage_error(split, f"expected {len(examples)} records, got {count}")

    def place(self, split: str, number: int, side: int) -> str:
        return f"{self._name}, split {split!r}, record {number}"

    def fingerprint(self, split: str) -> str:
        """Returns the SHA-256 of the dataset's name, version, split and size, not of its text."""
        version = self._builder().info.full_name
        size = len(self._open(split))
        identity = (version, split, size, self._source_language, self._target_language)
        text = repr(identity)
        return hashlib.sha256(text.encode()).hexdigest()

    def _builder(self) -> Any:
        try:
            return tfds.builder(self._name, data_dir=self._directory or None)
        except (tfds.core.DatasetNotFoundError, ValueError):
            raise UserError(
                f"data.builder: TensorFlow Datasets has no {self._name!r}; expected a translation "
                "builder such as wmt14_translate/de-en"
            ) from None

    def _open(self, split: str) -> Any:
        """Returns the examples of a split, as a sequence of mappings from language to text."""
        builder = self._builder()
        try:
            return builder.as_data_source(split)
        except (AssertionError, KeyError, NotImplementedError, ValueError):
            splits = builder.info.splits
            file_format = builder.info.file_format

        if not splits:
            raise self._unprepared_error()

        if file_format != tfds.core.FileFormat.ARRAY_RECORD:
            raise UserError(
                f"{self._name} is prepared in {builder.data_path}, but as {file_format.value} and "
                "not as array_record, which can be read in any order; prepare it again with "
                "file_format='array_record' in another folder and give that as data.directory"
            )

        raise UserError(f"{self._name} has no split {split!r}; expected one of {', '.join(splits)}")

    def _unprepared_error(self) -> UserError:
        folder = self._directory or "the default folder of TensorFlow Datasets"
        place = f", data_dir={self._directory!r}" if self._directory else ""
        return UserError(
            f"{self._name} is not prepared as ArrayRecord files in "
            f"{folder}; to get it: "
            "pip install importlib_resources tensorflow-cpu && "
            'python -c "import tensorflow_datasets as tfds, '
            f"tensorflow_datasets.translate; tfds.builder('{self._name}'{place}, "
            "file_format='array_record').download_and_prepare()\"; or use your own files "
            f"PREFIX.{self._source_language} and PREFIX.{self._target_language}, as in: "
            "--config.data.corpus=text "
            "--config.data.train=PREFIX --config.data.valid=PREFIX"
        )

    def _text(self, example: Mapping[str, str | bytes], language: str) -> str:
        if language not in example:
            raise UserError(
                f"{self._name} has no language {language!r}; expected two of "
                f"{', '.join(sorted(example))} as data.source_language and data.target_language"
            )

        text = example[language]
        if isinstance(text, bytes):
            return text.decode("utf-8")
        return text

    def _damage_error(self, split: str, what: str) -> UserError:
        return UserError(
            f"{self._name}, split {split!r}: {what}; the files are damaged: delete "
            f"{self._builder().data_path} and prepare the data set again"
        )
