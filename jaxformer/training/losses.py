"""Label-smoothed cross-entropy (section 5.4) that never stores the logits of a whole batch."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxformer.errors import UserError
from jaxformer.layout import has_explicit_axes, map_rows, match_varying_axes
from jaxformer.nn.backend import backend
from jaxformer.nn.matmul import matmul, matmul_nt, matmul_tn
from jaxformer.nn.precision import at_least_float32
from jaxformer.nn.sharding import num_shards, per_batch_shard

# Logit of rows that are not candidates: finite, since 0 times an infinite loss would be NaN.
_NO_CANDIDATE = -1e9


def cross_entropy(
    features: Float[Array, "R D"],
    embedding: Float[Array, "V D"],
    targets: Int[Array, " R"],
    weights: Float[Array, " R"],
    label_smoothing: float,
    consistency: float = 0.0,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Sums the label-smoothed loss and the negative log likelihood over weighted rows.

    The logits are ``features @ embedding.T``, computed in the dtype of ``features`` and accumulated
    in float32, or in float64 if they are. The target distribution follows Szegedy et al. 2015,
    cited by the paper: (1 - epsilon_ls) on the target plus epsilon_ls / V everywhere. Logits exist
    for one chunk of rows at a time. Their gradient is computed in the same pass, without
    recomputation.

    >>> features, embedding = jnp.zeros((2, 3)), jnp.zeros((5, 3))  # all logits are 0
    >>> loss, nll = cross_entropy(features, embedding, jnp.array([1, 2]), jnp.ones(2), 0.1)
    >>> round(float(loss), 4)  # 2 ln 5
    3.2189

    Args:
      features: Decoder outputs, one row for every target position.
      embedding: The shared embedding, which is also the pre-softmax projection.
      targets: Target token ids. An id outside the vocabulary gives NaN, unless its weight is 0.
      weights: 1 for real targets, 0 for padding. The loss is differentiable with respect to them.
      label_smoothing: epsilon_ls; 0 for the plain negative log likelihood.
      consistency: Weight alpha of R-Drop (Liang et al. 2021). Unless it is 0, rows 2i and 2i + 1
        are one target after two passes with other dropout, and their loss has the additional term
        alpha (KL(p || q) + KL(q || p)) / 2.

    Returns:
      The loss to minimize, and the plain negative log likelihood for perplexity, which has no
      gradient. Both are sums in nats, float32, or float64 if ``features`` are.

    Raises:
      UserError: The shapes do not match.
    """
    features, embedding, targets, weights = _check_arguments(features, embedding, targets, weights)
    sums = functools.partial(_sum_rows, smoothing=label_smoothing, consistency=consistency)

    if has_explicit_axes(embedding, features):
        return map_rows(
            sums,
            embedding,
            features,
            targets,
            weights,
            total=True,
        )

    # One partial sum for each batch shard.
    loss, nll = per_batch_shard(
        sums,
        embedding,
        features,
        targets,
        weights,
        split_table=True,
    )
    return loss.sum(), nll.sum()


def _sum_rows(embedding, features, targets, weights, smoothing, consistency):
    """Returns both sums over all rows of one device, chunk by chunk."""
    vocab_size = embedding.shape[0]
    features, targets, weights = _make_chunks(features, targets, weights, vocab_size)
    embedding, features = match_varying_axes(embedding, features)
    return _sum_chunks(
        embedding,
        features,
        targets,
        weights,
        smoothing,
        consistency,
    )


def class_sums(
    logits: Float[Array, "B K"],
    classes: Int[Array, " B"],
    real: Bool[Array, " B"],
    smoothing: float = 0.0,
) -> dict[str, Array]:
    """Sums the label-smoothed loss, the correct classes and the count over ``real`` rows.

    Args:
      logits: Unnormalized log probabilities of the classes.
      classes: Class of each row, 0 to K - 1. Another one gives NaN, unless its row is not real.
      real: False for rows that count nothing, such as those that pad a batch.
      smoothing: Label smoothing, with the uniform distribution over the classes.

    Returns:
      "loss", in nats, "accuracy" and "count"; see :meth:`Task.loss <jaxformer.Task.loss>`.
    """
    logits = logits.astype(at_least_float32(logits))
    log_probs = jax.nn.log_softmax(logits)  # [B, K]

    # Unknown classes must not index another class's probability.
    known = (classes >= 0) & (classes < logits.shape[1])
    index = jnp.where(known, classes, 0)[:, None]
    chosen = jnp.take_along_axis(log_probs, index, axis=1)  # [B, 1]
    target_log_probs = chosen[:, 0]
    nll = jnp.where(known, -target_log_probs, jnp.nan)  # [B]

    # Cross-entropy with (1 - smoothing) on the class plus smoothing / K everywhere.
    loss = (1 - smoothing) * nll - smoothing * log_probs.mean(axis=1)

    predicted = log_probs.argmax(axis=1)
    correct = real & (predicted == classes)
    return {
        "loss": jnp.where(real, loss, 0).sum(),
        "accuracy": correct.sum(dtype=jnp.int32),
        "count": real.sum(dtype=jnp.int32),
    }


def contrastive_sums(
    first: Float[Array, "B D"],
    second: Float[Array, "B D"],
    scale: Float[Array, ""],
    axis: str | None = "data",
    real: Bool[Array, " B"] | None = None,
) -> dict[str, Array]:
    """Sums the loss of pairs of embeddings against all pairs of the batch (Radford et al. 2021).

    The loss is the mean of the cross-entropies of finding the ``second`` of each ``first`` and vice
    versa, by their cosine times ``scale``. Other rows are negatives, over all devices.

    Args:
      first: Embeddings, such as of pictures.
      second: Embeddings of the same pairs, such as of texts.
      scale: Factor of the cosines, the inverse temperature.
      axis: Mesh axis over which ``fit`` splits the batch; None outside of ``fit``.
      real: False for pairs that count nothing and are no negatives, such as those that pad a batch;
        all are real when None.

    Returns:
      The sums "loss", "accuracy" and "count" over the rows of this device.
    """
    first = first / jnp.linalg.norm(first, axis=-1, keepdims=True)
    second = second / jnp.linalg.norm(second, axis=-1, keepdims=True)

    # The candidates are the rows of all devices. This device has the rows from ``start`` on.
    def gather(rows: Array) -> Array:
        return rows if axis is None else jax.lax.all_gather(rows, axis, tiled=True)

    start = 0 if axis is None else jax.lax.axis_index(axis) * len(first)
    all_first = gather(first)
    all_second = gather(second)

    # Row i of one side belongs to row start + i of the other side.
    classes = start + jnp.arange(len(first))
    counts = jnp.ones(len(first), bool) if real is None else real
    is_candidate = None if real is None else gather(real)[None]  # [1, rows of all devices]

    def sums_of(own: Array, others: Array) -> dict[str, Array]:
        logits = scale * matmul_nt(own, others)
        if is_candidate is not None:
            logits = jnp.where(is_candidate, logits, _NO_CANDIDATE)
        return class_sums(logits, classes, counts)

    first_to_second = sums_of(first, all_second)
    second_to_first = sums_of(second, all_first)
    return jax.tree.map(_mean_of_two, first_to_second, second_to_first)


def _mean_of_two(a, b):
    return (a + b) / 2


def _check_arguments(features, embedding, targets, weights):
    """Converts to arrays; for targets outside the vocabulary, nonzero weights become NaN."""
    features = jnp.asarray(features)
    embedding = jnp.asarray(embedding)
    targets = jnp.asarray(targets)
    weights = jnp.asarray(weights)

    are_matrices = features.ndim == embedding.ndim == 2
    have_one_width = are_matrices and features.shape[1] == embedding.shape[1]

    rows = features.shape[:1]
    have_same_rows = targets.shape == weights.shape == rows
    if not (have_one_width and have_same_rows):
        arrays = (features, embedding, targets, weights)
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise UserError(
            "cross_entropy: expected features [rows, d_model], embedding [vocabulary, d_model], "
            f"targets [rows] and weights [rows], got shapes {shapes}; flatten batch and length"
        )

    vocab_size = embedding.shape[0]
    known = (targets >= 0) & (targets < vocab_size)
    weights = weights.astype(at_least_float32(features))
    counts_nothing = weights == 0
    weights = jnp.where(known | counts_nothing, weights, jnp.nan)
    return features, embedding, targets.astype(jnp.int32), weights


def _make_chunks(features, targets, weights, vocab_size):
    """Pads the rows and reshapes them into chunks along a new first axis."""
    rows, size = features.shape
    chunk = _chunk_rows(rows, size, vocab_size)
    padding = -rows % chunk

    features = jnp.pad(features, ((0, padding), (0, 0)))
    targets = jnp.pad(targets, (0, padding))
    weights = jnp.pad(weights, (0, padding))
    return (
        features.reshape(-1, chunk, size),  # [chunks, rows of a chunk, D]
        targets.reshape(-1, chunk),
        weights.reshape(-1, chunk),
    )


def _chunk_rows(rows, size, vocab_size):
    """Returns the number of rows of a chunk."""
    # In an export for any number of rows, it is symbolic, and one chunk has all rows.
    if not isinstance(rows, int):
        return rows

    # Each chunk reads and writes the gradient of the embedding, [V, D], so it may have at least D
    # rows, whose logits are as large.
    max_rows = max(size, backend().logits_per_chunk // vocab_size)
    num_chunks = -(-rows // max_rows)  # rounded up
    if num_chunks > 1:
        # GPUs would copy a matrix whose sides are not multiples of 16.
        sixteens = -(-rows // (16 * num_chunks))  # of a chunk, rounded up
        return 16 * sixteens
    return max(rows, 1)


@functools.partial(jax.custom_jvp, nondiff_argnums=(4, 5))
def _sum_chunks(
    embedding,
    features,
    targets,
    weights,
    label_smoothing,
    consistency,
):
    """Returns both sums, for callers that need no gradient."""
    projection = _project(embedding, features.dtype)

    def chunk_sums(chunk):
        features, targets, weights = chunk
        loss, nll, _ = _chunk_loss(
            features,
            targets,
            projection,
            smoothing=label_smoothing,
            consistency=consistency,
        )
        loss_sum = (weights * loss).sum()
        nll_sum = (weights * nll).sum()
        return loss_sum, nll_sum

    chunks = (features, targets, weights)
    loss, nll = jax.lax.map(chunk_sums, chunks)
    return loss.sum(), nll.sum()


@_sum_chunks.defjvp
def _sum_chunks_jvp(label_smoothing, consistency, primals, tangents):
    """Returns both sums, and the tangent of the loss from its gradients, in one pass.

    The tangent is linear in the tangents of the arguments, so that JAX can also transpose it: this
    serves forward and reverse mode. The tangent of the likelihood is 0 by design.
    """
    embedding, features, targets, weights = primals
    embedding_tangent, features_tangent, _, weights_tangent = tangents
    projection = _project(embedding, features.dtype)
    table = projection.table

    def chunk_gradients(transposed_gradient, chunk):
        features, targets, weights = chunk
        loss, nll, logits_gradient = _chunk_loss(
            features,
            targets,
            projection,
            smoothing=label_smoothing,
            consistency=consistency,
        )
        logits_gradient = weights[:, None] * logits_gradient
        logits_gradient = logits_gradient.astype(table.dtype)  # [R, V]

        table_gradient = matmul_tn(features, logits_gradient)  # [D, V]
        transposed_gradient += table_gradient.astype(transposed_gradient.dtype)

        features_gradient = matmul(logits_gradient, table, loss.dtype)
        features_gradient = features_gradient.astype(features.dtype)  # [R, D]

        nll_sum = (weights * nll).sum()
        return transposed_gradient, (loss, nll_sum, features_gradient)

    # The gradient of the table is summed over the chunks; all other results are of each chunk.
    chunks = (features, targets, weights)
    zeros = jnp.zeros_like(table.T, embedding.dtype)
    start, *_ = match_varying_axes(zeros, *chunks)
    transposed_gradient, per_chunk = jax.lax.scan(
        chunk_gradients,
        init=start,
        xs=chunks,
    )
    losses, nll, features_gradient = per_chunk

    # The barrier keeps XLA from folding the transpose into a matmul that CPUs have no kernel for.
    transposed_gradient = jax.lax.optimization_barrier(transposed_gradient)
    unpadded = transposed_gradient[:, : projection.vocab_size]
    embedding_gradient = unpadded.T  # [V, D]

    loss = (weights * losses).sum()
    nll = nll.sum()

    # d(loss) = sum of losses * d(weights) + gradient * d(embedding) + gradient * d(features)
    tangent = (losses * weights_tangent).sum()
    tangent += (embedding_gradient * embedding_tangent).sum(dtype=tangent.dtype)
    tangent += (features_gradient * features_tangent).sum(dtype=tangent.dtype)
    return (loss, nll), (tangent, jnp.zeros_like(nll))


class _Projection(NamedTuple):
    """The pre-softmax projection, prepared for all chunks."""

    table: Float[Array, "rows D"]  # the embedding, in the dtype of the features, padded by zeros
    mean: Float[Array, " D"]  # the mean of its rows without padding, in float32 or wider
    vocab_size: int  # number of rows without padding


def _project(embedding, dtype):
    """Prepares the embedding once for all chunks."""
    vocab_size = len(embedding)
    rounded = embedding.astype(dtype)

    # Rows of zeros pad the table to a multiple of 16, since GPUs would copy logits of another
    # width. With a sharded vocabulary, padding would move rows between devices.
    padding = -vocab_size % 16 if num_shards("vocab") == 1 else 0
    padded = jnp.pad(rounded, ((0, padding), (0, 0)))
    table = jax.lax.optimization_barrier(padded)

    mean = rounded.mean(axis=0, dtype=at_least_float32(rounded))
    return _Projection(table, mean, vocab_size)


def _chunk_loss(features, targets, projection, smoothing, consistency):
    """Returns the loss, the likelihood, and the gradient with respect to the logits of every row.

    The gradient is undefined for the logits of rows that pad the table.
    """
    table, mean, vocab_size = projection
    columns = jnp.arange(len(table), dtype=jnp.int32)[None]  # [1, V]
    logits = matmul_nt(features, table, mean.dtype)  # [R, V]
    if len(table) > vocab_size:
        # Rows that pad the table have no probability.
        lowest = jnp.finfo(logits.dtype).min
        logits = jnp.where(columns < vocab_size, logits, lowest)

    log_total = jax.nn.logsumexp(logits, axis=-1)  # [R]
    is_target = columns == targets[:, None]  # [R, V]
    is_target = is_target.astype(logits.dtype)

    # Cross-entropy with the target alone.
    if num_shards("vocab") == 1:
        column = targets[:, None]
        chosen = jnp.take_along_axis(logits, column, axis=1, mode="clip")  # [R, 1]
        target_logits = chosen[:, 0]
    else:  # No device has the whole of a sharded vocabulary.
        target_logits = (logits * is_target).sum(axis=-1)
    nll = log_total - target_logits

    # Cross-entropy with the uniform distribution: the mean row's logit is the mean logit. A matmul
    # would compute it in less than float32 on accelerators.
    wide_features = features.astype(mean.dtype)
    mean_logits = (wide_features * mean[None]).sum(axis=-1)
    uniform_nll = log_total - mean_logits
    loss = (1 - smoothing) * nll + smoothing * uniform_nll

    # The gradient of cross-entropy: predicted minus target distribution.
    log_probs = logits - log_total[:, None]
    probabilities = jnp.exp(log_probs)
    uniform = smoothing / vocab_size
    gradient = probabilities - uniform - (1 - smoothing) * is_target

    if consistency:
        divergence, divergence_gradient = _divergence(log_probs, probabilities)
        loss = loss + consistency * divergence
        gradient = gradient + consistency * divergence_gradient
    return loss, nll, gradient


def _divergence(log_probs, probabilities):
    """Returns R-Drop's term, and its gradients with respect to the logits of every row.

    The term of a pair of rows, (KL(p || q) + KL(q || p)) / 2, is divided equally between them.
    """

    def minus_other(x):
        """Subtracts from each row the other row of its pair."""
        pairs = x.reshape(-1, 2, x.shape[-1])
        swapped = pairs[:, ::-1]
        return (pairs - swapped).reshape(x.shape)

    log_ratios = minus_other(log_probs)  # log p - log q, log q - log p
    divergence = (probabilities * log_ratios).sum(axis=-1, keepdims=True)  # KL(p || q), KL(q || p)
    gradient = probabilities * (log_ratios - divergence) + minus_other(probabilities)

    both = divergence.reshape(-1, 2).sum(axis=-1)  # KL(p || q) + KL(q || p)
    return jnp.repeat(both, 2) / 4, gradient / 2
