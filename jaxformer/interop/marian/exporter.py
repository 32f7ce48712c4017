"""Export to the Hugging Face layout of Marian models, the inverse of the import.

:mod:`jaxformer.interop.marian.importer` describes the differences. Our padding is omitted: Marian's
padding token, which starts every translation, gets the embedding of our beginning of sentence.
"""

import json
import math
import pathlib
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from jaxformer.config import DataConfig, ModelConfig, data_section
from jaxformer.data.tokenizer import BOS, EOS, UNK
from jaxformer.errors import UserError
from jaxformer.files import write_file
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop import formats
from jaxformer.interop.formats import Usage
from jaxformer.interop.marian.marian_names import LINEAR, NORMS, OUTPUT, SHARED, SOURCE, TARGET
from jaxformer.interop.safetensors import save_arrays
from jaxformer.search import BeamSearch

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu_new", "swish": "swish"}
# Marian's layer norms add this to the variance; transformers has no option for it.
_NORM_EPSILON = 1e-5
_CODE = """
from transformers import MarianMTModel, MarianTokenizer

tokenizer, model = MarianTokenizer.from_pretrained("."), MarianMTModel.from_pretrained(".")
[tokens] = model.generate(**tokenizer(["A dog runs."], return_tensors="pt"))
print(tokenizer.decode(tokens, skip_special_tokens=True))
"""
_NOTES = (
    "transformers' beam search differs from jaxformer's: its length penalty is a power of the "
    "length, it stops earlier, and the score of an unfinished translation counts.",
    "The padding token, which starts translations, is excluded by `bad_words_ids`.",
)


def write(model: TrainedModel, folder: pathlib.Path) -> Usage:
    config = formats.paper_model(model.config, "Marian")
    pieces = formats.write_tokenizer(model, folder)
    _check(model, config)
    search = formats.check_search(model.config, "Marian")

    # Our id for each of Marian's ids: end of sentence, unknown, pieces, and padding as the start.
    order = np.array([EOS, UNK, *range(UNK + 1, config.vocab_size), BOS])
    factor = math.sqrt(_NORM_EPSILON / config.norm_epsilon)
    params = rescale_activations(model.params, factor)
    arrays = _arrays(config, params, order)
    save_arrays(arrays, folder / "model.safetensors")

    names = ["</s>", "<unk>", *pieces[UNK + 1 :], "<pad>"]
    padding = len(names) - 1
    for name, values in (
        ("vocab", {name: number for number, name in enumerate(names)}),
        ("tokenizer_config", _tokenizer_config(model, config)),
        ("config", _config(config, len(names))),
        ("generation_config", _generation(search, config.max_length, padding)),
    ):
        content = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
        write_file(folder / f"{name}.json", content.encode())

    notes = _NOTES
    if config.norm_epsilon != _NORM_EPSILON:
        notes += (
            f"Marian's layer norms add {_NORM_EPSILON:g} to the variance, this model's "
            f"{config.norm_epsilon:g}. Activations are scaled to make up for it, except before the "
            "first layer norm of the encoder and of the decoder.",
        )
    return Usage(
        format="a Marian model in the Hugging Face layout",
        requires="torch transformers",
        code=_CODE,
        notes=notes,
    )


def _check(model: TrainedModel, config: ModelConfig) -> None:
    """Refuses models that Marian cannot express."""
    formats.check_fields(
        config,
        "Marian",
        norm_position=["post"],
        positions=["sinusoidal"],
        activation=_ACTIVATIONS,
    )
    formats.check_params(model, "Marian")

    if config.norm_epsilon > _NORM_EPSILON:
        raise UserError(
            f"Marian: expected model.norm_epsilon of at most {_NORM_EPSILON:g}, got "
            f"{config.norm_epsilon:g}: Marian's layer norms add {_NORM_EPSILON:g}, which the first "
            "one of a stack would show; export stablehlo instead"
        )


def _tokenizer_config(model: TrainedModel, config: ModelConfig) -> dict[str, Any]:
    data = data_section(model.config, DataConfig)
    return {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": data.source_language,
        "target_lang": data.target_language,
        "model_max_length": config.max_length,
        "separate_vocabs": False,
    }


def rescale_activations(params: dict[str, Any], factor: float) -> dict[str, Any]:
    """Returns equivalent parameters of a post-norm model for ``factor**2`` times the epsilon.

    Since ``norm(f * x, f**2 * epsilon) == norm(x, epsilon)``, activations are multiplied by the
    factor where they enter a layer norm, except the embeddings and positions at the first layer
    norm of a stack. The outputs of both stacks do not change.
    """
    params = jax.tree.map(np.array, params)

    def multiply(group: dict[str, Any], factors: Float[np.ndarray, " L"], *names: str) -> None:
        """Multiplies the parameters of each layer by a number."""
        for name in names:
            if name in group:
                ones = [1] * (group[name].ndim - 1)
                group[name] *= factors.reshape(-1, *ones)

    for side in ("encoder", "decoder"):
        layers = params[side]["layers"]
        num_layers = len(layers["feed_forward"]["inner_bias"])
        inside = np.full(num_layers, factor, np.float32)

        # The input of the first layer, and the output of the last one, do not change.
        first = inside.copy()
        first[0] = 1
        last = inside.copy()
        last[-1] = 1

        attention = layers["self_attention"]
        multiply(attention, 1 / first, "query", "key", "value")
        multiply(attention, first, "output", "output_bias")
        multiply(layers["self_attention_residual"]["norm"], inside, "scale", "bias")

        if "cross_attention" in layers:
            attention = layers["cross_attention"]
            multiply(attention, 1 / inside, "query")
            multiply(attention, inside, "output", "output_bias")
            multiply(layers["cross_attention_residual"]["norm"], inside, "scale", "bias")

        network = layers["feed_forward"]
        multiply(network, 1 / inside, "inner")
        multiply(network, inside, "outer", "outer_bias")
        multiply(layers["feed_forward_residual"]["norm"], last, "scale", "bias")
    return params


def _config(config: ModelConfig, vocab_size: int) -> dict[str, Any]:
    return {
        "encoder_attention_heads": config.num_heads,
        "encoder_ffn_dim": config.d_ff,
        "encoder_layers": config.num_layers,
        "decoder_attention_heads": config.num_heads,
        "decoder_ffn_dim": config.d_ff,
        "decoder_layers": config.num_layers,
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "activation_function": _ACTIVATIONS[config.activation],
        "d_model": config.d_model,
        "decoder_start_token_id": vocab_size - 1,
        "decoder_vocab_size": vocab_size,
        "dropout": config.dropout_rate,
        "dtype": "float32",
        "eos_token_id": 0,
        "max_position_embeddings": config.max_length,
        "pad_token_id": vocab_size - 1,
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": config.embeddings == "tied",
        "static_position_embeddings": True,
        "tie_word_embeddings": config.embeddings == "tied",
        "vocab_size": vocab_size,
    }


def _generation(search: BeamSearch, longest: int, pad: int) -> dict[str, Any]:
    """Returns the settings of the search; unlike ours, its lengths count the start token."""
    max_length = longest
    if search.max_length is not None:
        max_length = min(longest, search.max_length + 1)

    return {
        "bad_words_ids": [[pad]],
        "decoder_start_token_id": pad,
        "early_stopping": search.beam_size > 1 and formats.EARLY_STOPPING[search.early_stop],
        "eos_token_id": 0,
        "forced_eos_token_id": 0 if search.unfinished == "end" else None,
        "length_penalty": 0.0 if search.penalty == "none" else search.length_penalty,
        "max_length": max_length,
        "min_length": search.min_length + 1 if search.min_length else 0,
        "no_repeat_ngram_size": search.no_repeat_ngram,
        "num_beams": search.beam_size,
        "pad_token_id": pad,
        "renormalize_logits": True,
    }


def _arrays(
    config: ModelConfig,
    params: dict[str, Any],
    order: Int[np.ndarray, " V"],
) -> dict[str, np.ndarray]:
    """Returns the arrays under Marian's names, with all sines before all cosines."""
    tables = {SOURCE: "src_embedding", TARGET: "tgt_embedding", OUTPUT: "output_embedding"}
    if config.embeddings == "tied":
        tables = {SHARED: "embedding"}

    # Our feature for each of Marian's: 0, 2, 4, ..., 1, 3, 5, ...
    features = np.arange(config.d_model).reshape(-1, 2).T.ravel()
    arrays = {}
    for name, ours in tables.items():
        arrays[name] = params[ours][order][:, features]

    no_bias = np.zeros(config.vocab_size, np.float32)
    bias = params.get("logits_bias", no_bias)[order]
    bias[-1] = 0  # Padding cannot be generated anyway, and ours may be -inf.
    arrays["final_logits_bias"] = bias[None]

    for side in ("encoder", "decoder"):
        for n in range(config.num_layers):
            layer = jax.tree.map(lambda leaf, n=n: leaf[n], params[side]["layers"])
            for name, array in _layer(layer, features).items():
                arrays[f"model.{side}.layers.{n}.{name}"] = array
    return arrays


def _layer(given: dict[str, Any], features: Int[np.ndarray, " D"]) -> dict[str, np.ndarray]:
    arrays = {}
    for name, (module, ours) in LINEAR.items():
        if module not in given:
            continue

        kernel = given[module][ours]
        kernel = kernel.reshape(len(kernel), -1)  # [in, out], all heads together
        no_bias = np.zeros(kernel.shape[1], np.float32)
        bias = given[module].get(f"{ours}_bias", no_bias).ravel()

        if ours in ("output", "outer"):
            kernel = kernel[:, features]
            bias = bias[features]
        else:
            kernel = kernel[features]
        arrays[f"{name}.weight"] = kernel.T
        arrays[f"{name}.bias"] = bias

    for module, name in NORMS.items():
        if module in given:
            norm = given[f"{module}_residual"]["norm"]
            arrays[f"{name}.weight"] = norm["scale"][features]
            arrays[f"{name}.bias"] = norm["bias"][features]
    return arrays
