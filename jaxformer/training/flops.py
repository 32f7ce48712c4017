"""Floating point operations of training, computed from sizes alone (section 5.2).

A multiplication and an addition are two operations, and gradients of a matmul cost twice the
matmul. Padding and masked scores count, because they are computed; scores outside of a window do
not. Norms, softmax, dropout and the loss do not count, because they take few operations.
"""

from jaxformer.models.architecture import Architecture

# Operations of a training step for each multiplication of the forward pass: forward and two
# gradients, each with a multiplication and an addition.
_TRAINING = 3 * 2


def training_flops(config: Architecture, rows: int, src_length: int, tgt_length: int) -> int:
    """Returns the operations of all matmuls in a training step over a batch, logits included.

    >>> from jaxformer.models.assembly import ModelConfig
    >>> training_flops(ModelConfig(), rows=1, src_length=32, tgt_length=32)
    12206211072
    """
    own = config.pair_multiplications(src_length, tgt_length)
    if own is not None:
        return _TRAINING * rows * own

    encoder = layers_flops(config, rows, src_length)
    return encoder + decoder_flops(config, rows, tgt_length, memory=src_length)


def language_model_flops(
    config: Architecture,
    rows: int,
    length: int,
    causal: bool = True,
) -> int:
    """Returns the operations of a language model's training step; see :func:`training_flops`."""
    layers = layers_flops(config, rows, length, causal=causal)
    width = config.embedding_width
    logits = length * width * config.vocab_size

    projections = 0
    if width != config.d_model:  # before and after the layers
        projections = 2 * length * width * config.d_model
    return layers + _TRAINING * rows * (logits + projections)


def layers_flops(
    config: Architecture,
    rows: int,
    length: int,
    causal: bool = False,
) -> int:
    """Returns the operations of a training step in one stack of layers, without logits."""
    layer = _attention(config, length, length, sides=1 if causal else 2)
    layer += _feed_forward(config, length)
    return _TRAINING * rows * config.num_layers * layer


def decoder_flops(config: Architecture, rows: int, length: int, memory: int) -> int:
    """Returns the operations of a decoder that attends to ``memory`` vectors of its own width.

    As in :func:`training_flops`, with the logits, and without the encoder.
    """
    layer = _attention(config, length, length, sides=1)
    layer += _attention(config, length, memory)
    layer += _feed_forward(config, length)
    logits = length * config.d_model * config.output_size
    return _TRAINING * rows * (config.decoder_layers * layer + logits)


def _attention(config: Architecture, queries: int, keys: int, sides: int = 0) -> int:
    """Counts the multiplications; a window has 1 or 2 sides, and 0 for attention to a memory."""
    visible = keys
    # Layers with other windows compute all scores.
    if sides and config.window and config.window_every == 1:
        visible = min(keys, sides * config.window + 1)

    # Queries and outputs of all heads, keys and values of the key-value heads.
    projected = config.num_heads * queries + config.kv_heads * keys
    projections = config.d_model * projected
    # Scores are as large as keys, and weighted sums as values.
    scores = config.num_heads * queries * visible

    head_size = config.key_size + config.value_size
    return head_size * (projections + scores)


def _feed_forward(config: Architecture, tokens: int) -> int:
    matrix = config.d_model * config.d_ff
    return config.feed_forward_matrices * tokens * matrix


# Dense bfloat16 FLOP/s of data sheets, by the beginning of the device kind; the first match counts.
_PEAK_FLOPS = (
    ("NVIDIA A100", 312e12),
    ("NVIDIA H100 NVL", 835e12),
    ("NVIDIA H100 PCIe", 756e12),
    ("NVIDIA H100", 989e12),
    ("NVIDIA H200", 989e12),
    ("NVIDIA L40S", 362e12),
    ("NVIDIA L40", 181e12),
    ("NVIDIA L4", 121e12),
    ("TPU v2", 22.5e12),  # Half of a chip: each of its two cores is a device.
    ("TPU v3", 61.5e12),  # Half of a chip, too.
    ("TPU v4", 275e12),
    ("TPU v5 lite", 197e12),
    ("TPU v5", 459e12),
    ("TPU v6 lite", 918e12),
)


def peak_flops(device_kind: str) -> float | None:
    """Returns the peak FLOP/s of a device in dense bfloat16 matmuls, or None if it is not known.

    >>> peak_flops("TPU v5 lite")
    197000000000000.0
    """
    for name, peak in _PEAK_FLOPS:
        if device_kind.startswith(name):
            return peak
    return None
