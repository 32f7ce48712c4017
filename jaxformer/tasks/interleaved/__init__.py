"""Training on texts with pictures in them, and use of the models."""
