"""Checkpoints of a run: a small wrapper around orbax that saves, verifies and falls back."""

from jaxformer.checkpoint.checkpoints import (
    Checkpoints,
    MissingStepError,
    Restored,
    RestoredParams,
)
from jaxformer.checkpoint.mirror import Mirror, fetch
from jaxformer.checkpoint.single import write_single
from jaxformer.checkpoint.step_folders import saved_steps

__all__ = [
    "Checkpoints",
    "Mirror",
    "MissingStepError",
    "Restored",
    "RestoredParams",
    "fetch",
    "saved_steps",
    "write_single",
]
