"""Quality of translations without each attention head of the model."""

import pathlib
from collections.abc import Callable, Sequence

from jaxtyping import PyTree

from jaxformer.config import DataConfig, data_section
from jaxformer.evaluation.bleu_report import corpus_bleu
from jaxformer.inference.head_masking import MaskedHeads, Quality, mask_heads
from jaxformer.inference.pair_scores import score_pairs
from jaxformer.inference.translator import Translator
from jaxformer.inference.weights import TrainedModel
from jaxformer.search import BeamSearch, Sampling


def mask_translator_heads(
    workdir: str | pathlib.Path,
    pairs: Sequence[tuple[str, str]],
    *,
    weights: str = "auto",
    search: BeamSearch | Sampling | None = None,
    report: Callable[[int], object] = lambda finished: None,
) -> MaskedHeads:
    """Masks each head of a translation model in turn, and measures loss and BLEU.

    Int8 parameters are converted to float32: the rounding of activations would depend on the head.

    Args:
      workdir: Run directory of a translation model.
      pairs: Sentences and their references.
      weights: Checkpoint, as for ``Translator.load``.
      search: Replaces the run's search.
      report: Called with 1 for each head that is done, and for the whole model.

    Raises:
      UserError: The model has no multi-head attention, or a sentence is too long.
    """
    trained = TrainedModel.load(
        workdir,
        weights=weights,
        search=search,
        dequantized=True,
        kinds=Translator.kinds,
    )

    def measure(params: PyTree) -> Quality:
        translator = Translator(trained.config, params, trained.tokenizer)
        return measure_translations(translator, pairs)

    return mask_heads(trained.params, measure, report)


def measure_translations(translator: Translator, pairs: Sequence[tuple[str, str]]) -> Quality:
    """Scores the references, and translates the sentences."""
    encoded = []
    for number, (source, target) in enumerate(pairs, 1):
        source_ids = translator.source_ids(source, f"sentence {number}")
        target_ids = translator.target_ids(target, f"reference {number}")
        encoded.append((source_ids, target_ids))
    scores = score_pairs(translator, encoded)
    tokens = sum(score.length for score in scores)
    loss = -sum(score.log_prob for score in scores) / tokens

    sentences = [source for source, _ in pairs]
    references = [target for _, target in pairs]
    data = data_section(translator.config, DataConfig)
    bleu = corpus_bleu(
        translator.translate(sentences),
        references,
        target_language=data.target_language,
    )
    return Quality(loss, bleu)
