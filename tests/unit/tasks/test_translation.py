"""Scores of validation: BLEU equals sacreBLEU's, and the log shows the score of each task."""

import dataclasses
from unittest import mock

import jax
import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU

from jaxformer.config import Config, ModelConfig
from jaxformer.data.batch import make_batch
from jaxformer.kinds.model_parameters import make_init
from jaxformer.kinds.translation import TRANSLATION
from jaxformer.runs.writers import Terminal
from jaxformer.tasks.dataset import Dataset
from jaxformer.tasks.parsing.parsing_task import Parsing
from jaxformer.tasks.translation import Translation, TranslationLoss
from jaxformer.training.task import Randomness

REFERENCES = ["我很喜欢吃苹果和香蕉。", "今天天气真好。我们去公园吧。"]
TRANSLATIONS = ["我喜欢吃苹果和香蕉。", "今天天气真好。我们去公园吧。"]


def make_task(task_class, valid=2, **data):
    config = Config()
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, **data))
    dataset = mock.create_autospec(Dataset, instance=True)
    dataset.tokenizer = None
    dataset.valid_text = [("source", reference) for reference in REFERENCES]
    dataset.valid = range(valid)
    return task_class(config, dataset)


def test_consistency_compares_two_passes_with_other_dropout():
    """The passes are rows 2i and 2i + 1 of the dropout; sums are averages over both."""
    model = ModelConfig(
        **{"vocab_size": 11, "d_model": 8, "d_ff": 8, "num_heads": 2, "num_layers": 1},
        dropout_rate=0.3,
    )
    loss = TranslationLoss(model, 0.1, consistency=4.0)
    batch = make_batch([[([5, 6], [7, 8, 9])], [([8, 9, 4], [10])]], (2, 4, 4))
    params = jax.jit(make_init(model, TRANSLATION))(jax.random.key(0))
    key, ids, real = jax.random.key(1), np.array([2, 5]), batch.tgt_segments > 0

    @jax.jit
    def log_probs(row_ids):
        def forward(module, dropout):
            sides = batch.src_segments, batch.tgt_segments
            memory = module.encode(batch.src, sides[0], **dropout)
            features = module.decode(batch.tgt_in, memory, *sides, **dropout)
            return features @ module.output_projection()[0].T

        return jax.nn.log_softmax(loss.apply(params, Randomness(key, row_ids), forward))

    p, q = (np.asarray(log_probs(row_ids))[real] for row_ids in (2 * ids, 2 * ids + 1))
    targets = 0.9 * np.eye(11)[batch.tgt_out[real]] + 0.1 / 11
    entropies = -(targets * (p + q)).sum()
    divergence = (np.exp(p) * (p - q) + np.exp(q) * (q - p)).sum() / 2
    sums = jax.jit(loss)(params, batch, Randomness(key, ids))
    assert float(sums["loss"]) == pytest.approx((entropies + 4 * divergence) / 2, rel=1e-5)
    assert divergence > 0.01
    assert (int(sums["count"]), int(sums["tokens"])) == (6, 13)


def test_chinese_is_scored_as_sacrebleu_does_and_numerals_by_exact_match_alone():
    expected = BLEU(trg_lang="zh").corpus_score(TRANSLATIONS, [REFERENCES]).score
    assert 20 < expected < 100
    for data, scores in (
        ({"target_language": "zh"}, {"bleu": pytest.approx(expected)}),
        ({"corpus": "numerals"}, {"exact_match": 50.0}),
    ):
        assert make_task(Translation, **data).score(TRANSLATIONS) == scores


def test_the_log_shows_the_score_of_the_task(capsys):
    start = "step 10/10  validation: label-smoothed loss 2.000"
    bleu, f1 = "sacreBLEU 31.40 (cased, 13a tokenizer)", {"f1": 81.254, "exact_match": 87.0}
    for task_class, data, score, expected in (
        (Translation, {"corpus": "numerals"}, {"exact_match": 87.0}, "exact 87.0%"),
        (Translation, {}, {"bleu": 31.4}, bleu),
        (Translation, {"valid": 3000}, {"bleu": 31.4}, f"{bleu} of the first 2 of 3,000 sentences"),
        (Parsing, {"corpus": "trees"}, f1, "F1 81.25  exact 87.0%"),
    ):
        terminal = Terminal(0, 10, make_task(task_class, **data).log_formats)
        terminal.write(10, "valid", {"loss": 2.0} | score)
        assert capsys.readouterr().err == f"{start}  {expected}\n"
