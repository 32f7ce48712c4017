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
RESAMPLES, TRIALS = 1000, 10_000


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
    systems: Mapping[str, Sequence[str]], references: Sequence[str], *, target_language: str
) -> Iterator[tuple[MetricDefinition, list[SystemScore]]]:
    """Yields each metric but exact match, with all scores; the first system is the baseline."""
    for name, hypotheses in systems.items():
        check_lines(hypotheses, references, f"{name}: ")
    for metric in metric_definitions(target_language).values():
        yield metric, _scores(metric, systems, references)


def seed() -> int:
    """Returns the seed of sacreBLEU's tests, which ``SACREBLEU_SEED`` can change."""
    text = os.environ.get("SACREBLEU_SEED", "12345")
    if not (text.isdecimal() and int(text)):
        raise UserError(
            "SACREBLEU_SEED must be a whole number above 0, so that the figures can be repeated: "
            f"got {text!r}; unset it for 12345"
        )
    return int(text)


def _scores(
    metric: MetricDefinition, systems: Mapping[str, Sequence[str]], references: Sequence[str]
) -> list[SystemScore]:
    lines = {name: list(map(metric.prepare, hypotheses)) for name, hypotheses in systems.items()}
    reference, baseline = list(map(metric.prepare, references)), next(iter(lines.values()))

    def test(kind: str, samples: int) -> list[Result]:
        _, columns = PairedTest([*lines.items()], {"": metric.scorer}, [reference], kind, samples)()
        _, results = columns.values()  # names, and the only metric
        return cast(list[Result], results)

    defined = [metric.is_defined(own, reference) for own in lines.values()]
    results = zip(lines, defined, test("bs", RESAMPLES), test("ar", TRIALS), strict=True)
    scores = []
    for name, is_defined, drawn, swapped in results:
        p_values = drawn.p_value, swapped.p_value
        if not all(defined):
            p_values = None, None
        elif lines[name] == baseline and drawn.p_value is not None:
            p_values = 1.0, 1.0
        score = min(drawn.score, 100.0)  # Rounding errors may exceed 100.
        figures = (score, float(drawn.mean), float(drawn.ci), *p_values)  # pyright: ignore
        scores.append(SystemScore(name, *figures) if is_defined else SystemScore(name))
    return scores
