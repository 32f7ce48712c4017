"""The models that decode together, and the log probabilities that they give.

A subclass of :class:`Models` says how models combine: an :class:`Ensemble` of one or several, or
the :class:`Contrast` of two. Searches use ``start``, ``grow``, ``prefill``, ``prefill_fn`` and
``step_fn``, and scores of given tokens use ``token_log_probs`` of the experts. All are pytrees
whose structure has the architectures, so that it names the programs of a search.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from jaxformer.errors import UserError
from jaxformer.inference.parameter_arrays import params_sha256
from jaxformer.models.architecture import Architecture
from jaxformer.models.stepwise import step_fn
from jaxformer.nn.precision import dequantize
from jaxformer.search import PrefillFn, StepFn, contrast, ensemble
from jaxformer.search.contrast import ContrastiveStep, contrast_log_probs
from jaxformer.search.state import ContrastiveScores

_LOGITS_AT_ONCE = 1 << 22  # number of logits per chunk, 16 MB in float32


class Member(NamedTuple):
    """A model and its parameters."""

    model: Any  # a StepwiseModel
    params: PyTree  # cast or quantized for decoding

    @property
    def config(self) -> Architecture:
        return self.model.config

    def __call__(self, *inputs: Any, method: str, **options: Any) -> Any:
        variables = {"params": self.params}
        return self.model.apply(variables, *inputs, method=method, **options)


# Only the parameters are traced: a jitted function is compiled for each architecture.
jax.tree_util.register_pytree_node(
    Member,
    lambda member: ((member.params,), member.model),
    lambda model, children: Member(model, *children),
)


def is_member(node: Any) -> bool:
    return isinstance(node, Member)


class Models(abc.ABC):
    """Models that decode together; a subclass is a way to combine their log probabilities."""

    is_contrast: ClassVar[bool] = False  # whether steps return ``ContrastiveScores``
    experts: "Ensemble"  # the models whose probabilities a hypothesis has

    @property
    @abc.abstractmethod
    def tree(self) -> Any:
        """All models in nested tuples, the structure of their caches."""

    @abc.abstractmethod
    def prefill_fn(self, free: int) -> Callable[..., Any]:
        """Returns the prefill of a search; the first ``free`` tokens have log probability 0."""

    @abc.abstractmethod
    def step_fn(self, candidates: Int[Array, " C"] | None = None) -> StepFn | ContrastiveStep:
        """Returns the step function of a search, over the candidates if they are given."""

    @abc.abstractmethod
    def identity(self) -> list[Any]:
        """Returns values for JSON that are different for other parameters or combinations."""

    @property
    def max_length(self) -> int:
        """Maximum number of tokens of a sequence that all models take."""
        return min(config.max_length for config in self._configs)

    @property
    def vocab_size(self) -> int:
        """Number of token ids that all models read."""
        return min(config.vocab_size for config in self._configs)

    @property
    def output_size(self) -> int:
        """Number of token ids that all models generate."""
        return min(config.output_size for config in self._configs)

    def start(self, *inputs: Any, num_beams: int, capacity: int) -> Any:
        """Returns an empty cache of each model for the inputs, with capacity in tokens."""

        def start(member: Member) -> Any:
            return member(*inputs, num_beams=num_beams, capacity=capacity, method="start")

        return self._map(start)

    def grow(self, caches: Any, capacity: int) -> Any:
        """Returns the caches with capacity for more tokens."""
        return self._map(lambda _, cache: cache.grow(capacity), caches)

    def prefill(
        self,
        tokens: Int[Array, "B P"],
        caches: Any,
        length: Int[Array, ""],
        *starts: Int[Array, " B"] | None,
    ) -> tuple[Any, Any]:
        """Returns each model's outputs for the first tokens, and the caches that include them.

        ``starts``, if given, are the indices of the first tokens of prompts padded on the left.
        """

        def prefill(member: Member, cache: Any) -> tuple[Float[Array, "B P _"], Any]:
            return member(tokens, cache, length, *starts, method="prefill")

        outputs = self._map(prefill, caches)
        features = self._map(lambda _, output: output[0], outputs)
        new_caches = self._map(lambda _, output: output[1], outputs)
        return features, new_caches

    @property
    def _configs(self) -> list[Architecture]:
        members = jax.tree.leaves(self.tree, is_leaf=is_member)
        return [member.config for member in members]

    def _map(self, function: Callable[..., Any], *trees: Any) -> Any:
        """Calls a function with each model and its part of other trees, such as its cache."""
        return jax.tree.map(function, self.tree, *trees, is_leaf=is_member)


@dataclasses.dataclass(frozen=True, eq=False)
class Ensemble(Models, Sequence[Member]):
    """A single model, or several whose probabilities are averaged."""

    members: tuple[Member, ...]

    @property
    def tree(self) -> tuple[Member, ...]:
        return self.members

    @property
    def experts(self) -> "Ensemble":
        return self

    def __getitem__(self, index: Any) -> Any:
        return self.members[index]

    def __len__(self) -> int:
        return len(self.members)

    def prefill_fn(self, free: int) -> PrefillFn:
        def prefill(
            inputs: Int[Array, "B P"],
            targets: Int[Array, "B P"],
            length: Int[Array, ""],
            caches: Any,
        ) -> tuple[Float[Array, "B P"], Any]:
            features, caches = self.prefill(inputs, caches, length)
            log_probs = self.token_log_probs(features, targets)
            if free:
                log_probs = log_probs.at[:, :free].set(0)
            return log_probs, caches

        return prefill

    def step_fn(self, candidates: Int[Array, " C"] | None = None) -> StepFn:
        step_fns = [step_fn(member.model, member.params, candidates) for member in self.members]
        return ensemble(step_fns)

    def identity(self) -> list[Any]:
        """Returns the SHA-256 of the parameters of each model."""
        return [params_sha256(dequantize(member.params)) for member in self.members]

    def token_log_probs(
        self,
        features: Sequence[Float[Array, "B T _"]],
        targets: Int[Array, "B T"],
    ) -> Float[Array, "B T"]:
        """Returns the log of the mean probability of targets, given each model's outputs."""
        vocab_size = max(member.config.output_size for member in self.members)
        logits = [functools.partial(member, method="logits") for member in self.members]
        return _log_probs_of_tokens(
            logits,
            vocab_size,
            features=features,
            targets=targets,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Contrast(Models):
    """Experts and amateurs; searches prefer tokens that the amateurs find less probable.

    See :func:`~jaxformer.search.contrast`. Caches are pairs, of experts and amateurs.
    """

    is_contrast: ClassVar[bool] = True

    experts: Ensemble
    amateurs: Ensemble
    alpha: (
        Float[Array, ""] | np.float32
    )  # least probability of a token, as a fraction of the experts' largest

    @property
    def tree(self) -> tuple[tuple[Member, ...], tuple[Member, ...]]:
        return self.experts.members, self.amateurs.members

    def prefill_fn(self, free: int) -> Callable[..., tuple[ContrastiveScores, Any]]:
        expert_fn = self.experts.prefill_fn(free)
        amateur_fn = self.amateurs.prefill_fn(free)

        def prefill(
            inputs: Int[Array, "B P"],
            targets: Int[Array, "B P"],
            length: Int[Array, ""],
            caches: Any,
        ) -> tuple[ContrastiveScores, Any]:
            expert, experts = expert_fn(inputs, targets, length, caches[0])
            amateur, amateurs = amateur_fn(inputs, targets, length, caches[1])
            return contrast_log_probs(expert, amateur, self.alpha), (experts, amateurs)

        return prefill

    def step_fn(self, candidates: Int[Array, " C"] | None = None) -> ContrastiveStep:
        return contrast(
            self.experts.step_fn(candidates),
            self.amateurs.step_fn(candidates),
            self.alpha,
        )

    def identity(self) -> list[Any]:
        experts = self.experts.identity()
        amateurs = self.amateurs.identity()
        return [*experts, "contrast", float(self.alpha), *amateurs]


jax.tree_util.register_dataclass(Ensemble, data_fields=["members"], meta_fields=[])
jax.tree_util.register_dataclass(
    Contrast,
    data_fields=["experts", "amateurs", "alpha"],
    meta_fields=[],
)


def recorded_weights(
    network: Any,
    recorded: Mapping[str, Any],
    stack: str,
    sublayer: str,
) -> Float[Array, "L B H T S"]:
    """Returns the attention weights of all layers of a stack, which a call of a model recorded.

    Args:
      network: The model, for the error message.
      recorded: The variables of the call, with ``mutable="intermediates"``.
      stack: "encoder" or "decoder".
      sublayer: "self_attention" or "cross_attention".

    Raises:
      UserError: The layers do not sow their weights, as
        :class:`~jaxformer.MultiHeadAttention` does.
    """
    layers: Any = recorded.get("intermediates", {}).get(stack, {})
    # A recurrence is a single layer, and no stack.
    layers = layers.get("layers", layers)
    found = layers.get(sublayer, {}).get("weights")

    if found is None:
        raise UserError(
            f'expected a model that records {stack}/{sublayer} as "weights", as attention of '
            f"softmax does: {type(network).__name__} records none"
        )
    if len(found) == 1:
        return found[0]

    # Layers with the same parameters follow one another.
    weights = jnp.stack(found, axis=1)  # [groups, layers of a group, B, H, T, S]
    return weights.reshape(-1, *weights.shape[2:])


def _log_probs_of_tokens(
    logits: Sequence[Callable[[Float[Array, "C D"]], Float[Array, "C V"]]],
    vocab_size: int,
    features: Sequence[Float[Array, "B T _"]],
    targets: Int[Array, "B T"],
) -> Float[Array, "B T"]:
    """Returns log probabilities under the models' mean; logits come in chunks, to bound memory."""

    def log_probs_of_chunk(chunk: tuple[list[Array], Array]) -> Float[Array, " C"]:
        features_of_models, targets = chunk
        log_probs_of_models = []
        for logits_of, features in zip(logits, features_of_models, strict=True):
            scores = logits_of(features).astype(jnp.float32)  # [C, V]
            chosen = jnp.take_along_axis(scores, targets[:, None], axis=1)[:, 0]
            normalizer = jax.nn.logsumexp(scores, axis=1)
            log_probs_of_models.append(chosen - normalizer)

        # The log of the mean probability.
        stacked = jnp.stack(log_probs_of_models)
        log_sum = jax.nn.logsumexp(stacked, axis=0)
        return log_sum - math.log(len(log_probs_of_models))

    num_tokens = targets.size
    most_tokens = max(8, _LOGITS_AT_ONCE // vocab_size)
    chunk_size = min(num_tokens, most_tokens)
    num_chunks = -(-num_tokens // chunk_size)
    num_padding = num_chunks * chunk_size - num_tokens

    def split_into_chunks(rows: Array) -> Array:
        padding = [(0, 0)] * rows.ndim
        padding[0] = (0, num_padding)
        padded = jnp.pad(rows, padding)
        return padded.reshape(num_chunks, chunk_size, *rows.shape[1:])

    feature_chunks = []
    for features_of_model in features:
        depth = features_of_model.shape[-1]
        rows = features_of_model.reshape(-1, depth)
        feature_chunks.append(split_into_chunks(rows))
    target_chunks = split_into_chunks(targets.reshape(-1))

    chunks = (feature_chunks, target_chunks)
    log_probs = jax.lax.map(log_probs_of_chunk, chunks)
    log_probs = log_probs.reshape(-1)[:num_tokens]
    return log_probs.reshape(targets.shape)
