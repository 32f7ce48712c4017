"""Parameters of a trained model: selection, averaging (section 6.1) and int8 quantization."""

import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import PyTree

from jaxformer.config import Config, check_config, check_kind, read_config, save_config
from jaxformer.data.tokenizer import Vocabulary
from jaxformer.errors import MALFORMED, UserError, prefix_errors, typed_command
from jaxformer.fields import facts_of
from jaxformer.files import local_path, model_path, read_whole, run_path, write_file
from jaxformer.inference import kept_programs
from jaxformer.kinds import KINDS, TRANSLATION, Kind, describe_model
from jaxformer.layout import global_mesh
from jaxformer.models.architecture import Architecture
from jaxformer.nn.parameters import ParameterInfo
from jaxformer.nn.precision import Int8Matrix, cast_params, dequantize, with_offsets
from jaxformer.runs.checkpoints import Checkpoints, RestoredParams, write_single
from jaxformer.runs.manifest import Manifest, saved_steps
from jaxformer.runs.run_directory import check_metadata
from jaxformer.runs.workdir import Workdir, read_workdir_object, use_compilation_cache
from jaxformer.search import BeamSearch, Sampling
from jaxformer.training.task import Task
from jaxformer.waits import announce

# Commands, in messages and workdirs.
_QUANTIZE = "jaxformer quantize"
IMPORT = "jaxformer import"
# A key in the metadata of an average: the validation losses of both candidates.
_LOSSES = "validation_losses"
# Keys in the metadata of the checkpoint of a converted model.
_ORIGIN = "origin"
_ROUNDED_FROM = "rounded_from"
_LONGEST_ORIGIN = 200  # characters


def abstract_params(config: Architecture, kind: Kind = TRANSLATION) -> PyTree:
    """Returns shapes and dtypes of the parameters in a workdir, without computing them."""
    array: Any = jax.ShapeDtypeStruct

    def abstract(info: ParameterInfo) -> Any:
        if config.compute_dtype != "int8" or info.summed_axis is None:
            return array(info.shape, jnp.float32)

        scale_shape = list(info.shape)
        scale_shape[info.summed_axis] = 1
        return Int8Matrix(
            array(info.shape, jnp.int8),
            array(tuple(scale_shape), jnp.float32),
        )

    def is_info(node: Any) -> bool:
        return isinstance(node, ParameterInfo)

    infos = _describe(config, kind)
    return jax.tree.map(abstract, infos, is_leaf=is_info)


@functools.lru_cache
def _describe(config: Architecture, kind: Kind) -> PyTree:
    """Returns what :func:`~jaxformer.kinds.describe_model` does, kept on disk."""
    path = kept_programs.kept_file((config, kind.task))
    if path is None:
        return describe_model(config, kind)

    content = kept_programs.read_kept(path)
    if content is not None:
        infos = {}
        for name, axes, role, shape in json.loads(content):
            infos[name] = ParameterInfo(tuple(axes), role, tuple(shape))
        return flax.traverse_util.unflatten_dict(infos, sep=".")

    described = describe_model(config, kind)
    flat: Any = flax.traverse_util.flatten_dict(described, sep=".")
    rows = [(name, *info) for name, info in flat.items()]
    kept_programs.write_kept(path, json.dumps(rows).encode())
    return described


def prepare_params(config: Architecture, params: PyTree, kind: Kind = TRANSLATION) -> PyTree:
    """Casts or quantizes parameters; see :func:`~jaxformer.nn.precision.cast_params`."""
    leaves = jax.tree.leaves(params)
    is_quantized = any(leaf.dtype == jnp.int8 for leaf in leaves)
    if is_quantized:  # saves a program at start
        return jax.tree.map(jnp.asarray, params)
    return _cast(config, params, kind)


@global_mesh(None)
@functools.partial(jax.jit, static_argnums=(0, 2))
def _cast(config: Architecture, params: PyTree, kind: Kind) -> PyTree:
    infos = _describe(config, kind)
    return cast_params(params, infos, config.compute_dtype)


def params_sha256(params: PyTree) -> str:
    """Returns the SHA-256 of the names, shapes and float32 bytes of the sorted parameters."""
    digest = hashlib.sha256()
    for name, array in sorted(named_arrays(params).items()):
        digest.update(f"{name}{list(array.shape)}".encode())
        digest.update(array.astype("<f4").tobytes())
    return digest.hexdigest()


def named_arrays(params: PyTree) -> dict[str, np.ndarray]:
    """Returns the parameters by name: their path in the tree, joined by dots."""
    flat: Any = flax.traverse_util.flatten_dict(jax.device_get(params), sep=".")
    return flat


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """A model in a workdir, as :meth:`load` reads it."""

    folder: Workdir
    config: Config  # with the search and compute dtype given to load
    params: PyTree  # float32 or quantized to int8
    weights: str  # a description of the checkpoint, such as "step 2000"

    @classmethod
    def load(
        cls,
        workdir: str | pathlib.Path,
        *,
        weights: str | int = "auto",
        search: BeamSearch | Sampling | None = None,
        compute_dtype: str | None = None,
        dequantized: bool = False,
        kinds: Sequence[Kind] = KINDS,
    ) -> "TrainedModel":
        """Reads a model of ``kinds`` as ``Translator.load`` does; ``dequantized`` undoes int8."""
        use_compilation_cache()

        folder = Workdir(model_path(workdir))
        config = read_config(folder)
        check_kind(config, *kinds)
        params, origin = read_params(folder, config.model, str(weights), kind=config.kind)

        is_quantized = config.model.compute_dtype == "int8"
        if is_quantized and dequantized:
            params = dequantize(params)
            origin = f"{origin}, converted from int8"
            compute_dtype = compute_dtype or "float32"
        elif is_quantized and compute_dtype not in (None, "int8"):
            raise UserError(
                f"{workdir}: its parameters are quantized to int8: expected to compute in "
                f"int8, got {compute_dtype}; use the workdir that it was made from"
            )

        dtype = compute_dtype or config.model.compute_dtype
        config = dataclasses.replace(
            config,
            model=dataclasses.replace(config.model, compute_dtype=dtype),
            search=search or config.search,
        )
        return cls(folder, config, params, weights=origin)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, read from the workdir; None for a kind without one."""
        load = self.config.kind.load_tokenizer
        # The file is verified before it is parsed.
        if load is None or not self.tokenizer_file:
            return None
        return load(self.folder.tokenizer)

    @property
    def tokenizer_file(self) -> bytes | None:
        """The content of the tokenizer's file, verified; None for a kind without one."""
        if self.config.kind.load_tokenizer is None:
            return None
        self.folder.check_tokenizer()
        return read_whole(self.folder.tokenizer, self.folder.path)


PredictorT = TypeVar("PredictorT", bound="Predictor")


class Predictor:
    """A trained model with its tokenizer; the base of Translator, Generator and Classifier."""

    kinds: ClassVar[tuple[Kind, ...]]

    def __init__(
        self,
        config: Config,
        params: PyTree,
        tokenizer: Vocabulary,
        weights: str = "given",
    ) -> None:
        """Checks the arguments, which :meth:`load` reads from a workdir."""
        check_config(config)
        check_kind(config, *self.kinds)

        if isinstance(params, Mapping) and "params" in params:
            raise UserError(
                "params: expected the parameters themselves, got variables that hold them; give "
                'variables["params"]'
            )
        if tokenizer.vocab_size != config.model.vocab_size:
            raise UserError(
                f"expected a tokenizer of model.vocab_size={config.model.vocab_size} tokens: got "
                f"one of {tokenizer.vocab_size}"
            )

        use_compilation_cache()
        self.config = config
        self.tokenizer = tokenizer
        self.weights = weights
        prepared = prepare_params(config.model, params, config.kind)
        self.params = with_offsets(prepared)

    def __repr__(self) -> str:
        name = type(self).__name__
        kind = self.config.kind.description
        # Without the scales of int8.
        params = jax.eval_shape(dequantize, self.params)
        size = sum(leaf.size for leaf in jax.tree.leaves(params))
        outputs = self._describe_outputs()
        return f"<{name}: {kind}, {size:,} parameters, {self.weights}, {outputs}>"

    def _describe_outputs(self) -> str:
        search = self.config.search
        return f"{type(search).__name__} of {search.num_hypotheses}"

    @classmethod
    def load(
        cls: type[PredictorT],
        workdir: str | pathlib.Path,
        *,
        weights: str | int = "auto",
        search: BeamSearch | Sampling | None = None,
        compute_dtype: str | None = None,
    ) -> PredictorT:
        """Reads config, tokenizer and parameters; arguments and errors of ``Translator.load``."""
        trained = TrainedModel.load(
            workdir,
            weights=weights,
            search=search,
            compute_dtype=compute_dtype,
            kinds=cls.kinds,
        )
        return cls(
            trained.config,
            trained.params,
            trained.tokenizer,
            weights=trained.weights,
        )


@global_mesh(None)
def read_params(
    folder: Workdir,
    config: Architecture,
    weights: str,
    kind: Kind = TRANSLATION,
) -> tuple[PyTree, str]:
    """Reads parameters that match a config, and describes their origin, such as "step 2000"."""
    newest = max(saved_steps(folder.checkpoints), default=None)
    averaged = max(saved_steps(folder.averaged), default=None)

    chosen = weights
    if weights == "auto":
        chosen = "latest"
        is_up_to_date = averaged is not None and averaged == newest
        if is_up_to_date and not _average_is_worse(folder):
            chosen = "averaged"

    directory = folder.averaged if chosen == "averaged" else folder.checkpoints
    template = abstract_params(config, kind)
    restored = _restore(folder, directory, template, weights=chosen)
    _check_metadata(
        folder,
        directory,
        config,
        metadata=restored.metadata,
    )

    if chosen == "averaged":
        # The metadata are not trusted.
        steps = restored.metadata.get("averaged_steps", [])
        known = "unknown"
        if isinstance(steps, list):
            known = ", ".join(map(str, steps))
        return restored.params, f"average of steps {known}"

    note = ""
    if averaged is not None and averaged != restored.step:
        note = "; --weights averaged gives an average of other steps"
    elif averaged is not None and weights == "auto":
        note = "; --weights averaged gives an average with a higher validation loss"

    origin = ""
    if restored.step == 0:  # a converted model
        origin = _describe_origin(folder, restored.metadata)
    if not origin:
        origin = f"step {restored.step}"
    return restored.params, f"{origin}{note}"


def _describe_origin(folder: Workdir, metadata: dict[str, Any]) -> str:
    """Returns the origin of a converted model; "" if nothing is known about it.

    The metadata are not trusted, and are printed: without control characters, and shortened.
    """
    origin = metadata.get(_ORIGIN)
    if not isinstance(origin, str):  # Version 0.2.0 recorded less.
        rounded_from = metadata.get(_ROUNDED_FROM)
        made_by = read_workdir_object(folder.identity).get("made_by")
        if rounded_from is not None:
            origin = f"quantized from {rounded_from}"
        elif made_by == IMPORT:
            origin = "imported from another system"
        else:
            origin = ""

    printable = "".join(filter(str.isprintable, origin))
    return printable[:_LONGEST_ORIGIN]


def name_folder(path: pathlib.Path) -> str:
    """Returns a name of a folder for records: its path, or if that is absolute, the last part."""
    if path.is_absolute() or not path.name:
        return path.absolute().name
    return path.as_posix()


def _average_is_worse(folder: Workdir) -> bool:
    losses = average_losses(folder)
    if losses is None:
        return False
    return losses.average_is_worse


def load_model(
    workdir: str | pathlib.Path,
    *,
    weights: str | int = "auto",
) -> tuple[nn.Module, PyTree]:
    """Returns the model of a workdir and its parameters.

    >>> model, params = load_model("runs/numerals")  # doctest: +SKIP
    >>> logits = model.apply({"params": params}, src, tgt_in)  # doctest: +SKIP

    Args:
      workdir: The run directory of a training run, an import or a quantization.
      weights: Checkpoint: "latest", "best" (best validation score, by default the lowest loss),
        "averaged" (from ``jaxformer average``), a step, or "auto": averaged if the average
        includes the newest checkpoint and its validation loss is not higher, else latest.

    Raises:
      UserError: There are no such weights, or they are damaged or belong to another model.
    """
    trained = TrainedModel.load(workdir, weights=weights)
    config = trained.config
    return config.kind.build(config.model), trained.params


@global_mesh(None)
def load_params(workdir: str | pathlib.Path, task: Task, weights: str | int = "latest") -> PyTree:
    """Returns the parameters of a task of one's own, from a run directory of ``fit``.

    >>> params = load_params("runs/bigrams", task, "best")  # doctest: +SKIP

    Args:
      workdir: The run directory.
      task: The task that was trained; only its ``init`` is used.
      weights: Checkpoint: "latest", "best" (best validation), or a step.

    Returns:
      The parameters as ``task.init`` returns them, on JAX's default device.

    Raises:
      UserError: There is no such checkpoint, or it is damaged or of another model.
    """
    folder = Workdir(local_path(workdir))
    weights = str(weights)
    if weights not in ("latest", "best") and not weights.isdecimal():
        raise UserError(f'weights: expected "latest", "best" or a step, got {weights!r}')

    key = jax.random.key(0)
    template = jax.eval_shape(task.init, key)
    restored = _restore(folder, folder.checkpoints, template, weights=weights)
    return restored.params


def _check_metadata(
    folder: Workdir,
    directory: pathlib.Path,
    config: Architecture,
    metadata: dict[str, Any],
) -> None:
    """Checks that parameters belong to the workdir's tokenizer and model."""
    tokenizer = read_workdir_object(folder.identity).get("tokenizer")

    # A use of the model may choose other values of the other fields.
    facts = facts_of(config)
    model = {name: value for name, value in vars(config).items() if not facts[name].per_use}
    expected = {"tokenizer": tokenizer, "model": model}
    check_metadata(
        directory,
        expected,
        metadata,
        advice="copy the whole workdir",
    )


@global_mesh(None)
def average(
    folder: Workdir,
    last: int,
    validation_loss: Callable[[PyTree], float] | None = None,
) -> list[int]:
    """Writes the average of the ``last`` newest checkpoints (section 6.1); returns their steps.

    Args:
      folder: The run directory.
      last: Number of checkpoints.
      validation_loss: Returns the loss of parameters on validation data. If the average has a
        higher loss than the newest checkpoint, it does not become the default of
        ``weights="auto"``. By default, it becomes the default without a comparison.
    """
    steps = steps_to_average(folder, last)
    run = read_config(folder)

    template = abstract_params(run.model, run.kind)
    total = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float64), template)
    newest = template
    metadata = {}

    with _open(folder, folder.checkpoints) as checkpoints:
        for step in steps:
            with announce(f"verifying and reading step {step} in {folder.checkpoints}"):
                restored = checkpoints.restore_params(template, step=step)
            _check_metadata(
                folder,
                folder.checkpoints,
                run.model,
                metadata=restored.metadata,
            )
            newest = restored.params
            total = jax.tree.map(np.add, total, jax.device_get(newest))
            metadata = {**restored.metadata, "averaged_steps": steps}

    mean = jax.tree.map(lambda leaf: jnp.asarray(leaf / last, jnp.float32), total)
    if validation_loss is not None:
        metadata[_LOSSES] = {
            "latest": validation_loss(newest),
            "averaged": validation_loss(mean),
        }
    write_single(
        folder.averaged,
        steps[-1],
        {"params": mean},
        metadata=metadata,
    )
    return steps


def steps_to_average(folder: Workdir, last: int) -> list[int]:
    """Returns the ``last`` newest steps of a run.

    Raises:
      UserError: There are fewer, or the run cannot be averaged.
    """
    if last < 1:
        raise UserError(f"--last must be at least 1: got {last}")

    run = read_config(folder)
    if run.model.compute_dtype == "int8":
        raise UserError(
            f"{folder.path}: is quantized to int8; average the run that it was made from, then "
            "quantize the average with jaxformer quantize"
        )

    with _open(folder, folder.checkpoints) as checkpoints:
        steps = checkpoints.newest_steps()[-last:]
    if len(steps) == last:
        return steps

    advice = f"use --last {len(steps)}, or train longer" if steps else "train longer"
    if last > run.training.keep_checkpoints:
        advice += f" with --config.training.keep_checkpoints={last}"
    raise UserError(
        f"{folder.checkpoints}: expected {last} checkpoints to average, found {len(steps)}; "
        f"{advice}"
    )


class AverageLosses(NamedTuple):
    """Losses on validation data, of the newest checkpoint and of an average."""

    latest: float
    averaged: float

    @property
    def average_is_worse(self) -> bool:
        # A loss that is NaN is not as good.
        is_as_good = self.averaged <= self.latest
        return not is_as_good


def average_losses(folder: Workdir) -> AverageLosses | None:
    """Returns the validation losses of an average, or None if there is none, or no such losses."""
    # The folder has at most one checkpoint.
    step = max(saved_steps(folder.averaged), default=None)
    if step is None:
        return None

    manifest = Manifest.read(folder.averaged / str(step))
    losses = manifest.metadata.get(_LOSSES)
    if losses is None:
        return None

    with prefix_errors(f"{folder.averaged}: expected two validation losses", *MALFORMED):
        return AverageLosses(float(losses["latest"]), float(losses["averaged"]))


def _restore(
    folder: Workdir,
    directory: pathlib.Path,
    template: PyTree,
    weights: str,
) -> RestoredParams:
    with _open(folder, directory) as checkpoints:
        step = None  # the newest
        if weights not in ("averaged", "latest"):
            step = _chosen_step(checkpoints, directory, weights)

        with announce(f"verifying and reading the parameters in {directory}"):
            return checkpoints.restore_params(template, step=step)


def _open(folder: Workdir, directory: pathlib.Path) -> Checkpoints:
    if not directory.is_dir():
        author = typed_command("average" if directory == folder.averaged else "train")
        raise UserError(f"{directory}: no such folder; it is made by {author}")
    return Checkpoints(directory)


def _chosen_step(checkpoints: Checkpoints, directory: pathlib.Path, weights: str) -> int:
    if weights == "best":
        best = checkpoints.best_step()
        if best is None:
            raise UserError(
                f"{directory}: no checkpoint has been validated yet; use --weights latest"
            )
        return best

    steps = checkpoints.steps()
    if weights not in map(str, steps):
        raise UserError(
            "--weights must be averaged, best, latest, auto or one of the steps "
            f"{', '.join(map(str, steps))}: got {weights}"
        )
    return int(weights)


def quantize(
    workdir: str | pathlib.Path,
    output: str | pathlib.Path,
    *,
    weights: str | int = "auto",
) -> tuple[int, int]:
    """Quantizes the parameters of a run to int8 and writes them to a new workdir.

    Every command accepts the new workdir. Matrices are stored as int8 with one float32 scale per
    output channel; biases and layer norms are unchanged. The inputs of matrix multiplications are
    quantized during decoding, row by row.

    Args:
      workdir: The run directory.
      output: The workdir to write, new or empty; an unfinished one is overwritten.
      weights: Checkpoint; see :func:`~jaxformer.load_model`.

    Returns:
      Bytes of the parameters before and after.

    Raises:
      UserError: The run is damaged or quantized already, or ``output`` is a workdir or a file, or
        holds files that this command would overwrite.
    """
    target = Workdir(run_path(output))
    target.check_writable(_QUANTIZE)

    trained = TrainedModel.load(workdir, weights=weights)
    config = trained.config
    if config.model.compute_dtype == "int8":
        raise UserError(f"{workdir}: expected a model to quantize, but it is int8 already")

    identity = read_workdir_object(trained.folder.identity)
    tokenizer = trained.tokenizer_file

    model = dataclasses.replace(config.model, compute_dtype="int8")
    quantized = prepare_params(model, trained.params, config.kind)

    made_from = f"{name_folder(trained.folder.path)}, {trained.weights}"
    metadata = {
        _ROUNDED_FROM: trained.weights,
        _ORIGIN: f"quantized from {made_from}",
    }
    write_model(
        target,
        _QUANTIZE,
        identity,
        tokenizer=tokenizer,
        config=dataclasses.replace(config, model=model),
        params=quantized,
        **metadata,
    )
    return _num_bytes(trained.params), _num_bytes(quantized)


def _num_bytes(params: PyTree) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(params))


def write_model(
    target: Workdir,
    command: str,
    identity: dict[str, Any],
    tokenizer: bytes | None,
    config: Config,
    params: PyTree,
    **metadata: Any,
) -> None:
    """Writes the workdir of a converted model, with additional metadata.

    The metadatum ``origin`` describes the model in logs, such as "imported from Marian: opus-mt".
    """
    target.create(command, identity)

    if tokenizer is not None:
        write_file(target.tokenizer, tokenizer)

    metadata = {
        "tokenizer": identity.get("tokenizer"),
        "model": dataclasses.asdict(config.model),
        **metadata,
    }
    write_single(
        target.checkpoints,
        0,
        {"params": params},
        metadata=metadata,
    )

    save_config(config, target.config)  # Last, since the config marks a complete workdir.
