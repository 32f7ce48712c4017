"""Writing an export: the files of a format, and a model card, in a new folder."""

import dataclasses
import os
import pathlib
import tempfile
from typing import Literal

import jax

from jaxformer.errors import UserError
from jaxformer.files import local_path, write_file
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop import ctranslate2, safetensors, stablehlo
from jaxformer.interop.card import model_card
from jaxformer.interop.marian import exporter as marian
from jaxformer.search import BeamSearch, Sampling

Format = Literal["stablehlo", "ctranslate2", "marian", "safetensors"]
_FORMATS = {
    "stablehlo": stablehlo.write,
    "ctranslate2": ctranslate2.write,
    "marian": marian.write,
    "safetensors": safetensors.write,
}


def export_model(
    format: Format,
    workdir: str | pathlib.Path,
    output: str | pathlib.Path,
    *,
    weights: str | int = "auto",
    search: BeamSearch | Sampling | None = None,
    compute_dtype: str | None = None,
) -> str:
    """Exports the model of a workdir, with a model card as README.md.

    The folder appears only when it is complete.

    Args:
      format: "stablehlo", "ctranslate2", "marian" or "safetensors".
      workdir: The run directory.
      output: The folder to write, new or empty.
      weights: Checkpoint; see :func:`~jaxformer.load_model`.
      search: Replaces the run's search.
      compute_dtype: Replaces the run's compute dtype; for "stablehlo" only, since the other formats
        hold no program.

    Returns:
      A one-line summary.

    Raises:
      UserError: An option does not suit the format, the workdir is damaged, the format cannot
        express the model, a package is missing, or ``output`` exists and is not an empty folder.
    """
    target = local_path(output).absolute()
    if compute_dtype is not None and format != "stablehlo":
        raise UserError(f"--dtype is for stablehlo only: {format} stores float32; leave it out")
    _check_unused(target)
    options = {"search": search, "compute_dtype": compute_dtype, "dequantized": True}
    model = TrainedModel.load(workdir, weights=weights, **options)
    model.folder.check_tokenizer()
    model = dataclasses.replace(model, params=jax.device_get(model.params))
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{target.name}.", dir=target.parent) as name:
        folder = pathlib.Path(name) / "export"
        folder.mkdir()
        usage = _FORMATS[format](model, folder)
        card = model_card(model, target.name, usage)
        write_file(folder / "README.md", card.encode())
        size = sum(path.stat().st_size for path in folder.iterdir())
        _check_unused(target)
        folder.replace(target)
    return f"{format}, {model.weights}, {size / 1e6:.1f} MB; README.md says how to load it"


def _check_unused(folder: pathlib.Path) -> None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UserError(f"{folder}: expected the name of a new folder, but it exists")
    if folder.exists() and (found := sorted(os.listdir(folder))):
        raise UserError(
            f"{folder}: expected a new or empty folder, but it holds {found[0]!r:.80}; name another"
        )
