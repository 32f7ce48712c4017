"""Validation while training: loss, perplexity, BLEU and exact matches."""

import operator

import jax
from jax.sharding import Mesh
from jaxtyping import PyTree

from jaxformer.config import Config
from jaxformer.data.loader import load_batches
from jaxformer.evaluation.report import corpus_bleu
from jaxformer.inference.translator import Translator
from jaxformer.training.dataset import Dataset
from jaxformer.training.reporting import loss_means
from jaxformer.training.step import make_eval_step, to_devices


class Validation:
    """Loss and BLEU on the validation part."""

    def __init__(self, config: Config, data: Dataset, mesh: Mesh) -> None:
        """Prepares; programs are compiled at the first use."""
        self._config, self._data, self._mesh = config, data, mesh
        self._eval_step = make_eval_step(config, mesh)

    def __call__(self, params: PyTree) -> dict[str, float]:
        """Loss and perplexity; BLEU and exact match in %, if sentences are set aside for them."""
        plan = self._data.valid_plan
        batches = load_batches(
            self._data.valid,
            plan,
            stop=plan.batches_per_epoch,
            row_multiple=self._mesh.size,
        )
        metrics = [self._eval_step(params, to_devices(self._mesh, batch)) for batch in batches]
        values = loss_means(jax.device_get(metrics))
        if self._data.valid_text:
            sources, references = zip(*self._data.valid_text, strict=True)
            translator = Translator(self._config, params, self._data.tokenizer)
            translations = translator.translate(sources, name="validation")
            values["bleu"] = corpus_bleu(translations, references)
            same = sum(map(operator.eq, translations, references))
            values["exact_match"] = 100 * same / len(references)
        return values
