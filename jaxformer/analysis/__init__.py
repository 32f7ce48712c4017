"""Costs of a training step, known before it runs: operations, memory, communication."""
