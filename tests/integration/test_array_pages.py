"""The programs of docs/text_classifier.md and docs/small_vit.md, as short as they promise."""

import jax
import numpy as np
import pytest

import jaxformer
from jaxformer import MeshConfig, make_mesh

from . import pages

pytestmark = pytest.mark.ci
LOGITS = np.array([[2.0, -1.0], [-3.0, 1.0], [9.0, 9.0]], np.float32)
KINDS = [("bad", "awful"), ("good", "fine")]
LABELS = np.array([[1, 1], [0, 1], [0, 0]])


def run(page, folder, patch):
    """Runs the blocks of a page, on two devices."""
    devices = jax.devices()[:2]
    patch.setattr(jax, "devices", lambda: devices)
    patch.chdir(folder)
    return pages.execute(page)


def lines(page):
    """Returns the lines of the page's first block, without imports and blank lines."""
    first_section = next(iter(pages.sections(page).values()))
    program = first_section[0].splitlines()
    return [line for line in program if line and not line.startswith(("import ", "from "))]


def reviews(count):
    """Lines of words; the label depends on one word."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefghijklmno"), 5)) for _ in range(600)]
    for number in range(count):
        label, word = KINDS[number % 2]
        text = rng.choice(words, 8)
        text[rng.integers(8)] = word
        yield f"{label}\t{' '.join(text)}\n"


def test_the_text_classifier_learns(tmp_path, monkeypatch, capsys):
    (tmp_path / "reviews.tsv").write_text("".join(reviews(1500)))
    names = run("text_classifier.md", tmp_path, monkeypatch)
    assert capsys.readouterr().out == "good\n"
    assert len(lines("text_classifier.md")) <= 35

    task = names["Reviews"]()
    valid = names["valid"]
    params = jaxformer.load_params("runs/reviews", task)
    logits = names["TextClassifier"]().apply({"params": params}, valid["tokens"])  # [B, classes]
    accuracy = (logits.argmax(axis=1) == valid["labels"]).mean()
    assert accuracy > 0.95
    for devices in (1, 8):  # 500 rows in batches of 256: the last one is padded
        mesh = make_mesh(MeshConfig(), jax.local_devices()[:devices])
        found = task.evaluate(jax.device_put(params), mesh, lambda: None)
        assert found["accuracy"] == pytest.approx(accuracy)

    # The loss of a logit is log(1 + exp(-logit)) for a true label, log(1 + exp(logit)) for another.
    real = np.array([True, True, False])
    sums = names["multi_label_loss"](LOGITS, LABELS, real)
    signed = np.where(LABELS[real] == 1, -LOGITS[real], LOGITS[real])
    losses = np.log1p(np.exp(signed))
    assert sums["loss"] == pytest.approx(losses.sum())
    assert sums["count"] == 2

    # F1 is 2 * correct / (found + true): two correct labels, of two found and three true ones.
    numerator, denominator = sums["f1"]
    assert numerator / denominator == pytest.approx(2 * 2 / (2 + 3))


def test_the_small_vit_learns(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    names = run("small_vit.md", tmp_path, monkeypatch)
    assert len(lines("small_vit.md")) <= 25
    values = names["Digits"]().evaluate(names["state"].params, make_mesh(), lambda: None)
    assert values["accuracy"] > 0.93
