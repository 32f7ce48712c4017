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

# jax 0.7 has them under other names.
enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
set_mesh = jax.set_mesh if hasattr(jax, "set_mesh") else jax.sharding.use_mesh

DEVICES = 4
ROWS = 8
LENGTH = 4
WIDTH = 4
VOCABULARY = 11
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

# bfloat16 rounds to 8 bits.
FLOAT32_TOLERANCE = 2e-5
BFLOAT16_TOLERANCE = 0.03


def alone(batch):
    """Returns the inputs of a module that takes only the batch."""
    return (batch,)


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
    inputs: Callable[[Any], tuple] = alone  # inputs of the module

    @property
    def is_bfloat16(self):
        return self.tolerance == BFLOAT16_TOLERANCE

    @property
    def closed_over(self):
        """Returns the batch as arrays of JAX, for a function that has them as constants."""
        return jax.device_put(self.batch)

    @property
    def function(self):
        """Returns what is compared: values and gradients, or the results of the search."""
        return jax.value_and_grad(self.loss) if self.leaf else self.loss


def normal(seed, *shape, scale=1.0):
    rng = np.random.default_rng(seed)
    return rng.normal(0, scale, shape).astype(np.float32)


def random_params(module, *inputs):
    key = jax.random.key(0)
    variables = jax.eval_shape(module.init, key, *inputs)

    def draw(leaf):
        seed = leaf.size
        return normal(seed, *leaf.shape, scale=0.5)

    return jax.tree.map(draw, variables["params"])


ACTIVATIONS = normal(0, ROWS, LENGTH, WIDTH)


def of_module(module, leaf, tolerance=FLOAT32_TOLERANCE, batch=ACTIVATIONS, inputs=alone):
    def loss(params, batch):
        outputs = module.apply({"params": params}, *inputs(batch))
        return jnp.sin(outputs).sum()

    return Subject(
        loss=loss,
        params=random_params(module, *inputs(batch)),
        batch=batch,
        leaf=leaf,
        tolerance=tolerance,
        module=module,
        inputs=inputs,
    )


def of_loss(dtype, tolerance):
    params = {
        "embedding": normal(1, VOCABULARY, WIDTH),
        "mix": normal(2, WIDTH, WIDTH),
    }
    batch = {
        "features": ACTIVATIONS[:, 0],
        "targets": np.arange(ROWS, dtype=np.int32) % VOCABULARY,
        "weights": np.linspace(0, 1, ROWS, dtype=np.float32),
    }

    def loss(params, batch):
        features = jnp.dot(batch["features"], params["mix"])
        if dtype == "bfloat16":
            features = features.astype(jnp.bfloat16)

        # The weights have gradients, too.
        weights = batch["weights"] * jnp.abs(params["mix"][0, 0])
        total, _ = jx.cross_entropy(
            features,
            params["embedding"],
            batch["targets"],
            weights=weights,
            label_smoothing=0.1,
        )
        return total

    return Subject(loss, params, batch, leaf=("embedding",), tolerance=tolerance)


def of_search(algorithm=None, max_lengths=None, **inputs):
    algorithm = algorithm or jx.BeamSearch(beam_size=2)
    model = jx.Transformer(dataclasses.replace(CONFIG, num_layers=1))

    def search(params, sources):
        variables = {"params": params}

        def step(tokens, cache):
            return model.apply(variables, tokens, cache, method="step")

        cache = model.apply(
            variables,
            sources,
            num_beams=algorithm.num_hypotheses,
            capacity=5,
            method="start",
        )
        lengths = max_lengths
        if lengths is None:
            lengths = jnp.full_like(sources[:, 0], 5)
        result = algorithm(step, cache, max_lengths=lengths, capacity=5, **inputs)
        return result.tokens, result.scores

    params = random_params(model, TOKENS, TOKENS)
    return Subject(search, params, TOKENS, leaf=(), tolerance=1e-5)


def attention(dtype):
    return jx.MultiHeadAttention(num_heads=2, dropout_rate=0.5, compute_dtype=dtype)


def decoder_block(dtype):
    return jx.Block(
        attention(dtype),
        jx.FeedForward(d_ff=6, activation="swish", compute_dtype=dtype),
        cross_attention=attention(dtype),
        make_residual=functools.partial(jx.Residual, dropout_rate=0.5),
    )


def later_block():
    """A block of the parts that came after the paper."""
    return jx.Block(
        jx.MultiHeadAttention(
            num_heads=2,
            dropout_rate=0.5,
            num_kv_heads=1,
            soft_cap=2.0,
            encode_positions=functools.partial(rotary_positions, base=100.0),
            make_qk_norm=RMSNorm,
        ),
        jx.FeedForward(d_ff=6, activation="swish", use_bias=False, gated=True),
        make_residual=functools.partial(
            jx.Residual,
            norm_position="pre",
            dropout_rate=0.5,
            make_norm=RMSNorm,
        ),
    )


def decoder_inputs(x):
    keys = jx.Keys.of_sequence(LENGTH)
    memory = jx.Memory(x[:, ::-1], keys)
    return x, dataclasses.replace(keys, causal=True), memory


def source_and_target(x):
    return x, x[:, ::-1]


SUBJECTS = {
    "attention": lambda: of_module(attention("float32"), ("query",)),
    "attention, bfloat16": lambda: of_module(
        attention("bfloat16"),
        ("query",),
        BFLOAT16_TOLERANCE,
    ),
    "feed-forward": lambda: of_module(jx.FeedForward(6, "swish", "float32"), ("inner",)),
    "decoder block": lambda: of_module(
        decoder_block("bfloat16"),
        ("cross_attention", "query"),
        BFLOAT16_TOLERANCE,
        inputs=decoder_inputs,
    ),
    "later block": lambda: of_module(later_block(), ("self_attention", "key")),
    "transformer": lambda: of_module(
        jx.Transformer(CONFIG),
        ("encoder", "layers", "feed_forward", "inner_bias"),
        batch=TOKENS,
        inputs=source_and_target,
    ),
    "loss": lambda: of_loss("float32", FLOAT32_TOLERANCE),
    "loss, bfloat16": lambda: of_loss("bfloat16", BFLOAT16_TOLERANCE),
    "search": of_search,
}


def float64_leaves(tree):
    leaves = jax.tree.leaves(tree)
    return [np.asarray(leaf, np.float64) for leaf in leaves]


def close(found, expected, tolerance):
    """Compares all arrays of two trees by the norm of the difference.

    Some gradients, such as those with respect to the bias of keys, are 0 except for rounding
    errors. The difference may therefore also be small relative to all arrays.
    """
    assert jax.tree.structure(found) == jax.tree.structure(expected)

    found = float64_leaves(found)
    expected = float64_leaves(expected)
    largest = max(map(np.linalg.norm, expected))
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        size = np.linalg.norm(b) + 0.1 * largest
        assert np.linalg.norm(a - b) <= tolerance * size


def dot(a, b):
    products = jax.tree.map(lambda x, y: (x * y).sum(), a, b)
    return sum(jax.tree.leaves(products))


def direction(params):
    """Returns a tangent for every parameter."""

    def waves(parameter):
        numbers = np.arange(parameter.size, dtype=parameter.dtype)
        return np.sin(numbers).reshape(parameter.shape)

    return jax.tree.map(waves, params)


def leaf_of(subject, tree):
    for name in subject.leaf:
        tree = tree[name]
    return tree


def of_leaf(subject):
    """Returns the loss as a function of one parameter, and this parameter."""
    params = jax.device_put(subject.params)
    batch = subject.closed_over

    def replace(tree, path, value):
        if not path:
            return value
        name, *rest = path
        return tree | {name: replace(tree[name], rest, value)}

    def function(value):
        return subject.loss(replace(params, subject.leaf, value), batch)

    return function, leaf_of(subject, subject.params)


@functools.cache
def compiled(subject):
    """Returns the jitted function, the reference of all other transformations."""
    return jax.jit(subject.function)


@functools.cache
def plain(subject):
    return jax.device_get(compiled(subject)(subject.params, subject.batch))


def member(n, tree):
    """Returns entry ``n`` of the first axis of each array."""
    return jax.tree.map(lambda a: np.asarray(a)[n], tree)


def without_jit(subject):
    arguments = (subject.params, subject.batch)
    params, batch = jax.tree.map(jnp.asarray, arguments)
    found = jax.value_and_grad(subject.loss)(params, batch)
    close(found, plain(subject), subject.tolerance)


def skip_bfloat16(subject):
    if subject.is_bfloat16:
        pytest.skip("bfloat16 rounds more than finite differences show")


def finite_differences(subject):
    """Forward and reverse mode, first and second order."""
    skip_bfloat16(subject)
    function, value = of_leaf(subject)
    check_grads(
        jax.jit(function),
        (value,),
        order=2,
        atol=0.05,
        rtol=0.05,
        eps=1e-2,
    )


def forward_mode(subject):
    tangent = direction(subject.params)
    function, value = of_leaf(subject)

    @jax.jit
    def forward(params):
        loss = functools.partial(subject.loss, batch=subject.closed_over)
        by_jvp = jax.jvp(loss, (params,), (tangent,))
        value_of_linearize, linear = jax.linearize(loss, params)
        by_linearize = (value_of_linearize, linear(tangent))
        return by_jvp, by_linearize, jax.jacfwd(function)(value)

    by_jvp, by_linearize, jacobian = forward(subject.params)
    expected, gradient = plain(subject)

    # The slope along a tangent is its product with the gradient. Errors are relative to the
    # greatest slope of tangents of this length.
    expected_slope = dot(gradient, tangent)
    squares = dot(gradient, gradient) * dot(tangent, tangent)
    scale = squares**0.5
    for found, slope in (by_jvp, by_linearize):
        close(found, expected, subject.tolerance)
        assert abs(slope - expected_slope) <= subject.tolerance * scale

    close(jacobian, leaf_of(subject, gradient), subject.tolerance)


def skip_without_batched_bfloat16(subject):
    if subject.is_bfloat16 and jax.__version_info__ < (0, 8):
        pytest.skip("jaxlib 0.7 has no batched bfloat16 product with a float32 result on CPUs")


def second_order(subject):
    """Hessians and their products with a vector, by each order of forward and reverse mode."""
    skip_without_batched_bfloat16(subject)
    function, value = of_leaf(subject)
    tangent = direction(value)
    gradient = jax.grad(function)

    def slope_by_gradient(value):
        return jnp.vdot(gradient(value), tangent)

    def slope_by_jvp(value):
        _, slope = jax.jvp(function, (value,), (tangent,))
        return slope

    @jax.jit
    def derivatives(value):
        hessians = (
            jax.hessian(function)(value),
            jax.jacrev(gradient)(value),
        )
        _, forward_over_reverse = jax.jvp(gradient, (value,), (tangent,))
        products = (
            forward_over_reverse,
            jax.grad(slope_by_gradient)(value),
            jax.grad(slope_by_jvp)(value),
        )
        return hessians, products

    hessians, products = jax.device_get(derivatives(value))
    matrix_shape = (value.size, value.size)
    first, second = (hessian.reshape(matrix_shape) for hessian in hessians)
    close(first, first.T, subject.tolerance)
    close(second, first, subject.tolerance)

    product = products[0]
    for other in products:
        close(other, product, subject.tolerance)
    by_matrix = first @ tangent.ravel()
    close(by_matrix, product.ravel(), subject.tolerance)


def vmap_over_parameters(subject):
    """An ensemble: parameters with a leading axis of members."""
    other = jax.tree.map(lambda p: p * np.float32(0.5), subject.params)
    stacked = jax.tree.map(lambda *p: np.stack(p), subject.params, other)
    of_members = jax.vmap(compiled(subject), (0, None))
    ensemble = jax.jit(of_members)
    found = ensemble(stacked, subject.batch)

    close(member(0, found), plain(subject), subject.tolerance)
    of_other = compiled(subject)(other, subject.batch)
    close(member(1, found), of_other, subject.tolerance)


def per_example_gradients(subject):
    skip_without_batched_bfloat16(subject)
    examples = jax.tree.map(lambda a: a[:, None], subject.batch)
    of_examples = jax.vmap(compiled(subject), (None, 0))
    per_example = jax.jit(of_examples)
    found = per_example(subject.params, examples)

    total = jax.tree.map(lambda g: np.asarray(g).sum(0), found)
    close(total, plain(subject), subject.tolerance)

    first = jax.tree.map(lambda a: a[:1], subject.batch)
    of_first = compiled(subject)(subject.params, first)
    close(member(0, found), of_first, subject.tolerance)


def checkpoint(subject):
    loss = jax.checkpoint(subject.loss)
    rematerialized = jax.jit(jax.value_and_grad(loss))
    found = rematerialized(subject.params, subject.batch)
    close(found, plain(subject), subject.tolerance)


def remat(subject):
    """``nn.remat`` with dropout; ``deterministic`` is a positional, static argument."""
    module = subject.module
    if module is None:
        pytest.skip("only for modules")

    kind = type(module)
    fields = {
        field.name: getattr(module, field.name)
        for field in dataclasses.fields(module)
        if field.name not in ("parent", "name")
    }

    # Positions of ``deterministic``, which is False; the module has position 0. All arguments
    # between the inputs and ``deterministic`` are None.
    inputs = subject.inputs(subject.closed_over)
    positions = {jx.MultiHeadAttention: 4, jx.Transformer: 3}
    static = ()
    rest = ()
    if kind in positions:
        position = positions[kind]
        static = (position,)
        num_between = position - 1 - len(inputs)
        rest = (None,) * num_between + (False,)
    options = {}
    if kind is jx.Block:
        options["dropout"] = np.arange(len(inputs[0]))

    def gradient(kind):
        def loss(params):
            outputs = kind(**fields).apply(
                {"params": params},
                *inputs,
                *rest,
                rngs={"dropout": jax.random.key(3)},
                **options,
            )
            return jnp.sin(outputs).sum()

        return jax.jit(jax.value_and_grad(loss))(subject.params)

    found = gradient(nn.remat(kind, static_argnums=static))
    close(found, gradient(kind), subject.tolerance)


def pmap(subject):
    def split(array):
        row_shape = array.shape[1:]
        return array.reshape(DEVICES, -1, *row_shape)

    shards = jax.tree.map(split, subject.batch)

    def step(params, batch):
        return jax.lax.psum(subject.function(params, batch), "devices")

    devices = jax.devices()[:DEVICES]
    step = jax.pmap(step, "devices", in_axes=(None, 0), devices=devices)
    found = step(subject.params, shards)
    close(member(0, found), plain(subject), subject.tolerance)


def mesh_of(kind):
    return jax.make_mesh((DEVICES,), ("data",), axis_types=(kind,))


def shard_map(subject):
    """Gradients of replicated parameters, which JAX itself sums over the devices."""
    rows = PartitionSpec("data")
    everywhere = PartitionSpec()
    has_gradients = bool(subject.leaf)

    def step(params, batch):
        found = subject.function(params, batch)
        if not has_gradients:
            return found
        value, gradients = found
        return jax.lax.psum(value, "data"), gradients

    step = jax.shard_map(
        step,
        mesh=mesh_of(AxisType.Auto),
        in_specs=(everywhere, rows),
        out_specs=everywhere if has_gradients else rows,
    )
    found = jax.jit(step)(subject.params, subject.batch)
    close(found, plain(subject), subject.tolerance)


def auto_mesh(subject, kind=AxisType.Auto):
    """Replicated parameters and sharded rows, by NamedSharding."""
    mesh = mesh_of(kind)
    everywhere = NamedSharding(mesh, PartitionSpec())
    by_rows = NamedSharding(mesh, PartitionSpec("data"))

    with set_mesh(mesh):
        params = jax.device_put(subject.params, everywhere)
        batch = jax.device_put(subject.batch, by_rows)
        found = jax.jit(subject.function)(params, batch)
        close(found, plain(subject), subject.tolerance)


def explicit_mesh(subject):
    auto_mesh(subject, AxisType.Explicit)


def export_for_any_shape_and_platform(subject):
    """Rows and, except for losses, lengths are symbolic."""
    is_of_loss = isinstance(subject.batch, dict)
    sizes = export.symbolic_shape("rows" if is_of_loss else "rows, length")

    def symbolic(array):
        shape = (*sizes, *array.shape[len(sizes) :])
        return jax.ShapeDtypeStruct(shape, array.dtype)

    shapes = jax.tree.map(symbolic, subject.batch)
    platforms = ("cpu", "cuda", "tpu")
    make = export.export(compiled(subject), platforms=platforms)
    exported = make(subject.params, shapes)
    assert exported.platforms == platforms

    def one_short_row(array):
        return array[:1] if is_of_loss else array[:1, :3]

    small = jax.tree.map(one_short_row, subject.batch)
    for batch in (subject.batch, small):
        found = jax.jit(exported.call)(subject.params, batch)
        expected = compiled(subject)(subject.params, batch)
        close(found, expected, subject.tolerance)


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
            key = jax.random.key(0)
            params = jax.eval_shape(subject.module.init, key, *inputs)
            dtypes = {parameter.dtype.name for parameter in jax.tree.leaves(params)}
            assert dtypes == {"float32"}


def float64(subject):
    """Finite differences this precise need float64 in all sums, softmax and norms."""
    skip_bfloat16(subject)

    def widen(array):
        return array.astype(np.float64) if array.dtype == np.float32 else array

    arguments = (subject.params, subject.batch)
    params, batch = jax.tree.map(widen, arguments)
    wide = dataclasses.replace(subject, params=params, batch=batch)
    with enable_x64(True):
        function, value = of_leaf(wide)
        check_grads(
            jax.jit(function),
            (value,),
            order=1,
            atol=1e-7,
            rtol=1e-7,
            eps=1e-5,
        )


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

SMOKE = ("attention, bfloat16", "loss")


def is_fast(name, transformation):
    """Tells whether a case is also in ``make test``; the others are in ``.ci/run``."""
    if name == "search":
        return transformation == explicit_mesh
    return name == "attention, bfloat16"


def cases():
    for name, transformations in by_profile(ORDINARY, nightly=ALL).items():
        for transformation in transformations:
            marks = []
            if name in SMOKE:
                marks.append(pytest.mark.smoke)
            if not is_fast(name, transformation):
                marks.append(pytest.mark.ci)
            yield pytest.param(name, transformation, marks=marks)


@functools.cache
def build(name):
    return SUBJECTS[name]()


@pytest.mark.parametrize(
    ("name", "transformation"),
    list(cases()),
    ids=lambda value: getattr(value, "__name__", value),
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
    subject = of_search(
        search,
        max_lengths=[5, 4] * 4,
        prefix=[[3, 0], [5, 6], [0, 0], [7, 0]] * 2,
        sentence_ids=jnp.arange(8),
    )
    explicit_mesh(subject)
