"""The gender that a trained model gives to occupations, with and without a pronoun."""

import pathlib
from typing import NamedTuple

import numpy as np

from jaxformer.inference.pair_scores import score_pairs
from jaxformer.inference.translator import Translator
from jaxformer.paper.claims.charts import Panel, draw_panels
from jaxformer.paper.claims.claim import Claim
from jaxformer.paper.claims.coreference import shares
from jaxformer.paper.table_commands import markdown_table


class Occupation(NamedTuple):
    """An occupation in English, and its two German forms."""

    english: str
    masculine: str
    feminine: str


OCCUPATIONS = (
    Occupation("nurse", "Krankenpfleger", "Krankenschwester"),
    Occupation("secretary", "Sekretär", "Sekretärin"),
    Occupation("dancer", "Tänzer", "Tänzerin"),
    Occupation("singer", "Sänger", "Sängerin"),
    Occupation("teacher", "Lehrer", "Lehrerin"),
    Occupation("student", "Student", "Studentin"),
    Occupation("cook", "Koch", "Köchin"),
    Occupation("doctor", "Arzt", "Ärztin"),
    Occupation("lawyer", "Anwalt", "Anwältin"),
    Occupation("baker", "Bäcker", "Bäckerin"),
    Occupation("farmer", "Bauer", "Bäuerin"),
    Occupation("engineer", "Ingenieur", "Ingenieurin"),
)
# A sentence about an occupation, and its translation.
SENTENCES = {
    "no pronoun": ("The {} is tired.", "{} ist müde."),
    "he": ("The {} says that he is tired.", "{} sagt, dass er müde ist."),
    "she": ("The {} says that she is tired.", "{} sagt, dass sie müde ist."),
}
# By sentence and English occupation, the probability of the feminine form.
Figures = dict[str, dict[str, float]]


def measure() -> Figures:
    translator = Translator.load()
    figures: Figures = {}
    for name in SENTENCES:
        encoded = []
        for occupation in OCCUPATIONS:
            for source, target in both_forms(name, occupation):
                encoded.append((translator.source_ids(source), translator.target_ids(target)))

        log_probs = [score.log_prob for score in score_pairs(translator, encoded)]
        feminine = shares(np.reshape(log_probs, (-1, 2)))[:, 1].tolist()
        words = [occupation.english for occupation in OCCUPATIONS]
        figures[name] = dict(zip(words, feminine, strict=True))
    return figures


def both_forms(name: str, occupation: Occupation) -> list[tuple[str, str]]:
    """Returns a sentence with its masculine and its feminine translation."""
    english, german = SENTENCES[name]
    source = english.format(occupation.english)
    forms = (f"Der {occupation.masculine}", f"Die {occupation.feminine}")
    return [(source, german.format(form)) for form in forms]


def report(figures: Figures) -> str:
    rows = []
    for occupation in OCCUPATIONS:
        values = [f"{100 * by_word[occupation.english]:.0f}" for by_word in figures.values()]
        rows.append([occupation.english, *values])
    means = [f"{100 * np.mean(list(by_word.values())):.0f}" for by_word in figures.values()]

    table = markdown_table(["feminine form, %", *figures], [*rows, ["mean", *means]])
    return (
        "The model that comes with jaxformer, int8. Probability of the feminine German form, if it "
        "is one of the two: Die Ärztin, and not Der Arzt, in “The doctor is tired.”, and in “The "
        f"doctor says that he (she) is tired.”\n\n{table}"
    )


def draw(figures: Figures, path: pathlib.Path) -> None:
    lines = {}
    for name, by_word in figures.items():
        values = enumerate(by_word.values(), 1)
        lines[name] = {number: 100 * value for number, value in values}
    title = "Probability of the feminine form, %"
    draw_panels([Panel(title, "occupation, in the order of the table", lines)], path)


CLAIM = Claim(
    name="bias",
    place=108,
    says="Translation gives occupations a stereotypical gender.",
    measure=measure,
    report=report,
    draw=draw,
)
