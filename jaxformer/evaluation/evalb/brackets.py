"""Comparison of two bracketed lines as in EVALB."""

import collections
import dataclasses
import itertools
import re
from collections.abc import Sequence

from jaxformer.checks import check_texts
from jaxformer.errors import UserError
from jaxformer.evaluation.evalb.parameter_file import COLLINS, ParameterFile
from jaxformer.evaluation.evalb.table import Counts, Report, SentenceScores, Status, summary


def score(gold: Sequence[str], test: Sequence[str], parameters: ParameterFile = COLLINS) -> Report:
    """Compares trees in brackets, one per line; blank if the parser has found none.

    Raises a ``UserError`` if the numbers of lines differ, or there are more errors than allowed.

    >>> report = score(["(S (NP (PRP It)) (VP (VBZ works)))"], ["(S (NP (PRP It)) (VBZ works))"])
    >>> f"{report.all.recall:.2f} {report.all.precision:.2f} {report.all.f1:.2f}"
    '66.67 100.00 80.00'
    """
    gold, test = check_texts(gold, "gold"), check_texts(test, "test")
    if len(gold) != len(test):
        raise UserError(
            f"expected as many lines of test trees as of gold trees: got {len(test)} and "
            f"{len(gold)}; leave a blank line for a sentence without a parse"
        )
    rows, errors = [], 0
    for number, lines in enumerate(zip(gold, test, strict=True), 1):
        row = _row(number, *lines, parameters)
        rows.append(row)
        errors += len(row.errors)
        if errors > parameters.max_error + 1:
            raise UserError(
                f"expected at most {parameters.max_error} errors, got {errors} up to sentence "
                f"{number}: {row.errors[-1]}; are these the same sentences, in the same words and "
                "with tags? Else raise MAX_ERROR"
            )
    longest = parameters.cutoff_length
    short = summary([row for row in rows if row.length <= longest])
    return Report(rows=tuple(rows), all=summary(rows), short=short, cutoff_length=longest)


# EVALB's codes for the result of a word or a bracket.
_WRONG, _RIGHT, _DELETED, _UNDEFINED = 0, 1, 5, 9


@dataclasses.dataclass(slots=True)
class _Bracket:
    """A constituent: the words from ``start`` to before ``end``; -1 if it is never closed."""

    label: str
    start: int
    end: int = -1
    result: int = _UNDEFINED


@dataclasses.dataclass(slots=True)
class _Word:
    """A word; for a quotation mark, which may be deleted, also its position and brackets."""

    tag: str
    text: str
    index: int
    brackets_before: int
    around: Sequence[_Bracket] = ()
    result: int = _UNDEFINED


class _Sentence:
    """A bracketed line, read as in EVALB."""

    def __init__(self, line: str, parameters: ParameterFile) -> None:
        self.words: list[_Word] = []
        self.brackets: list[_Bracket] = []
        self.quotes: list[_Word] = []
        self.errors: list[str] = []
        self.length = 0
        open_brackets: list[_Bracket] = []
        stray: list[str] = []
        for match in _TOKEN.finditer(line):
            label, text = match.groups()
            if text is not None:
                word = _Word(label, text, len(self.words), len(self.brackets))
                self.length += label not in parameters.delete_labels_for_length
                if label in parameters.quote_labels and text in _QUOTES:
                    word.around = [*open_brackets]
                    self.quotes.append(word)
                if label not in parameters.delete_labels:
                    self.words.append(word)
            elif label is not None:
                self.brackets.append(_Bracket(label, len(self.words)))
                open_brackets.append(self.brackets[-1])
            elif match[0] == ")" and open_brackets:
                open_brackets.pop().end = len(self.words)
            else:
                stray.append(match[0])
        if stray:
            self.errors.append(f"Reading sentence ({stray[0]})")
        if open_brackets:
            self.errors.append("Bracketing is unbalanced (too many open bracket)")

    def put_back(self, number: int) -> None:
        quote = self.quotes[number]
        self.words.insert(quote.index, quote)
        for bracket in self.brackets[quote.brackets_before :]:
            bracket.start += 1
            bracket.end += 1
        for bracket in quote.around:
            bracket.end += 1
        for later in self.quotes[number:]:
            later.index += 1


# An opening bracket with its label; for a word, also the word and the closing bracket.
_TOKEN = re.compile(r"\(([^()\s]*+)(?:\s++([^()\s]*+)\s*+\))?+|\)|[^()\s]++", re.ASCII)
_QUOTES = ("'", '"', "/")


def _row(number: int, gold_line: str, test_line: str, parameters: ParameterFile) -> SentenceScores:
    gold, test = _Sentence(gold_line, parameters), _Sentence(test_line, parameters)
    errors, counts = gold.errors + test.errors, Counts()
    if test.words:
        if len(gold.words) != len(test.words):
            _put_back_quotes(gold, test, parameters)
        if mismatch := _mismatch(gold, test, parameters):
            errors.append(mismatch)
        else:
            counts = _compare(gold, test, parameters)
    status = Status.ERROR if errors else Status.VALID
    return SentenceScores(
        **dataclasses.asdict(counts),
        number=number,
        length=gold.length,
        status=status if test.words else Status.SKIPPED,
        errors=tuple(errors),
        listing=_listing(gold, test) if parameters.debug else "",
    )


def _mismatch(gold: _Sentence, test: _Sentence, parameters: ParameterFile) -> str | None:
    """Returns the reason why two sentences cannot be compared, if any."""
    if len(gold.words) != len(test.words):
        return f"Length unmatch ({len(gold.words)}|{len(test.words)})"
    for one, other in zip(gold.words, test.words, strict=True):
        if not parameters.same_word(one.text, other.text):
            return f"Words unmatch ({one.text}|{other.text})"
    return None


def _put_back_quotes(gold: _Sentence, test: _Sentence, parameters: ParameterFile) -> None:
    """Restores quotation marks that only one sentence deleted, in EVALB's order."""
    for number, in_test in enumerate(test.quotes):
        index = in_test.index
        for other, in_gold in enumerate(gold.quotes):
            deleted = [quote.tag in parameters.delete_labels for quote in (in_gold, in_test)]
            if in_gold.index == index and deleted == [True, False]:
                gold.put_back(other)
            elif in_gold.index == index and deleted == [False, True]:
                test.put_back(number)


def _compare(gold: _Sentence, test: _Sentence, parameters: ParameterFile) -> Counts:
    of_gold, of_test = _select_brackets(gold, parameters), _select_brackets(test, parameters)
    # Queues keep the time linear if a line has many equal brackets.
    at_span = collections.defaultdict(collections.deque)
    for bracket in of_test:
        at_span[bracket.start, bracket.end].append(bracket)
    for bracket in of_gold:
        candidates = at_span[bracket.start, bracket.end]
        for n, other in enumerate(candidates):
            if not parameters.labeled or parameters.same_label(bracket.label, other.label):
                bracket.result = other.result = _RIGHT
                del candidates[n]
                break
    for one, other in zip(gold.words, test.words, strict=True):
        one.result = other.result = int(parameters.same_label(one.tag, other.tag))
    spans = {(bracket.start, bracket.end) for bracket in of_gold}
    return Counts(
        matched=sum(bracket.result == _RIGHT for bracket in of_gold),
        gold_brackets=len(of_gold),
        test_brackets=len(of_test),
        crossing=sum(_crosses(bracket, spans) for bracket in of_test),
        words=len(gold.words),
        correct_tags=sum(word.result for word in gold.words),
    )


def _select_brackets(sentence: _Sentence, parameters: ParameterFile) -> list[_Bracket]:
    """Returns the brackets that count, with truncated labels."""
    for bracket in sentence.brackets:
        bracket.result = _DELETED
        if bracket.start != bracket.end:
            bracket.label = re.split("[-=]", bracket.label, maxsplit=1)[0]
            if bracket.label not in parameters.deleted_brackets:
                bracket.result = _WRONG
    return [bracket for bracket in sentence.brackets if bracket.result == _WRONG]


def _crosses(bracket: _Bracket, spans: set[tuple[int, int]]) -> bool:
    return any(
        start < bracket.start < end < bracket.end or bracket.start < start < bracket.end < end
        for start, end in spans
    )


def _listing(gold: _Sentence, test: _Sentence) -> str:
    """Lists words and brackets with their numbers and results, gold beside test."""
    lines = [
        f"-<1>---(wn1={len(gold.words):3d}, bn1={len(gold.brackets):3d})-           "
        f"-<2>---(wn2={len(test.words):3d}, bn2={len(test.brackets):3d})-"
    ]
    for n, words in enumerate(itertools.zip_longest(gold.words, test.words)):
        cells = [
            f"{n:3d} : {w.result} : {w.tag:6s}  {w.text:16s}" if w and w.text else "" for w in words
        ]
        lines.append(f"{cells[0]:34s}      {cells[1]}")
    lines.append("")
    for n, brackets in enumerate(itertools.zip_longest(gold.brackets, test.brackets)):
        cells = [
            f"{n:3d} : {b.result} : {b.start:3d}  {b.end:3d}  {b.label:6s}" if b else ""
            for b in brackets
        ]
        lines.append(f"{cells[0]:26s}      {cells[1]}")
    return "\n".join([*lines, "", "========"])
