"""Wav2Vec 2.0 in transformers' layout, with letters for CTC or the heads of pretraining."""

from collections.abc import Iterator
from typing import Any

from jaxformer.data.letters_tokenizer import DELIMITER, LettersTokenizer
from jaxformer.data.speech import SpeechConfig
from jaxformer.errors import MALFORMED, UserError, prefix_errors
from jaxformer.files import read_object
from jaxformer.interop.huggingface.foreign_layout import (
    ANY,
    Layout,
    Tensor,
    affine,
    layer_norm,
)
from jaxformer.interop.json_fields import JsonFields
from jaxformer.models.wav2vec2 import Wav2Vec2Config
from jaxformer.models.waves import WaveArchitecture

_FIELDS = {
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
    "hidden_act": "activation",
    "hidden_dropout": "dropout_rate",
    "attention_dropout": "attention_dropout_rate",
    "layer_norm_eps": "norm_epsilon",
    "conv_bias": "conv_bias",
    "num_conv_pos_embeddings": "position_kernel",
    "num_conv_pos_embedding_groups": "position_groups",
    "mask_time_prob": "mask_rate",
    "mask_time_length": "mask_length",
    "num_codevector_groups": "codebooks",
    "num_codevectors_per_group": "codebook_entries",
    "codevector_dim": "code_size",
    "proj_codevector_dim": "contrast_size",
    "num_negatives": "num_negatives",
}
# Lists of numbers, one for each convolution.
_CONVOLUTIONS = {
    "conv_dim": "conv_widths",
    "conv_kernel": "conv_kernels",
    "conv_stride": "conv_strides",
}
_DEFAULTS = {
    "layer_norm_eps": 1e-5,
    "attention_dropout": 0.1,
    "hidden_dropout": 0.1,
    "conv_bias": False,
    "conv_dim": [512] * 7,
    "conv_kernel": [10, 3, 3, 3, 3, 2, 2],
    "conv_stride": [5, 2, 2, 2, 2, 2, 2],
    "feat_extract_norm": "group",
    "do_stable_layer_norm": False,
    "mask_time_prob": 0.05,
    "mask_time_length": 10,
    "num_conv_pos_embeddings": 128,
    "num_conv_pos_embedding_groups": 16,
    "hidden_act": "gelu",
    "pad_token_id": 0,
    "num_codevector_groups": 2,
    "num_codevectors_per_group": 320,
    "codevector_dim": 256,
    "proj_codevector_dim": 256,
    "num_negatives": 100,
}
# Of the loss of pretraining.
_CONTRAST = {"contrastive_logits_temperature": 0.1, "diversity_loss_weight": 0.1}
_ONLY = {
    "feat_extract_activation": "gelu",
    "add_adapter": False,
    "adapter_attn_dim": None,
    "use_weighted_layer_sum": False,
}
_LACKS = {
    "activation_dropout": " of the feed-forward networks",
    "feat_proj_dropout": " of the frames",
    "layerdrop": " of layers",
    "mask_feature_prob": " of features",
}
# Of training, see _LACKS; of other heads and of pretraining; of losses; and what follows from
# other fields.
_IGNORED = (
    r"activation_dropout|feat_proj_dropout|final_dropout|layerdrop|mask_feature_prob"
    r"|num_feat_extract_layers|mask_time_min_masks|mask_feature_(length|min_masks)|apply_spec_augment"
    r"|contrastive_logits_temperature|diversity_loss_weight|feat_quantizer_dropout|ctc_.*"
    r"|classifier_proj_size"
    r"|tdnn_.*|xvector_output_dim|adapter_(kernel_size|stride)|num_adapter_layers"
    r"|output_hidden_size|feat_extract_dropout|gradient_checkpointing|num_ctc_classes"
    r"|vocab_size|mask_channel_.*"
    # Of the published files, which transformers does not read: some repeat hidden_dropout.
    r"|freeze_feat_extract_train|hidden_dropout_prob|mask_(time|feature)_(min_space|other|selection)"
    r"|no_mask_(time|channel)_overlap|replace_prob"
)
_TOKENIZERS = ("Wav2Vec2CTCTokenizer", "Wav2Vec2Tokenizer")
_EXTRACTORS = ("Wav2Vec2FeatureExtractor", "Wav2Vec2Processor")
_SOUND_IGNORED = "return_attention_mask|padding_side|processor_class|return_tensors"
_EXAMPLE = """
from transformers import AutoProcessor, NETWORK
import numpy as np

processor, model = AutoProcessor.from_pretrained("."), NETWORK.from_pretrained(".")
rate = processor.feature_extractor.sampling_rate
wave = np.zeros(rate)  # a second of silence
inputs = processor(wave, sampling_rate=rate, return_tensors="pt")
print(processor.batch_decode(model(**inputs).logits.argmax(axis=-1)))
"""
_EXAMPLE_OF_FEATURES = """
from transformers import AutoFeatureExtractor, NETWORK
import numpy as np

extractor, model = AutoFeatureExtractor.from_pretrained("."), NETWORK.from_pretrained(".")
wave = np.zeros(extractor.sampling_rate)  # a second of silence
inputs = extractor(wave, sampling_rate=extractor.sampling_rate, return_tensors="pt")
print(model(**inputs).projected_states)
"""


def _read(fields: JsonFields) -> dict[str, Any]:
    """Returns the fields that no table has, also from preprocessor_config.json."""
    head = "contrast" if _is_pretraining(fields) else "letters"
    mask_rate = fields.number("mask_time_prob")
    if head == "letters" and fields.values.get("apply_spec_augment") is False:
        mask_rate = 0.0
    if head == "contrast":
        for name, only in _CONTRAST.items():
            fields.check(name, [only], repr(only), "contrast has no other")

    return {
        "head": head,
        "mask_rate": mask_rate,
        "norm_position": read_norm_position(fields),
        **read_convolutions(fields),
        **read_extractor(fields),
    }


def read_norm_position(fields: JsonFields, section: str = "") -> str:
    """Returns the position of norms, of a config.json or of its section, which ends with a dot."""
    return "pre" if fields.boolean(f"{section}do_stable_layer_norm") else "post"


def read_convolutions(fields: JsonFields, section: str = "") -> dict[str, Any]:
    """Returns our fields of convolutions that no table has."""
    norm = f"{section}feat_extract_norm"
    fields.check(norm, ["group", "layer"], "group or layer", "models have no other")

    found = {"conv_norm": fields.values[norm]}
    for name, ours in _CONVOLUTIONS.items():
        found[ours] = fields.values[f"{section}{name}"]
    return found


def read_extractor(fields: JsonFields) -> dict[str, Any]:
    """Returns what preprocessor_config.json says about recordings."""
    sound = JsonFields(
        fields.place.with_name("preprocessor_config.json"),
        {"sampling_rate": 16_000, "do_normalize": True},
    )
    for name, only in (("feature_size", 1), ("padding_value", 0.0)):
        sound.check(name, [only], repr(only), "waves have no other")
    known = _EXTRACTORS[0]
    sound.check("feature_extractor_type", _EXTRACTORS, known, "models of waves have no other")
    used = {"sampling_rate", "do_normalize", "feature_size", "padding_value"}
    sound.check_known({*used, "feature_extractor_type"}, _SOUND_IGNORED)

    return {
        "sample_rate": sound.integer("sampling_rate"),
        "standardized": sound.boolean("do_normalize"),
    }


def _is_pretraining(fields: JsonFields) -> bool:
    return "quantizer.codevectors" in fields.tensors


def _read_tokenizer(fields: JsonFields) -> LettersTokenizer | None:
    """Reads vocab.json, and the names of special tokens in the files beside it."""
    if _is_pretraining(fields):
        return None

    folder = fields.place.parent
    named = {
        **JsonFields(folder / "special_tokens_map.json", {}).values,
        **JsonFields(folder / "tokenizer_config.json", {}).values,
    }
    settings = JsonFields(folder / "tokenizer_config.json", {})
    settings.check("tokenizer_class", _TOKENIZERS, _TOKENIZERS[0], "letters have no other")
    settings.check("do_lower_case", [False], "false", "transcripts keep their case")
    settings.check("replace_word_delimiter_char", [" "], "a space", "words have no other between")
    settings.check("target_lang", [None], "null", "models have the letters of one language")

    path = folder / "vocab.json"
    vocabulary = read_object(path, advice="a model for CTC has its letters there")
    with prefix_errors(str(path), *MALFORMED):
        letters = [""] * fields.integer("vocab_size")
        for token, number in vocabulary.items():
            if not isinstance(number, int) or not 0 <= number < len(letters):
                raise UserError(
                    f"expected ids below vocab_size={len(letters)}, got {number!r:.40} of {token!r}"
                )
            letters[number] = token

        special: dict[str, int | None] = {}
        for name, default in _SPECIAL.items():
            token = _content(named.get(f"{name}_token", default))
            special[name] = vocabulary.get(token)
        blank = fields.integer("pad_token_id")
        if special["pad"] != blank:
            raise UserError(f"expected pad_token_id={blank} to be padding, got {special['pad']}")
        delimiter = _content(named.get("word_delimiter_token", DELIMITER))
        return LettersTokenizer.assemble(letters, special, str(delimiter))


_SPECIAL = {"pad": "<pad>", "eos": "</s>", "bos": "<s>", "unk": "<unk>"}


def _content(token: Any) -> Any:
    """Returns a token, which a file may describe by an object."""
    return token["content"] if isinstance(token, dict) else token


def _write(model: Wav2Vec2Config) -> dict[str, Any]:
    return {
        **write_encoder(model),
        # transformers has the vector of masked frames only with one of these.
        "apply_spec_augment": model.mask_rate > 0,
        "mask_time_prob": model.mask_rate or 0.05,
        **_CONTRAST,
    }


def write_encoder(model: Wav2Vec2Config) -> dict[str, Any]:
    """Returns the fields of convolutions and norms that no table has."""
    found = {
        "feat_extract_norm": model.conv_norm,
        "do_stable_layer_norm": model.norm_position == "pre",
        "num_feat_extract_layers": len(model.conv_widths),
    }
    for name, ours in _CONVOLUTIONS.items():
        found[name] = list(getattr(model, ours))
    return found


def preprocessor(model: WaveArchitecture) -> dict[str, Any]:
    return {
        "feature_extractor_type": _EXTRACTORS[0],
        "feature_size": 1,
        "sampling_rate": model.sample_rate,
        "padding_value": 0.0,
        "do_normalize": model.standardized,
        # Without a mask, padding changes the mean over time.
        "return_attention_mask": model.conv_norm == "layer",
    }


def _axes(number: int) -> tuple[str, str]:
    """Returns the letters of the channels, Cyrillic, and of the kernel of a convolution, Greek.

    Latin letters are of other axes.
    """
    return chr(0x430 + number), chr(0x3B1 + number)


def _sizes(model: Wav2Vec2Config) -> dict[str, int]:
    sizes = {
        "2": model.position_kernel,
        "3": model.d_model // model.position_groups,
        "4": model.codebooks * model.codebook_entries,
        "5": model.code_size // model.codebooks,
        "6": model.contrast_size,
        "7": model.code_size,
    }
    layers = zip(model.conv_widths, model.conv_kernels, strict=True)
    for number, (width, kernel) in enumerate(layers):
        channels, size = _axes(number)
        sizes |= {channels: width, size: kernel}
    return sizes


def _tensors(model: Wav2Vec2Config) -> Iterator[Tensor]:
    yield from encoder_tensors(model)
    if model.head == "letters":
        yield from affine("lm_head", "VD", "letters")
    else:
        inputs, _ = _axes(len(model.conv_widths) - 1)
        yield Tensor("quantizer.codevectors", "145", ("quantizer/codebook",))
        yield from affine("quantizer.weight_proj", f"4{inputs}", "quantizer/scores")
        yield from affine("project_hid", "6D", "prediction")
        yield from affine("project_q", "67", "target")


def encoder_tensors(model: Wav2Vec2Config) -> Iterator[Tensor]:
    """Yields the tensors of all layers but a head."""
    inputs = "1"
    for number in range(len(model.conv_widths)):
        theirs = f"feature_extractor.conv_layers.{number}"
        outputs, size = _axes(number)
        ours = f"convolutions/kernel_{number}"
        axes = f"{outputs}{inputs}{size}"
        yield Tensor(f"{theirs}.conv.weight", axes, (ours,), is_linear=True)
        if model.conv_bias:
            yield Tensor(f"{theirs}.conv.bias", outputs, (f"convolutions/bias_{number}",))
        if model.conv_norm == "layer" or number == 0:
            yield from layer_norm(f"{theirs}.layer_norm", f"convolutions/norm_{number}", outputs)
        inputs = outputs

    yield from layer_norm("feature_projection.layer_norm", "input_norm", inputs)
    yield from affine("feature_projection.projection", f"D{inputs}", "input_projection")
    yield Tensor("masked_spec_embed", "D", ("masked",), is_optional=True)

    positions = "encoder.pos_conv_embed.conv"
    weight = f"{positions}.parametrizations.weight"
    yield Tensor(f"{weight}.original0", "112", ("positions/scale",))
    yield Tensor(f"{weight}.original1", "D32", ("positions/kernel",), is_linear=True)
    yield Tensor(f"{positions}.bias", "D", ("positions/bias",))

    norm = "norm" if model.norm_position == "post" else "encoder/norm"
    yield from layer_norm("encoder.layer_norm", norm)
    yield from _layers()


def _layers() -> Iterator[Tensor]:
    theirs = "encoder.layers.{n}"
    ours = "encoder/layers"
    for short, name in (("q", "query"), ("k", "key"), ("v", "value")):
        yield from affine(f"{theirs}.attention.{short}_proj", "QD", f"{ours}/self_attention/{name}")
    yield from affine(f"{theirs}.attention.out_proj", "DQ", f"{ours}/self_attention/output")
    yield from layer_norm(f"{theirs}.layer_norm", f"{ours}/self_attention_residual/norm")

    network = f"{ours}/feed_forward"
    yield from affine(f"{theirs}.feed_forward.intermediate_dense", "FD", f"{network}/inner")
    yield from affine(f"{theirs}.feed_forward.output_dense", "DF", f"{network}/outer")
    yield from layer_norm(f"{theirs}.final_layer_norm", f"{network}_residual/norm")


def _network(model: Wav2Vec2Config) -> str:
    return "Wav2Vec2ForCTC" if model.head == "letters" else "Wav2Vec2ForPreTraining"


def _data(model: Wav2Vec2Config) -> SpeechConfig:
    """Returns a section of data for a model whose recordings are unknown."""
    if model.head == "letters":
        return SpeechConfig(train="unknown", valid="unknown")
    return SpeechConfig(corpus="unlabeled_speech", train="unknown", valid="unknown")


WAV2VEC2 = Layout(
    model_type="wav2vec2",
    network=_network,
    section=Wav2Vec2Config,
    fields=_FIELDS,
    defaults=_DEFAULTS,
    only=_ONLY,
    lacks=_LACKS,
    ignored=_IGNORED,
    read=_read,
    write=_write,
    tensors=_tensors,
    sizes=_sizes,
    data=_data,
    read_tokenizer=_read_tokenizer,
    preprocessor=preprocessor,
    example=lambda model: _EXAMPLE if model.head == "letters" else _EXAMPLE_OF_FEATURES,
    prefix="wav2vec2.",
    tasks=("ForCTC", "ForPreTraining"),
    heads=("lm_head.", "quantizer.", "project_"),
    old_names={
        "conv.weight_g": "conv.parametrizations.weight.original0",
        "conv.weight_v": "conv.parametrizations.weight.original1",
    },
    expressed={
        "head": ANY,
        "sample_rate": ANY,
        "standardized": ANY,
        "conv_widths": ANY,
        "conv_kernels": ANY,
        "conv_strides": ANY,
        "conv_norm": ANY,
        "norm_position": ANY,
    },
)
