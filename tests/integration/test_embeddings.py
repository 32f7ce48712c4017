"""Embeddings of texts: poolings in NumPy, the files of sentence-transformers, and the command."""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest

from jaxformer import BertConfig, Embedder, load_model
from jaxformer.cli import main
from jaxformer.errors import UserError
from jaxformer.interop.export import export_model
from jaxformer.interop.huggingface.importer import import_huggingface
from jaxformer.interop.huggingface.sentence_transformers import pooling_files

pytest.importorskip("tokenizers")

PLAIN = pathlib.Path(__file__).parents[1] / "fixtures" / "bert" / "plain"
# The rows of the fixture, of texts of different lengths.
TEXTS = ["the old house", "a dog runs!", "two books"]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    run = tmp_path_factory.mktemp("embeddings") / "run"
    import_huggingface(PLAIN, run)
    return run


def features_of_texts():
    """Returns the features of transformers for each text, without padding."""
    outputs = np.load(PLAIN / "outputs.npz")
    return [
        features[tokens != 0]
        for features, tokens in zip(outputs["features"], outputs["tokens"], strict=True)
    ][: len(TEXTS)]


def normalize(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


POOLINGS = {
    "mean": lambda features: features.mean(axis=0),
    "cls": lambda features: features[0],
    "max": lambda features: features.max(axis=0),
}


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("normalized", [False, True])
def test_embeddings_are_pooled_features(pooling, normalized, workdir):
    expected = np.stack([POOLINGS[pooling](features) for features in features_of_texts()])
    if normalized:
        expected = normalize(expected)

    embedder = Embedder.load(workdir, pooling=pooling, normalized=normalized)
    found = embedder.embed(TEXTS)
    assert np.abs(found - expected).max() < 1e-5 * expected.std()

    # Alone, without the padding of a batch.
    np.testing.assert_allclose(embedder.embed(TEXTS[1:2]), found[1:2], rtol=1e-4, atol=1e-6)


def test_similarities_are_cosines(workdir):
    vectors = np.stack([POOLINGS["mean"](features) for features in features_of_texts()])
    expected = normalize(vectors) @ normalize(vectors).T
    pairs = [(one, other) for one in TEXTS for other in TEXTS]
    found = Embedder.load(workdir).similarities(pairs)
    np.testing.assert_allclose(found, expected.reshape(-1), atol=1e-5)


def sentence_transformer(folder, modules, pooling):
    shutil.copytree(PLAIN, folder)
    rows = [{"idx": n, "type": f"sentence_transformers.models.{m}"} for n, m in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def modes(*chosen):
    names = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    return {f"pooling_mode_{name}": name in chosen for name in names}


TWO = ["Transformer", "Pooling"]


@pytest.mark.parametrize(
    ("modules", "pooling", "expected"),
    [
        (TWO, modes("mean_tokens"), ("mean", False)),
        ([*TWO, "Normalize"], modes("mean_tokens"), ("mean", True)),
        ([*TWO, "Normalize"], modes("cls_token"), ("cls", True)),
        (TWO, {"embedding_dimension": 16, "pooling_mode": "max"}, ("max", False)),
    ],
)
def test_the_files_of_sentence_transformers(modules, pooling, expected, tmp_path):
    folder = sentence_transformer(tmp_path / "model", modules, pooling)
    import_huggingface(folder, tmp_path / "run")
    embedder = Embedder.load(tmp_path / "run")
    assert (embedder.pooling_mode, embedder.is_normalized) == expected

    # An export says the same, unless it is the default of sentence-transformers.
    export_model("safetensors", tmp_path / "run", tmp_path / "out")
    has_files = (tmp_path / "out" / "modules.json").exists()
    assert has_files == (expected != ("mean", False))
    if has_files:
        import_huggingface(tmp_path / "out", tmp_path / "again")
        again = Embedder.load(tmp_path / "again")
        assert (again.pooling_mode, again.is_normalized) == expected


def test_the_exported_files_are_those_of_minilm():
    """As published; newer fields of pooling are false there, too."""
    module = "sentence_transformers.models."
    files = pooling_files(BertConfig(d_model=384, num_heads=12, normalized=True))
    assert files["modules.json"] == [
        {"idx": 0, "name": "0", "path": "", "type": f"{module}Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{module}Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{module}Normalize"},
    ]
    assert files["1_Pooling/config.json"] == {
        "word_embedding_dimension": 384,
        "pooling_mode_mean_tokens": True,
        "pooling_mode_cls_token": False,
        "pooling_mode_max_tokens": False,
    }


@pytest.mark.parametrize(
    ("modules", "pooling", "message"),
    [
        ([*TWO, "Dense"], modes("mean_tokens"), "got Transformer, Pooling, Dense; remove modules"),
        (["Pooling"], modes("mean_tokens"), "expected modules Transformer, Pooling and perhaps No"),
        (
            TWO,
            modes("mean_sqrt_len_tokens"),
            "of mean, cls or max, got pooling_mode_mean_sqrt_len_",
        ),
        (TWO, modes("mean_tokens", "cls_token"), "got pooling_mode_cls_token, pooling_mode_mean_t"),
        (TWO, {"pooling_mode": "lasttoken"}, "config.json: expected the pooling .*, got lasttoken"),
        (TWO, [], "expected the pooling of mean, cls or max, got none"),
    ],
)
def test_other_modules_are_refused(modules, pooling, message, tmp_path):
    folder = sentence_transformer(tmp_path / "model", modules, pooling)
    with pytest.raises(UserError, match=message):
        import_huggingface(folder, tmp_path / "run")


def test_the_command_writes_embeddings(workdir, capsys, tmp_path):
    source = tmp_path / "texts"
    source.write_text("".join(f"{text}\n" for text in TEXTS))
    embeddings = Embedder.load(workdir).embed(TEXTS)
    command = ["embed", "--workdir", str(workdir), "--input", str(source)]
    assert main(command) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    np.testing.assert_allclose(rows, embeddings, atol=1e-6)

    array = tmp_path / "out.npz"
    assert main([*command, "--output", str(array), "--normalize", "--pooling", "max"]) == 0
    expected = Embedder.load(workdir, pooling="max", normalized=True).embed(TEXTS)
    np.testing.assert_allclose(np.load(array)["embeddings"], expected, atol=1e-6)

    source.write_text("a dog\ttwo books\na dog\n")
    assert main([*command, "--pairs"]) == 3
    out = capsys.readouterr()
    [cosine] = Embedder.load(workdir).similarities([("a dog", "two books")])
    assert out.out == f"{cosine:.4f}\n\n"
    assert "texts:2: expected two texts with a tab between, got 0 tabs" in out.err

    assert main([*command, "--pairs", "--output", str(array)]) == 2
    assert "--pairs prints lines: give --output a name" in capsys.readouterr().err


def test_mistakes_are_refused(workdir):
    with pytest.raises(UserError, match="texts:2: expected at most 24 tokens"):
        Embedder.load(workdir).embed(["a dog", "dog " * 30])
    with pytest.raises(UserError, match=r"model\.pooling must be one of 'mean', 'cls', 'max': got"):
        Embedder.load(workdir, pooling="sum")  # pyright: ignore[reportArgumentType]


def test_features_without_a_head_are_the_same(workdir):
    """The method of the model, as the page shows it."""
    model, params = load_model(workdir)
    embedder = Embedder.load(workdir)
    tokens = np.array([embedder.tokenizer.encode_prompt(TEXTS[0])])
    features = jax.jit(lambda tokens: model.apply({"params": params}, tokens, method="features"))
    np.testing.assert_allclose(
        embedder.embed(TEXTS[:1])[0],
        np.asarray(features(tokens))[0].mean(axis=0),
        rtol=1e-4,
        atol=1e-6,
    )
