"""Quantization of a trained model's parameters to int8, a quarter of their float32 size."""

import dataclasses
import pathlib

import jax
from jaxtyping import PyTree

from jaxformer import config as config_lib
from jaxformer.errors import UserError
from jaxformer.files import read_whole, run_path, write_file
from jaxformer.inference.weights import TrainedModel, prepare_params
from jaxformer.runs.single import write_single
from jaxformer.runs.workdir import Workdir, read_object

_COMMAND = "jaxformer quantize"


def quantize(
    workdir: str | pathlib.Path, output: str | pathlib.Path, *, weights: str | int = "auto"
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
    target.check_writable(_COMMAND)
    trained = TrainedModel.load(workdir, weights=weights)
    folder, config, params = trained.folder, trained.config, trained.params
    if config.model.compute_dtype == "int8":
        raise UserError(f"{workdir}: expected a model to quantize, but it is int8 already")
    folder.check_tokenizer()
    model = dataclasses.replace(config.model, compute_dtype="int8")
    quantized = prepare_params(model, params, config.kind)
    identity = read_object(folder.identity)
    metadata = {
        "tokenizer": identity.get("tokenizer"),
        "model": dataclasses.asdict(model),
        "rounded_from": trained.weights,
    }
    target.begin(_COMMAND, identity)
    write_single(target.checkpoints, 0, {"params": quantized}, metadata)
    write_file(target.tokenizer, read_whole(folder.tokenizer, folder.path))
    # Last, since the config marks a complete workdir.
    config_lib.save(dataclasses.replace(config, model=model), target.config)
    return _bytes(params), _bytes(quantized)


def _bytes(params: PyTree) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(params))
