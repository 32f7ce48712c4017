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
    """Counts of one or several sentences, and the percentages derived from them.

    Attributes:
      matched: Number of brackets in both files.
      gold_brackets: Number of brackets in the gold file.
      test_brackets: Number of brackets in the test file.
      crossing: Number of test brackets that cross a gold bracket.
      words: Number of words.
      correct_tags: Number of words with the correct part of speech.
    """

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
        if not both:
            return 0.0
        return 2 * self.precision * self.recall / both

    @property
    def tagging_accuracy(self) -> float:
        """Percentage of words with the correct part of speech; 0 if there are none."""
        return _percent(self.correct_tags, self.words)

    def numbers(self) -> dict[str, object]:
        """Returns all counts, and the percentages, by name."""
        numbers: dict[str, object] = dataclasses.asdict(self)

        # The percentages are properties, not fields.
        for name in ("recall", "precision", "f1", "tagging_accuracy"):
            numbers[name] = getattr(self, name)
        return numbers


def _percent(part: int, whole: int) -> float:
    return 100.0 * part / whole if whole else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceScores(Counts):
    """Scores of one sentence, with EVALB's error messages."""

    number: int  # from 1
    length: int  # words of the gold line that ``delete_labels_for_length`` does not exclude
    status: Status
    errors: tuple[str, ...]
    listing: str  # words and brackets for the table; empty unless ``debug`` is set


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
    short: Summary  # of sentences with at most ``cutoff_length`` words
    cutoff_length: int

    def to_json(self) -> str:
        # Listings are only for the table.
        rows = []
        for row in self.rows:
            numbers = row.numbers()
            del numbers["listing"]
            rows.append(numbers)

        values = {
            "all": self.all.numbers(),
            "short": self.short.numbers(),
            "cutoff_length": self.cutoff_length,
            "rows": rows,
        }
        return json.dumps(values, ensure_ascii=False, indent=2)

    def table(self) -> str:
        """Returns the report as EVALB prints it."""
        rule = 76 * "="
        lines = [
            "  Sent.                        Matched  Bracket   Cross        Correct Tag",
            " ID  Len.  Stat. Recal  Prec.  Bracket gold test Bracket Words  Tags Accracy",
            rule,
        ]

        for row in self.rows:
            lines.append(_row_line(row))
            if row.listing:
                lines.append(row.listing)

        lines.append(rule)
        lines.append(_total_line(self.all))

        lines += ["=== Summary ===", "", "-- All --"]
        lines += _summary_lines(self.all)

        lines += ["", f"-- len<={self.cutoff_length} --"]
        lines += _summary_lines(self.short)
        return "\n".join(lines)


def _row_line(row: SentenceScores) -> str:
    sentence = f"{row.number:4d}  {row.length:3d}    {row.status}"
    percentages = f"{row.recall:6.2f} {row.precision:6.2f}"
    brackets = f"{row.matched:3d}    {row.gold_brackets:3d}  {row.test_brackets:3d}"
    tags = f"{row.words:4d}  {row.correct_tags:4d}   {row.tagging_accuracy:6.2f}"
    return f"{sentence}  {percentages}   {brackets}    {row.crossing:3d}   {tags}"


def _total_line(total: Summary) -> str:
    # EVALB leaves out percentages that would divide by 0.
    brackets = ""
    if total.gold_brackets and total.test_brackets:
        percentages = f"{total.recall:6.2f} {total.precision:6.2f}"
        counts = f"{total.matched:6d} {total.gold_brackets:5d} {total.test_brackets:5d}"
        brackets = f"                {percentages} {counts}  {total.crossing:5d}"

    tags = f"  {total.words:5d} {total.correct_tags:5d}   {total.tagging_accuracy:6.2f}"
    return brackets + tags


def _summary_lines(summary: Summary) -> list[str]:
    # EVALB prints nan for 0 / 0.
    f1 = summary.f1 if summary.matched else math.nan
    return [
        f"Number of sentence        = {summary.sentences:6d}",
        f"Number of Error sentence  = {summary.error_sentences:6d}",
        f"Number of Skip  sentence  = {summary.skipped_sentences:6d}",
        f"Number of Valid sentence  = {summary.valid_sentences:6d}",
        f"Bracketing Recall         = {summary.recall:6.2f}",
        f"Bracketing Precision      = {summary.precision:6.2f}",
        f"Bracketing FMeasure       = {f1:6.2f}",
        f"Complete match            = {summary.complete_match:6.2f}",
        f"Average crossing          = {summary.average_crossing:6.2f}",
        f"No crossing               = {summary.no_crossing:6.2f}",
        f"2 or less crossing        = {summary.two_or_less_crossing:6.2f}",
        f"Tagging accuracy          = {summary.tagging_accuracy:6.2f}",
    ]


def summary(rows: Sequence[SentenceScores]) -> Summary:
    """Sums the counts of the valid sentences."""
    statuses = [row.status for row in rows]
    valid = [row for row in rows if row.status is Status.VALID]

    sums = {}
    for field in dataclasses.fields(Counts):
        values = [getattr(row, field.name) for row in valid]
        sums[field.name] = sum(values)

    average_crossing = sums["crossing"] / len(valid) if valid else 0.0
    # All brackets match, and no bracket of either file is left.
    complete = sum(row.matched == row.gold_brackets == row.test_brackets for row in valid)
    no_crossing = sum(row.crossing == 0 for row in valid)
    two_or_less = sum(row.crossing <= 2 for row in valid)
    return Summary(
        **sums,
        sentences=len(rows),
        error_sentences=statuses.count(Status.ERROR),
        skipped_sentences=statuses.count(Status.SKIPPED),
        valid_sentences=len(valid),
        complete_match=_percent(complete, len(valid)),
        average_crossing=average_crossing,
        no_crossing=_percent(no_crossing, len(valid)),
        two_or_less_crossing=_percent(two_or_less, len(valid)),
    )
