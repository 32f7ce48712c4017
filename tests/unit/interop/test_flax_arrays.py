"""Flax models: files that transformers 4 wrote have PyTorch's numbers, and others are refused.

``tests/fixtures/make_flax.py`` made the files with transformers 4, which converted them itself.
"""

import json
import pathlib
import shutil
import sys
import types

import flax.serialization
import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest
import safetensors.numpy

from jaxformer.errors import UserError
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop.flax_arrays import pytorch_name, read_flax
from jaxformer.interop.huggingface.importer import import_huggingface
from jaxformer.interop.weight_files import NOTHING, read_weights

FIXTURES = pathlib.Path(__file__).parents[2] / "fixtures"
FLAX = FIXTURES / "flax"
FILE = "flax_model.msgpack"
MODELS = sorted({str(path.parent.relative_to(FLAX)) for path in FLAX.rglob("flax_model*")})


def read(folder):
    path, arrays = read_weights(folder, NOTHING, "")
    return path.name, arrays


def check_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, strict=True)


@pytest.mark.parametrize("model", MODELS)
def test_names_axes_and_numbers_are_those_of_pytorch(model, tmp_path):
    original = FIXTURES / model
    if not original.is_dir():
        original = FLAX / model  # It has both files.
    for path in (FLAX / model).glob("flax_model*"):
        shutil.copy(path, tmp_path)

    name, found = read(tmp_path)
    assert name.startswith(FILE)
    check_equal(found, read(original)[1])


def test_the_fixtures_have_every_kind_of_layer():
    """Convolutions, tables, layer norms, Conv1D of GPT-2, and lists of layers."""
    assert len(MODELS) == 11
    arrays = read(FLAX / "vit")[1]
    assert arrays["vit.embeddings.patch_embeddings.projection.weight"].shape == (16, 3, 4, 4)


@pytest.mark.parametrize("model", ["huggingface/gpt2", "huggingface/llama"])
def test_an_import_has_the_same_parameters(model, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(FLAX / model, folder)
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(FIXTURES / model / name, folder)

    summaries = []
    params = []
    for source in (folder, FIXTURES / model):
        workdir = tmp_path / f"run{len(params)}"
        summaries.append(import_huggingface(source, workdir))
        params.append(TrainedModel.load(workdir).params)
    assert summaries[0] == summaries[1]
    jax.tree.map(np.testing.assert_array_equal, *params)


def test_safetensors_come_first_and_pytorch_last(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    arrays = {"x.weight": np.ones(2, "f4")}
    (tmp_path / "pytorch_model.bin").write_bytes(b"needs PyTorch")
    (tmp_path / FILE).write_bytes(flax.serialization.to_bytes({"x": {"scale": arrays["x.weight"]}}))
    assert read(tmp_path)[0] == FILE

    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    assert read(tmp_path)[0] == "model.safetensors"


def test_a_pytorch_model_may_be_in_several_files(tmp_path, monkeypatch):
    """The index is the same as for other formats."""
    tensor = types.SimpleNamespace(float=lambda: types.SimpleNamespace(numpy=lambda: np.ones(2)))
    pytorch = types.SimpleNamespace(load=lambda file, **_: {file.read().decode(): tensor})
    monkeypatch.setitem(sys.modules, "torch", pytorch)

    files = {"a": "pytorch_model-1.bin", "b": "pytorch_model-2.bin"}
    for name, file in files.items():
        (tmp_path / file).write_text(name)
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": files}))
    assert sorted(read(tmp_path)[1]) == ["a", "b"]


def test_safetensors_of_a_flax_model_have_its_names(tmp_path):
    """As ``save_pretrained(..., safe_serialization=True)`` of a Flax model writes them."""
    arrays = {"x.kernel": np.arange(6, dtype="f4").reshape(2, 3), "y.bias": np.ones(2, "f4")}
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors", {"format": "flax"})

    [_, found] = read(tmp_path)
    assert found.keys() == {"x.weight", "y.bias"}
    np.testing.assert_array_equal(found["x.weight"], [[0, 3], [1, 4], [2, 5]])


def test_half_precision_scalars_and_chunks_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", 16)  # bytes; 1 GiB otherwise
    numbers = np.linspace(-3, 3, 30, dtype="f4").reshape(5, 6)
    tree = {
        "brain": {"embedding": numbers.astype(jnp.bfloat16)},
        "half": {"kernel": numbers.astype("f2")},
        "double": {"scale": numbers[0].astype("f8")},
        "logit_scale": np.float32(4.6),
        "temperature": np.array(0.5, "f4"),
        "none": {},
    }
    (tmp_path / FILE).write_bytes(flax.serialization.msgpack_serialize(tree))
    assert b"chunks" in (tmp_path / FILE).read_bytes()

    expected = {
        "brain.weight": numbers.astype(jnp.bfloat16),
        "half.weight": numbers.astype("f2").T,
        "double.weight": numbers[0].astype("f8"),
        "logit_scale": np.array(4.6, "f4"),
        "temperature": np.array(0.5, "f4"),
    }
    check_equal(read(tmp_path)[1], expected)


def test_names_of_flax_end_in_other_words():
    for theirs, name in [
        ("transformer/h/0/attn/c_attn/kernel", "transformer.h.0.attn.c_attn.weight"),
        ("shared/embedding", "shared.weight"),
        ("bert.embeddings.LayerNorm.scale", "bert.embeddings.LayerNorm.weight"),
        ("kernel/embedding/bias", "kernel.embedding.bias"),
        ("logit_scale", "logit_scale"),
    ]:
        assert pytorch_name(theirs) == name


def packed(shape, dtype, content, code=1):
    inner = msgpack.packb((shape, dtype, content))
    return msgpack.ExtType(code, inner)


GOOD = packed([2], "float32", bytes(8))
NESTED = "expected nested dictionaries of arrays, as Flax writes them: "
HOSTILE = [
    (b"", f"{NESTED}No more data"),
    (b"\xc1", f"{NESTED}FormatError"),
    (b"PK\x03\x04 or a pickle", f"{NESTED}found int"),
    (b"\xdd\xff\xff\xff\xff", f"{NESTED}4294967295 exceeds max_array_len"),
    (b"\x81\xa1a" * 5000 + b"\xc0", f"{NESTED}StackError"),
    (b"\x81\xa1a" * 900 + b"\xc0", "expected dictionaries at most 32 deep"),
    (b"\xdf\xff\xff\xff\xff", f"{NESTED}4294967295 exceeds max_map_len"),
    (b"\x81\xa1a\xc9\x7f\xff\xff\xff\x01 short", f"{NESTED}No more data"),
    (b"\x81\xa1a\xc6\xff\xff\xff\xff short", f"{NESTED}No more data"),
    (b"\x81\xa2\xff\xfe\x01", f"{NESTED}'utf-8' codec can't decode"),
    (b"\x81\xa1a\xd6\xff\x00\x00\x00\x01", "a to be an array of floats: got Timestamp"),
    (b"\x80\x80", f"{NESTED}found more after them"),
    ({1: GOOD}, f"{NESTED}int is not allowed for map key"),
    ({b"a": GOOD}, f"{NESTED}found the name b'a'"),
    ({"a" * 1000: GOOD}, f"{NESTED}found the name 'a"),
    ({"a": {str(i): i for i in range(1 << 16)}}, f"{NESTED}found more than 65,536 entries"),
    ([GOOD], f"{NESTED}1 exceeds max_array_len"),
    ({"a": {"b": [GOOD]}}, f"{NESTED}1 exceeds max_array_len"),
    ({"a": {"b": 3}}, "expected a.b to be an array of floats: got int"),
    ({"a": None}, "expected a to be an array of floats: got NoneType"),
    ({"a": "os.system"}, "expected a to be an array of floats: got str"),
    ({"a": msgpack.ExtType(2, b"complex")}, "expected a to be an array of floats: got ExtType"),
    ({"a": msgpack.ExtType(77, b"own")}, "expected a to be an array of floats: got ExtType"),
    ({"a": msgpack.ExtType(1, b"")}, "expected a to be an array of floats: Unpack failed"),
    ({"a": msgpack.ExtType(1, b"\x93")}, "expected a to be an array of floats: Unpack failed"),
    (
        {"a": msgpack.ExtType(1, b"\xdd\xff\xff\xff\xff")},
        "floats: 4294967295 exceeds max_array",
    ),
    ({"a": packed([2], "int32", bytes(8))}, "to be an array of floats: got b'int32'"),
    ({"a": packed([1], "object", bytes(8))}, "to be an array of floats: got b'object'"),
    ({"a": packed([1], "f4,f4", bytes(8))}, "to be an array of floats: got b'f4,f4'"),
    ({"a": packed([1], ["float32"], bytes(4))}, "to be an array of floats: .*unhashable"),
    ({"a": packed([2], "float32", bytes(7))}, "floats: buffer size must be a multiple"),
    ({"a": packed([2**40, 2**20], "float32", bytes(8))}, r"got 2 numbers for the shape \[109951"),
    ({"a": packed([-1], "float32", bytes(8))}, r"got 2 numbers for the shape \[-1\]"),
    ({"a": packed([1.0, 2.0], "float32", bytes(8))}, "floats: 'float' object cannot be"),
    ({"a": packed(2, "float32", bytes(8))}, "floats: 'int' object is not iterable"),
    ({"a": packed([1] * 33, "float32", bytes(4))}, "floats: 33 exceeds max_array_len"),
    ({"a": {"kernel": GOOD, "weight": GOOD}}, r"expected each tensor once, got a\.weight twice"),
    ({"a": {"__msgpack_chunked_array__": True}}, "expected a to be an array of floats: 'chunks'"),
    (
        {"a": {"__msgpack_chunked_array__": True, "chunks": {"0": GOOD}, "shape": {"0": 9}}},
        r"got 2 numbers for the shape \[9\]",
    ),
]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_files_are_refused_in_one_line(number, tmp_path):
    content, message = HOSTILE[number]
    path = tmp_path / FILE
    path.write_bytes(content if isinstance(content, bytes) else msgpack.packb(content))

    with pytest.raises(UserError, match=message) as error:
        read_flax(path, NOTHING)
    assert str(error.value).startswith(f"{path}: ")
    assert len(str(error.value)) < 1500
    assert str(error.value).isprintable()


def test_files_that_end_early_are_refused(tmp_path):
    content = (FLAX / "huggingface" / "gpt2" / FILE).read_bytes()
    path = tmp_path / FILE
    for size in range(0, len(content), 499):
        path.write_bytes(content[:size])
        with pytest.raises(UserError, match="No more data to unpack"):
            read_flax(path, NOTHING)


def test_nan_and_pointers_are_refused(tmp_path):
    model = FIXTURES / "huggingface" / "gpt2"
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(model / name, tmp_path)

    content = (FLAX / "huggingface" / "gpt2" / FILE).read_bytes()
    tree = flax.serialization.msgpack_restore(content)
    tree["transformer"]["ln_f"]["bias"] = np.full(16, np.nan, "f4")
    (tmp_path / FILE).write_bytes(flax.serialization.msgpack_serialize(tree))
    with pytest.raises(UserError, match=f"{FILE}: expected numbers in ln_f.bias: got NaN"):
        import_huggingface(tmp_path, tmp_path / "run")

    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 548105171\n"
    (tmp_path / FILE).write_bytes(pointer)
    with pytest.raises(UserError, match=f"{FILE}: expected the file itself, found a Git LFS"):
        import_huggingface(tmp_path, tmp_path / "run")


def test_an_index_names_arrays_as_flax_does(tmp_path):
    shutil.copytree(FLAX / "huggingface" / "llama", tmp_path, dirs_exist_ok=True)
    index = tmp_path / f"{FILE}.index.json"
    fields = json.loads(index.read_text())
    file = fields["weight_map"].pop("model/layers/0/mlp/up_proj/kernel")

    index.write_text(json.dumps(fields))
    with pytest.raises(UserError, match=rf"expected model.*up_proj\.weight to be in {file}, wh"):
        read(tmp_path)
