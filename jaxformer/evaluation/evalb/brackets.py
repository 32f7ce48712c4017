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


def score(
    gold: Sequence[str],
    test: Sequence[str],
    parameters: ParameterFile = COLLINS,
) -> Report:
    """Compares trees in brackets, one per line; blank if the parser has found none.

    Raises a ``UserError`` if the numbers of lines differ, or there are more errors than allowed.

    >>> report = score(["(S (NP (PRP It)) (VP (VBZ works)))"], ["(S (NP (PRP It)) (VBZ works))"])
    >>> f"{report.all.recall:.2f} {report.all.precision:.2f} {report.all.f1:.2f}"
    '66.67 100.00 80.00'
    """
    gold = check_texts(gold, "gold")
    test = check_texts(test, "test")
    if len(gold) != len(test):
        raise UserError(
            f"expected as many lines of test trees as of gold trees: got {len(test)} and "
            f"{len(gold)}; leave a blank line for a sentence without a parse"
        )

    rows = []
    errors = 0
    pairs = zip(gold, test, strict=True)
    for number, (gold_line, test_line) in enumerate(pairs, 1):
        row = _row(number, gold_line, test_line, parameters=parameters)
        rows.append(row)

        errors += len(row.errors)
        # EVALB tolerates one error more than it is told.
        if errors > parameters.max_error + 1:
            raise UserError(
                f"expected at most {parameters.max_error} errors, got {errors} up to sentence "
                f"{number}: {row.errors[-1]}; are these the same sentences, in the same words and "
                "with tags? Else raise MAX_ERROR"
            )

    # The second summary is of short sentences only.
    longest = parameters.cutoff_length
    short_rows = [row for row in rows if row.length <= longest]
    return Report(
        rows=tuple(rows),
        all=summary(rows),
        short=summary(short_rows),
        cutoff_length=longest,
    )


# EVALB's codes for the result of a word or a bracket.
_WRONG = 0
_RIGHT = 1
_DELETED = 5
_UNDEFINED = 9


@dataclasses.dataclass(slots=True)
class _Bracket:
    """A constituent: the words from ``start`` to before ``end``; -1 if it is never closed."""

    label: str
    start: int
    end: int = -1
    result: int = _UNDEFINED


@dataclasses.dataclass(slots=True)
class _Word:
    """A word; the last three of its places are for quotation marks that are put back.

    Attributes:
      index: Number of the words before it.
      brackets_before: Number of the brackets that open before it.
      around: Brackets that are open at it.
    """

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
            is_word = text is not None
            opens = label is not None
            closes = match[0] == ")"
            if is_word:
                self._add_word(
                    label,
                    text,
                    open_brackets,
                    parameters=parameters,
                )
            elif opens:
                bracket = _Bracket(label, start=len(self.words))
                self.brackets.append(bracket)
                open_brackets.append(bracket)
            elif closes and open_brackets:
                open_brackets.pop().end = len(self.words)
            else:
                stray.append(match[0])

        if stray:
            self.errors.append(f"Reading sentence ({stray[0]})")
        if open_brackets:
            self.errors.append("Bracketing is unbalanced (too many open bracket)")

    def _add_word(
        self,
        tag: str,
        text: str,
        open_brackets: Sequence[_Bracket],
        parameters: ParameterFile,
    ) -> None:
        """Adds a word, and counts it, unless its tag is deleted from the words or the count."""
        word = _Word(
            tag,
            text,
            index=len(self.words),
            brackets_before=len(self.brackets),
        )

        if tag not in parameters.delete_labels_for_length:
            self.length += 1
        if tag in parameters.quote_labels and text in _QUOTES:
            word.around = [*open_brackets]
            self.quotes.append(word)
        if tag not in parameters.delete_labels:
            self.words.append(word)

    def put_back(self, number: int) -> None:
        """Inserts a quotation mark that was deleted among the words."""
        quote = self.quotes[number]
        self.words.insert(quote.index, quote)

        # Brackets that open later move, and brackets around the quotation mark grow.
        for bracket in self.brackets[quote.brackets_before :]:
            bracket.start += 1
            bracket.end += 1
        for bracket in quote.around:
            bracket.end += 1

        # EVALB moves the quotation mark itself, too.
        for moved in self.quotes[number:]:
            moved.index += 1


# An opening bracket with its label; for a word, also the word and the closing bracket.
_TOKEN = re.compile(r"\(([^()\s]*+)(?:\s++([^()\s]*+)\s*+\))?+|\)|[^()\s]++", re.ASCII)
_QUOTES = ("'", '"', "/")


def _row(number: int, gold_line: str, test_line: str, parameters: ParameterFile) -> SentenceScores:
    gold = _Sentence(gold_line, parameters)
    test = _Sentence(test_line, parameters)
    errors = gold.errors + test.errors
    counts = Counts()

    has_parse = bool(test.words)
    if has_parse:
        if len(gold.words) != len(test.words):
            _put_back_quotes(gold, test, parameters)

        mismatch = _mismatch(gold, test, parameters)
        if mismatch:
            errors.append(mismatch)
        else:
            counts = _compare(gold, test, parameters)

    # A sentence without a parse is skipped, even if its gold line has errors.
    if not has_parse:
        status = Status.SKIPPED
    elif errors:
        status = Status.ERROR
    else:
        status = Status.VALID

    return SentenceScores(
        **dataclasses.asdict(counts),
        number=number,
        length=gold.length,
        status=status,
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
    for test_number, in_test in enumerate(test.quotes):
        # EVALB compares with this index even after ``put_back`` has moved the quotation mark.
        index = in_test.index
        for gold_number, in_gold in enumerate(gold.quotes):
            if in_gold.index != index:
                continue

            gold_deletes = in_gold.tag in parameters.delete_labels
            test_deletes = in_test.tag in parameters.delete_labels
            if gold_deletes and not test_deletes:
                gold.put_back(gold_number)
            elif test_deletes and not gold_deletes:
                test.put_back(test_number)


def _compare(gold: _Sentence, test: _Sentence, parameters: ParameterFile) -> Counts:
    of_gold = _select_brackets(gold, parameters)
    of_test = _select_brackets(test, parameters)
    _match_brackets(of_gold, of_test, parameters)

    for one, other in zip(gold.words, test.words, strict=True):
        is_same = parameters.same_label(one.tag, other.tag)
        result = _RIGHT if is_same else _WRONG
        one.result = result
        other.result = result

    spans = {(bracket.start, bracket.end) for bracket in of_gold}
    return Counts(
        matched=sum(bracket.result == _RIGHT for bracket in of_gold),
        gold_brackets=len(of_gold),
        test_brackets=len(of_test),
        crossing=sum(_crosses(bracket, spans) for bracket in of_test),
        words=len(gold.words),
        correct_tags=sum(word.result == _RIGHT for word in gold.words),
    )


def _match_brackets(
    of_gold: Sequence[_Bracket],
    of_test: Sequence[_Bracket],
    parameters: ParameterFile,
) -> None:
    """Marks each gold bracket and the first free test bracket that equals it as right."""
    # Queues keep the time linear if a line has many equal brackets.
    at_span = collections.defaultdict(collections.deque)
    for bracket in of_test:
        at_span[bracket.start, bracket.end].append(bracket)

    for bracket in of_gold:
        candidates = at_span[bracket.start, bracket.end]
        for number, other in enumerate(candidates):
            is_same = parameters.same_label(bracket.label, other.label)
            if is_same or not parameters.labeled:
                bracket.result = _RIGHT
                other.result = _RIGHT
                del candidates[number]
                break


def _select_brackets(sentence: _Sentence, parameters: ParameterFile) -> list[_Bracket]:
    """Returns the brackets that count, with truncated labels."""
    selected = []
    for bracket in sentence.brackets:
        bracket.result = _DELETED
        if bracket.start == bracket.end:
            continue  # It has no words.

        category, *_ = re.split("[-=]", bracket.label, maxsplit=1)
        bracket.label = category
        if bracket.label not in parameters.deleted_brackets:
            bracket.result = _WRONG  # until it is matched
            selected.append(bracket)
    return selected


def _crosses(bracket: _Bracket, spans: set[tuple[int, int]]) -> bool:
    for start, end in spans:
        begins_inside = start < bracket.start < end < bracket.end
        ends_inside = bracket.start < start < bracket.end < end
        if begins_inside or ends_inside:
            return True
    return False


def _listing(gold: _Sentence, test: _Sentence) -> str:
    """Lists words and brackets with their numbers and results, gold beside test."""
    lines = [
        f"-<1>---(wn1={len(gold.words):3d}, bn1={len(gold.brackets):3d})-           "
        f"-<2>---(wn2={len(test.words):3d}, bn2={len(test.brackets):3d})-"
    ]

    words = itertools.zip_longest(gold.words, test.words)
    for number, (gold_word, test_word) in enumerate(words):
        left = _word_cell(number, gold_word)
        right = _word_cell(number, test_word)
        lines.append(f"{left:34s}      {right}")
    lines.append("")

    brackets = itertools.zip_longest(gold.brackets, test.brackets)
    for number, (gold_bracket, test_bracket) in enumerate(brackets):
        left = _bracket_cell(number, gold_bracket)
        right = _bracket_cell(number, test_bracket)
        lines.append(f"{left:26s}      {right}")

    lines += ["", "========"]
    return "\n".join(lines)


def _word_cell(number: int, word: _Word | None) -> str:
    if word is None or not word.text:
        return ""
    tagged = f"{word.tag:6s}  {word.text:16s}"
    return f"{number:3d} : {word.result} : {tagged}"


def _bracket_cell(number: int, bracket: _Bracket | None) -> str:
    if bracket is None:
        return ""
    span = f"{bracket.start:3d}  {bracket.end:3d}"
    return f"{number:3d} : {bracket.result} : {span}  {bracket.label:6s}"
