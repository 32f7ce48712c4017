"""Checkpoints of a run: orbax behind one small wrapper that saves, verifies and falls back."""

from jaxformer.checkpoint.checkpoints import Checkpoints, Restored, RestoredParams

__all__ = ["Checkpoints", "Restored", "RestoredParams"]
