"""What a hypothesis may not go on with.

Constraints forbid tokens and never change a score: log probabilities are of the logits as the step
function gave them, and only the choice among tokens looks at the constrained ones.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxformer.search.rules import HypothesisRules


def constrain(
    rules: HypothesisRules,
    logits: Float[Array, "B N V"],
    tokens: Int[Array, "B N T"],
    prefix: Int[Array, "B P"],
    step: Int[Array, ""],
) -> Float[Array, "B N V"]:
    """The logits with -inf for what is forbidden; the very same array if nothing can be.

    Args:
      rules: Minimum length and n-grams that may not repeat.
      logits: Of the next token of each hypothesis.
      tokens: The hypotheses so far, without BOS; what is not before ``step`` is not looked at.
      prefix: Tokens that every hypothesis of a sentence must start with, which nothing else can
        forbid; ``pad_id`` leaves its position free.
      step: Tokens of each hypothesis so far.
    """
    allowed = logits
    if rules.min_length:
        end = jnp.where(step < rules.min_length, -jnp.inf, logits[:, :, rules.eos_id])
        allowed = allowed.at[:, :, rules.eos_id].set(end)
    if rules.no_repeat_ngram:
        repeats = repeating(tokens, step, rules.no_repeat_ngram, logits.shape[2])
        allowed = jnp.where(repeats, -jnp.inf, allowed)
    if prefix.shape[1]:
        token = lax.dynamic_index_in_dim(prefix, step, axis=1)
        forced = (token != rules.pad_id) & (step < prefix.shape[1])
        is_it = token == jnp.arange(logits.shape[2])
        allowed = jnp.where(forced[:, None], jnp.where(is_it[:, None], logits, -jnp.inf), allowed)
    return allowed


def repeating(
    tokens: Int[Array, "B N T"], step: Int[Array, ""], n: int, vocabulary: int
) -> Bool[Array, "B N V"]:
    """The tokens that would make the newest n tokens ones that came in this order before."""
    batch, beams, room = tokens.shape
    windows = max(room - n + 1, 0)
    newest = lax.dynamic_slice_in_dim(tokens, step - n + 1, min(n - 1, room), axis=2)
    # Window i ends with token i + n - 1, which is the newest one at the latest.
    matches = jnp.broadcast_to(jnp.arange(windows) + n - 1 < step, (batch, beams, windows))
    for i in range(n - 1 if windows else 0):
        matches &= tokens[:, :, i : i + windows] == newest[:, :, i : i + 1]
    repeated = jnp.where(matches, tokens[:, :, room - windows :], vocabulary)
    sentence, beam = jnp.ogrid[:batch, :beams]
    nothing = jnp.zeros((batch, beams, vocabulary), jnp.bool_)
    return nothing.at[sentence[:, :, None], beam[:, :, None], repeated].set(True, mode="drop")
