"""The parts of a trained model that the formats of an export need."""

import base64
import dataclasses
import json
import pathlib
import re
from collections.abc import Collection
from fractions import Fraction
from typing import Any, NamedTuple

from jaxformer.config import Config, ModelConfig
from jaxformer.data.marian_tokenizer import MarianTokenizer
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.errors import UserError
from jaxformer.files import write_file
from jaxformer.inference.weights import TrainedModel
from jaxformer.kinds import PARSING, TRANSLATION
from jaxformer.search import BeamSearch

# Fields of a model whose every value can be expressed by CTranslate2 and Marian.
_ANY = re.compile(
    "(attention_)?dropout_rate|biases|compute_dtype|d_(ff|model)|max_length|norm_epsilon"
    "|num_(heads|layers)|vocab_size"
)


class TextModel(NamedTuple):
    """The text side of a translation model.

    Attributes:
      files: Contents of ``source.spm`` and ``target.spm``, SentencePiece models.
      pieces: The piece of every token id.
    """

    files: dict[str, bytes]
    pieces: list[str]

    def write(self, folder: pathlib.Path) -> None:
        """Writes the files."""
        for name, content in self.files.items():
            write_file(folder / name, content)


def check_fields(config: ModelConfig, system: str, **allowed: Collection[Any]) -> None:
    """Checks that another system can express the model; unknown fields must have defaults.

    Raises:
      UserError: A field has a value that is not ``allowed``.
    """
    head = Fraction(config.d_model, config.num_heads)
    allowed |= {"d_k": [head, None], "d_v": [head, None], "embeddings": ["tied", "separate"]}
    allowed |= {"target_vocab_size": [config.vocab_size, None]}
    for field in dataclasses.fields(config):
        value, known = getattr(config, field.name), allowed.get(field.name, [field.default])
        if not _ANY.fullmatch(field.name) and value not in known:
            expected = f"model.{field.name}={' or '.join(map(str, known))}"
            raise UserError(f"{system}: expected {expected}, got {value}; export stablehlo instead")


def beam_search(config: Config, system: str) -> BeamSearch:
    """Returns the search of a config, for another system.

    Raises:
      UserError: It samples.
    """
    if not isinstance(config.search, BeamSearch):
        raise UserError(
            f"{system}: expected beam search, got sampling; in Python, give "
            "jaxformer.interop.export.export_model(..., search=BeamSearch())"
        )
    return config.search


def text_model(model: TrainedModel) -> TextModel:
    """Returns the SentencePiece models and the pieces of a model that translates text.

    Raises:
      UserError: It is a language model, or its targets are not text.
    """
    tokenizer = model.tokenizer
    if model.config.kind not in (TRANSLATION, PARSING):
        found = model.config.kind.description
    elif type(tokenizer) not in (Tokenizer, MarianTokenizer):
        found = f"a model with a {type(tokenizer).__name__}"
    elif tokenizer.target_vocab_size != tokenizer.vocab_size:
        found = "a model whose targets are symbols"
    else:
        pieces = [tokenizer.piece(token) for token in range(tokenizer.vocab_size)]
        return TextModel(_sentencepiece_files(tokenizer), pieces)
    raise UserError(
        f"{model.folder.path}: expected a model that translates text, got {found}; export "
        "safetensors instead"
    )


def _sentencepiece_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    if not isinstance(tokenizer, MarianTokenizer):
        return {"source.spm": tokenizer.serialized, "target.spm": tokenizer.serialized}
    values = json.loads(tokenizer.serialized)
    return {f"{side}.spm": base64.b64decode(values[side]) for side in ("source", "target")}
