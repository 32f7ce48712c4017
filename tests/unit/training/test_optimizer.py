"""The schedule of equation 3 and the paper's Adam, against plain implementations."""

import functools
import math

import jax
import ml_dtypes
import numpy as np
import optax
import pytest

from jaxformer.config import Config, ModelConfig, TrainingConfig
from jaxformer.errors import UserError
from jaxformer.experiment import make_optimizer
from jaxformer.kinds.model_parameters import make_init
from jaxformer.training.freezing import freeze
from jaxformer.training.optimizer import configured_schedule, inverse_sqrt_schedule, per_layer
from jaxformer.training.paths import path_of


def rates_of(schedule, steps):
    """Returns learning rates, of all steps at once; optax counts from 0, the paper from 1."""
    rates = jax.jit(jax.vmap(schedule))
    return rates(np.asarray(steps) - 1)


def test_equation_3():
    steps = np.array([1, 2000, 4000, 16_000, 100_000])
    after = steps**-0.5
    warming_up = steps * 4000**-1.5
    expected = 512**-0.5 * np.minimum(after, warming_up)
    assert expected[-1] == pytest.approx(1.3975e-4, rel=1e-4)

    found = rates_of(inverse_sqrt_schedule(512, 4000), steps)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def adam_by_formula(gradients, rates, keep=float):
    """Kingma and Ba 2015, Algorithm 1, with the paper's beta1 0.9, beta2 0.98, eps 1e-9."""
    x = 1.0
    m = 0.0
    v = 0.0
    pairs = zip(gradients, rates, strict=True)
    for t, (g, rate) in enumerate(pairs, start=1):
        m = 0.9 * m + 0.1 * g
        v = 0.98 * v + 0.02 * g * g
        m_hat = m / (1 - 0.9**t)
        v_hat = v / (1 - 0.98**t)
        size = np.sqrt(v_hat) + 1e-9
        x -= rate * m_hat / size

        m = keep(m)
        v = keep(v)
    return x


def run(config, gradients):
    """Returns the parameter, 1 at first, after one step for each gradient."""
    optimizer = make_optimizer(config)

    def step(carry, gradient):
        params, state = carry
        updates, state = optimizer.update(gradient, state, params)
        return (params + updates, state), None

    @jax.jit
    def train(gradients):
        start = (1.0, optimizer.init(1.0))
        (params, _), _ = jax.lax.scan(step, start, gradients)
        return params

    return float(train(np.asarray(gradients, np.float32)))


def bfloat16(x):
    return float(ml_dtypes.bfloat16(x))


@pytest.mark.parametrize(
    ("moments", "keep"),
    [
        ("float32", float),
        ("bfloat16", bfloat16),
    ],
)
def test_adam_and_schedule_together(moments, keep):
    config = Config(
        model=ModelConfig(d_model=4, num_heads=1),
        training=TrainingConfig(warmup_steps=2, learning_rate_scale=0.5, adam_dtype=moments),
    )
    gradients = [0.3, -2.0, 5.0, 0.01]

    # Equation 3, with the scale.
    rates = []
    for step in (1, 2, 3, 4):
        slowest = min(step**-0.5, step * 2**-1.5)
        rates.append(0.5 * 4**-0.5 * slowest)
    expected = adam_by_formula(gradients, rates, keep)
    assert run(config, gradients) == pytest.approx(expected, rel=1e-5)


def test_clipping_scales_large_gradients_only():
    model = ModelConfig(d_model=4, num_heads=1)
    clipped = Config(model=model, training=TrainingConfig(warmup_steps=2, clip_norm=1.0))
    plain = Config(model=model, training=TrainingConfig(warmup_steps=2))

    expected = run(plain, [1.0, 0.5])
    assert run(clipped, [4.0, 0.5]) == pytest.approx(expected, rel=1e-5)


AFTER_WARM_UP = {
    "inverse_sqrt": lambda step: (10 / step) ** 0.5,
    "constant": lambda step: 1.0,
    "linear": lambda step: (51 - step) / 41,
    "cosine": lambda step: 0.5 + 0.5 * math.cos(math.pi * (step - 10) / 41),
}


@pytest.mark.parametrize(
    ("name", "rate", "scale"),
    [
        ("inverse_sqrt", 0.02, 0.5),
        ("constant", None, 1.0),
        ("linear", None, 0.5),
        ("cosine", 0.02, 1),
    ],
)
def test_schedules_after_a_linear_warm_up(name, rate, scale):
    """They have the peak of equation 3, unless there is a rate."""
    training = TrainingConfig(
        steps=50,
        warmup_steps=10,
        learning_rate=rate,
        learning_rate_scale=scale,
        schedule=name,
    )
    peak = scale * (rate or (512 * 10) ** -0.5)

    expected = [peak * step / 10 for step in range(1, 10)]
    expected += [peak * AFTER_WARM_UP[name](step) for step in range(10, 51)]
    found = rates_of(configured_schedule(training, 512), range(1, 51))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


MODEL = ModelConfig(vocab_size=5, d_model=4, d_ff=8, num_heads=2, num_layers=2)
SHAPES = jax.eval_shape(make_init(MODEL), jax.random.key(0))
PARAMS = jax.tree.map(lambda shape: np.ones(shape.shape, shape.dtype), SHAPES)
MATRICES = ("query", "key", "value", "output", "inner", "outer")


@functools.cache
def optimizer_of(name, **settings):
    settings = {"weight_decay": 0.5, "warmup_steps": 1, **settings}
    training = TrainingConfig(optimizer=name, **settings)
    return make_optimizer(Config(model=MODEL, training=training))


@functools.cache
def compiled_update(name):
    optimizer = optimizer_of(name)

    @jax.jit
    def first_update(gradients):
        state = optimizer.init(PARAMS)
        updates, _ = optimizer.update(gradients, state, PARAMS)
        return updates

    return first_update


def first_updates(name, gradients):
    return jax.device_get(compiled_update(name)(gradients))


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_weight_decay_shrinks_the_matrices_of_the_layers_only(optimizer):
    no_gradients = jax.tree.map(np.zeros_like, PARAMS)
    updates = first_updates(optimizer, no_gradients)

    rate = 4**-0.5
    for path, leaf in jax.tree.leaves_with_path(updates):
        is_matrix = path[-1].key in MATRICES
        expected = -rate * 0.5 if is_matrix else 0.0
        np.testing.assert_allclose(leaf, expected, rtol=1e-6, err_msg=str(path))


def named_leaves(tree):
    return [(path_of(path), leaf) for path, leaf in jax.tree.leaves_with_path(tree)]


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_frozen_parameters_keep_their_bits_for_100_steps_and_have_no_state(optimizer):
    names = "embedding, decoder/layers/self_attention"
    transformation = optimizer_of(optimizer, freeze=names)

    def step(_, carry):
        params, state = carry
        updates, state = transformation.update(PARAMS, state, params)
        return optax.apply_updates(params, updates), state

    @jax.jit
    def train(params):
        start = (params, transformation.init(params))
        return jax.lax.fori_loop(0, 100, step, start)

    params, state = jax.device_get(train(PARAMS))

    frozen = set()
    before = dict(named_leaves(PARAMS))
    for name, leaf in named_leaves(params):
        if leaf.tobytes() == before[name].tobytes():
            frozen.add(name)
    of_attention = {f"decoder/layers/self_attention/{name}" for name in MATRICES[:4]}
    assert frozen == {"embedding"} | of_attention

    names_of_state = [name for name, _ in named_leaves(state)]
    assert sum("encoder/layers/self_attention/" in name for name in names_of_state) >= 4
    assert not [name for name in names_of_state if name.endswith(tuple(frozen))]


def test_muons_updates_are_as_large_as_adams():
    """The root mean square of an orthogonal matrix times 0.2 sqrt(its longer side) is 0.2."""
    rng = np.random.default_rng(0)

    def draw(array):
        return rng.normal(size=array.shape).astype(np.float32)

    # Without gradients, an update is the weight decay alone.
    zeros = jax.tree.map(np.zeros_like, PARAMS)
    decay = first_updates("muon", zeros)
    gradients = jax.tree.map(draw, PARAMS)
    with_decay = first_updates("muon", gradients)
    updates = jax.tree.map(np.subtract, with_decay, decay)
    rate = 4**-0.5

    layers = updates["decoder"]["layers"]
    inner = layers["feed_forward"]["inner"]
    query = layers["self_attention"]["query"].reshape(2, 4, 4)  # All heads together.
    for matrix, longer in ((inner, 8), (query, 4)):
        # After Newton-Schulz, singular values are between 0.7 and 1.2 times their ideal value.
        ideal = 0.2 * rate * np.sqrt(longer)
        singular = np.linalg.svd(matrix, compute_uv=False) / ideal
        assert 0.6 < singular.min() < singular.max() < 1.3

    # The first update of Adam with Nesterov's momentum.
    momentum = 0.9 * 0.1 / (1 - 0.9**2)
    newest = 0.1 / (1 - 0.9)
    sizes = np.abs(updates["embedding"])
    expected = (momentum + newest) * rate
    np.testing.assert_allclose(sizes, expected, rtol=1e-3)


def by_rank(params):
    return jax.tree.map(lambda array: array.ndim > 1, params)


def by_name(params):
    return jax.tree.map_with_path(lambda path, _: str(path[-1].key), params)


# Rules that depend on the rank, norm or mean of an array.
RULES = {
    "muon": optax.contrib.muon(0.1, adam_learning_rate=1e-3, weight_decay=0.1),
    "decay of matrices": optax.adamw(0.1, weight_decay=0.5, mask=by_rank),
    "lamb": optax.inject_hyperparams(optax.lamb)(optax.linear_schedule(0.1, 0.2, 3)),
    "lars": optax.lars(0.1, trust_ratio_mask=by_rank),
    "adaptive clipping": optax.chain(
        optax.adaptive_grad_clip(0.01),
        optax.sgd(0.1),
    ),
    "block clipping": optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.clip_by_block_rms(0.01),
        optax.sgd(0.1),
    ),
    "novograd": optax.novograd(0.1, weight_decay=0.1),
    "adafactor": optax.adafactor(0.1, min_dim_size_to_factor=3),
    "labels": optax.multi_transform(
        {"kernel": optax.lamb(0.1), "bias": optax.sgd(0.1)},
        by_name,
    ),
    "line search": optax.lbfgs(),
    "frozen": optax.lamb(0.1),
}


RNG = np.random.default_rng(0)


LAYERS = {"encoder": 3, "decoder": 2}


def normal(layers, *shape):
    """Layers of different sizes, so that a norm over all of them differs from each."""
    arrays = []
    for i in range(layers):
        arrays.append(4.0**i * RNG.normal(size=shape))
    return np.stack(arrays).astype(np.float32)


STACKED = {
    "encoder": {"layers": {"kernel": normal(3, 4, 6), "bias": normal(3, 6)}},
    "decoder": {"layers": {"kernel": normal(2, 4, 6), "bias": normal(2, 6)}},
    "table": {"kernel": RNG.normal(size=(5, 4)).astype(np.float32)},
}


def unstack(tree):
    """A plain dictionary with one entry per layer."""
    layers = {"table": tree["table"]}
    for stack, count in LAYERS.items():
        arrays = tree[stack]["layers"]
        for i in range(count):
            layer = {name: array[i] for name, array in arrays.items()}
            layers[f"{stack}{i}"] = layer
    return layers


def loss(params):
    total = 0.0
    for leaf in jax.tree.leaves(params):
        terms = leaf**2 + jax.numpy.cos(leaf)
        total += terms.sum()
    return total


def train(optimizer, params):
    """Returns parameters and state after three steps."""
    update = optax.with_extra_args_support(optimizer).update

    def step(_, carry):
        params, state = carry
        value, grad = jax.value_and_grad(loss)(params)
        updates, state = update(
            grad,
            state,
            params,
            value=value,
            grad=grad,
            value_fn=loss,
        )
        return optax.apply_updates(params, updates), state

    start = (params, optimizer.init(params))
    return jax.lax.fori_loop(0, 3, step, start)


@functools.cache
def trained(are_stacked):
    """Returns parameters and state for every rule, from one program."""
    if are_stacked:
        params = STACKED
        rules = {name: per_layer(rule) for name, rule in RULES.items()}
        frozen = "encoder, decoder/layers/bias"
    else:
        params = unstack(STACKED)
        rules = dict(RULES)
        frozen = "encoder0, encoder1, encoder2, decoder0/bias, decoder1/bias"
    rules["frozen"] = freeze(rules["frozen"], frozen, lambda: params)

    @jax.jit
    def train_all(params):
        return {name: train(rule, params) for name, rule in rules.items()}

    return jax.device_get(train_all(params))


def shapes_of(tree):
    return sorted(map(np.shape, jax.tree.leaves(tree)))


@pytest.mark.parametrize("name", RULES)
def test_any_rule_per_layer_equals_the_rule_without_stacks(name):
    found, state = trained(are_stacked=True)[name]
    expected, unstacked = trained(are_stacked=False)[name]

    for layer, arrays in unstack(found).items():
        for array, leaf in arrays.items():
            np.testing.assert_allclose(
                leaf,
                expected[layer][array],
                rtol=1e-4,
                atol=1e-5,
                err_msg=f"{layer}/{array}",
            )

    # The states have arrays of the same shapes, in whatever order.
    assert shapes_of(state) == shapes_of(unstacked)


MATRIX = np.ones((2, 3))
ROW = np.ones(3)
NO_STACKS = [
    ({"blocks": {"w": MATRIX}, "b": ROW}, "no stack is .* paths b, blocks/w"),
    ({"layers": {"w": MATRIX, "b": ROW}}, r"one layer axis .* 'w': \(2, 3\)"),
    ({"layers": {"w": np.float32(1)}}, "one layer axis in a stack"),
    ({"layers": [{"w": np.ones((3, 3))}] * 2}, "one layer axis in a stack"),
]


@pytest.mark.parametrize(("params", "message"), NO_STACKS)
def test_parameters_without_a_stack_are_refused(params, message):
    with pytest.raises(UserError, match=f"per_layer: .*{message}"):
        per_layer(optax.lamb(0.1)).init(params)
