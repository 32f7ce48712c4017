"""Labels of a classifier of texts over HTTP."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response

from jaxformer.data.encoded_text import EncodedText
from jaxformer.errors import UserError
from jaxformer.serving.body import Fields
from jaxformer.serving.limits import Limits
from jaxformer.serving.server import Service, Submit, make_server

_FIELD = "q"
_DIGITS = 6  # of a probability
_PAGE = """The classifier {name}, whose labels are {labels}:

curl ADDRESS/classify -d q="a stirring film"
"""


class Classifier(Protocol):
    """A model that labels texts, such as :class:`jaxformer.Classifier`."""

    @property
    def labels(self) -> list[str]: ...

    def encode(self, text: str, place: str) -> EncodedText:
        """Returns the tokens of a text; refuses one that is too long with a ``UserError``."""
        ...

    def probabilities(self, texts: Sequence[EncodedText]) -> Float[np.ndarray, "N C"]:
        """Returns the probability of each label for each text."""
        ...


def make_labels(classifier: Classifier, name: str, limits: Limits) -> Starlette:
    """Returns an ASGI application that labels texts, for one event loop."""

    async def classify(
        fields: Fields,
        submit: Submit[EncodedText, Float[np.ndarray, " C"]],
    ) -> Any:
        texts, is_list = parse_texts(fields, limits)
        # A text that is too long is the error of its own request.
        encoded = [classifier.encode(text, _FIELD) for text in texts]
        answers = [_answer(classifier.labels, row) for row in await submit(encoded)]
        return answers if is_list else answers[0]

    service = Service(
        compute=lambda texts: list(classifier.probabilities(texts)),
        posts={"/classify": classify},
        gets={"/labels": classifier.labels},
        page=lambda: _page(name, classifier.labels),
        error=lambda message, status: {"error": message},
        failure="Cannot label text",
    )
    return make_server(service, limits)


def parse_texts(fields: Fields, limits: Limits) -> tuple[list[str], bool]:
    """Returns the texts of a request, and whether they were a list; raises a ``UserError``."""
    values = []
    for name, value in fields:
        if name != _FIELD:
            raise UserError(f"unknown parameter {name:.20}; known: {_FIELD}")
        values.append(value)
    if len(values) != 1:
        raise UserError(f"expected one parameter {_FIELD}: got {len(values)}")

    [value] = values
    is_list = isinstance(value, list)
    texts = value if is_list else [value]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{_FIELD} must be a string or a list of strings")
    if len(texts) > limits.batch_limit:
        raise UserError(f"{_FIELD}: expected at most {limits.batch_limit} texts: got {len(texts)}")
    longest = max(map(len, texts))
    if longest > limits.char_limit:
        raise UserError(
            f"{_FIELD}: expected at most {limits.char_limit} characters in a text: got {longest}"
        )
    return texts, is_list


def _answer(labels: Sequence[str], row: Float[np.ndarray, " C"]) -> dict[str, Any]:
    """Returns the most probable label, and the probabilities of all."""
    probabilities = [round(float(each), _DIGITS) for each in row]
    best = int(row.argmax())
    return {
        "label": labels[best],
        "probability": probabilities[best],
        "probabilities": dict(zip(labels, probabilities, strict=True)),
    }


def _page(name: str, labels: Sequence[str]) -> Response:
    return PlainTextResponse(_PAGE.format(name=name, labels=", ".join(labels)))
