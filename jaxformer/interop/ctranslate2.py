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
from jaxformer.search import BeamSearch

# CTranslate2's names of our activations.
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELUTanh", "swish": "SWISH"}
# An example for the user, to be completed by the arguments of the search.
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
    """Writes the model and its tokenizer, and returns how to use them.

    Raises:
      UserError: CTranslate2 cannot represent the model or its search.
    """
    search = formats.check_search(model.config, "CTranslate2")
    config = save_model(model, folder)
    formats.write_tokenizer(model, folder)

    code = _CODE.format(_search_options(search, config))
    return Usage(
        format="CTranslate2",
        requires="ctranslate2 sentencepiece",
        code=code,
        notes=_NOTES,
    )


def save_model(model: TrainedModel, folder: pathlib.Path) -> ModelConfig:
    """Writes the files that CTranslate2 loads, without a tokenizer, and returns the model's sizes.

    Raises:
      UserError: CTranslate2 cannot represent the model.
    """
    config = formats.paper_model(model.config, "CTranslate2")
    formats.sentencepiece_models(model)  # refuses models that do not translate text
    formats.check_fields(
        config,
        "CTranslate2",
        norm_position=["post", "pre"],
        positions=["sinusoidal", "learned"],
        activation=_ACTIVATIONS,
    )
    formats.check_params(model, "CTranslate2")

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
    _set_weights(spec, config, model.params)
    _set_constants(spec, config, formats.pieces_of(model))
    spec.validate()
    spec.save(str(folder))
    return config


def _set_constants(spec: Any, config: ModelConfig, pieces: list[str]) -> None:
    """Sets the constants and the vocabulary, which are no weights."""
    spec.config.layer_norm_epsilon = config.norm_epsilon
    spec.config.add_source_eos = True

    spec.config.unk_token = pieces[UNK]
    spec.config.eos_token = pieces[EOS]
    spec.config.bos_token = pieces[BOS]
    spec.config.decoder_start_token = pieces[BOS]

    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)


def _search_options(search: BeamSearch, config: ModelConfig) -> dict[str, Any]:
    """Returns the arguments of ``translate_batch``.

    CTranslate2 needs limits of a translation's length, by default 1 and 256 tokens.
    """
    return {
        "beam_size": search.beam_size,
        "length_penalty": 0.0 if search.penalty == "none" else search.length_penalty,
        "max_decoding_length": min(config.max_length, search.max_length or 256),
        "min_decoding_length": max(1, search.min_length),
        "no_repeat_ngram_size": search.no_repeat_ngram,
    }


def _set_weights(spec: Any, config: ModelConfig, params: dict[str, Any]) -> None:
    """Sets the weights of a specification."""
    source, target, output = (params[name] for name in config.embedding_names)
    _set_stack(spec.encoder, config, params["encoder"])
    _set_stack(spec.decoder, config, params["decoder"])

    # An encoder may embed several features of a token. Ours has one feature, the token itself.
    spec.encoder.embeddings[0].weight = source
    spec.decoder.embeddings.weight = target

    sinusoids = sinusoidal_positions(config.max_length, config.d_model)
    spec.encoder.position_encodings.encodings = params.get("src_positions", sinusoids)
    spec.decoder.position_encodings.encodings = params.get("tgt_positions", sinusoids)

    spec.decoder.projection.weight = output
    if "logits_bias" in params:
        spec.decoder.projection.bias = params["logits_bias"]


def _set_stack(stack: Any, config: ModelConfig, params: dict[str, Any]) -> None:
    if config.norm_position == "pre":
        _set_norm(stack.layer_norm, params["norm"])

    # Our arrays have an entry for each layer along their first axis.
    for n, layer in enumerate(stack.layer):
        layer_params = jax.tree.map(lambda array, n=n: array[n], params["layers"])
        _set_layer(layer, layer_params)


def _set_layer(layer: Any, params: dict[str, Any]) -> None:
    ours = params["self_attention"]
    theirs = layer.self_attention
    _set_linear(theirs.linear[0], ours, "query", "key", "value")
    _set_linear(theirs.linear[1], ours, "output")
    _set_norm(theirs.layer_norm, params["self_attention_residual"]["norm"])

    if "cross_attention" in params:
        ours = params["cross_attention"]
        theirs = layer.attention
        _set_linear(theirs.linear[0], ours, "query")
        _set_linear(theirs.linear[1], ours, "key", "value")
        _set_linear(theirs.linear[2], ours, "output")
        _set_norm(theirs.layer_norm, params["cross_attention_residual"]["norm"])

    ours = params["feed_forward"]
    theirs = layer.ffn
    _set_linear(theirs.linear_0, ours, "inner")
    _set_linear(theirs.linear_1, ours, "outer")
    _set_norm(theirs.layer_norm, params["feed_forward_residual"]["norm"])


def _set_linear(layer: Any, params: dict[str, Any], *names: str) -> None:
    """Sets a linear layer to our projections ``names``, which CTranslate2 computes together."""
    kernels = []
    biases = []
    for name in names:
        kernel = params[name]
        kernels.append(kernel.reshape(len(kernel), -1))  # [in, out], all heads together
        if f"{name}_bias" in params:
            biases.append(params[f"{name}_bias"].ravel())

    joined = np.concatenate(kernels, axis=1)
    layer.weight = np.ascontiguousarray(joined.T)

    if biases:
        layer.bias = np.concatenate(biases)


def _set_norm(layer: Any, params: dict[str, Any]) -> None:
    layer.gamma = params["scale"]
    layer.beta = params["bias"]
