"""Bytes that a training step communicates between devices, computed from sizes alone.

The count covers what the program requests, with activations in the dtype of matmul inputs, as on
accelerators. It leaves out what is small: sums of losses, checks for NaN, Adam's moments of biases,
and the padding of the loss's last chunk. A compiler may choose another way: XLA for TPUs
reduce-scatters some activations and gathers them later.
"""

from typing import NamedTuple

import jax.numpy as jnp

from jaxformer.config import Config, ModelConfig
from jaxformer.errors import UserError
from jaxformer.nn.precision import matmul_dtype

_FLOAT32 = 4


class Traffic(NamedTuple):
    """Bytes of the arrays that devices along one mesh axis exchange in a step.

    Each array counts with its full, unsharded size.

    Attributes:
      devices: Number of devices along the axis.
      gathered: Bytes of arrays that are all-gathered.
      scattered: Bytes of arrays that are reduce-scattered: each device keeps a shard of the sum.
      summed: Bytes of arrays that are all-reduced: each device keeps the whole sum.
    """

    devices: int
    gathered: float = 0.0
    scattered: float = 0.0
    summed: float = 0.0

    @property
    def sent(self) -> float:
        """Bytes that each device sends and receives in ring algorithms; a sum goes around twice."""
        once = self.gathered + self.scattered + 2 * self.summed
        return once * (self.devices - 1) / self.devices


class ParameterCounts(NamedTuple):
    """Numbers of parameters, by their layout on devices.

    Attributes:
      matrices: Matrices of all layers, sharded over "fsdp" and "tensor".
      tables: Embeddings, sharded likewise: one, or three if they are not tied.
      source: The embedding of source tokens.
      target: The embedding of target tokens, which has the size of the output matrix.
      vectors: All other parameters, replicated on every device.
    """

    matrices: int
    tables: int
    source: int
    target: int
    vectors: int


def count_parameters(config: ModelConfig) -> ParameterCounts:
    """Returns the numbers of parameters (section 3).

    >>> sum(count_parameters(ModelConfig())[:2])  # the paper's base model without biases and norms
    62984192
    """
    c, d = config, config.d_model
    keys, values = c.num_heads * c.key_size, c.num_heads * c.value_size
    attention, feed_forward = 2 * d * (keys + values), 2 * d * c.d_ff
    norms, inner_biases = 5 * 2 * d, 2 * (c.d_ff + d)
    attention_biases = 3 * (2 * keys + values + d) if c.biases else 0
    vectors = c.num_layers * (norms + inner_biases + attention_biases)
    vectors += 2 * 2 * d if c.norm_position == "pre" else 0
    vectors += c.output_size if c.biases else 0
    vectors += 2 * c.max_length * d if c.positions == "learned" else 0
    matrices = c.num_layers * (3 * attention + 2 * feed_forward)
    source, target = c.vocab_size * d, c.output_size * d
    tables = source if c.embeddings == "tied" else source + 2 * target
    return ParameterCounts(matrices, tables, source, target, vectors)


def step_traffic(config: Config, rows: int, src_length: int, tgt_length: int) -> dict[str, Traffic]:
    """Returns the traffic of a training step along each axis of the mesh, by the name of the axis.

    Args:
      config: A config whose mesh sizes are given and assumed to divide the sizes of the model.
      rows: Rows of the global batch.
      src_length: Source tokens per row, padding included.
      tgt_length: Target tokens per row, padding included.

    Raises:
      UserError: A size of the mesh is -1.

    >>> from jaxformer.config import MeshConfig
    >>> traffic = step_traffic(Config(mesh=MeshConfig(data=8)), 1024, 32, 32)
    >>> round(traffic["data"].sent / 1e6), traffic["tensor"].sent
    (441, 0.0)
    """
    mesh, p = config.mesh, count_parameters(config.model)
    if -1 in (mesh.data, mesh.fsdp, mesh.tensor):
        raise UserError(f"mesh: expected all sizes to count what is sent, got {mesh}; replace -1")
    rows //= mesh.data * mesh.fsdp
    gradients = (p.matrices + p.tables) / (mesh.fsdp * mesh.tensor) + p.vectors
    return {
        "data": Traffic(mesh.data, summed=_FLOAT32 * gradients),
        "fsdp": _fsdp(config),
        "tensor": _tensor(config, rows * src_length, rows * tgt_length),
    }


def _fsdp(config: Config) -> Traffic:
    p, itemsize = count_parameters(config.model), _matmul_itemsize(config.model)
    tensor, sums = config.mesh.tensor, _FLOAT32 * config.training.gradient_accumulation
    return Traffic(
        config.mesh.fsdp,
        # Matrices are gathered in the forward and in the backward pass, tables once for both.
        gathered=(2 * itemsize * p.matrices + _FLOAT32 * p.tables) / tensor,
        # Gradients of tables come from the loss, and from the lookups of each side.
        scattered=sums * (p.matrices + p.source + 2 * p.target) / tensor,
        summed=sums * p.vectors,
    )


def _tensor(config: Config, src_tokens: int, tgt_tokens: int) -> Traffic:
    """Returns the traffic for the tokens of one batch shard."""
    model, layers = config.model, config.model.num_layers
    # Each sub-layer ends with a sum, and so does its rematerialization.
    passes = 2 if config.training.remat == "layer" else 1
    src_sums, tgt_sums = 2 * passes, 3 * passes
    # The gradient with respect to the input of each sub-layer's first matmuls is a sum, too: three
    # in self-attention, one in the feed-forward network; in cross-attention one of the target, and
    # two of the source.
    src_sums, tgt_sums = src_sums + 4 + 2, tgt_sums + 4 + 1
    # The gradient with respect to the input of the loss is one more.
    sums = layers * (src_sums * src_tokens + tgt_sums * tgt_tokens) + tgt_tokens
    # Maximum logit, sum of exponentials and the target's logit per token; and the mean row once.
    softmax = _FLOAT32 * (3 * tgt_tokens + model.d_model)
    p = count_parameters(model)
    once = model.embeddings == "tied" and config.mesh.fsdp == 1
    return Traffic(
        config.mesh.tensor,
        gathered=_FLOAT32 * (p.source if once else p.source + p.target),
        summed=_matmul_itemsize(model) * model.d_model * sums + softmax,
    )


def _matmul_itemsize(config: ModelConfig) -> int:
    return jnp.dtype(matmul_dtype(config.compute_dtype)).itemsize
