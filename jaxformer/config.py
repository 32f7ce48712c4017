"""The config of an experiment: frozen dataclasses in the paper's terms.

Each package defines its own section. Every field defaults to the paper's base model, so
``Config()`` is the base model of "Attention Is All You Need" on WMT14 English-German. The
dataclasses are hashable, so they can be linen fields and static arguments of ``jax.jit``. Change
one with ``dataclasses.replace``.

``configs/*.py`` return a ``ConfigDict`` (:func:`to_config_dict`), which gives the command line
typed overrides. :meth:`Config.from_dict` converts it back, which validates overridden values, too.
"""

import dataclasses
import functools
import json
import pathlib
import typing
from typing import Any, TypeVar

from jaxformer.data.annotated import AnnotatedConfig
from jaxformer.data.captions import CaptionsConfig
from jaxformer.data.corpus import DataConfig, DataSection
from jaxformer.data.image_texts import ImageTextConfig
from jaxformer.data.images import ImagesConfig
from jaxformer.data.interleaved import InterleavedConfig
from jaxformer.data.labeled import LabeledConfig
from jaxformer.data.stream import StreamConfig
from jaxformer.errors import UserError, prefix_errors, typed_command
from jaxformer.fields import (
    Facts,
    build_section,
    check_known,
    expected_type,
    facts_of,
    inherit_attributes,
    setting,
)
from jaxformer.files import read_object, write_file
from jaxformer.kinds.kind import Kind
from jaxformer.kinds.selection import kind_of, known_kinds
from jaxformer.models.architecture import Architecture
from jaxformer.models.assembly import ModelConfig
from jaxformer.models.encoder import EncoderConfig
from jaxformer.models.recurrent import RecurrentConfig
from jaxformer.models.student import StudentConfig
from jaxformer.runs.workdir import Workdir
from jaxformer.search import BeamSearch, Sampling, serialization
from jaxformer.training.mesh import MeshConfig
from jaxformer.training.settings import FitConfig, TrainingConfig

__all__ = [  # Users import the sections of a config from here, too.
    "AnnotatedConfig",
    "CaptionsConfig",
    "Config",
    "DataConfig",
    "EncoderConfig",
    "FitConfig",
    "ImageTextConfig",
    "ImagesConfig",
    "InterleavedConfig",
    "LabeledConfig",
    "MeshConfig",
    "ModelConfig",
    "RecurrentConfig",
    "StreamConfig",
    "StudentConfig",
    "TrainingConfig",
]

for _section in (
    TrainingConfig,
    DataConfig,
    LabeledConfig,
    StreamConfig,
    ImageTextConfig,
    CaptionsConfig,
    InterleavedConfig,
    BeamSearch,
    Sampling,
):
    inherit_attributes(_section)

Section = TypeVar("Section", bound=DataSection)
ModelT = TypeVar("ModelT", bound=Architecture)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """An experiment; by default the paper's base model on WMT14 English-German.

    Attributes:
      model: Architecture.
      data: Sentence pairs, or the data of another kind of experiment; ``corpus`` selects the kind.
      training: Optimizer, number of steps, reports.
      mesh: Distribution over devices.
      search: Search used in validation and by all commands.

    Raises:
      UserError: A section has the wrong type, or two sections contradict each other.
    """

    model: Architecture = dataclasses.field(default_factory=ModelConfig)
    data: DataSection = dataclasses.field(default_factory=DataConfig)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    mesh: MeshConfig = setting(factory=MeshConfig, may_change=True)
    search: BeamSearch | Sampling = setting(factory=BeamSearch, may_change=True)

    def __post_init__(self) -> None:
        for name, hint in typing.get_type_hints(Config).items():
            section = getattr(self, name)
            if not isinstance(section, hint):
                classes = typing.get_args(hint) or (hint,)
                known = " or ".join(each.__name__ for each in classes)
                raise UserError(f"{name} must be a {known}: got {type(section).__name__}")

        # A kind also takes subclasses of its models, except those that belong to another kind.
        models = tuple(network.section for network in self.kind.networks)
        all_models = {network.section for kind in known_kinds() for network in kind.networks}
        others = all_models.difference(models)

        self._check_class("data", (self.kind.data,), others)
        self._check_class("model", models, others)
        self._check_length()
        _check_search(self.search)

    def _check_class(self, name: str, expected: tuple[type, ...], others: set[type]) -> None:
        """Checks that a section is of a class that belongs to the kind of the experiment."""
        section = getattr(self, name)
        is_of_other_kind = type(section) in others

        if is_of_other_kind or not isinstance(section, expected):
            known = " or ".join(each.__name__ for each in expected)
            raise UserError(
                f"{name} must be of class {known} with data.corpus={self.data.corpus}: got "
                f"{type(section).__name__}"
            )

    def _check_length(self) -> None:
        """Checks that the model takes rows as long as the data have, unless they are pictures."""
        name = self.data.length_field
        if not name:
            return

        longest = getattr(self.data, name)
        if longest > self.model.max_length:
            raise UserError(
                f"data.{name} must not exceed model.max_length: got "
                f"{longest} > {self.model.max_length}"
            )

    @property
    def kind(self) -> Kind:
        """The kind of the experiment, which ``data.corpus`` selects."""
        return kind_of(self.data.corpus)

    def facts(self) -> dict[str, Facts]:
        """Returns the facts about sections and fields, by names such as "training.steps"."""
        found = facts_of(self)
        for name, section in vars(self).items():
            for field, facts in facts_of(section).items():
                found[f"{name}.{field}"] = facts
        return found

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Returns the sections as dictionaries of plain values.

        Raises:
          UserError: The search has constraints, which are not plain values.
        """
        return {
            "model": dataclasses.asdict(self.model),
            "data": dataclasses.asdict(self.data),
            "training": dataclasses.asdict(self.training),
            "mesh": dataclasses.asdict(self.mesh),
            "search": serialization.to_dict(self.search),
        }

    @classmethod
    def from_dict(cls, values: Any) -> "Config":
        """Builds and validates a config; the inverse of :meth:`to_dict`.

        Raises:
          UserError: A field is unknown, has the wrong type, or is out of range.
        """
        # Malformed values are refused below.
        data = values.get("data") if isinstance(values, dict) else None
        corpus = data.get("corpus") if isinstance(data, dict) else None
        kind = kind_of(corpus)

        builders = {
            "model": functools.partial(_build_model, kind),
            "data": functools.partial(build_section, kind.data, section="data"),
            "training": functools.partial(build_section, TrainingConfig, section="training"),
            "mesh": functools.partial(build_section, MeshConfig, section="mesh"),
            "search": serialization.from_dict,
        }
        check_known(values, builders, "")
        sections = {}
        for name, section in values.items():
            sections[name] = builders[name](section)
        return cls(**sections)


def check_kind(config: Config, *kinds: Kind) -> None:
    if config.kind not in kinds:
        *others, last = [kind.description for kind in kinds]
        expected = f"{', '.join(others)} or {last}" if others else last
        raise UserError(
            f"expected {expected}, got "
            f"{config.kind.description}, of data.corpus={config.data.corpus}; "
            f"{config.kind.commands} is for it"
        )


def data_section(config: Config, section: type[Section]) -> Section:
    """Returns ``config.data``, which must be a ``section``."""
    if not isinstance(config.data, section):
        raise UserError(
            f"expected data to be a {section.__name__}, got {config.kind.description}, of "
            f"data.corpus={config.data.corpus}"
        )
    return config.data


def model_section(config: Config, section: type[ModelT]) -> ModelT:
    """Returns ``config.model``, and refuses models of another architecture than ``section``."""
    model = config.model
    if not isinstance(model, section) or model.architecture not in section.architectures():
        raise UserError(
            f"expected model to be a {section.__name__}, got a {type(config.model).__name__}"
        )
    return model


def _build_model(kind: Kind, values: Any) -> Architecture:
    default = kind.networks[0].section.architecture
    # Malformed values are refused by build_section.
    name = default
    if isinstance(values, dict):
        name = values.get("architecture", default)

    return build_section(kind.section_of(name), values, section="model")


def _check_search(search: BeamSearch | Sampling) -> None:
    """Checks that a file can store the search, and that no setting would be unused."""
    for name in ("bos_id", "eos_id", "pad_id"):
        given = getattr(search, name)
        expected = getattr(BeamSearch, name)
        if given != expected:
            raise UserError(
                f"search.{name} must be {expected}, as in jaxformer's vocabularies: got {given}"
            )

    is_beam = isinstance(search, BeamSearch)
    if is_beam and search.diversity_groups > 1 and not search.diversity_penalty:
        raise UserError("search.diversity_groups above 1 need search.diversity_penalty above 0")


def check_config(config: Any) -> None:
    """Checks that an argument is a :class:`Config`, and not a section or a ``ConfigDict``."""
    if isinstance(config, Config):
        return

    is_section = dataclasses.is_dataclass(config)
    if is_section:
        advice = "put it into one: Config(model=...)"
    else:
        advice = "make one of a ConfigDict with Config.from_dict(values.to_dict())"
    raise UserError(f"expected a Config, got {type(config).__name__}; {advice}")


def save_config(config: Config, path: pathlib.Path) -> None:
    text = json.dumps(config.to_dict(), indent=2) + "\n"
    write_file(path, text.encode())


def read_config(folder: Workdir) -> Config:
    """Returns the config of the run in a workdir."""
    command = f"{typed_command('train')} NAME --workdir {folder.path}"
    advice = f"give the workdir of a training run, or train one with {command}"
    values = read_object(folder.config, folder.path, advice=advice)

    if "fit" in values:
        raise UserError(
            f"{folder.config}: expected a run of a config, got one of jaxformer.fit, whose task "
            "only your program knows; load its parameters there with jaxformer.load_params"
        )

    with prefix_errors(str(folder.config)):
        return Config.from_dict(values)


def to_config_dict(config: Config) -> Any:
    """Converts the config to an ``ml_collections.ConfigDict``, which ``configs/*.py`` return."""
    # Only the command line needs ml_collections, and notebooks may lack it.
    from ml_collections import config_dict

    hints = {}
    for name, section in vars(config).items():
        hints[name] = typing.get_type_hints(type(section))
    # A file also names the method of the search.
    hints["search"] = {name: hint for name, (hint, _) in serialization.search_fields().items()}

    sections = config.to_dict()
    for section, values in sections.items():
        for name, value in values.items():
            if value is None:  # A placeholder keeps the type.
                expected = expected_type(hints[section][name])
                values[name] = config_dict.placeholder(expected)
    return config_dict.ConfigDict(sections)


def select(variants: dict[str, Config], name: str) -> Any:
    """Returns a variant as a ``ConfigDict``: "tiny" for ``base.py:tiny``, "" for ``base.py``."""
    if name not in variants:
        names = {each: repr(each) for each in variants}
        names[""] = "none (the default)"
        known = ", ".join(names[each] for each in variants)
        raise UserError(f"unknown variant {name!r}; known variants: {known}")
    return to_config_dict(variants[name])
