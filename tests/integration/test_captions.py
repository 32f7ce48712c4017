"""Writers of captions: training, resumed and on meshes, the command, int8, attention."""

import numpy as np
import pytest

from jaxformer import (
    BeamSearch,
    Captioner,
    CaptionsConfig,
    Config,
    TrainingConfig,
    VisionEncoderDecoderConfig,
    load_config,
    quantize,
    train,
)
from jaxformer.cli import main
from jaxformer.data.image_texts import read_image_texts
from jaxformer.errors import UserError

from ..runs import changed, reports
from .equal_runs import check_other_mesh, check_resumed

PLACES = ["first", "second", "third", "fourth"]


def bars(seed, count):
    """Bars on noise, and texts with their directions and places."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 90, (count, 6, 8))
    texts = []
    for image in images:
        is_row = rng.random() < 0.5
        place = rng.integers(4)
        lines = image if is_row else image.T
        lines[1 + place] += 150
        texts.append(f"the {PLACES[place]} {'row' if is_row else 'column'}")
    return {"images": images.astype(np.uint8), "texts": texts}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bars")
    np.savez(folder / "train.npz", **bars(0, 200))
    np.savez(folder / "valid.npz", **bars(1, 30))
    return Config(
        model=VisionEncoderDecoderConfig(
            height=6,
            width=8,
            channels=1,
            patch_size=2,
            encoder_d_model=24,
            encoder_d_ff=32,
            encoder_num_heads=2,
            encoder_num_layers=1,
            vocab_size=290,
            d_model=16,
            d_ff=32,
            num_heads=2,
            num_layers=1,
            max_length=12,
        ),
        data=CaptionsConfig(
            train=f"{folder}/train.npz",
            valid=f"{folder}/valid.npz",
            rows=24,
            shift=0.2,
        ),
        training=TrainingConfig(
            steps=240,
            warmup_steps=10,
            learning_rate=1e-2,
            schedule="constant",
            label_smoothing=0.0,
            log_every=20,
            eval_every=240,
            checkpoint_every=120,
        ),
        search=BeamSearch(beam_size=2),
    )


@pytest.fixture(scope="module")
def run(config, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("writer") / "run"
    train(config, workdir)
    return workdir


def test_the_command_writes_what_it_has_learned(run, config, tmp_path, capsys):
    validated = reports(run)[-1]
    assert validated["exact_match"] > 90
    assert "bleu" not in validated  # No text has four words.

    attention = tmp_path / "a.png"
    words = ["caption", "--workdir", str(run), "--images", config.data.valid]
    assert main([*words, "--attention", str(attention), "--beam-size", "2"]) == 0

    out, err = capsys.readouterr()
    texts = bars(1, 30)["texts"]
    matches = sum(map(str.__eq__, out.splitlines(), texts))
    assert matches == round(0.3 * validated["exact_match"])
    assert f"exact {matches / 30:.2%}, {matches} of 30" in err
    assert attention.read_bytes().startswith(b"\x89PNG")


def test_int8_ensembles_and_batches_give_the_same_texts(run, tmp_path):
    images = bars(1, 30)["images"][..., None]
    writer = Captioner.load(run)
    expected = writer.caption(images)
    assert expected == [writer.caption(image[None])[0] for image in images[:3]] + expected[3:]
    assert writer.ensemble_with(writer).caption(images) == expected

    quantize(run, tmp_path / "int8")
    texts = Captioner.load(tmp_path / "int8").caption(images)
    assert sum(map(str.__eq__, texts, expected)) >= 28


def test_attention_is_the_weights_of_each_token(run):
    images = bars(1, 3)["images"][..., None]
    writer = Captioner.load(run)
    tokens = [n_best[0].tokens for n_best in writer.hypotheses(images, n_best=1)]
    for own, weights in zip(tokens, writer.attention(images, tokens), strict=True):
        assert weights.shape == (1, 2, len(own), 3, 4)  # L, H, T, and the grid
        assert (weights.sum(axis=(-1, -2)) < 1).all()  # The rest is the class token's.
        assert (weights > 0).all()


def test_it_resumes_exactly_and_is_the_same_on_other_meshes(run, config, tmp_path):
    check_resumed(config, run, tmp_path, cut=140)

    training = {"steps": 20, "eval_every": 20, "checkpoint_every": 20, "eval_sentences": 0}
    check_other_mesh(changed(config, training=training), run, tmp_path)


def test_mistakes_are_explained(run, config, tmp_path):
    writer = Captioner.load(run)
    with pytest.raises(UserError, match=r"expected pictures, uint8 \[N, 6, 8, 1\], got float64"):
        writer.caption(np.zeros((1, 6, 8, 1)))

    short = changed(config, model={"max_length": 3})
    with pytest.raises(UserError, match=r"train\.npz: expected texts of at most 2 tokens"):
        train(short, tmp_path / "short")


@pytest.mark.parametrize("option", ["examples", "gates"])
def test_options_of_language_models_are_refused(option, run, config, tmp_path, capsys):
    words = ["caption", "--workdir", str(run), "--images", config.data.valid]
    assert main([*words, f"--{option}", str(tmp_path / "file.png")]) == 2

    message = f"--{option}: a writer of captions has none; leave it out"
    assert message in capsys.readouterr().err

    images = read_image_texts("files", config.data.valid)
    with pytest.raises(UserError, match="expected no examples, which only a language model reads"):
        Captioner.load(run).caption(images.images, examples=images)


@pytest.mark.nightly
def test_numbers_that_training_never_saw_are_read(tmp_path):
    """The figures of ``configs/read_numbers.py``."""
    train(load_config("read_numbers"), tmp_path / "run")
    assert reports(tmp_path / "run")[-1]["exact_match"] >= 90


def test_held_out_numbers_are_in_no_training_picture():
    held_out = read_image_texts("handwritten_numbers", "test")
    training = read_image_texts("handwritten_numbers", "train")
    assert len(set(held_out.texts)) == 100
    assert len(set(training.texts)) == 900
    assert not set(held_out.texts) & set(training.texts)
    assert held_out.images.shape == (100, 8, 24, 1)

    # Pictures of digits differ, too.
    digits_of = [images.reshape(-1, 8, 3, 8).swapaxes(1, 2) for images, _ in (held_out, training)]
    seen, trained = [{digit.tobytes() for digit in each.reshape(-1, 64)} for each in digits_of]
    assert len(seen & trained) <= 1
    with pytest.raises(UserError, match="handwritten_numbers has the splits train and test: got"):
        read_image_texts("handwritten_numbers", "valid")
