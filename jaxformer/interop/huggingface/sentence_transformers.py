"""The files in which sentence-transformers says how a text gets one vector."""

import pathlib
from typing import Any

from jaxformer.errors import UserError
from jaxformer.files import read_json
from jaxformer.models.bert import BertConfig

MODULES = "modules.json"
POOLING = "1_Pooling/config.json"
# Fields of the configuration of pooling, by our names.
_MODES = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
}
_ADVICE = f"remove {MODULES} to import the model without"


def read_pooling(folder: pathlib.Path) -> dict[str, Any]:
    """Returns fields of :class:`~jaxformer.BertConfig`; none for a folder without modules.json.

    Raises:
      UserError: A module, or the pooling, is not one that jaxformer has.
    """
    place = folder / MODULES
    if not place.exists():
        return {}

    modules = read_json(place)
    types = []
    for module in modules if isinstance(modules, list) else []:
        found = module.get("type") if isinstance(module, dict) else None
        types.append(str(found).rpartition(".")[2])

    normalized = types == ["Transformer", "Pooling", "Normalize"]
    if not normalized and types != ["Transformer", "Pooling"]:
        found = ", ".join(types) or repr(modules)
        raise UserError(
            f"{place}: expected modules Transformer, Pooling and perhaps Normalize, got "
            f"{found:.80}; {_ADVICE}"
        )
    return {"pooling": _read_mode(folder / POOLING), "normalized": normalized}


def _read_mode(place: pathlib.Path) -> str:
    fields = read_json(place)
    chosen = []
    if isinstance(fields, dict):
        for name, value in fields.items():
            if name.startswith("pooling_mode_") and value:
                chosen.append(name)
            elif name == "pooling_mode":  # the only field of newer files
                chosen.append(str(value))

    for ours, theirs in _MODES.items():
        if chosen in ([theirs], [ours]):
            return ours
    raise UserError(
        f"{place}: expected the pooling of mean, cls or max, got {', '.join(chosen) or 'none'}; "
        f"{_ADVICE}"
    )


def pooling_files(model: Any) -> dict[str, Any]:
    """Returns the files of a model, by name; none for the default of sentence-transformers."""
    if not isinstance(model, BertConfig):
        return {}
    if model.pooling == "mean" and not model.normalized:
        return {}

    types = {"": "Transformer", "1_Pooling": "Pooling"}
    if model.normalized:
        types["2_Normalize"] = "Normalize"
    modules = []
    for number, (path, name) in enumerate(types.items()):
        modules.append(
            {
                "idx": number,
                "name": str(number),
                "path": path,
                "type": f"sentence_transformers.models.{name}",
            }
        )

    modes = {theirs: ours == model.pooling for ours, theirs in _MODES.items()}
    return {MODULES: modules, POOLING: {"word_embedding_dimension": model.d_model, **modes}}
