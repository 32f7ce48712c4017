"""The loss of models that predict tokens (section 5.4)."""

import abc
import dataclasses
from typing import Self

from jaxtyping import PyTree

from jaxformer.config import Config, ModelConfig, check_config
from jaxformer.nn.stack import Remat
from jaxformer.training.task import Randomness, Sums


@dataclasses.dataclass(frozen=True)
class TokenLoss(abc.ABC):
    """The label-smoothed loss of a model: a function of parameters, batch and randomness.

    It returns the sums "loss", label-smoothed, in nats; "nll", the negative log likelihood in nats;
    "count", the number of target tokens; and "tokens", the number of all tokens. Tokens include
    end-of-sentence but no padding. Equal losses share their compiled programs.

    Attributes:
      model: The architecture.
      label_smoothing: Probability mass spread over the vocabulary.
      remat: Rematerialization policy.
    """

    model: ModelConfig
    label_smoothing: float
    remat: Remat = "none"

    @classmethod
    def of(cls, config: Config) -> Self:
        """Returns the loss of a config."""
        check_config(config)
        return cls(config.model, config.training.label_smoothing, config.training.remat)

    @abc.abstractmethod
    def __call__(self, params: PyTree, batch: PyTree, randomness: Randomness | None) -> Sums: ...
