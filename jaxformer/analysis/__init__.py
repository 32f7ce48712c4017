"""Costs of a training step, computed before it runs: operations, memory, communication."""
