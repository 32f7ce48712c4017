"""A field that nobody knows is refused by name wherever it would be ignored.

The cases come from the registries of the package, so that a new exporter, importer, layer or kernel
has one without being named here. What can carry any field is named: by default, nothing can.
"""

import dataclasses
import functools
import importlib
import inspect
import json
import pathlib
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxformer.nn
from jaxformer.config import Config, ModelConfig
from jaxformer.errors import UserError
from jaxformer.inference.parameter_arrays import abstract_params
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop import safetensors
from jaxformer.interop.bergamot import bergamot_names
from jaxformer.interop.bergamot import importer as bergamot
from jaxformer.interop.huggingface import layouts
from jaxformer.interop.huggingface.exporter import can_write
from jaxformer.interop.huggingface.foreign_layout import Layout
from jaxformer.interop.json_fields import JsonFields
from jaxformer.interop.marian.marian_config import MarianConfig
from jaxformer.interop.systems import known_formats, known_systems
from jaxformer.kinds.selection import known_kinds
from jaxformer.models.student import StudentConfig
from jaxformer.nn import Keys, MultiHeadAttention, kernels
from jaxformer.nn.kernels import KeyValues
from jaxformer.nn.keys import Tokens
from jaxformer.registry import find_values
from jaxformer.search import BeamSearch, Sampling
from jaxformer.tasks import initialization

from . import families

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"
RUN = FIXTURES / "workdir_8c81d1e" / "run"
NAME = "nobody_knows"
FORMATS = {name: format.write for name, format in known_formats().items()}
LAYOUTS = {layout.model_type: layout for layout in find_values(layouts, Layout)}
KINDS = known_kinds()
# A program of the model and the search themselves, our own files, and a system whose search has
# no settings. A model of transformers is written for transformers; see ``FOREIGN``.
CARRY_ANY_SEARCH = {"stablehlo", "safetensors", "argos"}
CARRY_ANY_MODEL = {"safetensors"}
FOREIGN = ("bart", "gpt_neo")  # a model of pairs, and a language model


def changed(instance, value=8):
    """Returns a copy of a dataclass that has one more field, whose default is 0."""
    field = (NAME, int, dataclasses.field(default=0))
    cls = type(instance)
    new = dataclasses.make_dataclass(
        "New",
        [field],
        bases=(cls,),
        frozen=True,
        kw_only=True,
    )
    if issubclass(cls, Keys | Tokens):
        jax.tree_util.register_dataclass(new)

    fields = dataclasses.fields(instance)
    values = {field.name: getattr(instance, field.name) for field in fields}
    return new(**values, **{NAME: value})


@functools.cache
def trained(format):
    """Returns a model that a format can express, of zeros for a student."""
    model = TrainedModel.load(RUN)
    if format != "bergamot":
        return model

    section = StudentConfig(
        vocab_size=model.config.model.vocab_size,
        positions="tensor2tensor",
        d_model=64,
        d_ff=64,
        num_heads=2,
    )
    shapes = abstract_params(section)
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes)
    config = dataclasses.replace(model.config, model=section)
    return dataclasses.replace(model, config=config, params=params)


def with_section(format, **sections):
    """Returns a model that a format can express, with another section of its config."""
    model = trained(format)
    config = dataclasses.replace(model.config, **sections)
    return dataclasses.replace(model, config=config)


def with_new_model(format):
    return with_section(format, model=changed(trained(format).config.model))


def with_new_search(format):
    return with_section(format, search=changed(BeamSearch()))


def exporters():
    """Yields each format with a new field of the model, and of the search."""
    for format, write in FORMATS.items():
        if format not in CARRY_ANY_MODEL:
            call = functools.partial(export, write, with_new_model, format)
            yield f"{format} export, model", call

        if format not in CARRY_ANY_SEARCH:
            call = functools.partial(export, write, with_new_search, format)
            yield f"{format} export, search", call

    for name in FOREIGN:
        for search in (BeamSearch(), Sampling()):
            call = functools.partial(export_to_transformers, name, changed(search))
            yield f"{name} to transformers, {type(search).__name__}", call


def export(write, make, format, folder):
    write(make(format), folder)


def export_to_transformers(name, search, folder):
    trained = families.imported(name).trained
    config = dataclasses.replace(trained.config, search=search)
    model = dataclasses.replace(trained, config=config)
    assert can_write(model)
    FORMATS["safetensors"](model, folder)


def import_layout(layout, folder):
    values = {**layout.defaults, **layout.only, NAME: 8}
    layout.config(JsonFields(folder / "config.json", values), None)


def import_hf(folder):
    for layout in LAYOUTS.values():
        import_layout(layout, folder)


def import_marian(folder):
    original = FIXTURES / "marian" / "swish_tied" / "config.json"
    fields = json.loads(original.read_bytes())
    fields[NAME] = 8
    (folder / "config.json").write_text(json.dumps(fields))
    MarianConfig(folder)


def import_bergamot(folder):
    sizes = dict.fromkeys(bergamot_names.SIZES.values(), "2")
    settings = bergamot_names.SETTINGS | sizes | {NAME: "8"}
    bergamot._model(folder / "model.bin", settings, 40, split=False)


IMPORTERS = {"hf": import_hf, "marian": import_marian, "bergamot": import_bergamot}


def importers():
    """Yields the import of each system of the command, and of each layout of transformers."""
    for system in known_systems():
        yield f"{system} import", IMPORTERS[system]
    for name, layout in LAYOUTS.items():
        yield f"{name} import", functools.partial(import_layout, layout)


HEADS = jnp.asarray(np.ones((1, 4, 2, 8), np.float32))
X = jnp.asarray(np.ones((1, 4, 16), np.float32))


def new_keys(part, **rules):
    """Returns causal keys, with a new field of their own or of their tokens."""
    keys = Keys.of_sequence(4, causal=True, **rules)
    if part == "keys":
        return changed(keys)
    tokens = changed(keys.queries)
    return dataclasses.replace(keys, queries=tokens, keys=tokens)


def call_kernel(kernel, part, folder):
    def call():
        key_values = KeyValues(HEADS, HEADS)
        return kernel(HEADS, key_values, new_keys(part, window=1))

    jax.eval_shape(call)


def call_layer(layer, keys, folder):
    has_heads = "num_heads" in inspect.signature(layer).parameters
    module = layer(num_heads=2) if has_heads else layer()

    def call():
        return module.init(jax.random.key(0), X, keys(), method="attend")

    jax.eval_shape(call)


def modules():
    for module in pkgutil.iter_modules(jaxformer.nn.__path__, "jaxformer.nn."):
        yield importlib.import_module(module.name)


def is_kernel(name, value):
    if not inspect.isfunction(value) or name.startswith("_"):
        return False
    types = value.__annotations__
    return types.get("keys") is Keys and types["return"] is not bool


def attention_kernels():
    """Yields each kernel with new fields of keys and of tokens."""
    for name, function in vars(kernels).items():
        if not is_kernel(name, function):
            continue
        for part in ("keys", "tokens"):
            yield f"{name}, {part}", functools.partial(call_kernel, function, part)


def attention_layers():
    """Yields each layer with ``attend``, with new fields of keys and of tokens."""
    for module in modules():
        for name, layer in vars(module).items():
            is_own = getattr(layer, "__module__", "") == module.__name__
            if not is_own or not hasattr(layer, "attend"):
                continue

            for part in ("keys", "tokens"):
                keys = functools.partial(new_keys, part)
                yield f"{name}, {part}", functools.partial(call_layer, layer, keys)

            # Layers inherit the fields that MultiHeadAttention gets.
            if issubclass(layer, MultiHeadAttention) and layer is not MultiHeadAttention:
                new = type("New", (layer,), {"__annotations__": {NAME: int}, NAME: 0})
                new = functools.partial(new, **{NAME: 8})
                keys = functools.partial(Keys.of_sequence, 4, causal=True)
                yield f"{name}, field", functools.partial(call_layer, new, keys)


def networks():
    """Yields each network, built from a section of its class with a new field."""
    for kind in KINDS:
        for network in kind.networks:
            build = functools.partial(build_network, kind, changed(network.section()))
            yield f"{network.__name__} as {kind.description}", build


def build_network(kind, section, folder):
    kind.build(section)


def start_from(ours, theirs, monkeypatch, folder):
    """Begins a run with a model that has another value of a field."""
    (folder / "config.json").write_text("{}")
    training = dataclasses.replace(Config().training, init_from=str(folder))
    config = dataclasses.replace(Config(), model=ours, training=training)

    source = dataclasses.replace(Config(), model=theirs)
    monkeypatch.setattr(initialization, "read_config", lambda _: source)
    initialization.check_initialization(config)


def files():
    """Yields a config.json with a new field in each section, of each kind of experiment."""
    for kind in KINDS:
        for section in dataclasses.fields(Config):
            values: dict[str, dict] = {section.name: {NAME: 8}}
            values.setdefault("data", {})["corpus"] = kind.corpora[0]
            read = functools.partial(read_file, values)
            yield f"config.json, {section.name} of {kind.description}", read


def read_file(values, folder):
    Config.from_dict(values)


PLACES = [
    *exporters(),
    *importers(),
    *attention_kernels(),
    *attention_layers(),
    *networks(),
    *files(),
]


@pytest.mark.parametrize("place", [pytest.param(call, id=name) for name, call in PLACES])
def test_a_field_that_nobody_knows_is_refused_by_name(place, tmp_path):
    with pytest.raises(UserError, match=NAME) as error:
        place(tmp_path)
    assert "\n" not in str(error.value)


def test_a_model_to_begin_with_has_the_same_value(tmp_path, monkeypatch):
    """A field that is new determines the layers, unless its facts say otherwise."""
    ours = changed(ModelConfig(), 0)
    theirs = dataclasses.replace(ours, **{NAME: 8})
    with pytest.raises(UserError, match=f"give --config.model.{NAME}=8"):
        start_from(ours, theirs, monkeypatch, tmp_path)


def test_our_own_files_carry_a_new_field(tmp_path):
    for with_new in (with_new_model, with_new_search):
        folder = tmp_path / with_new.__name__
        folder.mkdir()
        safetensors.write(with_new("safetensors"), folder)
        assert f'"{NAME}": 8' in (folder / "config.json").read_text()
    assert not can_write(with_new_model("safetensors"))


def test_a_program_runs_the_search_itself(tmp_path):
    """A search with a new field has a method that uses it, which the export calls."""

    class New(BeamSearch):
        def extend(self, state, logits):
            raise RuntimeError(NAME)

    with pytest.raises(RuntimeError, match=NAME):
        FORMATS["stablehlo"](with_section("stablehlo", search=New()), tmp_path)


def test_transformers_gets_no_search_that_generate_lacks(tmp_path):
    diverse = BeamSearch(diversity_groups=2, diversity_penalty=0.5)
    message = r"bart: expected search\.diversity_groups=1, got 2; give --diversity-groups 1"
    with pytest.raises(UserError, match=f"^{message}$"):
        export_to_transformers("bart", diverse, tmp_path)

    known = BeamSearch(beam_size=2, penalty="none", max_length=9, unfinished="end")
    export_to_transformers("bart", known, tmp_path)
