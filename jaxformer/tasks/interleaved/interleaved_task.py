"""Trains a language model to read pictures within its texts."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int, PyTree

from jaxformer.config import Config, data_section, model_section
from jaxformer.data.character_tokenizer import CharacterTokenizer
from jaxformer.data.corpus import Corpus
from jaxformer.data.image_texts import ImageTexts, read_image_texts
from jaxformer.data.images import Augmentation
from jaxformer.data.interleaved import InterleavedConfig
from jaxformer.data.loader import prefetch, round_up
from jaxformer.data.tokenizer import PAD, UNK, Vocabulary
from jaxformer.errors import UserError, prefix_errors
from jaxformer.kinds.interleaved import INTERLEAVED
from jaxformer.models.flamingo import Flamingo, FlamingoConfig
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.image_text.picture_text_task import describe_pairs, pairs_sha256
from jaxformer.tasks.images.image_augmentation import augment
from jaxformer.tasks.initialization import tokenizer_of_run
from jaxformer.tasks.interleaved.picture_reader import pair_tokens
from jaxformer.tasks.token_task import Output, TokenLoss, TokenTask
from jaxformer.training.arrays import REAL, evaluate_arrays
from jaxformer.training.flops import language_model_flops
from jaxformer.training.placement import BatchShards
from jaxformer.training.task import CheckStop, Randomness, Sums

_VALIDATION_SEED = 0
# Stands for a picture in the vocabulary of a run that learns one.
_MARK = "\N{OBJECT REPLACEMENT CHARACTER}"


@dataclasses.dataclass(frozen=True)
class InterleavedLoss(TokenLoss):
    """Sums the loss of the texts of pictures, which training changes at random."""

    model: FlamingoConfig
    augmentation: Augmentation = dataclasses.field(default_factory=Augmentation)

    @classmethod
    def of(cls, config: Config) -> "InterleavedLoss":
        augmentation = data_section(config, InterleavedConfig)
        return dataclasses.replace(super().of(config), augmentation=augmentation)

    def __call__(
        self,
        params: PyTree,
        batch: PyTree,
        randomness: Randomness | None,
    ) -> Sums:
        images = self.model.scale_pixels(batch["images"])  # [B, N, Y, X, C]
        if randomness is not None:
            images = self._augment(images, randomness)

        tokens = batch["tokens"]
        inputs = tokens[:, :-1]
        targets = tokens[:, 1:]
        # Where the next picture comes is given.
        is_text = (targets != PAD) & (targets != self.model.picture_token)
        real = is_text & batch[REAL][:, None]

        def forward(module: Flamingo, dropout: dict[str, Any]) -> Output:
            features = module.features(images, inputs, **dropout)
            return features, module.output_projection()

        return self.sums(self.apply(params, randomness, forward), targets, real)

    def _augment(self, images: Array, randomness: Randomness) -> Array:
        """Changes each picture at random, by the number of its row and its place there."""
        batch, count, *shape = images.shape
        row_ids = randomness.row_ids[:, None] * count + jnp.arange(count)  # [B, N]
        # From the same seed as dropout, but another stream.
        key = jax.random.fold_in(randomness.key, 1)
        pictures = images.reshape(batch * count, *shape)
        changed = augment(pictures, key, row_ids.reshape(-1), settings=self.augmentation)
        return changed.reshape(images.shape)


class _Split(NamedTuple):
    """The pairs of a split, and the tokens of each."""

    name: str
    pairs: ImageTexts
    tokens: list[list[int]]

    def rows(self, numbers: Int[np.ndarray, "B N"], length: int) -> dict[str, np.ndarray]:
        """Returns rows of pairs, given their numbers, padded to ``length`` tokens and one."""
        tokens = np.full((len(numbers), length + 1), PAD, np.int32)
        for row, chosen in zip(tokens, numbers, strict=True):
            joined = [token for number in chosen for token in self.tokens[number]]
            row[: len(joined)] = joined
        return {"images": self.pairs.images[numbers], "tokens": tokens}


class InterleavedTraining(TokenTask):
    """Trains a :class:`~jaxformer.Flamingo`; validates with loss and perplexity.

    A row has several pairs of a picture and its text, drawn at random. So the model learns texts
    without any example, and after one or more.
    """

    kind = INTERLEAVED
    loss_class = InterleavedLoss

    def __init__(
        self,
        config: Config,
        tokenizer: Vocabulary,
        train: _Split,
        valid: _Split,
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self._train = train
        self._valid = valid
        self._data = data_section(config, InterleavedConfig)
        self._model = model_section(config, FlamingoConfig)

    @classmethod
    def open(
        cls,
        config: Config,
        folder: Workdir,
        corpus: Corpus | None = None,
    ) -> "InterleavedTraining":
        if corpus is not None:
            raise UserError("corpus: expected none with pictures in texts; name data.train")

        data = data_section(config, InterleavedConfig)
        form = model_section(config, FlamingoConfig).form
        train = read_image_texts(data.source, data.train, form)
        valid = read_image_texts(data.source, data.valid, form)

        def learn() -> Vocabulary:
            characters = set("".join([*train.texts, *valid.texts, data.end]))
            return CharacterTokenizer.assemble([*sorted(characters), _MARK])

        tokenizer = tokenizer_of_run(config, folder, learn)
        if tokenizer.vocab_size != config.model.vocab_size:
            raise UserError(
                f"model.vocab_size must be {tokenizer.vocab_size}, the size of the tokenizer: got "
                f"{config.model.vocab_size}"
            )
        return cls(
            config,
            tokenizer,
            train=_encode(config, tokenizer, data.train, train),
            valid=_encode(config, tokenizer, data.valid, valid),
        )

    @classmethod
    def longest_batch(cls, config: Config, shards: BatchShards) -> PyTree:
        data = data_section(config, InterleavedConfig)
        model = model_section(config, FlamingoConfig)
        rows = round_up(data.rows, shards.row_multiple)

        pictures = (rows, data.pictures, *model.image_shape)
        tokens = (rows, data.length + 1)
        return {
            "images": jax.ShapeDtypeStruct(pictures, jnp.uint8),
            "tokens": jax.ShapeDtypeStruct(tokens, jnp.int32),
            REAL: jax.ShapeDtypeStruct((rows,), bool),
        }

    def batches(self, start: int, shards: BatchShards) -> Iterator[PyTree]:
        """Yields rows of random pairs, prepared in threads."""
        rows = self._data.rows
        size = round_up(rows, shards.row_multiple)

        def batch_of(step: int) -> PyTree:
            # Rows that only fill the shards are copies, which do not count.
            numbers = np.resize(self._numbers(step), (size, self._data.pictures))
            batch = self._train.rows(numbers, self._data.length)
            batch[REAL] = np.arange(size) < rows
            return shards.local(batch)

        return prefetch(batch_of, start, self.config.training.steps)

    def _numbers(self, step: int) -> Int[np.ndarray, "B N"]:
        """Returns the numbers of the pairs in a batch."""
        rng = np.random.default_rng((self.config.training.seed, step))
        shape = (self._data.rows, self._data.pictures)
        return rng.integers(len(self._train.tokens), size=shape)

    def example_ids(self, number: int) -> Sequence[int]:
        return self._numbers(number).reshape(-1).tolist()

    def flops(self, batch: PyTree) -> int:
        """Returns the operations of the language model alone."""
        rows, tokens = batch["tokens"].shape
        return language_model_flops(self._model, rows, tokens - 1)

    def identity(self) -> dict[str, str]:
        return {
            "tokenizer": self.tokenizer.sha256,
            "train": pairs_sha256(self._train.pairs),
            "valid": pairs_sha256(self._valid.pairs),
        }

    def summary(self) -> str:
        read = self.config.training.steps * self._data.rows * self._data.pictures
        return describe_pairs(self._train, self._valid, read)

    def evaluate(
        self,
        params: PyTree,
        mesh: Mesh,
        check_stop: CheckStop,
    ) -> dict[str, float]:
        """Computes loss per token and perplexity of rows of pairs that are the same every time."""
        count = len(self._valid.tokens)
        rng = np.random.default_rng(_VALIDATION_SEED)
        numbers = rng.integers(count, size=(count, self._data.pictures))
        return evaluate_arrays(
            self.loss,
            params,
            self._valid.rows(numbers, self._data.length),
            rows=self._data.rows,
            mesh=mesh,
            check_stop=check_stop,
        )


def _encode(
    config: Config,
    tokenizer: Vocabulary,
    name: str,
    pairs: ImageTexts,
) -> _Split:
    """Returns the pairs with their tokens; refuses pictures and texts that do not fit."""
    data = data_section(config, InterleavedConfig)
    model = model_section(config, FlamingoConfig)
    model.check_split(name, pairs.images)
    if model.picture_token <= UNK:
        raise UserError(
            "model.picture_token must be the id of a token of texts, greater than "
            f"{UNK}: got {model.picture_token}"
        )

    with prefix_errors(name):
        tokens = [
            pair_tokens(text, tokenizer, model.picture_token, data.end) for text in pairs.texts
        ]
    needed = data.pictures * max(map(len, tokens))
    if needed > data.length:
        raise UserError(
            f"data.length must be at least {needed}, the tokens of {data.pictures} pictures and "
            f"the longest text of {name}: got {data.length}"
        )
    return _Split(name, pairs, tokens)
