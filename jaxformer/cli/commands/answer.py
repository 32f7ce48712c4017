"""The command ``answer``: answers questions about texts, or scores a model on answered ones."""

import json
import pathlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jaxformer.cli.command import Command
from jaxformer.cli.options import Checkpoint, File, InputFile, ModelDir, OutputFile
from jaxformer.cli.outputs import check_outputs, open_output
from jaxformer.cli.text import json_line, progress_bar
from jaxformer.errors import UserError
from jaxformer.files import STDIN, STDOUT

if TYPE_CHECKING:
    from jaxformer.data.questions import Question
    from jaxformer.tasks.question_answering.reader import Answer

# Questions whose windows are in memory together.
_BLOCK = 256


def answer(
    *,
    workdir: ModelDir,
    question: str | None = None,
    context_file: InputFile | None = None,
    input: File | None = None,
    output: OutputFile | None = None,
    answers: int = 1,
    max_answer_length: int = 30,
    no_answer: float | None = None,
    weights: Checkpoint = "auto",
) -> None:
    """Answer questions with spans of a text, or score a model on questions with known answers.

    A long text is split into windows that overlap; the best span of all of them is the answer.

    One question: The answer is printed; with several, a line of JSON for each.
      question: the question
      context_file: the text with the answer (default: standard input)

    Many questions:
      input: questions and their texts: JSON in the format of SQuAD, or JSON Lines (.jsonl) with the
        fields question and context, and perhaps id and answers; if answers are known, exact match
        and F1 are printed to standard error
      output: file for the answers (default: standard output): JSON Lines, or, if its name ends with
        .json, one object of ids and answers as SQuAD's official script reads it

    Search:
      answers: print so many answers to each question, the best first
      max_answer_length: maximum number of tokens of an answer
      no_answer (X): a text may lack the answer, as in SQuAD 2: the answer is blank if its score
        exceeds the best span's by more than X, such as 0 (default: every text has an answer)

    Example:
      jaxformer answer --workdir runs/squad --question "Who wrote it?" --context-file page.txt

      jaxformer answer --workdir runs/squad --input dev-v1.1.json --output predictions.json
    """
    from jaxformer.tasks.question_answering.reader import Reader

    if (question is None) == (input is None):
        raise UserError("give either --question TEXT, or --input FILE with many questions")
    if input is not None and context_file is not None:
        raise UserError("--input has the texts of its questions: leave --context-file out")

    if answers < 1:
        raise UserError(f"--answers: expected at least 1, got {answers}")
    is_object = output is not None and output.suffix == ".json"
    if is_object and answers > 1:
        raise UserError(
            f"--answers {answers} needs lines: give --output a name that does not end with .json"
        )
    if question is not None and not question.strip():
        raise UserError("--question: expected a question, got a blank one")

    source = input or context_file or STDIN
    check_outputs([source], {"--output": output or STDOUT})
    questions = _read(question, context_file, input)
    reader = Reader.load(workdir, weights=weights)
    for each in questions:
        reader.check(each.question, each.text, f"{source}: question {each.id}".rstrip())

    found: list[list[Answer]] = []
    with progress_bar(None, hidden=input is None) as bar:
        for start in range(0, len(questions), _BLOCK):
            block = questions[start : start + _BLOCK]
            found += reader.answers(
                [(each.question, each.text) for each in block],
                num_answers=answers,
                max_answer_length=max_answer_length,
                no_answer=no_answer,
                report=bar.update,
            )

    is_single = input is None and answers == 1
    with open_output(output or STDOUT) as write:
        if is_single:
            write([_one_line(found[0][0].text)])
        elif is_object:
            best = [own[0].text for own in found]
            names = [each.id for each in questions]
            write([json.dumps(dict(zip(names, best, strict=True)), ensure_ascii=False)])
        else:
            write(_json_lines(questions, found))
    _print_scores(questions, found)


COMMAND = Command("answer", answer, place=102)


def _read(
    question: str | None,
    context_file: pathlib.Path | None,
    input: pathlib.Path | None,
) -> "list[Question]":
    from jaxformer.cli.text import read_text
    from jaxformer.data.questions import Question, read_questions

    if input is not None:
        return read_questions(input)

    lines = []
    for line in read_text(context_file, "a text").lines():
        if line.error is not None:
            raise UserError(line.error)
        lines.append(line.text)
    if not any(text.strip() for text in lines):
        raise UserError(f"{context_file or STDIN}: expected a text with the answer, got none")
    assert question is not None, "one of both is given"
    return [Question("", question, "\n".join(lines))]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _json_lines(
    questions: "Sequence[Question]",
    answers: "Iterable[Sequence[Answer]]",
) -> Iterator[str]:
    for question, own in zip(questions, answers, strict=True):
        for answer in own:
            fields: dict[str, Any] = {"id": question.id, "question": question.question}
            values = answer._asdict()
            values["score"] = round(answer.score, 4)
            values["probability"] = round(answer.probability, 4)
            yield json_line(fields | {"answer": values.pop("text")} | values)


def _print_scores(
    questions: "Sequence[Question]",
    answers: "Sequence[Sequence[Answer]]",
) -> None:
    """Prints exact match and F1 of the questions whose answers are known."""
    from jaxformer.evaluation.answer_scores import answer_scores

    predicted = []
    expected = []
    for question, own in zip(questions, answers, strict=True):
        if question.answers is not None:
            predicted.append(own[0].text)
            expected.append(question.answer_texts())
    if not predicted:
        return

    scores = answer_scores(predicted, expected)
    print(
        f"exact match {scores.exact_match:.2f}, F1 {scores.f1:.2f}, {len(predicted):,} questions",
        file=sys.stderr,
    )
