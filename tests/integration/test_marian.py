"""Imported Marian models against transformers: encoder states, logits and translations.

The fixtures are made by ``tests/fixtures/make_marian.py``.
"""

import dataclasses
import functools
import json
import pathlib
import shutil
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.config import Config, load_run
from jaxformer.data.marian_tokenizer import MarianTokenizer
from jaxformer.data.tokenizer import BOS, EOS, PAD, UNK
from jaxformer.errors import UserError
from jaxformer.inference.translator import Translator
from jaxformer.inference.weights import abstract_params, average, load_params
from jaxformer.interop.marian import import_marian
from jaxformer.models.transformer import Transformer
from jaxformer.search import beam_search
from jaxformer.workdir import Workdir

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures" / "marian"
MODELS = [
    "swish_tied",  # As in OPUS-MT.
    "silu_tied_target",
    pytest.param("relu_tied_unscaled", marks=pytest.mark.ci),
    pytest.param("relu_untied", marks=pytest.mark.nightly),
]
# Lengths at which transformers' beam search ends; unlike ours, they count the start token.
HUGGING_FACE = {
    "length_penalty": 1.0,
    "penalty": "power",
    "ends_within": "N",
    "early_stop": "likely",
    "unfinished": "compete",
}
MAX_LENGTH = 40 - 1


class Model(NamedTuple):
    folder: Workdir
    config: Config
    params: dict
    ids: np.ndarray  # Our id for each id of Marian.
    outputs: dict  # Results of transformers.


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    workdir = tmp_path_factory.mktemp(request.param)
    import_marian(FIXTURES / request.param, workdir)
    folder = Workdir(workdir)
    config = load_run(folder)
    params, _ = load_params(folder, config.model, "auto")
    vocabulary = json.loads((FIXTURES / request.param / "vocab.json").read_text())
    outputs = dict(np.load(FIXTURES / request.param / "outputs.npz"))
    return Model(folder, config, params, _our_ids(vocabulary), outputs)


def _our_ids(vocabulary: dict[str, int]) -> np.ndarray:
    special = {"<pad>": PAD, "</s>": EOS, "<unk>": UNK}
    ids = np.zeros(len(vocabulary), np.int32)
    following = UNK
    for piece, number in sorted(vocabulary.items(), key=lambda item: item[1]):
        following += piece not in special
        ids[number] = special.get(piece, following)
    return ids


def test_encoder_states_equal_transformers(model):
    expected = model.outputs["encoded"]
    src = jnp.asarray(model.ids[model.outputs["src"][: len(expected)]])
    transformer = Transformer(model.config.model)
    encode = jax.jit(functools.partial(transformer.apply, method="encode"))
    found = np.asarray(encode({"params": model.params}, src))
    # Our features alternate between sines and cosines.
    found = np.concatenate([found[..., 0::2], found[..., 1::2]], axis=-1)
    real = np.asarray(src) != PAD
    np.testing.assert_allclose(found[real], expected[real], atol=1e-5, rtol=0)


def test_logits_equal_transformers(model):
    expected = model.outputs["logits"]
    tgt_in = model.ids[model.outputs["tgt_in"]]
    assert (tgt_in[:, 0] == PAD).all()
    tgt_in[:, 0] = BOS
    src = jnp.asarray(model.ids[model.outputs["src"][: len(expected)]])
    apply = jax.jit(Transformer(model.config.model).apply)
    found = np.asarray(apply({"params": model.params}, src, jnp.asarray(tgt_in)))
    assert (found[..., [PAD, BOS]] == -np.inf).all()
    pieces = model.ids != PAD
    np.testing.assert_allclose(
        found[..., model.ids[pieces]], expected[..., pieces], atol=1e-5, rtol=0
    )


@pytest.mark.ci
@pytest.mark.parametrize(("beam_size", "name"), [(1, "greedy"), (4, "beam")])
def test_translations_equal_transformers(model, beam_size, name):
    src = model.ids[model.outputs["src"]]
    expected = model.ids[model.outputs[name]]
    expected = np.pad(expected, ((0, 0), (0, MAX_LENGTH - expected.shape[1])))
    result = _search(model.config.model, beam_size, model.params, jnp.asarray(src))
    different = np.flatnonzero((np.asarray(result.tokens[:, 0]) != expected).any(axis=1))
    assert len(src) == 1000
    assert different.tolist() == []
    if beam_size > 1:
        np.testing.assert_allclose(result.scores[:, 0], model.outputs["scores"], atol=1e-5)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _search(config, beam_size, params, src):
    """Searches as ``generate`` does with the fixture's generation_config.json."""
    transformer = Transformer(config)
    sizes = {"num_beams": beam_size, "capacity": MAX_LENGTH}
    cache = transformer.apply({"params": params}, src, **sizes, method="start")

    def step(tokens, cache):
        logits, after = transformer.apply({"params": params}, tokens, cache, method="step")
        # forced_eos_token_id forces end-of-sentence as the last token, with log probability 0.
        forced = jnp.where(jnp.arange(logits.shape[-1]) == EOS, 0.0, -jnp.inf)
        return jnp.where(cache.slots.length == MAX_LENGTH - 1, forced, logits), after

    return beam_search(
        step,
        cache,
        max_lengths=jnp.full(src.shape[0], MAX_LENGTH),
        capacity=MAX_LENGTH,
        beam_size=beam_size,
        bos_id=BOS,
        eos_id=EOS,
        pad_id=PAD,
        **HUGGING_FACE,
    )


def test_commands_accept_an_imported_model(model):
    model.folder.check_tokenizer()
    assert jax.tree.map(jnp.shape, model.params) == jax.tree.map(
        jnp.shape, abstract_params(model.config.model)
    )
    search = model.config.search
    assert (search.beam_size, search.penalty, search.length_penalty) == (4, "power", 1.0)
    assert search.max_length == MAX_LENGTH
    assert average(model.folder, 1) == [0]
    averaged, _ = load_params(model.folder, model.config.model, "auto")
    np.testing.assert_array_equal(averaged["logits_bias"], model.params["logits_bias"])


@pytest.mark.ci
def test_translator_on_text_equals_transformers_on_ids(model):
    """Text gives the tokens of the search that the tests above compare with transformers."""
    search = dataclasses.replace(model.config.search, beam_size=1)
    translator = Translator.load(model.folder.path, search=search)
    texts = ["the cat sees a dog", ">>deu<< two cats", "a man reads books", "", "she has seen"]
    src = np.full((len(texts), 24), PAD, np.int32)
    for row, text in zip(src, texts, strict=True):
        ids = [*translator.tokenizer.encode(text), EOS]
        row[: len(ids)] = ids
    result = _search(model.config.model, 1, model.params, jnp.asarray(src))
    found = translator.hypotheses(texts)
    assert found[3] == []
    for n in (0, 1, 2, 4):
        expected = result.tokens[n, 0, : result.lengths[n, 0]].tolist()
        # At the maximum length, transformers replaces the last token by end-of-sentence.
        assert found[n][0].tokens[: MAX_LENGTH - 1] == expected[: MAX_LENGTH - 1]


def test_the_whole_vocabulary_keeps_its_pieces(model):
    tokenizer = MarianTokenizer.load(model.folder.tokenizer)
    vocabulary = json.loads((FIXTURES / "swish_tied" / "vocab.json").read_text())
    assert tokenizer.vocab_size == len(vocabulary) + 1 == model.config.model.vocab_size
    for piece, number in vocabulary.items():
        assert tokenizer.piece(int(model.ids[number])) == piece


def test_a_workdir_with_a_run_is_not_overwritten(model):
    before = model.folder.config.read_bytes()
    with pytest.raises(UserError, match="expected a new workdir, but it has a run"):
        import_marian(FIXTURES / "swish_tied", model.folder.path)
    assert model.folder.config.read_bytes() == before


def test_an_interrupted_import_can_be_repeated(tmp_path):
    import_marian(FIXTURES / "swish_tied", tmp_path)
    (tmp_path / "config.json").unlink()
    import_marian(FIXTURES / "swish_tied", tmp_path)
    assert load_run(Workdir(tmp_path)).model.vocab_size > 60


def test_half_precision_weights_are_read(tmp_path):
    import safetensors.numpy

    copy = tmp_path / "model"
    shutil.copytree(FIXTURES / "swish_tied", copy)
    arrays = safetensors.numpy.load_file(copy / "model.safetensors")
    halves = {name: array.astype(np.float16) for name, array in arrays.items()}
    safetensors.numpy.save_file(halves, copy / "model.safetensors")
    import_marian(copy, tmp_path / "run")
    folder = Workdir(tmp_path / "run")
    params, _ = load_params(folder, load_run(folder).model, "auto")
    name = "model.encoder.layers.1.fc1.bias"
    found = params["encoder"]["layers"]["feed_forward"]["inner_bias"][1]
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(found, halves[name].astype(np.float32))
