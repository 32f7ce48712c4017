"""Gato's embeddings, its mask and its cache, against formulas and brute force."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.data.episodes import caption, episode, make_rows, tokens_of
from jaxformer.errors import UserError
from jaxformer.kinds.gato import GATO
from jaxformer.models.gato import Gato, GatoConfig, PatchEmbedding, grid_bins
from jaxformer.tasks.gato.gato_task import GatoLoss

CONFIG = GatoConfig(
    vocab_size=20,
    height=4,
    width=8,
    channels=1,
    patch_size=2,
    patch_channels=4,
    patch_groups=2,
    d_model=16,
    d_ff=16,
    num_heads=2,
    num_layers=2,
    num_positions=32,
    max_length=32,
)
MODEL = Gato(CONFIG)
LENGTH = 26
FIELDS = ("tokens", "pictures", "positions", "is_patch", "segments")


def make_batch():
    """A row with a caption, a text and padding, and one with two timesteps."""
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 256, CONFIG.image_shape).astype(np.uint8)
    states = rng.normal(size=(2, 3))
    steps = episode(CONFIG.ids, {"state": states}, np.array([0, 1]))
    first = [caption(picture, [5, 6, 1], 2), tokens_of([7, 8, 9, 1], is_predicted=True)]
    return make_rows(
        [first, [steps]],
        LENGTH,
        max_pictures=2,
        image_shape=CONFIG.image_shape,
    )


BATCH = make_batch()


@pytest.fixture(scope="module")
def params():
    inputs = [np.ones(each.shape, each.dtype) for each in GATO.inputs(CONFIG)]
    return jax.device_get(jax.jit(MODEL.init)(jax.random.key(0), *inputs))["params"]


@jax.jit
def logits_of(params, batch):
    return MODEL.apply(
        {"params": params},
        batch.tokens,
        batch.pictures,
        positions=batch.positions,
        is_patch=batch.is_patch,
        segments=batch.segments,
    )


LOSS = GatoLoss(model=CONFIG, label_smoothing=0.0, kind=GATO)


@jax.jit
def loss_and_gradients(params, batch):
    def loss(params):
        sums = LOSS(params, batch, None)
        return sums["loss"], sums["count"]

    return jax.value_and_grad(loss, has_aux=True)(params)


def test_no_item_sees_a_later_one(params):
    given = logits_of(params, BATCH)
    changed = BATCH._replace(tokens=BATCH.tokens.copy(), pictures=BATCH.pictures.copy())
    changed.pictures[0, 0, 2:, 6:] ^= 255  # the last patch, item 7
    changed.tokens[1, 5:] = 3

    found = logits_of(params, changed)
    np.testing.assert_array_equal(found[0, :7], given[0, :7])
    np.testing.assert_array_equal(found[1, :5], given[1, :5])
    different = np.abs(found - given).max(axis=-1)
    assert different[0, 7:12].min() > 1e-6
    assert different[1, 5] > 1e-6

    # The text after the caption is a sequence of its own.
    np.testing.assert_array_equal(found[0, 12:16], given[0, 12:16])


def test_the_loss_is_the_mean_over_texts_and_actions(params):
    (loss, count), gradients = loss_and_gradients(params, BATCH)
    logits = np.asarray(logits_of(params, BATCH), np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))

    # The caption is the items 9 to 11 after eight patches and BOS, the text 13 to 15 without its
    # first token, and the actions are the items 4 and 9.
    targets = [(0, 9), (0, 10), (0, 11), (0, 13), (0, 14), (0, 15), (1, 4), (1, 9)]
    expected = -sum(log_probs[row, i - 1, BATCH.tokens[row, i]] for row, i in targets)
    assert count == len(targets)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


def test_only_what_precedes_a_target_has_a_gradient(params):
    (_, _), gradients = loss_and_gradients(params, BATCH)
    # Row 0 is of actions, row n + 1 of local position n. The caption has the positions 0 to 11, and
    # its last token precedes nothing.
    norms = np.abs(gradients["positions"]).max(axis=1)
    assert norms[:12].min() > 0
    np.testing.assert_array_equal(norms[12:], 0)

    # Padding and the second picture, which no item shows, change nothing.
    changed = BATCH._replace(tokens=BATCH.tokens.copy(), pictures=BATCH.pictures.copy())
    changed.tokens[0, 16:] = 4
    changed.pictures[:, 1] = 200
    (_, _), others = loss_and_gradients(params, changed)
    jax.tree.map(np.testing.assert_array_equal, gradients, others)


def test_cached_steps_and_a_prefilled_picture_equal_the_whole_pass(params):
    whole = logits_of(params, BATCH)
    variables = {"params": params}

    @jax.jit
    def cached(tokens, positions):
        output = MODEL.apply(variables, jnp.arange(CONFIG.output_size), method="candidate_output")
        cache = MODEL.apply(variables, tokens, capacity=LENGTH, method="start")

        def step(cache, item):
            token, position = item
            logits, cache = MODEL.apply(
                variables,
                token[None, None],
                position,
                cache,
                output,
                method="step_at",
            )
            return cache, logits[0, 0]

        return jax.lax.scan(step, cache, (tokens[0], positions[0]))[1]

    found = cached(BATCH.tokens[1:, :10], BATCH.positions[1:, :10])
    np.testing.assert_allclose(found[:, 1:], whole[1, :10, 1:], atol=1e-5)

    @jax.jit
    def after_picture(picture, tokens):
        cache = MODEL.apply(variables, tokens, capacity=LENGTH, method="start")
        cache = MODEL.apply(variables, picture, cache, method="prefill_picture")

        def step(cache, token):
            logits, cache = MODEL.apply(variables, token[None, None], cache, method="step")
            return cache, logits[0, 0]

        return jax.lax.scan(step, cache, tokens[0])[1]

    found = after_picture(BATCH.pictures[:1, 0], BATCH.tokens[:1, 8:12])
    np.testing.assert_allclose(found, whole[0, 8:12], atol=1e-5)


def test_rows_and_columns_are_bins_of_128(params):
    # Four cells: [0, 32), [32, 64), ..., whose means are 16, 48, 80 and 112, as in the paper.
    cells = np.arange(4)
    bits = np.random.default_rng(0).integers(0, 2**32, (500, 4), np.uint32)
    one = np.arange(1)

    @jax.jit
    def bins(bits):
        return grid_bins(cells, 4), grid_bins(one, 1), grid_bins(cells, 4, bits)

    means, mean, drawn = map(np.asarray, bins(bits))
    assert means[0].tolist() == [16, 48, 80, 112]
    assert mean[0].tolist() == [64]
    np.testing.assert_array_equal(drawn // 32, np.broadcast_to(cells, drawn.shape))
    assert len(np.unique(drawn)) == 128


def normalize(x, groups, epsilon):
    """Group normalization of a patch [y, x, channels], by loops."""
    out = np.empty_like(x)
    for part in np.split(np.arange(x.shape[-1]), groups):
        values = x[..., part]
        out[..., part] = (values - values.mean()) / np.sqrt(values.var() + epsilon)
    return out


def convolve(x, kernel):
    """A convolution of 3 by 3 with zeros around, by loops."""
    padded = np.pad(x, ((1, 1), (1, 1), (0, 0)))
    out = np.zeros((*x.shape[:2], kernel.shape[-1]))
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = np.einsum("yxc,yxcw->w", padded[i : i + 3, j : j + 3], kernel)
    return out


def gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def test_patches_go_through_a_resnet_block(params):
    own = params["patch_embedding"]
    pictures = BATCH.pictures[:1]
    found = jax.jit(PatchEmbedding(CONFIG).apply)({"params": own}, pictures)

    number = 5  # the second column of the second row
    patch = pictures[0, 0, 2:4, 2:4].astype(float)
    x = convolve((patch / 127.5 - 1) / np.sqrt(2), own["widening_kernel"])
    hidden = convolve(gelu(normalize(x, 2, 1e-6)), own["first_kernel"])
    hidden = convolve(gelu(normalize(hidden, 2, 1e-6)), own["second_kernel"])
    expected = (x + hidden).reshape(-1) @ own["output"]
    expected += own["row_positions"][96] + own["column_positions"][48]
    np.testing.assert_allclose(found[0, number], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patch_size": 3}, "model.patch_size must divide model.height=4: got 3"),
        ({"patch_groups": 3}, "model.patch_groups must divide model.patch_channels=4: got 3"),
        ({"window": 0}, "model.window must be greater than 0: got 0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        GatoConfig(**vars(CONFIG) | changes)


def test_pictures_of_another_size_and_long_rows_are_refused(params):
    def shape_of(*arguments, **options):
        return jax.eval_shape(
            lambda params: MODEL.apply({"params": params}, *arguments, **options), params
        )

    turned = np.zeros((1, 1, 8, 4, 1), np.uint8)
    with pytest.raises(UserError, match=r"Gato: expected pictures \[batch, number, 4, 8, 1\]"):
        shape_of(BATCH.tokens[:1], turned)
    with pytest.raises(UserError, match="row of 40 tokens: the model allows at most 32"):
        shape_of(np.zeros((1, 40), np.int32))
    with pytest.raises(UserError, match="sequence of 40 tokens: the model allows at most 32"):
        shape_of(BATCH.tokens, capacity=40, method="start")
