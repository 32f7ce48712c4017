"""Vectors of texts, which are near each other for texts of similar meaning."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from jaxformer.checks import check_texts
from jaxformer.data.tokenizer import PAD
from jaxformer.errors import UserError
from jaxformer.inference.encoder_outputs import encoder_outputs
from jaxformer.inference.text_inputs import encode_text, encode_texts
from jaxformer.inference.weights import Predictor, TrainedModel
from jaxformer.kinds.kind import Kind
from jaxformer.kinds.selection import encoder_kinds
from jaxformer.models.architecture import Architecture
from jaxformer.models.bert import BertConfig, Pooling
from jaxformer.nn.precision import at_least_float32


class Embedder(Predictor):
    """Embeds texts with an encoder of any use, such as a sentence-transformer that is imported.

    >>> embedder = Embedder.load("runs/minilm")  # doctest: +SKIP
    >>> embedder.embed(["A dog runs.", "A cat sleeps."]).shape  # doctest: +SKIP
    (2, 384)

    Attributes:
      config: The config of the run.
      params: Parameters.
      tokenizer: The tokenizer that the model was trained with.
      weights: Description of the checkpoint, such as "step 2000".
    """

    kinds = encoder_kinds()

    @property
    def pooling_mode(self) -> str:
        """The pooling: "mean", "cls" or "max"; see :class:`~jaxformer.BertConfig`."""
        return getattr(self.config.model, "pooling", "mean")

    @property
    def is_normalized(self) -> bool:
        """True if embeddings have length 1."""
        return getattr(self.config.model, "normalized", False)

    def _describe_outputs(self) -> str:
        return f"{self.config.model.d_model} numbers, {self.pooling_mode}"

    @classmethod
    def load(
        cls,
        workdir: str | pathlib.Path,
        *,
        weights: str | int = "auto",
        pooling: Pooling | None = None,
        normalized: bool | None = None,
    ) -> "Embedder":
        """Reads a model from a workdir; arguments and errors as for ``Translator.load``.

        ``pooling`` and ``normalized`` are the model's by default, which the import of a
        sentence-transformer takes from its files.
        """
        trained = TrainedModel.load(workdir, weights=weights, dequantized=True, kinds=cls.kinds)
        given: dict[str, Any] = {}
        if pooling is not None:
            given["pooling"] = pooling
        if normalized is not None:
            given["normalized"] = normalized

        model = trained.config.model
        if given and not isinstance(model, BertConfig):
            raise UserError(
                f"expected the mean of the features of a {type(model).__name__}, not normalized, "
                f"got {', '.join(given)}; leave it out"
            )
        config = dataclasses.replace(trained.config, model=dataclasses.replace(model, **given))
        return cls(
            config,
            trained.params,
            trained.tokenizer,
            trained.weights,
        )

    def embed(
        self,
        texts: Sequence[str],
        *,
        report: Callable[[int], object] = lambda _: None,
    ) -> Float[np.ndarray, "N D"]:
        """Returns the embedding of each text.

        Args:
          texts: Texts.
          report: Called with the number of texts after each batch.

        Raises:
          UserError: A text is longer than ``model.max_length`` tokens.
        """
        model = self.config.model
        outputs = encoder_outputs(
            functools.partial(_embeddings, self.config.kind, self.pooling_mode, self.is_normalized),
            model,
            self.params,
            encode_texts(check_texts(texts, "texts"), self.tokenizer, model),
            report=report,
        )
        return np.array(outputs, np.float32).reshape(len(texts), model.d_model)

    def similarities(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        report: Callable[[int], object] = lambda _: None,
    ) -> Float[np.ndarray, " N"]:
        """Returns the cosine of the embeddings of each pair of texts, from -1 to 1."""
        texts = [text for pair in pairs for text in pair]
        vectors = self.embed(texts, report=report).reshape(len(pairs), 2, -1)
        lengths = np.linalg.norm(vectors, axis=2).prod(axis=1)  # [N]
        return np.einsum("nd,nd->n", vectors[:, 0], vectors[:, 1]) / lengths

    def check(self, text: str, place: str) -> None:
        """Refuses a text that is too long."""
        encode_text(text, self.tokenizer, self.config.model, place)


def _mean(features: Float[Array, "B T D"], is_token: Array) -> Float[Array, "B D"]:
    counts = jnp.maximum(is_token.sum(axis=1), 1)
    return jnp.where(is_token, features, 0).sum(axis=1) / counts


def _take_first(features: Float[Array, "B T D"], is_token: Array) -> Float[Array, "B D"]:
    return features[:, 0]


def _max(features: Float[Array, "B T D"], is_token: Array) -> Float[Array, "B D"]:
    return jnp.where(is_token, features, -jnp.inf).max(axis=1)


_POOLING: dict[str, Callable[..., Array]] = {"mean": _mean, "cls": _take_first, "max": _max}


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _embeddings(
    kind: Kind,
    pooling: str,
    normalized: bool,
    config: Architecture,
    params: PyTree,
    tokens: Int[Array, "B T"],
    types: Int[Array, "B T"],
) -> Float[Array, "B D"]:
    """Returns the embeddings of single texts, whose tokens all have type 0."""
    model = kind.build(config)
    features: Any = model.apply({"params": params}, tokens, method="features")
    features = features.astype(at_least_float32(features))

    is_token = (tokens != PAD)[..., None]  # [B, T, 1]
    vectors = _POOLING[pooling](features, is_token)
    if not normalized:
        return vectors
    lengths = jnp.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / jnp.maximum(lengths, 1e-12)
