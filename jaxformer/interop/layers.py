"""PyTorch's linear layers as parameters of our layers."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxformer.interop.arrays import Linear

Params = dict[str, Any]


def attention(query: Linear, key: Linear, value: Linear, output: Linear, num_heads: int) -> Params:
    """Parameters of our MultiHeadAttention with biases: heads get an axis of their own."""
    params: Params = {"output": output.kernel, "output_bias": output.bias}
    for name, (kernel, bias) in (("query", query), ("key", key), ("value", value)):
        params[name] = kernel.reshape(kernel.shape[0], num_heads, -1)
        params[f"{name}_bias"] = bias.reshape(num_heads, -1)
    return params


def feed_forward(inner: Linear, outer: Linear) -> Params:
    """Parameters of our FeedForward."""
    return {
        "inner": inner.kernel,
        "inner_bias": inner.bias,
        "outer": outer.kernel,
        "outer_bias": outer.bias,
    }


def stack(layer: Callable[[int], Params], num_layers: int) -> Params:
    """Parameters of a stack: those of its layers, along a new first axis."""
    layers = [layer(number) for number in range(num_layers)]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *layers)
