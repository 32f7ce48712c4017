"""Parameters of a trained model: choice of a checkpoint, and averaging (section 6.1)."""

import contextlib
import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import PyTree

from jaxformer.config import Config, ModelConfig, check_kind, load_run
from jaxformer.errors import UserError
from jaxformer.fields import check_unchanged
from jaxformer.files import model_path
from jaxformer.kinds import KINDS, TRANSLATION, Kind, describe_model, make_init
from jaxformer.layout import global_mesh
from jaxformer.nn.precision import cast_params, dequantize
from jaxformer.runs.checkpoints import Checkpoints, RestoredParams
from jaxformer.runs.manifest import MissingStepError
from jaxformer.runs.single import write_single
from jaxformer.runs.step_folders import saved_steps
from jaxformer.runs.workdir import Workdir, read_object
from jaxformer.search import BeamSearch, Sampling

T = TypeVar("T")


def abstract_params(config: ModelConfig, kind: Kind = TRANSLATION) -> PyTree:
    """Returns shapes and dtypes of the parameters in a workdir, without computing them."""
    params = jax.eval_shape(make_init(config, kind), jax.random.key(0))
    if config.compute_dtype != "int8":
        return params
    return jax.eval_shape(lambda params: prepare_params(config, params, kind), params)


@global_mesh(None)
@functools.partial(jax.jit, static_argnums=(0, 2))
def prepare_params(config: ModelConfig, params: PyTree, kind: Kind = TRANSLATION) -> PyTree:
    """Casts or quantizes the parameters of a model for decoding.

    See :func:`~jaxformer.nn.precision.cast_params`.
    """
    return cast_params(params, describe_model(config, kind), config.compute_dtype)


def params_sha256(params: PyTree) -> str:
    """Returns the SHA-256 of the names, shapes and float32 bytes of the sorted parameters."""
    digest = hashlib.sha256()
    for name, array in sorted(named_arrays(params).items()):
        digest.update(f"{name}{list(array.shape)}".encode() + array.astype("<f4").tobytes())
    return digest.hexdigest()


def named_arrays(params: PyTree) -> dict[str, np.ndarray]:
    """Returns the parameters by name: their path in the tree, joined by dots."""
    flat: Any = flax.traverse_util.flatten_dict(jax.device_get(params), sep=".")
    return flat


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """A model in a workdir, as :meth:`load` reads it.

    Attributes:
      folder: The workdir.
      config: Its config, with the search and the compute dtype that :meth:`load` was given.
      params: Parameters, float32 or quantized to int8.
      weights: Description of the checkpoint, such as "step 2000".
    """

    folder: Workdir
    config: Config
    params: PyTree
    weights: str

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
        """Reads config and parameters; the arguments are the ones of ``Translator.load``.

        With ``dequantized``, int8 parameters become float32. ``kinds`` are the kinds that the
        model may be of.

        Raises:
          UserError: A file is missing or damaged, the model is of another kind, there are no such
            weights, or they are int8 and cannot be used with another compute dtype.
        """
        folder = Workdir(model_path(workdir))
        config = load_run(folder)
        check_kind(config, *kinds)
        params, origin = load_params(folder, config.model, str(weights), config.kind)
        if config.model.compute_dtype == "int8":
            if dequantized:
                params, origin = dequantize(params), f"{origin}, converted from int8"
                compute_dtype = compute_dtype or "float32"
            elif compute_dtype not in (None, "int8"):
                raise UserError(
                    f"{workdir}: its parameters are quantized to int8: expected to compute in "
                    f"int8, got {compute_dtype}; use the workdir that it was made from"
                )
        dtype = compute_dtype or config.model.compute_dtype
        model = dataclasses.replace(config.model, compute_dtype=dtype)
        config = dataclasses.replace(config, model=model, search=search or config.search)
        return cls(folder, config, params, origin)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, read from the workdir."""
        self.folder.check_tokenizer()
        return self.config.kind.load_tokenizer(self.folder.tokenizer)


@global_mesh(None)
def load_params(
    folder: Workdir, config: ModelConfig, weights: str, kind: Kind = TRANSLATION
) -> tuple[PyTree, str]:
    """Reads parameters that fit a config, and describes their origin, such as "step 2000".

    Raises:
      UserError: There are no such weights, or they are damaged or of another model.
    """
    newest = max(saved_steps(folder.checkpoints), default=None)
    averaged = max(saved_steps(folder.averaged), default=None)
    if weights == "auto":
        weights = "averaged" if averaged is not None and averaged == newest else "latest"
    directory, made_by = folder.checkpoints, "train.py"
    if weights == "averaged":
        directory, made_by = folder.averaged, "jaxformer average"
    template = abstract_params(config, kind)

    def restore() -> RestoredParams:
        with _open(directory, made_by) as checkpoints:
            chosen = weights not in ("averaged", "latest")
            step = _chosen_step(checkpoints, directory, weights) if chosen else None
            return checkpoints.restore_params(template, step=step)

    restored = _beside_a_run(restore)
    _check_metadata(folder, directory, config, restored.metadata)
    if weights == "averaged":
        return restored.params, f"average of steps {_averaged_steps(restored.metadata)}"
    older = averaged is not None and directory == folder.checkpoints and averaged != restored.step
    note = "; --weights averaged gives an average of other steps" if older else ""
    return restored.params, f"step {restored.step}{note}"


def load_model(
    workdir: str | pathlib.Path, *, weights: str | int = "auto"
) -> tuple[nn.Module, PyTree]:
    """Returns the model of a workdir and its parameters.

    >>> model, params = load_model("runs/numerals")  # doctest: +SKIP
    >>> logits = model.apply({"params": params}, src, tgt_in)  # doctest: +SKIP

    Args:
      workdir: The run directory of a training run, an import or a quantization.
      weights: Checkpoint: "latest", "best" (best validation score, by default the lowest loss),
        "averaged" (from ``jaxformer average``), a step, or "auto": averaged if the average
        includes the newest checkpoint, else latest.

    Raises:
      UserError: There are no such weights, or they are damaged or of another model.
    """
    trained = TrainedModel.load(workdir, weights=weights)
    return trained.config.kind.network(trained.config.model), trained.params


def _averaged_steps(metadata: dict[str, Any]) -> str:
    steps = metadata.get("averaged_steps", [])
    return ", ".join(map(str, steps)) if isinstance(steps, list) else "unknown"


def _check_metadata(
    folder: Workdir, directory: pathlib.Path, config: ModelConfig, metadata: dict[str, Any]
) -> None:
    """Checks that parameters are of the workdir's tokenizer and model."""
    check_unchanged(dataclasses.asdict(config), metadata.get("model"), "model", str(directory))
    expected = read_object(folder.identity).get("tokenizer")
    if metadata.get("tokenizer") != expected:
        raise UserError(
            f"{directory}: expected weights of the tokenizer in {folder.tokenizer}, SHA-256 "
            f"{expected!s:.64}, but these are of {metadata.get('tokenizer')!s:.64}; copy the "
            "whole workdir"
        )


@global_mesh(None)
def average(folder: Workdir, last: int) -> list[int]:
    """Averages the ``last`` newest checkpoints (section 6.1) and writes ``folder.averaged``.

    Parameters are summed in float64.

    Returns:
      The steps that were averaged.

    Raises:
      UserError: There are fewer checkpoints, one of them is damaged, or they are quantized.
    """
    if last < 1:
        raise UserError(f"--last must be at least 1: got {last}")
    run = load_run(folder)
    config = run.model
    if config.compute_dtype == "int8":
        raise UserError(
            f"{folder.path}: is quantized to int8; average the run that it was made from, then "
            "quantize the average with jaxformer quantize"
        )
    template = abstract_params(config, run.kind)
    steps, mean, metadata = _beside_a_run(lambda: _mean(folder, run, template, last))
    write_single(folder.averaged, steps[-1], {"params": mean}, metadata)
    return steps


def _mean(
    folder: Workdir, run: Config, template: PyTree, last: int
) -> tuple[list[int], PyTree, dict[str, Any]]:
    """Returns the newest steps, their mean and its metadata."""
    with _open(folder.checkpoints, "train.py") as checkpoints:
        steps = checkpoints.newest_steps()[-last:]
        if not steps:
            raise UserError(f"{folder.checkpoints}: no checkpoint yet; train for longer")
        if len(steps) < last:
            kept = run.training.keep_checkpoints
            more = (
                "train longer"
                if last <= kept
                else f"train longer with --config.training.keep_checkpoints={last}"
            )
            raise UserError(
                f"{folder.checkpoints}: expected {last} checkpoints to average, found "
                f"{len(steps)}; use --last {len(steps)}, or {more}"
            )
        total = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float64), template)
        metadata: dict[str, Any] = {}
        for step in steps:
            restored = checkpoints.restore_params(template, step=step)
            _check_metadata(folder, folder.checkpoints, run.model, restored.metadata)
            total = jax.tree.map(np.add, total, jax.device_get(restored.params))
            metadata = {**restored.metadata, "averaged_steps": steps}
    mean = jax.tree.map(lambda leaf: jnp.asarray(leaf / last, jnp.float32), total)
    return steps, mean, metadata


def _beside_a_run(read: Callable[[], T]) -> T:
    """Reads steps, up to three times: a run may remove them after they were chosen."""
    for _ in range(2):
        with contextlib.suppress(MissingStepError):
            return read()
    return read()


def _open(directory: pathlib.Path, made_by: str) -> Checkpoints:
    if not directory.is_dir():
        raise UserError(f"{directory}: no such folder; it is made by {made_by}")
    return Checkpoints(directory)


def _chosen_step(checkpoints: Checkpoints, directory: pathlib.Path, weights: str) -> int:
    if weights == "best":
        if (best := checkpoints.best_step()) is None:
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
