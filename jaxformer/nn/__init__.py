"""Layers and functions that also work on their own: attention, blocks, stacks, caches.

Layers take sizes, not configs; ``d_model`` is the width of their inputs. They do not depend on
text, tasks, losses or search. Inputs of matrix multiplications have ``compute_dtype``; sums,
softmax and layer norm statistics are float32 (:mod:`jaxformer.nn.precision`). Layers raise a
``UserError`` for a size or a choice that does not exist, and for arrays of another shape or dtype.

Axes of shapes: B batch, T queries or tokens, S keys, H heads, K = d_k, V = d_v, D = d_model,
F = d_ff, N beams, M capacity of a cache; V is the vocabulary in embeddings and logits. ``#`` marks
an axis that may be 1 and is then broadcast, ``*`` any number of axes.
"""

from jaxformer.nn.attention import MultiHeadAttention
from jaxformer.nn.backend import Backend, backend, backend_for, use_backend
from jaxformer.nn.block import Block, Residual
from jaxformer.nn.cache import KVCache, MemoryCache, Slots
from jaxformer.nn.dropout import Dropout
from jaxformer.nn.embedding import embed, output_logits
from jaxformer.nn.feed_forward import FeedForward
from jaxformer.nn.kernels import additive_attention, dot_product_attention
from jaxformer.nn.keys import Keys, Memory, causal_mask, segment_mask
from jaxformer.nn.linear_attention import LinearAttention, elu_features, random_features
from jaxformer.nn.matmul import project
from jaxformer.nn.norm import LayerNorm, RMSNorm
from jaxformer.nn.parameters import ParameterInfo, describe, parameter
from jaxformer.nn.positions import rotary_positions, sinusoidal_positions
from jaxformer.nn.precision import cast_params
from jaxformer.nn.ssru import SSRU
from jaxformer.nn.stack import Stack, StackCache

__all__ = [
    "SSRU",
    "Backend",
    "Block",
    "Dropout",
    "FeedForward",
    "KVCache",
    "Keys",
    "LayerNorm",
    "LinearAttention",
    "Memory",
    "MemoryCache",
    "MultiHeadAttention",
    "ParameterInfo",
    "RMSNorm",
    "Residual",
    "Slots",
    "Stack",
    "StackCache",
    "additive_attention",
    "backend",
    "backend_for",
    "cast_params",
    "causal_mask",
    "describe",
    "dot_product_attention",
    "elu_features",
    "embed",
    "output_logits",
    "parameter",
    "project",
    "random_features",
    "rotary_positions",
    "segment_mask",
    "sinusoidal_positions",
    "use_backend",
]
