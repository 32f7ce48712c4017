"""Trains BERT to predict numbers, as on STS-B."""

import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxformer.config import Config
from jaxformer.data.encoded_text import AnnotatedBatch, AnnotatedText
from jaxformer.data.huggingface_tokenizer import HuggingFaceTokenizer
from jaxformer.data.text_pairs import AnnotatedLine, parse_number, read_scored
from jaxformer.data.tokenizer import PAD
from jaxformer.errors import UserError
from jaxformer.evaluation.correlations import correlations
from jaxformer.inference.text_inputs import encode_text
from jaxformer.kinds.annotated_texts import REGRESSION
from jaxformer.nn.precision import at_least_float32
from jaxformer.tasks.annotated_task import AnnotatedTask
from jaxformer.tasks.regression.regressor import Regressor
from jaxformer.tasks.token_task import NetworkLoss
from jaxformer.training.task import Randomness, Sums


class SquaredError(NetworkLoss):
    """Sums the squared error over texts."""

    def __call__(
        self,
        params: PyTree,
        batch: AnnotatedBatch,
        randomness: Randomness | None,
    ) -> Sums:
        def forward(module: Any, dropout: dict[str, Any]) -> Float[Array, " B"]:
            return module.scores(batch.tokens, token_types=batch.types, **dropout)

        scores = self.apply(params, randomness, forward)
        scores = scores.astype(at_least_float32(scores))
        is_token = batch.tokens != PAD  # [B, T]
        is_real = is_token.any(axis=1)  # [B]
        squared_errors = jnp.square(scores - batch.targets)
        return {
            "loss": jnp.where(is_real, squared_errors, 0).sum(),
            "count": is_real.sum(dtype=jnp.int32),
            "tokens": is_token.sum(dtype=jnp.int32),
        }


class Regression(AnnotatedTask):
    """Trains BERT on texts with numbers; validates with the squared error and correlations."""

    kind = REGRESSION
    loss_class = SquaredError
    noun = "texts"

    @staticmethod
    def check_model(model: Any) -> None:
        if "score" not in model.heads:
            raise UserError(
                f"data.corpus=scored needs score among model.heads: got {model.heads!r}; give "
                '--config.model.heads="pooler score" --config.model.num_classes=0'
            )

    @staticmethod
    def read_file(path: pathlib.Path) -> Iterable[AnnotatedLine]:
        return read_scored(path)

    @staticmethod
    def encode(
        config: Config,
        tokenizer: HuggingFaceTokenizer,
        example: AnnotatedLine,
        number: int,
    ) -> list[AnnotatedText]:
        text = encode_text(example.text, tokenizer, config.model, example.place, is_limited=False)
        return [AnnotatedText(text, parse_number(example), number)]

    @staticmethod
    def empty_targets(num_rows: int, length: int) -> np.ndarray:
        return np.zeros(num_rows, np.float32)

    @staticmethod
    def sides(example: AnnotatedLine) -> list[tuple[str, str]]:
        texts = [("text", text) for text in example.texts()]
        return [*texts, ("number", example.label)]

    @staticmethod
    def _log_formats(scored: int) -> dict[str, str]:
        return {
            "loss": "squared error {:.4f}",
            "pearson": "Pearson {:.4f}",
            "spearman": "Spearman {:.4f}",
        }

    def score(
        self,
        params: PyTree,
        examples: Sequence[AnnotatedLine],
        report: Callable[[int], object],
    ) -> dict[str, float]:
        regressor = Regressor(self.config, params, self.tokenizer)
        found = regressor.predict([line.text for line in examples], report=report)
        expected = [parse_number(line) for line in examples]
        return correlations(found.tolist(), expected)._asdict()
