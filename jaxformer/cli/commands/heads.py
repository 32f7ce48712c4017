"""The command ``heads``: masks each attention head, and measures what is lost."""

import pathlib
from typing import TYPE_CHECKING

from jaxformer import pretrained
from jaxformer.cli.command import Command
from jaxformer.cli.commands.plot import check_suffix
from jaxformer.cli.labeled_texts import read_labeled_texts
from jaxformer.cli.options import (
    Checkpoint,
    File,
    InputFile,
    SearchOptions,
    TranslatorDir,
    refuse_options,
)
from jaxformer.cli.outputs import check_outputs
from jaxformer.cli.text import checked_lines, read_text
from jaxformer.errors import UserError

if TYPE_CHECKING:
    from jaxformer.inference.head_masking import MaskedHeads


def heads(
    *,
    workdir: TranslatorDir = pretrained.WORKDIR,
    source: InputFile | None = None,
    reference: InputFile | None = None,
    labeled: InputFile | None = None,
    pairs: bool = False,
    output: File | None = None,
    weights: Checkpoint = "auto",
    search: SearchOptions,
) -> None:
    """Mask each attention head of a model in turn, and measure what is lost.

    Prints the loss and the score of the whole model, and their changes without each head. The file
    is translated or labeled once for each head, so a few hundred lines are enough.

    Options:
      output: also draw the changes of the loss as an image, .png or .svg

    Translations: Of a translation model, prints the loss of the references and BLEU.
      source: text that the model was not trained on
      reference: its reference translation

    Labels: Of a classifier of texts, prints the loss of the labels and the accuracy.
      labeled: texts that the model was not trained on, as for jaxformer classify: each line is a
        label, a tab or a space, and a text, or two texts with tabs before both
      pairs: each line has a pair of texts; a model that was trained on pairs needs no option

    Example:
      jaxformer heads --workdir runs/multi30k --source val.en --reference val.de --output heads.png

      jaxformer heads --workdir runs/sst2 --labeled dev.txt --output heads.png
    """
    from jaxformer.config import read_config
    from jaxformer.inference.translator import Translator
    from jaxformer.plots.head_grids import draw_head_grids
    from jaxformer.runs.workdir import Workdir
    from jaxformer.tasks.classification.text_classifier import Classifier

    check_outputs([source, reference, labeled], {"--output": output})
    if output is not None:
        check_suffix(output, ".png or .svg")

    kind = read_config(Workdir(workdir)).kind
    owner = f"{workdir} is {kind.description}"
    if kind in Translator.kinds:
        _refuse({"labeled": labeled, "pairs": pairs}, owner)
        if source is None or reference is None:
            raise UserError(f"{owner}: give --source FILE and --reference FILE")
        found = _mask_translator(workdir, source, reference, weights, search)
        score = "BLEU"
    elif kind in Classifier.kinds:
        _refuse({"source": source, "reference": reference}, owner)
        search.check_none(reason=owner)
        if labeled is None:
            raise UserError(f"{owner}: give --labeled FILE, texts with their labels")
        found = _mask_classifier(workdir, labeled, weights, pairs=pairs)
        score = "accuracy"
    else:
        raise UserError(
            f"{workdir}: expected a translation model or a classifier of texts, got "
            f"{kind.description}, whose quality without a head is not measured"
        )

    print(_table(found, score))
    if output is not None:
        draw_head_grids(found.losses_gained(), output, label="loss gained without the head, nats")
        print(output)


COMMAND = Command("heads", heads, place=185)


def _refuse(options: dict[str, object], owner: str) -> None:
    refuse_options((name for name, value in options.items() if value), owner)


def _mask_translator(
    workdir: pathlib.Path,
    source: pathlib.Path,
    reference: pathlib.Path,
    weights: str,
    search: SearchOptions,
) -> "MaskedHeads":
    from jaxformer.inference.translator_heads import mask_translator_heads
    from jaxformer.progress import ProgressBar

    text = read_text(source).zip_with(read_text(reference), "gold")
    lines = checked_lines(text, lambda line: None, strict=True)
    pairs = [(line.text, line.gold) for line in lines if line.text.strip()]
    if not pairs:
        raise UserError(f"{text.name}: expected a line of text, got none")

    with ProgressBar(unit="head", disable=None) as bar:
        return mask_translator_heads(
            workdir,
            pairs,
            weights=weights,
            search=search.settings(workdir),
            report=bar.update,
        )


def _mask_classifier(
    workdir: pathlib.Path,
    labeled: pathlib.Path,
    weights: str,
    *,
    pairs: bool,
) -> "MaskedHeads":
    from jaxformer.kinds.annotated_texts import PAIR_CLASSIFICATION
    from jaxformer.progress import ProgressBar
    from jaxformer.tasks.classification.classifier_heads import mask_classifier_heads
    from jaxformer.tasks.classification.text_classifier import Classifier

    classifier = Classifier.load(workdir, weights=weights)
    pairs = pairs or classifier.config.kind is PAIR_CLASSIFICATION
    texts, labels = read_labeled_texts(labeled, classifier.labels, pairs=pairs)
    with ProgressBar(unit="head", disable=None) as bar:
        return mask_classifier_heads(classifier, texts, labels, report=bar.update)


def _table(found: "MaskedHeads", score: str) -> str:
    """Formats a line for each head, with the differences from the whole model."""
    whole = found.whole
    lines = [
        f"{'':24}{'loss':>8}{score:>10}",
        f"{'whole model':24}{whole.loss:8.3f}{whole.score:10.2f}",
    ]
    for head, quality in found.without.items():
        name = f"{head.kind} layer {head.layer} head {head.number}"
        loss_change = quality.loss - whole.loss
        score_change = quality.score - whole.score
        lines.append(f"{name:24}{loss_change:+8.3f}{score_change:+10.2f}")
    return "\n".join(lines)
