"""Reads trained models: the choice of a checkpoint, its parameters, and the tokenizer."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax
from flax import linen as nn
from jaxtyping import PyTree

from jaxformer.config import Config, check_config, check_kind, read_config
from jaxformer.data.tokenizer import Vocabulary
from jaxformer.errors import MALFORMED, UserError, prefix_errors, typed_command
from jaxformer.fields import facts_of
from jaxformer.files import local_path, model_path, read_whole
from jaxformer.inference.origins import describe_origin
from jaxformer.inference.parameter_arrays import abstract_params, prepare_params
from jaxformer.kinds.kind import Kind
from jaxformer.kinds.translation import TRANSLATION
from jaxformer.layout import global_mesh
from jaxformer.models.architecture import Architecture
from jaxformer.nn.precision import dequantize, with_offsets
from jaxformer.runs.checkpoints import Checkpoints, RestoredParams
from jaxformer.runs.manifest import Manifest, saved_steps
from jaxformer.runs.run_directory import check_metadata
from jaxformer.runs.workdir import Workdir, read_workdir_object, use_compilation_cache
from jaxformer.search import BeamSearch, Sampling
from jaxformer.training.task import Task
from jaxformer.waits import announce

# A key in the metadata of an average: the validation losses of both candidates.
LOSSES = "validation_losses"


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
        kinds: Sequence[Kind] | None = None,
    ) -> "TrainedModel":
        """Reads a model as ``Translator.load`` does, of any kind or of the given ones.

        ``dequantized`` undoes int8.
        """
        if compute_dtype == "float8":
            raise UserError(
                "compute_dtype=float8 is for training only: expected float32, bfloat16, float16 or "
                "int8"
            )

        use_compilation_cache()
        folder = Workdir(model_path(workdir))
        config = read_config(folder)
        if kinds is not None:
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
        chosen = dataclasses.replace(config.model, compute_dtype=dtype)
        config = dataclasses.replace(
            config,
            model=_for_inference(chosen),
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


def _for_inference(model: Architecture) -> Architecture:
    """Returns a model that does not compute in float8, whose scales depend on the whole batch."""
    if model.compute_dtype != "float8":
        return model
    return dataclasses.replace(model, compute_dtype="bfloat16")


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
        self.config = dataclasses.replace(config, model=_for_inference(config.model))
        self.tokenizer = tokenizer
        self.weights = weights
        prepared = prepare_params(self.config.model, params, config.kind)
        self.params = with_offsets(prepared)

    def __repr__(self) -> str:
        name = type(self).__name__
        kind = self.config.kind.description
        # The scales of int8 do not count as parameters.
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
        tokenizer: Vocabulary | None = None,
    ) -> PredictorT:
        """Reads config, tokenizer and parameters; arguments and errors of ``Translator.load``.

        ``tokenizer`` is the workdir's, if it has been read already.
        """
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
            trained.tokenizer if tokenizer is None else tokenizer,
            weights=trained.weights,
        )


EncoderPredictorT = TypeVar("EncoderPredictorT", bound="EncoderPredictor")


class EncoderPredictor(Predictor):
    """A trained encoder of texts with its tokenizer, which computes in floats."""

    @classmethod
    def load(
        cls: type[EncoderPredictorT],
        workdir: str | pathlib.Path,
        *,
        weights: str | int = "auto",
    ) -> EncoderPredictorT:
        """Reads a model from a workdir; arguments and errors as for ``Translator.load``."""
        trained = TrainedModel.load(workdir, weights=weights, dequantized=True, kinds=cls.kinds)
        return cls(
            trained.config,
            trained.params,
            trained.tokenizer,
            trained.weights,
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
    check_owner(
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
        origin = describe_origin(folder, restored.metadata)
    if not origin:
        origin = f"step {restored.step}"
    return restored.params, f"{origin}{note}"


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
      workdir: The run directory of a training run, an import or a quantization, or the address of
        a model on the Hugging Face Hub, such as "hf://OWNER/NAME".
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


def check_owner(
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
    losses = manifest.metadata.get(LOSSES)
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
    with open_checkpoints(folder, directory) as checkpoints:
        step = None  # the newest
        if weights not in ("averaged", "latest"):
            step = _chosen_step(checkpoints, directory, weights)

        with announce(f"verifying and reading the parameters in {directory}"):
            return checkpoints.restore_params(template, step=step)


def open_checkpoints(folder: Workdir, directory: pathlib.Path) -> Checkpoints:
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
