"""Measures a translation model on text as people type it: capitals, numbers, symbols, long lines.

    python benchmarks/robustness.py --source data/tatoeba-en-de/valid.en \
        --reference data/tatoeba-en-de/valid.de [--workdir runs/robust]

The lines are made from the sentences of a file that the model was not trained on. BLEU is
sacreBLEU's; of capitals it is in lower case. A number, symbol or word of another script is kept if
the translation has it; a thousands separator may be another one. Prints one JSON line.
"""

import argparse
import itertools
import json
import pathlib
import random
import re

from machine import machine
from sacrebleu.metrics.bleu import BLEU

from jaxformer import BeamSearch, Translator
from jaxformer.data.text_files import read_file

NUMBERS = (
    "Tom has {} books.",
    "There are {} people in this room.",
    "I paid {} dollars for it.",
    "My number is {}.",
    "She was born in {}.",
    "We sold {} cars last year.",
    "Look at page {}.",
    "Is {} a large number?",
    "The river is {} meters long.",
    "They found {} stones, and nobody knows why.",
)
WORDS = ("😊", "🐈", "🌍", "✈", "☎", "♫", "☂", "東京", "Москва", "Ελλάδα", "שלום", "नमस्ते")
MARKUP = ("<b>", "{name}", "%d", "https://a.example/b", "user@mail.example")
SYMBOLS = WORDS + MARKUP


def lines_of(sources: list[str], references: list[str]) -> dict[str, list[tuple[str, str]]]:
    """Returns sources with their references, or with what is to be kept, by kind."""
    draw = random.Random(0)
    pairs = list(zip(sources, references, strict=True))
    numbers = [str(draw.randrange(10**digits, 10 ** (digits + 1))) for digits in range(1, 6)] * 200
    fives = [zip(*pairs[start : start + 5], strict=True) for start in range(0, len(pairs), 5)]
    symbols = []
    for source, symbol in zip(sources, itertools.cycle(SYMBOLS), strict=False):
        place = draw.choice([r"([.!?]?)$", r"^()", r"(?<=\w)() "])  # the end, the start, a space
        symbols.append((re.sub(place, rf" {symbol}\1 ", source, count=1).strip(), symbol))
    return {
        "unchanged": pairs,
        "capitals": [(source.upper(), reference.upper()) for source, reference in pairs],
        "without a final mark": [(s.rstrip(".!?"), r.rstrip(".!?")) for s, r in pairs],
        "five sentences": [(" ".join(s), " ".join(r)) for s, r in fives],
        "numbers": [
            (t.format(n), n) for t, n in zip(itertools.cycle(NUMBERS), numbers, strict=False)
        ],
        "symbols": symbols[:1000],
    }


def keeps(translation: str, kept: str) -> bool:
    return kept in translation or kept in re.sub(r"(?<=\d)[.,\s](?=\d{3})", "", translation)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", required=True, type=pathlib.Path)
    parser.add_argument("--reference", required=True, type=pathlib.Path)
    parser.add_argument("--workdir", default="pretrained")
    parser.add_argument("--beam-size", type=int, default=4)
    options = parser.parse_args()
    translator = Translator.load(options.workdir, search=BeamSearch(beam_size=options.beam_size))
    kinds = lines_of(list(read_file(options.source)), list(read_file(options.reference)))
    results = {}
    for kind, pairs in kinds.items():
        sources, wanted = map(list, zip(*pairs, strict=True))
        translations = translator.translate(sources)
        if kind in ("numbers", "symbols"):
            results[kind] = 100 * sum(map(keeps, translations, wanted)) / len(wanted)
        else:
            bleu = BLEU(lowercase=kind == "capitals")
            results[kind] = bleu.corpus_score(translations, [wanted]).score
        results[kind] = round(results[kind], 1)
    print(json.dumps({"workdir": options.workdir, **results, "machine": machine()}))


if __name__ == "__main__":
    main()
