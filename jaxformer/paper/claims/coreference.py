"""Pronouns of a trained model, which must agree with a noun that is near or far."""

import itertools
import pathlib

import numpy as np
from jaxtyping import Float

from jaxformer.inference.pair_scores import score_pairs
from jaxformer.inference.translator import Translator
from jaxformer.paper.claims.charts import Panel, draw_panels
from jaxformer.paper.claims.claim import Claim
from jaxformer.paper.table_commands import markdown_table

# By German pronoun, the article that agrees with it, and nouns.
NOUNS = {
    "er": (
        "Der",
        "table Tisch, chair Stuhl, key Schlüssel, hat Hut, coat Mantel, suitcase Koffer, "
        "computer Computer, garden Garten",
    ),
    "sie": (
        "Die",
        "lamp Lampe, watch Uhr, bag Tasche, door Tür, bridge Brücke, camera Kamera, "
        "kitchen Küche, jacket Jacke",
    ),
    "es": (
        "Das",
        "book Buch, house Haus, car Auto, bicycle Fahrrad, shirt Hemd, window Fenster, "
        "room Zimmer, boat Boot",
    ),
}
# By the number of words between noun and pronoun in German, what stands between them.
MIDDLES = {
    3: ("is good", "ist gut"),
    10: (
        "is still very good today, as you can see,",
        "ist heute noch sehr gut, wie du sehen kannst",
    ),
    16: (
        "is still very good today, as you can see when you come to us tomorrow,",
        "ist heute noch sehr gut, wie du sehen kannst, wenn du morgen zu uns kommst",
    ),
}
# By distance and right pronoun, the probability of each pronoun for each noun.
Figures = dict[tuple[int, str], Float[np.ndarray, "nouns pronouns"]]


def measure() -> Figures:
    translator = Translator.load()
    figures = {}
    for distance, (gender, (article, nouns)) in itertools.product(MIDDLES, NOUNS.items()):
        pairs = []
        for noun in nouns.split(", "):
            pairs += sentences(distance, article, *noun.split())

        encoded = []
        for source, target in pairs:
            encoded.append((translator.source_ids(source), translator.target_ids(target)))
        log_probs = [score.log_prob for score in score_pairs(translator, encoded)]
        figures[distance, gender] = shares(np.reshape(log_probs, (-1, len(NOUNS))))
    return figures


def sentences(distance: int, article: str, english: str, german: str) -> list[tuple[str, str]]:
    """Returns a sentence with a translation for each pronoun."""
    english_middle, german_middle = MIDDLES[distance]
    source = f"The {english} {english_middle} because it is new."
    beginning = f"{article} {german} {german_middle}"
    return [(source, f"{beginning}, weil {pronoun} neu ist.") for pronoun in NOUNS]


def shares(log_probs: Float[np.ndarray, "N K"]) -> Float[np.ndarray, "N K"]:
    """Returns the probability of each of K texts, if it is one of them."""
    relative = np.exp(log_probs - log_probs.max(axis=1, keepdims=True))
    return relative / relative.sum(axis=1, keepdims=True)


def rights(figures: Figures) -> dict[str, dict[int, float]]:
    """Returns how many pronouns of 100 are right, by right pronoun and distance."""
    found: dict[str, dict[int, float]] = {pronoun: {} for pronoun in NOUNS}
    for (distance, pronoun), probabilities in figures.items():
        chosen = probabilities.argmax(axis=1)
        found[pronoun][distance] = 100 * float(np.mean(chosen == list(NOUNS).index(pronoun)))
    return found


def report(figures: Figures) -> str:
    header = ["right pronouns, %", *(f"{distance} words between" for distance in MIDDLES)]
    rows = []
    for pronoun, by_distance in rights(figures).items():
        rows.append([f"{pronoun} is right", *(f"{by_distance[each]:.0f}" for each in MIDDLES)])

    means = []
    for name, by_distance in mean_probabilities(figures).items():
        means.append([name, *(f"{value:.1f}" for value in by_distance.values())])

    number = sum(len(nouns.split(", ")) for _, nouns in NOUNS.values())
    tables = [
        markdown_table(header, rows),
        markdown_table(["mean probability, %", *header[1:]], means),
    ]
    return (
        f"The model that comes with jaxformer, int8. {number} nouns: the most probable of er, sie "
        "and es in a given translation, as in “The lamp is good because it is new.”, “Die Lampe "
        "ist gut, weil sie neu ist.” Guessing gives 33.\n\n" + "\n".join(tables)
    )


def mean_probabilities(figures: Figures) -> dict[str, dict[int, float]]:
    """Returns the mean probability of each pronoun, in %, where it is right and where it is not."""
    means: dict[str, dict[int, float]] = {}
    for (index, pronoun), distance in itertools.product(enumerate(NOUNS), MIDDLES):
        where_right = []
        where_wrong = []
        for needed in NOUNS:
            values = 100 * figures[distance, needed][:, index]
            if needed == pronoun:
                where_right.append(values.mean())
            else:
                where_wrong.append(values.mean())

        means.setdefault(f"{pronoun}, where it is right", {})[distance] = np.mean(where_right)
        means.setdefault(f"{pronoun}, where it is wrong", {})[distance] = np.mean(where_wrong)
    return means


def draw(figures: Figures, path: pathlib.Path) -> None:
    lines = {}
    for name, values in mean_probabilities(figures).items():
        if not name.startswith("es"):
            lines[name] = values
    title = "Mean probability, %"
    draw_panels([Panel(title, "words between noun and pronoun", lines)], path)


CLAIM = Claim(
    name="coreference",
    place=105,
    says="Attention finds the noun of a pronoun, however far it is.",
    measure=measure,
    report=report,
    draw=draw,
)
