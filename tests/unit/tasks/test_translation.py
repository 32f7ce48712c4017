"""Scores of validation: BLEU equals sacreBLEU's, and the log shows the score of each task."""

import dataclasses
from unittest import mock

import jax
import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU

from jaxformer.config import Config, ModelConfig
from jaxformer.data.batch import make_batch
from jaxformer.data.tokenizer import EOS
from jaxformer.kinds.model_parameters import make_init
from jaxformer.kinds.translation import TRANSLATION
from jaxformer.runs.writers import Terminal
from jaxformer.tasks.dataset import Dataset
from jaxformer.tasks.parsing.parsing_task import Parsing
from jaxformer.tasks.translation import Translation, TranslationLoss
from jaxformer.training.task import Randomness

REFERENCES = ["我很喜欢吃苹果和香蕉。", "今天天气真好。我们去公园吧。"]
TRANSLATIONS = ["我喜欢吃苹果和香蕉。", "今天天气真好。我们去公园吧。"]


def make_task(task_class, valid=2, origins=(), **data):
    config = Config()
    section = dataclasses.replace(config.data, **data)
    config = dataclasses.replace(config, data=section)

    dataset = mock.create_autospec(Dataset, instance=True)
    dataset.tokenizer = mock.Mock(source_end=EOS)
    dataset.valid_text = [("source", reference) for reference in REFERENCES]
    dataset.valid_origins = origins
    dataset.valid = range(valid)
    return task_class(config, dataset)


def test_consistency_compares_two_passes_with_other_dropout():
    """The passes are rows 2i and 2i + 1 of the dropout; sums are averages over both."""
    model = ModelConfig(
        vocab_size=11,
        d_model=8,
        d_ff=8,
        num_heads=2,
        num_layers=1,
        dropout_rate=0.3,
    )
    loss = TranslationLoss(model, 0.1, consistency=4.0)
    first = ([5, 6], [7, 8, 9])
    second = ([8, 9, 4], [10])
    batch = make_batch([[first], [second]], (2, 4, 4))
    real = batch.tgt_segments > 0
    init = jax.jit(make_init(model, TRANSLATION))
    params = init(jax.random.key(0))
    key = jax.random.key(1)
    ids = np.array([2, 5])

    @jax.jit
    def log_probs(row_ids):
        def forward(module, dropout):
            memory = module.encode(batch.src, batch.src_segments, **dropout)
            features = module.decode(
                batch.tgt_in,
                memory,
                batch.src_segments,
                batch.tgt_segments,
                **dropout,
            )
            embedding, *_ = module.output_projection()
            return features @ embedding.T

        logits = loss.apply(params, Randomness(key, row_ids), forward)
        return jax.nn.log_softmax(logits)

    # The tokens of both sentences and their ends, with smoothed targets.
    p = np.asarray(log_probs(2 * ids))[real]  # [N, V]
    q = np.asarray(log_probs(2 * ids + 1))[real]
    one_hot = np.eye(11)[batch.tgt_out[real]]
    targets = 0.9 * one_hot + 0.1 / 11
    entropies = -(targets * (p + q)).sum()
    p_to_q = (np.exp(p) * (p - q)).sum()
    q_to_p = (np.exp(q) * (q - p)).sum()
    divergence = (p_to_q + q_to_p) / 2
    assert divergence > 0.01

    expected = (entropies + 4 * divergence) / 2
    sums = jax.jit(loss)(params, batch, Randomness(key, ids))
    assert float(sums["loss"]) == pytest.approx(expected, rel=1e-5)
    assert int(sums["count"]) == 6
    assert int(sums["tokens"]) == 13


def test_chinese_is_scored_as_sacrebleu_does():
    expected = BLEU(trg_lang="zh").corpus_score(TRANSLATIONS, [REFERENCES]).score
    assert 20 < expected < 100

    task = make_task(Translation, target_language="zh")
    assert task.score(TRANSLATIONS) == {"bleu": pytest.approx(expected)}


def test_numerals_are_scored_by_exact_match_alone():
    task = make_task(Translation, corpus="numerals")
    assert task.score(TRANSLATIONS) == {"exact_match": 50.0}


def test_each_corpus_of_a_mixture_has_a_score():
    task = make_task(
        Translation, target_language="zh", train="old:1,new{s}:2", origins=["old", "new{s}"]
    )
    scores = task.score(TRANSLATIONS)
    assert list(scores) == ["bleu", "bleu/old", "bleu/new{s}"]

    expected = [
        BLEU(trg_lang="zh").corpus_score([ours], [[reference]]).score
        for ours, reference in zip(TRANSLATIONS, REFERENCES, strict=True)
    ]
    assert [scores["bleu/old"], scores["bleu/new{s}"]] == pytest.approx(expected)
    assert expected[0] < scores["bleu"] < expected[1]
    assert task.log_formats["bleu/new{s}"].format(5.0) == "new{s} 5.00 (1 sentence)"

    numerals = make_task(
        Translation, corpus="numerals", train="old:1,new:2", origins=["old", "new"]
    )
    assert numerals.score(TRANSLATIONS) == {
        "exact_match": 50.0,
        "exact_match/old": 0.0,
        "exact_match/new": 100.0,
    }


SACREBLEU = "sacreBLEU 31.40 (cased, 13a tokenizer)"


@pytest.mark.parametrize(
    ("task_class", "data", "score", "expected"),
    [
        (Translation, {"corpus": "numerals"}, {"exact_match": 87.0}, "exact 87.0%"),
        (Translation, {}, {"bleu": 31.4}, SACREBLEU),
        (
            Translation,
            {"valid": 3000},
            {"bleu": 31.4},
            f"{SACREBLEU} of the first 2 of 3,000 sentences",
        ),
        (
            Translation,
            {"valid": 3000, "train": "old:1,new:2", "origins": ["old", "new"]},
            {"bleu": 31.4, "bleu/old": 2.0, "bleu/new": 3.0},
            f"{SACREBLEU} of 2 of 3,000 sentences  old 2.00 (1 sentence)  new 3.00 (1 sentence)",
        ),
        (
            Parsing,
            {"corpus": "trees"},
            {"f1": 81.254, "exact_match": 87.0},
            "F1 81.25  exact 87.0%",
        ),
    ],
)
def test_the_log_shows_the_score_of_the_task(task_class, data, score, expected, capsys):
    task = make_task(task_class, **data)
    terminal = Terminal(0, 10, task.log_formats)

    terminal.write(10, "valid", {"loss": 2.0} | score)

    start = "step 10/10  validation: label-smoothed loss 2.000"
    assert capsys.readouterr().err == f"{start}  {expected}\n"
