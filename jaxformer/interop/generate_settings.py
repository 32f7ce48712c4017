"""The search of a model of transformers: what its method ``generate`` does by default."""

import dataclasses
import re
from collections.abc import Collection
from typing import Any, Literal

from jaxformer.errors import UserError
from jaxformer.interop.config_fields import is_search_setting
from jaxformer.interop.json_fields import JsonFields
from jaxformer.search import BeamSearch

# Search with the rules of ``generate``, and with its defaults except for the size of the beam.
SEARCH = BeamSearch(
    penalty="power", length_penalty=1.0, ends_within="N", unfinished="compete", early_stop="likely"
)
UNSET: tuple[Any, ...] = (None, [], {})
_IDS = ("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id")
# Our ``early_stop`` for each value of ``early_stopping``.
_EARLY_STOP = {"None": "likely", "False": "likely", "True": "full", "never": "proven"}
# Settings that the search of an encoder-decoder has, and settings of sampling, which ``do_sample``
# switches on.
_SEARCHED = re.compile(
    "early_stopping|forced_eos_token_id|length_penalty|(max|min)_(length|new_tokens)"
    "|min_p|no_repeat_ngram_size|num_beams|temperature|top_(k|p)|typical_p"
)
# Settings that all importers read, and settings that change no output.
_READ = re.compile(
    "(bos|decoder_start|eos|pad)_token_id"
    "|_.*|output_(attentions|hidden_states|logits|scores)|return_dict_in_generate"
    "|transformers_version|use_cache"
)
# Values of other settings that change no output.
_NEUTRAL: dict[str, Any] = {
    "diversity_penalty": 0.0,
    "encoder_no_repeat_ngram_size": 0,
    "length_penalty": 1.0,
    "max_length": 20,  # in transformers 4 also where there is no limit
    "min_length": 0,
    "no_repeat_ngram_size": 0,
    "num_beam_groups": 1,
    "num_beams": 1,
    "num_return_sequences": 1,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "typical_p": 1.0,
}


def settings_of_generate(config: JsonFields) -> JsonFields:
    """Returns generation_config.json; if there is none, config.json, which has its fields."""
    place = config.place.with_name("generation_config.json")
    return JsonFields(place, {}) if place.exists() else config


def inherit_settings(config: JsonFields) -> None:
    """Gives config.json the settings that it leaves out and that ``generate`` finds elsewhere.

    Ids of special tokens may be in generation_config.json, or in the section of the decoder, as in
    files of TrOCR. Without a generation_config.json, this section may have other settings, too.

    Args:
      config: The fields of config.json; fields of a section are named ``decoder.name``.
    """
    generation = settings_of_generate(config)
    has_own_file = generation is not config

    found = {}
    for name, value in config.values.items():
        section, _, own_name = name.rpartition(".")
        is_setting = own_name in _IDS or (is_search_setting(own_name) and not has_own_file)
        if section == "decoder" and is_setting:
            found[own_name] = value
    for name in _IDS:
        value = generation.values.get(name)
        if value is not None:
            found[name] = value

    for name, value in found.items():
        if config.values.get(name) is None:
            config.values[name] = value


def unused_settings(
    settings: JsonFields,
    read: Collection[str],
    is_searched: bool = True,
) -> list[str]:
    """Returns the names of settings of ``generate`` that are set but unused, sorted.

    Args:
      settings: From :func:`settings_of_generate`.
      read: Further settings that the importer of the model reads or checks.
      is_searched: Whether the model has the search of :func:`search_of_generate`.
    """
    has_own_file = settings.place.name == "generation_config.json"
    names = []
    for name, value in settings.values.items():
        is_setting = has_own_file or is_search_setting(name)
        is_read = name in read or bool(_READ.fullmatch(name))
        is_read |= is_searched and bool(_SEARCHED.fullmatch(name))
        is_neutral = value is False or value in UNSET or value == _NEUTRAL.get(name)
        if is_setting and not is_read and not is_neutral:
            names.append(name)
    return sorted(names)


def search_of_generate(
    settings: JsonFields,
    default: BeamSearch,
    *,
    eos: int | None,
    longest: int,
) -> BeamSearch:
    """Returns the beam search of ``generate``, for a model whose decoder begins with one token.

    Args:
      settings: From :func:`settings_of_generate`.
      default: The search of a model that sets nothing.
      eos: The token that ends an output, in the numbers of transformers; None without one.
      longest: Maximum number of tokens of an output.

    Raises:
      UserError: A setting is malformed, or our search cannot follow it.
    """
    ends = [eos, [eos], *UNSET]
    for name in ("eos_token_id", "forced_eos_token_id"):
        settings.check(name, ends, f"{eos} or left out", "search has no other")
    forced_end = settings.values.get("forced_eos_token_id")
    stop = settings.values.get("early_stopping")

    fields: dict[str, Any] = {
        "beam_size": _count(settings, "num_beams", default.beam_size),
        "length_penalty": settings.number("length_penalty", default.length_penalty),
        "min_length": max(0, _length(settings, "min") or 0),
        "no_repeat_ngram": _count(settings, "no_repeat_ngram_size", 0),
        "early_stop": _EARLY_STOP.get(str(stop), stop),
        "unfinished": "compete" if forced_end in UNSET else "end",
    }

    most = _length(settings, "max")
    if most is not None:
        # No other limit, such as one that depends on the source.
        limit = min(most, longest)
        fields["max_length"] = limit
        fields["max_extra_length"] = limit

    try:
        return dataclasses.replace(default, **fields)
    except UserError as error:
        raise UserError(f"{settings.place}: search.{error}") from None


def _count(settings: JsonFields, name: str, default: int) -> int:
    """Returns a whole number, or the default for a setting that is unset."""
    if settings.values.get(name) is None:
        return default
    return settings.integer(name)


def _length(settings: JsonFields, which: Literal["max", "min"]) -> int | None:
    """Returns a limit in new tokens; None if it is unset."""
    new_tokens = f"{which}_new_tokens"
    if settings.values.get(new_tokens) is not None:
        return settings.integer(new_tokens)

    # The older setting counts the decoder's first token, too.
    with_first = f"{which}_length"
    if settings.values.get(with_first) is not None:
        return settings.integer(with_first) - 1
    return None
