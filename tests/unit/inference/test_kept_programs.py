"""A kept program is read instead of traced, and only where it is the same program."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxformer import ModelConfig
from jaxformer.inference import kept_programs, parameter_arrays
from jaxformer.inference.kept_programs import KeptProgram
from jaxformer.models import Transformer

X = jnp.arange(8, dtype=np.float32)


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setattr(kept_programs, "kept_folder", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def traces():
    return []


def number_of(factor):
    """Returns a static value, or what it gives for three if it is a function."""
    return factor(3.0) if callable(factor) else factor


@pytest.fixture
def make(traces):
    """Returns a function that makes a program as a new process would."""

    def scale(factor, x, extra):
        traces.append(factor)
        return {"scaled": number_of(factor) * x, "sum": x.sum() + extra["bias"]}

    return lambda: KeptProgram(scale, static_argnums=(0,))


EXTRA = {"bias": np.float32(1.0)}


def check(program, factor=2.0, x=X):
    scaled, total = program(factor, x, EXTRA)
    expected = number_of(factor) * X
    np.testing.assert_array_equal(np.asarray(scaled), expected)
    np.testing.assert_array_equal(np.asarray(total), X.sum() + 1)


def test_a_second_process_traces_nothing(make, traces):
    for _ in range(2):
        program = make()
        check(program)
        check(program)
    assert traces == [2.0]


def test_several_threads_trace_once(make, traces):
    program = make()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(check, [program] * 8))
    assert traces == [2.0]


def test_each_static_value_shape_and_setting_is_a_program(make, traces, folder):
    check(make())
    check(make(), 3.0)
    make()(2.0, X[:4], EXTRA)
    with jax.default_matmul_precision("highest"):
        check(make())

    assert traces == [2.0, 3.0, 2.0, 2.0]
    assert len(list(folder.iterdir())) == 4


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"\0" + b[1:], lambda b: b""])
def test_a_damaged_file_is_replaced(make, traces, folder, damage):
    check(make())
    [path] = folder.iterdir()
    content = path.read_bytes()
    path.write_bytes(damage(content))

    check(make())
    assert traces == [2.0, 2.0]
    check(make())
    assert traces == [2.0, 2.0]


def test_other_code_traces_again_into_the_same_file(make, traces, folder, monkeypatch):
    check(make())
    monkeypatch.setattr(kept_programs, "code_digest", lambda: "another")
    check(make())

    assert traces == [2.0, 2.0]
    assert len(list(folder.iterdir())) == 1


def test_a_folder_that_cannot_be_written_is_no_error(make, traces, monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr(kept_programs, "kept_folder", lambda: file)

    check(make())
    check(make())
    assert len(traces) == 2


def test_a_program_that_cannot_be_written_is_traced(folder):
    """A callback to Python is a pointer into the process."""

    def call(x):
        return jax.pure_callback(lambda x: 2 * x, x, x)

    [result] = KeptProgram(call)(X)
    np.testing.assert_array_equal(result, 2 * X)
    assert not list(folder.iterdir())


def test_functions_and_distributed_arrays_are_not_kept(make, traces, folder):
    check(make(), lambda x: 2 * x)

    mesh = jax.make_mesh((8,), ("x",))
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    check(make(), x=jax.device_put(X, sharding))

    assert len(traces) == 2
    assert not list(folder.iterdir())


def test_the_structure_is_known_without_the_result(make, traces):
    expected = jax.tree.structure({"scaled": 0, "sum": 0})
    first = make()
    second = make()

    check(first)
    assert first.structure(2.0, X, EXTRA) == expected

    check(second)
    assert traces == [2.0]
    assert second.structure(2.0, X, EXTRA) == expected
    assert traces == [2.0, 2.0]


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_shapes_of_parameters_are_read_instead_of_traced(monkeypatch, folder, dtype):
    config = ModelConfig(vocab_size=40, d_model=8, d_ff=16, num_heads=2, compute_dtype=dtype)
    model = Transformer(config)

    def describe(key, tokens):
        params = model.init(key, tokens, tokens)["params"]
        return parameter_arrays.prepare_params(config, params)

    key = jax.eval_shape(lambda: jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    expected = jax.eval_shape(describe, key, tokens)

    for _ in range(2):  # the second time as in a new process
        parameter_arrays._describe.cache_clear()
        assert parameter_arrays.abstract_params(config) == expected
        monkeypatch.setattr(parameter_arrays, "describe_model", None)
    assert len(list(folder.iterdir())) == 1
