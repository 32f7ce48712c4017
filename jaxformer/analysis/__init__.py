"""What a training step costs, known before it runs: operations, memory, communication."""
