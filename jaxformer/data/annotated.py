"""The data section of texts with answers, tags, scores or choices."""

import dataclasses
from typing import Literal

from jaxformer.data.corpus import DataSection
from jaxformer.data.held_out import is_share
from jaxformer.errors import UserError
from jaxformer.fields import check_values, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnnotatedConfig(DataSection):
    """Texts with annotations, to fine-tune an encoder such as BERT on.

    Attributes:
      corpus: "squad" reads questions about texts, and their answers, from JSON in the format of
        SQuAD; "tagged" reads files with a word and its tag on each line, and a blank line between
        sentences, as in CoNLL 2003.
      train: Training files, comma-separated.
      valid: Validation files.
      tokens_per_batch: Upper limit of the tokens of a global batch, padding included.
      max_length: Maximum number of tokens of a training example. Longer ones are skipped and
        counted, except that a long text of "squad" is split into windows.
      stride: For "squad": tokens that two windows share.
    """

    corpus: Literal["squad", "tagged"] = "squad"
    train: str = setting("", may_change=True, is_usual=True)
    valid: str = setting("", may_change=True, is_usual=True)
    tokens_per_batch: int = setting(6144, "positive", is_usual=True)
    max_length: int = setting(384, "positive")
    stride: int = setting(128, "not negative")

    def __post_init__(self) -> None:
        check_values(self, "data")
        self.check_paths("train", "valid", "tokenizer")

        if is_share(self.valid):
            raise UserError(
                f"data.valid: expected files, got {self.valid}; split data.train into two files"
            )
        if self.tokens_per_batch < self.max_length:
            raise UserError(
                "data.tokens_per_batch must be at least data.max_length: got "
                f"{self.tokens_per_batch} < {self.max_length}"
            )

    @property
    def batch(self) -> tuple[str, str]:
        return (
            f"{self.tokens_per_batch:,} tokens in texts of {self.max_length}",
            "data.tokens_per_batch or data.max_length",
        )

    def check_named(self) -> None:
        for name in ("train", "valid"):
            if not getattr(self, name):
                raise UserError(
                    f"data.{name}: expected files of your own, got none; give "
                    f"--config.data.{name}=FILE; docs/classification.md shows their lines"
                )
