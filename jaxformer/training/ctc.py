"""Connectionist temporal classification (Graves et al. 2006): letters without their times."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

BLANK = 0
# The logarithm of a probability of 0, whose sums are finite, and so are their gradients.
_IMPOSSIBLE = -1e30


def ctc_losses(
    logits: Float[Array, "B T V"],
    num_frames: Int[Array, " B"],
    letters: Int[Array, "B U"],
) -> Float[Array, " B"]:
    """Returns -log P(letters) of each row, in nats: the sum over all alignments.

    An alignment gives each frame a letter or a blank, 0. It stands for the letters that remain when
    repeated ones are merged and blanks removed. The sum is computed by dynamic programming over
    2 U + 1 states: blanks, with the letters between them.

    Args:
      logits: Logits of each frame.
      num_frames: Number of frames of each row, the first ones.
      letters: Letters of each row, padded with 0.
    """
    # Optax 0.2.8 has this loss, too, but it cannot be lowered within a shard_map (2026-11-28).
    dtype = jnp.promote_types(logits.dtype, jnp.float32)
    log_probs = jax.nn.log_softmax(logits.astype(dtype))
    batch, frames, _ = logits.shape

    states = 2 * letters.shape[1] + 1
    state = jnp.arange(states)
    blanks = jnp.zeros((batch, states), jnp.int32)
    symbols = blanks.at[:, 1::2].set(letters)  # [B, S]

    # A blank may be left out between different letters.
    padded = jnp.pad(symbols, ((0, 0), (2, 0)))
    two_before = padded[:, :-2]
    is_letter = symbols != BLANK
    may_skip = is_letter & (symbols != two_before)  # [B, S]

    emitted = jnp.take_along_axis(log_probs, symbols[:, None], axis=2)  # [B, T, S]

    def shift(scores: Array, count: int) -> Array:
        before = jnp.pad(scores, ((0, 0), (count, 0)), constant_values=_IMPOSSIBLE)
        return before[:, :-count]

    def advance(scores: Array, frame: tuple[Array, Array]) -> tuple[Array, None]:
        number, own = frame
        # A state is reached from itself, from the one before, and maybe from the one before that.
        skipped = jnp.where(may_skip, shift(scores, 2), _IMPOSSIBLE)
        moved = shift(scores, 1)
        sums = jnp.logaddexp(scores, moved)
        sums = jnp.logaddexp(sums, skipped)

        # Frames of padding change nothing.
        is_real = number < num_frames[:, None]
        return jnp.where(is_real, sums + own, scores), None

    # Before the first frame, an alignment is at the beginning: a letter or a blank may follow.
    is_first = jnp.where(state <= 1, emitted[:, 0], _IMPOSSIBLE)
    nothing = jnp.where(state == 0, 0.0, _IMPOSSIBLE)
    start = jnp.where(num_frames[:, None] > 0, is_first, nothing)

    numbers = jnp.arange(1, frames)
    by_frame = emitted[:, 1:].swapaxes(0, 1)  # [T - 1, B, S]
    later = (numbers, by_frame)
    scores, _ = jax.lax.scan(advance, start, later)

    # An alignment ends with the last letter, or with the blank after it.
    num_letters = (letters != BLANK).sum(axis=1, keepdims=True)
    last_blank = 2 * num_letters
    after = jnp.take_along_axis(scores, last_blank, axis=1)

    last_letter = jnp.maximum(last_blank - 1, 0)
    at_letter = jnp.take_along_axis(scores, last_letter, axis=1)
    at_letter = jnp.where(last_blank > 0, at_letter, _IMPOSSIBLE)
    log_likelihood = jnp.logaddexp(after, at_letter)
    return -log_likelihood[:, 0]
