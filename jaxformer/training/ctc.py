"""Connectionist temporal classification (Graves et al. 2006): letters without their times."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

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

    # The states of each row: blank, letter, blank, ..., letter, blank.
    batch, num_letters = letters.shape
    blanks = jnp.zeros((batch, 2 * num_letters + 1), jnp.int32)
    symbols = blanks.at[:, 1::2].set(letters)  # [B, S]

    scores = _forward_scores(log_probs, num_frames, symbols)
    return -_log_likelihoods(scores, letters)


def _forward_scores(
    log_probs: Float[Array, "B T V"],
    num_frames: Int[Array, " B"],
    symbols: Int[Array, "B S"],
) -> Float[Array, "B S"]:
    """Returns the log probability of all alignments that are in a state after the last frame."""
    may_skip = _may_skip_blank(symbols)
    emitted = jnp.take_along_axis(log_probs, symbols[:, None], axis=2)  # [B, T, S]

    def advance(scores: Array, frame: tuple[Array, Array]) -> tuple[Array, None]:
        number, own = frame
        # A state is reached from itself, from the one before, and maybe from the one before that.
        skipped = jnp.where(may_skip, _shift(scores, 2), _IMPOSSIBLE)
        moved = _shift(scores, 1)
        sums = jnp.logaddexp(scores, moved)
        sums = jnp.logaddexp(sums, skipped)

        # Frames of padding change nothing.
        is_real = number < num_frames[:, None]
        return jnp.where(is_real, sums + own, scores), None

    # The first frame is the blank at the beginning, or the first letter. A row without frames stays
    # at the beginning.
    state = jnp.arange(symbols.shape[1])
    of_first_frame = jnp.where(state <= 1, emitted[:, 0], _IMPOSSIBLE)
    without_frames = jnp.where(state == 0, 0.0, _IMPOSSIBLE)
    start = jnp.where(num_frames[:, None] > 0, of_first_frame, without_frames)

    numbers = jnp.arange(1, log_probs.shape[1])
    by_frame = emitted[:, 1:].swapaxes(0, 1)  # [T - 1, B, S]
    scores, _ = jax.lax.scan(advance, start, (numbers, by_frame))
    return scores


def _may_skip_blank(symbols: Int[Array, "B S"]) -> Bool[Array, "B S"]:
    """Returns True for letters that differ from the one before: no blank need be between them."""
    padded = jnp.pad(symbols, ((0, 0), (2, 0)))
    letter_before = padded[:, :-2]
    is_letter = symbols != BLANK
    return is_letter & (symbols != letter_before)


def _shift(scores: Float[Array, "B S"], count: int) -> Float[Array, "B S"]:
    """Returns the score of the state that is ``count`` before each state."""
    padded = jnp.pad(scores, ((0, 0), (count, 0)), constant_values=_IMPOSSIBLE)
    return padded[:, :-count]


def _log_likelihoods(
    scores: Float[Array, "B S"],
    letters: Int[Array, "B U"],
) -> Float[Array, " B"]:
    """Sums over the ends of alignments: the last letter, or the blank after it."""
    num_letters = (letters != BLANK).sum(axis=1, keepdims=True)
    last_blank = 2 * num_letters
    at_blank = jnp.take_along_axis(scores, last_blank, axis=1)

    last_letter = jnp.maximum(last_blank - 1, 0)
    at_letter = jnp.take_along_axis(scores, last_letter, axis=1)
    at_letter = jnp.where(last_blank > 0, at_letter, _IMPOSSIBLE)
    log_likelihoods = jnp.logaddexp(at_blank, at_letter)
    return log_likelihoods[:, 0]
