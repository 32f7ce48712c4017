"""Export to the layout of transformers, the inverse of the import."""

import json
import pathlib

from jaxformer.data.huggingface_tokenizer import HuggingFaceTokenizer
from jaxformer.files import write_file
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop.formats import Usage
from jaxformer.interop.huggingface.foreign_layout import Layout
from jaxformer.interop.huggingface.importer import known_layouts
from jaxformer.interop.safetensors import save_arrays


def can_write(model: TrainedModel) -> bool:
    """Returns whether a model has a foreign architecture, and a foreign tokenizer."""
    expected = HuggingFaceTokenizer if model.config.kind.load_tokenizer else type(None)
    if not isinstance(model.tokenizer, expected):
        return False
    return bool(_layouts(model))


def _layouts(model: TrainedModel) -> list[Layout]:
    section = model.config.model
    known = known_layouts().values()
    return [each for each in known if each.can_express(section, model.tokenizer)]


def write(model: TrainedModel, folder: pathlib.Path) -> Usage:
    """Writes model.safetensors, config.json, and the files of the tokenizer or of pictures."""
    section = model.config.model
    tokenizer = model.tokenizer
    layout = _layouts(model)[0]
    arrays = layout.arrays(model.params, section, tokenizer)
    save_arrays(arrays, folder / "model.safetensors")

    files = {"config.json": layout.config_json(section, tokenizer)}
    if tokenizer is not None:
        write_file(folder / "tokenizer.json", tokenizer.json.encode())
        files["tokenizer_config.json"] = layout.tokenizer_config_json(section, tokenizer)

    if layout.preprocessor is not None:
        files["preprocessor_config.json"] = layout.preprocessor(section)

    for name, fields in files.items():
        content = json.dumps(fields, indent=2, ensure_ascii=False) + "\n"
        write_file(folder / name, content.encode())

    network = layout.network_of(section)
    languages = getattr(tokenizer, "languages", ())
    example = layout.example
    if not isinstance(example, str):
        example = example(tokenizer)
    example = example.replace("NETWORK", network)
    example = example.replace("LANGUAGES", repr(languages))
    return Usage(
        format=f"{network} of transformers",
        requires="torch transformers",
        code=example,
        notes=("Tensors are float32, with the names that transformers gives them.",),
    )
