"""Scales of int8 activations, from float32 translations of a few sentences.

An engine multiplies the input of each matrix by a fixed number, alpha, and rounds to int8. Larger
inputs than 127 / alpha are clipped. As for Bergamot's models, this limit is the mean of the largest
absolute inputs of each sentence, plus 1.1 standard deviations.
"""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Int

from jaxformer.data.tokenizer import PAD
from jaxformer.inference.forced_pass import batch_pairs, pad_pairs
from jaxformer.inference.members import Member
from jaxformer.interop.bergamot.bergamot_names import ALPHA_SUFFIX, LAYERS
from jaxformer.nn.attention import MultiHeadAttention, Projection

_DEVIATIONS = 1.1
_TOKENS_PER_BATCH = 4096
# An input that is always 0 has no scale.
_SMALLEST_LIMIT = 1e-6


def find_alphas(
    student: Member,
    pairs: Sequence[tuple[list[int], list[int]]],
) -> dict[str, Float[np.ndarray, "1 1"]]:
    """Returns the scale of each matrix's input, from sources and translations in token ids."""
    maxima = collections.defaultdict(list)
    for batch in batch_pairs(pairs, student.config.max_length, _TOKENS_PER_BATCH):
        batch_of_pairs = [pairs[number] for number in batch.numbers]
        padded = pad_pairs(batch_of_pairs, batch.shape)
        on_device = _largest_inputs(student, padded.src, padded.tgt_in)
        found = jax.device_get(on_device)

        num_sentences = len(batch.numbers)  # The last rows of a batch can be padding.
        for name, largest in found.items():
            maxima[name] += largest[:num_sentences].tolist()

    alphas = {}
    for name, of_sentences in maxima.items():
        mean = np.mean(of_sentences)
        deviation = np.std(of_sentences)
        limit = max(mean + _DEVIATIONS * deviation, _SMALLEST_LIMIT)
        alpha = 127 / limit
        alphas[f"{name}{ALPHA_SUFFIX}"] = np.array([[alpha]], np.float32)

    # The input of the logits has two names.
    alphas[f"none{ALPHA_SUFFIX}"] = alphas[f"Wemb{ALPHA_SUFFIX}"]
    return alphas


@jax.jit
def _largest_inputs(
    student: Member,
    src: Int[Array, "B S"],
    tgt_in: Int[Array, "B T"],
) -> dict[str, Float[Array, " B"]]:
    """Returns the largest absolute input of each matrix for each pair, without padding."""
    segments = (src != PAD).astype(jnp.int32)
    with nn.intercept_methods(_record):
        encoded, of_encoder = student(src, segments, method="encode", mutable="inputs")
        features, of_decoder = student(
            tgt_in,
            encoded,
            segments,
            method="decode",
            mutable="inputs",
        )

    # The embedding is also the matrix of the logits.
    is_real = tgt_in != PAD
    of_tokens = jnp.abs(features).max(axis=-1)  # [B, T]
    of_logits = jnp.where(is_real, of_tokens, 0)
    largest = {"Wemb": of_logits.max(axis=1)}

    sown = of_encoder["inputs"] | of_decoder["inputs"]
    found: Any = flax.traverse_util.flatten_dict(sown)
    for path, (of_layers,) in found.items():  # of_layers: [L, B, T]
        side, _, module, name = path
        is_of_memory = module == "cross_attention" and name in ("key", "value")
        is_source = side == "encoder" or is_of_memory
        tokens = src if is_source else tgt_in
        of_real_tokens = jnp.where(tokens != PAD, of_layers, 0)
        of_pairs = of_real_tokens.max(axis=2)  # [L, B]

        theirs = LAYERS[side][module, name]
        for number, inputs in enumerate(of_pairs, start=1):
            largest[f"{side}_l{number}_{theirs}"] = inputs
    return largest


def _record(call: Callable, args: tuple, kwargs: dict[str, Any], context: Any) -> Any:
    """Calls a method of a layer, and sows the largest input of its matrices for each token."""
    module = context.module
    method = context.method_name

    def sow(inputs: Float[Array, "B T _"], *names: str) -> None:
        for name in names:
            largest = jnp.abs(inputs).max(axis=-1)  # [B, T]
            module.sow("inputs", name, largest)

    result = call(*args, **kwargs)
    if method == "_project":  # of a feed-forward network
        name, x, _ = args
        sow(x, name)

    elif method == "_projections":
        # An identity matrix beside the output matrix returns its input together with its output.
        kernel, bias = result.output
        width = len(kernel)
        kernel = jnp.concatenate([kernel, jnp.eye(width)], axis=1)
        if bias is not None:
            bias = jnp.pad(bias, (0, width))
        return result._replace(output=Projection(kernel, bias))

    elif method == "attend":
        x, _, memory = args
        if not isinstance(module, MultiHeadAttention):
            sow(x, "input", "forget")
            return result

        attended = x if memory is None else memory
        sow(x, "query")
        sow(attended, "key", "value")

        output, state = result
        width = x.shape[-1]
        output, heads = jnp.split(output, [width], axis=-1)
        sow(heads, "output")
        return output, state

    return result
