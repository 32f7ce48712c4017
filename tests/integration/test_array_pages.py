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
    sections = pages.sections(page)
    first_section = next(iter(sections.values()))
    program = first_section[0].splitlines()
    imports = ("import ", "from ")
    return [line for line in program if line and not line.startswith(imports)]


def reviews(count):
    """Lines of words; the label depends on one word."""
    rng = np.random.default_rng(0)
    letters = list("abcdefghijklmno")
    words = ["".join(rng.choice(letters, 5)) for _ in range(600)]
    for number in range(count):
        label, word = KINDS[number % 2]
        chosen = rng.choice(words, 8)
        place = rng.integers(8)
        chosen[place] = word
        text = " ".join(chosen)
        yield f"{label}\t{text}\n"


def test_the_text_classifier_learns(tmp_path, monkeypatch, capsys):
    corpus = "".join(reviews(1500))
    (tmp_path / "reviews.tsv").write_text(corpus)
    names = run("text_classifier.md", tmp_path, monkeypatch)
    assert capsys.readouterr().out == "good\n"
    assert len(lines("text_classifier.md")) <= 35

    task = names["Reviews"]()
    valid = names["valid"]
    params = jaxformer.load_params("runs/reviews", task)
    model = names["TextClassifier"]()
    logits = model.apply({"params": params}, valid["tokens"])  # [B, classes]
    correct = logits.argmax(axis=1) == valid["labels"]
    accuracy = correct.mean()
    assert accuracy > 0.95

    # 500 rows in batches of 256: the last one is padded.
    for count in (1, 8):
        devices = jax.local_devices()[:count]
        mesh = make_mesh(MeshConfig(), devices)
        found = task.evaluate(jax.device_put(params), mesh, lambda: None)
        assert found["accuracy"] == pytest.approx(accuracy)

    # The loss of a logit is log(1 + exp(-logit)) for a true label, log(1 + exp(logit)) for another.
    real = np.array([True, True, False])
    sums = names["multi_label_loss"](LOGITS, LABELS, real)
    is_true = LABELS[real] == 1
    logits = LOGITS[real]
    signed = np.where(is_true, -logits, logits)
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

    task = names["Digits"]()
    params = names["state"].params
    values = task.evaluate(params, make_mesh(), lambda: None)
    assert values["accuracy"] > 0.93
