"""Base of the tasks on recordings: their batches, their log and their error rates."""

import abc
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float32, PyTree

from jaxformer.config import Config
from jaxformer.data.batch import Shape
from jaxformer.data.examples import describe_example
from jaxformer.data.findings import list_first
from jaxformer.data.loader import load_batches
from jaxformer.data.plan import BatchPlan
from jaxformer.data.sound import Sound, standardize
from jaxformer.data.speech import Recordings
from jaxformer.evaluation.word_error_rate import ErrorRates, error_rates
from jaxformer.runs import processes
from jaxformer.tasks.token_task import NetworkTask
from jaxformer.tasks.transcriber import Transcriber
from jaxformer.training.placement import BatchShards
from jaxformer.training.task import CheckStop
from jaxformer.training.validation import evaluate_loss


class Utterance(NamedTuple):
    """A recording as a model takes it, and the tokens of its transcript, which may be letters."""

    samples: Float32[np.ndarray, " N"]
    tokens: Sequence[int]


@dataclasses.dataclass(frozen=True)
class Utterances:
    """The utterances of a split, by their numbers.

    Attributes:
      recordings: The recordings.
      tokens: Tokens of each transcript.
      is_standardized: Whether each recording is scaled to mean 0 and variance 1.
    """

    recordings: Recordings
    tokens: Sequence[Sequence[int]]
    is_standardized: bool

    def __getitem__(self, number: int) -> Utterance:
        samples = self.recordings[number]
        if self.is_standardized:
            samples = standardize(samples)
        return Utterance(samples, self.tokens[number])

    @property
    def longest(self) -> int:
        """Largest number of tokens of a transcript."""
        return max(map(len, self.tokens))


@runtime_checkable  # for the checks of types in tests
class RecordedExamples(Protocol):
    """The examples of a split, by their numbers."""

    @property
    def recordings(self) -> Recordings: ...

    def __getitem__(self, number: int, /) -> Any: ...


ExamplesT = TypeVar("ExamplesT", bound=RecordedExamples)


class RecordingsTask(NetworkTask, Generic[ExamplesT]):
    """Trains on recordings, one in each row of a batch, and validates with the loss.

    A subclass reads the examples of both splits, plans their batches and arranges them in rows.
    """

    skipped_because: ClassVar[str]  # Which training recordings are left out, for the log.

    def __init__(
        self,
        config: Config,
        train: ExamplesT,
        valid: ExamplesT,
        *,
        plan: BatchPlan,
        valid_plan: BatchPlan,
        skipped: int,
    ) -> None:
        """Takes the examples and batches of both splits, and how many to train on are skipped."""
        self.config = config
        self._train = train
        self._valid = valid
        self._plan = plan
        self._valid_plan = valid_plan
        self._skipped = skipped

    @abc.abstractmethod
    def make_batch(self, examples: ExamplesT) -> Callable[[Sequence[Sequence[Any]], Shape], PyTree]:
        """Returns the function that arranges examples, one in each row."""

    def batches(self, start: int, shards: BatchShards) -> Iterator[PyTree]:
        stop = self.config.training.steps
        return self._load(self._train, self._plan, shards, start=start, stop=stop)

    def _load(
        self,
        examples: ExamplesT,
        plan: BatchPlan,
        shards: BatchShards,
        *,
        start: int,
        stop: int,
    ) -> Iterator[PyTree]:
        return load_batches(
            examples,
            plan,
            make=self.make_batch(examples),
            start=start,
            stop=stop,
            row_multiple=shards.row_multiple,
            local_shards=shards.local_shards,
            shard_count=shards.shard_count,
        )

    def identity(self) -> dict[str, str]:
        return {
            "train": self._train.recordings.sha256,
            "valid": self._valid.recordings.sha256,
        }

    def summary(self) -> str:
        lines = []
        splits = (("training", self._train.recordings), ("validation", self._valid.recordings))
        for title, recordings in splits:
            line = f"{len(recordings):,} {title} recordings, {recordings.seconds / 60:.1f} minutes"
            if title == "training" and self._skipped:
                line += f", {self._skipped:,} skipped, which are {self.skipped_because}"
            lines.append(line)

        lines += self.describe_plan()
        for _, recordings in splits:
            transcript = recordings.transcripts[0] or ""
            lines.append(describe_example(recordings.names[0], [("transcript", transcript)]))
        return "\n".join(lines)

    def describe_plan(self) -> list[str]:
        """Returns lines of the summary about the batches; none if all have one length."""
        return []

    def example_ids(self, number: int) -> list[int]:
        """Returns the numbers of the recordings of a batch, without those that are skipped."""
        _, rows = self._plan.rows(number)
        return [example for [example] in rows]

    def describe_batch(self, number: int) -> str:
        names = self._train.recordings.names
        own = [names[example] for example in self.example_ids(number)]
        return f"it had {len(own)} recordings: {list_first(own[:10], len(own))}"

    def evaluate(
        self,
        params: PyTree,
        mesh: Mesh,
        check_stop: CheckStop,
    ) -> dict[str, float]:
        batches = self._load(
            self._valid,
            self._valid_plan,
            BatchShards.of(mesh),
            start=0,
            stop=self._valid_plan.batches_per_epoch,
        )
        return evaluate_loss(self.loss, params, batches, mesh=mesh, check_stop=check_stop)

    def rate_texts(
        self,
        params: PyTree,
        mesh: Mesh,
        check_stop: CheckStop,
        *,
        transcriber: Callable[[PyTree], Transcriber],
    ) -> ErrorRates | None:
        """Returns the error rates of the first recordings for validation.

        Args:
          params: Parameters.
          mesh: Devices that have them.
          check_stop: Called after each batch.
          transcriber: Makes a transcriber from parameters on one device.

        Returns:
          The error rates; None if ``training.eval_sentences`` is 0.
        """
        recordings = self._valid.recordings
        count = min(len(recordings), self.config.training.eval_sentences)
        if not count:
            return None

        # Each process transcribes all of them, on one of its devices.
        if mesh.size > 1:
            params = processes.on_this_host(params)
        sounds = [Sound(recordings[number], recordings.rate) for number in range(count)]
        texts = transcriber(params).transcribe(sounds, report=lambda _: check_stop())
        references = [transcript or "" for transcript in recordings.transcripts[:count]]
        return error_rates(texts, references)
