"""How many floating point operations training takes, counted from the sizes alone (section 5.2)."""

from jaxformer.config import ModelConfig


def forward_flops(config: ModelConfig, rows: int, src_length: int, tgt_length: int) -> int:
    """Operations of all matrix products in one forward pass over a batch, logits included.

    A multiplication and an addition are two operations. Padding is computed and so is counted, as
    are the scores that a mask forbids. Norms, softmax, dropout and the loss are not: they are few.

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
    """Operations of a training step: the gradients of a product are two more of its size."""
    return 3 * forward_flops(config, rows, src_length, tgt_length)
