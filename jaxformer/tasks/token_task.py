"""Bases of all tasks with a config, and of their losses (section 5.4).

:class:`NetworkTask` and :class:`NetworkLoss` are for any model, :class:`TokenTask` and
:class:`TokenLoss` for a model of tokens.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias, TypeVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxformer import tasks
from jaxformer.config import Config, check_config
from jaxformer.data.corpus import Corpus
from jaxformer.data.tokenizer import Vocabulary
from jaxformer.errors import UserError
from jaxformer.kinds.kind import Kind
from jaxformer.kinds.model_parameters import make_init
from jaxformer.kinds.translation import TRANSLATION
from jaxformer.models.architecture import Architecture
from jaxformer.nn.precision import at_least_float32, matmul_dtype
from jaxformer.nn.rematerialization import Remat
from jaxformer.registry import find_classes
from jaxformer.runs.workdir import Workdir
from jaxformer.training.freezing import stop_gradients
from jaxformer.training.losses import cross_entropy
from jaxformer.training.placement import BatchShards
from jaxformer.training.task import Init, Loss, Randomness, Sums, Task, dropout_of

Result = TypeVar("Result")
LossT = TypeVar("LossT", bound="NetworkLoss")
# Features of tokens, and the matrix and bias of the logits.
Output: TypeAlias = tuple[
    Float[Array, "B T D"], tuple[Float[Array, "V D"], Float[Array, " V"] | None]
]
# Weights of the queries of attention, 0 for padding, by stack and sub-layer.
Queries: TypeAlias = dict[tuple[str, str], Float[Array, "B T"]]


@dataclasses.dataclass(frozen=True)
class NetworkLoss(abc.ABC):
    """The loss of a model; equal losses share their compiled programs."""

    # Whether the loss reads ``label_smoothing``; others refuse one.
    smooths_labels: ClassVar[bool] = False

    model: Architecture
    label_smoothing: float  # probability mass spread over the vocabulary, or over the classes
    remat: Remat = "none"
    kind: Kind = TRANSLATION
    freeze: str | None = None  # parameters without gradients, as in training.freeze
    # Is called with what the layers record, such as their attention weights; None records nothing.
    observe: Callable[[Mapping[str, Any]], object] | None = None

    @classmethod
    def of(cls: type[LossT], config: Config) -> LossT:
        """Returns the loss of a config."""
        check_config(config)
        training = config.training

        if training.label_smoothing and not cls.smooths_labels:
            raise UserError(
                "training.label_smoothing is for classes and tokens, not for "
                f"{config.kind.description}: got {training.label_smoothing}; give "
                "--config.training.label_smoothing=0.0"
            )

        # A loss with R-Drop has a field for its weight.
        if training.consistency and not hasattr(cls, "consistency"):
            raise UserError(
                f"training.consistency is for translation: got {training.consistency}; leave it out"
            )

        # A loss of a model with attention maps to learn says which ones.
        if training.teacher and not hasattr(cls, "attention_queries"):
            raise UserError(
                "training.teacher is for translation and classification: got "
                f"{training.teacher}; leave it out"
            )

        return cls(
            model=config.model,
            label_smoothing=training.label_smoothing,
            remat=training.remat,
            kind=config.kind,
            freeze=training.freeze,
        )

    @abc.abstractmethod
    def __call__(
        self,
        params: PyTree,
        batch: PyTree,
        randomness: Randomness | None,
    ) -> Sums: ...

    def apply(
        self,
        params: PyTree,
        randomness: Randomness | None,
        forward: Callable[[Any, dict[str, Any]], Result],
    ) -> Result:
        """Returns the result of ``forward(module, dropout arguments)``."""
        remat = "none" if randomness is None else self.remat
        module: Any = self.kind.build(self.model, remat)
        dropout, rngs = dropout_of(randomness)
        variables = {"params": stop_gradients(params, self.freeze)}
        if self.observe is None:
            return module.apply(variables, dropout, rngs=rngs, method=forward)

        result, recorded = module.apply(
            variables,
            dropout,
            rngs=rngs,
            method=forward,
            mutable="intermediates",
        )
        self.observe(recorded)
        return result


class TokenLoss(NetworkLoss):
    """The loss of a model of tokens.

    It returns the sums "loss", label-smoothed, and "nll", both in nats; "count", the number of
    target tokens; and "tokens", the number of all tokens. Tokens include end-of-sentence but no
    padding.
    """

    smooths_labels = True

    def sums(
        self,
        output: Output,
        targets: Int[Array, "B T"],
        real: Bool[Array, "B T"],
        consistency: float = 0.0,
    ) -> Sums:
        """Sums the loss over the ``real`` targets, which are all the tokens that it counts.

        With ``consistency``, the weight of R-Drop, rows 2i and 2i + 1 are two passes over one
        example, and the sums are averages over the passes.
        """
        features, (matrix, bias) = output
        passes = 1
        if consistency:
            passes = 2
            features = _pair_passes(features)
            targets = _pair_passes(targets)
            real = _pair_passes(real)

        size = features.shape[-1]
        rows = features.reshape(-1, size)
        dtype = matmul_dtype(self.model.compute_dtype, rows, matrix)
        rows = rows.astype(dtype)
        if bias is not None:
            # The bias is the weight of one more input, which is always 1.
            ones = jnp.ones((rows.shape[0], 1), rows.dtype)
            rows = jnp.hstack([rows, ones])
            matrix = jnp.hstack([matrix, bias[:, None]])

        weights = real.reshape(-1).astype(at_least_float32(rows))
        loss, nll = cross_entropy(
            rows,
            matrix,
            targets.reshape(-1),
            weights=weights,
            label_smoothing=self.label_smoothing,
            consistency=consistency,
        )
        count = real.sum(dtype=jnp.int32) // passes
        return {
            "loss": loss / passes,
            "nll": nll / passes,
            "count": count,
            "tokens": count,
        }


def _pair_passes(x: Array) -> Array:
    """Puts tokens of rows 2i and 2i + 1 side by side: [2B, T, ...] to [B, T, 2, ...]."""
    return x.reshape(-1, 2, *x.shape[1:]).swapaxes(1, 2)


class NetworkTask(Task):
    """Base of all tasks with a config, for one kind of experiment."""

    kind: ClassVar[Kind]  # Each kind has one task.
    loss_class: type[NetworkLoss]
    config: Config
    tokenizer: Vocabulary | None = None

    @classmethod
    @abc.abstractmethod
    def open(
        cls,
        config: Config,
        folder: Workdir,
        corpus: Corpus | None = None,
    ) -> "NetworkTask":
        """Opens the data of a config, or the given corpus."""

    @classmethod
    @abc.abstractmethod
    def longest_batch(cls, config: Config, shards: BatchShards) -> PyTree:
        """Returns the shape of the longest batch, without reading data."""

    def shapes(self, shards: BatchShards) -> Sequence[PyTree]:
        return [self.longest_batch(self.config, shards)]

    @property
    def init(self) -> Init:
        return make_init(self.config.model, self.config.kind)

    @property
    def loss(self) -> Loss:
        return self.loss_class.of(self.config)

    @property
    def scales_loss(self) -> bool:
        return self.config.model.compute_dtype == "float16"


class TokenTask(NetworkTask):
    """Base of the tasks of models of tokens, which have a tokenizer."""

    tokenizer: Vocabulary

    def save(self, workdir: Workdir) -> None:
        """Writes the tokenizer; refuses a workdir that holds another one."""
        workdir.write_tokenizer(self.tokenizer.serialized)


def task_class(config: Config) -> type[NetworkTask]:
    """Returns the class of the task of a config, among all tasks in this package."""
    for task in find_classes(tasks, NetworkTask):
        if task.kind is config.kind:
            return task
    raise AssertionError(f"no task is for {config.kind.description}")
