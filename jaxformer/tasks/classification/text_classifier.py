"""Classification of texts with a trained model."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from jaxformer.data.encoded_text import EncodedText
from jaxformer.data.text_pairs import TextOrPair
from jaxformer.inference.encoder_outputs import encoder_outputs
from jaxformer.inference.text_inputs import encode_text, encode_texts
from jaxformer.inference.weights import EncoderPredictor
from jaxformer.kinds.annotated_texts import PAIR_CLASSIFICATION
from jaxformer.kinds.classification import CLASSIFICATION
from jaxformer.models.architecture import Architecture
from jaxformer.models.encoder import class_probabilities


class Label(NamedTuple):
    """The most probable label of a text."""

    label: str
    probability: float


class Classifier(EncoderPredictor):
    """Labels texts with the model of a workdir.

    >>> classifier = Classifier.load("runs/sst2")  # doctest: +SKIP
    >>> classifier.classify(["a stirring film"])  # doctest: +SKIP
    [Label(label='1', probability=0.97)]

    A pair of texts takes the place of a text, ``("A dog runs.", "An animal moves.")``, if the model
    is a BERT.

    Attributes:
      config: The config of the run.
      params: Parameters.
      tokenizer: The tokenizer that the model was trained with.
      labels: All labels, in the order of the classes.
      weights: Description of the checkpoint, such as "step 2000".
    """

    kinds = (CLASSIFICATION, PAIR_CLASSIFICATION)

    @property
    def labels(self) -> list[str]:
        return self.tokenizer.symbols

    def _describe_outputs(self) -> str:
        return f"labels {' '.join(self.labels[:5])}"

    def classify(
        self,
        texts: Sequence[TextOrPair | EncodedText],
        *,
        report: Callable[[int], object] = lambda _: None,
    ) -> list[Label]:
        """Returns the label of each text, or of each pair of texts.

        Args:
          texts: Texts, which may be blank, or pairs of texts, or what :meth:`encode` returns.
          report: Called with the number of texts after each batch.

        Raises:
          UserError: A text is longer than ``model.max_length`` tokens.
        """
        result = []
        for row in self.probabilities(texts, report=report):
            most_probable = row.argmax()
            probability = float(row[most_probable])
            result.append(Label(self.labels[most_probable], probability))
        return result

    def encode(self, text: TextOrPair, place: str) -> EncodedText:
        """Returns the tokens of a text or of a pair of texts, which takes its place in calls.

        Args:
          text: The text or the pair.
          place: Name of the text in errors.

        Raises:
          UserError: It is longer than ``model.max_length`` tokens.
        """
        return encode_text(text, self.tokenizer, self.config.model, place)

    def probabilities(
        self,
        texts: Sequence[TextOrPair | EncodedText],
        *,
        report: Callable[[int], object] = lambda _: None,
    ) -> Float[np.ndarray, "N C"]:
        """Returns the probability of each label for each text, or for each pair of texts.

        A model with one label gives each text a score, whose sigmoid is returned.
        """
        model = self.config.model
        encoded = encode_texts(texts, self.tokenizer, model)
        has_types = any(text.types.any() for text in encoded)
        outputs = encoder_outputs(
            _pair_probabilities if has_types else _text_probabilities,
            model,
            self.params,
            encoded,
            report=report,
        )

        probabilities = np.array(outputs, np.float32)
        return probabilities.reshape(len(texts), len(self.labels))


def _text_probabilities(
    config: Architecture,
    params: PyTree,
    tokens: Int[np.ndarray, "B T"],
    types: Int[np.ndarray, "B T"],
) -> Float[Array, "B C"]:
    """Returns the probabilities of single texts, whose tokens all have type 0."""
    return _probabilities(config, params, tokens)


@functools.partial(jax.jit, static_argnums=0)
def _pair_probabilities(
    config: Architecture,
    params: PyTree,
    tokens: Int[Array, "B T"],
    types: Int[Array, "B T"],
) -> Float[Array, "B C"]:
    model = CLASSIFICATION.build(config)
    logits: Any = model.apply({"params": params}, tokens, token_types=types)
    return class_probabilities(logits)


@functools.partial(jax.jit, static_argnums=0)
def _probabilities(
    config: Architecture,
    params: PyTree,
    tokens: Int[Array, "B T"],
) -> Float[Array, "B C"]:
    model = CLASSIFICATION.build(config)
    logits: Any = model.apply({"params": params}, tokens)
    return class_probabilities(logits)
