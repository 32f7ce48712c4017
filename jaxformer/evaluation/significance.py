"""Is one system better than another, or was it lucky with this test set?

Both tests are sacreBLEU's (Koehn 2004, paired bootstrap resampling; Riezler and Maxwell 2005,
approximate randomization). Systems are compared with the first, the baseline, on the same lines:

* **Paired bootstrap**: how much would the difference vary over other test sets, drawn line by line
  with replacement from this one? The same draws give a 95 % interval of each score.
* **Approximate randomization**: how often would a difference as large as this one come about if it
  were decided at random, line by line, which of the two systems has said what?

Random numbers are seeded, and the report says with what: same files, same figures.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence

from sacrebleu.significance import PairedTest, Result

from jaxformer.errors import UserError
from jaxformer.evaluation.bleu_report import Measure, check_lines, measures

# sacreBLEU's own defaults, and where it looks for another seed.
_RESAMPLES, _TRIALS = 1000, 10_000
_SEED_VARIABLE, _SEED = "SACREBLEU_SEED", "12345"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SystemScore:
    """One system by one metric.

    Attributes:
      system: Its name.
      score: From 0 to 100.
      mean: Mean of the score over the test sets that the bootstrap draws.
      interval: Half the width of the interval around ``mean`` that holds 95 % of those scores.
      p_bootstrap: How probable so large a difference from the first system is by the choice of
        lines alone, by the paired bootstrap; None for the first system.
      p_randomization: How probable it is if the systems are the same, by approximate
        randomization; None for the first system.
    """

    system: str
    score: float
    mean: float
    interval: float
    p_bootstrap: float | None
    p_randomization: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """All systems by one metric.

    Attributes:
      metric: What it is called.
      method: How it was computed, precisely enough to repeat it.
      systems: The first is the baseline.
    """

    metric: str
    method: str
    systems: tuple[SystemScore, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComparisonReport:
    """Systems compared by every metric of :mod:`jaxformer.evaluation.bleu_report` but exact matches.

    Attributes:
      target_language: Chose the tokenizers.
      lines: How many were compared.
      resamples: Test sets that the bootstrap drew.
      trials: Exchanges of lines that approximate randomization tried.
      seed: Of the random numbers of both.
      comparisons: One for each metric.
    """

    target_language: str
    lines: int
    resamples: int
    trials: int
    seed: int
    comparisons: tuple[Comparison, ...]

    def to_json(self) -> str:
        """The report as a JSON object, with the fields of the dataclasses."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False, indent=2)

    def table(self) -> str:
        """The report as aligned text: a block for each metric, a line for each system."""
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
      systems: Translations by the name of the system, as plain, cased, detokenized text.
      references: The reference for each line, likewise.
      target_language: Code such as "de"; chooses sacreBLEU's tokenizer and the rules of Moses'.
      report: Called with 1 after each metric.

    Raises:
      UserError: A system has not as many lines as the reference, there are none, or
        ``SACREBLEU_SEED`` is no seed.
    """
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
    return Comparison(
        metric=measure.name,
        method=measure.method(),
        systems=tuple(map(_system_score, systems, bootstrap, randomized)),
    )


def _system_score(name: str, resampled: Result, exchanged: Result) -> SystemScore:
    assert resampled.mean is not None  # a bootstrap has mean
    assert resampled.ci is not None  # and interval
    return SystemScore(
        system=name,
        score=min(resampled.score, 100.0),  # as in a report
        mean=float(resampled.mean),
        interval=float(resampled.ci),
        p_bootstrap=resampled.p_value,
        p_randomization=exchanged.p_value,
    )


def _seed() -> int:
    """The seed that sacreBLEU will use.

    Raises:
      UserError: It would use none.
    """
    text = os.environ.get(_SEED_VARIABLE, _SEED)
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise UserError(
            f"{_SEED_VARIABLE} must be a whole number above 0, so that the figures can be "
            f"repeated: got {text!r}; unset it for {_SEED}"
        )
    return int(text)


def _row(score: SystemScore, width: int) -> str:
    row = f"  {score.system:{width}}  {score.score:6.2f}  {score.mean:6.2f} +- {score.interval:.2f}"
    if score.p_bootstrap is None:
        return row
    return f"{row}  p {score.p_bootstrap:.4f} | {score.p_randomization:.4f}"
