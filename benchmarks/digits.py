"""Test accuracy of configs/digits.py with several seeds, beside two classifiers of scikit-learn.

    python benchmarks/digits.py --seeds 5
    python benchmarks/digits.py --variant writers --seeds 5

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
from jaxformer.data.images import read_images

CONFIG = pathlib.Path(__file__).parents[1] / "configs" / "digits.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variant", default="")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workdir", type=pathlib.Path, help="folder that keeps the runs")
    options = parser.parse_args()
    values = runpy.run_path(str(CONFIG))["get_config"](options.variant).to_dict()
    config = Config.from_dict(values)
    folder = options.workdir or pathlib.Path(tempfile.mkdtemp())

    fitted = read_images(config.data, config.data.train)
    test = read_images(config.data, config.data.valid)
    features = fitted.images.reshape(len(fitted.labels), -1)
    unseen = test.images.reshape(len(test.labels), -1)

    rows = {}
    peers = {
        "SVC, gamma=0.001": SVC(gamma=0.001),
        "SVC, gamma=0.001, C=10": SVC(gamma=0.001, C=10),
        "1 nearest neighbor": KNeighborsClassifier(1),
    }
    for name, peer in peers.items():
        start = time.process_time()
        peer.fit(features * (16 / 255), fitted.labels)
        found = peer.predict(unseen * (16 / 255))
        rows[name] = score(found, test.labels, start)

    for seed in range(options.seeds):
        start = time.process_time()
        training = dataclasses.replace(config.training, seed=seed)
        run = folder / f"{options.variant or 'digits'}{seed}"
        train(dataclasses.replace(config, training=training), run)
        found = ImageClassifier.load(run).probabilities(test.images).argmax(axis=1)
        rows[f"ViT, seed {seed}"] = score(found, test.labels, start)
    print("| classifier | test accuracy, % | errors | CPU seconds |\n|---|--:|--:|--:|")
    for name, row in rows.items():
        print(f"| {name} | {row['accuracy']:.2f} | {row['errors']} | {row['seconds']:.0f} |")
    ours = [row["accuracy"] for name, row in rows.items() if name.startswith("ViT")]
    print(f"| ViT, median | {statistics.median(ours):.2f} | | |")
    print(json.dumps({"variant": options.variant, "rows": rows, "machine": machine()}))


def score(found: np.ndarray, labels: np.ndarray, start: float) -> dict[str, float]:
    errors = int((found != labels).sum())
    accuracy = 100 * (1 - errors / len(labels))
    return {"accuracy": accuracy, "errors": errors, "seconds": time.process_time() - start}


if __name__ == "__main__":
    main()
