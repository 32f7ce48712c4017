"""Conversion of the configuration of a Marian model in the Hugging Face layout.

Missing fields take the defaults of the transformers library's ``MarianConfig``, which does not
write fields with default values. Features that our Transformer or our search lacks are refused by
name; other fields that are not used are listed.
"""

import pathlib
import re
from typing import Any, Literal

from jaxformer.config import Config, DataConfig, ModelConfig
from jaxformer.errors import UserError
from jaxformer.files import read_json, readable
from jaxformer.search import BeamSearch

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
_ACTIVATIONS: dict[str, Literal["relu", "gelu", "swish"]] = {
    "relu": "relu",
    "gelu_new": "gelu",  # the approximation with tanh; "gelu" is the exact function
    "swish": "swish",
    "silu": "swish",
}
# Fields of the model, and the only value of each that our layers support.
_ONLY = {
    "model_type": "marian",
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
    "is_encoder_decoder": True,
}
# Our rule for stopping the search, for each value of ``early_stopping``.
_EARLY_STOP = {"None": "likely", "False": "likely", "True": "full", "never": "proven"}
_UNSET = (None, [], {})
# Search settings that our search lacks, with the values that leave results unchanged; None: unset.
_ONLY_IN_SEARCH: dict[str, Any] = {
    "do_sample": False,
    "num_beam_groups": 1,
    "repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    **dict.fromkeys(("forced_bos_token_id", "forced_decoder_ids")),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens")),
}
# The other fields that are read, and fields that change no translation.
_KNOWN = re.compile(
    "bad_words_ids|decoder_vocab_size|early_stopping|length_penalty|(max|min)_(length|new_tokens)"
    "|no_repeat_ngram_size|num_beams|renormalize_logits|_.*|.*drop(out)?|.*dtype|architectures"
    "|bos_token_id|id2label|init_std|label2id|num_hidden_layers|transformers_version|use_cache"
)


class MarianConfig:
    """A Marian model's config.json, and the generation_config.json beside it.

    Attributes:
      place: Path of the config.json, for error messages.
      pad: Id of the padding token, which also starts every translation.
      eos: Id of the end-of-sentence token.
      vocab_size: Number of pieces.
      scaled: True if embeddings are multiplied by sqrt(d_model).
      shared: True if encoder and decoder share an embedding.
      output_tied: True if the output projection is the decoder's embedding.
      unused: Names of fields that are set, but not used.
    """

    def __init__(self, directory: pathlib.Path) -> None:
        """Reads both files.

        Raises:
          UserError: A file is missing or damaged, or the model has features that ours lacks.
        """
        self.place = directory / "config.json"
        self._values = _DEFAULTS | read_object(self.place)
        self._search_place = directory / "generation_config.json"
        if not self._search_place.exists():  # older models have these settings in config.json
            self._search_place = self.place
        self._search = read_object(self._search_place)
        self.vocab_size = self._integer("vocab_size")
        self.pad = self._integer("pad_token_id")
        self.eos = self._integer("eos_token_id")
        self.scaled = self._boolean("scale_embedding")
        self.shared = self._boolean("share_encoder_decoder_embeddings")
        self.output_tied = self._boolean("tie_word_embeddings")
        self._check()
        found = {k: v for k, v in (self._values | self._search).items() if v not in _UNSET}
        others = sorted(found.keys() - {*_DEFAULTS, *_ONLY, *_ONLY_IN_SEARCH})
        self.unused = [k for k in others if not _KNOWN.fullmatch(k) and found[k] is not False]

    def config(self, languages: tuple[str, str]) -> Config:
        """Returns our config, given the codes of source and target language.

        Raises:
          UserError: A value is out of range.
        """
        model = self._model()
        return Config(
            model=model,
            data=DataConfig(
                source_language=languages[0],
                target_language=languages[1],
                max_length=min(DataConfig.max_length, model.max_length),
            ),
            search=self._search_config(model.max_length),
        )

    def _model(self) -> ModelConfig:
        fields: dict[str, Any] = {
            # Marian starts translations with padding; our beginning-of-sentence is one more.
            "vocab_size": self.vocab_size + 1,
            "d_model": self._integer("d_model"),
            "d_ff": self._integer("encoder_ffn_dim"),
            "num_heads": self._integer("encoder_attention_heads"),
            "num_layers": self._integer("encoder_layers"),
            "dropout_rate": _number(self.place, "dropout", self._values["dropout"]),
            "activation": _ACTIVATIONS[self._values["activation_function"]],
            "biases": True,
            "embeddings": "tied" if self.all_tied else "separate",
            "norm_epsilon": 1e-5,
            "max_length": self._integer("max_position_embeddings"),
        }
        try:
            return ModelConfig(**fields)
        except UserError as error:
            raise UserError(f"{self.place}: {error}") from None

    @property
    def all_tied(self) -> bool:
        """True if our tied embedding, which is scaled at the input, can represent all of theirs."""
        return self.shared and self.output_tied and self.scaled

    def _search_config(self, longest: int) -> BeamSearch:
        """Converts the search settings, with the rules of transformers."""
        max_length = min(longest, self._length("max", longest))
        stop = self._search.get("early_stopping")
        settings: dict[str, Any] = {
            "beam_size": int(self._search_number("num_beams", 1)),
            "length_penalty": self._search_number("length_penalty", 1.0),
            "max_extra_length": max_length,
            "max_length": max_length,
            "min_length": max(0, self._length("min", 0)),
            "no_repeat_ngram": int(self._search_number("no_repeat_ngram_size", 0)),
            "early_stop": _EARLY_STOP.get(str(stop), stop),
        }
        try:
            return BeamSearch(penalty="power", ends_within="N", unfinished="compete", **settings)
        except UserError as error:
            raise UserError(f"{self._search_place}: search.{error}") from None

    def _length(self, which: Literal["max", "min"], default: int) -> int:
        """Returns a limit in new tokens; the older setting counts the start token, too."""
        older = int(self._search_number(f"{which}_length", default + 1)) - 1
        return int(self._search_number(f"{which}_new_tokens", older))

    def _check(self) -> None:
        values = self._values
        for name, only in _ONLY.items():
            if name in values and values[name] != only:
                raise self._refusal(name, repr(only))
        for what in ("layers", "ffn_dim", "attention_heads"):
            if values[f"decoder_{what}"] != values[f"encoder_{what}"]:
                same = f"encoder_{what}={values[f'encoder_{what}']!r}"
                raise self._refusal(f"decoder_{what}", f"the same as {same}")
        if values["activation_function"] not in list(_ACTIVATIONS):
            raise self._refusal("activation_function", " or ".join(_ACTIVATIONS))
        if values.get("decoder_vocab_size") not in (None, self.vocab_size):
            raise self._refusal(
                "decoder_vocab_size", f"vocab_size={self.vocab_size}: one vocabulary for both sides"
            )
        if values["decoder_start_token_id"] != self.pad:
            raise self._refusal("decoder_start_token_id", f"pad_token_id={self.pad}")
        self._check_search()

    def _check_search(self) -> None:
        same = ("decoder_start_token_id", "eos_token_id", "pad_token_id")
        only = _ONLY_IN_SEARCH | {name: self._values[name] for name in same}
        only |= {"bad_words_ids": [[self.pad]], "forced_eos_token_id": self.eos}
        for name, neutral in only.items():
            if (value := self._search.get(name)) not in (neutral, *_UNSET):
                raise UserError(
                    f"{self._search_place}: expected {name} to be {neutral!r} or left out: got "
                    f"{value!r}; jaxformer's search has no other"
                )

    def _refusal(self, name: str, expected: str) -> UserError:
        return UserError(
            f"{self.place}: expected {name} to be {expected}: got {self._values[name]!r}; "
            "jaxformer's Transformer cannot be such a model"
        )

    def _integer(self, name: str) -> int:
        value = self._values[name]
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**20:
            raise UserError(
                f"{self.place}: expected {name} to be a whole number below {2**20}: got {value!r}"
            )
        return value

    def _boolean(self, name: str) -> bool:
        value = self._values[name]
        if not isinstance(value, bool):
            raise UserError(f"{self.place}: expected {name} to be true or false: got {value!r}")
        return value

    def _search_number(self, name: str, default: float) -> float:
        """Returns a search setting, or a default if it is unset."""
        value = self._search.get(name)
        return default if value is None else _number(self._search_place, name, value)


def _number(place: pathlib.Path, name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 2**31:
        raise UserError(f"{place}: expected {name} to be a number: got {value!r}")
    return float(value)


def read_object(path: pathlib.Path) -> dict[str, Any]:
    """Reads a JSON object of a Marian model.

    Raises:
      UserError: The file is missing or is not a JSON object.
    """
    with readable(path):
        try:
            values = read_json(path)
        except FileNotFoundError:
            raise UserError(
                f"{path}: no such file; expected a folder of a Marian model in the Hugging Face "
                "layout: config.json, model.safetensors or pytorch_model.bin, source.spm, "
                "target.spm, vocab.json"
            ) from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected a JSON object: found {type(values).__name__}")
    return values
