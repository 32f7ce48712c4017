"""Language modeling: one text, next-token prediction, and perplexity."""

import itertools
import math
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int, PyTree

from jaxformer.config import Config, StreamConfig, data_section
from jaxformer.data.character_tokenizer import CharacterTokenizer
from jaxformer.data.characters import is_blank
from jaxformer.data.corpus import Corpus
from jaxformer.data.documents import split_documents
from jaxformer.data.examples import describe_example
from jaxformer.data.findings import list_first
from jaxformer.data.loader import prefetch, round_up
from jaxformer.data.stream import (
    TokenStream,
    read_text,
    train_byte_pairs,
    training_length,
)
from jaxformer.data.tokenizer import EOS, PAD, Vocabulary
from jaxformer.errors import UserError, prefix_errors
from jaxformer.files import local_path
from jaxformer.kinds.language_modeling import LANGUAGE_MODELING
from jaxformer.models.language_model import LanguageModel
from jaxformer.runs.workdir import DATA_NOTES, Workdir
from jaxformer.tasks.initialization import tokenizer_of_run
from jaxformer.tasks.token_task import Output, TokenLoss, TokenTask
from jaxformer.training.flops import language_model_flops
from jaxformer.training.placement import BatchShards
from jaxformer.training.task import CheckStop, Example, Randomness, Sums
from jaxformer.training.validation import evaluate_loss

# Tokens from which the first line of a text is shown in the log.
_SHOWN_TOKENS = 200


class Texts(NamedTuple):
    """The contents of the files that a config names, unless they hold token ids."""

    text: str  # its last part is for validation if there is no validation file; "" for token ids
    valid: str  # of the validation file; "" without one, and for token ids

    @classmethod
    def read(cls, data: StreamConfig) -> "Texts":
        data.check_named()
        if data.has_token_ids:
            return cls(text="", valid="")

        text = _read("file", data.file)
        valid = _read("valid", data.valid_file)
        return cls(text, valid)

    def training_text(self, data: StreamConfig) -> str:
        """Returns the text to train on, without separators of documents."""
        text = self.text
        if not self.valid:
            text = text[: training_length(text, data.valid_share)]

        pieces = split_documents(text, data.separator)
        return "".join(piece for piece in pieces if piece is not None)

    def characters(self, separator: str) -> list[str]:
        """Returns the sorted characters of both texts, without separators of documents."""
        found: set[str] = set()
        for text in self:
            for piece in split_documents(text, separator):
                if piece is not None:
                    found.update(piece)
        return sorted(found)


def open_stream(config: Config, folder: Workdir) -> TokenStream:
    """Reads and tokenizes the text of a config; a resumed run keeps its tokenizer.

    Raises:
      UserError: A file is missing, or a field of the config does not fit the text.
    """
    data = data_section(config, StreamConfig)
    texts = Texts.read(data)
    tokenizer = tokenizer_of_run(config, folder, lambda: _learn_tokenizer(config, texts))
    if tokenizer.vocab_size != config.model.vocab_size:
        raise UserError(
            f"model.vocab_size must be {tokenizer.vocab_size}, four special tokens and all "
            f"characters of {data.file}: got {config.model.vocab_size}"
        )

    stream = _read_stream(data, texts, tokenizer)

    # Each document ends with EOS, and the last one ends without a separator.
    is_separator = stream.train[:-1] == EOS
    has_separators = is_separator.any()
    if data.separator and not has_separators:
        raise UserError(f"data.separator: expected lines {data.separator!r} in {data.file}")

    if len(stream.train) <= data.length:
        raise UserError(
            f"data.length must be less than the {len(stream.train):,} tokens to train on: got "
            f"{data.length}"
        )
    return stream


def _read_stream(
    data: StreamConfig,
    texts: Texts,
    tokenizer: Vocabulary,
) -> TokenStream:
    if not data.has_token_ids:
        return TokenStream.of(
            texts.text,
            tokenizer,
            data.separator,
            valid=texts.valid,
            share=data.valid_share,
        )

    return TokenStream.of_files(
        local_path(data.file),
        local_path(data.valid_file) if data.valid_file else None,
        data.token_dtype,
        tokenizer=tokenizer,
        share=data.valid_share,
    )


def _learn_tokenizer(config: Config, texts: Texts) -> Vocabulary:
    data = data_section(config, StreamConfig)
    if data.has_token_ids:
        raise UserError(f"data.file={data.file}: token ids need data.tokenizer, their tokenizer")

    if data.tokens == "characters":
        return CharacterTokenizer.assemble(texts.characters(data.separator))

    text = texts.training_text(data)
    return train_byte_pairs(text, config.model.vocab_size)


def _read(name: str, file: str) -> str:
    """Returns the text of ``file``, the value of the field ``name`` of the config; "" for none."""
    if not file:
        return ""
    with prefix_errors(f"data.{name}"):
        return read_text(local_path(file))


class NextTokenLoss(TokenLoss):
    """Sums the loss of a language model over rows of tokens."""

    def __call__(
        self,
        params: PyTree,
        batch: Int[Array, "B _"],
        randomness: Randomness | None,
    ) -> Sums:
        inputs = batch[:, :-1]
        targets = batch[:, 1:]
        real = targets != PAD

        def forward(module: LanguageModel, dropout: dict[str, Any]) -> Output:
            features = module.features(inputs, **dropout)  # [B, T, D]
            return features, module.output_projection()

        output = self.apply(params, randomness, forward)
        return self.sums(output, targets, real)


class LanguageModeling(TokenTask):
    """Trains a language model on one text; validates with loss and perplexity.

    A batch is an array of token ids, [B, T + 1], padded with 0. Each of the last T tokens is
    predicted from the tokens before it in its row.
    """

    kind = LANGUAGE_MODELING
    loss_class = NextTokenLoss

    def __init__(self, config: Config, stream: TokenStream) -> None:
        self.config = config
        self.tokenizer = stream.tokenizer
        self._stream = stream
        self._data = data_section(config, StreamConfig)

    @classmethod
    def open(
        cls,
        config: Config,
        folder: Workdir,
        corpus: Corpus | None = None,
    ) -> TokenTask:
        return cls(config, open_stream(config, folder))

    @classmethod
    def longest_batch(cls, config: Config, shards: BatchShards) -> PyTree:
        data = data_section(config, StreamConfig)
        rows = round_up(data.rows, shards.row_multiple)
        return jax.ShapeDtypeStruct((rows, data.length + 1), jnp.int32)

    def batches(self, start: int, shards: BatchShards) -> Iterator[Int[np.ndarray, "B _"]]:
        """Yields rows from random positions of the training text, prepared in threads."""
        data = self._data
        training = self.config.training
        empty_rows = self._rows(shards) - data.rows

        def batch_of(step: int) -> Int[np.ndarray, "B _"]:
            batch = self._stream.training_batch(
                step,
                data.rows,
                data.length,
                seed=training.seed,
            )
            padded = np.pad(batch, ((0, empty_rows), (0, 0)))
            return shards.local(padded)

        return prefetch(batch_of, start, training.steps)

    def examples(self, number: int, batch: Int[np.ndarray, "B _"]) -> Iterator[Example]:
        for example in super().examples(number, batch):
            tokens = batch[example.row]
            is_token = tokens != PAD
            text = self.tokenizer.decode(tokens[is_token])
            yield example._replace(text=f"{example.text}: {text!r}")

    def flops(self, batch: Int[Array, "B _"]) -> int:
        rows, tokens = batch.shape
        return language_model_flops(self.config.model, rows, tokens - 1)

    def identity(self) -> dict[str, str]:
        identity = {
            "tokenizer": self.tokenizer.sha256,
            "text": self._stream.text_sha256,
        }
        if self._stream.valid_sha256:
            identity["validation text"] = self._stream.valid_sha256
        if self._data.valid_share is not None:
            identity["validation share"] = repr(self._data.valid_share)
        return identity

    def summary(self) -> str:
        """Returns the numbers of tokens and epochs, examples, and notes on unusual characters."""
        stream = self._stream
        tokens_per_step = self._data.rows * self._data.length
        epochs = self.config.training.steps * tokens_per_step / len(stream.train)

        valid = f"{len(stream.valid):,} validation tokens"
        if stream.valid_characters:
            valid += f" of {stream.valid_characters:,} characters"
        counts = (
            f"{len(stream.train):,} training tokens, {valid}; {tokens_per_step:,} tokens per step, "
            f"{epochs:.1f} epochs"
        )

        examples = self._first_examples()
        notes = stream.findings.summarize("lines", self._place, DATA_NOTES)
        return "\n".join((counts, *examples, *notes))

    def save(self, workdir: Workdir) -> None:
        """Writes the tokenizer, and the places of lines with unusual characters."""
        super().save(workdir)
        lines = self._stream.findings.list_places("lines", self._place)
        workdir.write_data_notes(lines)

    def _place(self, line: int, side: int) -> str:
        return f"{self._data.file}:{line + 1}"

    def _first_examples(self) -> list[str]:
        """Describes each file by its first line that is not blank."""
        splits: list[tuple[str, Literal["train", "valid"]]] = [(self._data.file, "train")]
        if self._data.valid_file:
            splits.append((self._data.valid, "valid"))

        examples = []
        for name, split in splits:
            # The last character may lack some of its bytes.
            tokens = self._stream.first_tokens(split, _SHOWN_TOKENS)
            text = self.tokenizer.decode(tokens).rstrip("\ufffd")

            lines = itertools.filterfalse(is_blank, text.split("\n"))
            first_line = next(lines, "")
            examples.append(describe_example(name, [("", first_line)]))

        return examples

    def example_ids(self, number: int) -> list[int]:
        """Returns the positions in the training tokens where the rows of a batch begin."""
        starts = self._stream.row_starts(
            number,
            self._data.rows,
            self._data.length,
            seed=self.config.training.seed,
        )
        return starts.tolist()

    def describe_batch(self, number: int) -> str:
        starts = self.example_ids(number)
        return f"its rows begin at the tokens {list_first(starts[:10], len(starts))}"

    def evaluate(
        self,
        params: PyTree,
        mesh: Mesh,
        check_stop: CheckStop,
    ) -> dict[str, float]:
        """Computes loss per token, perplexity, and for a text nats and bits per character."""
        shards = BatchShards.of(mesh)
        windows = self._stream.validation_windows(self._rows(shards), self._data.length)
        batches = map(shards.local, windows)
        values = evaluate_loss(self.loss, params, batches, mesh, check_stop)
        if not self._stream.valid_characters:
            return values

        nats_per_token = math.log(values["perplexity"])
        tokens_per_character = len(self._stream.valid) / self._stream.valid_characters
        nats_per_character = nats_per_token * tokens_per_character
        return values | {
            "nats_per_character": nats_per_character,
            "bits_per_character": nats_per_character / math.log(2),
        }

    def _rows(self, shards: BatchShards) -> int:
        return round_up(self._data.rows, shards.row_multiple)
