"""Stacks and embeddings from the sizes and choices of a :class:`~jaxformer.config.ModelConfig`."""

import functools
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from jaxformer.config import ModelConfig
from jaxformer.errors import UserError
from jaxformer.nn.attention import MultiHeadAttention
from jaxformer.nn.block import Block, Residual
from jaxformer.nn.feed_forward import FeedForward
from jaxformer.nn.norm import LayerNorm
from jaxformer.nn.parameters import parameter
from jaxformer.nn.positions import sinusoidal_positions
from jaxformer.nn.precision import Int8Matrix
from jaxformer.nn.stack import Remat, Stack


def make_stack(config: ModelConfig, *, cross_attention: bool, remat: Remat = "none") -> Stack:
    """Returns the stack of an encoder or a language model, or of a decoder with cross-attention.

    Args:
      config: Sizes and choices.
      cross_attention: Whether the blocks attend to a memory besides.
      remat: What the backward pass computes again instead of keeping.
    """
    c = config
    make_attention = functools.partial(
        MultiHeadAttention,
        num_heads=c.num_heads,
        d_k=c.d_k,
        d_v=c.d_v,
        use_bias=c.biases,
        dropout_rate=c.attention_dropout_rate,
        compute_dtype=c.compute_dtype,
    )
    make_norm = functools.partial(LayerNorm, c.norm_epsilon)
    make_residual = functools.partial(Residual, c.norm_position, c.dropout_rate, make_norm)
    block = Block(
        self_attention=make_attention(),
        cross_attention=make_attention() if cross_attention else None,
        feed_forward=FeedForward(c.d_ff, c.activation, c.compute_dtype),
        make_residual=make_residual,
    )
    return Stack(block, c.num_layers, make_norm if c.norm_position == "pre" else None, remat)


def make_table(module: nn.Module, name: str, size: int, d_model: int) -> Any:
    """Creates an embedding: unit variance once it is multiplied by sqrt(d_model)."""
    initializer = nn.initializers.normal(stddev=d_model**-0.5)
    return parameter(module, name, initializer, (size, d_model), ("vocab", "d_model"), "table")


def make_positions(module: nn.Module, name: str, config: ModelConfig) -> Any:
    """Creates the encodings of ``max_length`` positions, sinusoidal or learned, [M, D]."""
    if config.positions == "sinusoidal":
        return sinusoidal_positions(config.max_length, config.d_model)
    initializer = nn.initializers.normal(stddev=config.d_model**-0.5)
    return parameter(module, name, initializer, (config.max_length, config.d_model))


def unquantized(table: Any) -> Float[Array, "V D"]:
    """Returns a table that a loss can be computed with.

    Raises:
      ValueError: It is quantized to int8, which nothing can be trained with.
    """
    if isinstance(table, Int8Matrix):
        raise ValueError("parameters are quantized to int8: expected the original ones")
    return jnp.asarray(table)


def check_model_config(owner: str, config: Any) -> None:
    """Checks that a model was given the config of a model.

    Raises:
      UserError: Names what was given, and what to do.
    """
    if not isinstance(config, ModelConfig):
        advice = "; give config.model" if hasattr(config, "model") else ""
        raise UserError(f"{owner}: expected a ModelConfig, got {type(config).__name__}{advice}")
