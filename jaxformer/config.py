"""The only schema: frozen dataclasses in the paper's words.

Every field has the default of the paper's base model, so ``Config()`` *is* the base model of
"Attention Is All You Need" on WMT14 English-German. Dataclasses are hashable and serve as linen
fields and static arguments of ``jax.jit``; change one with ``dataclasses.replace``.

``configs/*.py`` hand them to the command line as a ``ConfigDict`` (:func:`to_config_dict`), which
brings typed overrides; :func:`from_dict` turns the result back, so that validation always sees
the overridden values.

>>> import dataclasses
>>> model = dataclasses.replace(ModelConfig(), num_heads=4)
>>> model.key_size
128
"""

import dataclasses
import difflib
import json
import math
import pathlib
import re
import types
import typing
from typing import Any, Literal

from jaxformer.errors import UserError
from jaxformer.files import local_path, write_file
from jaxformer.search.algorithm import BeamSearch, Sampling

# What the backward pass computes again rather than keep: nothing, all but products, whole layers.
Remat = Literal["none", "dots", "layer"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The architecture (section 3 of the paper).

    Attributes:
      vocab_size: Entries of the shared source and target vocabulary.
      d_model: Width of every sub-layer's output.
      d_ff: Inner width of the feed-forward networks (equation 2).
      num_heads: Attention heads, ``h``.
      num_layers: Layers of the encoder, and of the decoder, ``N``.
      d_k: Size of one head's queries and keys; ``d_model / num_heads`` when None.
      d_v: Size of one head's values; ``d_model / num_heads`` when None.
      dropout_rate: Dropout on sub-layer outputs and on the embedding sums, ``P_drop``.
      attention_dropout_rate: Dropout on attention weights; the paper has none.
      norm_position: "post" as in the paper, LayerNorm(x + Sublayer(x)), or "pre".
      positions: "sinusoidal" as in section 3.5, or "learned" (Table 3, row E).
      activation: Of the feed-forward networks: "relu" as in equation 2, or "gelu" or "swish", which
        other models have.
      biases: Whether attention's projections and the output logits have biases. The paper's have
        none; other systems' models do.
      embeddings: "tied" as in section 3.4, one matrix for source, target and output, or
        "separate" ones.
      target_vocab_size: Entries of the target and output matrices if they are separate: the first
        ids of the vocabulary, where the symbols of trees are; ``vocab_size`` when None.
      norm_epsilon: Added to the variance in layer normalisation.
      max_length: The longest sequence, in tokens. Bounds the memory of translation and sizes the
        learned positions.
      compute_dtype: Type of what goes into matrix products; their sums, softmax, layer norm
        statistics and the loss are float32 always. "int8" rounds parameters and inputs to eight
        bits where they meet, and keeps float32 elsewhere: only to decode with. Accelerators
        multiply float32 with fewer bits than it has, unless told otherwise
        (``JAX_DEFAULT_MATMUL_PRECISION=highest``).
    """

    vocab_size: int = 37_000
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    num_layers: int = 6
    d_k: int | None = None
    d_v: int | None = None
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.0
    norm_position: Literal["post", "pre"] = "post"
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    activation: Literal["relu", "gelu", "swish"] = "relu"
    biases: bool = False
    embeddings: Literal["tied", "separate"] = "tied"
    target_vocab_size: int | None = None
    norm_epsilon: float = 1e-6
    max_length: int = 1024
    compute_dtype: Literal["float32", "bfloat16", "int8"] = "float32"

    def __post_init__(self) -> None:
        """Refuses sizes that cannot work."""
        _check_choices(self, "model")
        _check_positive(
            self,
            "model",
            "vocab_size",
            "d_model",
            "d_ff",
            "num_heads",
            "num_layers",
            "norm_epsilon",
            "max_length",
        )
        _check_fraction(self, "model", "dropout_rate")
        _check_fraction(self, "model", "attention_dropout_rate")
        for name in ("d_k", "d_v"):
            size = getattr(self, name)
            if size is None and self.d_model % self.num_heads:
                fits = [h for h in range(1, self.d_model + 1) if self.d_model % h == 0]
                near = min(fits, key=lambda h: abs(h - self.num_heads))
                raise UserError(
                    f"model.num_heads must divide model.d_model when model.{name} is not given: "
                    f"got num_heads={self.num_heads}, d_model={self.d_model}; "
                    f"use num_heads={near}, or set model.d_k and model.d_v"
                )
            if size is not None and size < 1:
                raise UserError(f"model.{name} must be at least 1 or left out: got {size}")
        if (size := self.target_vocab_size) is not None:
            if self.embeddings == "tied":
                raise UserError(
                    "model.target_vocab_size needs model.embeddings=separate: one matrix for both "
                    "sides has one size"
                )
            if not 1 <= size <= self.vocab_size:
                raise UserError(
                    "model.target_vocab_size must be from 1 to model.vocab_size="
                    f"{self.vocab_size}, of which it is a part: got {size}"
                )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise UserError(
                "model.d_model must be even, since sinusoidal positions are sine and cosine "
                f"pairs: got {self.d_model}; use {self.d_model + 1}"
            )

    @property
    def key_size(self) -> int:
        """Size of one head's queries and keys, with the default filled in."""
        return self.d_model // self.num_heads if self.d_k is None else self.d_k

    @property
    def output_size(self) -> int:
        """Entries of the target and output matrices, with the default filled in."""
        return self.vocab_size if self.target_vocab_size is None else self.target_vocab_size

    @property
    def value_size(self) -> int:
        """Size of one head's values, with the default filled in."""
        return self.d_model // self.num_heads if self.d_v is None else self.d_v


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where sentence pairs come from and how they form batches (section 5.1).

    Attributes:
      corpus: "text" reads line-aligned files, "tfds" a TensorFlow Datasets translation builder,
        "numerals" generates English and German number words, "trees" reads treebanks: the source
        is the words, the target the tree (section 6.3).
      builder: For "tfds": the builder, for example "wmt14_translate/de-en".
      directory: For "tfds": the data directory; TFDS's own default when empty.
      source_language: Language code of the source; also the file extension for "text".
      target_language: Language code of the target; also the file extension for "text". BLEU uses
        sacreBLEU's tokenizer for it.
      train: Training part: a path prefix for "text" ("data/train" stands for data/train.en and
        data/train.de, or the same with .gz), files separated by commas for "trees", a split name
        otherwise.
      valid: Validation part, likewise.
      batching: "buckets" groups pairs of similar length as the paper does; "packing" puts several
        pairs into one row.
      tokens_per_batch: Upper limit of source tokens, and of target tokens, in one global batch,
        padding included; empty rows that make the rows divisible among devices come on top.
      max_length: The longest side of a training pair in tokens, end-of-sentence included; longer
        pairs are skipped, counted and reported. With packing also the length of a row.

    Departs from the paper: training pairs longer than ``max_length``, 256, are left out.
    """

    corpus: Literal["text", "tfds", "numerals", "trees"] = "tfds"
    builder: str = "wmt14_translate/de-en"
    directory: str = ""
    source_language: str = "en"
    target_language: str = "de"
    train: str = "train"
    valid: str = "validation"
    batching: Literal["buckets", "packing"] = "buckets"
    tokens_per_batch: int = 25_000
    max_length: int = 256

    def __post_init__(self) -> None:
        """Refuses batches that could hold nothing, and data that is not on a local disk."""
        _check_choices(self, "data")
        for name in ("directory", "train", "valid"):
            try:
                local_path(getattr(self, name))
            except UserError as error:
                raise UserError(f"data.{name}: {error}") from None
        _check_positive(self, "data", "tokens_per_batch", "max_length")
        if self.tokens_per_batch < self.max_length:
            raise UserError(
                "data.tokens_per_batch must hold at least one sentence of data.max_length: got "
                f"tokens_per_batch={self.tokens_per_batch}, max_length={self.max_length}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamConfig:
    """One text as a stream of tokens, to train a language model on.

    The last tenth of the characters is for validation. Training rows begin anywhere in the rest.

    Attributes:
      corpus: "stream", which tells this kind of data from sentence pairs in files.
      file: The text, UTF-8.
      tokens: "characters", or "bpe" for byte pairs with line breaks and spaces kept.
      length: Tokens of a row that are predicted, each from those before it in the row.
      rows: Rows of a global batch; empty rows that make them divisible among devices come on top.
    """

    corpus: Literal["stream"] = "stream"
    file: str = ""
    tokens: Literal["characters", "bpe"] = "characters"
    length: int = 256
    rows: int = 64

    def __post_init__(self) -> None:
        """Refuses sizes that are no sizes, and a text that is not on a local disk."""
        _check_choices(self, "data")
        if not self.file:
            raise UserError("data.file must name a text, to train a language model on: got ''")
        try:
            local_path(self.file)
        except UserError as error:
            raise UserError(f"data.file: {error}") from None
        _check_positive(self, "data", "length", "rows")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitConfig:
    """The training loop of any task: how long it runs, and what is written while it does.

    Attributes:
      steps: Optimizer steps of the whole run.
      accumulation: Micro-batches that one step is computed in. The result does not depend on it.
      seed: Seeds parameters, dropout and the order of the data; 0 to 2^31 - 1.
      log_every: Steps between two progress reports.
      eval_every: Steps between two validations; a multiple of checkpoint_every.
      checkpoint_every: Steps between two checkpoints.
      keep_checkpoints: Newest checkpoints kept, for averaging; the best one is kept besides.
    """

    steps: int = 100_000
    accumulation: int = 1
    seed: int = 0
    log_every: int = 100
    eval_every: int = 1500
    checkpoint_every: int = 1500
    keep_checkpoints: int = 5

    _section = "fit"  # of the config; no field

    def __post_init__(self) -> None:
        """Refuses a run that could not start or would never report."""
        section = self._section
        _check_choices(self, section)
        names = ("steps", "accumulation", "log_every", "eval_every", "checkpoint_every")
        _check_positive(self, section, *names, "keep_checkpoints")
        if self.eval_every % self.checkpoint_every:
            raise UserError(
                f"{section}.eval_every must be a multiple of {section}.checkpoint_every, so that "
                f"what was validated is kept: got {self.eval_every} and {self.checkpoint_every}"
            )
        if not 0 <= self.seed < 2**31:
            raise UserError(f"{section}.seed must be from 0 to {2**31 - 1}: got {self.seed}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig(FitConfig):
    """Optimisation (sections 5.2 to 5.4), the loop, and what is validated.

    Attributes:
      warmup_steps: Steps of linear warm-up in equation 3.
      learning_rate_scale: Factor on the learning rate of equation 3; 1 is the paper's.
      label_smoothing: Probability mass spread over the vocabulary, epsilon_ls.
      clip_norm: Largest global gradient norm; None, as in the paper, clips nothing.
      remat: What the backward pass computes again instead of keeping: "none"; "dots", all but the
        products with parameters; "layer", all but the inputs of layers. Slower, and less memory.
        The result does not depend on it.
      optimizer: "adam" as in section 5.3, or "muon": Muon for the matrices of the layers, with
        updates of Adam's usual size, and Adam for all other parameters.
      schedule: Of the learning rate after warm-up: "inverse_sqrt" as in equation 3, or "linear", to
        0 at the last step.
      weight_decay: Decoupled weight decay of the matrices of the layers, times the learning rate.
      moments: Dtype of Adam's two moments; "bfloat16" halves their memory, and rounds them.
      eval_sentences: Validation sentences translated for BLEU, or parsed for F1; 0 leaves it out.
    """

    warmup_steps: int = 4000
    learning_rate_scale: float = 1.0
    label_smoothing: float = 0.1
    clip_norm: float | None = None
    remat: Remat = "none"
    optimizer: Literal["adam", "muon"] = "adam"
    schedule: Literal["inverse_sqrt", "linear"] = "inverse_sqrt"
    weight_decay: float = 0.0
    moments: Literal["float32", "bfloat16"] = "float32"
    eval_sentences: int = 500

    _section = "training"

    def __post_init__(self) -> None:
        """Refuses a run that could not start or would never report."""
        super().__post_init__()
        _check_positive(self, "training", "warmup_steps", "learning_rate_scale")
        _check_fraction(self, "training", "label_smoothing")
        if self.eval_sentences < 0:
            raise UserError(f"training.eval_sentences must be 0 or more: got {self.eval_sentences}")
        if not 0 <= self.weight_decay < math.inf:
            raise UserError(f"training.weight_decay must be 0 or more: got {self.weight_decay}")
        if self.schedule == "linear" and self.warmup_steps >= self.steps:
            raise UserError(
                "training.warmup_steps must be less than training.steps with "
                f"training.schedule=linear: got {self.warmup_steps} and {self.steps}"
            )
        if self.optimizer == "muon" and self.moments != "float32":
            raise UserError("training.moments=bfloat16 needs training.optimizer=adam: got muon")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise UserError(
                f"training.clip_norm must be greater than 0 or left out: got {self.clip_norm}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """How many ways devices share the work; the product is the number of devices.

    The result of a run does not depend on it. ``docs/scaling.md`` says when which is fast.

    Attributes:
      data: Parts of the batch; every one has a whole copy of the parameters. -1: all devices that
        the other two leave.
      fsdp: Parts of the batch that also share parameters and Adam's moments among them.
      tensor: Parts of heads, inner layer and vocabulary.
    """

    data: int = -1
    fsdp: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        """Refuses sizes that are no sizes."""
        _check_types(self, "mesh")
        sizes = {name: getattr(self, name) for name in ("data", "fsdp", "tensor")}
        for name, size in sizes.items():
            if size < 1 and size != -1:
                raise UserError(f"mesh.{name} must be at least 1, or -1 for the rest: got {size}")
        if list(sizes.values()).count(-1) > 1:
            raise UserError(f"only one size of the mesh may be -1: got {sizes}")


# Algorithms of search by the method that a file names. Every file has the fields of all of them, so
# that the command line can change the method.
SEARCHES: dict[str, type[BeamSearch | Sampling]] = {"beam": BeamSearch, "sampling": Sampling}
# Ids belong to the vocabulary, and constraints are no plain values.
_NOT_IN_FILES = ("bos_id", "eos_id", "pad_id", "constraints")


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
    advice = "make one of a ConfigDict with config.from_dict(values.to_dict())"
    if type(config) in fields:
        advice = f"put it into one: Config({fields[type(config)]}=...)"
    raise UserError(f"expected a Config, got {type(config).__name__}; {advice}")


def to_dict(config: Config | FitConfig) -> dict[str, Any]:
    """Returns the config as nested dictionaries of plain values.

    Raises:
      UserError: The search has constraints, which are no plain values.
    """
    if isinstance(config, FitConfig):
        return dataclasses.asdict(config)
    return {
        name: search_to_dict(part) if name == "search" else dataclasses.asdict(part)
        for name, part in vars(config).items()
    }


def from_dict(values: dict[str, Any]) -> Config:
    """Builds and validates a config from nested dictionaries; the inverse of :func:`to_dict`.

    Raises:
      UserError: A field is unknown, of the wrong type, or out of range.
    """
    return _build(Config, values, prefix="")


def search_to_dict(search: BeamSearch | Sampling) -> dict[str, Any]:
    """Returns a search as plain values: its method, its fields, and the defaults of the others.

    Raises:
      UserError: The search has constraints, which are no plain values.
    """
    if search.constraints:
        raise UserError(
            f"search.constraints cannot be part of a file: got {search.constraints}; give them to "
            "the Translator"
        )
    method = next(name for name, kind in SEARCHES.items() if isinstance(search, kind))
    defaults = {name: hint[1] for name, hint in _search_fields().items()}
    own = {name: getattr(search, field) for name, field in _file_fields(type(search)).items()}
    return {**defaults, "method": method, **own}


def search_from_dict(values: dict[str, Any]) -> BeamSearch | Sampling:
    """Builds and validates a search from plain values; the inverse of :func:`search_to_dict`.

    Raises:
      UserError: A field is unknown, of the wrong type, out of range, or not of the method.
    """
    fields = _search_fields()
    values = _arguments({name: hint for name, (hint, _) in fields.items()}, values, "search.")
    values = {name: default for name, (_, default) in fields.items()} | values
    if (method := values["method"]) not in SEARCHES:
        raise UserError(
            f"search.method must be one of {', '.join(map(repr, SEARCHES))}: got {method!r}"
        )
    searches = {}
    for name, kind in SEARCHES.items():
        try:
            own = {field: values[key] for key, field in _file_fields(kind).items()}
            searches[name] = kind(**own)
        except UserError as error:
            names = "|".join([*fields, "num_samples"])
            raise UserError(re.sub(rf"\b({names})\b", r"search.\1", str(error))) from None
    for other, kind in SEARCHES.items():
        for name in _file_fields(kind):
            if name not in _file_fields(SEARCHES[method]) and values[name] != fields[name][1]:
                raise UserError(
                    f"search.{name} needs search.method={other}: got {values[name]} with "
                    f"search.method={method}"
                )
    return searches[method]


def _file_fields(kind: type[BeamSearch | Sampling]) -> dict[str, str]:
    """Returns the names of a search's fields in files: samples count as a beam there."""
    names = [f.name for f in dataclasses.fields(kind) if f.name not in _NOT_IN_FILES]
    return {"beam_size" if name == "num_samples" else name: name for name in names}


def _search_fields() -> dict[str, tuple[Any, Any]]:
    """Returns type and default of every field of a search in a file."""
    fields: dict[str, tuple[Any, Any]] = {"method": (str, "beam"), "beam_size": (int, 4)}
    for kind in SEARCHES.values():
        hints = typing.get_type_hints(kind)
        for name, field in _file_fields(kind).items():
            fields.setdefault(name, (hints[field], getattr(kind, field)))
    return fields


def save(config: Config, path: pathlib.Path) -> None:
    """Writes the config as JSON, whole or not at all."""
    write_file(path, (json.dumps(to_dict(config), indent=2) + "\n").encode())


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
        return from_dict(values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


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
                value = config_dict.placeholder(_expected_type(hints[name]))
            result[name] = value
        return result

    hints = {name: typing.get_type_hints(type(part)) for name, part in vars(config).items()}
    hints["search"] = {name: hint for name, (hint, _) in _search_fields().items()}
    result = config_dict.ConfigDict()
    for name, values in to_dict(config).items():
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


def _build(cls: type, values: Any, prefix: str) -> Any:
    arguments = _arguments(typing.get_type_hints(cls), values, prefix)
    return cls(**arguments)


def _arguments(hints: dict[str, Any], values: Any, prefix: str) -> dict[str, Any]:
    """Returns the values of fields with these types, those of other dataclasses built."""
    if not isinstance(values, dict):
        raise UserError(f"{prefix.rstrip('.') or 'config'}: expected fields, got {values!r}")
    for name in values:
        if name not in hints:
            close = difflib.get_close_matches(name, hints, n=1)
            hint = f"did you mean {prefix}{close[0]}?" if close else f"known: {', '.join(hints)}"
            raise UserError(f"unknown config field {prefix}{name}; {hint}")
    arguments = {}
    for name, value in values.items():
        if hints[name] == BeamSearch | Sampling:
            arguments[name] = search_from_dict(value)
        elif hints[name] == DataConfig | StreamConfig:
            stream = isinstance(value, dict) and value.get("corpus") == "stream"
            kind = StreamConfig if stream else DataConfig
            arguments[name] = _build(kind, value, f"{prefix}{name}.")
        elif dataclasses.is_dataclass(hints[name]):
            arguments[name] = _build(hints[name], value, f"{prefix}{name}.")
        else:
            arguments[name] = _typed(value, hints[name], f"{prefix}{name}")
    return arguments


def _typed(value: Any, hint: Any, name: str) -> Any:
    if value is None and type(None) in typing.get_args(hint):
        return None
    expected = _expected_type(hint)
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise UserError(f"{name} is too large a number") from None
    if not isinstance(value, expected) or isinstance(value, bool) != (expected is bool):
        raise UserError(f"{name} must be of type {expected.__name__}: got {value!r}")
    return value


def _expected_type(hint: Any) -> type:
    """The plain type behind ``int``, ``int | None`` or ``Literal["a", "b"]``."""
    if typing.get_origin(hint) is Literal:
        return type(typing.get_args(hint)[0])
    if typing.get_origin(hint) is types.UnionType:
        return next(t for t in typing.get_args(hint) if t is not type(None))
    return hint


def _check_types(config: Any, section: str) -> None:
    """Refuses values of other types; numbers of NumPy become Python's, which JSON can hold."""
    for name, hint in typing.get_type_hints(type(config)).items():
        if typing.get_origin(hint) is Literal:
            continue
        value = getattr(config, name)
        if type(value).__module__ == "numpy" and not getattr(value, "ndim", 1):
            value = value.item()
        object.__setattr__(config, name, _typed(value, hint, f"{section}.{name}"))


def _check_choices(config: Any, section: str) -> None:
    _check_types(config, section)
    for name, hint in typing.get_type_hints(type(config)).items():
        value = getattr(config, name)
        if typing.get_origin(hint) is Literal and value not in typing.get_args(hint):
            choices = ", ".join(map(repr, typing.get_args(hint)))
            raise UserError(f"{section}.{name} must be one of {choices}: got {value!r}")


def _check_positive(config: Any, section: str, *names: str) -> None:
    for name in names:
        if not 0 < getattr(config, name) < math.inf:
            raise UserError(f"{section}.{name} must be greater than 0: got {getattr(config, name)}")


def _check_fraction(config: Any, section: str, name: str) -> None:
    if not 0 <= getattr(config, name) < 1:
        raise UserError(
            f"{section}.{name} must be at least 0 and less than 1: got {getattr(config, name)}"
        )
