"""Import of models in the layout of transformers: config.json, safetensors, tokenizer.json."""

import dataclasses
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from jaxformer.config import Config
from jaxformer.data.huggingface_tokenizer import HuggingFaceTokenizer
from jaxformer.data.tokenizer import BOS, EOS
from jaxformer.data.whisper_tokenizer import WhisperTokenizer
from jaxformer.errors import MALFORMED, UserError, prefix_errors
from jaxformer.files import local_path, run_path
from jaxformer.inference.origins import IMPORT
from jaxformer.inference.parameter_arrays import abstract_params
from jaxformer.interop.generate_settings import (
    SEARCH,
    inherit_settings,
    search_of_generate,
    settings_of_generate,
    unused_settings,
)
from jaxformer.interop.hub import ModelFiles
from jaxformer.interop.huggingface import layouts
from jaxformer.interop.huggingface.foreign_layout import ImportedTokenizer, Layout
from jaxformer.interop.huggingface.layouts import m2m100
from jaxformer.interop.huggingface.new_languages import (
    Languages,
    add_codes,
    parse_languages,
    rows_of_tokens,
)
from jaxformer.interop.huggingface.sentence_transformers import MODULES, POOLING
from jaxformer.interop.huggingface.tokenizer_config import class_name, read_tokenizer_file
from jaxformer.interop.imported import write_import
from jaxformer.interop.json_fields import JsonFields
from jaxformer.interop.named_arrays import NamedArrays
from jaxformer.interop.weight_files import WEIGHTS, read_weights
from jaxformer.registry import find_values
from jaxformer.runs.workdir import Workdir
from jaxformer.search import BeamSearch

FILES = ModelFiles(
    model="a model with a tokenizer.json",
    needed=(
        "config.json",
        "tokenizer.json|sentencepiece.bpe.model|spiece.model|tokenizer.model|vocab.json|vocab.txt"
        "|preprocessor_config.json",
    ),
    optional=(
        "tokenizer_config.json",
        "special_tokens_map.json",
        "generation_config.json",
        "preprocessor_config.json",
        "merges.txt",
        MODULES,
        POOLING,
    ),
    weights=WEIGHTS,
)
_FILES = (
    "expected a folder of a model in the Hugging Face layout: config.json, tokenizer.json, and "
    "model.safetensors, flax_model.msgpack or pytorch_model.bin, or one of them in several files "
    "with their .index.json"
)


def import_huggingface(
    directory: pathlib.Path,
    workdir: pathlib.Path,
    languages: Sequence[str] = (),
) -> str:
    """Converts the model in a folder to a new workdir, which every command accepts.

    An unfinished workdir is overwritten. ``languages`` has the source and the target language, for
    a model of many languages; tyv_Cyrl=kir_Cyrl is a new one, whose embedding begins as a copy of
    kir_Cyrl's. Returns lines with a summary of the model, about dropout, and about new languages.
    """
    directory = local_path(directory)
    folder = Workdir(run_path(workdir))
    folder.check_writable(IMPORT)

    fields = JsonFields(directory / "config.json", {}, _FILES)
    layout = _layout(fields, languages)
    fields.flatten_sections(layout.sections)
    fields.rename(layout.renamed)
    if layout.has_decoder:
        inherit_settings(fields)
    fields.values = {**layout.defaults, **fields.values}
    place, tensors = _read_tensors(directory, layout)
    fields.tensors = tensors

    chosen = parse_languages(languages)
    tokenizer = _read_tokenizer(directory, fields, layout, languages=chosen)
    model = layout.config(fields, tokenizer)
    names = dict(zip(("source_language", "target_language"), chosen.codes, strict=False))
    data = dataclasses.replace(layout.data(model), **names)
    search, unused = _read_search(fields, layout, tokenizer, model)
    config = Config(model=model, data=data, search=search)

    num_rows = len(tokenizer.our_ids) if tokenizer else 0
    if chosen.copied:  # A new language may have an id after the file's.
        num_rows = _vocab_size(fields, layout)
    arrays = NamedArrays(
        arrays=tensors,
        sizes=layout.file_sizes(model, num_rows),
        orders={"V": rows_of_tokens(tokenizer, chosen.copied), **layout.orders(model)},
        place=str(place),
    )
    params = layout.params(
        arrays,
        model,
        shapes=abstract_params(model, config.kind),
        absent=tokenizer.absent if tokenizer else "",
    )
    size = write_import(
        folder,
        "Hugging Face",
        directory,
        config=config,
        tokenizer=tokenizer,
        params=params,
        class_names=() if layout.has_tokenizer else _class_names(layout, fields),
    )
    lines = [
        f"{layout.network_of(model)}, {size}",
        f"  {layout.dropout(fields, model)}",
    ]
    if unused:
        lines.append(f"  not used: {', '.join(unused)}")
    for code, known in chosen.copied.items():
        lines.append(f"  {code} is new: its embedding is a copy of {known}'s")
    return "\n".join(lines)


def _read_tokenizer(
    directory: pathlib.Path,
    fields: JsonFields,
    layout: Layout,
    *,
    languages: Languages,
) -> ImportedTokenizer | None:
    """Reads the tokenizer of a model; None if the model has none."""
    if layout.read_tokenizer is not None:
        return layout.read_tokenizer(fields)
    if not layout.has_tokenizer:
        return None
    return read_tokenizer_files(directory / "tokenizer.json", fields, layout, *languages)


def _class_names(layout: Layout, fields: JsonFields) -> list[str]:
    """Returns the names of classes of pictures; none if a file has only numbers."""
    names = layout.labels(fields) or []
    numbers = [f"LABEL_{number}" for number in range(len(names))]
    return [] if names == numbers else names


def known_layouts() -> dict[str, Layout]:
    """Returns a layout of each foreign model by its ``model_type``, sorted."""
    return {layout.model_type: layout for layout in all_layouts()}


def all_layouts() -> list[Layout]:
    """Returns all layouts, sorted by ``model_type``; models that consist of others have several.

    An export takes the first that can express a model.
    """
    return sorted(find_values(layouts, Layout), key=lambda layout: layout.model_type)


def _read_tensors(
    directory: pathlib.Path,
    layout: Layout,
) -> tuple[pathlib.Path, dict[str, np.ndarray]]:
    """Returns the file that lists the tensors, and the tensors by the names of the layout."""
    buffers = re.compile(f"({re.escape(layout.prefix)})?{layout.buffers}")
    place, found = read_weights(directory, buffers, _FILES)

    tensors = {layout.name_of(name): array for name, array in found.items()}
    if len(tensors) < len(found):
        raise UserError(f"{place}: expected each tensor once, got some with and without a prefix")
    layout.join_continued(tensors)
    return place, tensors


def _layout(fields: JsonFields, languages: Sequence[str]) -> Layout:
    name = fields.values.get("model_type", _family_in_timm(fields))
    if name == "marian":
        raise UserError(f"{fields.place}: a Marian model; give jaxformer import marian")
    known = known_layouts()
    if not isinstance(name, str) or name not in known:
        raise UserError(
            f"{fields.place}: expected model_type to be {' or '.join(known)}: got {name!r:.80}"
        )

    layout = _layout_of_parts(fields, name)
    if len(languages) != 2 * layout.has_languages:
        options = "--source-language and --target-language"
        expected = options if layout.has_languages else f"no {options}"
        raise UserError(f"{fields.place}: expected {expected} for a model of type {name}")

    layout.check_architectures(fields)
    return layout


def _family_in_timm(fields: JsonFields) -> str | None:
    """Returns the beginning of the name of a model of timm, such as convit of convit_tiny."""
    architecture = fields.values.get("architecture")
    if not isinstance(architecture, str):
        return None
    family, _, _ = architecture.partition("_")
    return family


def _layout_of_parts(fields: JsonFields, model_type: str) -> Layout:
    """Returns the layout of a model, chosen by the types of its parts if it has any."""
    choices = [layout for layout in all_layouts() if layout.model_type == model_type]
    if len(choices) == 1:
        return choices[0]

    types_of_sections = {}
    for section in choices[0].parts:
        values = fields.values.get(section)
        types_of_sections[section] = None
        if isinstance(values, dict):
            types_of_sections[section] = values.get("model_type")
    for layout in choices:
        if layout.parts == types_of_sections:
            return layout

    sections = " and ".join(types_of_sections)
    known = ", or ".join(" and ".join(layout.parts.values()) for layout in choices)
    given = " and ".join(map(str, types_of_sections.values()))
    raise UserError(f"{fields.place}: expected {sections} of the types {known}: got {given:.80}")


def read_tokenizer_files(
    path: pathlib.Path,
    fields: JsonFields,
    layout: Layout,
    languages: Sequence[str],
    copied: Mapping[str, str] = MappingProxyType({}),
) -> ImportedTokenizer:
    """Reads tokenizer.json; the ids of special tokens are in config.json or there.

    It gets the new languages among ``languages``, which are ``copied`` of known ones.
    """
    labels = layout.labels(fields)
    is_language_model = labels is None and not layout.has_decoder

    special: dict[str, int | None] = {}
    other_ends: list[int] = []
    for name, field in layout.special.items():
        if fields.values.get(field) is None:
            special[name] = None
        elif name == "eos" and is_language_model:
            special[name], *other_ends = _ends(fields, field)
        else:
            special[name] = fields.integer(field)

    vocab_size = _vocab_size(fields, layout)
    code_follows = False
    if layout.has_languages:
        settings = JsonFields(path.with_name("tokenizer_config.json"), {})
        code_follows = layout.code_follows(class_name(settings, fields), settings)
        model = path.with_name("sentencepiece.bpe.model")
        if layout is m2m100.M2M100 and not path.exists() and model.exists():
            if copied:
                raise UserError(
                    f"{path.parent}: expected languages of M2M-100, whose tokenizer in "
                    f"transformers has no other: got {min(copied)}; give the code of a language "
                    "that you do not need, such as a related one"
                )
            return m2m100.read_tokenizer(model, languages, vocab_size)

    forced_start = None
    if layout.has_decoder and not layout.has_languages:  # A language takes its place.
        forced_start = _forced_start(fields)
    if layout.has_decoder:  # It may begin with the code of the target.
        special["bos"] = None if code_follows else _decoder_start(fields)

    found = read_tokenizer_file(path.parent, fields, _FILES)
    with prefix_errors(str(path), *MALFORMED):
        json_text = found.json
        if copied:
            json_text, vocab_size = add_codes(json_text, vocab_size, copied)
        values = json.loads(json_text)
        special["unk"] = _unknown(values)
        for name, token in layout.special_tokens.items():
            special[name] = _id_of(values, token)

        tokenizer = HuggingFaceTokenizer.assemble(
            json_text,
            special,
            vocab_size,
            labels=labels,
            languages=languages,
            code_follows=code_follows,
            skips_blank=layout.has_decoder,
            forced_start=forced_start,
            other_ends=other_ends,
            mask=found.mask,
            has_types=found.has_types,
        )

        blank = tokenizer.encode_prompt("")  # raises an error if no text has ids
        if labels is not None and blank != [BOS, EOS]:
            raise UserError("expected a post_processor that adds the first and the last token")
        return layout.finish_tokenizer(tokenizer, settings_of_generate(fields))


def _vocab_size(fields: JsonFields, layout: Layout) -> int:
    """Returns the number of tokens that a file has embeddings of."""
    size = fields.integer(layout.vocab_fields[0])
    if layout.additional_vocab:
        size += fields.integer(layout.additional_vocab)
    return size


def _read_search(
    config: JsonFields,
    layout: Layout,
    tokenizer: ImportedTokenizer | None,
    model: Any,
) -> tuple[BeamSearch, list[str]]:
    """Returns the search of a model, and the names of settings of ``generate`` that it lacks."""
    is_whisper = isinstance(tokenizer, WhisperTokenizer)  # which keeps its own settings
    is_encoder = layout.labels(config) is not None
    if tokenizer is None or is_whisper or is_encoder:
        return SEARCH, []

    settings = settings_of_generate(config)
    if not layout.has_decoder:  # Language models, for instance, have our search whatever is set.
        return SEARCH, unused_settings(settings, read=[], is_searched=False)

    eos = tokenizer.special["eos"]
    search = search_of_generate(
        settings,
        default=SEARCH,
        eos=eos,
        longest=model.max_length,
    )
    return search, unused_settings(settings, read=["forced_bos_token_id"])


def _ends(fields: JsonFields, name: str) -> list[int]:
    """Returns the ids of the tokens that end a text in ``generate``; the first is our EOS."""
    settings = settings_of_generate(fields)
    if settings.values.get(name) is None:
        settings = fields
    ends = settings.integers(name)

    main, *_ = fields.integers(name)
    if main not in ends:
        return ends
    others = [number for number in ends if number != main]
    return [main, *others]


def _decoder_start(fields: JsonFields) -> int:
    """Returns the id of the token that the decoder begins with, found as ``generate`` does."""
    name = "decoder_start_token_id"
    for place in (settings_of_generate(fields), fields):
        if place.values.get(name) is not None:
            return place.integer(name)
    return fields.integer("bos_token_id")


def _forced_start(fields: JsonFields) -> int | None:
    """Returns the id of the token that ``generate`` forces at the beginning of every output."""
    settings = settings_of_generate(fields)
    if settings.values.get("forced_bos_token_id") is None:
        return None
    return settings.integer("forced_bos_token_id")


def _unknown(tokenizer: Any) -> int | None:
    """Returns the id of the unknown token, if tokenizer.json names one."""
    match tokenizer:
        case {"model": {"unk_id": int(number)}}:  # of a unigram model
            return number
        case {"model": {"unk_token": str(name), "vocab": dict(vocabulary)}}:
            return vocabulary.get(name)
    return None


def _id_of(tokenizer: dict[str, Any], token: str) -> int:
    """Returns the id of a special token of tokenizer.json, which must have it."""
    for each in tokenizer["added_tokens"]:
        if each["content"] == token:
            return each["id"]
    raise UserError(f"expected the special token {token}")
