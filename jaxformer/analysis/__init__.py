"""Costs of a training step, computed before it runs: operations and memory."""
