"""XLA's memory estimate for a step against a closed formula."""

import jax
import pytest

from jaxformer.config import Config, DataConfig, ModelConfig
from jaxformer.memory import memory_savings, step_memory, with_settings

CONFIG = Config(
    model=ModelConfig(vocab_size=100, d_model=16, d_ff=32, num_heads=2, num_layers=1),
    data=DataConfig(tokens_per_batch=100, max_length=30),
)


@pytest.mark.ci
def test_state_is_parameters_two_moments_and_the_batch():
    d = 16
    f = 32
    v = 100
    attention = 4 * d * d
    norm = 2 * d
    feed_forward = 2 * d * f + f + d
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    parameters = v * d + encoder + decoder

    # A batch of three rows has seven arrays of 30 tokens.
    counters = 6
    row = 7 * 30
    memory = step_memory(CONFIG, jax.devices()[:1])
    assert memory.state == 4 * (3 * parameters + counters + 3 * row)

    # The other memory holds at least the gradients.
    assert memory.total - memory.state > 4 * parameters

    # 3 rows of 30 tokens become 4: 2 devices x 2 accumulated batches x 1 row.
    two = with_settings(CONFIG, {"training.gradient_accumulation": 2})
    state = step_memory(two, jax.devices()[:2]).state
    assert state == memory.state + 4 * (2 - 3) * row


@pytest.mark.parametrize("optimizer", ["adam", "muon", "new"])
def test_moments_are_rounded_only_for_an_optimizer_that_can(optimizer):
    config = with_settings(CONFIG, {"training.seed": 1})
    vars(config.training)["optimizer"] = optimizer  # Its own check would refuse a new one.

    *_, last = memory_savings(config, 1)

    assert ("training.adam_dtype" in last) == (optimizer == "adam")
