"""Every JAX transformation over every building block that users take into their own code.

A subject is a loss, summed over the rows of a batch, as a function of parameters and the batch.
Derivatives are compared with finite differences once. Under all other transformations, values and
gradients must equal the untransformed ones. Flax's own attention runs the same list as a control.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.nnx import bridge
from jax import export
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.test_util import check_grads

from jaxformer import (
    Block,
    FeedForward,
    ModelConfig,
    MultiHeadAttention,
    Residual,
    Transformer,
    beam_search,
    causal_mask,
    cross_entropy,
)

ROWS, LENGTH, WIDTH, VOCABULARY = 8, 4, 4, 11
CONFIG = ModelConfig(
    vocab_size=VOCABULARY,
    d_model=WIDTH,
    d_ff=6,
    num_heads=2,
    num_layers=2,
    activation="swish",  # Smooth everywhere, unlike ReLU, as finite differences need.
    dropout_rate=0.5,
    max_length=8,
)


@dataclasses.dataclass(frozen=True)
class Subject:
    """A loss to transform.

    Attributes:
      loss: Function of (params, batch), summed over the rows of the batch.
      params: Its parameters.
      batch: Arrays whose first axis is rows.
      leaf: Path of a small parameter, for transformations that build whole Jacobians.
      tolerance: Tolerance of values and gradients, relative to their norms.
      module: The linen module, or None for a function.
      inputs: Returns the inputs of the module from the batch.
    """

    loss: Callable[[Any, Any], jax.Array]
    params: Any
    batch: Any
    leaf: tuple[str, ...]
    tolerance: float
    module: nn.Module | None = None
    inputs: Callable[[Any], tuple] = lambda batch: (batch,)


def activations(seed=0):
    random = np.random.default_rng(seed)
    return jnp.asarray(random.normal(size=(ROWS, LENGTH, WIDTH)), jnp.float32)


def of_module(module, leaf, batch=None, inputs=lambda batch: (batch,), tolerance=2e-5):
    batch = activations() if batch is None else batch
    params = module.init(jax.random.key(0), *inputs(batch))["params"]
    # Biases are zero at initialization.
    params = jax.tree.map(lambda p: p + 0.1 * jnp.cos(jnp.arange(p.size).reshape(p.shape)), params)

    def loss(params, batch):
        return jnp.sin(module.apply({"params": params}, *inputs(batch))).sum()

    return Subject(loss, params, batch, leaf, tolerance, module, inputs)


def of_loss(dtype, tolerance):
    random = np.random.default_rng(0)
    params = {
        "embedding": jnp.asarray(random.normal(size=(VOCABULARY, WIDTH)), jnp.float32),
        "mix": jnp.asarray(random.normal(size=(WIDTH, WIDTH)), jnp.float32),
    }
    batch = {
        "features": activations()[:, 0],
        "targets": jnp.arange(ROWS) % VOCABULARY,
        "weights": jnp.linspace(0, 1, ROWS),
    }

    def loss(params, batch):
        features = jnp.dot(batch["features"], params["mix"]).astype(dtype)
        weights = batch["weights"] * jnp.abs(params["mix"][0, 0])
        return cross_entropy(features, params["embedding"], batch["targets"], weights, 0.1)[0]

    return Subject(loss, params, batch, ("embedding",), tolerance)


def tokens():
    return jnp.asarray(np.random.default_rng(1).integers(3, VOCABULARY, (ROWS, LENGTH)))


def attention(dtype):
    return MultiHeadAttention(2, dropout_rate=0.5, compute_dtype=dtype)


def feed_forward(dtype):
    return FeedForward(6, "swish", dtype)


residual = functools.partial(Residual, dropout_rate=0.5)

SUBJECTS = {
    "flax": lambda: of_module(nn.MultiHeadDotProductAttention(2), ("query", "kernel")),
    "attention": lambda: of_module(attention("float32"), ("query",)),
    "attention, bfloat16": lambda: of_module(attention("bfloat16"), ("query",), tolerance=0.03),
    "feed-forward": lambda: of_module(feed_forward("float32"), ("inner",)),
    "feed-forward, bfloat16": lambda: of_module(
        feed_forward("bfloat16"), ("inner",), tolerance=0.03
    ),
    "encoder block": lambda: of_module(
        Block(attention("float32"), feed_forward("float32"), make_residual=residual),
        ("self_attention", "query"),
    ),
    "decoder block": lambda: of_module(
        Block(
            attention("bfloat16"),
            feed_forward("bfloat16"),
            cross_attention=attention("bfloat16"),
            make_residual=residual,
        ),
        ("cross_attention", "query"),
        inputs=lambda x: (x, jnp.flip(x, 1), causal_mask(LENGTH)),
        tolerance=0.03,
    ),
    "transformer": lambda: of_module(
        Transformer(CONFIG),
        ("encoder", "layers", "feed_forward", "inner_bias"),
        batch=tokens(),
        inputs=lambda x: (x, jnp.flip(x, 1)),
    ),
    "loss": lambda: of_loss("float32", 2e-5),
    "loss, bfloat16": lambda: of_loss("bfloat16", 0.03),
}


@pytest.fixture(scope="module")
def subjects():
    """Returns the subjects, each built once."""
    return functools.cache(lambda name: SUBJECTS[name]())


# Attention in bfloat16 uses our matmul primitive; the loss has a custom derivative.
SMOKE = ("attention, bfloat16", "loss")
FAST = SMOKE[:1]
# The decoder block consists of all other blocks.
SLOW = ("decoder block", "loss")


def marks(name):
    tier = [] if name in FAST else [pytest.mark.ci if name in SLOW else pytest.mark.nightly]
    return [pytest.mark.smoke] * (name in SMOKE) + tier


@pytest.fixture(params=[pytest.param(name, marks=marks(name)) for name in SUBJECTS])
def subject(request, subjects):
    return subjects(request.param)


def close(found, expected, tolerance):
    """Compares all arrays of two trees by the norm of the difference.

    Some gradients, such as those with respect to the bias of keys, are 0 except for rounding
    errors. The difference may therefore also be small relative to all arrays.
    """
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    found, expected = (
        [np.asarray(a, np.float64) for a in jax.tree.leaves(t)] for t in (found, expected)
    )
    largest = max(map(np.linalg.norm, expected))
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        assert np.linalg.norm(a - b) <= tolerance * (np.linalg.norm(b) + 0.1 * largest)


def direction(params):
    """Returns a tangent for every parameter."""
    return jax.tree.map(
        lambda p: jnp.sin(jnp.arange(p.size, dtype=p.dtype)).reshape(p.shape), params
    )


def dot(a, b):
    return sum(jnp.vdot(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def of_leaf(subject):
    """Returns the loss as a function of one parameter, and this parameter."""

    def replace(tree, path, value):
        return {**tree, path[0]: replace(tree[path[0]], path[1:], value)} if path else value

    value = functools.reduce(lambda tree, name: tree[name], subject.leaf, subject.params)
    return lambda v: subject.loss(replace(subject.params, subject.leaf, v), subject.batch), value


def plain(subject):
    return jax.value_and_grad(subject.loss)(subject.params, subject.batch)


def finite_differences(subject):
    """Forward and reverse mode, first and second order."""
    if subject.tolerance > 1e-3:
        pytest.skip("bfloat16 rounds more than finite differences show")
    function, value = of_leaf(subject)
    check_grads(
        lambda v: function(jnp.asarray(v)), (value,), order=2, atol=0.05, rtol=0.05, eps=1e-2
    )


def jit(subject):
    found = jax.jit(jax.value_and_grad(subject.loss))(subject.params, subject.batch)
    close(found, plain(subject), subject.tolerance)


def jvp(subject):
    tangent = direction(subject.params)
    _, found = jax.jvp(lambda p: subject.loss(p, subject.batch), (subject.params,), (tangent,))
    expected = dot(plain(subject)[1], tangent)
    scale = float(dot(plain(subject)[1], plain(subject)[1])) ** 0.5
    assert abs(found - expected) <= subject.tolerance * scale * float(dot(tangent, tangent)) ** 0.5


def linearize(subject):
    tangent = direction(subject.params)

    def function(params):
        return subject.loss(params, subject.batch)

    value, linear = jax.linearize(function, subject.params)
    expected = jax.jvp(function, (subject.params,), (tangent,))
    close((value, linear(tangent)), expected, subject.tolerance)


def jacfwd(subject):
    function, value = of_leaf(subject)
    close(jax.jacfwd(function)(value), jax.grad(function)(value), subject.tolerance)


def skip_without_batched_bfloat16(subject):
    if subject.tolerance > 1e-3 and jax.__version_info__ < (0, 8):
        pytest.skip("jaxlib 0.7 has no batched bfloat16 product with a float32 result on CPUs")


def hessian(subject):
    skip_without_batched_bfloat16(subject)
    function, value = of_leaf(subject)
    found = jax.hessian(function)(value).reshape(value.size, value.size)
    close(found, found.T, subject.tolerance)
    rows = jax.jacrev(jax.grad(function))(value).reshape(value.size, value.size)
    close(found, rows, subject.tolerance)


def hessian_vector_products(subject):
    function, value = of_leaf(subject)
    tangent = direction(value)
    forward_over_reverse = jax.jvp(jax.grad(function), (value,), (tangent,))[1]
    reverse_over_reverse = jax.grad(lambda v: dot(jax.grad(function)(v), tangent))(value)
    reverse_over_forward = jax.grad(lambda v: jax.jvp(function, (v,), (tangent,))[1])(value)
    close(reverse_over_reverse, forward_over_reverse, subject.tolerance)
    close(reverse_over_forward, forward_over_reverse, subject.tolerance)


def vmap_over_parameters(subject):
    """An ensemble: parameters with a leading axis of members."""
    members = [subject.params, jax.tree.map(lambda p: p * 0.5, subject.params)]
    stacked = jax.tree.map(lambda *p: jnp.stack(p), *members)
    found = jax.vmap(jax.value_and_grad(subject.loss), (0, None))(stacked, subject.batch)
    for n, member in enumerate(members):
        expected = jax.value_and_grad(subject.loss)(member, subject.batch)
        close(jax.tree.map(lambda a, n=n: a[n], found), expected, subject.tolerance)


def per_example_gradients(subject):
    skip_without_batched_bfloat16(subject)
    examples = jax.tree.map(lambda a: a[:, None], subject.batch)
    found = jax.vmap(jax.grad(subject.loss), (None, 0))(subject.params, examples)
    close(jax.tree.map(lambda g: g.sum(0), found), plain(subject)[1], subject.tolerance)
    first = jax.tree.map(lambda a: a[:1], subject.batch)
    expected = jax.grad(subject.loss)(subject.params, first)
    close(jax.tree.map(lambda g: g[0], found), expected, subject.tolerance)


def checkpoint(subject):
    found = jax.value_and_grad(jax.checkpoint(subject.loss))(subject.params, subject.batch)
    close(found, plain(subject), subject.tolerance)


_LINEN = ("parent", "name")


def remat(subject):
    """``nn.remat`` with dropout: ``deterministic`` is a positional, static argument."""
    if subject.module is None or isinstance(subject.module, nn.MultiHeadDotProductAttention):
        pytest.skip("only for our modules")
    inputs = subject.inputs(subject.batch)
    # Position of the argument, with the module as number 0.
    static = {MultiHeadAttention: (4,), Block: (5,), Transformer: (3,)}.get(
        type(subject.module), ()
    )
    missing = static[0] - 1 - len(inputs) if static else 0
    rest = (None,) * missing + (False,) * len(static)
    rngs = {"dropout": jax.random.key(3)}

    def gradient(kind):
        fields = [field.name for field in dataclasses.fields(subject.module)]
        own = {name: getattr(subject.module, name) for name in fields if name not in _LINEN}
        module = kind(**own)
        return jax.value_and_grad(
            lambda p: jnp.sin(module.apply({"params": p}, *inputs, *rest, rngs=rngs)).sum()
        )(subject.params)

    found = gradient(nn.remat(type(subject.module), static_argnums=static))
    close(found, gradient(type(subject.module)), subject.tolerance)


def pmap(subject):
    shards = jax.tree.map(lambda a: a.reshape(4, -1, *a.shape[1:]), subject.batch)

    def step(params, batch):
        return jax.lax.psum(jax.value_and_grad(subject.loss)(params, batch), "devices")

    found = jax.pmap(step, "devices", in_axes=(None, 0), devices=jax.devices()[:4])(
        subject.params, shards
    )
    close(jax.tree.map(lambda a: a[0], found), plain(subject), subject.tolerance)


def shard_map(subject):
    """Gradients of replicated parameters, which JAX itself sums over the devices."""
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    rows, everywhere = PartitionSpec("data"), PartitionSpec()

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(everywhere, rows), out_specs=everywhere)
    def step(params, batch):
        value, gradients = jax.value_and_grad(subject.loss)(params, batch)
        return jax.lax.psum(value, "data"), gradients

    close(jax.jit(step)(subject.params, subject.batch), plain(subject), subject.tolerance)


def on_mesh(subject, kind):
    """Replicated parameters and sharded rows, by NamedSharding."""
    mesh = jax.make_mesh((4,), ("data",), axis_types=(kind,))
    with jax.set_mesh(mesh) if hasattr(jax, "set_mesh") else jax.sharding.use_mesh(mesh):
        params = jax.device_put(subject.params, NamedSharding(mesh, PartitionSpec()))
        batch = jax.device_put(subject.batch, NamedSharding(mesh, PartitionSpec("data")))
        found = jax.jit(jax.value_and_grad(subject.loss))(params, batch)
        close(found, plain(subject), subject.tolerance)


def auto_mesh(subject):
    on_mesh(subject, AxisType.Auto)


def explicit_mesh(subject):
    on_mesh(subject, AxisType.Explicit)


def export_symbolic(subject):
    """One program for any number of rows, with gradients."""
    rows = export.symbolic_shape("rows")[0]
    batch = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct((rows, *a.shape[1:]), a.dtype), subject.batch
    )
    exported = export.export(jax.jit(jax.value_and_grad(subject.loss)))(subject.params, batch)
    fewer = jax.tree.map(lambda a: a[:3], subject.batch)
    expected = jax.value_and_grad(subject.loss)(subject.params, fewer)
    close(exported.call(subject.params, fewer), expected, subject.tolerance)
    close(exported.call(subject.params, subject.batch), plain(subject), subject.tolerance)


def export_for_platforms(subject):
    exported = export.export(
        jax.jit(jax.value_and_grad(subject.loss)), platforms=("cpu", "cuda", "tpu")
    )(subject.params, subject.batch)
    assert exported.platforms == ("cpu", "cuda", "tpu")
    close(exported.call(subject.params, subject.batch), plain(subject), subject.tolerance)


def to_nnx(subject):
    """Conversion to an NNX module, with a random number stream for dropout."""
    if subject.module is None:
        pytest.skip("only for modules")
    inputs = subject.inputs(subject.batch)
    model = bridge.ToNNX(subject.module, rngs=nnx.Rngs(0, dropout=1)).lazy_init(*inputs)
    nnx.update(model, nnx.State(jax.tree.map(nnx.Param, subject.params)))
    expected = subject.module.apply({"params": subject.params}, *inputs)
    close(model(*inputs), expected, subject.tolerance)
    if isinstance(subject.module, (Block, Transformer)):
        noisy = model(*inputs, deterministic=False)
        assert np.abs(noisy - expected).max() > 0.01
        assert np.abs(noisy - model(*inputs, deterministic=False)).max() > 0.01


def enable_x64(subject):
    """Parameters and results are still float32 and have the same values."""
    expected = plain(subject)
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        found = jax.jit(jax.value_and_grad(subject.loss))(subject.params, subject.batch)
        close(found, expected, subject.tolerance)
        if subject.module is not None:
            params = subject.module.init(jax.random.key(0), *subject.inputs(subject.batch))
            assert {p.dtype.name for p in jax.tree.leaves(params)} == {"float32"}


def debug_nans(subject):
    with jax.debug_nans(True):
        found = jax.jit(jax.value_and_grad(subject.loss))(subject.params, subject.batch)
    close(found, plain(subject), subject.tolerance)


TRANSFORMATIONS = [
    finite_differences,
    jit,
    jvp,
    linearize,
    jacfwd,
    hessian,
    hessian_vector_products,
    vmap_over_parameters,
    per_example_gradients,
    checkpoint,
    remat,
    pmap,
    shard_map,
    auto_mesh,
    explicit_mesh,
    export_symbolic,
    export_for_platforms,
    to_nnx,
    enable_x64,
    debug_nans,
]


@pytest.mark.parametrize("transformation", TRANSFORMATIONS, ids=lambda f: f.__name__)
def test_transformation(subject, transformation):
    transformation(subject)


# Beam search has no gradient; all other transformations apply.


@pytest.fixture(scope="module")
def search():
    """Returns a search with a small model, from parameters and sources to tokens and scores."""
    model = Transformer(CONFIG)
    params = model.init(jax.random.key(0), tokens(), tokens())["params"]

    def run(params, sources):
        variables = {"params": params}
        cache = model.apply(variables, sources, num_beams=2, capacity=5, method="start")

        def step(tokens, cache):
            return model.apply(variables, tokens, cache, method="step")

        result = beam_search(
            step,
            cache,
            max_lengths=jnp.full_like(sources[:, 0], 5),
            capacity=5,
            beam_size=2,
            length_penalty=0.6,
            bos_id=2,
            eos_id=1,
            pad_id=0,
        )
        return result.tokens, result.scores

    return run, params, tokens()


def same(found, expected):
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)


@pytest.fixture(scope="module")
def searched(search):
    run, params, sources = search
    return jax.jit(run)(params, sources)


@pytest.mark.ci
def test_search_under_vmap_over_parameters(search, searched):
    run, params, sources = search
    other = jax.tree.map(lambda p: p * 1.5, params)
    stacked = jax.tree.map(lambda *p: jnp.stack(p), params, other)
    found = jax.jit(jax.vmap(run, (0, None)))(stacked, sources)
    same((found[0][0], found[1][0]), searched)
    same((found[0][1], found[1][1]), jax.jit(run)(other, sources))


@pytest.mark.ci
def test_search_under_pmap(search, searched):
    run, params, sources = search
    shards = sources.reshape(4, -1, LENGTH)
    found = jax.pmap(run, in_axes=(None, 0), devices=jax.devices()[:4])(params, shards)
    same([a.reshape(ROWS, *a.shape[2:]) for a in found], searched)


def test_search_under_shard_map(search, searched):
    run, params, sources = search
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    rows = PartitionSpec("data")
    step = jax.shard_map(run, mesh=mesh, in_specs=(PartitionSpec(), rows), out_specs=rows)
    same(jax.jit(step)(params, sources), searched)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_search_on_a_users_mesh(search, searched, kind):
    run, params, sources = search
    mesh = jax.make_mesh((4,), ("data",), axis_types=(kind,))
    with jax.set_mesh(mesh) if hasattr(jax, "set_mesh") else jax.sharding.use_mesh(mesh):
        params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
        sources = jax.device_put(sources, NamedSharding(mesh, PartitionSpec("data")))
        same(jax.jit(run)(params, sources), searched)


@pytest.mark.ci
def test_search_exported_with_symbolic_batch_for_several_platforms(search, searched):
    run, params, sources = search
    rows = export.symbolic_shape("rows")[0]
    shape = jax.ShapeDtypeStruct((rows, LENGTH), sources.dtype)
    exported = export.export(jax.jit(run), platforms=("cpu", "cuda", "tpu"))(params, shape)
    same(exported.call(params, sources), searched)
    same(exported.call(params, sources[:3]), [a[:3] for a in searched])


@pytest.mark.ci
def test_search_with_x64_and_with_debug_nans(search, searched):
    run, params, sources = search
    with jax.debug_nans(True):
        same(jax.jit(run)(params, sources), searched)
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        same(jax.jit(run)(params, sources), searched)
