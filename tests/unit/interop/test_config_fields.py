"""Fields of config.json that name no architecture, as the files of well-known models have them."""

import pytest

from jaxformer.interop.config_fields import is_search_setting, names_no_architecture

# Of the files on the Hub, without the fields of the architecture.
METADATA = {
    "gpt2": {
        "n_ctx": 1024,
        "summary_activation": None,
        "summary_first_dropout": 0.1,
        "summary_proj_to_labels": True,
        "summary_type": "cls_index",
        "summary_use_proj": True,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    },
    "gpt2-medium": {"n_special": 0, "predict_special_tokens": True},
    "distilgpt2": {"_num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}},
    "bert-base-uncased": {"gradient_checkpointing": False, "use_cache": True},
    "bert-base-multilingual-cased": {"directionality": "bidi"},
    "roberta-base": {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1},
    "roberta-large-mnli": {"_num_labels": 3, "finetuning_task": "mnli", "classifier_dropout": None},
    "distilbert-base-uncased": {
        "qa_dropout": 0.1,
        "seq_classif_dropout": 0.2,
        "tie_weights_": True,
        "sinusoidal_pos_embds": False,
    },
    "electra-small-generator": {
        "generator_size": "0.25",
        "summary_activation": "gelu",
        "summary_last_dropout": 0.1,
        "summary_type": "first",
        "summary_use_proj": True,
    },
    "albert-base-v2": {
        "classifier_dropout_prob": 0.1,
        "down_scale_factor": 1,
        "gap_size": 0,
        "net_structure_type": 0,
        "num_memory_blocks": 0,
    },
    "opt-125m": {
        "_remove_final_layer_norm": False,
        "layerdrop": 0.0,
        "prefix": "</s>",
        "torch_dtype": "float16",
    },
    "gpt-neo-125m": {
        "classifier_dropout": 0.1,
        "initializer_range": 0.02,
        "summary_type": "cls_index",
        "tokenizer_class": "GPT2Tokenizer",
    },
    "gpt-j-6b": {
        "gradient_checkpointing": False,
        "summary_first_dropout": 0.1,
        "task_specific_params": {"text-generation": {"temperature": 1.0}},
        "transformers_version": "4.18.0.dev0",
    },
    "bloom-560m": {
        "attention_softmax_in_fp32": True,
        "bias_dropout_fusion": True,
        "masked_softmax_fusion": True,
        "offset_alibi": 100,
        "pretraining_tp": 1,
        "seq_length": 2048,
        "skip_bias_add": True,
        "skip_bias_add_qkv": False,
        "slow_but_exact": False,
        "unk_token_id": 0,
    },
    "xglm-564M": {"decoder_start_token_id": 2, "init_std": 0.02, "layerdrop": 0.0},
    "bart-large-cnn": {
        "_num_labels": 3,
        "add_bias_logits": False,
        "classif_dropout": 0.0,
        "decoder_layerdrop": 0.0,
        "early_stopping": True,
        "encoder_layerdrop": 0.0,
        "force_bos_token_to_be_generated": True,
        "forced_bos_token_id": 0,
        "forced_eos_token_id": 2,
        "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"},
        "length_penalty": 2.0,
        "max_length": 142,
        "min_length": 56,
        "no_repeat_ngram_size": 3,
        "num_beams": 4,
        "output_past": True,
        "prefix": " ",
        "task_specific_params": {"summarization": {"num_beams": 4}},
    },
    "distilbart-cnn-12-6": {
        "replacing_rate": 0,
        "student_decoder_layers": None,
        "student_encoder_layers": None,
    },
    "mbart-large-50": {
        "_name_or_path": "/home/suraj/projects/mbart-50/hf_models/mbart-50-large",
        "tokenizer_class": "MBart50Tokenizer",
        "forced_eos_token_id": 2,
    },
    "pegasus-xsum": {
        "length_penalty": 0.6,
        "num_beams": 8,
        "task_specific_params": {"summarization_xsum": {"length_penalty": 0.8}},
    },
    "blenderbot-400M-distill": {
        "encoder_no_repeat_ngram_size": 3,
        "extra_layer_norm": False,
        "min_length": 20,
        "unk_token_id": 3,
    },
    "llama-3.2-1b": {"eos_token_id": [128001, 128008], "pretraining_tp": 1, "use_cache": True},
    "gemma-2b": {"initializer_range": 0.02, "torch_dtype": "bfloat16", "use_cache": True},
    "transformers 2.2": {"eos_token_ids": [50256], "do_sample": False, "top_k": 50},
}


@pytest.mark.parametrize("model", METADATA)
def test_metadata_names_no_architecture(model):
    refused = []
    for name, value in METADATA[model].items():
        if not names_no_architecture(name, value):
            refused.append(name)
    assert refused == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("_remove_final_layer_norm", True),  # of opt-350m
        ("apply_residual_connection_post_layernorm", True),
        ("attention_types", [[["global", "local"], 12]]),
        ("position_embedding_type", "relative_key"),
        ("quantization_config", {"bits": 4}),
        ("rope_scaling", {"factor": 8.0}),
        ("sinusoidal_pos_embds", True),
        ("tie_encoder_decoder", True),
    ],
)
def test_an_unknown_architecture_is_no_metadata(name, value):
    assert not names_no_architecture(name, value)


def test_search_settings_of_2020_are_known():
    assert is_search_setting("force_bos_token_to_be_generated")
    assert not is_search_setting("output_past")
