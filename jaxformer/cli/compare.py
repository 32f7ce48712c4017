"""The command ``compare``: significance tests between systems on one reference."""

import re
from collections.abc import Sequence
from json import dumps
from typing import TYPE_CHECKING

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

    suffixes = [name for name in reference.suffixes if name not in COMPRESSED]
    suffix = "".join(suffixes[-1:]).removeprefix(".")
    if language is None and not re.fullmatch("[a-z]{2}", suffix):
        raise UserError(
            f"--language CODE is needed, since {reference} does not end in one, such as .de"
        )
    language = language or suffix
    for path in translations:
        if translations.count(path) > 1:
            raise UserError(f"{path} is given twice; give each system once")
    check_outputs([reference, *translations], {})
    references = list(read_file(reference))
    systems = {str(path): list(read_file(path)) for path in translations}
    report: dict[str, object] = {"target_language": language, "lines": len(references)}
    report |= {"resamples": RESAMPLES, "trials": TRIALS, "seed": seed()}
    compared = compare_systems(systems, references, target_language=language)
    total = len(metric_definitions(language))
    compared = list(ProgressBar(compared, total=total, unit="metric", disable=None))
    if json:
        report["comparisons"] = [
            {"metric": m.name, "method": m.method(), "systems": [s._asdict() for s in scores]}
            for m, scores in compared
        ]
        print(dumps(report, ensure_ascii=False, indent=2))
    else:
        _print_table(report, compared)


def _print_table(
    report: dict[str, object], compared: Sequence[tuple["MetricDefinition", list["SystemScore"]]]
) -> None:
    print("lines: {lines}, target language: {target_language}".format_map(report))
    print("mean +- 95 % interval: bootstrap, {resamples} resamples, seed {seed}".format_map(report))
    names = [score.system for score in compared[0][1]]
    if len(names) > 1:
        print(
            f"p: against {names[0]}, by paired bootstrap | by approximate randomization, "
            f"{report['trials']} trials, seed {report['seed']}"
        )
    for metric, scores in compared:
        print(f"\n{metric.name}: {metric.method()}")
        for score in scores:
            row = f"{'n/a':>6}  (no line has 4 words)"
            if score.score is not None:
                row = f"{score.score:6.2f}  {score.mean:6.2f} +- {score.interval:.2f}"
            if score.p_bootstrap is not None:
                row += f"  p {score.p_bootstrap:.4f} | {score.p_randomization:.4f}"
            print(f"  {score.system:{max(map(len, names))}}  {row}")
