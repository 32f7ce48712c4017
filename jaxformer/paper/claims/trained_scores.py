"""Accuracy of attention with additive and with dot-product scores after training, against d_k."""

import functools
from collections.abc import Callable
from typing import Any

from flax import linen as nn
from jaxtyping import Array

from jaxformer.models import LanguageModel
from jaxformer.models.assembly import make_stack
from jaxformer.nn import MultiHeadAttention, additive_attention
from jaxformer.nn.kernels import KeyValues, KeyValueSource
from jaxformer.nn.keys import Keys
from jaxformer.nn.parameters import parameter
from jaxformer.nn.stack import Stack
from jaxformer.paper.claims.small_runs import RIGHT, Experiment, Setting
from jaxformer.paper.claims.small_tasks import Echo, decoder

WIDTH = 64
SIZES = (2, 32, 512)
TASK = Echo()


class AdditiveAttention(MultiHeadAttention):
    """Attention whose scores a network with ``d_k`` hidden units computes."""

    def setup(self) -> None:
        super().setup()
        assert self.d_k is not None
        normal = nn.initializers.normal(stddev=self.d_k**-0.5)
        self.vector = parameter(self, "vector", normal, (self.num_heads, self.d_k))

    def _attend(
        self,
        queries: Array,
        key_values: KeyValueSource,
        keys: Keys,
        dropout: Any,
    ) -> tuple[Array, None]:
        assert isinstance(key_values, KeyValues)
        mask = keys.allowed()
        assert mask is not None
        attended, _ = additive_attention(
            queries,
            key_values.keys,
            key_values.values,
            mask,
            self.vector,
        )
        return attended, None


class Decoder(LanguageModel):
    """A decoder with another layer of attention."""

    make_attention: Callable[[], nn.Module] = functools.partial(MultiHeadAttention, 1)

    def _make_decoder(self) -> Stack:
        return make_stack(
            self.config.stack_settings(),
            causal=True,
            self_attention=self.make_attention(),
        )


def by_size(make_attention: Callable[..., nn.Module]) -> dict[int, Setting]:
    config = decoder(TASK, d_model=WIDTH, d_ff=WIDTH, num_heads=1, num_layers=1).config
    settings = {}
    for size in SIZES:
        network = Decoder(config, make_attention=functools.partial(make_attention, 1, d_k=size))
        settings[size] = Setting(network=network, task=TASK, steps=300)
    return settings


SETTINGS = {
    "dot product": by_size(functools.partial(MultiHeadAttention, scale=1.0)),
    "dot product / √d_k": by_size(MultiHeadAttention),
    "additive": by_size(AdditiveAttention),
}

CLAIM = Experiment(
    about=(
        f"Decoders of one layer and one head, d_model = {WIDTH}, learn to repeat the token before, "
        f"in rows of {TASK.length} random tokens of {TASK.vocab_size}; guessing gives "
        f"{100 / TASK.vocab_size:.0f}. {SETTINGS['additive'][2].describe()}."
    ),
    x_label="d_k",
    column="d_k = {}",
    settings=SETTINGS,
    measures=[RIGHT],
).as_claim(
    "trained_scores",
    place=36,
    says="Additive attention learns better than unscaled dot products where d_k is large.",
)
