"""Values that the importers of decoders refuse."""

import pytest

from jaxformer.config import read_config
from jaxformer.interop.huggingface.importer import import_huggingface
from jaxformer.runs.workdir import Workdir

from ...integration.families import write_model
from .refusals import change, refused_changes

pytest.importorskip("tokenizers")

GEMMA_CONFIG = [
    ({"model_type": "gemma2"}, "expected model_type to be .*: got 'gemma2'"),
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
OPT_CONFIG = [
    (
        {"_remove_final_layer_norm": True},
        "_remove_final_layer_norm to be False: got True; j",
    ),
    ({"enable_bias": False}, "expected enable_bias to be True: got False"),
    ({"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine to be True: got F"),
    ({"do_layer_norm_before": 1}, "expected do_layer_norm_before to be true or false: got 1"),
    ({"word_embed_proj_dim": 12}, r"decoder.embed_tokens.weight to have shape \(42, 12\): got"),
    ({"max_position_embeddings": 31}, r"embed_positions.weight to have shape \(33, 16\): got"),
    ({"tie_word_embeddings": False}, "expected tie_word_embeddings to be True: got False"),
]
TYPES = "expected attention_types with a type for each of 4 layers, all global, or every n-th local"
GPT_NEO_CONFIG = [
    ({"attention_types": [[["local", "global"], 2]]}, TYPES),
    ({"attention_types": [[["global", "local"], 3]]}, TYPES),
    ({"attention_types": [["global", "local"], 2]}, TYPES),
    ({"attention_types": [[["global", "sparse"], 2]]}, TYPES),
    ({"window_size": 1}, "model.window must be greater than 0: got 0"),
    ({"embed_dropout": 0.5}, "expected embed_dropout to be resid_dropout=0.0: got 0.5; .* GPT2C"),
]
GPTJ_CONFIG = [
    ({"rotary_dim": None}, "expected rotary_dim to be a whole number below 1048576: got None"),
    ({"rotary_dim": 3}, "model.rotary_size must be even, and at most the size of a head, 8: got 3"),
    ({"rotary_dim": 10}, "model.rotary_size must be even, and at most the size of a .*: got 10"),
    ({"rotary": False}, "expected rotary to be True: got False"),
    ({"scale_attn_weights": False}, "expected scale_attn_weights to be True: got False"),
    ({"embd_pdrop": 0.5}, "expected embd_pdrop to be resid_pdrop=0.0: got 0.5"),
]
BLOOM_CONFIG = [
    ({"slow_but_exact": True}, "expected slow_but_exact to be False: got True"),
    ({"apply_residual_connection_post_layernorm": True}, "post_layernorm to be False: got True"),
    ({"n_embed": 18}, "model.num_heads must divide model.d_model=18: got 4"),
]
XGLM_CONFIG = [
    ({"activation_dropout": 0.1}, "expected activation_dropout to be 0.0: got 0.1"),
    ({"add_cross_attention": True}, "expected add_cross_attention to be False: got True"),
    ({"scale_embedding": "yes"}, "expected scale_embedding to be true or false: got 'yes'"),
]


@pytest.mark.parametrize(
    ("model", "cases"),
    [
        ("gemma", GEMMA_CONFIG),
        ("opt", OPT_CONFIG),
        ("gpt_neo", GPT_NEO_CONFIG),
        ("gptj", GPTJ_CONFIG),
        ("bloom", BLOOM_CONFIG),
        ("xglm", XGLM_CONFIG),
    ],
)
def test_other_values_are_refused_by_name(model, cases, tmp_path):
    folder = write_model(model, tmp_path / "model")
    refused_changes(import_huggingface, folder / "config.json", cases)


# Fields of published models that transformers does not read: of opt-125m, gpt-neo-125m, gpt-j-6b,
# bloom-560m and xglm-564M.
PUBLISHED = {
    "opt": {"activation_dropout": 0.0, "layerdrop": 0.0, "prefix": "</s>"},
    "gpt_neo": {
        "attention_layers": ["global"],
        "classifier_dropout": 0.1,
        "gradient_checkpointing": False,
        "summary_type": "cls_index",
        "summary_use_proj": True,
    },
    "gptj": {"rotary": True, "scale_attn_weights": True, "summary_first_dropout": 0.1},
    "bloom": {
        "attention_softmax_in_fp32": True,
        "bias_dropout_fusion": True,
        "masked_softmax_fusion": True,
        "n_embed": 16,
        "n_inner": None,
        "num_attention_heads": 4,
        "offset_alibi": 100,
        "pretraining_tp": 4,
        "skip_bias_add": True,
        "skip_bias_add_qkv": False,
        "unk_token_id": 0,
    },
    "xglm": {"decoder_start_token_id": 2, "init_std": 0.02, "layerdrop": 0.0},
}


@pytest.mark.parametrize("model", PUBLISHED)
def test_fields_of_published_models_are_accepted(model, tmp_path):
    folder = write_model(model, tmp_path / "model")
    import_huggingface(folder, tmp_path / "plain")

    fields = PUBLISHED[model]
    change(folder / "config.json", fields)
    import_huggingface(folder, tmp_path / "run")

    found, expected = [read_config(Workdir(tmp_path / run)) for run in ("run", "plain")]
    assert found == expected
