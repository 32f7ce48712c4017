"""generation_config.json: the search of a model, as ``generate`` of transformers does it."""

from typing import Any

from jaxformer.config import DataConfig, data_section
from jaxformer.data.whisper_tokenizer import WhisperTokenizer
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop.formats import EARLY_STOPPING, SEARCH_FIELDS, check_search_fields
from jaxformer.interop.huggingface.foreign_layout import Layout
from jaxformer.kinds.captioning import CAPTIONING
from jaxformer.kinds.language_modeling import LANGUAGE_MODELING
from jaxformer.kinds.transcription import TRANSCRIPTION
from jaxformer.kinds.translation import TRANSLATION
from jaxformer.search import BeamSearch, Sampling

# Special tokens that our language models never generate.
_NEVER_GENERATED = ("pad", "bos", "unk")
# Fields of a search that ``generate`` has, has a rule of its own for, or gets at each call.
_SEARCH = SEARCH_FIELDS | {
    "max_extra_length",
    "min_p",
    "num_samples",
    "seed",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
}


def generation_config(model: TrainedModel, layout: Layout) -> dict[str, Any] | None:
    """Returns the fields of generation_config.json; None for a model that generates nothing.

    ``generate`` has no limit that depends on the source, as ``max_extra_length``. In its place is
    the limit for the longest source in training.

    Raises:
      UserError: The search has a setting that ``generate`` lacks.
    """
    config = model.config
    tokenizer = model.tokenizer
    if config.kind not in (CAPTIONING, LANGUAGE_MODELING, TRANSCRIPTION, TRANSLATION):
        return None
    check_search_fields(config.search, _SEARCH, layout.model_type)

    fields: dict[str, Any] = {}
    for name, theirs in layout.special.items():
        fields[theirs] = tokenizer.special[name]
    fields |= _search_fields(config.search)
    if isinstance(config.search, BeamSearch) and config.search.unfinished == "end":
        fields["forced_eos_token_id"] = tokenizer.special["eos"]

    if config.kind is LANGUAGE_MODELING:
        end = tokenizer.special["eos"]
        other_ends = [int(tokenizer.their_ids[number]) for number in tokenizer.other_ends]
        if other_ends:
            fields["eos_token_id"] = [end, *other_ends]

        never_generated = {tokenizer.special[name] for name in _NEVER_GENERATED}
        suppressed = sorted(never_generated - {end, None})
        fields["suppress_tokens"] = suppressed or None

    elif isinstance(tokenizer, WhisperTokenizer):
        fields |= tokenizer.generation
        # Its limit counts the beginning and the prompt, too.
        fields["max_length"] = config.model.max_length
        fields["bos_token_id"] = tokenizer.special["eos"]

    elif config.kind in (CAPTIONING, TRANSCRIPTION):
        fields["max_new_tokens"] = config.search.max_length or config.model.max_length

    elif config.search.max_length is None:
        longest_source = data_section(config, DataConfig).max_length
        longest_target = longest_source + config.search.max_extra_length
        fields["max_length"] = min(config.model.max_length, longest_target)

    for code in tokenizer.target_start:
        fields["forced_bos_token_id"] = int(tokenizer.their_ids[code])
    return {name: value for name, value in fields.items() if value is not None}


def _search_fields(search: BeamSearch | Sampling) -> dict[str, Any]:
    """Returns the settings of a search that ``generate`` has."""
    fields: dict[str, Any] = {
        "max_new_tokens": search.max_length,
        "min_new_tokens": search.min_length or None,
        "no_repeat_ngram_size": search.no_repeat_ngram or None,
    }
    if isinstance(search, Sampling):
        return fields | {
            "do_sample": True,
            "temperature": search.temperature,
            "top_k": search.top_k,
            "top_p": search.top_p,
            "min_p": search.min_p or None,
            "typical_p": search.typical_p if search.typical_p < 1 else None,
        }

    fields["do_sample"] = False
    fields["num_beams"] = search.beam_size
    if search.beam_size > 1:
        fields["early_stopping"] = EARLY_STOPPING[search.early_stop]
        fields["length_penalty"] = search.length_penalty
        if search.penalty == "none":
            fields["length_penalty"] = 0.0
    return fields
