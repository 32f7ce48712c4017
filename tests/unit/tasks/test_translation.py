"""BLEU while training is the figure that sacreBLEU gives for the target language."""

import dataclasses
from unittest import mock

import pytest
from sacrebleu.metrics.bleu import BLEU

from jaxformer.config import Config
from jaxformer.tasks.dataset import Dataset
from jaxformer.tasks.translation import Translation
from jaxformer.training.mesh import make_mesh

REFERENCES = ["我很喜欢吃苹果和香蕉。", "今天天气真好。我们去公园吧。"]
TRANSLATIONS = ["我喜欢吃苹果和香蕉。", "今天天气真好。我们去公园吧。"]


def test_chinese_is_scored_as_sacrebleu_does(monkeypatch):
    config = Config()
    config = dataclasses.replace(
        config, data=dataclasses.replace(config.data, target_language="zh")
    )
    data = mock.create_autospec(Dataset, instance=True)
    data.valid_text = [("source", reference) for reference in REFERENCES]
    monkeypatch.setattr(Translation, "_decode", lambda self, params, mesh, decode: TRANSLATIONS)
    found = Translation(config, data).score_decoded({}, make_mesh(), lambda finished: None)
    expected = BLEU(trg_lang="zh").corpus_score(TRANSLATIONS, [REFERENCES]).score
    assert 20 < expected < 100
    assert found == {"bleu": pytest.approx(expected), "exact_match": 50.0}
