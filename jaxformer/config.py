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
import types
import typing
from typing import Any, Literal

from jaxformer.errors import UserError
from jaxformer.files import local_path, write_file

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
      norm_position: "post" as in the paper, LayerNorm(x + Sublayer(x)), or "pre".
      positions: "sinusoidal" as in section 3.5, or "learned" (Table 3, row E).
      activation: Of the feed-forward networks: "relu" as in equation 2, or "swish", which other
        systems' models have.
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
    norm_position: Literal["post", "pre"] = "post"
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    activation: Literal["relu", "swish"] = "relu"
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
      moments: Dtype of Adam's two moments; "bfloat16" halves their memory, and rounds them.
      eval_sentences: Validation sentences translated for BLEU, or parsed for F1; 0 leaves it out.
    """

    warmup_steps: int = 4000
    learning_rate_scale: float = 1.0
    label_smoothing: float = 0.1
    clip_norm: float | None = None
    remat: Remat = "none"
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """Decoding (section 6.1).

    Constraints (minimum length, repetition, sampling's cuts) forbid hypotheses and never change
    the score of one that is allowed.

    Attributes:
      method: "beam" search, which is greedy with a beam of one, or "sampling".
      beam_size: Hypotheses kept per sentence, at most 1000; the samples drawn when sampling.
      length_penalty: alpha of the length penalty; 0 to 10.
      penalty: What a log probability is divided by, of n tokens: "gnmt" ((5 + n) / 6)^alpha as in
        the paper, "power" n^alpha, "none" 1.
      max_extra_length: A translation has at most the source length plus this many tokens.
      max_length: A translation has at most this many tokens, end-of-sentence included; None: as
        many as ``max_extra_length`` allows.
      min_length: A translation has at least this many tokens before its end-of-sentence.
      no_repeat_ngram: No n tokens in a row come twice in a translation; 0 allows it.
      diversity_groups: Groups of a diverse beam search (Vijayakumar et al. 2016), among which the
        beam is shared out; 1 is plain beam search.
      diversity_penalty: What a token costs, in log probability, for each earlier group that chose
        it at the same step.
      temperature: Sampling divides logits by it.
      top_k: Sampling takes one of this many best tokens; 0: of all.
      top_p: Sampling takes one of the fewest best tokens that together have this probability.
      seed: Of sampling; 0 to 2^31 - 1.
    """

    method: Literal["beam", "sampling"] = "beam"
    beam_size: int = 4
    length_penalty: float = 0.6
    penalty: Literal["gnmt", "power", "none"] = "gnmt"
    max_extra_length: int = 50
    max_length: int | None = None
    min_length: int = 0
    no_repeat_ngram: int = 0
    diversity_groups: int = 1
    diversity_penalty: float = 0.0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuses a search that could return nothing, and settings that would go unused."""
        _check_choices(self, "search")
        _check_positive(
            self, "search", "beam_size", "max_extra_length", "diversity_groups", "temperature"
        )
        if self.beam_size > 1000:
            raise UserError(f"search.beam_size must be at most 1000: got {self.beam_size}")
        if not 0 <= self.length_penalty <= 10:
            raise UserError(f"search.length_penalty must be 0 to 10: got {self.length_penalty}")
        for name in ("min_length", "no_repeat_ngram", "top_k"):
            if getattr(self, name) < 0:
                raise UserError(f"search.{name} must be 0 or more: got {getattr(self, name)}")
        if self.max_length is not None and self.max_length <= self.min_length:
            raise UserError(
                "search.max_length must exceed search.min_length, since end-of-sentence counts: "
                f"got {self.max_length} and {self.min_length}"
            )
        if not 0 < self.top_p <= 1:
            raise UserError(f"search.top_p must be above 0 and at most 1: got {self.top_p}")
        if not 0 <= self.seed < 2**31:
            raise UserError(f"search.seed must be from 0 to {2**31 - 1}: got {self.seed}")
        self._check_method()

    def _check_method(self) -> None:
        if self.beam_size % self.diversity_groups:
            raise UserError(
                "search.diversity_groups must divide search.beam_size: got "
                f"{self.diversity_groups} and {self.beam_size}"
            )
        if not 0 <= self.diversity_penalty < math.inf:
            raise UserError(
                f"search.diversity_penalty must be 0 or more: got {self.diversity_penalty}"
            )
        if (self.diversity_groups > 1) != (self.diversity_penalty > 0):
            raise UserError(
                "search.diversity_groups above 1 and search.diversity_penalty above 0 go together: "
                f"got {self.diversity_groups} and {self.diversity_penalty}"
            )
        # What only one of the methods looks at, and the value that means "not asked for".
        unused = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 0}
        if self.method == "sampling":
            unused = {"diversity_groups": 1}
        for name, default in unused.items():
            if getattr(self, name) != default:
                other = "beam" if self.method == "sampling" else "sampling"
                raise UserError(
                    f"search.{name} needs search.method={other}: got {getattr(self, name)} with "
                    f"search.method={self.method}"
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """One experiment: the paper's base model on WMT14 English-German by default."""

    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    search: SearchConfig = dataclasses.field(default_factory=SearchConfig)

    def __post_init__(self) -> None:
        """Refuses parts that contradict one another."""
        for name, expected in typing.get_type_hints(Config).items():
            part = getattr(self, name)
            if not isinstance(part, expected):
                raise UserError(f"{name} must be a {expected.__name__}: got {type(part).__name__}")
        if self.data.max_length > self.model.max_length:
            raise UserError(
                "data.max_length must not exceed model.max_length: got "
                f"{self.data.max_length} > {self.model.max_length}"
            )


def check_config(config: Any) -> None:
    """Refuses what is no config, or only a part of one.

    Raises:
      UserError: Says what was given, and what to do.
    """
    if isinstance(config, Config):
        return
    fields = {hint: name for name, hint in typing.get_type_hints(Config).items()}
    advice = "make one of a ConfigDict with config.from_dict(values.to_dict())"
    if type(config) in fields:
        advice = f"put it into one: Config({fields[type(config)]}=...)"
    raise UserError(f"expected a Config, got {type(config).__name__}; {advice}")


def to_dict(config: Config | FitConfig) -> dict[str, Any]:
    """The config as nested dictionaries of plain values."""
    return dataclasses.asdict(config)


def from_dict(values: dict[str, Any]) -> Config:
    """Builds and validates a config from nested dictionaries; the inverse of :func:`to_dict`.

    Raises:
      UserError: A field is unknown, of the wrong type, or out of range.
    """
    return _build(Config, values, prefix="")


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

    def convert(part: Any) -> Any:
        result = config_dict.ConfigDict()
        hints = typing.get_type_hints(type(part))
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if dataclasses.is_dataclass(value):
                value = convert(value)
            elif value is None:
                value = config_dict.placeholder(_expected_type(hints[field.name]))
            result[field.name] = value
        return result

    return convert(config)


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
    if not isinstance(values, dict):
        raise UserError(f"{prefix.rstrip('.') or 'config'}: expected fields, got {values!r}")
    hints = typing.get_type_hints(cls)
    for name in values:
        if name not in hints:
            close = difflib.get_close_matches(name, hints, n=1)
            hint = f"did you mean {prefix}{close[0]}?" if close else f"known: {', '.join(hints)}"
            raise UserError(f"unknown config field {prefix}{name}; {hint}")
    arguments = {}
    for name, value in values.items():
        if dataclasses.is_dataclass(hints[name]):
            arguments[name] = _build(hints[name], value, f"{prefix}{name}.")
        else:
            arguments[name] = _typed(value, hints[name], f"{prefix}{name}")
    return cls(**arguments)


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
