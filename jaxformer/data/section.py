"""The data section of a config, of any kind of experiment."""

import abc
import dataclasses

from jaxformer.errors import UserError
from jaxformer.files import local_path


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

    def check_paths(self, *names: str) -> None:
        """Checks that fields are paths on a local disk, if they are paths."""
        for name in names:
            try:
                local_path(getattr(self, name) or "")
            except UserError as error:
                raise UserError(f"data.{name}: {error}") from None
