"""Zero-shot accuracy of a run of configs/glyphs.py on pairs of letter and accent that are new.

    python benchmarks/glyphs.py --workdir runs/glyphs --output glyphs.png

Names each held-out glyph by the most similar of the held-out names, and of all names. Prints a
table with chance, and one JSON line; draws some glyphs with their best names.
"""

import argparse
import json
import pathlib

import numpy as np
from machine import machine

from jaxformer import ImageTextMatcher
from jaxformer.data.glyphs import font_files
from jaxformer.data.image_texts import read_image_texts
from jaxformer.plots import figure

_ROWS = 4
_COLUMNS = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", required=True, type=pathlib.Path)
    parser.add_argument("--weights", default="latest")
    parser.add_argument("--output", type=pathlib.Path, help="image to write, .png or .svg")
    options = parser.parse_args()
    matcher = ImageTextMatcher.load(options.workdir, weights=options.weights)

    images, names = read_image_texts("glyphs", "test")
    _, all_names = read_image_texts("glyphs", "all")
    vectors = matcher.image_embeddings(images)
    held_out = [*dict.fromkeys(names)]

    rows = {}
    for title, candidates in (("held-out", held_out), ("all", [*dict.fromkeys(all_names)])):
        found = best_names(matcher, vectors, candidates)
        rows[title] = {
            "names": len(candidates),
            "accuracy": 100 * float(np.mean(np.array(found) == names)),
            "chance": 100 / len(candidates),
            "letter": 100 * share_of_letters(found, names),
        }

    print("| among | names | accuracy, % | chance, % | right letter, % |\n|---|--:|--:|--:|--:|")
    for title, row in rows.items():
        print(
            f"| {title} | {row['names']} | {row['accuracy']:.1f} | {row['chance']:.2f} | "
            f"{row['letter']:.1f} |"
        )
    print(json.dumps({"weights": matcher.weights, "rows": rows, "machine": machine()}))

    if options.output is not None:
        draw(images, names, best_names(matcher, vectors, held_out), options.output)


def best_names(
    matcher: ImageTextMatcher,
    vectors: np.ndarray,
    candidates: list[str],
) -> list[str]:
    """Returns the most similar candidate of each picture."""
    similarity = vectors @ matcher.text_embeddings(candidates).T
    return [candidates[number] for number in similarity.argmax(axis=1)]


def share_of_letters(found: list[str], names: list[str]) -> float:
    """Returns the fraction of the names with the right letter, whatever the accent."""
    are_right = []
    for ours, own in zip(found, names, strict=True):
        are_right.append(ours.partition(" WITH ")[0] == own.partition(" WITH ")[0])
    return float(np.mean(are_right))


def draw(images: np.ndarray, names: list[str], found: list[str], path: pathlib.Path) -> None:
    """Draws glyphs, each of another name and font, with their best names; wrong ones stand out."""
    fonts = len(font_files())
    rng = np.random.default_rng(0)
    letters = rng.permutation(len(names) // fonts)[: _ROWS * _COLUMNS]
    chosen = letters * fonts + rng.integers(0, fonts, len(letters))

    with figure.open_figure(path, 7.2, 5.4) as page:
        axes = page.subplots(_ROWS, _COLUMNS).ravel()
        for place, number in zip(axes, chosen, strict=True):
            is_right = found[number] == names[number]
            letter, _, accent = found[number].removeprefix("LATIN ").partition(" WITH ")
            title = f"{letter.replace(' LETTER', '')}\nwith {accent}".lower()
            color = figure.GRAY if is_right else figure.ORANGE
            place.imshow(images[number, ..., 0], cmap="gray_r")
            place.set_title(title, color=color, loc="center")
            place.axis("off")


if __name__ == "__main__":
    main()
