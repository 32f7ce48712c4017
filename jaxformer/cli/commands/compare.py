"""The command ``compare``: significance tests between systems on one reference."""

import pathlib
import re
from collections.abc import Sequence
from json import dumps
from typing import TYPE_CHECKING

from jaxformer.cli.command import Command
from jaxformer.cli.options import InputFile, JsonReport
from jaxformer.cli.outputs import check_outputs
from jaxformer.data.text_files import COMPRESSED, read_file
from jaxformer.errors import UserError

if TYPE_CHECKING:
    from jaxformer.evaluation.bleu_report import MetricDefinition
    from jaxformer.evaluation.significance import SystemScore


def compare(
    translations: Sequence[InputFile],
    *,
    reference: InputFile,
    language: str | None = None,
    json: JsonReport = False,
) -> None:
    """Score files of translations and test which differences are significant.

    Options:
      translations: translations of one system as plain text, one per line; the first is the
        baseline
      reference: the reference, line by line
      language (CODE): target language, for the metrics' tokenizers (default: the suffix of the
        reference file)

    Example:
      jaxformer compare --reference newstest2014.de base.de big.de

      jaxformer compare --reference newstest2014.de big.de      # scores with 95 % intervals
    """
    from jaxformer.evaluation.bleu_report import metric_definitions
    from jaxformer.evaluation.significance import RESAMPLES, TRIALS, compare_systems, seed
    from jaxformer.progress import ProgressBar

    if not language:
        language = _language_of(reference)
    for path in translations:
        if translations.count(path) > 1:
            raise UserError(f"{path} is given twice; give each system once")
    check_outputs([reference, *translations], {})

    references = list(read_file(reference))
    systems = {str(path): list(read_file(path)) for path in translations}
    comparisons = ProgressBar(
        compare_systems(systems, references, target_language=language),
        total=len(metric_definitions(language)),
        unit="metric",
        disable=None,
    )
    compared = list(comparisons)

    report: dict[str, object] = {
        "target_language": language,
        "lines": len(references),
        "resamples": RESAMPLES,
        "trials": TRIALS,
        "seed": seed(),
    }
    if json:
        report["comparisons"] = [_comparison(metric, scores) for metric, scores in compared]
        print(dumps(report, ensure_ascii=False, indent=2))
    else:
        _print_table(report, compared)


COMMAND = Command("compare", compare, place=70)


def _language_of(reference: pathlib.Path) -> str:
    """Returns the language code in the name of a reference, such as test.de or test.de.gz."""
    suffixes = [suffix for suffix in reference.suffixes if suffix not in COMPRESSED]
    code = suffixes[-1].removeprefix(".") if suffixes else ""
    if not re.fullmatch("[a-z]{2}", code):
        raise UserError(
            f"--language CODE is needed, since {reference} does not end in one, such as .de"
        )
    return code


def _comparison(metric: "MetricDefinition", scores: list["SystemScore"]) -> dict[str, object]:
    return {
        "metric": metric.name,
        "method": metric.method(),
        "systems": [score._asdict() for score in scores],
    }


def _print_table(
    report: dict[str, object], compared: Sequence[tuple["MetricDefinition", list["SystemScore"]]]
) -> None:
    print("lines: {lines}, target language: {target_language}".format_map(report))
    print("mean +- 95 % interval: bootstrap, {resamples} resamples, seed {seed}".format_map(report))

    _, first_scores = compared[0]
    names = [score.system for score in first_scores]
    if len(names) > 1:
        print(
            f"p: against {names[0]}, by paired bootstrap | by approximate randomization, "
            f"{report['trials']} trials, seed {report['seed']}"
        )

    width = max(map(len, names))
    for metric, scores in compared:
        print(f"\n{metric.name}: {metric.method()}")
        for score in scores:
            row = f"{'n/a':>6}  (no line has 4 words)"
            if score.score is not None:
                row = f"{score.score:6.2f}  {score.mean:6.2f} +- {score.interval:.2f}"
            if score.p_bootstrap is not None:
                row += f"  p {score.p_bootstrap:.4f} | {score.p_randomization:.4f}"
            print(f"  {score.system:{width}}  {row}")
