"""EVALB's figures for each sentence, for all and for short ones, and its official table."""

import dataclasses
import enum
import json
import math
from collections.abc import Sequence


class Status(enum.IntEnum):
    """Status of a sentence: compared, not comparable, or without a parse."""

    VALID = 0
    ERROR = 1
    SKIPPED = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts:
    """Counts of one or several sentences, and the percentages derived from them."""

    matched: int = 0
    gold_brackets: int = 0
    test_brackets: int = 0
    crossing: int = 0
    words: int = 0
    correct_tags: int = 0

    @property
    def recall(self) -> float:
        """Percentage of gold brackets that are in the test file; 0 if there are none."""
        return _percent(self.matched, self.gold_brackets)

    @property
    def precision(self) -> float:
        """Percentage of test brackets that are in the gold file; 0 if there are none."""
        return _percent(self.matched, self.test_brackets)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall; 0 if both are 0 (``nan`` in EVALB's table)."""
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0

    @property
    def tagging_accuracy(self) -> float:
        """Percentage of words with the correct part of speech; 0 if there are none."""
        return _percent(self.correct_tags, self.words)

    def numbers(self) -> dict[str, object]:
        percentages = ("recall", "precision", "f1", "tagging_accuracy")
        return dataclasses.asdict(self) | {name: getattr(self, name) for name in percentages}


def _percent(part: int, whole: int) -> float:
    return 100.0 * part / whole if whole else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceScores(Counts):
    """Scores of one sentence, with EVALB's error messages."""

    number: int  # from 1
    length: int  # words of the gold line, without ``delete_labels_for_length``
    status: Status
    errors: tuple[str, ...]
    listing: str  # of words and brackets, if the parameter ``debug`` is set


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary(Counts):
    """Counts of the valid sentences, and the percentages of them that EVALB prints."""

    sentences: int
    error_sentences: int
    skipped_sentences: int
    valid_sentences: int
    complete_match: float
    average_crossing: float
    no_crossing: float
    two_or_less_crossing: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Scores of a file of trees: each sentence, all sentences, and short sentences."""

    rows: tuple[SentenceScores, ...]
    all: Summary
    short: Summary
    cutoff_length: int

    def to_json(self) -> str:
        rows = [row.numbers() for row in self.rows]
        for row in rows:
            del row["listing"]
        summaries = {"all": self.all.numbers(), "short": self.short.numbers()}
        rest = {"cutoff_length": self.cutoff_length, "rows": rows}
        return json.dumps(summaries | rest, ensure_ascii=False, indent=2)

    def table(self) -> str:
        """Returns the report as EVALB prints it."""
        total, rule = self.all, 76 * "="
        rows = [line for row in self.rows for line in (_row_line(row), row.listing) if line]
        brackets = ""
        if total.gold_brackets and total.test_brackets:
            brackets = (
                f"                {total.recall:6.2f} {total.precision:6.2f} {total.matched:6d} "
                f"{total.gold_brackets:5d} {total.test_brackets:5d}  {total.crossing:5d}"
            )
        tags = f"  {total.words:5d} {total.correct_tags:5d}   {total.tagging_accuracy:6.2f}"
        return "\n".join(
            [
                "  Sent.                        Matched  Bracket   Cross        Correct Tag",
                " ID  Len.  Stat. Recal  Prec.  Bracket gold test Bracket Words  Tags Accracy",
                *(rule, *rows, rule, brackets + tags),
                *("=== Summary ===", "", "-- All --", *_summary_lines(self.all)),
                *("", f"-- len<={self.cutoff_length} --", *_summary_lines(self.short)),
            ]
        )


def _row_line(row: SentenceScores) -> str:
    return (
        f"{row.number:4d}  {row.length:3d}    {row.status}  {row.recall:6.2f} {row.precision:6.2f}"
        f"   {row.matched:3d}    {row.gold_brackets:3d}  {row.test_brackets:3d}    "
        f"{row.crossing:3d}   {row.words:4d}  {row.correct_tags:4d}   {row.tagging_accuracy:6.2f}"
    )


def _summary_lines(summary: Summary) -> list[str]:
    return [
        f"Number of sentence        = {summary.sentences:6d}",
        f"Number of Error sentence  = {summary.error_sentences:6d}",
        f"Number of Skip  sentence  = {summary.skipped_sentences:6d}",
        f"Number of Valid sentence  = {summary.valid_sentences:6d}",
        f"Bracketing Recall         = {summary.recall:6.2f}",
        f"Bracketing Precision      = {summary.precision:6.2f}",
        # EVALB prints nan for 0 / 0.
        f"Bracketing FMeasure       = {summary.f1 if summary.matched else math.nan:6.2f}",
        f"Complete match            = {summary.complete_match:6.2f}",
        f"Average crossing          = {summary.average_crossing:6.2f}",
        f"No crossing               = {summary.no_crossing:6.2f}",
        f"2 or less crossing        = {summary.two_or_less_crossing:6.2f}",
        f"Tagging accuracy          = {summary.tagging_accuracy:6.2f}",
    ]


def summary(rows: Sequence[SentenceScores]) -> Summary:
    statuses = [row.status for row in rows]
    valid = [row for row in rows if row.status is Status.VALID]
    sums = {
        field.name: sum(getattr(row, field.name) for row in valid)
        for field in dataclasses.fields(Counts)
    }
    complete = [row.matched == row.gold_brackets == row.test_brackets for row in valid]
    return Summary(
        **sums,
        sentences=len(rows),
        error_sentences=statuses.count(Status.ERROR),
        skipped_sentences=statuses.count(Status.SKIPPED),
        valid_sentences=len(valid),
        complete_match=_percent(sum(complete), len(valid)),
        average_crossing=sums["crossing"] / len(valid) if valid else 0.0,
        no_crossing=_percent(sum(row.crossing == 0 for row in valid), len(valid)),
        two_or_less_crossing=_percent(sum(row.crossing <= 2 for row in valid), len(valid)),
    )
