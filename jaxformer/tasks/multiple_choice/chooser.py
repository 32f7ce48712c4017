"""The best of several texts with a trained model."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from jaxformer.inference.encoder_outputs import encoder_outputs
from jaxformer.inference.text_inputs import encode_text
from jaxformer.inference.weights import EncoderPredictor
from jaxformer.kinds.annotated_texts import MULTIPLE_CHOICE
from jaxformer.models.architecture import Architecture


class Chooser(EncoderPredictor):
    """Chooses among texts that may continue a context, with the model of a workdir.

    >>> chooser = Chooser.load("runs/swag")  # doctest: +SKIP
    >>> chooser.probabilities([("A dog runs", ["to its owner.", "a marathon in Greek."])])
    ... # doctest: +SKIP
    [array([0.9, 0.1], dtype=float32)]

    Attributes:
      config: The config of the run.
      params: Parameters.
      tokenizer: The tokenizer that the model was trained with.
      weights: Description of the checkpoint, such as "step 2000".
    """

    kinds = (MULTIPLE_CHOICE,)

    def _describe_outputs(self) -> str:
        return "choices"

    def probabilities(
        self,
        examples: Sequence[tuple[str, Sequence[str]]],
        *,
        report: Callable[[int], object] = lambda _: None,
    ) -> list[Float[np.ndarray, " C"]]:
        """Returns the probability of each choice.

        Args:
          examples: Contexts with their choices, any number of them.
          report: Called with the number of choices after each batch.

        Raises:
          UserError: A context with a choice is longer than ``model.max_length`` tokens.
        """
        model = self.config.model
        texts = []
        for number, (context, choices) in enumerate(examples, start=1):
            place = f"examples:{number}"
            for choice in choices:
                texts.append(encode_text((context, choice), self.tokenizer, model, place))

        outputs = encoder_outputs(_choice_logits, model, self.params, texts, report=report)
        logits = np.array(outputs, np.float32)
        results = []
        start = 0
        for _, choices in examples:
            own = logits[start : start + len(choices)]
            start += len(choices)
            odds = np.exp(own - own.max(initial=-np.inf))
            results.append(odds / odds.sum())
        return results


@functools.partial(jax.jit, static_argnums=0)
def _choice_logits(
    config: Architecture,
    params: PyTree,
    tokens: Int[Array, "B T"],
    types: Int[Array, "B T"],
) -> Float[Array, " B"]:
    """Returns the logit of each text; texts of one example may be in several batches."""
    model = MULTIPLE_CHOICE.build(config)
    logits: Any = model.apply(
        {"params": params},
        tokens[:, None],
        token_types=types[:, None],
        method="choice_logits",
    )
    return logits[:, 0].astype(jnp.float32)
