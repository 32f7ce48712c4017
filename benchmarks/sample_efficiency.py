"""Test accuracy of models of configs/digits.py with parts of the training digits: ConViT's claim.

    python benchmarks/sample_efficiency.py --output docs/sample_efficiency.png
    python benchmarks/sample_efficiency.py --save samples.json
    python benchmarks/sample_efficiency.py --draw samples.json --output samples.png

ConViT (d'Ascoli et al. 2021) begins as a convolutional network, and should need fewer examples than
a ViT of the same size. Each model trains with the same settings for the same number of steps, on
the first part of the training digits, and is tested on the same others. Prints a table with the
median, the lowest and the highest of the seeds, and one JSON line.
"""

import argparse
import dataclasses
import json
import pathlib
import runpy
import statistics
import tempfile
from typing import Any

from machine import machine

from jaxformer import Config, ImageClassifier, ImagesConfig, train
from jaxformer.config import data_section
from jaxformer.data.images import read_images
from jaxformer.plots import figure

CONFIG = pathlib.Path(__file__).parents[1] / "configs" / "digits.py"
MODELS = {"ViT": "", "ConViT": "convit", "CNN": "cnn"}
STYLES = {
    "ViT": (figure.BLUE, "o"),
    "ConViT": (figure.ORANGE, "s"),
    "CNN": (figure.GREEN, "D"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--percents", type=int, nargs="+", default=[10, 30, 100])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--output", type=pathlib.Path, help="picture to write, .png or .svg")
    parser.add_argument("--save", type=pathlib.Path, help="file for the JSON line")
    parser.add_argument("--draw", type=pathlib.Path, help="draw a JSON line instead of training")
    options = parser.parse_args()

    if options.draw is not None:
        found = json.loads(options.draw.read_text())
    else:
        found = measure(options.percents, options.seeds, options.steps)
        if options.save is not None:
            options.save.write_text(json.dumps(found) + "\n")

    print_table(found["accuracies"])
    print(json.dumps(found))
    if options.output is not None:
        draw(found["accuracies"], options.output)


def measure(percents: list[int], seeds: int, steps: int) -> dict[str, Any]:
    """Returns the accuracies in percent, by model and by percent of the training digits."""
    folder = pathlib.Path(tempfile.mkdtemp())
    get_config = runpy.run_path(str(CONFIG))["get_config"]
    accuracies: dict[str, dict[str, list[float]]] = {}
    for name, variant in MODELS.items():
        whole = Config.from_dict(get_config(variant).to_dict())
        for percent in percents:
            config = with_part(whole, percent, steps)
            runs = [folder / f"{name}{percent}-{seed}" for seed in range(seeds)]
            scores = [accuracy(config, seed, run) for seed, run in enumerate(runs)]
            accuracies.setdefault(name, {})[str(percent)] = scores
            print(name, percent, scores, flush=True)
    return {"accuracies": accuracies, "steps": steps, "machine": machine()}


def with_part(config: Config, percent: int, steps: int) -> Config:
    """Returns a config with the first part of the training digits."""
    own = data_section(config, ImagesConfig)
    data = dataclasses.replace(own, train=f"train[:{percent}%]")
    training = dataclasses.replace(
        config.training,
        steps=steps,
        log_every=steps,
        eval_every=steps,
        checkpoint_every=steps,
    )
    return dataclasses.replace(config, data=data, training=training)


def accuracy(config: Config, seed: int, run: pathlib.Path) -> float:
    """Returns the accuracy on the test digits, in percent."""
    training = dataclasses.replace(config.training, seed=seed)
    train(dataclasses.replace(config, training=training), run)

    data = data_section(config, ImagesConfig)
    test = read_images(data, data.valid)
    found = ImageClassifier.load(run).probabilities(test.images).argmax(axis=1)
    return 100 * float((found == test.labels).mean())


def print_table(accuracies: dict[str, dict[str, list[float]]]) -> None:
    percents = list(next(iter(accuracies.values())))
    print(f"| model | {' | '.join(f'{percent} %' for percent in percents)} |")
    print(f"|---|{'--:|' * len(percents)}")
    for name, rows in accuracies.items():
        cells = []
        for scores in rows.values():
            median = statistics.median(scores)
            cells.append(f"{median:.2f} ({min(scores):.2f} to {max(scores):.2f})")
        print(f"| {name} | {' | '.join(cells)} |")


def draw(accuracies: dict[str, dict[str, list[float]]], path: pathlib.Path) -> None:
    """Draws the errors of each model: the median, and from the lowest to the highest seed."""
    with figure.open_figure(path, 4.6, 3.2) as page:
        axes = page.subplots()
        for name, rows in accuracies.items():
            color, marker = STYLES[name]
            percents = [int(percent) for percent in rows]
            errors = [[100 - score for score in scores] for scores in rows.values()]
            medians = [statistics.median(each) for each in errors]
            axes.plot(percents, medians, marker + "-", color=color, label=name, ms=4)
            lowest = [min(each) for each in errors]
            highest = [max(each) for each in errors]
            axes.vlines(percents, lowest, highest, color=color, alpha=0.5)

        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(percents, [f"{percent} %" for percent in percents])
        axes.set_yticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"])
        axes.minorticks_off()
        axes.set_xlabel("training digits")
        axes.set_title("Errors on the test digits, %")
        axes.grid(visible=True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="upper right")


if __name__ == "__main__":
    main()
