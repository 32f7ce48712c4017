"""Scores of validation: BLEU equals sacreBLEU's, and the log shows the score of each task."""

import dataclasses
from unittest import mock

import pytest
from sacrebleu.metrics.bleu import BLEU

from jaxformer.config import Config
from jaxformer.runs.writers import Terminal
from jaxformer.tasks.dataset import Dataset
from jaxformer.tasks.parsing.task import Parsing
from jaxformer.tasks.translation import Translation

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
    f1 = {"f1": 81.254, "exact_match": 87.0}
    for task_class, data, score, expected in (
        (Translation, {"corpus": "numerals"}, {"exact_match": 87.0}, "exact 87.0%"),
        (Translation, {}, {"bleu": 31.4}, "sacreBLEU 31.40 (cased, 13a tokenizer)"),
        (
            Translation,
            {"valid": 3000},
            {"bleu": 31.4},
            "sacreBLEU 31.40 (cased, 13a tokenizer) of the first 2 of 3,000 sentences",
        ),
        (Parsing, {"corpus": "trees"}, f1, "F1 81.25  exact 87.0%"),
    ):
        terminal = Terminal(0, 10, make_task(task_class, **data).log_formats)
        terminal.write(10, "valid", {"loss": 2.0} | score)
        assert capsys.readouterr().err == f"{start}  {expected}\n"
