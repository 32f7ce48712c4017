"""Significance tests between translation systems.

The tests are sacreBLEU's. Every system is compared with the first, the baseline, on the same lines:

* **Paired bootstrap resampling** (Koehn 2004) draws test sets from the given one, line by line with
  replacement, and measures how much the difference varies. The same draws give a 95 % interval of
  each score.
* **Approximate randomization** (Riezler and Maxwell 2005) swaps the outputs of the two systems at
  random, line by line, and counts how often the difference is larger than the observed one.

sacreBLEU's counts would call a system that equals the baseline line by line significantly better;
its p-values are 1.

Random numbers are seeded, and the report contains the seed, so figures are reproducible.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence

from sacrebleu.significance import PairedTest, Result

from jaxformer.errors import UserError
from jaxformer.evaluation.bleu_report import Measure, check_lines, is_defined, measures

# Defaults of sacreBLEU, and the environment variable from which it reads the seed.
_RESAMPLES, _TRIALS = 1000, 10_000
_SEED_VARIABLE, _SEED = "SACREBLEU_SEED", "12345"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SystemScore:
    """Score of one system by one metric.

    Attributes:
      system: Name of the system.
      score: Its score, from 0 to 100; None for BLEU if no line has four words.
      mean: Mean of the score over the resampled test sets; None without a score.
      interval: Half the width of the 95 % interval of the resampled scores around ``mean``; None
        without a score.
      p_bootstrap: p-value of the difference from the baseline by the paired bootstrap; None for
        the baseline, and for all systems if one of them has no score.
      p_randomization: p-value of the difference from the baseline by approximate randomization;
        None in the same cases.
    """

    system: str
    score: float | None
    mean: float | None
    interval: float | None
    p_bootstrap: float | None
    p_randomization: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Scores of all systems by one metric.

    Attributes:
      metric: Name of the metric.
      method: Exact, reproducible description of its computation.
      systems: The scores; the first system is the baseline.
    """

    metric: str
    method: str
    systems: tuple[SystemScore, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComparisonReport:
    """Comparison by every metric of :mod:`jaxformer.evaluation.bleu_report` except exact match.

    Attributes:
      target_language: Code that selected the tokenizers.
      lines: Number of lines.
      resamples: Number of test sets that the bootstrap drew.
      trials: Number of trials of approximate randomization.
      seed: Seed of both tests.
      comparisons: The comparison by each metric.
    """

    target_language: str
    lines: int
    resamples: int
    trials: int
    seed: int
    comparisons: tuple[Comparison, ...]

    def to_json(self) -> str:
        """Returns the report as a JSON object with the fields of the dataclasses."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False, indent=2)

    def table(self) -> str:
        """Returns the report as aligned text, with a block per metric and a line per system."""
        names = [score.system for score in self.comparisons[0].systems]
        lines = [
            f"lines: {self.lines}, target language: {self.target_language}",
            f"mean +- 95 % interval: bootstrap, {self.resamples} resamples, seed {self.seed}",
        ]
        if len(names) > 1:
            lines.append(
                f"p: against {names[0]}, by paired bootstrap | by approximate randomization, "
                f"{self.trials} trials, seed {self.seed}"
            )
        width = max(map(len, names))
        for comparison in self.comparisons:
            lines += ["", f"{comparison.metric}: {comparison.method}"]
            lines += [_row(score, width) for score in comparison.systems]
        return "\n".join(lines)


def compare(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    *,
    target_language: str,
    report: Callable[[int], object] = lambda finished: None,
) -> ComparisonReport:
    """Scores systems by every metric, with 95 % intervals, and compares all with the first.

    Args:
      systems: Translations as plain, cased, detokenized text, by the name of the system.
      references: The reference for each line, also plain, cased and detokenized.
      target_language: Code such as "de"; selects the rules of sacreBLEU's and Moses' tokenizers.
      report: Called with 1 after each metric.

    Raises:
      UserError: There is no system, the numbers of lines differ or are 0, or ``SACREBLEU_SEED`` is
        not a valid seed.
    """
    if not systems:
        raise UserError("expected at least one system to score, got none")
    for name, hypotheses in systems.items():
        try:
            check_lines(hypotheses, references)
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
    seed, comparisons = _seed(), []
    for measure in measures(target_language).values():
        comparisons.append(_compare(measure, systems, references))
        report(1)
    return ComparisonReport(
        target_language=target_language,
        lines=len(references),
        resamples=_RESAMPLES,
        trials=_TRIALS,
        seed=seed,
        comparisons=tuple(comparisons),
    )


def _compare(
    measure: Measure, systems: Mapping[str, Sequence[str]], references: Sequence[str]
) -> Comparison:
    prepared = [(name, measure.prepare(lines)) for name, lines in systems.items()]
    prepared_references = [measure.prepare(references)]

    def test(kind: str, samples: int) -> list[Result]:
        paired = PairedTest(prepared, {"": measure.scorer}, prepared_references, kind, samples)
        _, columns = paired()
        _, results = columns.values()  # names, and the only metric
        return [result for result in results if isinstance(result, Result)]

    bootstrap = test("bs", _RESAMPLES)
    randomized = test("ar", _TRIALS)
    scores = list(map(_system_score, systems, bootstrap, randomized))
    for place, (_, lines) in enumerate(prepared[1:], start=1):
        if lines == prepared[0][1]:
            scores[place] = dataclasses.replace(scores[place], p_bootstrap=1.0, p_randomization=1.0)
    defined = [is_defined(measure, lines, *prepared_references) for _, lines in prepared]
    if not all(defined):
        scores = list(map(_without_figures, scores, defined))
    return Comparison(metric=measure.name, method=measure.method(), systems=tuple(scores))


def _without_figures(score: SystemScore, defined: bool) -> SystemScore:
    """Returns a score without p-values and, if it is undefined, without any figure."""
    score = dataclasses.replace(score, p_bootstrap=None, p_randomization=None)
    return score if defined else dataclasses.replace(score, score=None, mean=None, interval=None)


def _system_score(name: str, resampled: Result, exchanged: Result) -> SystemScore:
    assert resampled.mean is not None  # Set by the bootstrap, like ci.
    assert resampled.ci is not None
    return SystemScore(
        system=name,
        score=min(resampled.score, 100.0),  # Rounding errors may exceed 100.
        mean=float(resampled.mean),
        interval=float(resampled.ci),
        p_bootstrap=resampled.p_value,
        p_randomization=exchanged.p_value,
    )


def _seed() -> int:
    """Returns the seed that sacreBLEU will use.

    Raises:
      UserError: The environment variable does not hold a positive integer.
    """
    text = os.environ.get(_SEED_VARIABLE, _SEED)
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise UserError(
            f"{_SEED_VARIABLE} must be a whole number above 0, so that the figures can be "
            f"repeated: got {text!r}; unset it for {_SEED}"
        )
    return int(text)


def _row(score: SystemScore, width: int) -> str:
    if score.score is None:
        return f"  {score.system:{width}}  {'n/a':>6}  (no line has 4 words)"
    row = f"  {score.system:{width}}  {score.score:6.2f}  {score.mean:6.2f} +- {score.interval:.2f}"
    if score.p_bootstrap is None:
        return row
    return f"{row}  p {score.p_bootstrap:.4f} | {score.p_randomization:.4f}"
