"""Weights and files of other systems: Marian (OPUS-MT) models and ``torch.nn.Transformer``.

Files are read as data: JSON and safetensors. Nothing is ever unpickled.
"""
