"""Runs that begin with the parameters and the tokenizer of another model."""

import pathlib
import shutil

import jax
import numpy as np
import optax
import pytest
import sacrebleu

from jaxformer import (
    Translator,
    UserError,
    ema_params,
    load_model,
    pretrained,
    score_pairs,
    train,
)
from jaxformer.cli import main
from jaxformer.config import DataConfig, read_config
from jaxformer.data.bpe import train_tokenizer
from jaxformer.data.held_out import open_splits
from jaxformer.data.numerals import NumeralsCorpus
from jaxformer.data.tokenizer import BOS, EOS, PAD, UNK
from jaxformer.experiment import make_task
from jaxformer.interop.marian.importer import import_marian
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.initialization import matching_ids, merge
from jaxformer.training.paths import path_of

from ..profiles import by_profile
from ..runs import changed, write_pairs
from .test_user_files import CONFIG as COUNTING
from .test_user_files import Counting

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"


def plain_loss(workdir, pairs):
    """Returns the mean negative log likelihood of pairs of texts, scored by the model alone."""
    translator = Translator.load(workdir)
    ids = []
    for source, target in pairs:
        source_ids = translator.source_ids(source)
        target_ids = translator.target_ids(target)
        ids.append((source_ids, target_ids))
    scores = score_pairs(translator, ids)

    total = sum(score.log_prob for score in scores)
    length = sum(score.length for score in scores)
    return -total / length


def interrupt(number):
    def hook(step, state, sums):
        if step == number:
            raise KeyboardInterrupt

    return hook


def first_loss(config, workdir):
    """Trains; returns the loss before the first update, the first batch's pairs, and the state."""
    sums = []

    def keep_sums(step, state, each):
        sums.append(each)

    state = train(config, workdir, hooks=[keep_sums])
    first = sums[0]
    loss = float(first["loss"] / first["count"])
    ids = make_task(config, Workdir(workdir)).example_ids(0)
    return loss, ids, state


@pytest.mark.ci
def test_the_first_loss_is_the_loss_of_the_model(learned_workdir, tmp_path, capsys):
    config = changed(
        read_config(Workdir(learned_workdir)),
        model={"dropout_rate": 0.0},
        training={
            "init_from": str(learned_workdir),
            "steps": 1,
            "label_smoothing": 0.0,
            "eval_sentences": 0,
            "warmup_steps": 9,
        },
    )
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
    own = Workdir(tmp_path).tokenizer.read_bytes()
    assert own == Workdir(learned_workdir).tokenizer.read_bytes()


PAIRS = {
    "pretrained": [
        ("Where is the station?", "Wo ist der Bahnhof?"),
        ("Good night.", "Gute Nacht."),
    ],
    "imported": [
        ("the cat sat", "die Katze"),
        ("a dog", "ein Hund"),
        ("the dog", "der Hund"),
    ],
}


def further_training(source, init_from, pairs):
    """Returns the config of two steps on pairs, without noise and in float32."""
    return changed(
        read_config(Workdir(source)),
        model={"dropout_rate": 0.0, "compute_dtype": "float32"},
        data={
            "corpus": "text",
            "train": str(pairs),
            "valid": str(pairs),
            "source_language": "en",
            "target_language": "de",
            "batching": "packing",
            "tokens_per_batch": 256,
            "max_length": 32,
        },
        training={
            "init_from": init_from,
            "steps": 2,
            "warmup_steps": 1,
            "eval_sentences": 0,
            "label_smoothing": 0.0,
            "learning_rate": 1e-3,
        },
    )


@pytest.mark.ci
@pytest.mark.parametrize("name", by_profile(["pretrained"], nightly=list(PAIRS)))
def test_a_converted_model_is_trained_further(name, tmp_path, capsys):
    """An import's bias of -inf on two tokens becomes finite, lest steps be skipped."""
    source = pretrained.WORKDIR
    init_from = name
    if name == "imported":
        source = tmp_path / name
        init_from = str(source)
        import_marian(FIXTURES / "marian" / "swish_tied", source)
    pairs = PAIRS[name] * 8
    write_pairs(tmp_path / "pairs", pairs)
    config = further_training(source, init_from, tmp_path / "pairs")

    found, ids, state = first_loss(config, tmp_path / "run")
    assert int(state.skipped) == 0

    expected = plain_loss(source, [pairs[i - 1] for i in ids])
    # The pretrained model's own decoding also quantizes activations.
    tolerance = 0.05 if name == "pretrained" else 1e-4
    assert found == pytest.approx(expected, rel=tolerance)

    if name == "pretrained":
        assert 0 < expected < 0.5  # a fresh model has about ln 6,000
        origin = "quantized from step 500, converted from int8"
        assert f"{origin}, with its tokenizer:" in capsys.readouterr().err
    else:
        special = np.array([PAD, BOS])
        _, params = load_model(source)
        assert np.isneginf(params["logits_bias"][special]).all()
        assert (state.params["logits_bias"][special] < -99).all()


@pytest.mark.nightly
def test_resumes_exactly_without_the_first_workdir(tiny_config, tiny_workdir, tmp_path):
    source = shutil.copytree(tiny_workdir, tmp_path / "source")
    config = tiny_config(
        init_from=str(source),
        freeze="encoder, embedding",
        warmup_steps=2,
        weight_decay=0.1,
        schedule="cosine",
    )
    whole = train(config, tmp_path / "whole")

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "stopped", hooks=[interrupt(3)])
    source.rename(tmp_path / "gone")
    resumed = train(config, tmp_path / "stopped")
    jax.tree.map(np.testing.assert_array_equal, resumed, whole)

    without = tiny_config(freeze="encoder, embedding", warmup_steps=2)
    with pytest.raises(UserError, match=r"with training.init_from='.*source', but None"):
        train(without, tmp_path / "whole")


@pytest.mark.ci
def test_frozen_parameters_keep_their_bits_on_a_mesh(tiny_config, tiny_workdir, tmp_path):
    """With an optimizer of the user's own, whose state is factored."""
    config = tiny_config(init_from=str(tiny_workdir), freeze="encoder,embedding", eval_sentences=0)
    config = changed(config, mesh={"data": 2, "fsdp": 2, "tensor": 2})
    optimizer = optax.adafactor(0.01, min_dim_size_to_factor=8)

    state = jax.device_get(train(config, tmp_path, optimizer=optimizer))
    assert int(state.skipped) == 0

    _, before = load_model(tiny_workdir)
    after = dict(jax.tree.leaves_with_path(state.params))
    for path, leaf in jax.tree.leaves_with_path(before):
        frozen = path[0].key in ("encoder", "embedding")
        same_bits = np.asarray(leaf).tobytes() == after[path].tobytes()
        assert same_bits == frozen, path_of(path)


@pytest.mark.ci
def test_some_layers_are_frozen_on_a_mesh(tiny_config, tmp_path):
    """The moments of the others are split over the devices as their parameters are."""
    config = tiny_config(freeze="encoder/layers[:1]", eval_sentences=0, steps=2)
    config = changed(config, model={"num_layers": 2}, mesh={"data": 2, "fsdp": 2, "tensor": 2})

    before = {}

    def keep(step, state, sums):
        layers = jax.device_get(state.params["encoder"]["layers"])
        before.setdefault(step, layers)

    state = train(config, tmp_path, hooks=[keep])
    layers = jax.device_get(state.params["encoder"]["layers"])
    for old, new in zip(jax.tree.leaves(before[1]), jax.tree.leaves(layers), strict=True):
        np.testing.assert_array_equal(old[0], new[0])
        assert (old[1] != new[1]).any()

    query = state.params["encoder"]["layers"]["self_attention"]["query"]
    moments = [
        leaf
        for path, leaf in jax.tree.leaves_with_path(state.opt_state)
        if path_of(path).endswith("encoder/layers/self_attention/query")
    ]
    assert [moment.shape for moment in moments] == 2 * [(1, *query.shape[1:])]
    assert all(moment.sharding.spec == query.sharding.spec for moment in moments)


@pytest.mark.ci
def test_runs_with_adapters_resume_exactly_on_a_mesh_and_save_merged_matrices(
    tiny_config, tiny_workdir, tmp_path
):
    config = tiny_config(
        init_from=str(tiny_workdir),
        lora=2,
        learning_rate=0.01,
        warmup_steps=1,
        eval_sentences=0,
        ema_decay=0.5,
    )
    elsewhere = jax.device_get(train(config, tmp_path / "elsewhere"))
    config = changed(config, mesh={"data": 2, "fsdp": 2, "tensor": 2})
    whole = jax.device_get(train(config, tmp_path / "whole"))
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "stopped", hooks=[interrupt(3)])
    resumed = jax.device_get(train(config, tmp_path / "stopped"))

    jax.tree.map(np.testing.assert_array_equal, resumed, whole)
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4),
        resumed.params,
        elsewhere.params,
    )

    # Commands read an average of merged matrices.
    _, loaded = load_model(tmp_path / "stopped")
    average = jax.device_get(ema_params(resumed.opt_state, resumed.params))
    jax.tree.map(np.testing.assert_array_equal, loaded, average)

    _, before = load_model(tiny_workdir)
    changes = jax.tree.map(np.subtract, resumed.params, before)
    names = set()
    for path, change in jax.tree.leaves_with_path(changes):
        if not change.any():
            continue
        names.add(path[-1].key)
        layer = change[0].reshape(change.shape[1], -1)
        sizes = np.linalg.svd(layer, compute_uv=False)
        assert sizes[2] < 1e-3 * sizes[1], path_of(path)  # of rank 2
    assert names == {"query", "key", "value", "output", "inner", "outer"}

    other = changed(config, training={"lora": 3})
    with pytest.raises(UserError, match=r"training.lora=2, but 3"):
        train(other, tmp_path / "whole")


def test_rows_of_another_vocabulary_are_matched_by_piece():
    """Every saved row holds its own number, so that rows are identified."""
    size = 275
    old = train_tokenizer(["to be or not to be"] * 3, size)
    new = train_tokenizer(["not a bear"] * 3, size)
    numbers = np.arange(size, dtype=np.float32)
    saved = {"embedding": np.stack([numbers, numbers], axis=1)}
    fresh = {"embedding": np.full((size, 2), -1, np.float32)}

    merged, lines = merge(fresh, saved, matching_ids(new, old))
    old_ids = {old.piece(i): i for i in range(size)}
    new_pieces = [new.piece(i) for i in range(size)]
    expected = [old_ids.get(piece, -1) for piece in new_pieces]
    assert merged["embedding"][:, 0].tolist() == expected
    assert expected[:4] == [PAD, EOS, BOS, UNK]

    missing = expected.count(-1)
    assert 0 < missing < 15  # most pieces are bytes, which both have
    assert [line.split(":")[0] for line in lines] == [
        f"  taken     embedding [{size - missing}, 2]",
        f"  new       embedding [{missing}, 2]",
        f"  left out  embedding [{missing}, 2]",
    ]


def test_a_head_of_another_size_is_new():
    fresh = {
        "head": np.full(4, 4),
        "positions": np.full((4, 1), 4),
    }
    saved = {
        "head": np.full(3, 3),
        "positions": np.full((3, 1), 3),
    }

    no_ids = np.zeros((2, 0), np.int64)
    merged, lines = merge(fresh, saved, no_ids)
    assert merged["head"].tolist() == [4, 4, 4, 4]
    assert merged["positions"].ravel().tolist() == [3, 3, 3, 4]
    assert {"  new       head [4]", "  left out  head [3]"} < set(lines)


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
        {"model": {"qk_norm": True}},
        "its model has other layers than the config; give --config.model.qk_norm=False$",
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
    (
        {"training": {"init_from": "nowhere"}},
        "training.init_from=nowhere: expected a workdir, or 'pretrained' for the model that "
        "comes with jaxformer, but there is no nowhere/config.json; give the folder of a run",
    ),
]


@pytest.mark.parametrize(("sections", "message"), MISTAKES, ids=str)
def test_mistakes_are_named_before_anything_is_written(
    sections, message, tiny_config, tiny_workdir, tmp_path
):
    config = changed(tiny_config(init_from=str(tiny_workdir)), **sections)

    with pytest.raises(UserError, match=message):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.ci
def test_the_command_ends_with_bleu_before_and_after_on_pairs_of_both_texts(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    texts = {
        "mine": [(f"I have {n} red books.", f"Ich habe {n} rote Bücher.") for n in range(60)],
        "old": [(f"He is {n} years old.", f"Er ist {n} Jahre alt.") for n in range(60)],
    }
    for name, pairs in texts.items():
        write_pairs(tmp_path / name, pairs)

    fields = (
        "data.train=mine:2,old:1",
        "data.valid=20%",
        "data.tokens_per_batch=256",
        "training.steps=2",
        "training.eval_every=2",
        "training.checkpoint_every=2",
    )
    command = ["train", "fine_tune", "--workdir", "run"]
    assert main([*command, *(f"--config.{field}" for field in fields)]) == 0
    _, _, table = capsys.readouterr().err.rpartition("\nvalidation  ")

    scores = {}
    for line in table.splitlines()[1:]:
        name, *_, before, after = line.split()
        scores[name] = [before, after]

    for name in texts:
        splits = open_splits(DataConfig(corpus="text", train=name, valid="20%"))
        sources, references = zip(*splits.pairs("20%"), strict=True)
        expected = []
        for workdir in ("pretrained", "run"):
            translations = Translator.load(workdir).translate(sources)
            bleu = sacrebleu.corpus_bleu(translations, [references])
            expected.append(f"{bleu.score:.4g}")

        assert scores[name] == expected
