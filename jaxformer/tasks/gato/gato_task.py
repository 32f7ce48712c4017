"""Trains one model on texts, captions and control at once."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree

from jaxformer.config import Config, data_section, model_section
from jaxformer.data import agent_tasks
from jaxformer.data.agent_tasks import AgentConfig, Examples
from jaxformer.data.character_tokenizer import CharacterTokenizer
from jaxformer.data.corpus import Corpus
from jaxformer.data.episodes import Items, Rows, draw_row, make_rows
from jaxformer.data.examples import describe_example
from jaxformer.data.loader import prefetch, round_up
from jaxformer.data.tokenizer import Vocabulary
from jaxformer.errors import UserError
from jaxformer.kinds.gato import GATO
from jaxformer.models.gato import Gato, GatoConfig
from jaxformer.runs import processes
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.gato.captions import write_captions
from jaxformer.tasks.initialization import tokenizer_of_run
from jaxformer.tasks.token_task import Output, TokenLoss, TokenTask
from jaxformer.training.arrays import row_numbers
from jaxformer.training.flops import layers_flops
from jaxformer.training.placement import BatchShards
from jaxformer.training.task import CheckStop, Randomness, Sums
from jaxformer.training.validation import evaluate_loss

_CONTROL = 2  # the stream of random numbers that draws parts of episodes


class GatoLoss(TokenLoss):
    """Sums the loss over the tokens of texts and the actions (equation 2 of Gato)."""

    def __call__(
        self,
        params: PyTree,
        batch: Rows,
        randomness: Randomness | None,
    ) -> Sums:
        tokens = jnp.asarray(batch.tokens)
        is_target = jnp.asarray(batch.is_target)
        pictures = jnp.asarray(batch.pictures)
        has_pictures = pictures.shape[1] > 0

        def forward(module: Gato, dropout: dict[str, Any]) -> Output:
            features = module.features(
                tokens,
                pictures if has_pictures else None,
                positions=jnp.asarray(batch.positions),
                is_patch=jnp.asarray(batch.is_patch) if has_pictures else None,
                segments=jnp.asarray(batch.segments),
                **dropout,
            )
            return features[:, :-1], module.output_projection()

        output = self.apply(params, randomness, forward)
        return self.sums(output, tokens[:, 1:], is_target[:, 1:])


class GatoTask(TokenTask):
    """Trains a :class:`~jaxformer.models.gato.Gato`; validates with the loss of each task."""

    kind = GATO
    loss_class = GatoLoss
    log_formats = {  # noqa: RUF012
        "text_loss": "texts {:.4f}",
        "caption_loss": "captions {:.4f}",
        "caption_accuracy": "right captions {:.2%}",
        "control_loss": "control {:.4f}",
    }

    def __init__(self, config: Config, tokenizer: Vocabulary) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self._data = data_section(config, AgentConfig)
        self._model = model_section(config, GatoConfig)
        self._train = self._read(training=True)
        self._valid = self._read(training=False)

        texts = [*self._train.text, *self._valid.text]
        captions = [*self._train.caption, *self._valid.caption]
        self._text_count = agent_tasks.examples_per_row(self._data, texts)
        self._caption_count = agent_tasks.examples_per_row(self._data, captions)

    def _read(self, *, training: bool) -> Examples:
        return agent_tasks.read_examples(
            self._data,
            self.tokenizer,
            patch_size=self._model.patch_size,
            training=training,
        )

    @classmethod
    def open(
        cls,
        config: Config,
        folder: Workdir,
        corpus: Corpus | None = None,
    ) -> "GatoTask":
        if corpus is not None:
            raise UserError("corpus: expected none with data.corpus=agent, which has its own")

        data = data_section(config, AgentConfig)
        model = model_section(config, GatoConfig)
        if model.image_shape != (8, 8, 1):
            raise UserError(
                "model.height, model.width and model.channels must be (8, 8, 1), as in pictures of "
                f"digits: got {model.image_shape}"
            )
        if data.max_length > model.num_positions:
            raise UserError(
                f"model.num_positions must be at least data.max_length={data.max_length}: got "
                f"{model.num_positions}"
            )

        def learn() -> Vocabulary:
            texts = agent_tasks.texts_of("train", data.numbers_below)
            return CharacterTokenizer.assemble(sorted(set("".join(texts))))

        tokenizer = tokenizer_of_run(config, folder, learn)
        if tokenizer.vocab_size != model.vocab_size:
            raise UserError(
                f"model.vocab_size must be {tokenizer.vocab_size}, four special tokens and all "
                f"characters of the texts: got {model.vocab_size}"
            )
        return cls(config, tokenizer)

    @classmethod
    def longest_batch(cls, config: Config, shards: BatchShards) -> Rows:
        data = data_section(config, AgentConfig)
        model = model_section(config, GatoConfig)
        num_rows = round_up(data.rows, shards.row_multiple)
        empty = make_rows(
            [[]] * num_rows,
            data.max_length,
            max_pictures=agent_tasks.pictures_per_row(data, model.num_patches),
            image_shape=model.image_shape,
        )

        def as_shape(array: np.ndarray) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(array.shape, array.dtype)

        return jax.tree.map(as_shape, empty)

    def batches(self, start: int, shards: BatchShards) -> Iterator[Rows]:
        def batch_of(number: int) -> Rows:
            return self._batch(self._rows(number), shards)

        return prefetch(batch_of, start)

    def _batch(self, rows: Sequence[Sequence[Items]], shards: BatchShards) -> Rows:
        """Returns the rows of this process, of a global batch with empty rows at its end."""
        size = round_up(self._data.rows, shards.row_multiple)
        num_empty = size - len(rows)
        empty = [[]] * num_empty

        batch = make_rows(
            [*rows, *empty],
            self._data.max_length,
            max_pictures=agent_tasks.pictures_per_row(self._data, self._model.num_patches),
            image_shape=self._model.image_shape,
        )
        return shards.local(batch)

    def _rows(self, number: int) -> list[list[Items]]:
        """Returns the examples of each row of a batch."""
        data = self._data
        seed = self.config.training.seed
        with_several = (
            (self._train.text, data.text_rows, self._text_count),
            (self._train.caption, data.caption_rows, self._caption_count),
        )

        rows = []
        for examples, num_rows, per_row in with_several:
            if not num_rows:
                continue

            chosen = row_numbers(number, len(examples), num_rows * per_row, seed=seed)
            for numbers in chosen.reshape(num_rows, per_row):
                rows.append([examples[each] for each in numbers])

        generator = np.random.default_rng((seed, number, _CONTROL))
        for _ in range(data.control_rows):
            row = draw_row(
                self._train.control,
                agent_tasks.TIMESTEP,
                generator,
                steps=data.max_length // agent_tasks.TIMESTEP,
                prompt_share=data.prompt_share,
            )
            rows.append([row])
        return rows

    def flops(self, batch: Rows) -> int:
        """Returns the operations of the layers, without patches and logits."""
        rows, length = batch.tokens.shape
        return layers_flops(self._model, rows, length, causal=True)

    def identity(self) -> dict[str, str]:
        return {
            "tokenizer": self.tokenizer.sha256,
            "train": _sha256(self._train),
            "valid": _sha256(self._valid),
        }

    def summary(self) -> str:
        lines = []
        splits = {"training": self._train, "validation": self._valid}
        for title, split in splits.items():
            lines.append(
                f"{title}: {len(split.text):,} texts, {len(split.caption):,} pictures with "
                f"captions, {len(split.control):,} episodes"
            )

        splits = {"train": self._train, "valid": self._valid}
        for name, split in splits.items():
            first = split.text[0]
            text = self.tokenizer.decode(first.tokens)
            lines.append(describe_example(name, [("", text)]))
        return "\n".join(lines)

    def evaluate(
        self,
        params: PyTree,
        mesh: Mesh,
        check_stop: CheckStop,
    ) -> dict[str, float]:
        """Computes the loss of each task, their mean over all targets, and right captions."""
        values = {}
        total = 0.0
        count = 0
        for name in agent_tasks.TASKS:
            is_left_out = getattr(self._data, f"{name}_rows") == 0
            if is_left_out:
                continue

            rows = self._valid_rows(name)
            batches = self._batches_of(rows, BatchShards.of(mesh))
            found = evaluate_loss(self.loss, params, batches, mesh=mesh, check_stop=check_stop)
            values[f"{name}_loss"] = found["loss"]

            targets = sum(_num_targets(items) for row in rows for items in row)
            total += found["loss"] * targets
            count += targets

        values["loss"] = total / count
        if self._data.caption_rows and self.config.training.eval_sentences:
            values["caption_accuracy"] = self._caption_accuracy(params, mesh)
        return values

    def _valid_rows(self, name: str) -> list[list[Items]]:
        """Returns the examples of each row of validation, of one task."""
        examples = getattr(self._valid, name)
        if name == "control":
            # Each part of an episode is a row of its own.
            steps = self._data.max_length // agent_tasks.TIMESTEP
            size = steps * agent_tasks.TIMESTEP
            return [[part] for episode in examples for part in episode.split(size)]

        per_row = self._text_count if name == "text" else self._caption_count
        rows = []
        for start in range(0, len(examples), per_row):
            row = examples[start : start + per_row]
            rows.append(list(row))
        return rows

    def _batches_of(self, rows: Sequence[Sequence[Items]], shards: BatchShards) -> Iterator[Rows]:
        size = self._data.rows
        for start in range(0, len(rows), size):
            yield self._batch(rows[start : start + size], shards)

    def _caption_accuracy(self, params: PyTree, mesh: Mesh) -> float:
        """Returns the share of right captions of the first validation pictures."""
        if mesh.size > 1:
            params = processes.on_this_host(params)

        shown = self._valid.caption[: self.config.training.eval_sentences]
        pictures = np.stack([items.pictures[0] for items in shown])
        found = write_captions(self._model, params, pictures, search=self.config.search)

        right = 0
        for items, tokens in zip(shown, found, strict=True):
            caption_tokens = items.tokens[items.is_predicted]
            expected = self.tokenizer.decode(caption_tokens)
            right += self.tokenizer.decode(tokens) == expected
        return right / len(shown)


def _num_targets(items: Items) -> int:
    """Returns the number of items that are predicted, which the first one never is."""
    return int(items.is_predicted[1:].sum())


def _sha256(examples: Examples) -> str:
    digest = hashlib.sha256()
    for task in examples:
        for items in task:
            for array in (*items[:4], *items.pictures):
                digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
