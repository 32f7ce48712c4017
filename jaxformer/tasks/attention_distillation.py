"""Attention distillation: a model also learns the attention maps of a teacher.

A teacher's maps say where its heads look. TinyBERT (Jiao et al. 2020) and MobileBERT (Sun et al.
2020) learn them beside the outputs; the distance here is MobileBERT's, the divergence of each row
of a map.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlogy
from jaxtyping import Array, Float, PyTree

from jaxformer.config import Config, read_config
from jaxformer.data.tokenizer import Vocabulary
from jaxformer.errors import UserError
from jaxformer.files import model_path
from jaxformer.inference.members import recorded_weights
from jaxformer.inference.parameter_arrays import abstract_params, params_sha256
from jaxformer.inference.weights import TrainedModel
from jaxformer.models.architecture import Architecture
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.token_task import NetworkLoss, Queries
from jaxformer.training.task import Loss, Randomness, Sums

# Attention weights of all layers of a stack, [L, B, H, T, S], by stack and sub-layer.
Maps = dict[tuple[str, str], Float[Array, "L B H T S"]]

_LEAST_WEIGHT = 1e-12  # of the student, so that the logarithm is finite


class Teacher(NamedTuple):
    """A model whose attention maps are learned."""

    model: Architecture
    params: PyTree  # of NumPy arrays

    @classmethod
    def load(cls, config: Config, tokenizer: Vocabulary) -> "Teacher | None":
        """Returns the model of ``training.teacher``; None for a config without one."""
        name = config.training.teacher
        if name is None:
            return None

        trained = TrainedModel.load(name, dequantized=True, kinds=[config.kind])
        if trained.tokenizer.sha256 != tokenizer.sha256:
            raise UserError(
                f"training.teacher={name}: expected a model with the tokenizer of this run, got "
                f"another; give --config.data.tokenizer={name}"
            )
        return cls(trained.config.model, jax.device_get(trained.params))

    @classmethod
    def describe(cls, config: Config) -> "Teacher | None":
        """Returns the model of ``training.teacher`` with shapes and dtypes in place of arrays."""
        name = config.training.teacher
        if name is None:
            return None

        model = read_config(Workdir(model_path(name))).model
        if model.compute_dtype == "int8":
            model = dataclasses.replace(model, compute_dtype="float32")
        return cls(model, abstract_params(model, config.kind))

    @property
    def sha256(self) -> str:
        """A hash of the parameters."""
        return params_sha256(self.params)


def check_teacher(config: Config) -> None:
    """Checks that the maps of the model of ``training.teacher``, if any, fit the config's model."""
    name = config.training.teacher
    if name is None:
        return

    teacher = read_config(Workdir(model_path(name)))
    prefix = f"training.teacher={name}: expected"
    if teacher.kind is not config.kind:
        raise UserError(f"{prefix} {config.kind.description}, got {teacher.kind.description}")

    own: Any = config.model
    theirs: Any = teacher.model
    if own.num_heads != theirs.num_heads:
        raise UserError(
            f"{prefix} a model of as many heads, {own.num_heads}, got {theirs.num_heads}; give "
            f"--config.model.num_heads={theirs.num_heads}"
        )

    for field in ("num_layers", "num_decoder_layers"):
        own_layers = getattr(own, field, own.num_layers)
        layers = getattr(theirs, field, theirs.num_layers)
        if own_layers > layers:
            raise UserError(
                f"{prefix} at least as many layers as model.{field}={own_layers}, got {layers}"
            )

    length = config.data.length_field
    longest = own.max_length if length is None else getattr(config.data, length)
    if longest > theirs.max_length:
        raise UserError(
            f"{prefix} a model for {longest} tokens, got one for {theirs.max_length}; give "
            f"--config.data.{length}={theirs.max_length}"
        )


@dataclasses.dataclass(frozen=True)
class AttentionLoss:
    """The loss of a model, and the distance of its attention maps from a teacher's.

    Attributes:
      loss: The loss of the model.
      teacher: The architecture of the teacher.
      weight: Factor on the distance.
    """

    loss: NetworkLoss
    teacher: Architecture
    weight: float

    def __call__(
        self,
        teacher_params: PyTree,
        params: PyTree,
        batch: PyTree,
        randomness: Randomness | None,
    ) -> Sums:
        """Sums the loss and, as "attention", the distance, over rows.

        The teacher has no dropout, and gets no gradient.
        """
        loss: Any = self.loss
        queries: Queries = loss.attention_queries(batch)
        sums, own = _record(loss, queries, params, batch, randomness)

        teacher_loss = dataclasses.replace(loss, model=self.teacher)
        teacher_params = jax.lax.stop_gradient(teacher_params)
        _, theirs = _record(teacher_loss, queries, teacher_params, batch, None)

        distances = []
        for name, weights in queries.items():
            # A recurrent layer records one map, and has no heads.
            has_heads = own[name].shape[2] == theirs[name].shape[2]
            if has_heads:
                distances.append(map_distance(own[name], theirs[name], weights))
        distance = jnp.stack(distances).mean()

        return sums | {
            "loss": sums["loss"] + self.weight * distance,
            "attention": distance,
        }


def learn_attention(loss: Any, config: Config, teacher: Teacher | None) -> Loss:
    """Returns the loss that steps minimize: the loss of a model, and perhaps the distance."""
    if teacher is None:
        return loss
    attention_loss = AttentionLoss(loss, teacher.model, config.training.attention_weight)
    return jax.tree_util.Partial(attention_loss, teacher.params)


def _record(
    loss: NetworkLoss,
    queries: Queries,
    params: PyTree,
    batch: PyTree,
    randomness: Randomness | None,
) -> tuple[Sums, Maps]:
    """Returns the sums of a loss, and the maps of the sub-layers that have queries."""
    seen: list[Mapping[str, Any]] = []
    observed: Any = dataclasses.replace(loss, observe=seen.append)
    sums = observed(params, batch, randomness)

    [recorded] = seen
    network = loss.kind.build(loss.model)
    maps = {}
    for stack, sublayer in queries:
        maps[stack, sublayer] = recorded_weights(
            network,
            recorded,
            stack=stack,
            sublayer=sublayer,
        )
    return sums, maps


def map_distance(
    own: Float[Array, "M B H T S"],
    theirs: Float[Array, "L B H T S"],
    weights: Float[Array, "B T"],
) -> Float[Array, ""]:
    """Sums KL(theirs || own) over queries, each times its weight; the mean of layers and heads.

    Of L layers of the teacher, the model's M layers learn the last ones of M equal groups.
    """
    own_layers = len(own)
    ends = np.arange(1, own_layers + 1) * len(theirs) // own_layers
    theirs = theirs[ends - 1]

    log_own = jnp.log(jnp.maximum(own, _LEAST_WEIGHT))
    divergence = xlogy(theirs, theirs) - theirs * log_own  # [M, B, H, T, S]
    of_queries = divergence.sum(-1).mean((0, 2))  # [B, T]
    return (of_queries * weights).sum()
