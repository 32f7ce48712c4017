"""The command ``classify``: labels lines of text, or scores a model on labeled lines."""

import sys
from typing import TYPE_CHECKING

from jaxformer.cli.options import Checkpoint, File, ModelDir, Strict
from jaxformer.cli.text import Line, blocks_of, check_outputs, progress_bar, read_text
from jaxformer.errors import UserError

if TYPE_CHECKING:
    from jaxformer.tasks.classification.classifier import Classifier


def classify(
    *,
    workdir: ModelDir,
    input: File | None = None,
    output: File | None = None,
    probabilities: bool = False,
    strict: Strict = False,
    labeled: File | None = None,
    baselines: bool = False,
    weights: Checkpoint = "auto",
) -> None:
    """Print the label of each line of text, or score a model on labeled lines.

    Text: A line that is too long or not UTF-8 has a blank label.
      input: texts, one per line (default: standard input)
      output: file for the labels (default: standard output)
      probabilities: print lines of probability, tab, label

    Scores:
      labeled: print accuracy and macro-F1 on this file, whose lines are a label, a space and a
        text, with 95 % intervals
      baselines: with --labeled, also score naive Bayes on words and pairs of words, and logistic
        regression on its ratios, trained on the run's training text

    Example:
      jaxformer classify --workdir runs/sst2 --labeled dev.txt --baselines

      echo "a stirring , funny film" | jaxformer classify --workdir runs/sst2
    """
    from jaxformer.tasks.classification.classifier import Classifier

    if baselines and labeled is None:
        raise UserError("--baselines needs --labeled FILE, on which they are scored")
    check_outputs([input, labeled], {"--output": output})
    classifier = Classifier.load(workdir, weights=weights)
    if labeled is not None:
        _score(classifier, str(labeled), baselines)
        return
    text = read_text(input, "a text")

    def check(line: Line) -> None:
        classifier.token_ids(line.text, f"{text.name}:{line.number}")

    with blocks_of(text, check, output, strict=strict) as (blocks, write, report):
        for block in blocks:
            found = classifier.classify([line.text for line in block], report=report)
            write(
                "" if line.error else f"{p:.4f}\t{label}" if probabilities else label
                for line, (label, p) in zip(block, found, strict=True)
            )


def _score(classifier: "Classifier", path: str, baselines: bool) -> None:
    from jaxformer.config import data_section
    from jaxformer.data.labeled import LabeledConfig, LabeledCorpus
    from jaxformer.evaluation import classification

    pairs = list(LabeledCorpus().pairs(path))
    if not pairs:
        raise UserError(f"{path}: expected lines of a label and a text, got none")
    texts, expected = zip(*pairs, strict=True)
    with progress_bar(len(texts)) as bar:
        found = {"model": [x.label for x in classifier.classify(texts, report=bar.update)]}
    if baselines:
        print("training naive Bayes and logistic regression", file=sys.stderr)
        data = data_section(classifier.config, LabeledConfig)
        train, labels = zip(*LabeledCorpus().pairs(data.train), strict=True)
        linear = classification.BigramClassifiers(train, labels)
        found["naive Bayes, bigrams"] = linear.naive_bayes(texts)
        found["logistic, bigrams"] = linear.logistic(texts)
    print(f"{len(texts):,} texts; 95 % intervals by the bootstrap")
    for name, labels in found.items():
        right = classification.with_interval(classification.accuracy, labels, expected)
        f1 = classification.with_interval(classification.macro_f1, labels, expected)
        print(f"  {name:22} accuracy {right}  macro-F1 {f1}")
