"""How many bytes a training step sends from device to device, counted from the sizes alone.

Counted is what the program asks for, where activations have the type of the products, as they have
on accelerators. What is small is left out: sums of losses, checks for NaN, moments of biases, the
padding of the loss's last chunk. A compiler may choose another way: that for TPUs sums some
activations in parts, and gathers them later.
"""

from typing import NamedTuple

import jax.numpy as jnp

from jaxformer.config import Config, ModelConfig
from jaxformer.errors import UserError
from jaxformer.nn.precision import matmul_dtype

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


class ParameterCounts(NamedTuple):
    """How many numbers the parameters have, by how they lie on the devices.

    Attributes:
      matrices: Of all layers, split over "fsdp" and "tensor".
      tables: Embeddings, split likewise: one, or three if they are not tied.
      source: The one that source tokens are looked up in.
      target: The one that target tokens are looked up in, of the size of the output's.
      vectors: The rest, whole on every device.
    """

    matrices: int
    tables: int
    source: int
    target: int
    vectors: int


def count_parameters(config: ModelConfig) -> ParameterCounts:
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
    vectors += c.output_size if c.biases else 0
    vectors += 2 * c.max_length * d if c.positions == "learned" else 0
    matrices = c.num_layers * (3 * attention + 2 * feed_forward)
    source, target = c.vocab_size * d, c.output_size * d
    tables = source if c.embeddings == "tied" else source + 2 * target
    return ParameterCounts(matrices, tables, source, target, vectors)


def step_traffic(config: Config, rows: int, src_length: int, tgt_length: int) -> dict[str, Traffic]:
    """What a training step exchanges along each axis of the mesh, by the axis's name.

    Args:
      config: With a mesh of known sizes, which the model's are taken to be divisible by.
      rows: Of the whole batch.
      src_length: Source tokens in a row, padding included.
      tgt_length: Target tokens in a row, padding included.

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
    p, product = count_parameters(config.model), _product_bytes(config.model)
    tensor, sums = config.mesh.tensor, _FLOAT32 * config.training.gradient_accumulation
    return Traffic(
        config.mesh.fsdp,
        # Layers for the forward and the backward pass, as they are multiplied; tables for both.
        gathered=(2 * product * p.matrices + _FLOAT32 * p.tables) / tensor,
        # A table has a gradient from the loss, and from the look-ups of each side.
        scattered=sums * (p.matrices + p.source + 2 * p.target) / tensor,
        summed=sums * p.vectors,
    )


def _tensor(config: Config, src_tokens: int, tgt_tokens: int) -> Traffic:
    """Traffic for the tokens of one part of the rows."""
    model, layers = config.model, config.model.num_layers
    # A sum ends each sub-layer, also where it is computed again.
    passes = 2 if config.training.remat == "layer" else 1
    src_sums, tgt_sums = 2 * passes, 3 * passes
    # And one is the gradient of each product that a sub-layer begins with: three in
    # self-attention; in encoder-decoder attention one, and two of the source.
    src_sums, tgt_sums = src_sums + 4 + 2, tgt_sums + 4 + 1
    # The loss has another.
    sums = layers * (src_sums * src_tokens + tgt_sums * tgt_tokens) + tgt_tokens
    # Largest logit, sum of exponentials, the target's logit; and once the mean row.
    softmax = _FLOAT32 * (3 * tgt_tokens + model.d_model)
    p = count_parameters(model)
    once = model.embeddings == "tied" and config.mesh.fsdp == 1
    return Traffic(
        config.mesh.tensor,
        gathered=_FLOAT32 * (p.source if once else p.source + p.target),
        summed=_product_bytes(model) * model.d_model * sums + softmax,
    )


def _product_bytes(config: ModelConfig) -> int:
    return jnp.dtype(matmul_dtype(config.compute_dtype)).itemsize
