"""A trained model in use: translating, looking at attention, averaging checkpoints."""
