"""The base of tasks whose examples are pictures with texts."""

import abc
import functools
import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int32, PyTree

from jaxformer.config import Config, data_section
from jaxformer.data.bpe import train_tokenizer
from jaxformer.data.corpus import Corpus
from jaxformer.data.examples import describe_example
from jaxformer.data.image_texts import ImageTextPairs, ImageTexts, read_image_texts
from jaxformer.data.tokenizer import Vocabulary
from jaxformer.errors import UserError, prefix_errors
from jaxformer.models.architecture import Architecture
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.array_task import ArrayTask, abstract_rows
from jaxformer.tasks.initialization import tokenizer_of_run
from jaxformer.tasks.token_task import TokenTask
from jaxformer.training.placement import BatchShards


class Split(NamedTuple):
    """The pairs of a split, and the tokens of their texts."""

    name: str
    pairs: ImageTexts
    tokens: Int32[np.ndarray, "N T"]

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return {"images": self.pairs.images, "tokens": self.tokens}


class PictureTextTask(ArrayTask, TokenTask):
    """Trains a model on pictures with texts, which it reads as arrays of one size."""

    def __init__(
        self,
        config: Config,
        tokenizer: Vocabulary,
        train: Split,
        valid: Split,
    ) -> None:
        self._data = data_section(config, ImageTextPairs)
        super().__init__(config, train.arrays, valid.arrays, rows=self._data.rows)
        self.tokenizer = tokenizer
        self.train = train
        self.valid = valid

    @classmethod
    def open(
        cls,
        config: Config,
        folder: Workdir,
        corpus: Corpus | None = None,
    ) -> "PictureTextTask":
        data = data_section(config, ImageTextPairs)
        if corpus is not None:
            raise UserError(
                f"corpus: expected none with data.corpus={data.corpus}; name files in data.train"
            )

        model: Any = config.model
        train = read_image_texts(data.source, data.train, model.form)
        valid = read_image_texts(data.source, data.valid, model.form)
        learn = functools.partial(train_tokenizer, train.texts, config.model.vocab_size)
        tokenizer = tokenizer_of_run(config, folder, learn)
        return cls(
            config,
            tokenizer,
            train=cls._split(config, tokenizer, data.train, train),
            valid=cls._split(config, tokenizer, data.valid, valid),
        )

    @classmethod
    def _split(
        cls,
        config: Config,
        tokenizer: Vocabulary,
        name: str,
        pairs: ImageTexts,
    ) -> Split:
        """Returns the pairs with the tokens of their texts; refuses pictures of another size."""
        model: Any = config.model
        model.check_split(name, pairs.images)
        with prefix_errors(name):
            return Split(name, pairs, cls.encode(pairs.texts, tokenizer, model))

    @classmethod
    @abc.abstractmethod
    def encode(
        cls,
        texts: Sequence[str],
        tokenizer: Vocabulary,
        model: Architecture,
    ) -> Int32[np.ndarray, "N T"]:
        """Returns the tokens of texts, padded on the right to one length."""

    @classmethod
    def longest_batch(cls, config: Config, shards: BatchShards) -> PyTree:
        return _abstract_batch(config, shards, config.model.max_length)

    def shapes(self, shards: BatchShards) -> Sequence[PyTree]:
        return [_abstract_batch(self.config, shards, self.train.tokens.shape[1])]

    def identity(self) -> dict[str, str]:
        return {
            "tokenizer": self.tokenizer.sha256,
            "train": pairs_sha256(self.train.pairs),
            "valid": pairs_sha256(self.valid.pairs),
        }

    def summary(self) -> str:
        read = self.config.training.steps * self._data.rows
        return describe_pairs(self.train, self.valid, read)


def _abstract_batch(config: Config, shards: BatchShards, length: int) -> PyTree:
    """Returns the shapes and dtypes of a batch with texts of this length."""
    model: Any = config.model
    data = data_section(config, ImageTextPairs)
    example = {
        "images": jax.ShapeDtypeStruct(model.image_shape, jnp.uint8),
        "tokens": jax.ShapeDtypeStruct((length,), jnp.int32),
    }
    return abstract_rows(data.rows, shards, example)


@runtime_checkable
class NamedPairs(Protocol):
    """The pairs of a split, and its name."""

    @property
    def name(self) -> str: ...

    @property
    def pairs(self) -> ImageTexts: ...


def describe_pairs(train: NamedPairs, valid: NamedPairs, read: int) -> str:
    """Returns lines for the log: sizes, epochs of a run that reads so many pairs, and examples."""
    count = len(train.pairs.texts)
    epochs = read / count
    held_out = len(valid.pairs.texts)
    lines = [f"{count:,} training pairs, {held_out:,} for validation; {epochs:.1f} epochs"]

    for split in (train, valid):
        size = " x ".join(map(str, split.pairs.images.shape[1:]))
        sides = [("picture", size), ("text", split.pairs.texts[0])]
        lines.append(describe_example(split.name, sides))
    return "\n".join(lines)


def pairs_sha256(pairs: ImageTexts) -> str:
    """Returns the SHA-256 of all pictures and texts, hexadecimal."""
    digest = hashlib.sha256(bytes(pairs.images))
    digest.update(repr(pairs.images.shape).encode())
    digest.update("\n".join(pairs.texts).encode())
    return digest.hexdigest()
