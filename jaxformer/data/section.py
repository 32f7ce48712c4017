"""The data section of a config, of any kind of experiment."""

import abc
import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSection(abc.ABC):
    """Source of the examples, and how they form batches.

    Attributes:
      corpus: Kind of the source, which selects the kind of the experiment.
      tokenizer: Tokenizer of a new run; None learns one from the training text.
    """

    corpus: str
    tokenizer: str | None = None

    @property
    @abc.abstractmethod
    def longest(self) -> tuple[str, int]:
        """Name and value of the field with the longest row in tokens."""

    @property
    @abc.abstractmethod
    def batch(self) -> tuple[str, str]:
        """The size of a batch in words, and the fields to lower for a smaller one."""
