import dataclasses
import json
import pickle
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_collections import config_dict

from jaxformer.cli.config_file import load_config, rename_flags
from jaxformer.config import (
    Config,
    DataConfig,
    FitConfig,
    MeshConfig,
    ModelConfig,
    StreamConfig,
    TrainingConfig,
    load,
    save,
    select,
    to_config_dict,
)
from jaxformer.errors import UserError
from jaxformer.search import BeamSearch, Sampling

# ml_collections 1.1 loads config files in a way that Python has deprecated (2026-11).
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")

SECTIONS = {
    "model": ModelConfig,
    "data": DataConfig,
    "training": TrainingConfig,
    "mesh": MeshConfig,
}
# Ids belong to the vocabulary, and constraints are not plain values.
NOT_IN_FILES = {"bos_id", "eos_id", "pad_id", "constraints"}

# An experiment in which no field has its default value.
UNUSUAL = Config.from_dict(
    {
        "model": {
            **{"vocab_size": 100, "d_model": 24, "d_ff": 48, "num_heads": 5, "num_layers": 2},
            **{"d_k": 6, "d_v": 7, "dropout_rate": 0.25, "attention_dropout_rate": 0.125},
            **{"norm_position": "pre", "positions": "learned", "activation": "swish"},
            **{"biases": True, "embeddings": "separate", "target_vocab_size": 60},
            **{"norm_epsilon": 1e-5, "max_length": 64, "compute_dtype": "bfloat16"},
        },
        "data": {
            **{"corpus": "text", "builder": "", "directory": "elsewhere", "source_language": "fr"},
            **{"target_language": "日本語", "train": "my/train", "valid": "my/valid"},
            **{"tokenizer": "my/tokenizer.model", "batching": "packing", "tokens_per_batch": 512},
            **{"max_length": 32},
        },
        "training": {
            **{"steps": 10, "warmup_steps": 5, "learning_rate": 0.002, "learning_rate_scale": 0.1},
            **{"label_smoothing": 0.0, "clip_norm": 1.5, "gradient_accumulation": 2, "seed": 7},
            **{"remat": "dots", "adam_dtype": "bfloat16", "log_every": 1, "eval_every": 4},
            **{"eval_sentences": 0, "checkpoint_every": 2, "keep_checkpoints": 1},
            **{"stall_timeout": 60, "mirror": "drive/copy", "profile": "3:5"},
            **{"init_from": "my/run", "freeze": "encoder"},
        },
        "mesh": {"data": 2, "fsdp": -1, "tensor": 4},
        "search": {
            **{"method": "sampling", "num_samples": 1, "length_penalty": 0.0, "penalty": "power"},
            **{"max_extra_length": 5, "max_length": 40, "min_length": 2, "no_repeat_ngram": 3},
            **{"temperature": 0.7, "top_k": 10, "top_p": 0.9, "seed": 5},
        },
    }
)
# Fields that only Muon or a text stream uses.
STREAM = Config(
    data=StreamConfig(file="my/text.txt", tokens="bpe", tokenizer="new", length=100, rows=3),
    training=TrainingConfig(optimizer="muon", schedule="linear", weight_decay=0.5),
)
# Fields that only beam search uses.
BEAM = {"ends_within": "N", "unfinished": "compete", "early_stop": "likely"}
DIVERSE = Config(
    search=BeamSearch(
        beam_size=6, penalty="none", diversity_groups=2, diversity_penalty=0.5, **BEAM
    )
)


def test_defaults_are_the_base_model_of_the_paper():
    model, training, search = ModelConfig(), TrainingConfig(), Config().search
    assert (model.num_layers, model.d_model, model.d_ff, model.num_heads) == (6, 512, 2048, 8)
    assert (model.key_size, model.value_size, model.dropout_rate) == (64, 64, 0.1)  # Table 3
    assert (model.norm_position, model.positions) == ("post", "sinusoidal")
    free = ModelConfig(num_heads=7, d_k=16, d_v=24)
    assert (free.key_size, free.value_size) == (16, 24)
    assert (training.steps, training.warmup_steps) == (100_000, 4000)  # Sections 5.2 and 5.3.
    assert (training.label_smoothing, training.clip_norm) == (0.1, None)
    assert (search.beam_size, search.length_penalty, search.max_extra_length) == (4, 0.6, 50)


@pytest.mark.parametrize("section", [*SECTIONS.values(), BeamSearch, Sampling])
def test_unusual_covers_every_field(section):
    """Otherwise the round trips below could lose a field unnoticed."""
    unusual = [s for c in (UNUSUAL, DIVERSE, STREAM) for s in vars(c).values()]
    for name in {field.name for field in dataclasses.fields(section)} - NOT_IN_FILES:
        default = getattr(section(), name)
        assert any(getattr(s, name, default) != default for s in unusual), name


@pytest.mark.parametrize("config", [Config(), UNUSUAL, DIVERSE, STREAM])
def test_round_trips(config, tmp_path):
    assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert Config.from_dict(to_config_dict(config).to_dict()) == config
    assert pickle.loads(pickle.dumps(config)) == config
    save(config, tmp_path / "config.json")
    assert load(tmp_path / "config.json") == config
    save(Config(), tmp_path / "config.json")
    assert load(tmp_path / "config.json") == Config()
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_from_dict_fills_in_defaults_and_makes_floats_of_integers():
    assert Config.from_dict({}) == Config()
    built = Config.from_dict({"training": {"clip_norm": 1, "learning_rate_scale": 2}, "search": {}})
    assert repr(built.training) == repr(TrainingConfig(clip_norm=1.0, learning_rate_scale=2.0))


def test_configs_are_hashable_and_frozen():
    """So they can be static arguments of jax.jit."""
    assert hash(UNUSUAL) == hash(Config.from_dict(UNUSUAL.to_dict()))
    assert len({Config(), Config(), UNUSUAL}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        UNUSUAL.model.d_model = 8  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError, match="positional"):
        ModelConfig(100)  # pyright: ignore[reportCallIssue]
    with pytest.raises(UserError, match=r"model\.d_ff must be greater than 0: got 0"):
        dataclasses.replace(ModelConfig(), d_ff=0)


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        ("model", {"d_model": -8}, r"model\.d_model must be greater than 0: got -8"),
        ("model", {"num_layers": 0}, r"model\.num_layers must be greater than 0: got 0"),
        ("model", {"dropout_rate": 1.0}, r"model\.dropout_rate must be .* less than 1: got 1\.0"),
        ("model", {"dropout_rate": -0.1}, r"model\.dropout_rate must be at least 0 .* got -0\.1"),
        ("model", {"dropout_rate": float("nan")}, r"model\.dropout_rate must be .*: got nan"),
        ("model", {"d_k": 0}, r"model\.d_k must be at least 1 or left out: got 0"),
        ("model", {"d_v": -1}, r"model\.d_v must be at least 1 or left out: got -1"),
        ("model", {"target_vocab_size": 100}, r"needs model\.embeddings=separate"),
        (
            "model",
            {"embeddings": "separate", "vocab_size": 50, "target_vocab_size": 51},
            r"target_vocab_size must be from 1 to model\.vocab_size=50, .*: got 51",
        ),
        ("model", {"d_model": 9, "num_heads": 3}, r"d_model must be even, .*: got 9; use 10"),
        ("model", {"norm_position": "mid"}, r"one of 'post', 'pre': got 'mid'"),
        ("model", {"positions": ""}, r"one of 'sinusoidal', 'learned', 'rotary': got ''"),
        ("model", {"compute_dtype": "fp8"}, r"one of 'float32', 'bfloat16', 'int8': got 'fp8'"),
        ("data", {"corpus": "csv"}, r"data\.corpus must be one of 'text', 'tfds', 'numerals'"),
        ("data", {"batching": "none"}, r"data\.batching must be one of 'buckets', 'packing'"),
        (
            "data",
            {"tokens_per_batch": 100, "max_length": 101},
            r"hold at least one sentence .*: got tokens_per_batch=100, max_length=101",
        ),
        ("training", {"learning_rate_scale": float("nan")}, r"must be greater than 0: got nan"),
        ("training", {"gradient_accumulation": 0}, r"accumulation must be greater than 0"),
        ("training", {"label_smoothing": 1.0}, r"label_smoothing must be .* less than 1: got 1\.0"),
        ("training", {"clip_norm": 0.0}, r"clip_norm must be greater than 0 or left out: got 0\.0"),
        ("training", {"weight_decay": -0.1}, r"weight_decay must be 0 or more: got -0\.1"),
        (
            "training",
            {"schedule": "linear", "warmup_steps": 100_000},
            r"warmup_steps must be less than training\.steps with .*: got 100000 and 100000",
        ),
        (
            "training",
            {"optimizer": "muon", "adam_dtype": "bfloat16"},
            r"adam_dtype=bfloat16 needs training\.optimizer=adam: got muon",
        ),
        ("training", {"eval_sentences": -1}, r"eval_sentences must be 0 or more: got -1"),
        ("training", {"eval_every": 1000}, r"multiple of .*checkpoint_every.*: got 1000 and 1500"),
        ("search", {"seed": -1}, r"search\.seed must be from 0 to \d+: got -1"),
        ("search", {"top_k": 5}, r"\.top_k needs search\.method=sampling: got 5 with .*=beam"),
        ("search", {"diversity_groups": 3}, r"must divide search\.beam_size: got 3 and 4"),
        (
            "search",
            {"method": "sampling", "diversity_groups": 2, "diversity_penalty": 1.0},
            r"search\.diversity_groups needs search\.method=beam",
        ),
    ],
)
def test_values_that_cannot_work_are_refused(section, values, message):
    with pytest.raises(UserError, match=message):
        Config.from_dict({section: values})
    if section != "search":  # Tested in unit/search/test_settings.py.
        with pytest.raises(UserError, match=message):
            SECTIONS[section](**values)


FLAT = {
    **{"method": "beam", "beam_size": 4, "length_penalty": 0.6, "penalty": "gnmt"},
    **{"max_extra_length": 50, "max_length": None, "min_length": 0, "no_repeat_ngram": 0},
    **{"diversity_groups": 1, "diversity_penalty": 0.0},
    **{"temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 0},
}


def test_a_file_has_one_flat_section_for_the_search():
    """The fields of commit 8c81d1e, and fields that were added later."""
    rules = {"ends_within": "2N", "unfinished": "fallback", "early_stop": "proven"}
    rules |= {"num_samples": None}
    assert Config().to_dict()["search"] == FLAT | rules
    drawn = Config(search=Sampling(num_samples=7, top_k=3)).to_dict()["search"]
    assert drawn == FLAT | rules | {"method": "sampling", "num_samples": 7, "top_k": 3}
    assert Config.from_dict({"search": FLAT}).search == BeamSearch()
    drawn = FLAT | {"method": "sampling", "beam_size": 7, "temperature": 0.5}
    assert Config.from_dict({"search": drawn}).search == Sampling(num_samples=7, temperature=0.5)


def test_searches_that_a_file_cannot_hold_are_refused():
    with pytest.raises(UserError, match=r"search\.eos_id must be 1, as in .*: got 5"):
        Config(search=BeamSearch(eos_id=5))
    with pytest.raises(UserError, match="above 0 go together: got 2 and 0"):
        Config(search=BeamSearch(diversity_groups=2))
    constrained = Config(search=BeamSearch(constraints=(lambda logits, context: logits,)))
    with pytest.raises(UserError, match=r"search\.constraints cannot be part of a file"):
        constrained.to_dict()


def test_numpy_numbers_become_python_numbers(tmp_path):
    model = ModelConfig(d_model=np.int64(8), num_heads=np.int32(2), dropout_rate=np.float32(0.5))
    assert model == ModelConfig(d_model=8, num_heads=2, dropout_rate=0.5)
    save(Config(model=model), tmp_path / "config.json")
    assert load(tmp_path / "config.json").model == model
    for name, value, kind in (
        *(("d_model", value, "int") for value in ("512", 512.0)),
        *(("dropout_rate", None, "float"), ("biases", 1, "bool")),
    ):
        message = f"model.{name} must be of type {kind}: got {value!r}"
        with pytest.raises(UserError, match=re.escape(message)):
            ModelConfig(**{name: value})


def test_sections_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="model must be a ModelConfig: got DataConfig"):
        Config(model=DataConfig())  # pyright: ignore[reportArgumentType]
    for data, name in ((DataConfig(), "max_length"), (StreamConfig(file="text.txt"), "length")):
        with pytest.raises(UserError, match=rf"data\.{name} must not exceed .*: got 256 > 128"):
            Config(model=ModelConfig(max_length=128), data=data)


@pytest.mark.parametrize(
    ("d_model", "num_heads", "near"), [(512, 7, 8), (12, 5, 4), (2**20, 3, 2), (1046527, 9, 1)]
)
def test_message_suggests_the_nearest_number_of_heads_that_divides(d_model, num_heads, near):
    with pytest.raises(
        UserError, match=rf"got num_heads={num_heads}, .*; use num_heads={near}, or"
    ):
        ModelConfig(d_model=d_model, num_heads=num_heads)
    for given_size, other in (("d_k", "d_v"), ("d_v", "d_k")):
        with pytest.raises(UserError, match=rf"when model\.{other} is not given"):
            ModelConfig(num_heads=7, **{given_size: 64})


@given(st.integers(1, 100).map(lambda half: 2 * half), st.integers(1, 300))
def test_suggested_number_of_heads_works(d_model, num_heads):
    try:
        model = ModelConfig(d_model=d_model, num_heads=num_heads)
    except UserError as error:
        assert d_model % num_heads
        offered = int(str(error).split("use num_heads=")[1].split(",")[0])
        assert ModelConfig(d_model=d_model, num_heads=offered).num_heads == offered
    else:
        assert model.key_size * num_heads == d_model


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"modle": {}}, r"unknown config field modle; did you mean model\?"),
        ({"model": {"num_layer": 3}}, r"field model\.num_layer; did you mean model\.num_layers\?"),
        ({"search": {"xyzzy": 1}}, r"search\.xyzzy; known: method, beam_size, length_penalty, "),
        ({"model": None}, r"model: expected fields, got None"),
        ({"data": ["text"]}, r"data: expected fields, got \['text'\]"),
        ({"model": {"d_model": 512.0}}, r"model\.d_model must be of type int: got 512\.0"),
        ({"model": {"d_k": "64"}}, r"model\.d_k must be of type int: got '64'"),
        ({"model": {"norm_position": 1}}, r"model\.norm_position must be of type str: got 1"),
        ({"search": {"beam_size": True}}, r"search\.beam_size must be of type int: got True"),
        ({"search": {"length_penalty": False}}, r"length_penalty must be of type float: got False"),
        ({"training": {"clip_norm": "1"}}, r"training\.clip_norm must be of type float: got '1'"),
        ({"data": {"corpus": "a\nb"}}, r"data\.corpus must be one of .*: got 'a\\nb'"),
        ({"data": {"corpus": "stream"}}, r"data\.file must name a text, .*: got ''"),
        ({"data": {"corpus": "stream", "file": "a", "rows": 0}}, r"data\.rows must be greater"),
        ({"data": {"corpus": "stream", "train": "a"}}, r"unknown config field data\.train; "),
        ({"data": {"corpus": "stream", "file": "s3://a"}}, r"data\.file: .*s3://a"),
    ],
)
def test_dictionaries_that_do_not_fit_are_refused(values, message):
    with pytest.raises(UserError, match=message) as caught:
        Config.from_dict(values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"no such file; expected the config that"),
        (b"", r"expected a JSON config: Expecting value"),
        (b'{"model": {', r"expected a JSON config: .* line 1 column 12"),
        (b'{"data": {"train": "caf\xe9"}}', r"expected a JSON config: 'utf-8' codec can't decode"),
        (b"[1, 2]", r"config: expected fields, got \[1, 2\]"),
        (b'{"model": {"d_modle": 8}}', r"d_modle; did you mean model\.d_model\?"),
        (b'{"model": {"num_heads": 7}}', r"num_heads must divide"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, content, message):
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=rf"config\.json: .*{message}") as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_file_cut_short_anywhere_is_refused(tmp_path):
    path = tmp_path / "config.json"
    save(UNUSUAL, path)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 2, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match="expected a JSON config"):
            load(path)


def test_a_config_dict_keeps_types_and_names():
    values = to_config_dict(Config())
    assert isinstance(values, config_dict.ConfigDict)
    for section, name, wrong, right in (
        ("model", "d_model", "wide", 32),
        ("model", "d_k", "wide", 32),  # Optional fields are None at first.
        ("training", "clip_norm", "tight", 1.5),
    ):
        with pytest.raises(TypeError):
            values[section][name] = wrong
        values[section][name] = right
        assert getattr(getattr(Config.from_dict(values.to_dict()), section), name) == right
    values.lock()
    with pytest.raises(AttributeError, match='Did you mean "num_layers"'):
        values.model.num_layer = 3


def test_variants():
    variants = {"": Config(), "tiny": UNUSUAL, "wide": Config()}
    assert Config.from_dict(select(variants, "").to_dict()) == Config()
    assert Config.from_dict(select(variants, "tiny").to_dict()) == UNUSUAL
    words = r"'tny'; known variants: none \(the default\), 'tiny', 'wide'"
    with pytest.raises(UserError, match=words):
        select(variants, "tny")
    with pytest.raises(UserError, match=r"'tiny'; known variants: none \(the default\)$"):
        select({"": Config()}, "tiny")


CONFIG_FILE = """
from jaxformer.config import Config, ModelConfig, select

def get_config(variant=""):
    return select({"": Config(), "tiny": Config(model=ModelConfig(num_layers=1))}, variant)
"""


@pytest.fixture
def parse(tmp_path):
    """Loads a config file with a variant and overrides, as on the command line."""
    path = tmp_path / "experiment.py"
    path.write_text(CONFIG_FILE, encoding="utf-8")
    return lambda *overrides, variant="": load_config(f"{path}{variant}", overrides)


def test_overrides_on_the_command_line_are_typed(parse):
    assert parse() == Config()
    assert parse(variant=":tiny") == Config(model=ModelConfig(num_layers=1))
    found = parse(
        *("--config.model.num_layers=3", "--config.model.d_k=16", "--config.model.d_v=32"),
        *("--config.model.norm_position=pre", "--config.data.train=my/train"),
        *("--config.training.clip_norm=1", "--config.training.learning_rate_scale=2"),
        "--config.search.beam_size=1",
        variant=":tiny",
    )
    expected = Config(
        model=ModelConfig(num_layers=3, d_k=16, d_v=32, norm_position="pre"),
        data=DataConfig(train="my/train"),
        training=TrainingConfig(clip_norm=1.0, learning_rate_scale=2.0),
        search=BeamSearch(beam_size=1),
    )
    assert repr(found) == repr(expected)  # Also the types of numbers.


def test_the_method_of_a_search_can_be_overridden(parse):
    found = parse("--config.search.method=sampling", "--config.search.top_k=10")
    assert found == Config(search=Sampling(top_k=10))
    for old_or_new in ("num_samples", "beam_size"):
        found = parse("--config.search.method=sampling", f"--config.search.{old_or_new}=7")
        assert found == Config(search=Sampling(num_samples=7))


def test_wrong_overrides_are_refused(parse):
    for words, *overrides in (
        (r"search\.top_k needs search\.method=sampling: got 10 with .*=beam", "search.top_k=10"),
        (
            r"early_stop needs search\.method=beam: got full",
            *("search.method=sampling", "search.early_stop=full"),
        ),
        ("num_heads must divide", "model.num_heads=7"),
        ("did you mean model.num_layers", "model.num_layer=3"),
        (r"model.num_layers: expected an integer, got '3\.5'", "model.num_layers=3.5"),
        ("model.d_k: expected an integer, got 'wide'", "model.d_k=wide"),
        ("training.clip_norm: expected a number, got 'tight'", "training.clip_norm=tight"),
    ):
        with pytest.raises(UserError, match=words):
            parse(*(f"--config.{override}" for override in overrides))


def test_fit_config_is_a_subset_of_training_config_with_its_own_name():
    shared = {field.name for field in dataclasses.fields(FitConfig)}
    assert shared < {field.name for field in dataclasses.fields(TrainingConfig)}
    for words, values in (
        (r"fit\.steps must be greater than 0: got 0", {"steps": 0}),
        (r"fit\.eval_every must be a .* fit\.checkpoint", {"eval_every": 9, "checkpoint_every": 4}),
        (r"fit\.seed must be from 0 to 2147483647: got -1", {"seed": -1}),
    ):
        with pytest.raises(UserError, match=words):
            FitConfig(**values)


def test_fields_are_understood_by_their_old_names(capsys):
    """For one release; workdirs of earlier versions are read without a word."""
    values = {"training": {"accumulation": 4, "moments": "bfloat16"}}
    expected = TrainingConfig(gradient_accumulation=4, adam_dtype="bfloat16")
    assert Config.from_dict(values).training == expected
    with pytest.warns(FutureWarning, match=r"training\.moments is now training\.adam_dtype"):
        assert TrainingConfig(gradient_accumulation=4, moments="bfloat16") == expected
    with pytest.warns(FutureWarning, match=r"fit\.accumulation is now fit\.gradient_acc"):
        assert FitConfig(accumulation=4) == FitConfig(gradient_accumulation=4)
    words = rename_flags(["--config.training.accumulation=4", "--config.training.steps=3"])
    assert words == ["--config.training.gradient_accumulation=4", "--config.training.steps=3"]
    assert "--config.training.accumulation is now" in capsys.readouterr().err


def test_sizes_are_bounded():
    """Also in time: d_model=10^11 once looked for its divisors."""
    for name in ("d_model", "d_ff", "num_layers", "d_k", "vocab_size", "max_length"):
        for size in (2**20 + 1, 10**11, 10**400):
            with pytest.raises(UserError, match=f"model.{name} must be at most 1048576: got 1"):
                ModelConfig(**{"num_heads": 7, name: size})
