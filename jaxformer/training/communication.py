"""How many bytes a training step sends from device to device, counted from the sizes alone.

Only what grows with the model or the batch is counted: not counts, losses, checks for NaN, nor
the moments of the few vectors that lie along a split axis.
"""

from typing import NamedTuple

import jax.numpy as jnp

from jaxformer.config import MeshConfig, ModelConfig
from jaxformer.nn.projection import product_dtype

_FLOAT32 = 4


class Traffic(NamedTuple):
    """Bytes of the arrays that devices along one axis of the mesh exchange in a step.

    Every array is counted as large as it is where it is whole.

    Attributes:
      devices: How many there are along the axis.
      gathered: Of arrays put together from the devices' parts.
      scattered: Of arrays summed over the devices, each of which keeps its part of the sum.
      summed: Of arrays summed over the devices, each of which keeps the sum.
    """

    devices: int
    gathered: float = 0.0
    scattered: float = 0.0
    summed: float = 0.0

    @property
    def sent(self) -> float:
        """Bytes that each device sends, and receives, in rings: a sum goes around twice."""
        once = self.gathered + self.scattered + 2 * self.summed
        return once * (self.devices - 1) / self.devices


class Parameters(NamedTuple):
    """How many numbers the parameters have, by how they lie on the devices.

    Attributes:
      matrices: Of all layers, split over "fsdp" and "tensor".
      tables: Embeddings, split likewise: one, or three if they are not tied.
      table: One of them.
      vectors: The rest, whole on every device.
    """

    matrices: int
    tables: int
    table: int
    vectors: int


def count_parameters(config: ModelConfig) -> Parameters:
    """The numbers of parameters (section 3).

    >>> sum(count_parameters(ModelConfig())[:2])  # without biases and norms, base of the paper
    62984192
    """
    c, d = config, config.d_model
    keys, values = c.num_heads * c.key_size, c.num_heads * c.value_size
    attention, feed_forward = 2 * d * (keys + values), 2 * d * c.d_ff
    norms, inner_biases = 5 * 2 * d, 2 * (c.d_ff + d)
    attention_biases = 3 * (2 * keys + values + d) if c.biases else 0
    vectors = c.num_layers * (norms + inner_biases + attention_biases)
    vectors += 2 * 2 * d if c.norm_position == "pre" else 0
    vectors += c.vocab_size if c.biases else 0
    vectors += 2 * c.max_length * d if c.positions == "learned" else 0
    matrices = c.num_layers * (3 * attention + 2 * feed_forward)
    table = c.vocab_size * d
    return Parameters(matrices, table * (1 if c.embeddings == "tied" else 3), table, vectors)


def step_traffic(
    config: ModelConfig, mesh: MeshConfig, rows: int, src_length: int, tgt_length: int
) -> dict[str, Traffic]:
    """What a training step exchanges along each axis of the mesh, by the axis's name.

    Args:
      config: The model; sizes are taken to divide evenly.
      mesh: Its sizes; all of them given, none -1.
      rows: Of the whole batch, which is computed in one piece.
      src_length: Source tokens in a row, padding included.
      tgt_length: Target tokens in a row, padding included.

    >>> traffic = step_traffic(ModelConfig(), MeshConfig(data=8), 1024, 32, 32)
    >>> round(traffic["data"].sent / 1e6), traffic["tensor"].sent
    (441, 0.0)
    """
    rows //= mesh.data * mesh.fsdp
    p = count_parameters(config)
    traffic = {
        "data": Traffic(
            mesh.data,
            summed=_FLOAT32 * ((p.matrices + p.tables) / (mesh.fsdp * mesh.tensor) + p.vectors),
        ),
        "fsdp": _fsdp(config, mesh),
        "tensor": _tensor(config, mesh, rows * src_length, rows * tgt_length),
    }
    return {axis: t if t.devices > 1 else Traffic(1) for axis, t in traffic.items()}


def _fsdp(config: ModelConfig, mesh: MeshConfig) -> Traffic:
    p, product = count_parameters(config), jnp.dtype(product_dtype(config)).itemsize
    return Traffic(
        mesh.fsdp,
        # Layers forward and backward, where they are multiplied; tables, as they are, for both.
        gathered=(2 * product * p.matrices + _FLOAT32 * p.tables) / mesh.tensor,
        # A table has a gradient from the loss, and from each side's look-ups, which need all of it.
        scattered=_FLOAT32 * ((p.matrices + p.table) / mesh.tensor + 2 * p.table),
        summed=_FLOAT32 * p.vectors,
    )


def _tensor(config: ModelConfig, mesh: MeshConfig, src_tokens: int, tgt_tokens: int) -> Traffic:
    """Traffic for the tokens of one part of the rows."""
    activation = jnp.dtype(product_dtype(config)).itemsize
    # Forward, a sum after each sub-layer. Backward, one for each product that the sub-layer
    # begins with: three in self-attention; in encoder-decoder attention, two are of the source.
    src_sums = config.num_layers * (2 + 4 + 2)
    tgt_sums = config.num_layers * (3 + 3 + 1 + 1) + 1  # and the gradient of the loss
    sums = activation * config.d_model * (src_sums * src_tokens + tgt_sums * tgt_tokens)
    # Largest logit, sum of exponentials, the target's logit, and the mean.
    softmax = 4 * _FLOAT32 * tgt_tokens
    whole_tables = 1 if config.embeddings == "tied" and mesh.fsdp == 1 else 2
    return Traffic(
        mesh.tensor,
        gathered=_FLOAT32 * whole_tables * count_parameters(config).table,
        summed=sums + softmax,
    )
