"""Numbers for texts with a trained model."""

import functools
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from jaxformer.data.text_pairs import TextOrPair
from jaxformer.inference.encoder_outputs import encoder_outputs, method_outputs
from jaxformer.inference.text_inputs import encode_text, encode_texts
from jaxformer.inference.weights import EncoderPredictor
from jaxformer.kinds.annotated_texts import REGRESSION


class Regressor(EncoderPredictor):
    """Predicts numbers for texts, or for pairs of texts, with the model of a workdir.

    >>> regressor = Regressor.load("runs/stsb")  # doctest: +SKIP
    >>> regressor.predict([("A dog runs.", "A dog is running.")])  # doctest: +SKIP
    array([4.8], dtype=float32)

    Attributes:
      config: The config of the run.
      params: Parameters.
      tokenizer: The tokenizer that the model was trained with.
      weights: Description of the checkpoint, such as "step 2000".
    """

    kinds = (REGRESSION,)

    def _describe_outputs(self) -> str:
        return "numbers"

    def predict(
        self,
        texts: Sequence[TextOrPair],
        *,
        report: Callable[[int], object] = lambda _: None,
    ) -> Float[np.ndarray, " N"]:
        """Returns a number for each text, or for each pair of texts.

        Args:
          texts: Texts, or pairs of texts, as the model was trained on.
          report: Called with the number of texts after each batch.

        Raises:
          UserError: A text is longer than ``model.max_length`` tokens.
        """
        model = self.config.model
        outputs = encoder_outputs(
            functools.partial(method_outputs, REGRESSION, "scores"),
            model,
            self.params,
            encode_texts(texts, self.tokenizer, model),
            report=report,
        )
        return np.array(outputs, np.float32)

    def check(self, text: TextOrPair, place: str) -> None:
        """Refuses a text that is too long."""
        encode_text(text, self.tokenizer, self.config.model, place)
