"""The command ``tag``: tags the words of lines, or scores a model on tagged ones."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from jaxformer.cli.command import Command
from jaxformer.cli.options import Checkpoint, File, InputFile, ModelDir, OutputFile, Strict
from jaxformer.cli.outputs import check_outputs
from jaxformer.cli.text import Line, blocks_of, json_line, progress_bar, read_text
from jaxformer.data.characters import replace_controls
from jaxformer.errors import UserError
from jaxformer.files import STDIN, STDOUT

if TYPE_CHECKING:
    from jaxformer.data.tagged import TaggedSentence
    from jaxformer.tasks.tagging.tagger import TaggedWord, Tagger


def tag(
    *,
    workdir: ModelDir,
    input: InputFile | None = None,
    output: OutputFile | None = None,
    entities: bool = False,
    strict: Strict = False,
    labeled: File | None = None,
    weights: Checkpoint = "auto",
) -> None:
    """Print the words of each line of text with their tags, such as names of people and places.

    Text: Each word is a line of output, with a tab and its tag, and a blank line ends each text. A
    line that is too long or not UTF-8 has no words.
      input: texts, one per line (default: standard input)
      output: file for the words (default: standard output)
      entities: print a line of JSON for each text instead: a list of its entities, with type,
        probability, and first and last character

    Scores:
      labeled: print precision, recall and F1 of entities, and the accuracy of tags, on this file,
        which has a word and its tag on each line, and a blank line between sentences

    Example:
      echo "Ada Lovelace lived in London." | jaxformer tag --workdir runs/conll --entities

      jaxformer tag --workdir runs/conll --labeled test.txt
    """
    from jaxformer.tasks.tagging.tagger import Tagger

    if labeled is not None:
        given = {"--input": input, "--output": output, "--entities": entities, "--strict": strict}
        for name, value in given.items():
            if value:
                raise UserError(f"--labeled prints scores of all sentences: leave {name} out")
        _score(Tagger.load(workdir, weights=weights), labeled)
        return

    check_outputs([input or STDIN], {"--output": output or STDOUT})
    tagger = Tagger.load(workdir, weights=weights)
    text = read_text(input, "a text")

    def check(line: Line) -> None:
        tagger.align(line.text, f"{text.name}:{line.number}")

    with blocks_of(text, check, output, strict=strict) as (blocks, write, report):
        for block in blocks:
            found = tagger.tag([line.text for line in block], report=report)
            for line, words in zip(block, found, strict=True):
                write([_entities(line.text, words)] if entities else _rows(words))


COMMAND = Command("tag", tag, place=104)


def _rows(words: "Iterable[TaggedWord]") -> Iterator[str]:
    for word in words:
        yield f"{replace_controls(word.word)}\t{replace_controls(word.tag)}"
    yield ""


def _entities(text: str, words: "list[TaggedWord]") -> str:
    from jaxformer.tasks.tagging.tagger import join_entities

    rows = []
    for entity in join_entities(text, words):
        probability = round(entity.probability, 4)
        rounded = entity._replace(probability=probability)
        rows.append(rounded._asdict())
    return json_line(rows)


def _score(tagger: "Tagger", path: File) -> None:
    from jaxformer.data.tagged import read_tagged
    from jaxformer.evaluation.entity_scores import entity_scores

    sentences = list(read_tagged(path))
    if not sentences:
        raise UserError(f"{path}: expected sentences, got none")
    _check_tags(sentences, tagger.labels)

    words_of_sentences = [sentence.words for sentence in sentences]
    with progress_bar(len(sentences)) as bar:
        found = tagger.tag_words(words_of_sentences, report=bar.update)

    found_tags = []
    for words in found:
        tags = [word.tag for word in words]
        found_tags.append(tags)
    expected_tags = [sentence.tags for sentence in sentences]
    scores = entity_scores(found_tags, expected_tags)
    print(
        f"precision {scores.precision:.2f}  recall {scores.recall:.2f}  F1 {scores.f1:.2f}  "
        f"accuracy {scores.accuracy:.2f}"
    )


def _check_tags(sentences: "Iterable[TaggedSentence]", known: Sequence[str]) -> None:
    """Refuses entities of types that the model does not have, which no prediction could match."""
    from jaxformer.evaluation.entity_scores import OUTSIDE, type_of_tag

    types = {type_of_tag(tag) for tag in [*known, OUTSIDE]}
    for sentence in sentences:
        for tag in sentence.tags:
            if type_of_tag(tag) not in types:
                raise UserError(
                    f"{sentence.place}: expected tags of the model, {', '.join(known[:9])}, got "
                    f"{tag!r:.50} in this sentence; give a file with these tags"
                )
