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
# Our ``early_stop`` for each value of ``early_stopping``.
_EARLY_STOP = {"None": "likely", "False": "likely", "True": "full", "never": "proven"}
# Settings that are read here or by all importers, settings of sampling, which ``do_sample``
# switches on, and settings that change no output.
_READ = re.compile(
    "early_stopping|forced_eos_token_id|length_penalty|(max|min)_(length|new_tokens)"
    "|no_repeat_ngram_size|num_beams"
    "|(bos|decoder_start|eos|pad)_token_id"
    "|min_p|temperature|top_(k|p)|typical_p"
    "|_.*|output_(attentions|hidden_states|logits|scores)|return_dict_in_generate"
    "|transformers_version|use_cache"
)
# Values of other settings that change no output.
_NEUTRAL: dict[str, Any] = {
    "diversity_penalty": 0.0,
    "encoder_no_repeat_ngram_size": 0,
    "num_beam_groups": 1,
    "num_return_sequences": 1,
    "repetition_penalty": 1.0,
}


def settings_of_generate(config: JsonFields) -> JsonFields:
    """Returns generation_config.json; if there is none, config.json, which has its fields."""
    place = config.place.with_name("generation_config.json")
    return JsonFields(place, {}) if place.exists() else config


def unused_settings(settings: JsonFields, read: Collection[str]) -> list[str]:
    """Returns the names of settings of ``generate`` that are set but unused, sorted.

    Args:
      settings: From :func:`settings_of_generate`.
      read: Further settings that the importer of the model reads or checks.
    """
    has_own_file = settings.place.name == "generation_config.json"
    names = []
    for name, value in settings.values.items():
        is_setting = has_own_file or is_search_setting(name)
        is_read = name in read or bool(_READ.fullmatch(name))
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
    settings.check("forced_eos_token_id", ends, f"{eos} or left out", "search has no other")
    forced_end = settings.values.get("forced_eos_token_id")
    stop = settings.values.get("early_stopping")

    fields: dict[str, Any] = {
        "beam_size": int(settings.number("num_beams", default.beam_size)),
        "length_penalty": settings.number("length_penalty", default.length_penalty),
        "min_length": max(0, _length(settings, "min") or 0),
        "no_repeat_ngram": int(settings.number("no_repeat_ngram_size", 0)),
        "early_stop": _EARLY_STOP.get(str(stop), stop),
        "unfinished": "compete" if forced_end in UNSET else "end",
    }

    most = _length(settings, "max")
    if most is not None:
        # No other limit, such as one that depends on the source.
        fields["max_length"] = fields["max_extra_length"] = min(most, longest)

    try:
        return dataclasses.replace(default, **fields)
    except UserError as error:
        raise UserError(f"{settings.place}: search.{error}") from None


def _length(settings: JsonFields, which: Literal["max", "min"]) -> int | None:
    """Returns a limit in new tokens; None if it is unset."""
    new_tokens = f"{which}_new_tokens"
    if settings.values.get(new_tokens) is not None:
        return int(settings.number(new_tokens))

    # The older setting counts the decoder's first token, too.
    with_first = f"{which}_length"
    if settings.values.get(with_first) is not None:
        return int(settings.number(with_first)) - 1
    return None
