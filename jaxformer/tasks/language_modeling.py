"""Language modeling: one text, next-token prediction, and perplexity."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int, PyTree

from jaxformer.config import Config, StreamConfig, data_of
from jaxformer.data.corpus import Corpus
from jaxformer.data.findings import listed
from jaxformer.data.loader import prefetch, round_up
from jaxformer.data.stream import (
    CharacterTokenizer,
    TokenStream,
    load_stream_tokenizer,
    read_text,
    split_text,
    train_byte_pairs,
)
from jaxformer.data.tokenizer import PAD, Vocabulary
from jaxformer.errors import UserError
from jaxformer.files import local_path
from jaxformer.kinds import make_init
from jaxformer.models.flops import language_model_flops
from jaxformer.models.language_model import LanguageModel
from jaxformer.runs.run_directory import check_identity
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.initialization import given_tokenizer
from jaxformer.tasks.token_loss import TokenLoss
from jaxformer.training.losses import projected_cross_entropy
from jaxformer.training.mesh import BatchShards
from jaxformer.training.task import Example, Init, Loss, Randomness, Sums, Task, dropout_of
from jaxformer.training.validation import evaluate_loss


def open_stream(config: Config, folder: Workdir) -> TokenStream:
    """Reads and tokenizes the text; a resumed run keeps the tokenizer of its workdir.

    Raises:
      UserError: The text cannot be read, differs from the text that the run began with, or does not
        match the sizes in the config.
    """
    data = data_of(config, StreamConfig)
    try:
        text = read_text(local_path(data.file))
    except UserError as error:
        raise UserError(f"data.file: {error}") from None
    if folder.config.exists():
        folder.check_tokenizer()
        tokenizer = load_stream_tokenizer(folder.tokenizer)
    elif (given := given_tokenizer(config, load_stream_tokenizer)) is not None:
        tokenizer = given
    elif data.tokens == "characters":
        tokenizer = CharacterTokenizer(sorted(set(text)))
    else:
        tokenizer = train_byte_pairs(split_text(text)[0], config.model.vocab_size)
    if tokenizer.vocab_size != config.model.vocab_size:
        raise UserError(
            f"model.vocab_size must be {tokenizer.vocab_size}, four special tokens and all "
            f"characters of {data.file}: got {config.model.vocab_size}"
        )
    stream = TokenStream.of(text, tokenizer)
    check_identity(folder, _identity(stream))
    if len(stream.train) <= data.length:
        raise UserError(
            f"data.length must be less than the {len(stream.train):,} tokens to train on: got "
            f"{data.length}"
        )
    return stream


def _identity(stream: TokenStream) -> dict[str, str]:
    return {"tokenizer": stream.tokenizer.sha256, "text": stream.text_sha256}


class NextTokenLoss(TokenLoss):
    """Sums the loss of a language model over rows of tokens."""

    def __call__(
        self, params: PyTree, batch: Int[Array, "B _"], randomness: Randomness | None
    ) -> Sums:
        model = LanguageModel(self.model, "none" if randomness is None else self.remat)
        dropout, rngs = dropout_of(randomness)
        inputs, targets = batch[:, :-1], batch[:, 1:]
        real = targets != PAD

        def forward(module: LanguageModel) -> tuple[Array, Any]:
            return module.features(inputs, **dropout), module.output_projection()

        features, projection = cast(Any, model.apply({"params": params}, rngs=rngs, method=forward))
        smoothing, dtype = self.label_smoothing, self.model.compute_dtype
        loss, nll = projected_cross_entropy(features, projection, targets, real, smoothing, dtype)
        count = real.sum(dtype=jnp.int32)
        return {"loss": loss, "nll": nll, "count": count, "tokens": count}


class LanguageModeling(Task):
    """Trains a language model on one text; validates with loss and perplexity.

    A batch is token ids, [B, T + 1]. Each of the last T tokens is predicted from the tokens before
    it in its row. 0 is padding.
    """

    def __init__(self, config: Config, stream: TokenStream) -> None:
        self.config, self._data, self._stream = config, data_of(config, StreamConfig), stream

    @classmethod
    def open(
        cls, config: Config, folder: Workdir, corpus: Corpus | None = None
    ) -> "LanguageModeling":
        """Opens the text of a config; see :func:`open_stream`. There is no other corpus."""
        return cls(config, open_stream(config, folder))

    @classmethod
    def longest_step(cls, config: Config, shards: BatchShards) -> tuple[Init, Loss, PyTree]:
        """Returns initialization, loss and the shape of a batch, without any data."""
        none = np.zeros(0, np.int32)
        task = cls(config, TokenStream(CharacterTokenizer(""), none, none, 0, ""))
        return task.init, task.loss, task.shapes(shards)[0]

    @property
    def init(self) -> Init:
        """Creates the parameters from a key."""
        return make_init(self.config.model, self.config.kind)

    @property
    def loss(self) -> Loss:
        """Sums the label-smoothed loss and counts tokens."""
        return NextTokenLoss.of(self.config)

    @property
    def tokenizer(self) -> Vocabulary:
        """Vocabulary of the text."""
        return self._stream.tokenizer

    def batches(self, start: int, shards: BatchShards) -> Iterator[Int[np.ndarray, "B _"]]:
        """Yields rows from random positions of the training text, made in threads."""
        data, rows = self._data, self._rows(shards)

        def batch_of(step: int) -> Int[np.ndarray, "B _"]:
            batch = self._stream.training_batch(
                step, data.rows, data.length, self.config.training.seed
            )
            return shards.local(np.pad(batch, ((0, rows - data.rows), (0, 0))))

        return prefetch(batch_of, start, self.config.training.steps)

    def examples(self, number: int, batch: Int[np.ndarray, "B _"]) -> Iterator[Example]:
        """Yields the rows of a batch as text."""
        for example in super().examples(number, batch):
            tokens = batch[example.row]
            text = self._stream.tokenizer.decode(tokens[tokens != PAD])
            yield example._replace(text=f"{example.text}: {text!r}")

    def shapes(self, shards: BatchShards) -> Sequence[PyTree]:
        """Returns the only shape of a training batch."""
        return [jax.ShapeDtypeStruct((self._rows(shards), self._data.length + 1), jnp.int32)]

    def flops(self, batch: Int[Array, "B _"]) -> int:
        """Returns the operations of all matmuls of a step, for padding too."""
        rows, tokens = batch.shape
        return language_model_flops(self.config.model, rows, tokens - 1)

    def identity(self) -> dict[str, str]:
        """Returns the SHA-256 of the text and of the tokenizer."""
        return _identity(self._stream)

    def save(self, workdir: Workdir) -> None:
        """Writes the tokenizer.

        Raises:
          UserError: The workdir already holds another tokenizer.
        """
        workdir.write_tokenizer(self._stream.tokenizer.serialized)

    def summary(self) -> str:
        """Returns the numbers of tokens and epochs, and lines with unusual characters."""
        stream, data = self._stream, self._data
        step = data.rows * data.length
        epochs = self.config.training.steps * step / len(stream.train)
        counts = (
            f"{len(stream.train):,} training tokens, {len(stream.valid):,} validation tokens of "
            f"{stream.valid_characters:,} characters; {step:,} tokens per step, {epochs:.1f} epochs"
        )
        notes = (
            f"lines with {kind}, kept: "
            + listed([f"{data.file}:{line + 1}" for line, _ in finding.first], finding.count)
            for kind, finding in stream.findings.items()
        )
        return "\n".join((counts, *notes))

    def example_ids(self, number: int) -> list[int]:
        """Returns the positions in the training tokens where the rows of a batch begin."""
        data, seed = self._data, self.config.training.seed
        return self._stream.row_starts(number, data.rows, data.length, seed).tolist()

    def describe_batch(self, number: int) -> str:
        """Names the first rows of a batch."""
        starts = self.example_ids(number)
        return f"its rows begin at the tokens {listed(starts[:10], len(starts))}"

    def evaluate(
        self, params: PyTree, mesh: Mesh, check_stop: Callable[[], None]
    ) -> dict[str, float]:
        """Computes loss per token, perplexity, and nats and bits per character."""
        shards = BatchShards.of(mesh)
        windows = self._stream.validation_windows(self._rows(shards), self._data.length)
        values = evaluate_loss(self.loss, params, map(shards.local, windows), mesh, check_stop)
        per_character = len(self._stream.valid) / self._stream.valid_characters
        nats = math.log(values["perplexity"]) * per_character
        return values | {"nats_per_character": nats, "bits_per_character": nats / math.log(2)}

    def _rows(self, shards: BatchShards) -> int:
        return round_up(self._data.rows, shards.row_multiple)
