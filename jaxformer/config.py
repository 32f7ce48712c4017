"""One experiment as frozen dataclasses in the paper's words; each package owns its part.

Every field has the default of the paper's base model, so ``Config()`` *is* the base model of
"Attention Is All You Need" on WMT14 English-German. Dataclasses are hashable and serve as linen
fields and static arguments of ``jax.jit``; change one with ``dataclasses.replace``.

``configs/*.py`` hand them to the command line as a ``ConfigDict`` (:func:`to_config_dict`), which
brings typed overrides; :meth:`Config.from_dict` turns the result back, so that validation always
sees the overridden values.

>>> import dataclasses
>>> model = dataclasses.replace(ModelConfig(), num_heads=4)
>>> model.key_size
128
"""

import dataclasses
import functools
import json
import pathlib
import typing
from typing import Any

from jaxformer.data.corpus import DataConfig
from jaxformer.data.stream import StreamConfig
from jaxformer.errors import UserError
from jaxformer.fields import build, check_known, expected_type
from jaxformer.files import write_file
from jaxformer.models.assembly import ModelConfig
from jaxformer.models.language_model import LanguageModel
from jaxformer.models.selection import Model
from jaxformer.models.transformer import Transformer
from jaxformer.search import plain
from jaxformer.search.algorithm import BeamSearch, Sampling
from jaxformer.training.mesh import MeshConfig
from jaxformer.training.settings import FitConfig, TrainingConfig
from jaxformer.workdir import Workdir

__all__ = [  # the parts of a config are imported from here, too
    "Config",
    "DataConfig",
    "FitConfig",
    "MeshConfig",
    "ModelConfig",
    "StreamConfig",
    "TrainingConfig",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """One experiment: the paper's base model on WMT14 English-German by default."""

    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    data: DataConfig | StreamConfig = dataclasses.field(default_factory=DataConfig)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    search: BeamSearch | Sampling = dataclasses.field(default_factory=BeamSearch)

    def __post_init__(self) -> None:
        """Refuses parts that contradict one another."""
        for name, expected in typing.get_type_hints(Config).items():
            part = getattr(self, name)
            if not isinstance(part, expected):
                kinds = " or ".join(kind.__name__ for kind in _kinds(expected))
                raise UserError(f"{name} must be a {kinds}: got {type(part).__name__}")
        name = "length" if isinstance(self.data, StreamConfig) else "max_length"
        if getattr(self.data, name) > self.model.max_length:
            raise UserError(
                f"data.{name} must not exceed model.max_length: got "
                f"{getattr(self.data, name)} > {self.model.max_length}"
            )
        _check_search(self.search)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Returns sections of plain values.

        Raises:
          UserError: The search has constraints, which are no plain values.
        """
        parts = {name: part for name, part in vars(self).items() if name != "search"}
        values = {name: dataclasses.asdict(part) for name, part in parts.items()}
        return values | {"search": plain.to_dict(self.search)}

    @classmethod
    def from_dict(cls, values: Any) -> "Config":
        """Builds and validates a config from sections; the inverse of :meth:`to_dict`.

        Raises:
          UserError: A field is unknown, of the wrong type, or out of range.
        """
        builders = {
            "model": functools.partial(build, ModelConfig, section="model"),
            "data": _data_from_dict,
            "training": functools.partial(build, TrainingConfig, section="training"),
            "mesh": functools.partial(build, MeshConfig, section="mesh"),
            "search": plain.from_dict,
        }
        check_known(values, builders, "")
        return cls(**{name: builders[name](part) for name, part in values.items()})


def _data_from_dict(values: Any) -> DataConfig | StreamConfig:
    is_stream = isinstance(values, dict) and values.get("corpus") == "stream"
    return build(StreamConfig if is_stream else DataConfig, values, "data")


def model_of(config: Config) -> Model:
    """Returns the class of a config's model, by the kind of its data."""
    return LanguageModel if isinstance(config.data, StreamConfig) else Transformer


def sentence_pairs(config: Config) -> DataConfig:
    """Returns ``config.data``, which must be sentence pairs.

    Raises:
      UserError: The experiment is a language model.
    """
    if isinstance(config.data, StreamConfig):
        raise UserError(
            "expected a model of sentence pairs, got a language model, of data.corpus=stream; "
            "jaxformer generate is for it"
        )
    return config.data


def text_stream(config: Config) -> StreamConfig:
    """Returns ``config.data``, which must be one text.

    Raises:
      UserError: The experiment is a model of sentence pairs.
    """
    if not isinstance(config.data, StreamConfig):
        raise UserError(
            "expected a language model, of data.corpus=stream, got a model of sentence pairs, of "
            f"data.corpus={config.data.corpus}; jaxformer translate and parse are for those"
        )
    return config.data


def _kinds(hint: Any) -> tuple[type, ...]:
    """Returns the classes that a part of a config may have."""
    return typing.get_args(hint) or (hint,)


def _check_search(search: BeamSearch | Sampling) -> None:
    """Refuses what a file could not hold, or would go unused."""
    for name in ("bos_id", "eos_id", "pad_id"):
        if getattr(search, name) != getattr(BeamSearch, name):
            raise UserError(
                f"search.{name} must be {getattr(BeamSearch, name)}, as in jaxformer's "
                f"vocabularies: got {getattr(search, name)}"
            )
    if isinstance(search, Sampling) or search.diversity_groups == 1:
        return
    if not search.diversity_penalty:
        raise UserError(
            "search.diversity_groups above 1 and search.diversity_penalty above 0 go together: got "
            f"{search.diversity_groups} and {search.diversity_penalty}"
        )


def check_config(config: Any) -> None:
    """Refuses what is no config, or only a part of one.

    Raises:
      UserError: Says what was given, and what to do.
    """
    if isinstance(config, Config):
        return
    hints = typing.get_type_hints(Config).items()
    fields = {kind: name for name, hint in hints for kind in _kinds(hint)}
    advice = "make one of a ConfigDict with Config.from_dict(values.to_dict())"
    if type(config) in fields:
        advice = f"put it into one: Config({fields[type(config)]}=...)"
    raise UserError(f"expected a Config, got {type(config).__name__}; {advice}")


def save(config: Config, path: pathlib.Path) -> None:
    """Writes the config as JSON, whole or not at all."""
    write_file(path, (json.dumps(config.to_dict(), indent=2) + "\n").encode())


def load(path: pathlib.Path) -> Config:
    """Reads a config written by :func:`save`.

    Raises:
      UserError: The file is missing, is not JSON, or does not fit the schema.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such file; expected the config that train.py saves there"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: expected a config to read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, or nested without end
        raise UserError(f"{path}: expected a JSON config: {error}") from None
    try:
        return Config.from_dict(values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def load_run(folder: Workdir) -> Config:
    """Returns the config of the run in a workdir.

    Raises:
      UserError: This is not the folder of a run, or its config is damaged.
    """
    if not folder.config.is_file():
        raise UserError(
            f"{folder.path}: expected the workdir of a training run, but it has no "
            f"{folder.config.name}; train one with train.py --workdir={folder.path}"
        )
    return load(folder.config)


def to_config_dict(config: Config) -> Any:
    """The config as an ``ml_collections.ConfigDict``, for ``get_config`` in ``configs/*.py``.

    Optional fields that are None become placeholders, so that they keep their type.
    """
    # Imported here: only the command line needs it, and notebooks may lack it.
    from ml_collections import config_dict

    def convert(values: dict[str, Any], hints: dict[str, Any]) -> Any:
        result = config_dict.ConfigDict()
        for name, value in values.items():
            if value is None:
                value = config_dict.placeholder(expected_type(hints[name]))
            result[name] = value
        return result

    hints = {name: typing.get_type_hints(type(part)) for name, part in vars(config).items()}
    hints["search"] = {name: hint for name, (hint, _) in plain.search_fields().items()}
    result = config_dict.ConfigDict()
    for name, values in config.to_dict().items():
        result[name] = convert(values, hints[name])
    return result


def select(variants: dict[str, Config], name: str) -> Any:
    """The named variant of an experiment as a ``ConfigDict``; the plain experiment is named "".

    ``configs/base.py:tiny`` on the command line asks for the variant "tiny" of ``base.py``.

    Raises:
      UserError: There is no such variant.
    """
    if name not in variants:
        known = ", ".join(repr(variant) for variant in variants if variant) or "none"
        raise UserError(f"unknown variant {name!r}; known variants: {known}")
    return to_config_dict(variants[name])
