"""Base of the tasks on texts with annotations, such as answers to questions."""

import abc
import functools
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, PyTree

from jaxformer.config import Config, data_section
from jaxformer.data.annotated import AnnotatedConfig
from jaxformer.data.batch import Shape
from jaxformer.data.characters import replace_controls
from jaxformer.data.corpus import Corpus
from jaxformer.data.encoded_text import AnnotatedBatch, AnnotatedText, make_annotated_batch
from jaxformer.data.examples import describe_example
from jaxformer.data.file_corpora import find_files
from jaxformer.data.findings import list_first
from jaxformer.data.huggingface_tokenizer import HuggingFaceTokenizer
from jaxformer.data.loader import load_batches, round_up
from jaxformer.data.plan import BatchPlan, bucket_plan, sequential_plan
from jaxformer.data.text_files import fingerprint_files
from jaxformer.data.tokenizer import PAD, Vocabulary
from jaxformer.errors import UserError
from jaxformer.runs import processes
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.initialization import tokenizer_of_run
from jaxformer.tasks.token_task import NetworkLoss, TokenTask
from jaxformer.training.flops import layers_flops
from jaxformer.training.losses import class_sums
from jaxformer.training.placement import BatchShards
from jaxformer.training.task import CheckStop, Example, Randomness, Sums
from jaxformer.training.validation import evaluate_loss

NO_CLASS = -1  # the target of what has none, such as padding


class Split(NamedTuple):
    """The examples of one of the two splits of a run.

    Attributes:
      name: The files, as in the config.
      examples: The examples.
      texts: The encoded texts of the examples that are not skipped, several for a long one.
      skipped: Number of examples that are too long.
    """

    name: str
    examples: Sequence[Any]
    texts: Sequence[AnnotatedText]
    skipped: int

    @property
    def lengths(self) -> np.ndarray:
        return np.array([text.length for text in self.texts])

    def kept_examples(self, most: int) -> list[Any]:
        """Returns the first examples, at most ``most``, without those that are skipped."""
        numbers = dict.fromkeys(text.number for text in self.texts)
        return [self.examples[number] for number in list(numbers)[:most]]


class AnnotatedClassLoss(NetworkLoss):
    """Sums the label-smoothed loss over all targets that are a class, and counts correct ones."""

    smooths_labels = True

    method: ClassVar[str]  # the method of the model that returns the logits

    def __call__(
        self,
        params: PyTree,
        batch: AnnotatedBatch,
        randomness: Randomness | None,
    ) -> Sums:
        def forward(module: Any, dropout: dict[str, Any]) -> Float[Array, "B *T C"]:
            head = getattr(module, self.method)
            return head(batch.tokens, token_types=batch.types, **dropout)

        logits = self.apply(params, randomness, forward)
        targets = batch.targets.reshape(-1)
        sums = class_sums(
            logits.reshape(len(targets), -1),
            targets,
            targets != NO_CLASS,
            smoothing=self.label_smoothing,
        )
        is_token = batch.tokens != PAD
        return sums | {"tokens": is_token.sum(dtype="int32")}


class AnnotatedTask(TokenTask):
    """Trains a head of BERT on annotated texts, and validates with the loss and with scores.

    A subclass reads examples, encodes them, and scores the answers of a trained model.
    """

    tokenizer: HuggingFaceTokenizer
    noun: ClassVar[str]  # names examples in the log

    def __init__(
        self,
        config: Config,
        tokenizer: HuggingFaceTokenizer,
        train: Split,
        valid: Split,
    ) -> None:
        data = data_section(config, AnnotatedConfig)
        self.config = config
        self.tokenizer = tokenizer
        self._section = data
        self._train = train
        self._valid = valid

        num_scored = min(config.training.eval_sentences, len(valid.texts))
        self.log_formats = self._log_formats(num_scored)

        self._plan = bucket_plan(
            train.lengths,
            train.lengths,
            tokens_per_batch=data.row_tokens_per_batch,
            seed=config.training.seed,
        )
        self._valid_plan = sequential_plan(
            valid.lengths,
            valid.lengths,
            tokens_per_batch=data.row_tokens_per_batch,
        )

    @staticmethod
    @abc.abstractmethod
    def check_model(model: Any) -> None:
        """Refuses a model without the head."""

    @staticmethod
    @abc.abstractmethod
    def read_file(path: pathlib.Path) -> Iterable[Any]:
        """Returns the examples of a file."""

    @classmethod
    def read(cls, name: str) -> list[Any]:
        """Returns the examples of a split; ``name`` is a value of ``data.train``."""
        examples: list[Any] = []
        for path in find_files(name):
            examples += cls.read_file(path)
        return examples

    @staticmethod
    def check_examples(data: AnnotatedConfig, examples: Sequence[Any]) -> None:
        """Refuses examples that the section ``data`` does not describe; by default, none."""

    @staticmethod
    def labels(examples: Sequence[Any]) -> set[str]:
        """Returns the labels of examples; by default, a task has none."""
        return set()

    @staticmethod
    @abc.abstractmethod
    def encode(
        config: Config,
        tokenizer: HuggingFaceTokenizer,
        example: Any,
        number: int,
    ) -> list[AnnotatedText]:
        """Returns the texts of an example, which has this number in its split."""

    @staticmethod
    @abc.abstractmethod
    def empty_targets(num_rows: int, length: int) -> np.ndarray:
        """Returns the targets of rows without a text, of texts of this length."""

    @staticmethod
    @abc.abstractmethod
    def sides(example: Any) -> list[tuple[str, str]]:
        """Returns the names and the texts of an example, for the log."""

    @abc.abstractmethod
    def score(self, params: PyTree, examples: Sequence[Any], report: Callable) -> dict[str, float]:
        """Returns scores of the answers to validation examples; calls ``report`` at times."""

    @staticmethod
    def _log_formats(scored: int) -> dict[str, str]:
        """Returns the formats of the scores, given the number of the scored examples."""
        return {}

    @classmethod
    def open(
        cls,
        config: Config,
        folder: Workdir,
        corpus: Corpus | None = None,
    ) -> "AnnotatedTask":
        data = data_section(config, AnnotatedConfig)
        if corpus is not None:
            raise UserError(
                f"corpus: expected none with data.corpus={data.corpus}; name files in data.train"
            )
        cls.check_model(config.model)

        train = cls.read(data.train)
        valid = cls.read(data.valid)
        cls.check_examples(data, [*train, *valid])
        labels = cls.labels([*train, *valid])
        tokenizer = _open_tokenizer(config, folder)
        if labels and not folder.config.exists():
            tokenizer = tokenizer.with_symbols(labels)
        cls.check_labels(config.model, tokenizer, labels)

        return cls(
            config,
            tokenizer,
            train=cls._encode_split(config, tokenizer, data.train, train, data.max_length),
            valid=cls._encode_split(config, tokenizer, data.valid, valid, config.model.max_length),
        )

    @classmethod
    def check_labels(cls, model: Any, tokenizer: HuggingFaceTokenizer, labels: set[str]) -> None:
        """Refuses labels that the tokenizer of a workdir lacks, or another number of classes."""

    @staticmethod
    def _check_count(
        field: str,
        count: int,
        tokenizer: HuggingFaceTokenizer,
        labels: set[str],
    ) -> None:
        """Checks that a field of the model has the number of all labels of the tokenizer."""
        unknown = sorted(labels - set(tokenizer.symbols))
        if unknown:
            raise UserError(
                f"expected labels of the tokenizer, {', '.join(tokenizer.symbols)}, got "
                f"{', '.join(unknown[:9])}; begin another run, which learns them"
            )

        known = tokenizer.symbols
        if count != len(known):
            raise UserError(
                f"model.{field} must be {len(known)}, for the labels "
                f"{list_first(known[:9], len(known))}: got {count}; give "
                f"--config.model.{field}={len(known)}"
            )

    @classmethod
    def _encode_split(
        cls,
        config: Config,
        tokenizer: HuggingFaceTokenizer,
        name: str,
        examples: Sequence[Any],
        longest: int,
    ) -> Split:
        texts = []
        skipped = 0
        for number, example in enumerate(examples):
            own = cls.encode(config, tokenizer, example, number)
            is_long = any(text.length > longest for text in own)
            skipped += is_long
            if not is_long:
                texts += own

        if not texts:
            raise UserError(
                f"{name}: no example is left: {skipped:,} have more than {longest} tokens"
            )
        return Split(name, examples, texts, skipped)

    @classmethod
    def make_batch(
        cls,
        data: AnnotatedConfig,
        rows: Sequence[Sequence[AnnotatedText]],
        shape: Shape,
    ) -> AnnotatedBatch:
        """Arranges texts in rows, with their targets."""
        num_rows, length, _ = shape
        targets = cls.empty_targets(num_rows, length)
        return make_annotated_batch(rows, (num_rows, *data.shape_of_texts, length), targets)

    @classmethod
    def longest_batch(cls, config: Config, shards: BatchShards) -> PyTree:
        data = data_section(config, AnnotatedConfig)
        rows = round_up(data.row_tokens_per_batch // data.max_length, shards.row_multiple)
        return cls._abstract_batch(data, (rows, data.max_length, data.max_length))

    @classmethod
    def _abstract_batch(cls, data: AnnotatedConfig, shape: Shape) -> PyTree:
        """Returns the shapes and dtypes of a global batch."""
        empty = cls.make_batch(data, [], shape)
        return jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), empty)

    def shapes(self, shards: BatchShards) -> Sequence[PyTree]:
        batches = []
        for rows, length, _ in self._plan.shapes:
            padded_rows = round_up(rows, shards.row_multiple)
            batches.append(self._abstract_batch(self._section, (padded_rows, length, length)))
        return batches

    def batches(self, start: int, shards: BatchShards) -> Iterator[AnnotatedBatch]:
        stop = self.config.training.steps
        return self._load(self._train, self._plan, shards, start, stop)

    def _load(
        self,
        split: Split,
        plan: BatchPlan,
        shards: BatchShards,
        start: int,
        stop: int,
    ) -> Iterator[AnnotatedBatch]:
        return load_batches(
            split.texts,
            plan,
            make=functools.partial(self.make_batch, self._section),
            start=start,
            stop=stop,
            row_multiple=shards.row_multiple,
            local_shards=shards.local_shards,
            shard_count=shards.shard_count,
        )

    def identity(self) -> dict[str, str]:
        return {
            "tokenizer": self.tokenizer.sha256,
            "train": fingerprint_files(find_files(self._train.name)),
            "valid": fingerprint_files(find_files(self._valid.name)),
        }

    def summary(self) -> str:
        lines = []
        for title, split in (("training", self._train), ("validation", self._valid)):
            line = f"{len(split.examples):,} {title} {self.noun}"
            if len(split.texts) > len(split.examples):
                line += f" in {len(split.texts):,} windows"
            if split.skipped:
                line += f", {split.skipped:,} skipped, which are too long"
            lines.append(line)

        plan = self._plan
        lines.append(
            f"{plan.batches_per_epoch:,} batches an epoch in {len(plan.shapes)} shapes: "
            f"{plan.efficiency:.1%} tokens, {1 - plan.efficiency:.1%} padding"
        )
        for split in (self._train, self._valid):
            lines.append(describe_example(split.name, self.sides(split.examples[0])))
        return "\n".join(lines)

    def flops(self, batch: AnnotatedBatch) -> int:
        """Returns the operations of all matmuls, with padding, except the logits of the head."""
        length = batch.tokens.shape[-1]
        rows = batch.tokens.size // length
        return layers_flops(self.config.model, rows, length, causal=False)

    def example_ids(self, number: int) -> list[int]:
        """Returns the numbers of the examples of a batch, counted from 1."""
        _, rows = self._plan.rows(number)
        ids = itertools.chain.from_iterable(rows)
        return sorted({self._train.texts[index].number + 1 for index in ids})

    def describe_batch(self, number: int) -> str:
        numbers = self.example_ids(number)
        places = [f"{self._train.name}: {self.noun} {each}" for each in numbers[:10]]
        return f"it had {len(numbers)} {self.noun}: {list_first(places, len(numbers))}"

    def examples(self, number: int, batch: AnnotatedBatch) -> Iterator[Example]:
        """Yields the texts of a batch."""
        _, rows = self._plan.rows(number)
        for row, [index] in enumerate(rows):
            text = self._train.texts[index]
            sides = self.sides(self._train.examples[text.number])
            description = " ||| ".join(side for _, side in sides)
            yield Example(
                row=row,
                batch=jax.tree.map(lambda array, row=row: array[row : row + 1], batch),
                text=f"{text.number + 1}: {replace_controls(description)}",
            )

    def evaluate(
        self,
        params: PyTree,
        mesh: Mesh,
        check_stop: CheckStop,
    ) -> dict[str, float]:
        """Computes the mean loss over the validation texts, and scores of the first examples."""
        batches = self._load(
            self._valid,
            self._valid_plan,
            BatchShards.of(mesh),
            start=0,
            stop=self._valid_plan.batches_per_epoch,
        )
        values = evaluate_loss(self.loss, params, batches, mesh=mesh, check_stop=check_stop)

        examples = self._valid.kept_examples(self.config.training.eval_sentences)
        if not examples:
            return values

        # Each process scores all examples, on one of its devices.
        if mesh.size > 1:
            params = processes.on_this_host(params)
        return values | self.score(params, examples, lambda _: check_stop())


def _open_tokenizer(config: Config, folder: Workdir) -> HuggingFaceTokenizer:
    """Returns the tokenizer of a workdir, or of an imported model."""
    needed = UserError(
        f"data.corpus={config.data.corpus} needs the tokenizer of an imported BERT: give its "
        "workdir as training.init_from or data.tokenizer"
    )

    def learn() -> Vocabulary:
        raise needed

    tokenizer = tokenizer_of_run(config, folder, learn)
    if not isinstance(tokenizer, HuggingFaceTokenizer) or not tokenizer.target_symbols:
        raise needed
    return tokenizer
