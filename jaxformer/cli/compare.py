"""The command ``compare``: significance tests between systems on one reference."""

import argparse
import json
import re

from tqdm import tqdm

from jaxformer.data.text_files import COMPRESSED, read_file
from jaxformer.errors import UserError
from jaxformer.evaluation.bleu_report import measures
from jaxformer.evaluation.significance import RESAMPLES, TRIALS, SystemScore, seed
from jaxformer.evaluation.significance import compare as compare_systems


def compare(options: argparse.Namespace) -> None:
    """Prints every metric of every system, with intervals and, for two or more, p-values.

    Raises:
      UserError: A file cannot be read, has another number of lines than the reference or is given
        twice, the target language is unknown, or ``SACREBLEU_SEED`` is not a valid seed.
    """
    suffixes = [name for name in options.reference.suffixes if name not in COMPRESSED]
    language = options.language or "".join(suffixes[-1:]).removeprefix(".")
    if options.language is None and not re.fullmatch("[a-z]{2}", language):
        raise UserError(
            f"--language CODE is needed, since {options.reference} does not end in one, such as .de"
        )
    names = [str(path) for path in options.translations]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{name} is given twice; give each system once")
    references = list(read_file(options.reference))
    systems = {str(path): list(read_file(path)) for path in options.translations}
    report = {
        "target_language": language,
        "lines": len(references),
        "resamples": RESAMPLES,
        "trials": TRIALS,
        "seed": seed(),
    }
    compared = compare_systems(systems, references, target_language=language)
    compared = list(tqdm(compared, total=len(measures(language)), unit="metric", disable=None))
    if options.json:
        report["comparisons"] = [
            {"metric": m.name, "method": m.method(), "systems": [s._asdict() for s in scores]}
            for m, scores in compared
        ]
        print(json.dumps(report, ensure_ascii=False, indent=2))
        return
    print("lines: {lines}, target language: {target_language}".format_map(report))
    print("mean +- 95 % interval: bootstrap, {resamples} resamples, seed {seed}".format_map(report))
    if len(names) > 1:
        print(
            f"p: against {names[0]}, by paired bootstrap | by approximate randomization, "
            f"{TRIALS} trials, seed {report['seed']}"
        )
    for measure, scores in compared:
        print(f"\n{measure.name}: {measure.method()}")
        for score in scores:
            print(f"  {score.system:{max(map(len, names))}}  {_figures(score)}")


def _figures(score: SystemScore) -> str:
    if score.score is None:
        return f"{'n/a':>6}  (no line has 4 words)"
    row = f"{score.score:6.2f}  {score.mean:6.2f} +- {score.interval:.2f}"
    if score.p_bootstrap is None:
        return row
    return f"{row}  p {score.p_bootstrap:.4f} | {score.p_randomization:.4f}"
