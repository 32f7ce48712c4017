"""Programs that keep matrices packed belong to one model, and give what others give."""

import copy
import dataclasses
import os
import pathlib
import pickle
import subprocess
import sys

import jax
import numpy as np
import pytest

from jaxformer.config import Config, ModelConfig, StreamConfig
from jaxformer.data.character_tokenizer import CharacterTokenizer
from jaxformer.inference import bound_models, kept_programs
from jaxformer.inference.bound_models import program_of
from jaxformer.inference.generator import Generator
from jaxformer.inference.kept_programs import KeptProgram
from jaxformer.inference.members import Ensemble, Member
from jaxformer.inference.parameter_arrays import prepare_params
from jaxformer.kinds.translation import TRANSLATION
from jaxformer.models.bart import Bart, BartConfig
from jaxformer.models.language_model import LanguageModel
from jaxformer.models.student import Student, StudentConfig
from jaxformer.models.t5 import T5, T5Config
from jaxformer.models.transformer import Transformer
from jaxformer.nn import use_backend
from jaxformer.nn.backend import backend
from jaxformer.nn.constants import holds_constants
from jaxformer.search import BeamSearch, Sampling

from ..profiles import by_profile
from ..searches import search_batches
from ..unit.nn.weights import random_params

pytestmark = pytest.mark.skipif(backend().packed_int8 == 0, reason="XLA does not pack matrices")

PROJECT = pathlib.Path(__file__).parents[2]
SIZES = {"vocab_size": 40, "d_model": 64, "d_ff": 128, "num_heads": 2, "max_length": 32}
SEARCH = BeamSearch(beam_size=2)
SOURCES = [[5, 6, 7, 8, 2], [9, 9, 4, 2], [30, 2]]
PLAIN = dataclasses.replace(backend(), packed_int8=0, packed_bfloat16=0)


def models_of(kind, section, scale=0.3):
    model = kind(section)
    tokens = np.ones((1, 1), np.int32)
    params = random_params(model, tokens, tokens, scale=scale)
    prepared = prepare_params(section, params, TRANSLATION)
    return Ensemble((Member(model, prepared),))


@pytest.fixture(scope="module")
def models():
    section = ModelConfig(num_layers=2, biases=True, compute_dtype="int8", **SIZES)
    return models_of(Transformer, section)


def translate(models, sources=SOURCES):
    """Returns tokens, scores and log probabilities."""
    return search_batches(models, SEARCH, sources)


def translate_plainly(models, sources=SOURCES):
    with use_backend(PLAIN):
        return translate(models, sources)


@pytest.mark.parametrize(
    ("kind", "section"),
    [
        (Transformer, ModelConfig(num_layers=2, compute_dtype="bfloat16", **SIZES)),
        (
            Transformer,
            ModelConfig(
                num_layers=1,
                compute_dtype="int8",
                embeddings="separate",
                positions="learned",
                **SIZES,
            ),
        ),
        (Student, StudentConfig(num_layers=2, compute_dtype="int8", **SIZES)),
        (T5, T5Config(num_layers=2, compute_dtype="int8", gated=True, **SIZES)),
        (Bart, BartConfig(num_layers=2, compute_dtype="int8", **SIZES)),
    ],
    ids=["bfloat16", "separate", "student", "t5", "bart"],
)
def test_translations_equal_those_of_other_programs(kind, section):
    models = models_of(kind, section)
    assert translate(models) == translate_plainly(models)
    assert models in bound_models._bound


@pytest.mark.parametrize(
    "search", [SEARCH, Sampling(num_samples=2, seed=1)], ids=["beam", "samples"]
)
def test_generated_texts_equal_those_of_other_programs(search):
    tokenizer = CharacterTokenizer.assemble(sorted("\nabcdefghijklmnop"))
    section = ModelConfig(
        vocab_size=tokenizer.vocab_size,
        d_model=64,
        d_ff=128,
        num_heads=2,
        num_layers=2,
        max_length=32,
        compute_dtype="int8",
    )
    model = LanguageModel(section)
    tokens = np.ones((1, 2), np.int32)
    params = random_params(model, tokens)
    config = Config(model=section, data=StreamConfig(file="none", length=32), search=search)
    generator = Generator(config, jax.device_put(params), tokenizer)

    found = generator.continuations(["abc", "d", "fgh"], max_tokens=12)
    assert generator.models in bound_models._bound
    with use_backend(PLAIN):
        assert found == generator.continuations(["abc", "d", "fgh"], max_tokens=12)


def test_a_program_has_the_mark_only_if_it_is_bound(models, monkeypatch):
    texts = []
    open_program = kept_programs._open

    def opened(jitted, leaves, path):
        texts.append(jitted.lower(*leaves).as_text())
        return open_program(jitted, leaves, path)

    monkeypatch.setattr(kept_programs, "_open", opened)
    new = Ensemble(models.members)
    translate(new)
    assert texts
    assert all('is_constant = "true"' in text for text in texts)

    texts.clear()
    member = new[0]
    tokens = np.ones((1, 4), np.int32)
    plain = jax.jit(lambda params: member.model.apply({"params": params}, tokens, tokens))
    assert "is_constant" not in plain.lower(member.params).as_text()


def test_parameters_that_take_the_place_of_others_are_used(models):
    first = models[0]
    with_dict = first._replace(params=dict(first.params))
    mutable = Ensemble((with_dict,))
    before = translate(mutable)
    embedding = first.params["embedding"]
    changed = jax.tree.map(lambda leaf: leaf[::-1], embedding)
    mutable[0].params["embedding"] = changed

    after = translate(mutable)
    assert after != before
    assert after == translate_plainly(mutable)
    assert translate(models) == before


def test_two_models_at_once_and_copies_have_programs_of_their_own(models):
    section = models[0].config
    other = models_of(Transformer, section, scale=0.5)
    unpickled = pickle.loads(pickle.dumps(models))
    all_models = [models, other, copy.copy(models), copy.deepcopy(other), unpickled]
    expected = [translate_plainly(each) for each in all_models]
    for _ in range(3):
        assert [translate(each) for each in all_models] == expected

    programs = [id(bound_models._bound[each].programs) for each in all_models]
    assert len(set(programs)) == len(all_models)


def test_other_programs_refuse_constant_matrices(models):
    translate(models)
    constants = bound_models._bound[models].constants
    assert holds_constants(constants)

    program = KeptProgram(lambda models: jax.tree.leaves(models)[0] + 1)
    with pytest.raises(AssertionError, match="belong to them"):
        program(constants)


@pytest.mark.parametrize(
    "reason", ["many hypotheses", "float32", "NumPy", "two devices", "without jit"]
)
def test_what_is_not_bound(models, reason):
    count = 2
    if reason == "many hypotheses":
        count = backend().packed_int8 + 1
    elif reason == "float32":
        models = models_of(Transformer, ModelConfig(num_layers=1, **SIZES))
    elif reason == "NumPy":
        models = jax.tree.map(np.asarray, models)
    elif reason == "two devices":
        devices = jax.sharding.Mesh(jax.devices()[:2], "data")
        whole = jax.sharding.NamedSharding(devices, jax.sharding.PartitionSpec())
        models = jax.device_put(models, whole)

    program = KeptProgram(lambda models: jax.tree.leaves(models)[0] + 1)
    with jax.disable_jit(reason == "without jit"):
        function = program_of(program, models, count)
    assert function.func is program


def many_models(folder, *arguments):
    variables = os.environ | {
        "PYTHONPATH": str(PROJECT),
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "0",
    }
    script = PROJECT / "tests" / "integration" / "many_models.py"
    command = [sys.executable, str(script), *map(str, arguments)]
    run = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    return run.stdout.strip()


@pytest.mark.ci
@pytest.mark.timeout(3600)
def test_models_that_are_freed_leave_nothing_behind(tmp_path):
    """Also in a second process, which reads the programs of the first."""
    count = by_profile(40, nightly=1000)
    assert many_models(tmp_path, count, 1) == "0 mistakes, 0 models left"
    assert many_models(tmp_path, count // 4, 4) == "0 mistakes, 0 models left"


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_shared_programs_would_be_noticed(tmp_path):
    """The test above can fail: with programs for all models, most translations are wrong.

    A mistake needs memory that is used again, which nobody can promise for a few models.
    """
    found = many_models(tmp_path, 200, 1, "--shared")
    assert int(found.split()[0]) > 0
