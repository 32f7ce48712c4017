"""The interface of models that write a text about each picture, for one command."""

import abc
from collections.abc import Callable
from typing import ClassVar

import numpy as np
from jaxtyping import UInt8

from jaxformer.data.image_texts import ImageTexts
from jaxformer.inference.array_predictor import ArrayPredictor
from jaxformer.inference.hypotheses import Hypothesis


class PictureWriter(ArrayPredictor, abc.ABC):
    """A trained model that writes a text about each picture.

    A subclass is in a module of :mod:`jaxformer.tasks`, and names its ``kinds``.

    Attributes:
      abilities: The options of ``jaxformer caption`` that only some models have, without dashes.
    """

    abilities: ClassVar[frozenset[str]]

    @abc.abstractmethod
    def hypotheses(
        self,
        images: UInt8[np.ndarray, "N Y X C"],
        *,
        examples: ImageTexts | None = None,
        n_best: int = 0,
        report: Callable[[int], object] = lambda finished: None,
    ) -> list[list[Hypothesis]]:
        """Returns the hypotheses of every picture, best first, in the order given.

        Args:
          images: Pictures of the size in training.
          examples: Pictures and their texts that the model reads before each picture: a few-shot
            prompt. Only a language model takes it.
          n_best: Number of hypotheses; 0 for all of the search.
          report: Called with the number of pictures in each finished batch.

        Raises:
          UserError: Pictures are not uint8, or of another size than in training; or the model takes
            no examples, or not so many.
        """

    def caption(
        self,
        images: UInt8[np.ndarray, "N Y X C"],
        *,
        examples: ImageTexts | None = None,
        report: Callable[[int], object] = lambda finished: None,
    ) -> list[str]:
        """Returns the best text for each picture; arguments as for :meth:`hypotheses`."""
        found = self.hypotheses(
            images,
            examples=examples,
            n_best=1,
            report=report,
        )
        return best_texts(found)


def best_texts(found: list[list[Hypothesis]]) -> list[str]:
    """Returns the text of the best hypothesis of each picture."""
    texts = []
    for n_best in found:
        # Constraints may leave no hypothesis.
        text = n_best[0].text if n_best else ""
        texts.append(text)
    return texts
