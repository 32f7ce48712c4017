"""BLEU of translation models by the length of the source, as a table.

    python benchmarks/bleu_by_length.py valid.en valid.de runs/recurrent runs/transformer

A row is a model, and a column the sentences with so many words of the source.
"""

import argparse
import math
import pathlib
from collections.abc import Sequence

from jaxformer import Translator
from jaxformer.config import DataConfig, data_section
from jaxformer.evaluation.bleu_report import corpus_bleu

# The largest numbers of words of each column but the last.
LONGEST = (4, 6, 8, 12)


def column_of(words: int) -> int:
    """Returns the column of a sentence."""
    return sum(words > longest for longest in LONGEST)


def titles() -> list[str]:
    first = 1
    names = []
    for longest in LONGEST:
        names.append(f"{first} to {longest}")
        first = longest + 1
    return [*names, f"{first} or more", "all"]


def scores(
    translations: Sequence[str],
    references: Sequence[str],
    columns: Sequence[int],
    language: str,
) -> list[float]:
    """Returns BLEU of each column, NaN of one without sentences, and of all sentences."""
    rows = list(zip(columns, translations, references, strict=True))
    found = []
    for column in [*range(len(LONGEST) + 1), None]:
        chosen = [row for row in rows if column in (None, row[0])]
        ours = [translation for _, translation, _ in chosen]
        theirs = [reference for _, _, reference in chosen]
        found.append(corpus_bleu(ours, theirs, target_language=language) if ours else math.nan)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Score models by the length of the source.")
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("reference", type=pathlib.Path)
    parser.add_argument("workdirs", nargs="+")
    options = parser.parse_args()

    sources = options.source.read_text(encoding="utf-8").rstrip("\n").split("\n")
    references = options.reference.read_text(encoding="utf-8").rstrip("\n").split("\n")
    columns = [column_of(len(source.split())) for source in sources]
    counts = [columns.count(column) for column in range(len(LONGEST) + 1)]

    print(f"| words | {' | '.join(titles())} |")
    print(f"|---|{'--:|' * len(titles())}")
    print(f"| sentences | {' | '.join(map(str, [*counts, len(columns)]))} |")
    for workdir in options.workdirs:
        translator = Translator.load(workdir)
        language = data_section(translator.config, DataConfig).target_language
        translations = translator.translate(sources)
        found = scores(translations, references, columns, language)
        print(f"| {workdir} | {' | '.join(f'{score:.1f}' for score in found)} |", flush=True)


if __name__ == "__main__":
    main()
