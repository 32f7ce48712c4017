"""Frozen parameters against the same parameters alone, and against closed formulas."""

import jax
import numpy as np
import optax
import pytest

from jaxformer.config import ModelConfig
from jaxformer.data.batch import make_batch
from jaxformer.errors import UserError
from jaxformer.kinds.model_parameters import make_init
from jaxformer.kinds.translation import TRANSLATION
from jaxformer.tasks.translation import TranslationLoss
from jaxformer.training.freezing import freeze, stop_gradients
from jaxformer.training.paths import path_of

FOUR_LAYERS = {
    "embedding": np.linspace(1, 2, 6, dtype=np.float32).reshape(3, 2),
    "encoder": {"layers": {"w": np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)}},
}


@pytest.mark.parametrize(
    ("names", "trained"),
    [
        ("encoder/layers[:2]", [2, 3]),
        ("layers[3:]", [0, 1, 2]),
        ("embedding, encoder/layers[0], encoder/layers[2:3]", [1, 3]),
    ],
)
def test_some_layers_are_frozen_as_if_they_were_not_there(names, trained):
    """Gradients are clipped by the norm of the other layers, too."""

    def optimizer():
        return optax.chain(
            optax.clip_by_global_norm(0.1), optax.adamw(0.1, b2=0.98, weight_decay=0.1)
        )

    def run(transformation, params):
        @jax.jit
        def train(params):
            state = transformation.init(params)
            for _ in range(3):
                gradients = jax.tree.map(lambda x: 3 * x + 1, params)
                updates, state = transformation.update(gradients, state, params)
                params = optax.apply_updates(params, updates)
            return params, state

        return jax.device_get(train(params))

    found, state = run(freeze(optimizer(), names, lambda: FOUR_LAYERS), FOUR_LAYERS)
    before = FOUR_LAYERS["encoder"]["layers"]["w"]
    alone = {"layers": before[trained]}
    if "embedding" not in names:
        alone["embedding"] = FOUR_LAYERS["embedding"]
    expected, state_alone = run(optimizer(), alone)

    layers = found["encoder"]["layers"]["w"]
    np.testing.assert_allclose(layers[trained], expected["layers"], rtol=1e-6)
    frozen = np.setdiff1d(np.arange(4), trained)
    np.testing.assert_array_equal(layers[frozen], before[frozen])
    embedding = expected.get("embedding", FOUR_LAYERS["embedding"])
    np.testing.assert_allclose(found["embedding"], embedding, rtol=1e-6)
    assert shapes_of(state) == shapes_of(state_alone)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("layers[:5]", r"layers from 0 to 3, as encoder/layers/w has: got \[0:5\]"),
        ("layers[4]", r"layers from 0 to 3, as encoder/layers/w has: got \[4:5\]"),
        ("layers[2:1]", r"layers from 0 to 3, .*: got \[2:1\]"),
        ("layers[:0]", r"layers from 0 to 3, .*: got \[0:0\]"),
        ("layers[:2], layers[2:]", "expected some layers of encoder/layers/w to train, got all"),
        ("layers[:-1]", r"named as in encoder/layers\[:6\], .*: got 'layers\[:-1\]'"),
        ("layers[]", r"named as in .*: got 'layers\[\]'"),
        ("layer[1]", "no parameter is called 'layer'; give names .* out of embedding, encoder,"),
    ],
)
def test_layers_that_a_stack_lacks_are_refused(names, message):
    def init(params):
        return freeze(optax.sgd(0.1), names, lambda: params).init(params)

    with pytest.raises(UserError, match=message):
        jax.eval_shape(init, FOUR_LAYERS)


def named_leaves(tree):
    return [(path_of(path), leaf) for path, leaf in jax.tree.leaves_with_path(tree)]


def shapes_of(tree):
    return sorted(map(np.shape, jax.tree.leaves(tree)))


@pytest.mark.parametrize(
    ("names", "trained"),
    [
        ("embedding", [0, 1, 2, 3]),
        ("layers[1:3]", [0, 3]),
        ("layers", []),
    ],
)
def test_no_gradient_reaches_frozen_parameters(names, trained):
    """The gradient of half the sum of squares is the parameter itself."""

    def half_squares(params):
        same = stop_gradients(params, names)
        return sum(0.5 * (leaf**2).sum() for leaf in jax.tree.leaves(same)), same

    gradients, same = jax.jit(jax.grad(half_squares, has_aux=True))(FOUR_LAYERS)
    jax.tree.map(np.testing.assert_array_equal, same, FOUR_LAYERS)
    layers = FOUR_LAYERS["encoder"]["layers"]["w"]
    expected = np.zeros_like(layers)
    expected[trained] = layers[trained]
    np.testing.assert_array_equal(gradients["encoder"]["layers"]["w"], expected)
    embedding = 0 if names == "embedding" else FOUR_LAYERS["embedding"]
    np.testing.assert_array_equal(gradients["embedding"], embedding)


def test_frozen_layers_of_a_model_cost_no_backward_pass():
    """The gradients of the others keep their values, and XLA computes nothing for frozen layers."""
    model = ModelConfig(
        vocab_size=11,
        d_model=16,
        d_ff=64,
        num_heads=2,
        num_layers=2,
    )
    batch = make_batch([[([5, 6, 7] * 5, [8])]], (1, 16, 2))
    params = jax.jit(make_init(model, TRANSLATION))(jax.random.key(0))

    def step_of(names):
        loss = TranslationLoss(model, label_smoothing=0.1, freeze=names)
        step = jax.jit(jax.grad(lambda params: loss(params, batch, None)["loss"]))
        return step.lower(params).compile()

    whole = step_of(None)
    frozen = step_of("embedding,encoder")
    some = step_of("embedding,encoder/layers[:1]")
    expected = dict(named_leaves(whole(params)))
    for name, gradient in named_leaves(frozen(params)):
        if name.startswith(("embedding", "encoder")):
            assert not gradient.any(), name
        else:
            np.testing.assert_allclose(gradient, expected[name], rtol=1e-5, atol=1e-6)

    # The backward pass of a layer has two products for each product of the forward pass.
    length = 16
    matrices = 4 * 16 * 16 + 2 * 16 * 64
    scores = 2 * length * 16
    backward = 2 * 2 * length * (matrices + scores)
    assert flops_of(whole) - flops_of(some) > backward
    assert flops_of(some) - flops_of(frozen) > backward


def flops_of(program):
    return program.cost_analysis()["flops"]
