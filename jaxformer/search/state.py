"""What a beam search holds from step to step, and what it returns.

Axes: B sentences, N hypotheses of a sentence, M candidates of a sentence, T room for tokens.
"""

import dataclasses
from typing import Any, NamedTuple

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class BeamResult(NamedTuple):
    """The N best hypotheses of each sentence, best first.

    A hypothesis that does not exist has score and log probability -inf, length 0 and only padding.
    """

    tokens: Int[Array, "B N T"]  # int32; without BOS, with EOS, padding after
    lengths: Int[Array, "B N"]  # int32; tokens that are not padding, EOS included
    scores: Float[Array, "B N"]  # float32; log probability / length penalty
    log_probs: Float[Array, "B N"]  # float32


@flax.struct.dataclass
class Candidates:
    """One-token continuations of alive hypotheses, best first."""

    log_probs: Float[Array, "B M"]  # float32; of the whole hypothesis; -inf: does not exist
    tokens: Int[Array, "B M"]  # int32; the token that is added
    parents: Int[Array, "B M"]  # int32; which alive hypothesis is continued, 0 to N - 1


@flax.struct.dataclass
class BeamState:
    """Everything that one step hands to the next."""

    step: Int[Array, ""]  # int32; tokens decoded so far
    done: Bool[Array, " B"]  # the sentence is over and stays as it is
    alive: Candidates  # axes B N; the newest token of each alive hypothesis
    alive_tokens: Int[Array, "B N T"]  # int32; all their tokens, padding after
    finished: BeamResult  # axes B N; the best hypotheses with EOS so far
    cache: Any  # the step function's own


@dataclasses.dataclass(frozen=True)
class Rules:
    """What stays the same from step to step."""

    limits: Int[Array, " B"]  # int32; most tokens per sentence, at most T
    penalties: Float[Array, " lengths"]  # float32; length penalty of 0 to T tokens, never falling
    eos_id: int
    pad_id: int
    early_stop: bool


def initial_state(
    cache: Any, limits: Int[Array, " B"], beam_size: int, max_length: int, bos_id: int, pad_id: int
) -> BeamState:
    """One alive hypothesis per sentence, the empty one, and none finished."""
    shape = (limits.shape[0], beam_size)
    tokens = jnp.full((*shape, max_length), pad_id, jnp.int32)
    impossible = jnp.full(shape, -jnp.inf, jnp.float32)
    none = jnp.zeros(shape, jnp.int32)
    return BeamState(
        step=jnp.zeros((), jnp.int32),
        done=limits == 0,
        alive=Candidates(
            log_probs=impossible.at[:, 0].set(0.0),
            tokens=jnp.full(shape, bos_id, jnp.int32),
            parents=none,
        ),
        alive_tokens=tokens,
        finished=BeamResult(tokens=tokens, lengths=none, scores=impossible, log_probs=impossible),
        cache=cache,
    )
