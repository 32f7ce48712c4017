"""JAX's switch for debugging, ``jax.disable_jit()``: the same outputs, slowly."""

import functools
import pathlib
import tempfile

import jax
import numpy as np
import pytest

from jaxformer import Generator, Translator, record_attention, record_text, score_pairs
from jaxformer.config import Config, DataConfig, ModelConfig, StreamConfig, TrainingConfig
from jaxformer.experiment import train
from jaxformer.inference.alignment import word_attention
from jaxformer.inference.text_scores import score_texts
from jaxformer.interop.huggingface.importer import import_huggingface
from jaxformer.search import BeamSearch, Sampling
from jaxformer.tasks.classification.text_classifier import Classifier
from jaxformer.tasks.images.image_classifier import ImageClassifier

from ..profiles import by_profile
from ..runs import reports

pytest.importorskip("tokenizers")

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"
SIZES = {"d_model": 8, "d_ff": 8, "num_heads": 2, "num_layers": 1, "dropout_rate": 0.1}
STEPS = TrainingConfig(
    steps=2,
    warmup_steps=1,
    log_every=1,
    checkpoint_every=2,
    eval_every=2,
    eval_sentences=2,
)
GREEDY = BeamSearch(beam_size=1, max_length=2)


@functools.cache
def imported(folder, name):
    run = pathlib.Path(tempfile.mkdtemp()) / "run"
    import_huggingface(FIXTURES / folder / name, run, ())
    return run


def same(found, expected):
    close = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4)
    jax.tree.map(close, found, expected)


def translations(workdir, **options):
    translator = Translator.load(workdir, **options)
    [hypotheses] = translator.hypotheses(["two"])
    return [[each.tokens, each.score] for each in hypotheses]


def attention_and_scores(workdir):
    translator = Translator.load(workdir, search=GREEDY)
    ids = translator.source_ids("two")

    weights = word_attention(translator, ["two"], [("two", ids)])
    cross = record_attention(translator, "two").cross
    return score_pairs(translator, [(ids, ids)]), weights, cross


def texts_of_gpt2():
    for search in by_profile([Sampling()], nightly=[Sampling(), BeamSearch(beam_size=2)]):
        generator = Generator.load(imported("huggingface", "gpt2"), search=search)
        yield list(generator.stream("the", max_tokens=2))


def scores_of_gpt2():
    workdir = imported("huggingface", "gpt2")
    generator = Generator.load(workdir)
    scores = score_texts(generator, [generator.text_ids("the old", "text")])
    view = record_text(workdir, "the old house")
    return scores, view.decoder


def labels_of_bert():
    classifier = Classifier.load(imported("bert", "classifier"))
    return [found.probability for found in classifier.classify(["a dog", "the"])]


def probabilities_of_vit():
    classifier = ImageClassifier.load(imported("huggingface", "vit"))
    shape = (1, *classifier.model.image_shape)
    values = np.arange(np.prod(shape)) % 255
    pixels = values.reshape(shape).astype(np.uint8)
    return classifier.probabilities(pixels)


@pytest.mark.ci
@pytest.mark.parametrize("dtype", by_profile(["float32"], nightly=["float32", "int8"]))
def test_translations(learned_workdir, dtype):
    call = functools.partial(translations, learned_workdir, search=GREEDY, compute_dtype=dtype)

    expected = call()
    with jax.disable_jit():
        same(call(), expected)


@pytest.mark.ci
def test_generated_texts():
    expected = list(texts_of_gpt2())
    with jax.disable_jit():
        assert list(texts_of_gpt2()) == expected


CALLS = [scores_of_gpt2, labels_of_bert, probabilities_of_vit]


@pytest.mark.ci
@pytest.mark.parametrize("call", by_profile(CALLS[1:], nightly=CALLS))
def test_scores_and_classes(call):
    expected = call()
    with jax.disable_jit():
        same(call(), expected)


@pytest.mark.nightly
def test_attention_and_scores_of_translations(learned_workdir):
    expected = attention_and_scores(learned_workdir)
    with jax.disable_jit():
        same(attention_and_scores(learned_workdir), expected)


def translation():
    data = DataConfig(
        corpus="numerals",
        train="train",
        valid="held_out",
        max_length=16,
        batching="packing",
        tokens_per_batch=64,
    )
    model = ModelConfig(vocab_size=300, max_length=16, **SIZES)
    return Config(model=model, data=data, training=STEPS, search=GREEDY)


def language_model(folder):
    (folder / "text").write_text("abcdefghij\n" * 20)
    data = StreamConfig(file=str(folder / "text"), length=8, rows=2)
    model = ModelConfig(vocab_size=15, max_length=16, **SIZES)
    return Config(model=model, data=data, training=STEPS)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["translation", "language model"])
def test_training_with_validation(kind, tmp_path):
    config = translation() if kind == "translation" else language_model(tmp_path)

    train(config, tmp_path / "jitted")
    with jax.disable_jit():
        train(config, tmp_path / "run")

    expected = reports(tmp_path / "jitted", "valid")[-1]
    found = reports(tmp_path / "run", "valid")[-1]
    assert found.keys() == expected.keys()
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-3)
