"""Quality of labels of texts without each attention head of the model."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int, PyTree

from jaxformer.data.text_pairs import TextOrPair
from jaxformer.errors import UserError
from jaxformer.inference.head_masking import MaskedHeads, Quality, mask_heads
from jaxformer.tasks.classification.text_classifier import Classifier


def mask_classifier_heads(
    classifier: Classifier,
    texts: Sequence[TextOrPair],
    labels: Sequence[str],
    *,
    report: Callable[[int], object] = lambda finished: None,
) -> MaskedHeads:
    """Masks each head of a classifier in turn, and measures loss and accuracy.

    Args:
      classifier: The model.
      texts: Texts, or pairs of texts.
      labels: The label of each text, one of the classifier's.
      report: Called with 1 for each head that is done, and for the whole model.

    Raises:
      UserError: The model has no multi-head attention, or only one label, so that no label can be
        wrong, or a text is too long.
    """
    known = classifier.labels
    if len(known) < 2:
        raise UserError(
            f"expected a classifier of at least two labels, got one of {len(known)}, whose labels "
            "are right with any parameters"
        )

    encoded = [classifier.encode(text, f"text {i}") for i, text in enumerate(texts, start=1)]
    classes = np.array([known.index(label) for label in labels])

    def measure(params: PyTree) -> Quality:
        masked = Classifier(classifier.config, params, classifier.tokenizer)
        return measure_labels(masked.probabilities(encoded), classes)

    return mask_heads(classifier.params, measure, report)


def measure_labels(
    probabilities: Float[np.ndarray, "N C"],
    classes: Int[np.ndarray, " N"],
) -> Quality:
    """Returns the loss and the accuracy of the probabilities of each class, given the true ones."""
    of_true = probabilities[np.arange(len(classes)), classes]

    # A probability of 0 is one that float32 does not hold; its logarithm would be infinite.
    least = np.finfo(np.float32).tiny
    loss = -np.log(np.maximum(of_true, least), dtype=np.float64).mean()
    is_right = probabilities.argmax(axis=1) == classes
    return Quality(float(loss), 100 * float(is_right.mean()))
