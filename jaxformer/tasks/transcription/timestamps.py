"""Timestamps of Whisper: the rules by which it writes them, and the segments that they enclose.

With timestamps, an output is a sequence of segments: the time of its start, its text, the time of
its end. Times are tokens, multiples of 20 milliseconds since the beginning of a window.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, Int, Int32

from jaxformer.data.whisper_tokenizer import STEPS_PER_SECOND, WhisperTokenizer
from jaxformer.nn.log_mel import HOP, SAMPLE_RATE
from jaxformer.search.constraints import SearchContext
from jaxformer.tasks.transcriber import Segment

_FRAMES_PER_SECOND = SAMPLE_RATE // HOP
_FRAMES_PER_STEP = _FRAMES_PER_SECOND // STEPS_PER_SECOND


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class TimestampRules:
    """Forbids tokens by which times would not be in order and in pairs, as in OpenAI's decoder.

    An output begins with a time. After a text and a time, which ends a segment, comes a time, which
    begins the next, or the end. After two times comes a text or the end. No time is less than an
    earlier one, and only the time of a beginning may be equal to the end before it. Tokens that are
    no times are forbidden where all times together are likelier than each of them.

    Attributes:
      steps: Number of the time that each token stands for; -1 for other tokens.
      is_text: Whether each token is of a text.
      never: A token that is always forbidden, the one for no timestamps.
      latest_first: Number of the latest time with which an output may begin.
    """

    steps: Int[Array, " V"] | Int32[np.ndarray, " V"]
    is_text: Bool[Array, " V"] | Bool[np.ndarray, " V"]
    never: Int[Array, ""] | np.int32
    latest_first: Int[Array, ""] | np.int32

    @classmethod
    def of(cls, tokenizer: WhisperTokenizer) -> "TimestampRules":
        """Returns the rules of a model."""
        steps = tokenizer.time_steps
        latest = tokenizer.latest_first_step
        if latest is None:
            latest = steps.max()
        return cls(
            steps=steps,
            is_text=tokenizer.is_text,
            never=np.int32(tokenizer.no_times),
            latest_first=np.int32(latest),
        )

    def __call__(self, logits: Float[Array, "B N V"], context: SearchContext) -> Array:
        step = context.step
        steps = jnp.asarray(self.steps)
        is_time = steps >= 0  # [V]

        # Times of the tokens so far; since they grow, the greatest is the last.
        positions = jnp.arange(context.tokens.shape[2], dtype=jnp.int32)
        written = jnp.where(positions < step, steps[context.tokens], -1)  # [B, N, T]
        last_time = written.max(axis=2)  # [B, N]

        after_time = _at(written, step - 1) >= 0
        after_two = (_at(written, step - 2) >= 0) | (step < 2)
        begins_text = after_time & after_two
        ends_text = after_time & ~after_two
        least = jnp.where(ends_text, last_time, last_time + 1)

        forbidden = is_time & (steps < least[:, :, None])  # [B, N, V]
        forbidden |= begins_text[:, :, None] & is_time
        forbidden |= ends_text[:, :, None] & self.is_text
        cannot_begin = ~is_time | (steps > self.latest_first)
        forbidden |= (step == 0) & cannot_begin
        allowed = jnp.where(forbidden, -jnp.inf, logits)
        allowed = allowed.at[:, :, self.never].set(-jnp.inf)

        of_times = jnp.where(is_time, allowed, -jnp.inf)
        of_others = jnp.where(is_time, -jnp.inf, allowed)
        time_is_likelier = jax.nn.logsumexp(of_times, axis=2) > of_others.max(axis=2)
        return jnp.where(time_is_likelier[:, :, None], of_times, allowed)


def _at(values: Int[Array, "B N T"], position: Int[Array, ""]) -> Int[Array, "B N"]:
    """Returns the values of a position, and any of a negative one."""
    return lax.dynamic_index_in_dim(values, position, axis=2, keepdims=False)


class TimedTokens(NamedTuple):
    """Tokens of a segment, and its times in steps of 20 milliseconds since a window began."""

    start: int
    end: int
    tokens: list[int]


class WindowSegments(NamedTuple):
    """Segments that a model found in a window, and the number of frames that are read with it."""

    segments: list[TimedTokens]
    num_frames: int


def read_window(
    tokens: Sequence[int],
    steps: Int32[np.ndarray, " V"],
    num_frames: int,
) -> WindowSegments:
    """Divides an output into segments, as OpenAI's decoder does.

    Two times in a row end a segment and begin the next. What is written after the last two is of a
    segment that the window cuts: the next window begins there instead. Without two times in a row,
    or with a single one at the end, all of the window is read.

    Args:
      tokens: The output for a window, without its end.
      steps: As in :class:`TimestampRules`.
      num_frames: Number of frames of the recording in the window.
    """
    ids = np.asarray(tokens, np.int32)
    written = steps[ids]
    is_time = written >= 0
    ends = np.flatnonzero(is_time[:-1] & is_time[1:]) + 1  # of segments, exclusive

    if not ends.size:
        times = written[is_time]
        # The last time is the end, unless it is the beginning of the window.
        has_end = bool(times.size) and times[-1] > 0
        end = int(times[-1]) if has_end else num_frames // _FRAMES_PER_STEP
        return WindowSegments([TimedTokens(0, end, list(tokens))], num_frames)

    is_complete = is_time[-2:].tolist() == [False, True]
    read = num_frames
    if is_complete:
        ends = np.append(ends, len(ids))
    else:
        read = _FRAMES_PER_STEP * int(written[ends[-1] - 1])

    segments = []
    begin = 0
    for end in ends.tolist():
        segment = TimedTokens(
            start=int(written[begin]),
            end=int(written[end - 1]),
            tokens=ids[begin:end].tolist(),
        )
        segments.append(segment)
        begin = end
    return WindowSegments(segments, read)


@dataclasses.dataclass
class Reading:
    """A recording that a model reads window by window.

    Attributes:
      features: Log-mel spectrogram of the whole recording.
      position: Number of frames that have been read.
      segments: The segments so far.
    """

    features: Float32[np.ndarray, "T M"]
    position: int = 0
    segments: list[Segment] = dataclasses.field(default_factory=list)

    @property
    def is_finished(self) -> bool:
        return self.position >= len(self.features)

    def window(self, num_frames: int) -> Float32[np.ndarray, "F M"]:
        """Returns the features of the next window, padded with zeros as in OpenAI's decoder."""
        own = self.features[self.position : self.position + num_frames]
        return np.pad(own, ((0, num_frames - len(own)), (0, 0)))

    def read(
        self,
        tokens: Sequence[int],
        steps: Int32[np.ndarray, " V"],
        window: int,
        detokenize: Callable[[Sequence[int]], str],
    ) -> None:
        """Adds the segments of the next window that have a text, and goes to the one after it.

        Args:
          tokens: The output for the window, without its end.
          steps: As in :class:`TimestampRules`.
          window: Number of frames of a window.
          detokenize: Returns the text of token ids.
        """
        rest = len(self.features) - self.position
        found = read_window(tokens, steps, min(rest, window))
        begin = self.position / _FRAMES_PER_SECOND
        for start, end, own in found.segments:
            text = detokenize(own)
            if text.strip():
                segment = Segment(
                    start=round(begin + start / STEPS_PER_SECOND, 2),
                    end=round(begin + end / STEPS_PER_SECOND, 2),
                    text=text,
                    tokens=own,
                )
                self.segments.append(segment)

        assert found.num_frames > 0
        self.position += found.num_frames
