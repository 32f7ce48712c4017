"""Significance tests between translation systems, by sacreBLEU.

Every system is compared with the first, the baseline, on the same lines:

* **Paired bootstrap resampling** (Koehn 2004) draws test sets from the given one, line by line with
  replacement, and measures how much the difference varies. The same draws give a 95 % interval for
  each score.
* **Approximate randomization** (Riezler and Maxwell 2005) swaps the outputs of the two systems at
  random, line by line, and counts how often the difference is larger than the observed one.

By sacreBLEU's counts, a system equal to the baseline line by line would be significantly better;
here its p-values are 1.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from sacrebleu.significance import PairedTest, Result

from jaxformer.errors import UserError
from jaxformer.evaluation.bleu_report import MetricDefinition, check_lines, metric_definitions

# Defaults of sacreBLEU.
RESAMPLES = 1000
TRIALS = 10_000


class SystemScore(NamedTuple):
    """Score of a system by one metric, from 0 to 100; all None for BLEU without 4-grams."""

    system: str
    score: float | None = None
    mean: float | None = None  # over the resampled test sets
    interval: float | None = None  # half the width of the 95 % interval around the mean
    # P-values of the difference from the baseline; None for the baseline and without a score.
    p_bootstrap: float | None = None
    p_randomization: float | None = None


def compare_systems(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    *,
    target_language: str,
) -> Iterator[tuple[MetricDefinition, list[SystemScore]]]:
    """Yields each metric but exact match, with all scores; the first system is the baseline."""
    for name, hypotheses in systems.items():
        check_lines(hypotheses, references, f"{name}: ")

    for metric in metric_definitions(target_language).values():
        yield metric, _scores(metric, systems, references)


def seed() -> int:
    """Returns the seed of sacreBLEU's tests, which ``SACREBLEU_SEED`` can change."""
    text = os.environ.get("SACREBLEU_SEED", "12345")
    is_positive = text.isdecimal() and int(text) > 0
    if not is_positive:
        raise UserError(
            "SACREBLEU_SEED must be a whole number above 0, so that the figures can be repeated: "
            f"got {text!r}; unset it for 12345"
        )
    return int(text)


def _scores(
    metric: MetricDefinition,
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
) -> list[SystemScore]:
    """Returns the scores of all systems by a metric, in the order of the systems."""
    # Every metric prepares the lines in its own way, for instance by a tokenizer.
    lines = {}
    for name, hypotheses in systems.items():
        lines[name] = [metric.prepare(line) for line in hypotheses]
    reference = [metric.prepare(line) for line in references]

    # A difference between systems is defined if the scores of all systems are.
    defined = [metric.is_defined(own, reference) for own in lines.values()]
    # sacreBLEU's names are "bs" for bootstrap, and "ar" for approximate randomization.
    bootstrap = _test(metric, lines, reference, kind="bs", samples=RESAMPLES)
    randomization = _test(metric, lines, reference, kind="ar", samples=TRIALS)
    baseline, *_ = lines.values()

    scores = []
    results = zip(lines, defined, bootstrap, randomization, strict=True)
    for name, is_defined, resampled, swapped in results:
        if not is_defined:
            scores.append(SystemScore(name))
            continue

        p_bootstrap = resampled.p_value
        p_randomization = swapped.p_value
        is_baseline = p_bootstrap is None
        if not all(defined):
            p_bootstrap = None
            p_randomization = None
        elif lines[name] == baseline and not is_baseline:
            # By sacreBLEU's counts, equal systems would differ significantly.
            p_bootstrap = 1.0
            p_randomization = 1.0

        scores.append(
            SystemScore(
                system=name,
                score=min(resampled.score, 100.0),  # Rounding errors may exceed 100.
                mean=float(resampled.mean),  # pyright: ignore
                interval=float(resampled.ci),  # pyright: ignore
                p_bootstrap=p_bootstrap,
                p_randomization=p_randomization,
            )
        )
    return scores


def _test(
    metric: MetricDefinition,
    lines: Mapping[str, Sequence[str]],
    reference: Sequence[str],
    *,
    kind: str,
    samples: int,
) -> list[Result]:
    """Runs a paired test of sacreBLEU, "bs" or "ar"; returns the result of each system."""
    paired = PairedTest(
        list(lines.items()),
        {"": metric.scorer},
        [reference],
        test_type=kind,
        n_samples=samples,
    )
    _, columns = paired()
    _, results = columns.values()  # names of the systems, and results by the only metric
    return cast(list[Result], results)
