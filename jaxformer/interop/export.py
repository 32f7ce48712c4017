"""Writes exports: the files of a format and a model card, in a new folder."""

import dataclasses
import os
import pathlib
import tempfile

import jax

from jaxformer.errors import UserError, did_you_mean
from jaxformer.files import check_unicode_path, local_path, write_file
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop.model_card import code_block, facts_of_model, write_card
from jaxformer.interop.systems import known_formats
from jaxformer.search import BeamSearch, Sampling


def export_model(
    format: str,
    workdir: str | pathlib.Path,
    output: str | pathlib.Path,
    *,
    weights: str | int = "auto",
    search: BeamSearch | Sampling | None = None,
    compute_dtype: str | None = None,
) -> str:
    """Exports the model of a workdir, with a model card as README.md; returns a summary.

    The folder ``output``, which must be new or empty, appears only when it is complete. The other
    arguments are as for ``Translator.load``; ``compute_dtype`` is for "stablehlo" only, since the
    other formats contain no program.

    Raises:
      UserError: The workdir is damaged, the format cannot express the model or an option, a package
        is missing, or ``output`` exists and is not an empty folder.
    """
    target = local_path(output).absolute()
    check_unicode_path(target)

    known = known_formats()
    if format not in known:
        hint = did_you_mean(format, known, f"choose from {', '.join(known)}")
        raise UserError(f"unknown format {format!r:.80}; {hint}")
    chosen = known[format]

    if compute_dtype is not None and chosen.stores is not None:
        programs = " and ".join(each.name for each in known.values() if each.stores is None)
        raise UserError(
            f"--dtype is for {programs} only: {format} stores {chosen.stores}; leave it out"
        )
    _check_new_or_empty(target)

    model = TrainedModel.load(
        workdir,
        weights=weights,
        search=search,
        compute_dtype=compute_dtype,
        dequantized=True,
    )

    # Formats write NumPy arrays.
    model = dataclasses.replace(model, params=jax.device_get(model.params))

    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{target.name}.", dir=target.parent) as name:
        folder = pathlib.Path(name) / "export"
        folder.mkdir()
        usage = chosen.write(model, folder)
        card = write_card(
            model,
            target.name,
            usage,
            use=code_block(usage, ", in this folder"),
            facts=facts_of_model(model),
        )
        write_file(folder / "README.md", card.encode())
        size = sum(path.stat().st_size for path in folder.iterdir())

        # The folder appears under its name only when it is complete.
        folder.replace(target)
    summary = f"{format}, {model.weights}, {size / 1e6:.1f} MB; README.md says how to load it"
    return f"{summary}\n  {usage.remark}" if usage.remark else summary


def _check_new_or_empty(folder: pathlib.Path) -> None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UserError(f"{folder}: expected the name of a new folder, but it exists")
    if not folder.exists():
        return

    found = sorted(os.listdir(folder))
    if found:
        raise UserError(
            f"{folder}: expected a new or empty folder, but it holds {found[0]!r:.80}; name another"
        )
