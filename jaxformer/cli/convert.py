"""The commands ``average``, ``quantize``, ``import`` and ``export``, which convert models."""

import pathlib
import re
import sys
from typing import TYPE_CHECKING, Annotated, Literal

from jaxformer.cli.options import (
    Checkpoint,
    Dtype,
    Folder,
    ModelDir,
    NewRunDir,
    RunDir,
    SearchOptions,
)
from jaxformer.cli.signatures import Option
from jaxformer.errors import UserError
from jaxformer.files import local_path
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
    from jaxformer.inference import weights
    from jaxformer.runs.workdir import Workdir

    folder = Workdir(workdir)
    weights.steps_to_average(folder, last)  # refuses mistakes before it reads the data

    # Without the validation data, the average is made, but not compared.
    validation_loss = None
    reason = ""
    try:
        print("comparing the average with the newest checkpoint", file=sys.stderr)
        validation_loss = make_validation_loss(workdir)
    except (UserError, OSError) as error:
        reason = str(error)

    steps = weights.average(folder, last, validation_loss)
    print(f"{folder.averaged}: average of steps {', '.join(map(str, steps))}")
    losses = weights.average_losses(folder)
    print(_describe_average(steps[-1], losses, reason))


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
    from jaxformer.inference.weights import quantize

    with announce(f"quantizing the parameters of {workdir}"):
        before, after = quantize(workdir, output, weights=weights)
    print(
        f"{output}: parameters of {after / 1e6:.1f} MB instead of {before / 1e6:.1f} MB "
        f"({before / after:.2f} times smaller)\n"
        f"  {workdir} is unchanged; --workdir {workdir} uses its own parameters"
    )


def _model_folder(text: str) -> pathlib.Path:
    """Returns a folder, or the name of a model whose address on the hub is given."""
    address = re.fullmatch(r"https://huggingface\.co/(.+?)(/(tree|blob)/main(/.*)?)?", text)
    return local_path(address[1] if address else text)


def import_model(
    system: Literal["hf", "marian", "bergamot"],
    directory: Annotated[pathlib.Path, Option(metavar="MODEL", convert=_model_folder)],
    *,
    workdir: NewRunDir,
    source_language: str | None = None,
    target_language: str | None = None,
) -> None:
    """Convert another system's model to a workdir that every command accepts.

    Options:
      system: hf: BERT, GPT-2, LLaMA, M2M-100, Mistral, mT5, NLLB, Qwen2, T5, umT5 or ViT, as
        transformers saves them; marian: Marian or OPUS-MT; bergamot: a translation model of Firefox
      directory: folder of the model, or its name on the Hugging Face Hub, such as gpt2 or
        Helsinki-NLP/opus-mt-en-de
      source_language: the language of sources, for M2M-100 (such as en) and NLLB (eng_Latn)
      target_language: likewise, the language to translate to

    Example:
      jaxformer import hf openai-community/gpt2 --workdir runs/gpt2

      jaxformer import marian Helsinki-NLP/opus-mt-en-de --workdir runs/opus-mt-en-de
    """
    from jaxformer.interop.hub import model_folder
    from jaxformer.runs.workdir import Workdir

    if system == "hf":
        from jaxformer.interop.huggingface import importer

        convert = importer.import_huggingface
        files = importer.FILES
    elif system == "marian":
        from jaxformer.interop.marian import importer

        convert = importer.import_marian
        files = importer.FILES
    else:
        from jaxformer.interop.bergamot import importer

        convert = importer.import_bergamot
        files = None  # not on the hub

    languages = [name for name in (source_language, target_language) if name is not None]
    if languages and system != "hf":
        raise UserError("--source-language and --target-language are for M2M-100 and NLLB only")

    Workdir(workdir).check_writable(importer.COMMAND)  # before a download
    if files:
        directory = model_folder(directory, files)
    options = {"languages": languages} if languages else {}
    with announce(f"converting {directory}"):
        summary = convert(directory, workdir, **options)
    print(f"{workdir}: {summary}")


def export_model(
    format: Literal["stablehlo", "ctranslate2", "marian", "bergamot", "safetensors"],
    *,
    workdir: ModelDir,
    output: Folder,
    weights: Checkpoint = "auto",
    dtype: Dtype | None = None,
    search: SearchOptions,
) -> None:
    """Convert a model for another system, with a model card.

    Options:
      format: stablehlo: the whole search as a program for JAX; ctranslate2: a model for
        CTranslate2; marian: MarianMTModel of the transformers library; bergamot: a student in
        int8, for Firefox; safetensors: parameters, of a model from jaxformer import hf for the
        transformers library
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
