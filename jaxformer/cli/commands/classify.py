"""The command ``classify``: labels lines of text or pictures, or scores a model on labeled ones."""

import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxformer.cli.command import Command
from jaxformer.cli.commands.plot import check_suffix
from jaxformer.cli.labeled_texts import read_labeled_texts
from jaxformer.cli.options import (
    Checkpoint,
    File,
    InputFile,
    ModelDir,
    OutputFile,
    Strict,
    refuse_options,
)
from jaxformer.cli.outputs import check_outputs
from jaxformer.cli.pictures import Pictures, read_pictures, write_rows
from jaxformer.cli.text import Line, Text, blocks_of, progress_bar, read_text
from jaxformer.data.characters import replace_controls
from jaxformer.data.text_pairs import split_pair
from jaxformer.errors import UserError
from jaxformer.files import STDIN, STDOUT

if TYPE_CHECKING:
    import numpy as np

    from jaxformer.data.encoded_text import EncodedText
    from jaxformer.tasks.classification.text_classifier import Classifier

_DRAWN = 8  # pictures with their attention
# Options that the uses of the command take, besides workdir and weights.
_OF_TEXTS = {"input", "output", "probabilities", "pairs", "strict"}
_OF_SCORES = {"labeled", "baselines", "pairs"}
_OF_PICTURES = {"images", "output", "probabilities", "attention"}
_OF_LABELED_PICTURES = {"images", "output", "probabilities", "texts", "template"}


def classify(
    *,
    workdir: ModelDir,
    input: InputFile | None = None,
    output: OutputFile | None = None,
    probabilities: bool = False,
    pairs: bool = False,
    strict: Strict = False,
    labeled: InputFile | None = None,
    baselines: bool = False,
    images: File | None = None,
    texts: InputFile | None = None,
    template: str | None = None,
    attention: File | None = None,
    weights: Checkpoint = "auto",
) -> None:
    """Print the label of each line of text or of each picture, or score a model on labeled ones.

    Text: A line that is too long or not UTF-8 has a blank label.
      input: texts, one per line (default: standard input)
      output: file for the labels (default: standard output)
      probabilities: print lines of probability, tab, label
      pairs: each line is a pair of texts with a tab between, as in entailment; a model that was
        trained on pairs needs no option

    Scores:
      labeled: print accuracy and macro-F1 on this file, whose lines are a label, a tab or a space,
        and a text, or two texts with tabs before both, with 95 % intervals
      baselines: with --labeled, also score naive Bayes on words and pairs of words, and logistic
        regression on its ratios, trained on the run's training text

    Pictures:
      images: folder of PNG and JPEG files, one such file, or .npz file with an array images, uint8
        [N, height, width, channels]; files are resized, and named after each label. If folders in
        the folder have the names of classes, or the .npz file has an array labels, the accuracy is
        printed to standard error
      texts: file with a label on each line, any words: print the most similar one of each picture,
        with a model of pictures and texts, such as CLIP ("zero-shot"); labels of --images are
        numbers of these lines, from 0
      template: with --texts, the text of a label, in which {} stands for it, such as "a photo of a
        {}" (default: the label itself)
      attention: image to write, .png or .svg: the attention of the last layer to the first eight
        pictures

    Example:
      jaxformer classify --workdir runs/digits --images digits.npz --attention attention.png

      jaxformer classify --workdir runs/vit --images photos --probabilities

      jaxformer classify --workdir runs/clip --images photos.npz --texts labels.txt

      jaxformer classify --workdir runs/sst2 --labeled dev.txt --baselines

      echo "a stirring , funny film" | jaxformer classify --workdir runs/sst2
    """
    from jaxformer.kinds.annotated_texts import PAIR_CLASSIFICATION
    from jaxformer.tasks.classification.text_classifier import Classifier

    options = {
        "input": input,
        "output": output,
        "probabilities": probabilities,
        "pairs": pairs,
        "strict": strict,
        "labeled": labeled,
        "baselines": baselines,
        "images": images,
        "texts": texts,
        "template": template,
        "attention": attention,
    }
    _check_use([name for name, value in options.items() if value not in (None, False)])

    if images is not None and texts is not None:
        _match_images(
            workdir,
            weights,
            images,
            labels=texts,
            template="{}" if template is None else template,
            output=output or STDOUT,
            probabilities=probabilities,
        )
        return
    if images is not None:
        _classify_images(
            workdir,
            weights,
            images,
            attention=attention,
            output=output or STDOUT,
            probabilities=probabilities,
        )
        return

    check_outputs([labeled or input or STDIN], {"--output": output or STDOUT})

    classifier = Classifier.load(workdir, weights=weights)
    pairs = pairs or classifier.config.kind is PAIR_CLASSIFICATION
    if labeled is not None:
        _score(classifier, labeled, pairs=pairs, baselines=baselines)
        return
    _classify_lines(
        classifier,
        read_text(input, "a text"),
        output,
        probabilities=probabilities,
        pairs=pairs,
        strict=strict,
    )


COMMAND = Command("classify", classify, place=100)


def _check_use(given: Sequence[str]) -> None:
    """Refuses options that the use of the command, which some of them select, would ignore."""
    if "images" in given and "texts" in given:
        if "attention" in given:
            raise UserError("--attention is for a classifier of pictures: leave --texts out")
        takes = _OF_LABELED_PICTURES
        reason = "--texts has labels for pictures"
    elif "images" in given:
        if "template" in given:
            raise UserError("--template needs --texts FILE, the labels to put into it")
        takes = _OF_PICTURES
        reason = "--images has pictures"
    elif "labeled" in given:
        if "input" in given:
            raise UserError("--labeled has the texts to score: leave --input out")
        takes = _OF_SCORES
        reason = "--labeled prints scores of all texts"
    else:
        takes = _OF_TEXTS
        reason = "lines of text get labels"
        _check_selected(given)
    refuse_options((name for name in given if name not in takes), reason)


def _check_selected(given: Sequence[str]) -> None:
    """Refuses options that need another one, which selects another use of the command."""
    if "attention" in given:
        raise UserError("--attention needs --images FILE, the pictures to draw it over")
    if "texts" in given or "template" in given:
        raise UserError("--texts and --template need --images FILE, the pictures to compare with")
    if "baselines" in given:
        raise UserError("--baselines needs --labeled FILE, on which they are scored")


def _classify_lines(
    classifier: "Classifier",
    text: Text,
    output: OutputFile | None,
    probabilities: bool,
    pairs: bool,
    strict: bool,
) -> None:
    def encode(line: Line) -> "EncodedText":
        place = f"{text.name}:{line.number}"
        own = split_pair(line.text, place) if pairs else line.text
        return classifier.encode(own, place)

    def row(line: Line, label: str, probability: float) -> str:
        if line.error:
            return ""

        shown_label = replace_controls(label)
        if not probabilities:
            return _row(shown_label, None)
        return _row(shown_label, probability)

    with blocks_of(text, encode, output, strict=strict) as (blocks, write, report):
        for block in blocks:
            # A bad line has no text; any will do.
            texts = ["" if line.error else line.encoded for line in block]
            found = classifier.classify(texts, report=report)
            rows = zip(block, found, strict=True)
            write(row(line, best.label, best.probability) for line, best in rows)


def _row(label: str, probability: float | None) -> str:
    """Returns a line of output: a label, after its probability unless that is None."""
    if probability is None:
        return label
    return f"{probability:.4f}\t{label}"


def _classify_images(
    workdir: ModelDir,
    weights: str,
    images: File,
    *,
    attention: File | None,
    output: OutputFile,
    probabilities: bool,
) -> None:
    """Writes a line for each picture; prints the accuracy, and draws the attention."""
    from jaxformer.plots.image_attention import draw_heads
    from jaxformer.tasks.images.image_classifier import ImageClassifier

    check_outputs([images], {"--output": output, "--attention": attention})
    if attention is not None:
        check_suffix(attention, ".png or .svg")

    classifier = ImageClassifier.load(workdir, weights=weights)
    pictures = read_pictures(images, classifier.model.form, classifier.labels)
    pixels = pictures.images

    # A model without such attention is refused before all pictures are classified.
    maps: Any = None
    grid: Any = classifier.model.attention_grid
    if attention is not None:
        maps = classifier.attention(pixels[:_DRAWN])

    distributions = classifier.probabilities(pixels)  # [N, number of classes]
    found = distributions.argmax(axis=1).tolist()

    if pictures.has_labels:
        num_classes = distributions.shape[1]
        print(_image_accuracy(images, found, pictures.labels, num_classes), file=sys.stderr)

    names = [classifier.labels[label] for label in found]
    if attention is not None:
        draw_heads(
            pixels[:_DRAWN],
            maps,
            grid,
            path=attention,
            titles=names[:_DRAWN],
        )

    _write_labels(output, names, distributions.max(axis=1) if probabilities else None, pictures)


def _match_images(
    workdir: ModelDir,
    weights: str,
    images: File,
    *,
    labels: InputFile,
    template: str,
    output: OutputFile,
    probabilities: bool,
) -> None:
    """Writes the most similar label of each picture; prints the accuracy."""
    from jaxformer.tasks.image_text.image_text_matcher import ImageTextMatcher

    check_outputs([images, labels], {"--output": output})
    names = _read_names(labels)
    matcher = ImageTextMatcher.load(workdir, weights=weights)
    pictures = read_pictures(images, matcher.model.form, names)

    distributions = matcher.probabilities(pictures.images, names, template)  # [N, labels]
    found = distributions.argmax(axis=1).tolist()
    if pictures.has_labels:
        print(_image_accuracy(images, found, pictures.labels, len(names)), file=sys.stderr)

    best = distributions.max(axis=1) if probabilities else None
    _write_labels(output, [names[number] for number in found], best, pictures)


def _write_labels(
    output: OutputFile,
    names: Sequence[str],
    probabilities: "np.ndarray | None",
    pictures: Pictures,
) -> None:
    """Writes a line for each picture: its label, after a probability and before its file."""
    rows = []
    for number, name in enumerate(names):
        rows.append(_row(name, None if probabilities is None else probabilities[number]))
    write_rows(output, rows, pictures)


def _read_names(path: pathlib.Path) -> list[str]:
    """Returns the labels in a file, one on each line."""
    from jaxformer.data.text_files import read_file

    names = [line.strip() for line in read_file(path)]
    if not names:
        raise UserError(f"{path}: expected a label on each line, got none")

    for number, name in enumerate(names, start=1):
        if not name:
            raise UserError(f"{path}:{number}: expected a label on each line, got a blank line")
    return names


def _image_accuracy(
    path: pathlib.Path,
    found: Sequence[int],
    labels: "np.ndarray",
    num_classes: int,
) -> str:
    """Returns a line with the accuracy; refuses labels that are no classes of the model."""
    low = labels.min()
    high = labels.max()
    if not 0 <= low <= high < num_classes:
        raise UserError(f"{path}: expected labels from 0, below {num_classes}, got {low} to {high}")

    correct = int((labels == found).sum())
    return f"accuracy {correct / len(labels):.2%}, {correct:,} of {len(labels):,}"


def _score(
    classifier: "Classifier",
    path: pathlib.Path,
    *,
    pairs: bool,
    baselines: bool,
) -> None:
    """Prints the scores of the model, and of the baselines, on labeled lines."""
    from jaxformer.evaluation.classification_scores import accuracy, macro_f1, with_interval

    if pairs and baselines:
        raise UserError("--baselines are of single texts: leave it out with pairs")
    texts, expected = read_labeled_texts(path, classifier.labels, pairs=pairs)
    with progress_bar(len(texts)) as bar:
        predictions = classifier.classify(texts, report=bar.update)
    found = {"model": [prediction.label for prediction in predictions]}
    if baselines:
        found |= _baseline_labels(classifier, texts)

    print(f"{len(texts):,} texts; 95 % intervals by the bootstrap")
    for name, labels in found.items():
        right = with_interval(accuracy, labels, expected)
        f1 = with_interval(macro_f1, labels, expected)
        print(f"  {name:22} accuracy {right}  macro-F1 {f1}")


def _baseline_labels(classifier: "Classifier", texts: Sequence[str]) -> dict[str, list[str]]:
    """Returns the labels of texts from classifiers trained on the run's training text, by name."""
    from jaxformer.config import data_section
    from jaxformer.data.held_out import open_splits
    from jaxformer.data.labeled import LabeledConfig, LabeledCorpus
    from jaxformer.evaluation.classification_scores import bigram_classifiers

    print("training naive Bayes and logistic regression", file=sys.stderr)
    data = data_section(classifier.config, LabeledConfig)
    corpus = open_splits(data, LabeledCorpus())
    train, labels = zip(*corpus.pairs(data.train), strict=True)

    bayes, logistic = bigram_classifiers(train, labels, texts)
    return {"naive Bayes, bigrams": bayes, "logistic, bigrams": logistic}
