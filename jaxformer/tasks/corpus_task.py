"""Base of the tasks on the examples of a corpus: their batches, their log and their loss."""

import abc
import contextlib
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
from jax.sharding import Mesh
from jaxtyping import PyTree

from jaxformer.config import Config, DataConfig, data_section
from jaxformer.data.batch import Shape, TokenIds, TokenPair
from jaxformer.data.characters import is_blank, replace_controls
from jaxformer.data.corpus import parse_mixture
from jaxformer.data.examples import describe_example
from jaxformer.data.findings import EMPTY, LONG, Place, list_first
from jaxformer.data.loader import load_batches, round_up
from jaxformer.data.store import TokenStore
from jaxformer.errors import UserError
from jaxformer.runs.workdir import DATA_NOTES, Workdir
from jaxformer.tasks.attention_distillation import learn_attention
from jaxformer.tasks.dataset import Dataset
from jaxformer.tasks.token_task import TokenTask
from jaxformer.training.placement import BatchShards
from jaxformer.training.task import CheckStop, Example, Loss
from jaxformer.training.validation import evaluate_loss


class _Split(NamedTuple):
    """One of the two splits of a run.

    Attributes:
      title: What the log calls its pairs.
      name: Its name in the corpus, such as "data/train".
      store: The token ids of its pairs.
      longest: Number of tokens of the longest pairs; longer ones are skipped.
    """

    title: str
    name: str
    store: TokenStore
    longest: int


class CorpusTask(TokenTask):
    """Trains on the examples of a corpus, and validates with the loss.

    An example is a pair: a text and its translation, or a text and its label. A subclass arranges
    pairs in batches, and names their sides for the log.
    """

    def __init__(self, config: Config, data: Dataset) -> None:
        self.config = config
        self.tokenizer = data.tokenizer
        self._data = data
        self._section = data_section(config, DataConfig)

        self.log_formats = {}
        if config.training.label_smoothing:
            self.log_formats["loss"] = "label-smoothed loss {:.3f}"
        self.log_formats |= self._log_formats()

    @staticmethod
    @abc.abstractmethod
    def make_batch(rows: Sequence[Sequence[TokenPair]], shape: Shape) -> PyTree:
        """Arranges examples, ids without BOS and EOS, in padded rows of a batch.

        Args:
          rows: Examples of each row; several only if the data are packed.
          shape: Number of rows, and lengths of the two sides.
        """

    @staticmethod
    def isolate(batch: PyTree, row: int, segment: int) -> PyTree:
        """Returns a batch with only one example; by default, rows have one example each."""
        return jax.tree.map(lambda array: array[row : row + 1], batch)

    @abc.abstractmethod
    def _log_formats(self) -> Mapping[str, str]:
        """Returns the formats of the values that :meth:`evaluate` adds to the loss."""

    @abc.abstractmethod
    def _name_sides(self, pair: tuple[str, str]) -> list[tuple[str, str]]:
        """Returns the names and the texts of the sides of an example, for the log."""

    @classmethod
    def longest_batch(cls, config: Config, shards: BatchShards) -> PyTree:
        data = data_section(config, DataConfig)
        rows = round_up(data.tokens_per_batch // data.max_length, shards.row_multiple)
        return cls._abstract_batch((rows, data.max_length, data.max_length))

    @classmethod
    def _abstract_batch(cls, shape: Shape) -> PyTree:
        """Returns the shapes and dtypes of a global batch."""
        empty = cls.make_batch([], shape)
        return jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), empty)

    def batches(self, start: int, shards: BatchShards) -> Iterator[PyTree]:
        return load_batches(
            self._data.train,
            self._data.plan,
            make=self.make_batch,
            start=start,
            stop=self.config.training.steps,
            row_multiple=shards.row_multiple,
            local_shards=shards.local_shards,
            shard_count=shards.shard_count,
        )

    def shapes(self, shards: BatchShards) -> Sequence[PyTree]:
        batches = []
        for rows, src_length, tgt_length in self._data.plan.shapes:
            padded_rows = round_up(rows, shards.row_multiple)
            batches.append(self._abstract_batch((padded_rows, src_length, tgt_length)))
        return batches

    def identity(self) -> dict[str, str]:
        return self._data.identity

    @property
    def training_loss(self) -> Loss:
        return learn_attention(self.loss, self.config, self._data.teacher)

    def summary(self) -> str:
        """Returns the numbers of pairs and batches, the first pairs, and unusual pairs."""
        splits = self._splits()
        corpus = self._data.corpus

        counts = []
        for each in splits:
            counts.append(f"{len(each.store):,} {each.title}, {_count_skipped(each)}")
        lines = ["; ".join(counts), self._describe_batches()]

        for each in splits:
            lines += corpus.notes(each.name)

        for each in splits:
            lines += self._first_examples(each.name)

        for each in splits:
            findings = each.store.findings
            lines += findings.summarize(each.title, self._places_in(each), DATA_NOTES)

        return "\n".join(lines)

    def save(self, workdir: Workdir) -> None:
        """Writes the tokenizer, and the places of unusual pairs."""
        super().save(workdir)

        lines: list[str] = []
        for each in self._splits():
            findings = each.store.findings
            lines += findings.list_places(each.title, self._places_in(each))
        workdir.write_data_notes(lines)

    def _splits(self) -> tuple[_Split, _Split]:
        train = _Split(
            title="training pairs",
            name=self._section.train,
            store=self._data.train,
            longest=self._section.max_length,
        )
        valid = _Split(
            title="validation pairs",
            name=self._section.valid,
            store=self._data.valid,
            longest=self.config.model.max_length,
        )
        return train, valid

    def _places_in(self, split: _Split) -> Place:
        """Returns the function that names the place of a pair of a split."""
        return functools.partial(self._data.corpus.place, split.name)

    def _describe_batches(self) -> str:
        plan = self._data.plan
        num_shapes = len(plan.shapes)
        shapes = "1 shape" if num_shapes == 1 else f"{num_shapes} shapes"

        efficiency = self._efficiency()
        padding = f"{efficiency:.1%} tokens, {1 - efficiency:.1%} padding"
        return f"{plan.batches_per_epoch:,} batches an epoch in {shapes}: {padding}"

    def _first_examples(self, split: str) -> list[str]:
        """Returns a line with the first pair of a split, or of each corpus of a mixture."""
        lines = []
        for name in parse_mixture(split) or [split]:
            # A resumed run may no longer have the files.
            with contextlib.suppress(LookupError, OSError, UserError):
                for pair in self._data.corpus.pairs(name):
                    if not any(map(is_blank, pair)):
                        lines.append(describe_example(name, self._name_sides(pair)))
                        break
        return lines

    def _efficiency(self) -> float:
        """Returns the fraction of the computed tokens that are not padding."""
        return self._data.plan.efficiency

    def example_ids(self, number: int) -> list[int]:
        """Returns the numbers of the pairs of a batch, counted from 1 in the training split."""
        _, rows = self._data.plan.rows(number)
        ids = sorted(itertools.chain.from_iterable(rows))

        # The store counts only the pairs that are not skipped.
        numbers = self._data.train.numbers[ids].astype(int) + 1
        return numbers.tolist()

    def describe_batch(self, number: int) -> str:
        numbers = self.example_ids(number)
        places = []
        for pair in numbers[:10]:
            places.append(self._data.corpus.place(self._section.train, pair - 1, 0))
        return f"it had {len(numbers)} pairs: {list_first(places, len(numbers))}"

    def examples(self, number: int, batch: PyTree) -> Iterator[Example]:
        """Yields the pairs of a batch, numbered as in :meth:`example_ids`."""
        store = self._data.train
        _, rows = self._data.plan.rows(number)

        for row, ids in enumerate(rows):
            for segment, pair in enumerate(ids, start=1):
                source, target = store[pair]
                texts = self._decode_example(source, target)
                yield Example(
                    row=row,
                    batch=self.isolate(batch, row, segment),
                    text=f"pair {store.numbers[pair] + 1}: {replace_controls(texts)}",
                )

    def _decode_example(self, source: TokenIds, target: TokenIds) -> str:
        decode = self._data.tokenizer.decode
        return f"{decode(source)} ||| {decode(target)}"

    def evaluate(
        self,
        params: PyTree,
        mesh: Mesh,
        check_stop: CheckStop,
    ) -> dict[str, float]:
        """Computes the means of the loss over the validation pairs."""
        shards = BatchShards.of(mesh)
        batches = load_batches(
            self._data.valid,
            self._data.valid_plan,
            make=self.make_batch,
            stop=self._data.valid_plan.batches_per_epoch,
            row_multiple=shards.row_multiple,
            local_shards=shards.local_shards,
            shard_count=shards.shard_count,
        )
        return evaluate_loss(self.loss, params, batches, mesh=mesh, check_stop=check_stop)


def _count_skipped(split: _Split) -> str:
    findings = split.store.findings
    long = findings.count(LONG)
    empty = findings.count(EMPTY)
    return (
        f"{long + empty:,} skipped ({long:,} longer than {split.longest} tokens, {empty:,} with an "
        "empty side)"
    )
