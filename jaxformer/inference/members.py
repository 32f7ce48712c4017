"""The models that decode together, and the log probabilities that they give.

:data:`Models` says how models combine: an :class:`Ensemble` of one or several, or the
:class:`Contrast` of two. All searches of trained models, and all scores of given tokens, use the
methods of these classes: ``start``, ``grow``, ``prefill``, ``prefill_fn`` and ``step_fn`` for the
tokens of a search, and ``token_log_probs`` for given tokens. They are pytrees whose structure has
the architectures, so that it names the programs of a search.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from jaxformer.errors import UserError
from jaxformer.models.architecture import Architecture
from jaxformer.models.stepwise import step_fn
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


@dataclasses.dataclass(frozen=True, eq=False)
class Ensemble(Sequence[Member]):
    """A single model, or several whose probabilities are averaged."""

    members: tuple[Member, ...]

    @property
    def experts(self) -> "Ensemble":
        """The models whose probabilities a hypothesis has: all."""
        return self

    def __getitem__(self, index: Any) -> Any:
        return self.members[index]

    def __len__(self) -> int:
        return len(self.members)

    @property
    def max_length(self) -> int:
        """Maximum number of tokens of a sequence that all models take."""
        return min(member.config.max_length for member in self.members)

    @property
    def vocab_size(self) -> int:
        """Number of token ids that all models read."""
        return min(member.config.vocab_size for member in self.members)

    @property
    def output_size(self) -> int:
        """Number of token ids that all models generate."""
        return min(member.config.output_size for member in self.members)

    def start(self, *inputs: Any, num_beams: int, capacity: int) -> tuple[Any, ...]:
        """Returns an empty cache of each model for the inputs, with capacity in tokens."""
        return tuple(
            member(*inputs, num_beams=num_beams, capacity=capacity, method="start")
            for member in self.members
        )

    def grow(self, caches: tuple[Any, ...], capacity: int) -> tuple[Any, ...]:
        """Returns the caches with capacity for more tokens."""
        return tuple(cache.grow(capacity) for cache in caches)

    def prefill(
        self,
        tokens: Int[Array, "B P"],
        caches: tuple[Any, ...],
        length: Int[Array, ""],
        *starts: Int[Array, " B"] | None,
    ) -> tuple[tuple[Float[Array, "B P _"], ...], tuple[Any, ...]]:
        """Returns each model's outputs for the first tokens, and the caches that include them.

        ``starts``, if given, are the indices of the first tokens of prompts padded on the left.
        """
        outputs = [
            member(tokens, cache, length, *starts, method="prefill")
            for member, cache in zip(self.members, caches, strict=True)
        ]
        features, caches = zip(*outputs, strict=True)
        return features, caches

    def prefill_fn(self, free: int) -> PrefillFn:
        """Returns the prefill of a search; the first ``free`` tokens have log probability 0."""

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
        """Returns the step function of a search, over the candidates if they are given."""
        step_fns = [step_fn(member.model, member.params, candidates) for member in self.members]
        return ensemble(step_fns)

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
class Contrast:
    """Experts and amateurs; searches prefer tokens that the amateurs find less probable.

    See :func:`~jaxformer.search.contrast`. Caches are pairs, of experts and amateurs.
    """

    experts: Ensemble
    amateurs: Ensemble
    alpha: (
        Float[Array, ""] | np.float32
    )  # least probability of a token, as a fraction of the experts' largest

    @property
    def max_length(self) -> int:
        """Maximum number of tokens of a sequence that all models take."""
        return min(self.experts.max_length, self.amateurs.max_length)

    @property
    def vocab_size(self) -> int:
        """Number of token ids that all models read."""
        return min(self.experts.vocab_size, self.amateurs.vocab_size)

    @property
    def output_size(self) -> int:
        """Number of token ids that all models generate."""
        return min(self.experts.output_size, self.amateurs.output_size)

    def start(self, *inputs: Any, num_beams: int, capacity: int) -> tuple[Any, Any]:
        """Returns empty caches, as :meth:`Ensemble.start` does."""
        experts = self.experts.start(*inputs, num_beams=num_beams, capacity=capacity)
        amateurs = self.amateurs.start(*inputs, num_beams=num_beams, capacity=capacity)
        return experts, amateurs

    def grow(self, caches: tuple[Any, Any], capacity: int) -> tuple[Any, Any]:
        """Returns the caches with capacity for more tokens."""
        experts, amateurs = caches
        return self.experts.grow(experts, capacity), self.amateurs.grow(amateurs, capacity)

    def prefill(
        self,
        tokens: Int[Array, "B P"],
        caches: tuple[Any, Any],
        length: Int[Array, ""],
        *starts: Int[Array, " B"] | None,
    ) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """Returns outputs and caches, as :meth:`Ensemble.prefill` does."""
        of_experts, experts = self.experts.prefill(tokens, caches[0], length, *starts)
        of_amateurs, amateurs = self.amateurs.prefill(tokens, caches[1], length, *starts)
        return (of_experts, of_amateurs), (experts, amateurs)

    def prefill_fn(self, free: int) -> Callable[..., tuple[ContrastiveScores, Any]]:
        """Returns the prefill of a search; the first ``free`` tokens have score 0."""
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
        """Returns the step function of a search, over the candidates if they are given."""
        return contrast(
            self.experts.step_fn(candidates),
            self.amateurs.step_fn(candidates),
            self.alpha,
        )


jax.tree_util.register_dataclass(Ensemble, data_fields=["members"], meta_fields=[])
jax.tree_util.register_dataclass(
    Contrast,
    data_fields=["experts", "amateurs", "alpha"],
    meta_fields=[],
)
Models: TypeAlias = Ensemble | Contrast


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
    path = ("intermediates", stack, "layers", sublayer, "weights")
    found: Any = recorded
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None

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
