"""Every JAX transformation over every building block that users take into their own code.

A subject is a loss, summed over the rows of a batch, as a function of parameters and the batch.
Derivatives are compared with finite differences once. Under all other transformations, values and
gradients must equal the untransformed ones.
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
from jax import export
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.test_util import check_grads

import jaxformer as jx
from jaxformer.nn import RMSNorm, rotary_positions

from ..profiles import by_profile

# Names of jax 0.7.
enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
set_mesh = jax.set_mesh if hasattr(jax, "set_mesh") else jax.sharding.use_mesh

ROWS, LENGTH, WIDTH, VOCABULARY = 8, 4, 4, 11
CONFIG = jx.ModelConfig(
    vocab_size=VOCABULARY,
    d_model=WIDTH,
    d_ff=6,
    num_heads=2,
    num_layers=2,
    activation="swish",  # Smooth everywhere, unlike ReLU, as finite differences need.
    dropout_rate=0.5,
    max_length=8,
)
TOKENS = np.random.default_rng(1).integers(3, VOCABULARY, (ROWS, LENGTH)).astype(np.int32)


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A loss to transform, or a search, which has no gradient.

    The loss is a function of parameters and batch, summed over the rows of the batch.
    """

    loss: Callable[[Any, Any], jax.Array]
    params: Any
    batch: Any
    leaf: tuple[str, ...]  # path of a small parameter, to build whole Jacobians
    tolerance: float  # of values and gradients, relative to their norms
    module: nn.Module | None = None
    inputs: Callable[[Any], tuple] = lambda batch: (batch,)  # inputs of the module

    @property
    def closed_over(self):
        """Returns the batch as arrays of JAX, as constants of a function."""
        return jax.device_put(self.batch)

    @property
    def function(self):
        """Returns what is compared: values and gradients, or the results of the search."""
        return jax.value_and_grad(self.loss) if self.leaf else self.loss


def normal(seed, *shape, scale=1.0):
    return np.random.default_rng(seed).normal(0, scale, shape).astype(np.float32)


def random_params(module, *inputs):
    shapes = jax.eval_shape(module.init, jax.random.key(0), *inputs)["params"]
    return jax.tree.map(lambda s: normal(s.size, *s.shape, scale=0.5), shapes)


ACTIVATIONS = normal(0, ROWS, LENGTH, WIDTH)


def of_module(module, leaf, tolerance=2e-5, batch=ACTIVATIONS, inputs=lambda batch: (batch,)):
    def loss(params, batch):
        return jnp.sin(module.apply({"params": params}, *inputs(batch))).sum()

    params = random_params(module, *inputs(batch))
    return Subject(loss, params, batch, leaf, tolerance, module, inputs)


def of_loss(dtype, tolerance):
    params = {"embedding": normal(1, VOCABULARY, WIDTH), "mix": normal(2, WIDTH, WIDTH)}
    batch = {
        "features": ACTIVATIONS[:, 0],
        "targets": np.arange(ROWS, dtype=np.int32) % VOCABULARY,
        "weights": np.linspace(0, 1, ROWS, dtype=np.float32),
    }

    def loss(params, batch):
        features = jnp.dot(batch["features"], params["mix"])
        features = features.astype(jnp.bfloat16) if dtype == "bfloat16" else features
        weights = batch["weights"] * jnp.abs(params["mix"][0, 0])
        return jx.cross_entropy(features, params["embedding"], batch["targets"], weights, 0.1)[0]

    return Subject(loss, params, batch, ("embedding",), tolerance)


def of_search(algorithm=None, **inputs):
    algorithm = algorithm or jx.BeamSearch(beam_size=2)
    model = jx.Transformer(dataclasses.replace(CONFIG, num_layers=1))

    def search(params, sources):
        variables, sizes = {"params": params}, {"num_beams": algorithm.num_hypotheses}
        cache = model.apply(variables, sources, **sizes, capacity=5, method="start")
        lengths = {"max_lengths": jnp.full_like(sources[:, 0], 5), "capacity": 5}
        result = algorithm(
            lambda tokens, cache: model.apply(variables, tokens, cache, method="step"),
            cache,
            **lengths | inputs,
        )
        return result.tokens, result.scores

    return Subject(search, random_params(model, TOKENS, TOKENS), TOKENS, (), 1e-5)


def attention(dtype):
    return jx.MultiHeadAttention(2, dropout_rate=0.5, compute_dtype=dtype)


def decoder_block(dtype):
    residual = functools.partial(jx.Residual, dropout_rate=0.5)
    layers = attention(dtype), jx.FeedForward(6, "swish", dtype)
    return jx.Block(*layers, cross_attention=attention(dtype), make_residual=residual)


def later_block():
    """A block of the parts that came after the paper."""
    positions = functools.partial(rotary_positions, base=100.0)
    shared = {"num_kv_heads": 1, "soft_cap": 2.0, "encode_positions": positions}
    shared |= {"make_qk_norm": RMSNorm}
    return jx.Block(
        jx.MultiHeadAttention(2, dropout_rate=0.5, **shared),
        jx.FeedForward(6, "swish", use_bias=False, gated=True),
        make_residual=functools.partial(jx.Residual, "pre", 0.5, RMSNorm),
    )


def decoder_inputs(x):
    keys = jx.Keys.of_sequence(LENGTH)
    return x, dataclasses.replace(keys, causal=True), jx.Memory(x[:, ::-1], keys)


SUBJECTS = {
    "attention": lambda: of_module(attention("float32"), ("query",)),
    "attention, bfloat16": lambda: of_module(attention("bfloat16"), ("query",), 0.03),
    "feed-forward": lambda: of_module(jx.FeedForward(6, "swish", "float32"), ("inner",)),
    "decoder block": lambda: of_module(
        decoder_block("bfloat16"),
        ("cross_attention", "query"),
        0.03,
        inputs=decoder_inputs,
    ),
    "later block": lambda: of_module(later_block(), ("self_attention", "key")),
    "transformer": lambda: of_module(
        jx.Transformer(CONFIG),
        ("encoder", "layers", "feed_forward", "inner_bias"),
        batch=TOKENS,
        inputs=lambda x: (x, x[:, ::-1]),
    ),
    "loss": lambda: of_loss("float32", 2e-5),
    "loss, bfloat16": lambda: of_loss("bfloat16", 0.03),
    "search": of_search,
}


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


def dot(a, b):
    return sum((x * y).sum() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def direction(params):
    """Returns a tangent for every parameter."""
    return jax.tree.map(lambda p: np.sin(np.arange(p.size, dtype=p.dtype)).reshape(p.shape), params)


def leaf_of(subject, tree):
    return functools.reduce(lambda tree, name: tree[name], subject.leaf, tree)


def of_leaf(subject):
    """Returns the loss as a function of one parameter, and this parameter."""

    def replace(tree, path, value):
        return {**tree, path[0]: replace(tree[path[0]], path[1:], value)} if path else value

    value = leaf_of(subject, subject.params)
    params, batch = jax.device_put(subject.params), subject.closed_over
    return lambda v: subject.loss(replace(params, subject.leaf, v), batch), value


@functools.cache
def compiled(subject):
    """Returns the jitted function, the reference of all other transformations."""
    return jax.jit(subject.function)


@functools.cache
def plain(subject):
    return jax.device_get(compiled(subject)(subject.params, subject.batch))


def members(tree, n):
    return jax.tree.map(lambda a: np.asarray(a)[n], tree)


def without_jit(subject):
    arrays = jax.tree.map(jnp.asarray, (subject.params, subject.batch))
    close(jax.value_and_grad(subject.loss)(*arrays), plain(subject), subject.tolerance)


def finite_differences(subject):
    """Forward and reverse mode, first and second order."""
    if subject.tolerance > 1e-3:
        pytest.skip("bfloat16 rounds more than finite differences show")
    function, value = of_leaf(subject)
    check_grads(jax.jit(function), (value,), order=2, atol=0.05, rtol=0.05, eps=1e-2)


def forward_mode(subject):
    tangent, (function, value) = direction(subject.params), of_leaf(subject)

    @jax.jit
    def forward(params):
        loss = functools.partial(subject.loss, batch=subject.closed_over)
        out, linear = jax.linearize(loss, params)
        return (
            *jax.jvp(loss, (params,), (tangent,)),
            out,
            linear(tangent),
            jax.jacfwd(function)(value),
        )

    value, slope, again, linear_slope, jacobian = forward(subject.params)
    expected, gradient = plain(subject)
    close((value, again), (expected, expected), subject.tolerance)
    for found in (slope, linear_slope):
        scale = (dot(gradient, gradient) * dot(tangent, tangent)) ** 0.5
        assert abs(found - dot(gradient, tangent)) <= subject.tolerance * scale
    close(jacobian, leaf_of(subject, gradient), subject.tolerance)


def skip_without_batched_bfloat16(subject):
    if subject.tolerance > 1e-3 and jax.__version_info__ < (0, 8):
        pytest.skip("jaxlib 0.7 has no batched bfloat16 product with a float32 result on CPUs")


def second_order(subject):
    """Hessians and their products with a vector, by each order of forward and reverse mode."""
    skip_without_batched_bfloat16(subject)
    function, value = of_leaf(subject)
    tangent, gradient = direction(value), jax.grad(function)

    @jax.jit
    def derivatives(value):
        hessians = jax.hessian(function)(value), jax.jacrev(gradient)(value)
        return hessians, (
            jax.jvp(gradient, (value,), (tangent,))[1],
            jax.grad(lambda v: jnp.vdot(gradient(v), tangent))(value),
            jax.grad(lambda v: jax.jvp(function, (v,), (tangent,))[1])(value),
        )

    hessians, products = jax.device_get(derivatives(value))
    first, second = (hessian.reshape(value.size, value.size) for hessian in hessians)
    close((first, second), (first.T, first), subject.tolerance)
    close(products, (products[0],) * 3, subject.tolerance)
    close(first @ tangent.ravel(), products[0].ravel(), subject.tolerance)


def vmap_over_parameters(subject):
    """An ensemble: parameters with a leading axis of members."""
    other = jax.tree.map(lambda p: p * np.float32(0.5), subject.params)
    stacked = jax.tree.map(lambda *p: np.stack(p), subject.params, other)
    found = jax.jit(jax.vmap(compiled(subject), (0, None)))(stacked, subject.batch)
    close(members(found, 0), plain(subject), subject.tolerance)
    close(members(found, 1), compiled(subject)(other, subject.batch), subject.tolerance)


def per_example_gradients(subject):
    skip_without_batched_bfloat16(subject)
    examples = jax.tree.map(lambda a: a[:, None], subject.batch)
    found = jax.jit(jax.vmap(compiled(subject), (None, 0)))(subject.params, examples)
    total = jax.tree.map(lambda g: np.asarray(g).sum(0), found)
    close(total, plain(subject), subject.tolerance)
    first = jax.tree.map(lambda a: a[:1], subject.batch)
    close(members(found, 0), compiled(subject)(subject.params, first), subject.tolerance)


def checkpoint(subject):
    found = jax.jit(jax.value_and_grad(jax.checkpoint(subject.loss)))
    close(found(subject.params, subject.batch), plain(subject), subject.tolerance)


def remat(subject):
    """``nn.remat`` with dropout; ``deterministic`` is a positional, static argument."""
    if subject.module is None:
        pytest.skip("only for modules")
    inputs, kind = subject.inputs(subject.closed_over), type(subject.module)
    # Position of the argument, with the module as number 0.
    static = {jx.MultiHeadAttention: (4,), jx.Transformer: (3,)}.get(kind, ())
    missing = static[0] - 1 - len(inputs) if static else 0
    rest = (None,) * missing + (False,) * len(static)
    options = {"dropout": np.arange(len(inputs[0]))} if kind is jx.Block else {}

    def gradient(kind):
        fields = [field.name for field in dataclasses.fields(subject.module)]
        own = {n: getattr(subject.module, n) for n in fields if n not in ("parent", "name")}

        def loss(params):
            rngs = {"dropout": jax.random.key(3)}
            module = kind(**own)
            return jnp.sin(
                module.apply({"params": params}, *inputs, *rest, rngs=rngs, **options)
            ).sum()

        return jax.jit(jax.value_and_grad(loss))(subject.params)

    close(gradient(nn.remat(kind, static_argnums=static)), gradient(kind), subject.tolerance)


def pmap(subject):
    shards = jax.tree.map(lambda a: a.reshape(4, -1, *a.shape[1:]), subject.batch)

    def step(params, batch):
        return jax.lax.psum(subject.function(params, batch), "devices")

    step = jax.pmap(step, "devices", in_axes=(None, 0), devices=jax.devices()[:4])
    close(members(step(subject.params, shards), 0), plain(subject), subject.tolerance)


def mesh_of(kind):
    return jax.make_mesh((4,), ("data",), axis_types=(kind,))


def shard_map(subject):
    """Gradients of replicated parameters, which JAX itself sums over the devices."""
    rows, everywhere = PartitionSpec("data"), PartitionSpec()

    def step(params, batch):
        found = subject.function(params, batch)
        return (jax.lax.psum(found[0], "data"), found[1]) if subject.leaf else found

    specs = {"in_specs": (everywhere, rows), "out_specs": everywhere if subject.leaf else rows}
    step = jax.jit(jax.shard_map(step, mesh=mesh_of(AxisType.Auto), **specs))
    close(step(subject.params, subject.batch), plain(subject), subject.tolerance)


def auto_mesh(subject, kind=AxisType.Auto):
    """Replicated parameters and sharded rows, by NamedSharding."""
    mesh = mesh_of(kind)
    with set_mesh(mesh):
        params = jax.device_put(subject.params, NamedSharding(mesh, PartitionSpec()))
        batch = jax.device_put(subject.batch, NamedSharding(mesh, PartitionSpec("data")))
        close(jax.jit(subject.function)(params, batch), plain(subject), subject.tolerance)


def explicit_mesh(subject):
    auto_mesh(subject, AxisType.Explicit)


def export_for_any_shape_and_platform(subject):
    """Rows and, except for losses, lengths are symbolic."""
    sizes = export.symbolic_shape("rows, length")[: 1 if isinstance(subject.batch, dict) else 2]
    shapes = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct((*sizes, *a.shape[len(sizes) :]), a.dtype), subject.batch
    )
    platforms = ("cpu", "cuda", "tpu")
    exported = export.export(compiled(subject), platforms=platforms)(subject.params, shapes)
    assert exported.platforms == platforms
    first = jax.tree.map(lambda a: a[(slice(1), slice(3))[: len(sizes)]], subject.batch)
    for batch in (subject.batch, first):
        found = jax.jit(exported.call)(subject.params, batch)
        close(found, compiled(subject)(subject.params, batch), subject.tolerance)


def strict_settings(subject):
    """Parameters and results are still float32 and have the same values."""
    with (
        enable_x64(True),
        jax.debug_nans(True),
        jax.checking_leaks(),
        jax.numpy_rank_promotion("raise"),
        jax.numpy_dtype_promotion("strict"),
    ):
        found = compiled(subject)(subject.params, subject.batch)
        close(found, plain(subject), subject.tolerance)
        if subject.module is not None:
            inputs = subject.inputs(subject.batch)
            params = jax.eval_shape(subject.module.init, jax.random.key(0), *inputs)
            assert {p.dtype.name for p in jax.tree.leaves(params)} == {"float32"}


def float64(subject):
    """Finite differences this precise need float64 in all sums, softmax and norms."""
    if subject.tolerance > 1e-3:
        pytest.skip("bfloat16 rounds more than finite differences show")
    wide = jax.tree.map(
        lambda a: a.astype(np.float64) if a.dtype == np.float32 else a,
        (subject.params, subject.batch),
    )
    with enable_x64(True):
        function, value = of_leaf(dataclasses.replace(subject, params=wide[0], batch=wide[1]))
        check_grads(jax.jit(function), (value,), order=1, atol=1e-7, rtol=1e-7, eps=1e-5)


TRANSFORMATIONS = [
    without_jit,
    finite_differences,
    forward_mode,
    second_order,
    vmap_over_parameters,
    per_example_gradients,
    checkpoint,
    remat,
    pmap,
    shard_map,
    auto_mesh,
    explicit_mesh,
    export_for_any_shape_and_platform,
    strict_settings,
    float64,
]
OF_SEARCH = [
    vmap_over_parameters,
    shard_map,
    auto_mesh,
    explicit_mesh,
    export_for_any_shape_and_platform,
    strict_settings,
]
# Attention in bfloat16 uses our matmul primitive; the loss has a custom derivative. The decoder
# block consists of all other layers.
ORDINARY = {
    "attention, bfloat16": TRANSFORMATIONS,
    "loss": TRANSFORMATIONS,
    "decoder block": [remat, per_example_gradients, explicit_mesh],
    "search": [transformation for transformation in OF_SEARCH if transformation != auto_mesh],
}
ALL = dict.fromkeys(SUBJECTS, TRANSFORMATIONS) | {"search": OF_SEARCH}
FAST = [*(("attention, bfloat16", f) for f in TRANSFORMATIONS), ("search", explicit_mesh)]
CASES = [
    pytest.param(
        name,
        transformation,
        marks=[pytest.mark.smoke] * (name in ("attention, bfloat16", "loss"))
        + [pytest.mark.ci] * ((name, transformation) not in FAST),
    )
    for name, transformations in by_profile(ORDINARY, nightly=ALL).items()
    for transformation in transformations
]
build = functools.cache(lambda name: SUBJECTS[name]())


@pytest.mark.parametrize(
    ("name", "transformation"), CASES, ids=lambda value: getattr(value, "__name__", value)
)
def test_transformation(name, transformation):
    transformation(build(name))


def forbid(tokens, logits, context):
    return logits.at[:, :, tokens].set(-jnp.inf)


FORBIDDEN = jax.tree_util.Partial(forbid, np.array([4, 9]))
SEARCHES = [
    jx.BeamSearch(beam_size=4, diversity_groups=2, no_repeat_ngram=2, constraints=(FORBIDDEN,)),
    jx.Sampling(top_p=0.9, min_p=0.01, typical_p=0.95, min_length=3, constraints=(FORBIDDEN,)),
]


@pytest.mark.ci
@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: type(search).__name__)
def test_search_on_an_explicit_mesh(search):
    """Lists, and what is derived from them, take the layout of the cache."""
    inputs = {"max_lengths": [5, 4] * 4, "prefix": [[3, 0], [5, 6], [0, 0], [7, 0]] * 2}
    explicit_mesh(of_search(search, **inputs, sentence_ids=jnp.arange(8)))
