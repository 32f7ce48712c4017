"""Export to CTranslate2, a C++ engine for Transformers on CPUs and GPUs.

We fill its specification of a Transformer directly, since its converter of Marian models would
start every translation from a zero embedding.
"""

import pathlib
from typing import Any

import jax
import numpy as np

from jaxformer.config import ModelConfig
from jaxformer.data.tokenizer import BOS, EOS, UNK
from jaxformer.errors import needs_package
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop import formats
from jaxformer.interop.formats import Usage
from jaxformer.nn.positions import sinusoidal_positions

_ACTIVATIONS = {"relu": "RELU", "gelu": "GELUTanh", "swish": "SWISH"}
_CODE = """
import ctranslate2, sentencepiece

source = sentencepiece.SentencePieceProcessor(model_file="source.spm")
target = sentencepiece.SentencePieceProcessor(model_file="target.spm")
translator = ctranslate2.Translator(".")  # compute_type="int8" is faster
options = {}
[result] = translator.translate_batch([source.encode("A dog runs.", out_type=str)], **options)
print(target.decode(result.hypotheses[0]))
"""
_NOTES = (
    "CTranslate2's beam search differs from jaxformer's: its length penalty is a power of the "
    "length, it stops earlier, its limits do not depend on the source, and the score of an "
    "unfinished translation counts. Probabilities are the same, but `min_decoding_length` and "
    "`no_repeat_ngram_size` renormalize them over the tokens that they allow.",
)


def write(model: TrainedModel, folder: pathlib.Path) -> Usage:
    config = formats.paper_model(model.config, "CTranslate2")
    pieces = formats.write_tokenizer(model, folder)
    known = {"norm_position": ["post", "pre"], "positions": ["sinusoidal", "learned"]}
    formats.check_fields(config, "CTranslate2", **known, activation=_ACTIVATIONS)
    formats.check_params(model, "CTranslate2")
    search = formats.check_search(model.config, "CTranslate2")
    with needs_package("ctranslate2", "which writes this format"):
        import ctranslate2
    # pyright mistakes this file for the package.
    specs: Any = ctranslate2.specs  # pyright: ignore
    spec = specs.TransformerSpec.from_config(
        (config.num_layers, config.num_layers),
        config.num_heads,
        pre_norm=config.norm_position == "pre",
        activation=specs.Activation[_ACTIVATIONS[config.activation]],
    )
    _fill(spec, config, model.params)
    spec.config.layer_norm_epsilon = config.norm_epsilon
    spec.config.add_source_eos = True
    spec.config.unk_token, spec.config.eos_token = pieces[UNK], pieces[EOS]
    spec.config.bos_token = spec.config.decoder_start_token = pieces[BOS]
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    spec.validate()
    spec.save(str(folder))
    options = {  # The limits of ``translate_batch`` itself are 1 to 256 tokens.
        "beam_size": search.beam_size,
        "length_penalty": 0.0 if search.penalty == "none" else search.length_penalty,
        "max_decoding_length": min(config.max_length, search.max_length or 256),
        "min_decoding_length": max(1, search.min_length),
        "no_repeat_ngram_size": search.no_repeat_ngram,
    }
    return Usage("CTranslate2", "ctranslate2 sentencepiece", _CODE.format(options), _NOTES)


def _fill(spec: Any, config: ModelConfig, params: dict[str, Any]) -> None:
    source, target, output = (params[name] for name in config.embedding_names)
    for side, table, positions in (
        ("encoder", source, "src_positions"),
        ("decoder", target, "tgt_positions"),
    ):
        stack, given = getattr(spec, side), params[side]
        embeddings = stack.embeddings
        (embeddings[0] if isinstance(embeddings, list) else embeddings).weight = table
        stack.position_encodings.encodings = params.get(
            positions, sinusoidal_positions(config.max_length, config.d_model)
        )
        if config.norm_position == "pre":
            _norm(stack.layer_norm, given["norm"])
        for n, layer in enumerate(stack.layer):
            _layer(layer, jax.tree.map(lambda leaf, n=n: leaf[n], given["layers"]))
    spec.decoder.projection.weight = output
    if "logits_bias" in params:
        spec.decoder.projection.bias = params["logits_bias"]


def _layer(layer: Any, given: dict[str, Any]) -> None:
    attention = given["self_attention"]
    _linear(layer.self_attention.linear[0], attention, "query", "key", "value")
    _linear(layer.self_attention.linear[1], attention, "output")
    _norm(layer.self_attention.layer_norm, given["self_attention_residual"]["norm"])
    if "cross_attention" in given:
        attention = given["cross_attention"]
        _linear(layer.attention.linear[0], attention, "query")
        _linear(layer.attention.linear[1], attention, "key", "value")
        _linear(layer.attention.linear[2], attention, "output")
        _norm(layer.attention.layer_norm, given["cross_attention_residual"]["norm"])
    _linear(layer.ffn.linear_0, given["feed_forward"], "inner")
    _linear(layer.ffn.linear_1, given["feed_forward"], "outer")
    _norm(layer.ffn.layer_norm, given["feed_forward_residual"]["norm"])


def _linear(layer: Any, given: dict[str, Any], *names: str) -> None:
    """Sets a linear layer to projections that CTranslate2 computes together."""
    kernels = [given[name].reshape(len(given[name]), -1) for name in names]
    layer.weight = np.ascontiguousarray(np.concatenate(kernels, axis=1).T)
    biases = [given[f"{name}_bias"].ravel() for name in names if f"{name}_bias" in given]
    if biases:
        layer.bias = np.concatenate(biases)


def _norm(layer: Any, given: dict[str, Any]) -> None:
    layer.gamma, layer.beta = given["scale"], given["bias"]
