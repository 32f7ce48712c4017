"""Conversion of PyTorch's linear layers to parameters of our layers."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxformer.interop.arrays import Linear

Params = dict[str, Any]


def attention(query: Linear, key: Linear, value: Linear, output: Linear, num_heads: int) -> Params:
    """Returns parameters of :class:`~jaxformer.nn.attention.MultiHeadAttention` with biases."""
    params: Params = {"output": output.kernel, "output_bias": output.bias}
    for name, (kernel, bias) in (("query", query), ("key", key), ("value", value)):
        params[name] = kernel.reshape(kernel.shape[0], num_heads, -1)
        params[f"{name}_bias"] = bias.reshape(num_heads, -1)
    return params


def feed_forward(inner: Linear, outer: Linear) -> Params:
    """Returns parameters of :class:`~jaxformer.nn.feed_forward.FeedForward` with biases."""
    return {
        "inner": inner.kernel,
        "inner_bias": inner.bias,
        "outer": outer.kernel,
        "outer_bias": outer.bias,
    }


def stack(layer: Callable[[int], Params], num_layers: int) -> Params:
    """Stacks the parameters of ``layer(0)``, ``layer(1)``, ... along a new first axis."""
    layers = [layer(number) for number in range(num_layers)]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *layers)
