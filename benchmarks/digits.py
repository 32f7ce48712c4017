"""Test accuracy of configs/digits.py with several seeds, beside two classifiers of scikit-learn.

    python benchmarks/digits.py --seeds 5
    python benchmarks/digits.py --variant writers --seeds 5
    python benchmarks/digits.py --variant swin --seeds 5

All train on the same pictures and are tested on the same others. Prints a table, and one JSON line.
"""

import argparse
import dataclasses
import json
import pathlib
import runpy
import statistics
import tempfile
import time

import numpy as np
from machine import machine
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC

from jaxformer import Config, ImageClassifier, train
from jaxformer.data.images import Images, read_images

CONFIG = pathlib.Path(__file__).parents[1] / "configs" / "digits.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variant", default="")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workdir", type=pathlib.Path, help="folder that keeps the runs")
    options = parser.parse_args()
    module = runpy.run_path(str(CONFIG))
    values = module["get_config"](options.variant).to_dict()
    config = Config.from_dict(values)
    folder = options.workdir or pathlib.Path(tempfile.mkdtemp())

    fitted = read_images(config.data, config.data.train)
    test = read_images(config.data, config.data.valid)
    rows = peer_scores(fitted, test)
    network = config.kind.network_of(config.model).__name__
    ours = {}
    for seed in range(options.seeds):
        run = folder / f"{options.variant or 'digits'}{seed}"
        ours[f"{network}, seed {seed}"] = our_score(config, seed, run, test)
    rows |= ours

    print("| classifier | test accuracy, % | errors | CPU seconds |\n|---|--:|--:|--:|")
    for name, row in rows.items():
        print(f"| {name} | {row['accuracy']:.2f} | {row['errors']} | {row['seconds']:.0f} |")
    accuracies = [row["accuracy"] for row in ours.values()]
    print(f"| {network}, median | {statistics.median(accuracies):.2f} | | |")
    print(json.dumps({"variant": options.variant, "rows": rows, "machine": machine()}))


def peer_scores(fitted: Images, test: Images) -> dict[str, dict[str, float]]:
    """Returns the scores of the classifiers of scikit-learn."""
    features = pixels(fitted)
    unseen = pixels(test)
    peers = {
        "SVC, gamma=0.001": SVC(gamma=0.001),
        "SVC, gamma=0.001, C=10": SVC(gamma=0.001, C=10),
        "1 nearest neighbor": KNeighborsClassifier(1),
    }

    rows = {}
    for name, peer in peers.items():
        start = time.process_time()
        peer.fit(features, fitted.labels)
        found = peer.predict(unseen)
        rows[name] = score(found, test.labels, start)
    return rows


def pixels(data: Images) -> np.ndarray:
    """Returns a row of pixels for each picture, from 0 to 16 as in scikit-learn."""
    rows = data.images.reshape(len(data.labels), -1)
    return rows * (16 / 255)


def our_score(config: Config, seed: int, run: pathlib.Path, test: Images) -> dict[str, float]:
    """Trains a model with a seed; returns its score."""
    start = time.process_time()
    training = dataclasses.replace(config.training, seed=seed)
    train(dataclasses.replace(config, training=training), run)

    classifier = ImageClassifier.load(run)
    probabilities = classifier.probabilities(test.images)
    return score(probabilities.argmax(axis=1), test.labels, start)


def score(found: np.ndarray, labels: np.ndarray, start: float) -> dict[str, float]:
    errors = int((found != labels).sum())
    accuracy = 100 * (1 - errors / len(labels))
    return {
        "accuracy": accuracy,
        "errors": errors,
        "seconds": time.process_time() - start,
    }


if __name__ == "__main__":
    main()
