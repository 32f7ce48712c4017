"""Checks, tokenizers and descriptions that all export formats share."""

import base64
import dataclasses
import json
import pathlib
import re
from collections.abc import Collection
from fractions import Fraction
from typing import Any, NamedTuple

from jaxformer.config import Config, ModelConfig, model_section
from jaxformer.data.marian_tokenizer import MarianTokenizer
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.errors import UserError
from jaxformer.files import write_file
from jaxformer.inference.parameter_arrays import abstract_params, named_arrays
from jaxformer.inference.weights import TrainedModel
from jaxformer.kinds.parsing import PARSING
from jaxformer.kinds.translation import TRANSLATION
from jaxformer.models.architecture import Architecture
from jaxformer.search import BeamSearch, Sampling

# Fields of a model for which CTranslate2 and Marian support every value.
_ANY = re.compile(
    "(attention_)?dropout_rate|biases|compute_dtype|d_(ff|model)|max_length|norm_epsilon"
    "|num_(heads|layers)|vocab_size"
)
# Values of ``early_stopping`` in transformers, by our ``early_stop``.
EARLY_STOPPING = {"likely": False, "full": True, "proven": "never", "never": "never"}
# Fields of a search that all other systems express or have a rule for. The model card refuses
# constraints.
SEARCH_FIELDS = {
    "beam_size",
    "constraints",
    "early_stop",
    "ends_within",
    "length_penalty",
    "max_length",
    "min_length",
    "no_repeat_ngram",
    "penalty",
    "unfinished",
}


class Usage(NamedTuple):
    """Description of a format for the model card."""

    format: str
    requires: str  # packages that the code imports
    code: str  # Python that loads the model, to be run in the folder of the export
    notes: tuple[str, ...]  # on the files, on differences from the original, and on limits
    remark: str = ""  # what the command prints, if readers of the format may expect other files


def check_fields(config: Architecture, system: str, **allowed: Collection[Any]) -> None:
    """Checks that another system supports the model; unknown fields must have defaults."""
    head_size = Fraction(config.d_model, config.num_heads)
    allowed["d_k"] = [head_size, None]
    allowed["d_v"] = [head_size, None]
    allowed["embeddings"] = ["tied", "separate"]
    allowed["target_vocab_size"] = [config.vocab_size, None]

    for field in dataclasses.fields(config):
        if _ANY.fullmatch(field.name):
            continue

        value = getattr(config, field.name)
        known = allowed.get(field.name, [field.default])
        if value not in known:
            expected = f"model.{field.name}={' or '.join(map(str, known))}"
            raise UserError(f"{system}: expected {expected}, got {value}; export stablehlo instead")


def paper_model(config: Config, system: str) -> ModelConfig:
    """Returns the model of a config for another system, which must be the paper's."""
    if config.model.architecture != ModelConfig.architecture:
        raise UserError(
            f"{system}: expected the paper's model, a ModelConfig, got a "
            f"{type(config.model).__name__}; export stablehlo or safetensors instead"
        )
    return model_section(config, ModelConfig)


def check_params(model: TrainedModel, system: str) -> None:
    """Checks that a model has no parameters besides those that its config describes.

    An exporter writes the parameters by name, and would leave out any other.
    """
    section = model.config.model
    known = named_arrays(abstract_params(section, model.config.kind))
    unknown = sorted(named_arrays(model.params).keys() - known.keys())

    if unknown:
        raise UserError(
            f"{system}: expected the parameters of a {type(section).__name__}, got also "
            f"{unknown[0]}; export stablehlo or safetensors instead"
        )


def required_beam_search(config: Config, system: str) -> BeamSearch:
    """Returns the search of a config for another system, which must be beam search."""
    if not isinstance(config.search, BeamSearch):
        raise UserError(
            f"{system}: expected beam search, got sampling; in Python, give "
            "jaxformer.interop.export.export_model(..., search=BeamSearch())"
        )
    return config.search


def check_search(config: Config, system: str) -> BeamSearch:
    """Returns the search of a config; fields that another system lacks must have defaults."""
    search = required_beam_search(config, system)

    known = set(SEARCH_FIELDS)
    most = search.max_length
    if most is not None and most <= search.max_extra_length:
        known.add("max_extra_length")  # It never limits a translation.

    check_search_fields(search, known, system, otherwise=", or export stablehlo instead")
    return search


def check_search_fields(
    search: BeamSearch | Sampling,
    known: Collection[str],
    system: str,
    otherwise: str = "",
) -> None:
    """Refuses a search whose fields, except the known ones, do not have their defaults.

    ``otherwise`` is appended to the advice of the message.
    """
    for field in dataclasses.fields(search):
        name = field.name
        default = field.default
        value = getattr(search, name)
        if name not in known and value != default:
            option = f"--{name.replace('_', '-')}"
            raise UserError(
                f"{system}: expected search.{name}={default}, got {value}; give {option} "
                f"{default}{otherwise}"
            )


class SentencePieceModels(NamedTuple):
    """The serialized SentencePiece models of both sides of a translation model."""

    source: bytes
    target: bytes


def sentencepiece_models(model: TrainedModel) -> SentencePieceModels:
    """Returns the SentencePiece models, which are the same where both sides share a vocabulary.

    Raises:
      UserError: The model does not translate text with SentencePiece.
    """
    _check_translates(model)
    serialized = model.tokenizer.serialized
    if not isinstance(model.tokenizer, MarianTokenizer):
        return SentencePieceModels(serialized, serialized)

    models = json.loads(serialized)
    source = base64.b64decode(models["source"])
    target = base64.b64decode(models["target"])
    return SentencePieceModels(source, target)


def pieces_of(model: TrainedModel) -> list[str]:
    """Returns the piece of every id."""
    return [model.tokenizer.piece(token) for token in range(model.tokenizer.vocab_size)]


def write_tokenizer(model: TrainedModel, folder: pathlib.Path) -> list[str]:
    """Writes source.spm and target.spm, and returns the piece of every id."""
    for side, content in sentencepiece_models(model)._asdict().items():
        write_file(folder / f"{side}.spm", content)
    return pieces_of(model)


def _check_translates(model: TrainedModel) -> None:
    """Refuses models without a SentencePiece model for the text of each side."""
    tokenizer = model.tokenizer
    if model.config.kind not in (TRANSLATION, PARSING):
        found = model.config.kind.description
    elif type(tokenizer) not in (Tokenizer, MarianTokenizer):
        found = f"a model with a {type(tokenizer).__name__}"
    elif tokenizer.target_vocab_size != tokenizer.vocab_size:
        found = "a model whose targets are symbols"
    else:
        return
    raise UserError(
        f"{model.folder.path}: expected a model that translates text, got {found}; export "
        "safetensors instead"
    )
