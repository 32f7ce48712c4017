"""A language model that learns to read pictures: frozen, resumed, on meshes, and described."""

import shutil

import jax
import numpy as np
import pytest

from jaxformer import Config, StreamConfig, TrainingConfig, load_config, load_model, train
from jaxformer.cli import main
from jaxformer.data.image_texts import ImageTexts, read_image_texts
from jaxformer.data.interleaved import InterleavedConfig
from jaxformer.data.number_files import number_text
from jaxformer.errors import UserError
from jaxformer.inference.conversions import quantize
from jaxformer.models.flamingo import FlamingoConfig
from jaxformer.models.llama import LlamaConfig
from jaxformer.search import BeamSearch
from jaxformer.tasks.interleaved.picture_reader import PictureReader

from ..runs import changed
from . import pages
from .equal_runs import check_other_mesh, check_resumed

WORDS = ["a dark one", "a light one"]
SIZES = {"vocab_size": 19, "d_model": 16, "d_ff": 16, "num_heads": 2, "num_layers": 2}
FROZEN = ("embedding", "output_embedding")
STEPS = {"warmup_steps": 2, "checkpoint_every": 20, "log_every": 20, "keep_checkpoints": 2}
SHORT = BeamSearch(beam_size=2, max_length=15)
MARK = 6  # "#", after four special tokens, a line break and a space


def pictures(seed, count):
    """Returns dark and light pictures with noise."""
    rng = np.random.default_rng(seed)
    is_light = rng.integers(2, size=count)
    noise = rng.integers(60, size=(count, 4, 4, 1))
    images = noise + 150 * is_light[:, None, None, None]
    return {"images": images.astype(np.uint8), "texts": np.array(WORDS)[is_light]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns a folder with the data, and a trained language model."""
    folder = tmp_path_factory.mktemp("pictures")
    np.savez(folder / "train.npz", **pictures(0, 64))
    np.savez(folder / "valid.npz", **pictures(1, 10))
    lines = [f"#{text}\n%%\n" for text in WORDS * 60]
    (folder / "text.txt").write_text("".join(lines))

    config = Config(
        model=LlamaConfig(**SIZES, max_length=80),
        data=StreamConfig(file=str(folder / "text.txt"), separator="%%", length=60, rows=8),
        training=TrainingConfig(
            steps=160, learning_rate=1e-2, label_smoothing=0.0, eval_every=160, **STEPS
        ),
        search=BeamSearch(beam_size=2),
    )
    train(config, folder / "text")
    return folder


@pytest.fixture(scope="module")
def config(folder):
    return Config(
        model=FlamingoConfig(
            **SIZES,
            max_length=80,
            picture_token=MARK,
            gated_every=1,
            height=4,
            width=4,
            channels=1,
            pixel_mean="0.5",
            pixel_std="0.5",
            patch_size=2,
            vision_d_model=16,
            vision_d_ff=16,
            vision_num_heads=2,
            vision_num_layers=1,
            num_latents=2,
            resampler_d_ff=16,
            resampler_num_heads=2,
            resampler_num_layers=1,
            resampler_d_k=8,
        ),
        data=InterleavedConfig(
            train=str(folder / "train.npz"),
            valid=str(folder / "valid.npz"),
            pictures=2,
            length=30,
            rows=6,
            shift=0.5,
        ),
        training=TrainingConfig(
            init_from=str(folder / "text"),
            freeze="embedding,output_embedding,decoder/layers,decoder/norm",
            steps=60,
            learning_rate=2e-2,
            label_smoothing=0.0,
            eval_every=60,
            **STEPS,
        ),
        search=BeamSearch(beam_size=2),
    )


@pytest.fixture(scope="module")
def run(folder, config):
    train(config, folder / "run")
    return folder / "run"


def test_only_what_reads_pictures_is_trained(folder, run):
    _, before = load_model(folder / "text")
    _, after = load_model(run)
    for name in FROZEN:
        np.testing.assert_array_equal(after[name], before[name])
    for name in ("layers", "norm"):
        jax.tree.map(np.testing.assert_array_equal, after["decoder"][name], before["decoder"][name])
    for gate in ("attention_gate", "feed_forward_gate"):
        assert np.abs(after["decoder"]["gated"][gate]).min() > 0


def test_it_resumes_exactly_and_is_the_same_on_one_device(run, config, tmp_path):
    check_resumed(config, run, tmp_path, cut=30)

    short = {"steps": 20, "eval_every": 20}
    check_other_mesh(changed(config, training=short), run, tmp_path)


def test_pictures_are_described_with_examples_and_without(run, tmp_path):
    data = pictures(3, 12)
    texts = data["texts"].tolist()
    reader = PictureReader.load(run, search=SHORT)

    assert reader.caption(data["images"]) == texts
    alone = reader.hypotheses(data["images"], n_best=1)

    shown = pictures(4, 1)
    examples = ImageTexts(shown["images"], shown["texts"].tolist())
    after = reader.hypotheses(data["images"], examples=examples, n_best=1)
    assert [best.text for [best] in after] == texts
    # The whole pass gives the same log probabilities.
    model, params = load_model(run)
    prompt = []
    for text in examples.texts:
        prompt += [MARK, *reader.tokenizer.encode(text + "\n"), 1]
    tokens = np.array([[*prompt, MARK, *after[0][0].tokens]])
    images = np.concatenate([shown["images"], data["images"][:1]])[None]
    pixels = np.asarray(model.config.scale_pixels(images))
    logits = jax.jit(model.apply)({"params": params}, pixels, tokens[:, :-1])
    log_probs = np.asarray(jax.nn.log_softmax(logits))[0]
    own = np.arange(len(prompt), tokens.shape[1] - 1)
    assert after[0][0].log_prob == pytest.approx(log_probs[own, tokens[0, own + 1]].sum(), abs=1e-3)

    # A wrong text in the examples has no effect on the parameters, but on the probabilities.
    assert after[0][0].log_prob != alone[0][0].log_prob

    quantize(run, tmp_path / "int8")
    rounded = PictureReader.load(tmp_path / "int8", search=SHORT)
    assert rounded.caption(data["images"]) == texts


def test_the_command_prints_texts_and_draws_gates(run, folder, tmp_path, capsys):
    np.savez(tmp_path / "examples.npz", **pictures(4, 1))
    arguments = ["--images", folder / "valid.npz", "--examples", tmp_path / "examples.npz"]
    options = ["--gates", tmp_path / "gates.png", "--max-length", 15]
    main(["caption", "--workdir", str(run), *map(str, [*arguments, *options])])

    printed = capsys.readouterr()
    assert printed.out.splitlines() == pictures(1, 10)["texts"].tolist()
    assert "exact 100.00%, 10 of 10" in printed.err
    assert (tmp_path / "gates.png").read_bytes().startswith(b"\x89PNG")

    words = ["caption", "--workdir", str(run), "--images", str(folder / "valid.npz")]
    assert main([*words, "--attention", str(tmp_path / "a.png")]) == 2
    refused = "--attention: a language model that reads pictures has none; leave it out"
    assert refused in capsys.readouterr().err


def test_the_page_runs_as_printed(run, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, "runs/flamingo")
    shutil.copy(folder / "valid.npz", "runs/test.npz")

    pages.execute("pictures_and_text.md", "Flamingo")

    texts = [line.rpartition(" ")[0] for line in capsys.readouterr().out.splitlines()]
    assert texts == pictures(1, 10)["texts"][:3].tolist()


def test_mistakes_are_named(run, folder, config, tmp_path):
    def check(message, **sections):
        with pytest.raises(UserError, match=message):
            train(changed(config, **sections), tmp_path / "refused")

    check("data.length must be at least 28, the tokens of 2 pictures", data={"length": 27})
    check(r"model.height, model.width and model.channels must be", model={"height": 8})
    check("model.picture_token must be the id of a token of texts", model={"picture_token": 2})
    check("give --config.model.d_ff=16", model={"d_ff": 8})
    check("needs model.|must be|expected", model={"window": 3})
    check("data.train: expected pictures with texts, got none", data={"train": ""})

    reader = PictureReader.load(run)
    images = pictures(3, 2)["images"]
    with pytest.raises(UserError, match=r"expected pictures, uint8 \[N, 4, 4, 1\], got float32"):
        reader.caption(images.astype(np.float32))
    examples = ImageTexts(np.repeat(images[:1], 6, axis=0), WORDS * 3)
    with pytest.raises(UserError, match="examples of 82 tokens: the model reads 80"):
        reader.caption(images, examples=examples)


@pytest.mark.nightly
def test_a_frozen_language_model_learns_to_read_numbers(tmp_path):
    """The figures of ``configs/flamingo.py``, with a margin of five of the 100 numbers."""
    training = read_image_texts("handwritten_numbers", "train")
    numbers = tmp_path / "numbers.txt"
    numbers.write_text(number_text(training.texts))

    text = changed(load_config("flamingo:text"), data={"file": str(numbers)})
    train(text, tmp_path / "text")
    begins = {"init_from": str(tmp_path / "text")}
    train(changed(load_config("flamingo"), training=begins), tmp_path / "run")

    images, texts = read_image_texts("handwritten_numbers", "test")
    found = PictureReader.load(tmp_path / "run").caption(images)
    assert np.mean(np.array(found) == texts) >= 0.88
