"""A trained model, with everything that the formats of an export need."""

import base64
import dataclasses
import json
import pathlib
import re
from collections.abc import Collection
from fractions import Fraction
from typing import Any, NamedTuple

import jax

from jaxformer.config import Config, DataConfig, load_run, model_of
from jaxformer.data.marian_tokenizer import MarianTokenizer, load_tokenizer
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.errors import UserError
from jaxformer.files import model_path, write_file
from jaxformer.inference.weights import load_params
from jaxformer.nn.precision import dequantize
from jaxformer.search import BeamSearch, Sampling
from jaxformer.workdir import Workdir

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


class TrainedModel(NamedTuple):
    """A model read from a workdir.

    Attributes:
      folder: The workdir.
      config: Its config; ``compute_dtype`` and search may be replaced.
      params: Parameters as float32 numpy arrays.
      weights: Description of the checkpoint, such as "step 2000".
      dequantized: Whether the workdir holds int8 parameters.
    """

    folder: Workdir
    config: Config
    params: dict[str, Any]
    weights: str
    dequantized: bool

    @classmethod
    def load(
        cls,
        workdir: str | pathlib.Path,
        *,
        weights: str | int = "auto",
        search: BeamSearch | Sampling | None = None,
        compute_dtype: str | None = None,
    ) -> "TrainedModel":
        """Reads a workdir; int8 parameters become float32.

        Raises:
          UserError: A file is missing or damaged, or there are no such weights.
        """
        folder = Workdir(model_path(workdir))
        config = load_run(folder)
        folder.check_tokenizer()
        params, name = load_params(folder, config.model, str(weights), model_of(config))
        dequantized = config.model.compute_dtype == "int8"
        if dequantized:
            params = dequantize(params)
        dtype = compute_dtype or ("float32" if dequantized else config.model.compute_dtype)
        config = dataclasses.replace(
            config,
            model=dataclasses.replace(config.model, compute_dtype=dtype),
            search=search or config.search,
        )
        return cls(folder, config, jax.device_get(params), name, dequantized)

    def check_fields(self, system: str, **allowed: Collection[Any]) -> None:
        """Checks that another system can express the model; unknown fields must have defaults.

        Raises:
          UserError: A field has a value that is not ``allowed``.
        """
        config = self.config.model
        head = Fraction(config.d_model, config.num_heads)
        allowed |= {"d_k": [head, None], "d_v": [head, None], "embeddings": ["tied", "separate"]}
        allowed |= {"target_vocab_size": [config.vocab_size, None]}
        for field in dataclasses.fields(config):
            value, known = getattr(config, field.name), allowed.get(field.name, [field.default])
            if not _ANY.fullmatch(field.name) and value not in known:
                expected = f"model.{field.name}={' or '.join(map(str, known))}"
                raise UserError(
                    f"{system}: expected {expected}, got {value}; export stablehlo instead"
                )

    def beam_search(self, system: str) -> BeamSearch:
        """Returns the search.

        Args:
          system: Name of the other system, for the error message.

        Raises:
          UserError: It samples.
        """
        if not isinstance(self.config.search, BeamSearch):
            raise UserError(
                f"{system}: expected beam search, got sampling; in Python, give "
                "jaxformer.export.command.export_model(..., search=BeamSearch())"
            )
        return self.config.search

    def text_model(self) -> TextModel:
        """Returns the SentencePiece models and the pieces of a model that translates text.

        Raises:
          UserError: It is a language model, or its targets are not text.
        """
        found = "a language model"
        if isinstance(self.config.data, DataConfig):
            tokenizer = load_tokenizer(self.folder.tokenizer)
            found = "a model whose targets are symbols"
            if type(tokenizer) not in (Tokenizer, MarianTokenizer):
                found = f"a model with a {type(tokenizer).__name__}"
            elif tokenizer.target_vocab_size == tokenizer.vocab_size:
                pieces = [tokenizer.piece(token) for token in range(tokenizer.vocab_size)]
                return TextModel(_sentencepiece_files(tokenizer), pieces)
        raise UserError(
            f"{self.folder.path}: expected a model that translates text, got {found}; export "
            "safetensors instead"
        )


def _sentencepiece_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    if not isinstance(tokenizer, MarianTokenizer):
        return {"source.spm": tokenizer.serialized, "target.spm": tokenizer.serialized}
    values = json.loads(tokenizer.serialized)
    return {f"{side}.spm": base64.b64decode(values[side]) for side in ("source", "target")}
