"""Imported Marian models against transformers: encoder states, logits and translations.

The fixtures are made by ``tests/fixtures/make_marian.py``.
"""

import dataclasses
import functools
import json
import operator
import pathlib
import tempfile
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.cli import main
from jaxformer.config import Config, read_config
from jaxformer.data.marian_tokenizer import MarianTokenizer
from jaxformer.data.tokenizer import BOS, EOS, PAD, UNK
from jaxformer.inference.conversions import average
from jaxformer.inference.translator import Translator
from jaxformer.inference.weights import read_params
from jaxformer.interop.marian.importer import import_marian
from jaxformer.models.transformer import Transformer
from jaxformer.runs.workdir import Workdir
from jaxformer.search import beam_search

from ..profiles import by_profile

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures" / "marian"
MODELS = by_profile(
    ["swish_tied", "relu_untied"],  # The first is as in OPUS-MT.
    nightly=["swish_tied", "relu_untied", "silu_tied_target", "relu_tied_unscaled"],
)
# Lengths at which transformers' beam search ends; unlike ours, they count the start token.
HUGGING_FACE = {
    "length_penalty": 1.0,
    "penalty": "power",
    "ends_within": "N",
    "early_stop": "likely",
    "unfinished": "end",
}
MAX_LENGTH = 40 - 1


class Model(NamedTuple):
    config: Config
    params: dict
    ids: np.ndarray  # Our id for each id of Marian.
    outputs: dict  # Results of transformers.


@functools.cache
def imported(name):
    with tempfile.TemporaryDirectory() as temporary:
        folder = Workdir(pathlib.Path(temporary) / "run")
        import_marian(FIXTURES / name, folder.path)
        config = read_config(folder)
        params, _ = read_params(folder, config.model, "auto")
        tokenizer = MarianTokenizer.load(folder.tokenizer)

    vocabulary = json.loads((FIXTURES / name / "vocab.json").read_text())
    assert tokenizer.vocab_size == len(vocabulary) + 1
    assert tokenizer.vocab_size == config.model.vocab_size
    ids = our_ids(vocabulary)
    for piece, number in vocabulary.items():
        assert tokenizer.piece(int(ids[number])) == piece

    outputs = dict(np.load(FIXTURES / name / "outputs.npz"))
    return Model(config, params, ids, outputs)


def our_ids(vocabulary):
    """Returns our id for each id of Marian: the special ones come first."""
    special = {"<pad>": PAD, "</s>": EOS, "<unk>": UNK}
    ids = np.zeros(len(vocabulary), np.int32)
    following = UNK
    by_number = sorted(vocabulary.items(), key=operator.itemgetter(1))
    for piece, number in by_number:
        if piece in special:
            ids[number] = special[piece]
        else:
            following += 1
            ids[number] = following
    return ids


@pytest.mark.parametrize("name", MODELS)
def test_encoder_states_and_logits_equal_transformers(name):
    model = imported(name)
    expected = model.outputs["encoded"]
    expected_logits = model.outputs["logits"]
    first = model.outputs["src"][: len(expected)]
    src = model.ids[first]

    # Marian begins targets with padding.
    tgt_in = model.ids[model.outputs["tgt_in"]]
    assert (tgt_in[:, 0] == PAD).all()
    tgt_in[:, 0] = BOS

    @jax.jit
    def run(variables, src, tgt_in):
        transformer = Transformer(model.config.model)
        encoded = transformer.apply(variables, src, method="encode")
        return encoded, transformer.apply(variables, src, tgt_in)

    results = run({"params": model.params}, src, tgt_in)
    encoded, logits = jax.device_get(results)

    # Our features alternate between sines and cosines.
    sines = encoded[..., 0::2]
    cosines = encoded[..., 1::2]
    encoded = np.concatenate([sines, cosines], axis=-1)
    real = src != PAD
    np.testing.assert_allclose(encoded[real], expected[real], atol=1e-5, rtol=0)

    of_special = logits[..., [PAD, BOS]]
    assert (of_special == -np.inf).all()
    pieces = model.ids != PAD
    found = logits[..., model.ids[pieces]]
    expected = expected_logits[..., pieces]
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)


@pytest.mark.ci
@pytest.mark.parametrize("name", by_profile(MODELS[:1], nightly=MODELS))
@pytest.mark.parametrize(("beam_size", "output"), [(1, "greedy"), (4, "beam")])
def test_translations_equal_transformers(name, beam_size, output, tmp_path):
    model = imported(name)
    src = model.ids[model.outputs["src"]]
    assert len(src) == 1000

    result = _search(model.config.model, beam_size, model.params, src)

    expected = model.ids[model.outputs[output]]
    missing = MAX_LENGTH - expected.shape[1]
    expected = np.pad(expected, ((0, 0), (0, missing)))
    differs = result.tokens[:, 0] != expected
    assert np.flatnonzero(differs.any(axis=1)).tolist() == []
    if beam_size > 1:
        best_scores = result.scores[:, 0]
        np.testing.assert_allclose(best_scores, model.outputs["scores"], atol=1e-5)


@pytest.mark.ci
@pytest.mark.parametrize("name", by_profile(MODELS[:1], nightly=MODELS))
def test_text_gives_the_tokens_of_the_search_on_ids(name, tmp_path):
    model = imported(name)
    import_marian(FIXTURES / name, tmp_path)
    search = dataclasses.replace(model.config.search, beam_size=1)
    translator = Translator.load(tmp_path, search=search)
    texts = ["the cat sees a dog", ">>deu<< two cats", "a man reads", "", "she has seen"]

    # The shape of the other search, so that both have one program.
    src = np.full_like(model.outputs["src"], PAD, dtype=model.ids.dtype)
    for row, text in zip(src, texts, strict=False):
        ids = [*translator.tokenizer.encode(text), EOS]
        row[: len(ids)] = ids
    result = _search(model.config.model, 1, model.params, src)
    found = translator.hypotheses(texts)

    assert found[3] == []
    for n in (0, 1, 2, 4):
        length = result.lengths[n, 0]
        expected = result.tokens[n, 0, :length].tolist()
        best, *_ = found[n]
        assert best.tokens == expected


def _search(config, beam_size, params, src):
    result = _search_on_device(config, beam_size, params, src)
    return jax.device_get(result)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _search_on_device(config, beam_size, params, src):
    """Searches as ``generate`` does with the fixture's generation_config.json."""
    transformer = Transformer(config)
    variables = {"params": params}
    cache = transformer.apply(
        variables,
        src,
        num_beams=beam_size,
        capacity=MAX_LENGTH,
        method="start",
    )

    def step(tokens, cache):
        return transformer.apply(variables, tokens, cache, method="step")

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


def test_commands_accept_an_imported_model(tmp_path, capsys):
    import_marian(FIXTURES / "swish_tied", tmp_path)
    folder = Workdir(tmp_path)
    folder.check_tokenizer()
    assert average(folder, 1) == [0]

    # An unknown language code is a bad line; the codes are listed.
    source = tmp_path / "in.txt"
    source.write_text(">>xyz<< the cat\n")
    command = ["translate", "--workdir", str(tmp_path), "--input", str(source)]
    assert main(command) == 3
    messages = capsys.readouterr().err
    assert "begin each line with a language code: >>deu<<, >>fra<<\n" in messages
    assert "in.txt:1: expected >>deu<<, >>fra<<: got >>xyz<<\n" in messages
