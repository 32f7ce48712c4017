"""Classification of texts with a trained model."""

import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from jaxformer.checks import check_texts, check_tokens
from jaxformer.data.loader import round_up
from jaxformer.data.tokenizer import EOS
from jaxformer.errors import prefix_errors
from jaxformer.inference.weights import Predictor, TrainedModel
from jaxformer.kinds.classification import CLASSIFICATION
from jaxformer.layout import global_mesh
from jaxformer.models.architecture import Architecture
from jaxformer.models.encoder import class_probabilities

# Texts are padded to multiples of this length and processed in batches of this size.
_LENGTH_STEP = 16
_BATCH_SIZE = 64


class Label(NamedTuple):
    """The most probable label of a text."""

    label: str
    probability: float


class Classifier(Predictor):
    """Labels texts with the model of a workdir.

    >>> classifier = Classifier.load("runs/sst2")  # doctest: +SKIP
    >>> classifier.classify(["a stirring film"])  # doctest: +SKIP
    [Label(label='1', probability=0.97)]

    Attributes:
      config: The config of the run.
      params: Parameters.
      tokenizer: The tokenizer that the model was trained with.
      labels: All labels, in the order of the classes.
      weights: Description of the checkpoint, such as "step 2000".
    """

    kinds = (CLASSIFICATION,)

    @property
    def labels(self) -> list[str]:
        return self.tokenizer.symbols

    def _describe_outputs(self) -> str:
        return f"labels {' '.join(self.labels[:5])}"

    @classmethod
    def load(cls, workdir: str | pathlib.Path, *, weights: str | int = "auto") -> "Classifier":
        """Reads a model from a workdir; arguments and errors as for ``Translator.load``."""
        trained = TrainedModel.load(workdir, weights=weights, dequantized=True, kinds=cls.kinds)
        return cls(
            trained.config,
            trained.params,
            trained.tokenizer,
            trained.weights,
        )

    def classify(
        self,
        texts: Sequence[str],
        *,
        report: Callable[[int], object] = lambda _: None,
    ) -> list[Label]:
        """Returns the label of each text.

        Args:
          texts: Texts; one may be blank.
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

    def token_ids(self, text: str, place: str) -> list[int]:
        """Returns the ids of a text with end-of-sentence; refuses a text that is too long."""
        with prefix_errors(place):
            [ids] = self.tokenizer.encode_batch([text])
        max_length = self.config.model.max_length
        return check_tokens([*ids, EOS], self.tokenizer.vocab_size, place, max_length)

    @global_mesh(None)
    def probabilities(
        self,
        texts: Sequence[str],
        *,
        report: Callable[[int], object] = lambda _: None,
    ) -> Float[np.ndarray, "N C"]:
        """Returns the probability of each label for each text.

        A model with one label gives each text a score, whose sigmoid is returned.
        """
        check_texts(texts, "texts")
        model = self.config.model
        encoded = []
        for number, text in enumerate(texts, start=1):
            encoded.append(self.token_ids(text, f"texts:{number}"))

        result = np.zeros((len(texts), len(self.labels)), np.float32)
        by_length = sorted(range(len(texts)), key=lambda i: len(encoded[i]))
        for start in range(0, len(by_length), _BATCH_SIZE):
            chosen = by_length[start : start + _BATCH_SIZE]
            longest = len(encoded[chosen[-1]])
            length = min(round_up(longest, _LENGTH_STEP), model.max_length)

            # The last batch has rows of padding, so that it needs no other program.
            tokens = np.zeros((_BATCH_SIZE, length), np.int32)
            for row, number in enumerate(chosen):
                ids = encoded[number]
                tokens[row, : len(ids)] = ids

            found = np.asarray(_probabilities(model, self.params, tokens))
            result[chosen] = found[: len(chosen)]
            report(len(chosen))
        return result


@functools.partial(jax.jit, static_argnums=0)
def _probabilities(
    config: Architecture,
    params: PyTree,
    tokens: Int[Array, "B T"],
) -> Float[Array, "B C"]:
    model = CLASSIFICATION.build(config)
    logits: Any = model.apply({"params": params}, tokens)
    return class_probabilities(logits)
