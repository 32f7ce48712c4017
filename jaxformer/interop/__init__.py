"""Weights and files of other systems: Marian (OPUS-MT) models and ``torch.nn.Transformer``.

Files are read as data: JSON and safetensors. Only PyTorch itself unpickles a file of
``torch.save``, with ``weights_only=True``.
"""
