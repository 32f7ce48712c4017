"""Floating point operations of training, computed from sizes alone (section 5.2)."""

from jaxformer.models.assembly import ModelConfig


def forward_flops(config: ModelConfig, rows: int, src_length: int, tgt_length: int) -> int:
    """Returns the operations of all matmuls in one forward pass over a batch, logits included.

    A multiplication and an addition are two operations. Padding and masked scores count, because
    they are computed. Norms, softmax, dropout and the loss do not count, because they are few.

    >>> forward_flops(ModelConfig(), rows=1, src_length=32, tgt_length=32)
    4068737024
    """
    d, s, t = config.d_model, src_length, tgt_length
    keys, values = config.num_heads * config.key_size, config.num_heads * config.value_size

    def attention(queries: int, memory: int) -> int:
        projections = d * (queries * (keys + values) + memory * (keys + values))
        return projections + queries * memory * (keys + values)

    feed_forward = 2 * d * config.d_ff
    encoder = attention(s, s) + s * feed_forward
    decoder = attention(t, t) + attention(t, s) + t * feed_forward
    logits = t * d * config.output_size
    return 2 * rows * (config.num_layers * (encoder + decoder) + logits)


def training_flops(config: ModelConfig, rows: int, src_length: int, tgt_length: int) -> int:
    """Returns the operations of a training step; gradients of a matmul cost twice the matmul."""
    return 3 * forward_flops(config, rows, src_length, tgt_length)


def language_model_flops(config: ModelConfig, rows: int, length: int) -> int:
    """Returns the operations of a language model's training step; see :func:`training_flops`.

    >>> language_model_flops(ModelConfig(vocab_size=69, d_model=256, d_ff=1024, num_heads=4,
    ...                                  num_layers=6), rows=32, length=256)
    271451160576
    """
    d, t = config.d_model, length
    heads = config.num_heads * (config.key_size + config.value_size)
    layer = t * (2 * d * heads + 2 * d * config.d_ff) + t * t * heads
    return 3 * 2 * rows * (config.num_layers * layer + t * d * config.vocab_size)
