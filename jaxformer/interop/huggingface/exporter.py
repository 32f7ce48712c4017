"""Export to the layout of transformers, the inverse of the import."""

import json
import pathlib
from typing import Any

from jaxformer.files import write_file
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop.formats import Usage
from jaxformer.interop.generate_settings import SEARCH
from jaxformer.interop.huggingface.foreign_layout import (
    ImportedTokenizer,
    Layout,
    label_fields,
)
from jaxformer.interop.huggingface.generation_config import generation_config
from jaxformer.interop.huggingface.importer import all_layouts
from jaxformer.interop.huggingface.sentence_transformers import pooling_files
from jaxformer.interop.safetensors import save_arrays
from jaxformer.search import BeamSearch, Sampling

_NOTES = ("Tensors are float32, with the names that transformers gives them.",)
_OTHER_RULES = (
    "`generation_config.json` has the sizes of the search. In transformers, its length "
    "penalty is a power of the length, and the score of an unfinished text counts."
)


def can_write(model: TrainedModel) -> bool:
    """Returns whether a model has a foreign architecture, and a foreign tokenizer."""
    expected = ImportedTokenizer if model.config.kind.load_tokenizer else type(None)
    if not isinstance(model.tokenizer, expected):
        return False
    return bool(_layouts(model))


def _layouts(model: TrainedModel) -> list[Layout]:
    section = model.config.model
    return [each for each in all_layouts() if each.can_express(section, model.tokenizer)]


def write(model: TrainedModel, folder: pathlib.Path) -> Usage:
    """Writes model.safetensors, config.json, and the files of tokenizer, search and pictures."""
    section = model.config.model
    tokenizer = model.tokenizer
    layout = _layouts(model)[0]
    arrays = layout.arrays(model.params, section, tokenizer)
    save_arrays(arrays, folder / "model.safetensors")

    files: dict[str, Any] = {"config.json": layout.config_json(section, tokenizer)}
    class_names = model.folder.read_class_names()
    if class_names:
        files["config.json"] |= label_fields(class_names)
    if tokenizer is not None:
        for name, content in tokenizer.files().items():
            write_file(folder / name, content)
        files["tokenizer_config.json"] = layout.tokenizer_config_json(section, tokenizer)

    if layout.preprocessor is not None:
        files["preprocessor_config.json"] = layout.preprocessor(section)

    files |= pooling_files(section)
    generation = generation_config(model, layout)
    if generation is not None:
        files["generation_config.json"] = generation

    for name, fields in files.items():
        content = json.dumps(fields, indent=2, ensure_ascii=False) + "\n"
        write_file(folder / name, content.encode())

    return Usage(
        format=f"{layout.network_of(section)} of transformers",
        requires="torch transformers",
        code=layout.example_of(section),
        notes=_NOTES if generation is None else (*_NOTES, *_search_notes(model.config.search)),
    )


def _search_notes(search: BeamSearch | Sampling) -> tuple[str, ...]:
    """Returns a note if ``generate`` of transformers has other rules than the search."""
    if not isinstance(search, BeamSearch):
        return ()

    rules = ("penalty", "ends_within")
    has_other_rules = search.unfinished == "fallback" or any(
        getattr(search, name) != getattr(SEARCH, name) for name in rules
    )
    return (_OTHER_RULES,) if has_other_rules else ()
