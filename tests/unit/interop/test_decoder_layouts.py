"""Values that the importers of decoders refuse."""

import pytest

from jaxformer.interop.huggingface.importer import import_huggingface

from ...integration.families import write_model
from .refusals import refused_changes

pytest.importorskip("tokenizers")

GEMMA_CONFIG = [
    ({"model_type": "gemma2"}, "expected model_type to be bert or .*: got 'gemma2'"),
    (
        {"hidden_act": "silu"},
        "hidden_act to be gelu or gelu_pytorch_tanh: got 'silu'; .* Gemma has",
    ),
    (
        {"hidden_activation": "gelu"},
        "expected hidden_activation to be gelu_pytorch_tanh: got 'gelu'",
    ),
    ({"attn_logit_softcapping": 50.0}, "jaxformer does not know attn_logit_softcapping=50.0"),
    ({"use_bidirectional_attention": True}, "does not know use_bidirectional_attention=True"),
]


@pytest.mark.parametrize(
    ("model", "cases"),
    [
        ("gemma", GEMMA_CONFIG),
    ],
)
def test_other_values_are_refused_by_name(model, cases, tmp_path):
    folder = write_model(model, tmp_path / "model")
    refused_changes(import_huggingface, folder / "config.json", cases)
