import dataclasses
import json

import pytest

from jaxformer.cli.config_file import load_config
from jaxformer.config import (
    Config,
    DataConfig,
    FitConfig,
    MeshConfig,
    ModelConfig,
    StreamConfig,
    TrainingConfig,
    read_config,
    save_config,
    select,
    to_config_dict,
)
from jaxformer.errors import UserError
from jaxformer.runs.workdir import Workdir
from jaxformer.search import BeamSearch, Sampling

SECTIONS = {
    "model": ModelConfig,
    "data": DataConfig,
    "training": TrainingConfig,
    "mesh": MeshConfig,
}
# Ids belong to the vocabulary, and constraints are not plain values.
NOT_IN_FILES = {"bos_id", "eos_id", "other_ends", "pad_id", "constraints"}

# An experiment in which no field has its default value.
UNUSUAL = Config.from_dict(
    {
        "model": {
            "vocab_size": 100,
            "d_model": 24,
            "d_ff": 48,
            "num_heads": 5,
            "num_layers": 2,
            "d_k": 6,
            "d_v": 7,
            "dropout_rate": 0.25,
            "attention_dropout_rate": 0.125,
            "norm_position": "pre",
            "depth_scaling": "gpt2",
            "positions": "learned",
            "activation": "swish",
            "qk_norm": True,
            "window": 9,
            "biases": True,
            "embeddings": "separate",
            "target_vocab_size": 60,
            "norm_epsilon": 1e-5,
            "max_length": 64,
            "compute_dtype": "bfloat16",
        },
        "data": {
            "corpus": "csv",
            "columns": "English,German",
            "builder": "",
            "directory": "elsewhere",
            "source_language": "fr",
            "target_language": "日本語",
            "train": "my/train",
            "valid": "my/valid",
            "tokenizer": "my/tokenizer.model",
            "batching": "packing",
            "tokens_per_batch": 512,
            "max_length": 32,
            "user_defined_symbols": "<name>,<url>",
            "pretokenizer": "moses",
            "lowercase": True,
            "detokenize": False,
        },
        "training": {
            "steps": 10,
            "warmup_steps": 5,
            "learning_rate": 0.002,
            "learning_rate_scale": 0.1,
            "label_smoothing": 0.0,
            "clip_norm": 1.5,
            "gradient_accumulation": 2,
            "seed": 7,
            "remat": "dots",
            "adam_dtype": "bfloat16",
            "log_every": 1,
            "eval_every": 4,
            "eval_on_start": True,
            "ema_decay": 0.9,
            "consistency": 5.0,
            "eval_sentences": 0,
            "checkpoint_every": 2,
            "keep_checkpoints": 1,
            "stall_timeout": 60,
            "mirror": "drive/copy",
            "profile": "3:5",
            "may_change": "learning_rate",
            "init_from": "my/run",
            "freeze": "encoder",
            "patience": 3,
            "best_metric": "loss",
        },
        "mesh": {"data": 2, "fsdp": -1, "tensor": 4, "pipe": 2},
        "search": {
            "method": "sampling",
            "num_samples": 1,
            "length_penalty": 0.0,
            "penalty": "power",
            "max_extra_length": 5,
            "max_length": 40,
            "min_length": 2,
            "no_repeat_ngram": 3,
            "temperature": 0.7,
            "top_k": 10,
            "top_p": 0.9,
            "min_p": 0.1,
            "typical_p": 0.8,
            "seed": 5,
        },
    }
)
# Fields that only Muon, low-rank adapters or a text stream use.
STREAM = Config(
    data=StreamConfig(file="my/text.txt", tokens="bpe", tokenizer="new", length=100, rows=3),
    training=TrainingConfig(
        optimizer="muon",
        schedule="linear",
        weight_decay=0.5,
        lora=8,
        lora_alpha=4.0,
        lora_matrices="query,value",
        teacher="my/teacher",
        attention_weight=0.5,
    ),
)
# Fields that only beam search uses.
DIVERSE = Config(
    search=BeamSearch(
        beam_size=6,
        penalty="none",
        diversity_groups=2,
        diversity_penalty=0.5,
        ends_within="N",
        unfinished="compete",
        early_stop="likely",
    )
)


def test_defaults_are_the_base_model_of_the_paper():
    model = ModelConfig()
    assert model.num_layers == 6
    assert model.d_model == 512
    assert model.d_ff == 2048
    assert model.num_heads == 8
    assert model.key_size == 64  # Table 3
    assert model.value_size == 64
    assert model.dropout_rate == 0.1
    assert model.norm_position == "post"
    assert model.positions == "sinusoidal"

    training = TrainingConfig()
    assert training.steps == 100_000  # Section 5.2
    assert training.warmup_steps == 4000  # Section 5.3
    assert training.label_smoothing == 0.1
    assert training.clip_norm is None

    search = Config().search
    assert search.beam_size == 4
    assert search.length_penalty == 0.6
    assert search.max_extra_length == 50


def test_sizes_of_heads_may_be_given():
    free = ModelConfig(num_heads=7, d_k=16, d_v=24)
    assert free.key_size == 16
    assert free.value_size == 24


@pytest.mark.parametrize("section", [*SECTIONS.values(), BeamSearch, Sampling])
def test_unusual_covers_every_field(section):
    """Otherwise the round trips below could lose a field unnoticed."""
    unusual = []
    for config in (UNUSUAL, DIVERSE, STREAM):
        unusual += vars(config).values()

    names = {field.name for field in dataclasses.fields(section)}
    for name in names - NOT_IN_FILES:
        default = getattr(section(), name)
        assert any(getattr(each, name, default) != default for each in unusual), name


@pytest.mark.parametrize("config", [Config(), UNUSUAL, DIVERSE, STREAM])
def test_round_trips(config, tmp_path):
    saved = json.dumps(config.to_dict())
    assert Config.from_dict(json.loads(saved)) == config
    assert Config.from_dict(to_config_dict(config).to_dict()) == config
    assert hash(Config.from_dict(config.to_dict())) == hash(config)  # Static arguments of jax.jit.

    path = tmp_path / "config.json"
    save_config(config, path)
    assert read_config(Workdir(tmp_path)) == config
    save_config(Config(), path)
    assert read_config(Workdir(tmp_path)) == Config()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        ("model", {"d_model": -8}, r"model\.d_model must be greater than 0: got -8"),
        ("model", {"dropout_rate": float("nan")}, r"model\.dropout_rate must be .*: got nan"),
        ("model", {"d_k": 0}, r"model\.d_k must be greater than 0: got 0"),
        (
            "model",
            {"embeddings": "separate", "vocab_size": 50, "target_vocab_size": 51},
            r"target_vocab_size must be from 1 to model\.vocab_size=50, .*: got 51",
        ),
        ("model", {"d_model": 512, "num_heads": 7}, r"got 7; use 8, or set model\.d_k"),
        ("model", {"d_model": 9, "num_heads": 3}, r"d_model must be even, .*: got 9; use 10"),
        ("model", {"norm_position": "mid"}, r"one of 'post', 'pre': got 'mid'"),
        ("data", {"corpus": "pdf"}, r"data\.corpus must be one of 'text', 'tfds', 'numerals'"),
        (
            "data",
            {"tokens_per_batch": 100, "max_length": 101},
            r"hold at least one sentence .*: got tokens_per_batch=100, max_length=101",
        ),
        ("training", {"label_smoothing": 1.0}, r"label_smoothing must be .* less than 1: got 1\.0"),
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
        ("training", {"ema_decay": 1.0}, r"ema_decay must be at least 0 and less than 1: got 1\.0"),
        ("training", {"eval_every": 1000}, r"multiple of .*checkpoint_every.*: got 1000 and 1500"),
        ("search", {"top_k": 5}, r"\.top_k needs search\.method=sampling: got 5 with .*=beam"),
    ],
)
def test_values_that_cannot_work_are_refused(section, values, message):
    with pytest.raises(UserError, match=message):
        Config.from_dict({section: values})

    if section != "search":  # Tested in unit/search/test_settings.py.
        with pytest.raises(UserError, match=message):
            SECTIONS[section](**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"modle": {}}, r"unknown config field modle; did you mean model\?"),
        ({"model": {"num_layer": 3}}, r"field model\.num_layer; did you mean model\.num_layers\?"),
        ({"search": {"xyzzy": 1}}, r"search\.xyzzy; known: method, beam_size, length_penalty, "),
        ({"model": None}, r"model: expected fields, got None"),
        ({"model": {"d_model": 512.0}}, r"model\.d_model must be of type int: got 512\.0"),
        ({"search": {"beam_size": True}}, r"search\.beam_size must be of type int: got True"),
        ({"data": {"user_defined_symbols": "a,</s>"}}, r"must be words .* no special tokens"),
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
        (b"", r"expected JSON: Expecting value"),
        (b'{"data": {"train": "caf\xe9"}}', r"expected JSON: 'utf-8' codec can't decode"),
        (b"[1, 2]", r"expected a JSON object, found list"),
        (b'{"model": {"num_heads": 7}}', r"num_heads must divide"),
        (b'{"fit": {"steps": 9}}', r"expected a run of a config, got one of jaxformer\.fit"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, content, message):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"config\.json: .*{message}") as caught:
        read_config(Workdir(tmp_path))
    assert str(caught.value).startswith(f"{path}: ")


def test_variants():
    variants = {"": Config(), "tiny": UNUSUAL, "wide": Config()}
    assert Config.from_dict(select(variants, "").to_dict()) == Config()
    assert Config.from_dict(select(variants, "tiny").to_dict()) == UNUSUAL

    words = r"'tny'; known variants: none \(the default\), 'tiny', 'wide'"
    with pytest.raises(UserError, match=words):
        select(variants, "tny")


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

    def parse(*overrides, variant=""):
        return load_config(f"{path}{variant}", overrides)

    return parse


def test_overrides_on_the_command_line_are_typed(parse):
    assert parse() == Config()
    assert parse(variant=":tiny") == Config(model=ModelConfig(num_layers=1))

    found = parse(
        "--config.model.num_layers=3",
        "--config.model.d_k=16",
        "--config.model.d_v=32",
        "--config.model.norm_position=pre",
        "--config.data.train=my/train",
        "--config.training.clip_norm=1",
        "--config.training.learning_rate_scale=2",
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

    found = parse("--config.search.method=sampling", "--config.search.top_k=10")
    assert found == Config(search=Sampling(top_k=10))


def test_the_optimizer_of_old_configs_is_adam():
    saved = {"optimizer": "adamw", "weight_decay": 0.1}  # by 0.2.0
    assert Config.from_dict({"training": saved}).training.optimizer == "adam"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("search.top_k=10", r"search\.top_k needs search\.method=sampling: got 10 with .*=beam"),
        ("model.num_layer=3", "did you mean model.num_layers"),
        ("training.max-steps=8", r"field training\.max-steps; did you mean training\.steps\?"),
        ("mesh.zzz=3", "unknown config field mesh.zzz; known: data, fsdp, pipe, tensor"),
        ("model.num_layers=3.5", r"model.num_layers: expected an integer, got '3\.5'"),
        ("training.clip_norm=tight", "training.clip_norm: expected a number, got 'tight'"),
    ],
)
def test_wrong_overrides_are_refused(override, message, parse):
    with pytest.raises(UserError, match=message):
        parse(f"--config.{override}")


def test_fit_config_is_a_subset_of_training_config_with_its_own_name():
    shared = {field.name for field in dataclasses.fields(FitConfig)}
    assert shared < {field.name for field in dataclasses.fields(TrainingConfig)}

    with pytest.raises(UserError, match=r"fit\.steps must be greater than 0: got 0"):
        FitConfig(steps=0)


@pytest.mark.parametrize(
    "name", ["d_model", "d_ff", "num_layers", "d_k", "vocab_size", "max_length"]
)
@pytest.mark.parametrize(
    "size", [2**20 + 1, 10**11, 10**400], ids=["2**20 + 1", "10**11", "10**400"]
)
def test_sizes_are_bounded(name, size):
    """Also in time: d_model=10^11 once looked for its divisors."""
    with pytest.raises(UserError, match=f"model.{name} must be at most 1048576: got 1"):
        ModelConfig(**{"num_heads": 7, name: size})
