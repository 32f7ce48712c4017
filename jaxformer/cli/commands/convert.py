"""The commands ``average``, ``quantize``, ``import`` and ``export``, which convert models."""

import pathlib
import re
import sys
from typing import TYPE_CHECKING, Annotated

from jaxformer.cli.command import Command
from jaxformer.cli.options import (
    Checkpoint,
    Dtype,
    Folder,
    ModelDir,
    NewRunDir,
    RunDir,
    SearchOptions,
)
from jaxformer.cli.signatures import Choices, Option
from jaxformer.errors import UserError
from jaxformer.files import local_path
from jaxformer.interop.systems import known_formats, known_systems
from jaxformer.waits import announce

if TYPE_CHECKING:
    from jaxformer.inference.weights import AverageLosses


def average(*, workdir: RunDir, last: int = 5) -> None:
    """Average the newest checkpoints, as the paper does; other commands then use the average.

    Options:
      last: number of checkpoints; the paper averages 5 of base models and 20 of big models

    Example:
      jaxformer average --workdir runs/multi30k --last 5

      It compares the losses of the average and of the newest checkpoint on the validation data of
      the run. If the average is worse, the other commands still use the newest checkpoint.
    """
    from jaxformer.experiment import make_validation_loss
    from jaxformer.inference import conversions
    from jaxformer.inference.weights import average_losses
    from jaxformer.runs.workdir import Workdir

    folder = Workdir(workdir)
    conversions.steps_to_average(folder, last)  # refuses mistakes before it reads the data

    # Without the validation data, the average is made, but not compared.
    validation_loss = None
    reason = ""
    try:
        print("comparing the average with the newest checkpoint", file=sys.stderr)
        validation_loss = make_validation_loss(workdir)
    except (UserError, OSError) as error:
        reason = str(error)

    steps = conversions.average(folder, last, validation_loss)
    print(f"{folder.averaged}: average of steps {', '.join(map(str, steps))}")
    losses = average_losses(folder)
    print(_describe_average(steps[-1], losses, reason))


AVERAGE = Command("average", average, place=140)


def _describe_average(newest: int, losses: "AverageLosses | None", reason: str) -> str:
    """Returns whether an average is better than the newest checkpoint, and which is the default."""
    undo = "--weights latest uses the newest checkpoint instead; delete the folder to undo this"
    if losses is None:
        return (
            f"  the validation data cannot be read, so the average was not compared with step "
            f"{newest}: {reason}\n  other commands use the average; {undo}"
        )

    comparison = (
        f"  validation loss: {losses.latest:.4f} of step {newest}, "
        f"{losses.averaged:.4f} of the average"
    )
    if losses.average_is_worse:
        return (
            f"{comparison}\n  the average is worse, so other commands use step {newest}; "
            "--weights averaged uses the average"
        )
    return f"{comparison}\n  other commands use the average; {undo}"


def quantize(*, workdir: ModelDir, output: NewRunDir, weights: Checkpoint = "auto") -> None:
    """Quantize a model's parameters to int8, in a new workdir that every command accepts.

    Example:
      jaxformer quantize --workdir runs/multi30k --output runs/multi30k-int8
    """
    from jaxformer.inference.conversions import quantize

    with announce(f"quantizing the parameters of {workdir}"):
        before, after = quantize(workdir, output, weights=weights)
    print(
        f"{output}: parameters of {after / 1e6:.1f} MB instead of {before / 1e6:.1f} MB "
        f"({before / after:.2f} times smaller)\n"
        f"  {workdir} is unchanged; --workdir {workdir} uses its own parameters"
    )


QUANTIZE = Command("quantize", quantize, place=150)


def _model_folder(text: str) -> pathlib.Path:
    """Returns a folder, or the name of a model whose address on the hub is given."""
    hub = r"(?:https://huggingface\.co/|hf://)"
    address = re.fullmatch(rf"{hub}(.+?)(/(tree|blob)/main(/.*)?)?", text)
    return local_path(address[1] if address else text)


def import_model(
    system: Annotated[str, Choices(known_systems)],
    directory: Annotated[pathlib.Path, Option(metavar="MODEL", convert=_model_folder)],
    *,
    workdir: NewRunDir,
    source_language: str | None = None,
    target_language: str | None = None,
) -> None:
    """Convert another system's model to a workdir that every command accepts.

    Options:
      directory: folder of the model, or its name on the Hugging Face Hub, such as gpt2 or
        Helsinki-NLP/opus-mt-en-de
      source_language: the language of sources, for M2M-100 (such as en), NLLB (eng_Latn)
        and mBART (en_XX); tyv_Cyrl=kir_Cyrl is a language that the model lacks, whose code begins
        with the embedding of a related language
      target_language: likewise, the language to translate to

    Example:
      jaxformer import hf openai-community/gpt2 --workdir runs/gpt2

      jaxformer import marian Helsinki-NLP/opus-mt-en-de --workdir runs/opus-mt-en-de
    """
    from jaxformer.inference.origins import IMPORT
    from jaxformer.interop.hub import model_folder
    from jaxformer.runs.workdir import Workdir

    known = known_systems()
    languages = [name for name in (source_language, target_language) if name is not None]
    if languages and not known[system].has_languages:
        raise UserError(
            "--source-language and --target-language are for M2M-100, NLLB and mBART only, which "
            "jaxformer import hf converts"
        )

    Workdir(workdir).check_writable(IMPORT)  # before a download
    importer = known[system].importer()
    if importer.files:
        directory = model_folder(directory, importer.files)
    options = {"languages": languages} if languages else {}
    with announce(f"converting {directory}"):
        summary = importer.convert(directory, workdir, **options)
    print(f"{workdir}: {summary}")


IMPORT = Command("import", import_model, place=200)


def export_model(
    format: Annotated[str, Choices(known_formats)],
    *,
    workdir: ModelDir,
    output: Folder,
    weights: Checkpoint = "auto",
    dtype: Dtype | None = None,
    search: SearchOptions,
) -> None:
    """Convert a model for another system, with a model card.

    Options:
      output: folder to create

    Example:
      jaxformer export stablehlo --workdir runs/multi30k --output multi30k-stablehlo
    """
    from jaxformer.interop.export import export_model

    settings = search.settings(workdir)
    with announce(f"converting {workdir}"):
        summary = export_model(
            format, workdir, output, weights=weights, search=settings, compute_dtype=dtype
        )
    print(f"{output}: {summary}")


EXPORT = Command("export", export_model, place=220)
