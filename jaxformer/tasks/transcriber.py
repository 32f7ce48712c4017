"""The interface of models that transcribe recordings, for one command."""

import abc
from collections.abc import Callable, Sequence
from typing import ClassVar

from jaxformer.data.sound import Sound
from jaxformer.kinds.kind import Kind


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
