"""The last step of every import: the workdir of the converted model."""

import pathlib
from collections.abc import Sequence

import jax
from jaxtyping import PyTree

from jaxformer.config import Config
from jaxformer.data.tokenizer import Vocabulary
from jaxformer.inference.conversions import write_model
from jaxformer.inference.origins import IMPORT
from jaxformer.interop.hub import describe_source
from jaxformer.runs.workdir import Workdir


def write_import(
    folder: Workdir,
    system: str,
    directory: pathlib.Path,
    *,
    config: Config,
    tokenizer: Vocabulary | None,
    params: PyTree,
    class_names: Sequence[str] = (),
) -> str:
    """Writes the workdir of a converted model.

    Args:
      folder: The new workdir.
      system: Name of the system that the model is from.
      directory: Folder of the model in the system's format.
      config: Config of the model.
      tokenizer: Tokenizer of the model, if it has one.
      params: Parameters of the model.
      class_names: Names of its classes of pictures.

    Returns:
      The size of the model, such as "9,200 parameters, 99 tokens".
    """
    identity = {}
    serialized = None
    if tokenizer is not None:
        identity["tokenizer"] = tokenizer.sha256
        serialized = tokenizer.serialized

    write_model(
        folder,
        IMPORT,
        identity=identity,
        tokenizer=serialized,
        config=config,
        params=params,
        class_names=class_names,
        origin=describe_source(system, directory),
    )

    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    summary = f"{size:,} parameters"
    if tokenizer is not None:
        summary += f", {tokenizer.vocab_size:,} tokens"
    return summary
