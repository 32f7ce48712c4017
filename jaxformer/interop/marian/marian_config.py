"""Converts the configuration of a Marian model in the Hugging Face layout.

Missing fields take the defaults of the transformers library's ``MarianConfig``, which does not
write fields with default values. Features that our Transformer or search lacks are refused by name,
as are unknown fields of the model; unused settings of the search are listed.
"""

import dataclasses
import pathlib
from typing import Any

from jaxformer.config import Config, DataConfig, ModelConfig
from jaxformer.errors import prefix_errors
from jaxformer.interop.generate_settings import (
    SEARCH,
    UNSET,
    search_of_generate,
    settings_of_generate,
    unused_settings,
)
from jaxformer.interop.json_fields import JsonFields
from jaxformer.nn.feed_forward import Activation

_DEFAULTS: dict[str, Any] = {
    "activation_function": "gelu",
    "d_model": 1024,
    "decoder_attention_heads": 16,
    "decoder_ffn_dim": 4096,
    "decoder_layers": 12,
    "decoder_start_token_id": 58100,
    "dropout": 0.1,
    "encoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "encoder_layers": 12,
    "eos_token_id": 0,
    "max_position_embeddings": 1024,
    "pad_token_id": 58100,
    "scale_embedding": False,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
    "vocab_size": 58101,
}
_ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "gelu_new": "gelu",  # the approximation with tanh; "gelu" is the exact function
    "swish": "swish",
    "silu": "swish",
}
# Fields of the model with the only value that our layers support.
_ONLY = {
    "model_type": "marian",
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
    "is_encoder_decoder": True,
}
# Settings that our search lacks, with the values that do not change results; None: unset.
_ONLY_IN_SEARCH: dict[str, Any] = {
    "do_sample": False,
    "num_beam_groups": 1,
    "repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    "forced_bos_token_id": None,
    "forced_decoder_ids": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
# The other fields of the model that are read or checked, fields of training, another name of
# encoder_layers, and fields that no version of transformers reads.
_OTHER_FIELDS = (
    "decoder_vocab_size|.*drop(out)?|num_hidden_layers|is_decoder|add_bias_logits"
    "|extra_pos_embeddings"
)
# The end of a message about a missing file.
LAYOUT = (
    "expected a folder of a Marian model in the Hugging Face layout: config.json, "
    "model.safetensors, flax_model.msgpack or pytorch_model.bin, source.spm, target.spm, vocab.json"
)


class MarianConfig:
    """A Marian model's config.json, and the generation_config.json beside it."""

    def __init__(self, directory: pathlib.Path) -> None:
        fields = JsonFields(directory / "config.json", _DEFAULTS, LAYOUT)
        self._fields = fields

        self._search = settings_of_generate(fields)

        self.vocab_size = fields.integer("vocab_size")
        self.pad = fields.integer("pad_token_id")  # It also starts every translation.
        self.eos = fields.integer("eos_token_id")

        # Whether embeddings are multiplied by sqrt(d_model), the encoder and the decoder share one,
        # and the output projection is the decoder's.
        self.scaled = fields.boolean("scale_embedding")
        self.shared = fields.boolean("share_encoder_decoder_embeddings")
        self.output_tied = fields.boolean("tie_word_embeddings")
        # Our tied embedding, which is scaled at the input, can then represent all their embeddings.
        self.all_tied = self.shared and self.output_tied and self.scaled

        self._check_model()
        self._check_search()
        checked = {*_ONLY_IN_SEARCH, "bad_words_ids", "renormalize_logits"}
        self.unused = unused_settings(self._search, read=checked)

    def _check_model(self) -> None:
        fields = self._fields
        reason = "Transformer cannot be such a model"
        fields.check_known({*_DEFAULTS, *_ONLY}, _OTHER_FIELDS)
        for name, only in _ONLY.items():
            fields.check(name, [only], repr(only), reason)

        for what in ("layers", "ffn_dim", "attention_heads"):
            value = fields.values[f"encoder_{what}"]
            same = f"the same as encoder_{what}={value!r}"
            fields.check(f"decoder_{what}", [value], same, reason)

        activations = list(_ACTIVATIONS)
        fields.check("activation_function", activations, " or ".join(activations), reason)

        one = f"vocab_size={self.vocab_size}: one vocabulary for both sides"
        fields.check("decoder_vocab_size", [None, self.vocab_size], one, reason)
        fields.check("decoder_start_token_id", [self.pad], f"pad_token_id={self.pad}", reason)

    def _check_search(self) -> None:
        known = dict(_ONLY_IN_SEARCH)
        for name in ("decoder_start_token_id", "eos_token_id", "pad_token_id"):
            known[name] = self._fields.values[name]
        known["bad_words_ids"] = [[self.pad]]

        for name, only in known.items():
            expected = f"{only!r} or left out"
            self._search.check(name, [only, *UNSET], expected, "search has no other")

    def config(self, languages: tuple[str, str]) -> Config:
        """Returns our config, given the codes of source and target language."""
        fields = self._fields
        sizes: dict[str, Any] = {
            # Marian starts translations with padding; we add a beginning-of-sentence token.
            "vocab_size": self.vocab_size + 1,
            "d_model": fields.integer("d_model"),
            "d_ff": fields.integer("encoder_ffn_dim"),
            "num_heads": fields.integer("encoder_attention_heads"),
            "num_layers": fields.integer("encoder_layers"),
            "dropout_rate": fields.number("dropout"),
            "activation": _ACTIVATIONS[fields.values["activation_function"]],
            "biases": True,
            "embeddings": "tied" if self.all_tied else "separate",
            "norm_epsilon": 1e-5,
            "max_length": fields.integer("max_position_embeddings"),
        }
        with prefix_errors(str(fields.place)):
            model = ModelConfig(**sizes)

        data = DataConfig(
            source_language=languages[0],
            target_language=languages[1],
            max_length=min(DataConfig.max_length, model.max_length),
        )
        longest = model.max_length
        unlimited = dataclasses.replace(
            SEARCH, beam_size=1, max_length=longest, max_extra_length=longest
        )
        search = search_of_generate(self._search, default=unlimited, eos=self.eos, longest=longest)
        return Config(model=model, data=data, search=search)
