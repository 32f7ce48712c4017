"""The command ``heads``: masks each attention head, and measures what is lost."""

from typing import TYPE_CHECKING

from jaxformer import pretrained
from jaxformer.cli.command import Command
from jaxformer.cli.commands.plot import check_suffix
from jaxformer.cli.options import Checkpoint, File, InputFile, SearchOptions, TranslatorDir
from jaxformer.cli.outputs import check_outputs
from jaxformer.cli.text import checked_lines, read_text
from jaxformer.errors import UserError

if TYPE_CHECKING:
    from jaxformer.inference.head_masking import MaskedHeads


def heads(
    *,
    workdir: TranslatorDir = pretrained.WORKDIR,
    source: InputFile,
    reference: InputFile,
    output: File | None = None,
    weights: Checkpoint = "auto",
    search: SearchOptions,
) -> None:
    """Mask each attention head of a translation model in turn, and measure what is lost.

    Prints the loss of the references and the BLEU of the translations, of the whole model and
    without each head. Each head takes one translation of the file, so a few hundred sentences
    are enough.

    Options:
      source: text that the model was not trained on
      reference: its reference translation
      output: also draw what is lost as an image, .png or .svg

    Example:
      jaxformer heads --workdir runs/multi30k --source val.en --reference val.de --output heads.png
    """
    from jaxformer.inference.head_masking import mask_heads
    from jaxformer.plots.head_grids import draw_head_grids
    from jaxformer.progress import ProgressBar

    check_outputs([source, reference], {"--output": output})
    if output is not None:
        check_suffix(output, ".png or .svg")

    text = read_text(source).zip_with(read_text(reference), "gold")
    lines = checked_lines(text, lambda line: None, strict=True)
    pairs = [(line.text, line.gold) for line in lines if line.text.strip()]
    if not pairs:
        raise UserError(f"{text.name}: expected a line of text, got none")

    with ProgressBar(unit="head", disable=None) as bar:
        found = mask_heads(
            workdir,
            pairs,
            weights=weights,
            search=search.settings(workdir),
            report=bar.update,
        )
    print(_table(found))
    if output is not None:
        draw_head_grids(found.losses_gained(), output, label="loss gained without the head, nats")
        print(output)


COMMAND = Command("heads", heads, place=185)


def _table(found: "MaskedHeads") -> str:
    """Formats a line for each head, with the differences from the whole model."""
    whole = found.whole
    lines = [
        f"{'':24}{'loss':>8}{'BLEU':>8}",
        f"{'whole model':24}{whole.loss:8.3f}{whole.bleu:8.2f}",
    ]
    for head, quality in found.without.items():
        name = f"{head.kind} layer {head.layer} head {head.number}"
        loss = quality.loss - whole.loss
        bleu = quality.bleu - whole.bleu
        lines.append(f"{name:24}{loss:+8.3f}{bleu:+8.2f}")
    return "\n".join(lines)
