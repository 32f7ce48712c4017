"""The interface of models that transcribe recordings, for one command."""

import abc
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

from jaxformer.data.sound import Sound
from jaxformer.errors import UserError
from jaxformer.kinds.kind import Kind


class Segment(NamedTuple):
    """A part of a recording, and what is said in it.

    Attributes:
      start: Seconds from the beginning of the recording; also ``end``.
      end: See ``start``.
      text: Its text as the model writes it: with the space before it, in languages with spaces.
      tokens: Its token ids, with its times, as the model wrote them.
    """

    start: float
    end: float
    text: str
    tokens: list[int]


class Transcriber(abc.ABC):
    """A trained model that writes down what is said in a recording.

    A subclass in a module of :mod:`jaxformer.tasks` is also a predictor, which names its ``kinds``.
    """

    kinds: ClassVar[tuple[Kind, ...]]

    @abc.abstractmethod
    def transcribe(
        self,
        sounds: Sequence[Sound],
        *,
        language: str | None = None,
        task: str | None = None,
        report: Callable[[int], object] = lambda _: None,
    ) -> list[str]:
        """Returns the text of each recording.

        Args:
          sounds: Recordings, at any rate.
          language: Code of the spoken language, such as "de", for a model of many; None leaves it
            to the model.
          task: For such a model, "transcribe", or "translate" to English.
          report: Called with the number of recordings after each batch.

        Raises:
          UserError: A recording is too short or too long for the model, or the model has no such
            language or task.
        """

    def transcribe_segments(
        self,
        sounds: Sequence[Sound],
        *,
        language: str | None = None,
        task: str | None = None,
        report: Callable[[int], object] = lambda _: None,
    ) -> list[list[Segment]]:
        """Returns the segments of each recording: what is said, and when. Blank ones are left out.

        Arguments and errors are as for :meth:`transcribe`.

        Raises:
          UserError: The model writes no times.
        """
        raise UserError(
            "expected a model that writes times, such as an imported Whisper: got one that writes "
            "texts alone; leave --format out"
        )
