"""Checkpoints of a run: a small wrapper around orbax that saves, verifies and falls back."""

from jaxformer.checkpoint.checkpoints import (
    Checkpoints,
    MissingStepError,
    Restored,
    RestoredParams,
    check_directory,
    saved_steps,
)
from jaxformer.checkpoint.mirror import Mirror, fetch, finish_writes
from jaxformer.checkpoint.single import write_single

__all__ = [
    "Checkpoints",
    "Mirror",
    "MissingStepError",
    "Restored",
    "RestoredParams",
    "check_directory",
    "fetch",
    "finish_writes",
    "saved_steps",
    "write_single",
]
