"""Runs that begin with the parameters and the tokenizer of another model."""

import dataclasses
import pathlib
import shutil

import jax
import numpy as np
import optax
import pytest

from jaxformer import (
    Checkpoints,
    MeshConfig,
    StreamConfig,
    Translator,
    UserError,
    load_model,
    pretrained,
    score_pairs,
    train,
)
from jaxformer.config import load_run, save
from jaxformer.data.marian_tokenizer import load_tokenizer
from jaxformer.data.numerals import NumeralsCorpus
from jaxformer.data.stream import CharacterTokenizer
from jaxformer.data.tokenizer import BOS, EOS, PAD, UNK, train_tokenizer
from jaxformer.experiment import make_task
from jaxformer.inference.quantization import quantize
from jaxformer.inference.weights import average
from jaxformer.interop.marian import import_marian
from jaxformer.models.selection import describe_model
from jaxformer.tasks.initialization import Entry, initialization, listed, matching_ids, merge
from jaxformer.training.optimizer import path_of
from jaxformer.training.run_directory import check_workdir
from jaxformer.workdir import Workdir

from ..profiles import by_profile
from .test_user_corpus import CONFIG as COUNTING
from .test_user_corpus import Counting

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"


def changed(config, **sections):
    """Returns a config with some fields of its sections changed."""
    return dataclasses.replace(
        config,
        **{
            name: dataclasses.replace(getattr(config, name), **fields)
            for name, fields in sections.items()
        },
    )


def plain_loss(workdir, pairs):
    """Returns the mean negative log likelihood of pairs of texts, scored by the model alone."""
    translator = Translator.load(workdir)
    ids = [(translator.source_ids(src), translator.target_ids(tgt)) for src, tgt in pairs]
    scores = score_pairs(translator, ids)
    return -sum(s.log_prob for s in scores) / sum(s.length for s in scores)


def interrupt(number):
    """Returns a hook that ends a run after a step."""

    def hook(step, state, sums):
        if step == number:
            raise KeyboardInterrupt

    return hook


def first_loss(config, workdir):
    """Trains; returns the loss before the first update, the first batch's pairs, and the state."""
    sums = []
    state = train(config, workdir, hooks=[lambda step, state, each: sums.append(each)])
    ids = make_task(config, Workdir(workdir)).example_ids(0)
    return float(sums[0]["loss"] / sums[0]["count"]), ids, state


@pytest.mark.ci
def test_the_first_loss_is_the_loss_of_the_model(learned_workdir, tmp_path, capsys):
    config = changed(
        load_run(Workdir(learned_workdir)),
        model={"dropout_rate": 0.0},
        training={"steps": 1, "label_smoothing": 0.0, "eval_sentences": 0, "warmup_steps": 9},
    )
    config = changed(config, training={"init_from": str(learned_workdir)})
    found, ids, _ = first_loss(config, tmp_path)
    pairs = list(NumeralsCorpus().pairs("train"))
    expected = plain_loss(learned_workdir, [pairs[i - 1] for i in ids])
    assert 0 < expected < 0.1  # a fresh model has about ln 300
    assert found == pytest.approx(expected, abs=1e-4)
    log = capsys.readouterr().err.splitlines()
    start = log.index(f"starts from {learned_workdir}, step 1200, with its tokenizer:")
    assert log[start + 1 : start + 4] == [
        "  taken     decoder: 12,576 parameters in 18 arrays, such as "
        "decoder/layers/cross_attention/key [1, 32, 4, 8]",
        "  taken     embedding [300, 32]",
        "  taken     encoder: 8,416 parameters in 12 arrays, such as "
        "encoder/layers/feed_forward/inner [1, 32, 64]",
    ]
    own, theirs = (Workdir(folder).tokenizer for folder in (tmp_path, learned_workdir))
    assert own.read_bytes() == theirs.read_bytes()


PAIRS = {
    "pretrained": [
        ("Where is the station?", "Wo ist der Bahnhof?"),
        ("Good night.", "Gute Nacht."),
    ],
    "imported": [("the cat sat", "die Katze"), ("a dog", "ein Hund"), ("the dog", "der Hund")],
}


@pytest.mark.ci
@pytest.mark.parametrize("name", by_profile(["pretrained"], nightly=list(PAIRS)))
def test_a_converted_model_is_trained_further(name, tmp_path, capsys):
    """An import's bias of -inf on two tokens becomes finite, lest steps be skipped."""
    source, init_from = pretrained.WORKDIR, name
    if name == "imported":
        import_marian(FIXTURES / "marian" / "swish_tied", source := tmp_path / name)
        init_from = str(source)
    pairs = PAIRS[name] * 8
    for side, language in enumerate(("en", "de")):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (tmp_path / f"pairs.{language}").write_text(text, encoding="utf-8")
    languages = {"source_language": "en", "target_language": "de"}
    sizes = {"batching": "packing", "tokens_per_batch": 256, "max_length": 32}
    config = changed(
        load_run(Workdir(source)),
        model={"dropout_rate": 0.0, "compute_dtype": "float32"},
        data={"corpus": "text", **dict.fromkeys(("train", "valid"), f"{tmp_path}/pairs")},
        training={"init_from": init_from, "steps": 2, "warmup_steps": 1, "eval_sentences": 0},
    )
    training = {"label_smoothing": 0.0, "learning_rate": 1e-3}
    config = changed(config, data={**languages, **sizes}, training=training)
    found, ids, state = first_loss(config, tmp_path / "run")
    expected = plain_loss(source, [pairs[i - 1] for i in ids])
    # The pretrained model's own decoding also quantizes activations.
    assert found == pytest.approx(expected, rel=0.05 if name == "pretrained" else 1e-4)
    assert int(state.skipped) == 0
    if name == "pretrained":
        assert 0 < expected < 0.5  # a fresh model has about ln 6,000
        assert "step 0, converted from int8, with its tokenizer:" in capsys.readouterr().err
    else:
        special = np.array([PAD, BOS])
        assert np.isneginf(load_model(source)[1]["logits_bias"][special]).all()
        assert (state.params["logits_bias"][special] < -99).all()


@pytest.mark.nightly
def test_resumes_exactly_without_the_first_workdir(tiny_config, tiny_workdir, tmp_path):
    source = shutil.copytree(tiny_workdir, tmp_path / "source")
    options = {"init_from": str(source), "freeze": "encoder, embedding", "warmup_steps": 2}
    config = tiny_config(**options, optimizer="adamw", weight_decay=0.1, schedule="cosine")
    whole = train(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "stopped", hooks=[interrupt(3)])
    source.rename(tmp_path / "gone")
    resumed = train(config, tmp_path / "stopped")
    jax.tree.map(np.testing.assert_array_equal, resumed, whole)
    without = tiny_config(**options | {"init_from": None})
    with pytest.raises(UserError, match=r"with training.init_from='.*source', but None"):
        train(without, tmp_path / "whole")


@pytest.mark.nightly
def test_a_run_that_begins_again_takes_the_same_parameters(tiny_config, tiny_workdir, tmp_path):
    """After an end before the first checkpoint, while the first workdir was trained further."""
    source = shutil.copytree(tiny_workdir, tmp_path / "source")
    config = tiny_config(init_from=str(source), warmup_steps=2)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", hooks=[interrupt(1)])
    assert not (tmp_path / "run" / "committed.json").exists()
    source.rename(tmp_path / "kept")
    train(tiny_config(), source)
    average(Workdir(source), 2)  # other parameters than before
    with pytest.raises(UserError, match="expected the parameters that the run began with, but it"):
        train(config, tmp_path / "run")
    shutil.rmtree(source)
    (tmp_path / "kept").rename(source)
    resumed, whole = train(config, tmp_path / "run"), train(config, tmp_path / "whole")
    jax.tree.map(np.testing.assert_array_equal, resumed, whole)


@pytest.mark.ci
def test_frozen_parameters_keep_their_bits_on_a_mesh(tiny_config, tiny_workdir, tmp_path):
    """With an optimizer of the user's own, whose state is factored."""
    config = tiny_config(init_from=str(tiny_workdir), freeze="encoder,embedding", eval_sentences=0)
    config = dataclasses.replace(config, mesh=MeshConfig(data=2, fsdp=2, tensor=2))
    optimizer = optax.adafactor(0.01, min_dim_size_to_factor=8)
    state = jax.device_get(train(config, tmp_path, optimizer=optimizer))
    assert int(state.skipped) == 0
    after = dict(jax.tree.leaves_with_path(state.params))
    for path, leaf in jax.tree.leaves_with_path(load_model(tiny_workdir)[1]):
        frozen = path[0].key in ("encoder", "embedding")
        assert (np.asarray(leaf).tobytes() == after[path].tobytes()) == frozen, path_of(path)
    paths = {path_of(path) for path, _ in jax.tree.leaves_with_path(state.opt_state)}
    assert any("decoder" in path for path in paths)
    assert not any("encoder/" in path or "embedding" in path for path in paths)


def test_rows_of_another_vocabulary_are_matched_by_piece():
    """Every saved row holds its own number, so that rows are identified."""
    old, new = (train_tokenizer([text] * 3, 275) for text in ("to be or not to be", "not a bear"))
    saved = {"embedding": np.repeat(np.arange(275.0, dtype=np.float32)[:, None], 2, 1)}
    merged, entries = merge(
        {"embedding": np.full((275, 2), -1, np.float32)}, saved, matching_ids(new, old)
    )
    old_ids = {old.piece(i): i for i in range(275)}
    expected = [old_ids.get(new.piece(i), -1) for i in range(275)]
    assert merged["embedding"][:, 0].tolist() == expected
    missing = expected.count(-1)
    assert 0 < missing < 15  # most pieces are bytes, which both have
    assert expected[:4] == [PAD, EOS, BOS, UNK]
    counts = {"taken": 275 - missing, "new": missing, "left out": missing}
    assert [entry[:3] for entry in entries] == [
        (kind, "embedding", (count, 2)) for kind, count in counts.items()
    ]


def test_parameters_of_one_model_only_are_new_or_left_out():
    """A bias of -inf is the only value that changes; positions are taken to the shorter length."""
    saved = {"logits_bias": np.array([-np.inf, -200, 3], np.float32), "old": {"b": np.ones(2)}}
    fresh = {"logits_bias": np.zeros(3, np.float32), "encoder": {"bias": np.full((2, 2), 5.0)}}
    ids = np.tile(np.arange(3), (2, 1))
    merged, entries = merge(fresh, saved, ids)
    assert merged["logits_bias"].tolist() == [-100, -200, 3]
    np.testing.assert_array_equal(merged["encoder"]["bias"], fresh["encoder"]["bias"])
    assert entries == [
        ("new", "encoder/bias", (2, 2), ""),
        ("taken", "logits_bias", (3,), ""),
        ("left out", "old/b", (2,), ""),
    ]
    short, long = (np.full((length, 2), length, np.float32) for length in (3, 5))
    for fresh, saved, rest in ((short, long, "left out"), (long, short, "new")):
        merged, entries = merge({"src_positions": fresh}, {"src_positions": saved}, ids)
        expected = np.concatenate([saved[:3], fresh[3:]])
        np.testing.assert_array_equal(merged["src_positions"], expected)
        assert [(e.kind, e.shape) for e in entries] == [("taken", (3, 2)), (rest, (2, 2))]


def test_the_list_has_a_line_for_each_kind_and_group():
    entries = [
        Entry("new", "encoder/a", (2, 3)),
        Entry("taken", "encoder/b", (4,)),
        Entry("new", "encoder/c", (5,)),
        Entry("left out", "bias", (7,), "rows of old pieces"),
    ]
    assert listed(entries) == [
        "  taken     encoder/b [4]",
        "  new       encoder: 11 parameters in 2 arrays, such as encoder/a [2, 3]",
        "  left out  bias [7]: rows of old pieces",
    ]


@pytest.mark.ci
def test_language_models_keep_the_rows_of_characters(tmp_path):
    texts = ["to be or not to be, that is the question. " * 9, "a bee sat on the oak. " * 9]
    vocabularies, runs = [CharacterTokenizer(sorted(set(text))) for text in texts], []
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_text(text)
        model = {"vocab_size": len(set(text)) + 4, "max_length": 64, "dropout_rate": 0.0}
        training = {"init_from": str(tmp_path / "run0") if number else None, "seed": number}
        config = dataclasses.replace(
            changed(COUNTING, model=model, training=training),
            data=StreamConfig(file=f"{tmp_path}/{number}.txt", length=16, rows=8, tokenizer="new"),
        )
        config = changed(config, training={"steps": 1, "learning_rate": 1e-9})
        train(config, tmp_path / f"run{number}")
        runs.append(jax.device_get(load_model(tmp_path / f"run{number}")[1]["embedding"]))
    common = sorted(set(texts[0]) & set(texts[1]))
    rows = [[v.encode(c)[0] for c in common] for v in vocabularies]
    np.testing.assert_allclose(runs[1][rows[1]], runs[0][rows[0]], atol=1e-6)
    (k,) = vocabularies[1].encode("k")
    assert "k" not in common
    assert np.abs(runs[0] - runs[1][k]).max(-1).min() > 0.1


@pytest.mark.ci
def test_mixed_runs_resume_exactly_and_keep_their_weights(tmp_path):
    config = changed(COUNTING, data={"train": "even:3,odd:1"}, training={"steps": 5})
    whole = train(config, tmp_path / "whole", corpus=Counting())
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "stopped", corpus=Counting(), hooks=[interrupt(3)])
    other = changed(config, data={"train": "even:2,odd:1"})
    with pytest.raises(UserError, match="other data: weights was 3 1, now 2 1"):
        train(other, tmp_path / "stopped", corpus=Counting())
    resumed = train(config, tmp_path / "stopped", corpus=Counting())
    jax.tree.map(np.testing.assert_array_equal, resumed, whole)


MISTAKES = [
    (
        {"model": {"activation": "gelu", "num_heads": 4}},
        "its model has other layers than the config; give --config.model.num_heads=2 "
        "--config.model.d_k=8 --config.model.d_v=8 --config.model.activation=relu$",
    ),
    (
        {"model": {"vocab_size": 310}},
        "model.vocab_size must be 300, the size of .*/tokenizer.model: got 310; give "
        "--config.model.vocab_size=300, or --config.data.tokenizer=new",
    ),
    (
        {"training": {"freeze": "encoder,embeding"}},
        "training.freeze: no parameter is called 'embeding'; give names separated by commas "
        "out of decoder, layers, cross_attention, ",
    ),
    ({"training": {"freeze": "encoder,decoder,embedding"}}, "freezes all parameters"),
    (
        {"training": {"init_from": "nowhere"}},
        "training.init_from=nowhere: expected a workdir, or 'pretrained' for the model that "
        "comes with jaxformer, but there is no nowhere/config.json; give the folder of a run",
    ),
    ({"training": {"init_from": "Pretrained"}}, "did you mean pretrained?"),
    ({"data": {"tokenizer": "no.model"}}, "data.tokenizer=no.model: no.model: cannot be read"),
]


@pytest.mark.parametrize(("sections", "message"), MISTAKES, ids=str)
def test_mistakes_are_named_before_anything_is_written(
    sections, message, tiny_config, tiny_workdir, tmp_path
):
    config = changed(tiny_config(init_from=str(tiny_workdir)), **sections)
    with pytest.raises(UserError, match=message):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_models_of_another_kind_are_refused(tiny_config, tiny_workdir, tmp_path):
    config = dataclasses.replace(
        tiny_config(init_from=str(tiny_workdir)), data=StreamConfig(file="any", length=8)
    )
    with pytest.raises(UserError, match="expected a LanguageModel, got a Transformer"):
        train(config, tmp_path / "run")


def test_what_only_a_new_run_reads_may_move(tiny_config, tmp_path):
    folder = Workdir(tmp_path)
    began = changed(tiny_config(init_from="../first"), data={"tokenizer": "old.model"})
    save(began, folder.config)
    folder.checkpoints.mkdir()
    check_workdir(folder, changed(tiny_config(init_from="elsewhere"), data={"tokenizer": "b"}))
    with pytest.raises(UserError, match=r"training.init_from='../first', but None was given"):
        check_workdir(folder, changed(tiny_config(), data={"tokenizer": "b"}))
    with pytest.raises(UserError, match=r"data.tokenizer='old.model', but None was given"):
        check_workdir(folder, tiny_config(init_from="../first"))


def test_a_run_starts_from_a_quantized_model(tiny_config, tiny_workdir, tmp_path, capsys):
    quantize(tiny_workdir, tmp_path / "int8")
    config = tiny_config(init_from=str(tmp_path / "int8"))
    model, original = load_model(tiny_workdir)
    original = jax.device_get(original)
    fresh = jax.tree.map(np.zeros_like, original)
    tokenizer = load_tokenizer(tiny_workdir / "tokenizer.model")
    start = initialization(config, tokenizer, Workdir(tmp_path))
    facts = describe_model(model.config, type(model))

    def compare(begun, exact, info):
        axis = info.summed_axis
        # Rounded to 127 steps of each output's largest weight.
        bound = 0 if axis is None else np.abs(exact).max(axis, keepdims=True) / 254 * 1.0001
        assert begun.dtype == np.float32
        assert (np.abs(begun - exact) <= bound).all()

    jax.tree.map(compare, jax.device_get(start(fresh)), original, facts)
    assert "converted from int8, with its tokenizer:" in capsys.readouterr().err


@pytest.mark.ci
def test_a_damaged_workdir_is_not_taken(tiny_config, tiny_workdir, tmp_path):
    copy = shutil.copytree(tiny_workdir, tmp_path / "copy")
    for file in (copy / "checkpoints").rglob("d/*"):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    with pytest.raises(UserError, match="expected a good checkpoint, found none"):
        train(tiny_config(init_from=str(copy)), tmp_path / "run")
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == []
