"""Error messages of the import; tests/integration covers valid models."""

import dataclasses
import functools
import json
import pathlib
import shutil
import sys
import types

import numpy as np
import pytest
import safetensors.numpy

from jaxformer.config import read_config
from jaxformer.data.huggingface_tokenizer import HuggingFaceTokenizer
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.errors import UserError
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop.export import export_model
from jaxformer.interop.generate_settings import SEARCH
from jaxformer.interop.huggingface.exporter import can_write, write
from jaxformer.interop.huggingface.foreign_layout import ANY
from jaxformer.interop.huggingface.importer import (
    import_huggingface,
    known_layouts,
    read_tokenizer_files,
)
from jaxformer.interop.json_fields import JsonFields
from jaxformer.runs.workdir import Workdir

from ...integration.families import write_model
from .refusals import change, refused, refused_changes, refused_files

tokenizers = pytest.importorskip("tokenizers")
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 548105171\n"
FIXTURES = pathlib.Path(__file__).parents[2] / "fixtures" / "huggingface"
INDEX = "model.safetensors.index.json"


def nested(section, **fields):
    """Returns a change of the fields of a nested section of config.json."""
    return lambda values: values[section].update(fields)


ROPE = "expected rope_parameters of rope_type default, linear, llama3, with its own .*: got "
GPT2_CONFIG = [
    ({"model_type": "olmo"}, "expected model_type to be .* or .*: got 'olmo'"),
    ({"model_type": []}, r"expected model_type to be .* or .*: got \[\]"),
    ({"vocab_size": None}, "config.json: expected vocab_size to be a whole number .*: got None"),
    ({"model_type": "marian"}, "a Marian model; give jaxformer import marian"),
    ({"scale_attn_weights": False}, "expected scale_attn_weights to be True: got False"),
    ({"tie_word_embeddings": False}, "expected tie_word_embeddings to be True: got False"),
    ({"activation_function": "gelu_10"}, "activation_function to be gelu or .*: got 'gelu_10'"),
    ({"embd_pdrop": 0.5}, "expected embd_pdrop to be resid_pdrop=0.0: got 0.5; jaxformer's GPT2C"),
    ({"n_head": 3}, "config.json: model.num_heads must divide model.d_model=16: got 3"),
    ({"layer_norm_epsilon": None}, "model.norm_epsilon must be of type float: got None"),
    ({"quantization_config": {"bits": 4}}, "does not know quantization_config={'bits': 4}"),
    ({"pruned_heads": {"0": [1]}}, "does not know pruned_heads={'0': "),
    ({"auto_map": {"AutoModel": "own.Own"}}, "does not know auto_map={'AutoModel': 'own.Own'}"),
    ({"architectures": ["GPT2ForSequenceClassification"]}, "a language model: got GPT2ForSequence"),
    ({"n_special": 3}, "does not know n_special=3"),
    ({"tie_encoder_decoder": True}, "does not know tie_encoder_decoder=True"),
    ({"per_layer_config": {"0": {"n_head": 1}}}, "does not know per_layer_config="),
    ({"eos_token_id": [1, "2"]}, r"expected eos_token_id to be a whole number.*: got \[1, '2'\]"),
    ({"eos_token_id": [1, 96]}, "expected eos_token_id below vocab_size=96: got 96"),
    ({"eos_token_id": None}, "tokenizer.json: expected eos_token_id to be an id"),
    ({"bos_token_id": 96}, "tokenizer.json: expected bos_token_id below vocab_size=96: got 96"),
    ({"vocab_size": 90}, "expected token ids below vocab_size=90, .*: got the id"),
]
LLAMA_CONFIG = [
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "expected rope_scaling of rope_type"),
    ({"rope_scaling": {"type": "linear"}}, "expected rope_scaling.factor to be a number: got None"),
    ({"rope_scaling": {"type": "linear", "factor": 0}}, "model.rotary_factor must be greater than"),
    ({"rope_scaling": {"type": ["yarn"]}}, "expected rope_scaling of rope_type"),
    ({"rope_scaling": "linear"}, "expected rope_scaling of rope_type"),
    (
        {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}},
        "rope_parameters.low_freq_factor",
    ),
    ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, ROPE),
    ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, ROPE),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": "x"}}, "rope_theta to be a number"),
    ({"architectures": ["LlamaForSequenceClassification"]}, "a head .*, ForCausalLM: got LlamaFor"),
    ({"sliding_window": 4}, "jaxformer does not know sliding_window=4"),
    ({"attention_bias": 1}, "expected attention_bias to be true or false: got 1"),
]
T5_CONFIG = [
    ({"feed_forward_proj": "mish"}, "expected feed_forward_proj to be gated-.*: got 'mish'"),
    ({"feed_forward_proj": "gated-mish"}, "with or without gated-: got 'gated-mish'"),
    ({"dense_act_fn": "gelu"}, "dense_act_fn to be 'relu': got 'gelu'; jaxformer's feed-f"),
    ({"architectures": ["T5ForTokenClassification"]}, "ForConditionalGeneration: got T5ForToken"),
    ({"is_encoder_decoder": False}, "expected is_encoder_decoder to be True: got False"),
    ({"scale_decoder_outputs": 1}, "expected scale_decoder_outputs to be true or false: got 1"),
    ({"forced_eos_token_id": 5}, "expected forced_eos_token_id to be 1 or left out: got 5"),
    ({"num_beams": "4"}, "expected num_beams to be a whole number below 1048576: got '4'"),
    ({"num_beams": 0}, "search.beam_size must be greater than 0: got 0"),
    ({"early_stopping": "soon"}, "search.early_stop must be .*: got 'soon'"),
    ({"max_length": 9, "min_length": 9}, "search.max_length must exceed min_length=8: got 8"),
]
MISTRAL_CONFIG = [
    ({"sliding_window": 1}, "model.window must be greater than 0: got 0"),
]
QWEN2_CONFIG = [
    ({"use_sliding_window": True}, "expected use_sliding_window to be False: got True"),
    ({"layer_types": ["sliding_attention"] * 2}, "layer_types to be full_attention: got"),
]
QWEN3_CONFIG = [
    *QWEN2_CONFIG,
    ({"mlp_bias": True}, "expected mlp_bias to be False: got True"),
    ({"attention_bias": True}, "expected an array .*q_proj.bias of shape"),
    ({"head_dim": 8}, r"q_proj.weight to have shape \(32, 16\): got \(24, 16\)"),
]
M2M100_CONFIG = [
    ({"decoder_layers": 3}, "expected decoder_layers to be encoder_layers=2: got 3; jaxformer's M"),
    ({"activation_dropout": 0.1}, "expected activation_dropout to be 0.0: got 0.1"),
    ({"vocab_size": 140}, "vocab.json: .* fewer than vocab_size=140 with 100 languages"),
]
BART_CONFIG = [
    (
        {"decoder_ffn_dim": 7},
        "expected decoder_ffn_dim to be encoder_ffn_dim=24: got 7; jaxformer's",
    ),
    (
        {"decoder_attention_heads": 2},
        "decoder_attention_heads to be encoder_attention_heads=4: got",
    ),
    ({"tie_word_embeddings": False}, "expected tie_word_embeddings to be True: got False"),
    ({"is_decoder": True}, "expected is_decoder to be False: got True"),
    ({"architectures": ["BartForQuestionAnswering"]}, "ForConditionalGeneration: got BartForQ"),
    ({"activation_function": "gelu_10"}, "activation_function to be gelu or .*: got 'gelu_10'"),
    ({"encoder_heads": 2}, "does not know encoder_heads=2"),
    ({"max_position_embeddings": 41}, r"embed_positions.weight to have shape \(43, 16\): got \(42"),
]
BERT2BERT_CONFIG = [
    ({"decoder": None}, "expected decoder to be an object with fields of its own: got None"),
    (nested("encoder", model_type="roberta"), "encoder.model_type to be 'bert': got 'roberta'"),
    (nested("decoder", hidden_size=8), "decoder.hidden_size to be encoder.hidden_size=16: got 8"),
    (nested("decoder", vocab_size=9), "decoder.vocab_size to be encoder.vocab_size=96: got 9"),
    (nested("decoder", add_cross_attention=False), "decoder.add_cross_attention to be True: got"),
    (nested("encoder", new_field=1), "jaxformer does not know encoder.new_field=1"),
    ({"tie_encoder_decoder": True}, "jaxformer does not know tie_encoder_decoder=True"),
]
LONGT5_CONFIG = [
    ({"encoder_attention_type": "full"}, "encoder_attention_type to be local or transient-global:"),
    ({"local_radius": 0}, "model.local_radius must be greater than 0: got 0"),
    ({"global_block_size": None}, "expected global_block_size to be a whole number"),
]
BART_GENERATION = [
    ({"forced_bos_token_id": 96}, "forced_bos_token_id below vocab_size=96: got 96"),
    (
        {"forced_bos_token_id": [0]},
        "generation_config.json: expected forced_bos_token_id to be a wh",
    ),
    ({"decoder_start_token_id": "a"}, "generation_config.json: expected decoder_start_token_id to"),
    ({"eos_token_id": [2, 5]}, "expected eos_token_id to be 2 or left out: got .2, 5."),
    ({"num_beams": 4.5}, "expected num_beams to be a whole number below 1048576: got 4.5"),
    ({"max_new_tokens": 9.5}, "max_new_tokens to be a whole number below 1048576: got 9.5"),
]
M2M100_VOCABULARY = [
    ({"<pad>": 7}, "vocab.json: expected ids from 0, of <s>, <pad>, </s>, <unk> and pieces"),
    ({"x": "y"}, "vocab.json: expected ids from 0, of <s>, <pad>, </s>, <unk> and pieces"),
]
M2M100_TOKENIZER = [
    ({"language_codes": "all"}, "expected language_codes to be m2m100: got 'all'"),
    ({"legacy_behaviour": True}, "expected legacy_behaviour to be false: got True"),
]
VIT_CONFIG = [
    ({"architectures": ["ViTForMaskedImageModeling"]}, "ForImageClassification: got ViTForMasked"),
    ({"image_size": [8, "12"]}, "expected width to be a whole number below 1048576: got '12'"),
    ({"problem_type": "multi_label_classification"}, "expected problem_type to be single_label"),
    ({"image_size": [8]}, r"expected height to be a whole number.*: got \[8\]"),
    ({"id2label": {"0": "a"}}, r"expected classifier.weight to have shape \(1, 16\): got \(4, 16"),
]
VIT_PIXELS = [
    ({"image_mean": [0.4, 0.5]}, r"expected image_mean to be 3 numbers, one .*: got \[0.4, 0.5\]"),
    ({"image_std": [0.5, 0.5, "1"]}, r"expected image_std to be 3 numbers, .*: got \[0.5, 0.5, '1"),
    ({"image_std": [0.5, 0.5, 0]}, "model.pixel_std must be greater than 0: got 0.5 0.5 0.0"),
    ({"do_normalize": False}, "expected do_normalize to be True: got False; .* normalized pixels"),
    ({"resample": 1}, "expected resample to be 2, bilinear or 3, bicubic: got 1; jaxformer's exp"),
    (
        {"do_center_crop": True, "crop_size": 224},
        "crop_size to be the size .*, 8 and 12: got \\(22",
    ),
    (
        {"do_center_crop": True, "crop_size": {"height": 8, "width": 12}},
        "expected do_center_crop with a size of shortest_edge, in a BitImageProcessor",
    ),
    ({"do_reduce_labels": True}, "expected do_reduce_labels to be False: got True"),
    ({"do_pad": True}, "does not know do_pad=True"),
    ({"rescale_offset": True}, "does not know rescale_offset=True"),
    ({"image_processor_type": "ConvNextImageProcessor"}, "image_processor_type to be ViT.*: "),
    (
        {"feature_extractor_type": "X"},
        "feature_extractor_type to be ViTFeatureExtractor .*: got 'X'",
    ),
]
NAMES = "expected id2label to name each class: got "
BERT_CONFIG = [
    ({"position_embedding_type": "relative_key"}, "position_embedding_type to be 'absolute': got"),
    ({"problem_type": "regression"}, r"classifier.weight to have shape \(1, 16\): got \(3, 16\)"),
    ({"problem_type": "multi_label_classification"}, "remove problem_type to read the values as"),
    ({"id2label": None}, r"expected classifier.weight to have shape \(2, 16\): got \(3, 16\)"),
    ({"id2label": None, "num_labels": "3"}, "expected num_labels to be a whole number below"),
    ({"architectures": ["BertForMultipleChoice"]}, r"to have shape \(1, 16\): got \(3, 16\)"),
    ({"architectures": ["BertForTableQuestions"]}, "ForMaskedLM, .*: got BertForTableQuestions"),
    (
        {"architectures": "BertForQuestionAnswering"},
        "expected qa_outputs.weight, the head For",
    ),
    ({"classifier_dropout": 1.5}, "model.pooled_dropout_rate must be at least 0 and less than 1"),
    ({"id2label": {"0": "a", "2": "b"}}, NAMES),
    ({"id2label": {"0": "a\n"}}, NAMES),
    ({"id2label": [1]}, NAMES),
    ({"id2label": {"0": "a"}}, r"classifier.weight to have shape \(1, 16\): got \(3, 16\)"),
]
BERT_TOKENIZER = [
    ({"post_processor": None}, "expected a post_processor that adds the first and the last token"),
    (lambda fields: fields["added_tokens"].pop(4), r"expected the special token \[SEP\]"),
]


def without_pooler(arrays):
    del arrays["bert.pooler.dense.weight"]
    del arrays["bert.pooler.dense.bias"]


POOLER = "expected bert.pooler.dense.weight beside classifier.weight, .*; add architectures, such "
BERT_ARRAYS = [
    (without_pooler, POOLER),
]
FC = "transformer.h.1.mlp.c_fc"
GPT2_ARRAYS = [
    (lambda arrays: arrays.pop(f"{FC}.bias"), r"an array h.1.mlp.c_fc.bias of shape \(64,\): none"),
    ({f"{FC}.weight": np.zeros((64, 16), "f4")}, r"c_fc.weight to have shape \(16, 64\): got"),
    ({f"{FC}.bias": np.zeros(64, "i4")}, f"expected {FC}.bias to be of floats: got I32"),
    ({f"{FC}.bias": np.full(64, np.nan, "f4")}, "expected numbers in h.1.mlp.c_fc.bias: got NaN"),
    ({"x.bias": np.zeros(2, "f4")}, "no place for x.bias$"),
    ({"wte.weight": np.zeros((96, 16), "f4")}, "expected each tensor once"),
    ({"lm_head.weight": np.zeros((96, 16), "f4")}, "lm_head.weight to be the same as the embed"),
]
PART = "model-00001-of-00003.safetensors"
INDEX_CASES = [
    ({"weight_map": 1}, "expected weight_map, with the name of a file for each tensor"),
    ({"weight_map": {"x": "../x.safetensors"}}, "expected weight_map, with the name of a file"),
    ({"weight_map": {"x": "x.safetensors"}}, "x.safetensors: cannot be read: No such file"),
    (lambda index: index["weight_map"].pop("model.norm.weight"), "expected model.norm.weight to"),
    (lambda index: index["weight_map"].update(x=PART), f"expected x in {PART}, but it is not"),
]


# Every field that the base class of configurations writes, with its default: transformers 2.11,
# 3.5.1 and 4.30, without the fields of the architecture that it also has.
BASE_FIELDS = {
    "return_dict": True,
    "output_hidden_states": True,
    "output_attentions": True,
    "torchscript": True,
    "use_bfloat16": True,
    "chunk_size_feed_forward": 8,
    "max_length": 20,
    "min_length": 5,
    "do_sample": True,
    "early_stopping": True,
    "num_beams": 4,
    "num_beam_groups": 2,
    "diversity_penalty": 0.5,
    "temperature": 0.7,
    "top_k": 50,
    "top_p": 0.9,
    "typical_p": 1.0,
    "repetition_penalty": 1.2,
    "length_penalty": 1.0,
    "no_repeat_ngram_size": 3,
    "encoder_no_repeat_ngram_size": 3,
    "bad_words_ids": [[1]],
    "num_return_sequences": 1,
    "output_scores": True,
    "return_dict_in_generate": True,
    "forced_bos_token_id": 3,
    "forced_eos_token_id": 3,
    "remove_invalid_values": True,
    "exponential_decay_length_penalty": [5, 1.1],
    "suppress_tokens": [1],
    "begin_suppress_tokens": [1],
    "architectures": ["GPT2LMHeadModel"],
    "finetuning_task": "sst-2",
    "id2label": {"0": "LABEL_0"},
    "label2id": {"LABEL_0": 0},
    "num_labels": 1,
    "problem_type": "regression",
    "tokenizer_class": "GPT2Tokenizer",
    "prefix": "summarize: ",
    "sep_token_id": 3,
    "decoder_start_token_id": 3,
    "task_specific_params": {"text-generation": {"do_sample": True}},
    "xla_device": True,
    "tf_legacy_loss": True,
    "name_or_path": "gpt2",
    "transformers_version": "4.30.0",
    "gradient_checkpointing": True,
    # Older ones, of gpt2-medium, gpt2-xl and distilgpt2 on the Hub.
    "predict_special_tokens": True,
    "n_special": 0,
    "n_ctx": 64,
    "output_past": True,
    "_num_labels": 1,
    "pruned_heads": {},
    "is_decoder": False,
}


def copy_model(model, tmp_path):
    """Returns the folder of a copy of a model, whose files a test may change."""
    return pathlib.Path(shutil.copytree(FIXTURES / model, tmp_path / "model"))


def imported_config(directory, workdir):
    """Imports a model, and returns its config."""
    import_huggingface(directory, workdir)
    return read_config(Workdir(workdir))


def test_fields_that_name_no_architecture_are_accepted(tmp_path):
    directory = copy_model("gpt2", tmp_path)
    change(directory / "config.json", BASE_FIELDS)

    found = imported_config(directory, tmp_path / "run")
    expected = imported_config(FIXTURES / "gpt2", tmp_path / "plain")
    assert found == expected


@pytest.mark.parametrize(
    ("model", "file", "cases"),
    [
        ("gpt2", "config.json", GPT2_CONFIG),
        ("llama_grouped", "config.json", LLAMA_CONFIG),
        ("mistral", "config.json", MISTRAL_CONFIG),
        ("t5", "config.json", T5_CONFIG),
        ("qwen2", "config.json", QWEN2_CONFIG),
        ("qwen3", "config.json", QWEN3_CONFIG),
        ("m2m100", "config.json", M2M100_CONFIG),
        ("m2m100", "vocab.json", M2M100_VOCABULARY),
        ("m2m100", "tokenizer_config.json", M2M100_TOKENIZER),
        ("vit", "config.json", VIT_CONFIG),
        ("vit", "preprocessor_config.json", VIT_PIXELS),
        ("../bert/classifier", "config.json", BERT_CONFIG),
        ("../bert/classifier", "model.safetensors", BERT_ARRAYS),
        ("gpt2", "model.safetensors", GPT2_ARRAYS),
        ("llama_grouped", INDEX, INDEX_CASES),
    ],
)
def test_other_values_are_refused_by_name(model, file, cases, tmp_path):
    directory = copy_model(model, tmp_path)
    languages = ("en", "de") if model == "m2m100" else ()

    import_model = functools.partial(import_huggingface, languages=languages)
    refused_changes(import_model, directory / file, cases)


@pytest.mark.parametrize(
    ("model", "file", "cases"),
    [
        ("bart", "config.json", BART_CONFIG),
        ("bart", "generation_config.json", BART_GENERATION),
        ("bert2bert", "config.json", BERT2BERT_CONFIG),
        ("longt5_blocks", "config.json", LONGT5_CONFIG),
    ],
)
def test_other_values_of_families_are_refused_by_name(model, file, cases, tmp_path):
    directory = write_model(model, tmp_path / "model")
    refused_changes(import_huggingface, directory / file, cases)


def test_bart_without_a_head_is_read(tmp_path):
    """Files of a BartModel have no prefix and no bias; of 2020, other fields."""
    directory = write_model("bart", tmp_path / "model")
    arrays = safetensors.numpy.load_file(directory / "model.safetensors")
    del arrays["final_logits_bias"]
    arrays = {name.removeprefix("model."): array for name, array in arrays.items()}
    arrays["encoder.embed_tokens.weight"] = arrays["shared.weight"]
    safetensors.numpy.save_file(arrays, directory / "model.safetensors")

    old = {
        "normalize_before": False,
        "extra_pos_embeddings": 2,
        "static_position_embeddings": False,
    }
    old |= {"classif_dropout": 0.1, "activation_dropout": 0.1, "architectures": ["BartModel"]}
    change(directory / "config.json", old)

    summary, dropout = import_huggingface(directory, tmp_path / "run").splitlines()
    assert summary.startswith("BartForConditionalGeneration, ")
    assert dropout.endswith(", but not activation_dropout=0.1 within feed-forward networks")
    params = TrainedModel.load(tmp_path / "run").params
    assert not params["logits_bias"].any()


def test_a_tokenizer_that_is_taken_as_it_is_needs_the_special_tokens(tmp_path):
    """BertTokenizer would add them."""
    directory = copy_model("../bert/classifier", tmp_path)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))

    refused_changes(import_huggingface, directory / "tokenizer.json", BERT_TOKENIZER)


def test_missing_and_damaged_files_are_named(tmp_path, monkeypatch):
    directory = copy_model("gpt2", tmp_path)
    cases = [
        ("config.json", None, "config.json: no such file; expected a folder of a model in the Hug"),
        ("tokenizer.json", None, "tokenizer.json: no such file; expected a folder of a model"),
        ("tokenizer.json", POINTER, "tokenizer.json: expected the file itself, found a Git LFS p"),
        ("config.json", POINTER, "config.json: expected the file itself, found a Git LFS pointer"),
        ("model.safetensors", POINTER, "model.safetensors: expected the file itself, found a Git"),
        ("tokenizer.json", b"[]", "tokenizer.json: expected a tokenizer.json: "),
        ("tokenizer.json", b"{}", "tokenizer.json: expected a tokenizer.json: "),
        ("tokenizer.json", b"\xff", "tokenizer.json: .*can't decode byte"),
        ("tokenizer.json", b"[" * 100_000, "tokenizer.json: "),
        ("model.safetensors", b"x", "model.safetensors: expected a safetensors file: "),
        ("model.safetensors", None, "model.safetensors: no such file; expected a folder"),
    ]
    refused_files(import_huggingface, directory, cases)

    monkeypatch.setitem(sys.modules, "tokenizers", None)
    message = r"the package tokenizers, which reads .* pip install '\.\[interop\]'$"
    refused(import_huggingface, directory, message)


def test_old_names_buffers_and_defaults_are_read(tmp_path):
    """Files of earlier versions: no prefix, masks, the tied matrix, and only some fields."""
    directory = copy_model("gpt2", tmp_path)
    arrays = safetensors.numpy.load_file(directory / "model.safetensors")
    arrays = {name.removeprefix("transformer."): array for name, array in arrays.items()}
    arrays["h.0.attn.bias"] = np.ones((1, 1, 64, 64), bool)
    arrays["lm_head.weight"] = arrays["wte.weight"]
    safetensors.numpy.save_file(arrays, directory / "model.safetensors")

    kept = "model_type vocab_size n_embd n_head n_layer n_positions bos_token_id eos_token_id"
    fields = json.loads((directory / "config.json").read_text())
    fields = {name: fields[name] for name in kept.split()}
    fields["n_ctx"] = 64
    (directory / "config.json").write_text(json.dumps(fields))

    summary, dropout = import_huggingface(directory, tmp_path / "run").splitlines()
    assert summary == "GPT2LMHeadModel, 9,200 parameters, 99 tokens"
    assert dropout.startswith("  dropout 0.1 and attention dropout 0.1 in fine-tuning, as in")


def test_older_files_of_t5_are_read(tmp_path):
    """Embeddings three times, a table that is not used, and no fields of transformers 5."""
    directory = copy_model("t5", tmp_path)
    arrays = safetensors.numpy.load_file(directory / "model.safetensors")
    for copy in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"):
        arrays[copy] = arrays["shared.weight"]
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    arrays[unused] = np.ones((8, 3), "f4")
    safetensors.numpy.save_file(arrays, directory / "model.safetensors")

    kept = "model_type vocab_size d_model d_kv d_ff num_layers num_heads eos_token_id"
    kept += " relative_attention_num_buckets relative_attention_max_distance"
    fields = json.loads((directory / "config.json").read_text())
    fields = {name: fields[name] for name in kept.split()}
    fields["n_positions"] = 512
    (directory / "config.json").write_text(json.dumps(fields))

    old = imported_config(directory, tmp_path / "run").model
    again = imported_config(FIXTURES / "t5", tmp_path / "again").model
    assert again == dataclasses.replace(old, num_decoder_layers=2)

    # Version 1.1 says in this field that outputs are not scaled.
    fields["tie_word_embeddings"] = False
    (directory / "config.json").write_text(json.dumps(fields))
    unscaled = imported_config(directory, tmp_path / "unscaled").model
    assert unscaled == dataclasses.replace(old, scaled_output=False)


def test_settings_of_generate_are_read_or_listed(tmp_path):
    directory = copy_model("t5", tmp_path)
    config = directory / "config.json"
    assert imported_config(directory, tmp_path / "run").search == SEARCH

    change(config, {"num_beams": 2, "max_length": 20, "prefix": "summarize: "})
    found = imported_config(directory, tmp_path / "older").search
    expected = dataclasses.replace(SEARCH, beam_size=2, max_length=19, max_extra_length=19)
    assert found == expected

    # If there is a generation_config.json, the other file has no settings.
    settings = {
        "forced_eos_token_id": [1],
        "max_length": 20,
        "max_new_tokens": 5000,
        "do_sample": True,
        "temperature": 0.5,
        "repetition_penalty": 1.0,
        "sequence_bias": [[[5], 1.0]],
        "transformers_version": "5.0.0",
        "new_rule": 1,
        "other": None,
    }
    (directory / "generation_config.json").write_text(json.dumps(settings))
    summary = import_huggingface(directory, tmp_path / "newer")
    assert summary.splitlines()[2:] == ["  not used: do_sample, new_rule, sequence_bias"]
    found = read_config(Workdir(tmp_path / "newer"))
    longest = found.model.max_length
    expected = dataclasses.replace(
        SEARCH, unfinished="end", max_length=longest, max_extra_length=longest
    )
    assert found.search == expected


def test_settings_of_generate_of_a_language_model_are_listed(tmp_path):
    directory = copy_model("llama", tmp_path)
    older = {"do_sample": False, "max_length": 20, "num_beams": 1, "temperature": 1.0, "top_k": 50}
    change(directory / "config.json", older)
    assert "not used" not in import_huggingface(directory, tmp_path / "older")

    # As of LLaMA 3 Instruct.
    settings = {"do_sample": True, "max_length": 4096, "temperature": 0.6, "top_p": 0.9}
    (directory / "generation_config.json").write_text(json.dumps({"use_cache": True, **settings}))
    summary = import_huggingface(directory, tmp_path / "newer")
    assert summary.splitlines()[2:] == ["  not used: do_sample, max_length, temperature, top_p"]


@pytest.mark.parametrize(
    ("model", "fields", "count"),
    [
        ("../bert/classifier", {"id2label": None, "num_labels": 3}, 3),
        ("../bert/classifier", {"id2label": {"0": "a", "1": "b", "2": "a"}, "num_labels": 2}, 3),
        ("vit", {"id2label": {"0": "crane", "1": "tank", "2": "crane", "3": "robin"}}, 4),
    ],
)
def test_labels_are_counted_as_in_transformers(model, fields, count, tmp_path):
    directory = copy_model(model, tmp_path)
    change(directory / "config.json", fields)

    section = imported_config(directory, tmp_path / "run").model
    assert section.num_classes == count


def test_special_tokens_have_our_ids():
    """A token that has two roles is generated in one of them only."""
    text = (FIXTURES / "llama" / "tokenizer.json").read_text()
    special = {"pad": 2, "eos": 2, "bos": 1, "unk": 0}
    tokenizer = HuggingFaceTokenizer.assemble(text, special, 97)

    assert tokenizer.absent == "pad"
    assert tokenizer.their_ids[:6].tolist() == [2, 2, 1, 0, 3, 4]
    assert tokenizer.our_ids[:5].tolist() == [3, 2, 1, 4, 5]

    ids = tokenizer.encode("the cat")
    assert tokenizer.encode_prompt("the cat") == [2, *ids]
    assert tokenizer.encode_prompt("") == [2, *tokenizer.encode("")]
    assert tokenizer.decode([2, *ids, 1, 0]) == " the cat"
    assert [tokenizer.piece(i) for i in (0, 1, 4)] == ["<pad>", "</s>", "<pad>"]

    assert HuggingFaceTokenizer(tokenizer.serialized).sha256 == tokenizer.sha256
    for changes in ({"special": {}}, {"vocab_size": 10**9}, {"special": special | {"eos": "2"}}):
        values = json.loads(tokenizer.serialized) | changes
        with pytest.raises(UserError, match="expected a tokenizer of Hugging Face: "):
            HuggingFaceTokenizer(json.dumps(values).encode())


def test_fine_tuned_biases_of_logits_are_refused(tmp_path):
    """transformers' model has none; they are zero unless training changes them."""
    import_huggingface(FIXTURES / "nllb", tmp_path / "run", ("eng_Latn", "deu_Latn"))
    model = TrainedModel.load(tmp_path / "run")
    assert can_write(model)

    bias = np.array(model.params["logits_bias"])
    assert np.flatnonzero(bias).tolist() == [2]

    params = {**model.params, "logits_bias": bias + 1}
    changed = dataclasses.replace(model, params=params)
    with pytest.raises(UserError, match=r"transformers has no logits_bias, .* training.freeze=log"):
        write(changed, tmp_path)


# Fields that must fit together, of models that a file of each layout can hold.
FITTING = {
    "dinov2": {"layer_scale": 1.0},
    "albert": {"embedding_size": 8, "layer_groups": 1, "pooled_dropout_rate": 0.1},
    "bert": {"num_classes": 0},
    "big_bird": {"pooled_activation": "gelu_exact"},
    "distilbert": {"pooled_activation": "relu", "pooled_dropout_rate": 0.2},
    "electra": {"pooled_activation": "gelu_exact"},
    "longformer": {"window": 4},
    "roformer": {"pooled_activation": "gelu_exact"},
}


@pytest.mark.parametrize("layout", [each for each in known_layouts().values() if each.is_exported])
def test_a_layout_expresses_only_fields_that_it_knows(layout):
    """A field that is new has its default, or the layout cannot express the model."""
    depth = ("depth", int, dataclasses.field(default=0))
    new = dataclasses.make_dataclass(
        "New",
        [depth],
        bases=(layout.section,),
        frozen=True,
        kw_only=True,
    )
    values = {name: allowed[0] for name, allowed in layout.expressed.items() if allowed != ANY}
    values |= FITTING.get(layout.model_type, {})

    layout = dataclasses.replace(layout, section=new)
    assert layout.can_express(new(**values), None)
    assert not layout.can_express(new(**values, depth=8), None)


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("gpt2", {"absent_tokens": "pad"}),
        ("llama", {"window": 4, "attention_biases": True}),
        ("qwen3", {"feed_forward_biases": True}),
        ("t5", {"scaled_output": True}),
        ("vit", {"pooling": "mean"}),
        ("vit", {"num_classes": 0}),
        ("nllb", {"window": 4}),
        ("nllb", {"norm_epsilon": 1e-6}),
    ],
)
def test_other_models_keep_our_own_names(model, changes, tmp_path):
    """With the change, no class of transformers computes the same, or the tokens are others."""
    languages = ("eng_Latn", "deu_Latn") if model == "nllb" else ()
    import_huggingface(FIXTURES / model, tmp_path / "run", languages)
    trained = TrainedModel.load(tmp_path / "run")
    assert can_write(trained)

    section = dataclasses.replace(trained.config.model, **changes)
    config = dataclasses.replace(trained.config, model=section)
    changed = dataclasses.replace(trained, config=config)
    is_expressed = model == "t5"  # by scale_decoder_outputs
    assert can_write(changed) == is_expressed


def test_parameters_that_no_file_has_are_refused(tmp_path):
    import_huggingface(FIXTURES / "gpt2", tmp_path / "run")
    model = TrainedModel.load(tmp_path / "run")
    decoder = {**model.params["decoder"], "scale": 1}
    for name, params in (
        ("adapter", {**model.params, "adapter": np.zeros(3)}),
        ("decoder/scale", {**model.params, "decoder": decoder}),
    ):
        changed = dataclasses.replace(model, params=params)
        with pytest.raises(UserError, match=f"parameters of a GPT2Config, got also {name}, which"):
            write(changed, tmp_path)
        assert not (tmp_path / "model.safetensors").exists()


class Tensor:
    """A tensor of PyTorch, which the tests need not have."""

    def __init__(self, array):
        self.array = array

    def float(self):
        return self

    def numpy(self):
        return self.array


def test_a_pytorch_model_is_read_where_there_is_no_safetensors(tmp_path, monkeypatch):
    directory = copy_model("gpt2", tmp_path)
    tensors = safetensors.numpy.load_file(directory / "model.safetensors")
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    state = {name: Tensor(array) for name, array in tensors.items()}
    pytorch = types.SimpleNamespace(load=lambda *_, **__: {**state, "h.0.attn.bias": "a mask"})
    monkeypatch.setitem(sys.modules, "torch", pytorch)

    assert "9,200 parameters" in import_huggingface(directory, tmp_path / "run")


@pytest.mark.parametrize(
    ("model", "text", "ends"),
    [
        ("gpt2", "a cat<|endoftext|>a dog<|endoftext|>", False),
        ("llama", "<s>a cat</s> a <unk> dog</s>", False),
        ("llama_grouped", "a cat</s>", False),
        ("t5", "a cat</s> a <pad> dog</s>", True),
        ("t5", "</s>", True),
        ("../bert/plain", "a cat [SEP] a [MASK] dog [CLS] [UNK] [SEP]", True),
    ],
)
def test_special_tokens_in_a_text_are_tokens(model, text, ends):
    """A prompt has the ids of the library; only the end that it adds is left to the batch."""
    place = FIXTURES / model / "tokenizer.json"
    library = tokenizers.Tokenizer.from_file(str(place))
    fields = JsonFields(place.with_name("config.json"), {})
    layout = known_layouts()[fields.values["model_type"]]
    fields.values = {**layout.defaults, **fields.values}
    ours = read_tokenizer_files(place, fields, layout, ())
    assert isinstance(ours, HuggingFaceTokenizer)

    expected = library.encode(text).ids
    assert ours.their_ids[ours.encode_prompt(text)].tolist() == expected
    [row] = ours.encode_batch([text])
    assert ours.their_ids[row].tolist() == expected[: -1 if ends else None]


def test_the_end_that_is_typed_after_a_code_is_kept(tmp_path):
    import_huggingface(FIXTURES / "nllb", tmp_path / "run", ("eng_Latn", "deu_Latn"))
    tokenizer = Tokenizer.load(tmp_path / "run" / "tokenizer.model")

    [plain, ended] = tokenizer.encode_batch(["the cat", "the cat</s>"])
    assert ended == [*plain, 1]


def test_a_token_that_only_the_tokenizer_has_is_refused_in_a_text(tmp_path):
    """As [PAD] for GPT-2, which people add without a new embedding."""
    directory = copy_model("gpt2", tmp_path)
    library = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    library.add_special_tokens(["[unused]", "[unused2]", "[PAD]", "[MASK]"])
    assert library.token_to_id("[PAD]") == 96
    library.save(str(directory / "tokenizer.json"))

    import_huggingface(directory, tmp_path / "run")
    tokenizer = Tokenizer.load(tmp_path / "run" / "tokenizer.model")
    assert isinstance(tokenizer, HuggingFaceTokenizer)

    assert tokenizer.their_ids[tokenizer.encode("a [unused2]")][-1] == 95
    with pytest.raises(UserError, match=r"text without \[PAD\], which the tokenizer has but"):
        tokenizer.encode("a [PAD]")
    assert tokenizer.mask_token is None


def test_a_pytorch_model_that_is_a_pointer_is_named(tmp_path):
    directory = copy_model("gpt2", tmp_path)
    (directory / "model.safetensors").unlink()
    (directory / "pytorch_model.bin").write_bytes(POINTER)
    refused(import_huggingface, directory, "pytorch_model.bin: expected the file itself, found a G")


def test_the_padding_token_is_refused_in_a_text():
    """The model would not see it."""
    text = (FIXTURES.parent / "bert" / "plain" / "tokenizer.json").read_text()
    special = {"pad": 0, "eos": 4, "bos": 3, "unk": 2}
    tokenizer = HuggingFaceTokenizer.assemble(text, special, 64, ["good"])

    message = r"expected a text without \[PAD\], the padding token, .*: got 'a \[PAD\] b'"
    for encode in (tokenizer.encode, tokenizer.encode_prompt):
        with pytest.raises(UserError, match=message):
            encode("a [PAD] b")
    with pytest.raises(UserError, match="the padding token"):
        tokenizer.encode_pair("a", "[PAD]")

    ids, segments = tokenizer.encode_pair("a", "b c")
    assert ids == [2, 12, 1, 13, 14, 1]
    assert segments == [0, 0, 0, 1, 1, 1]


def test_a_tokenizer_of_an_encoder_has_labels():
    text = (FIXTURES.parent / "bert" / "plain" / "tokenizer.json").read_text()
    special = {"pad": 0, "eos": 4, "bos": 3, "unk": 2}
    tokenizer = HuggingFaceTokenizer.assemble(text, special, 64, ["good", "not bad"])
    assert tokenizer.absent == ""
    assert tokenizer.target_vocab_size == 6

    mask = tokenizer.mask_token
    assert tokenizer.encode_batch(["[MASK]", ""]) == [[2, mask], [2]]
    pieces = [tokenizer.piece(i) for i in (0, 1, 2, mask)]
    assert pieces == ["[PAD]", "[SEP]", "[CLS]", "[MASK]"]
    assert tokenizer.encode_target_batch(["not bad", "bad"]) == [[5], [3]]

    assert tokenizer.with_symbols(["good"]) is tokenizer
    changed = tokenizer.with_symbols(iter("ba"))
    assert changed.symbols == ["a", "b"]
    assert changed.encode("dog") == tokenizer.encode("dog")


# Every field that ViTImageProcessorFast of transformers 4.57 and ViTFeatureExtractor of 4.20 write.
PROCESSOR_FIELDS = {
    "crop_size": None,
    "data_format": "channels_first",
    "default_to_square": True,
    "device": None,
    "disable_grouping": None,
    "do_center_crop": None,
    "do_convert_rgb": None,
    "do_pad": None,
    "do_rescale": True,
    "feature_extractor_type": "ViTFeatureExtractor",
    "image_processor_type": "ViTImageProcessorFast",
    "input_data_format": None,
    "pad_size": None,
    "rescale_factor": 0.00392156862745098,
    "return_tensors": None,
    "size": {"height": 8, "width": 12},
}


def test_fields_that_change_no_pixels_are_accepted(tmp_path):
    directory = copy_model("vit", tmp_path)
    change(directory / "preprocessor_config.json", PROCESSOR_FIELDS)

    found = imported_config(directory, tmp_path / "run")
    expected = imported_config(FIXTURES / "vit", tmp_path / "plain")
    assert found == expected


@pytest.mark.parametrize(("model", "languages"), [("gpt2", ()), ("m2m100", ("en", "de"))])
def test_an_export_is_for_transformers(model, languages, tmp_path):
    import_huggingface(FIXTURES / model, tmp_path / "run", languages)
    printed = export_model("safetensors", tmp_path / "run", tmp_path / "out")
    assert "own names" not in printed

    import_huggingface(tmp_path / "out", tmp_path / "again", languages)
    again = Tokenizer.load(tmp_path / "again" / "tokenizer.model")
    assert again.sha256 == Tokenizer.load(tmp_path / "run" / "tokenizer.model").sha256
