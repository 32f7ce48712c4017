"""Models that decode fast: a deep encoder, and a shallow decoder with a recurrence.

They are distilled from a larger Transformer (Kim et al. 2019). Firefox translates with such models.
"""

import dataclasses
from typing import Literal

from flax import linen as nn

from jaxformer.data.tokenizer import BOS
from jaxformer.errors import UserError
from jaxformer.fields import setting
from jaxformer.models.assembly import ModelConfig, make_stack
from jaxformer.models.transformer import Transformer
from jaxformer.nn.ssru import SSRU
from jaxformer.nn.stack import Stack


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentConfig(ModelConfig):
    """The architecture of a :class:`Student`.

    Attributes:
      num_decoder_layers: Number of decoder layers; ``num_layers`` are in the encoder.
    """

    architecture: Literal["student"] = "student"
    num_decoder_layers: int = setting(2, "positive")

    def __post_init__(self) -> None:
        super().__post_init__()
        acts_on_attention = self.positions in ("rotary", "alibi", "relative")
        if self.window is not None or acts_on_attention:
            raise UserError(
                "a student's decoder has a recurrence instead of self-attention: expected no "
                "model.window, and model.positions that are added to embeddings; got "
                f"{self.window} and {self.positions}"
            )
        if self.depth_scaling != "none":
            raise UserError(
                "a student's recurrence has no initial values for deep stacks: expected "
                f"model.depth_scaling=none, got {self.depth_scaling}"
            )

    @property
    def decoder_layers(self) -> int:
        return self.num_decoder_layers


class Student(Transformer):
    """A Transformer whose decoder has :class:`~jaxformer.nn.SSRU` in place of self-attention.

    It is called and decodes as :class:`~jaxformer.Transformer` does. As in Marian's models, the
    embedding of the beginning of sentence is the zero vector.

    Departs from the paper: the recurrence, the number of decoder layers, and the zero vector.
    """

    config: StudentConfig

    def setup(self) -> None:
        super().setup()
        self.embed = dataclasses.replace(self.embed, zero_id=BOS)

    @nn.nowrap
    def _make_decoder(self) -> Stack:
        return make_stack(
            self.config.decoder_settings(),
            causal=True,
            cross_attention=True,
            self_attention=SSRU(self.config.compute_dtype),
            remat=self.remat,
        )
