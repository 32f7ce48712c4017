"""Models in the formats of other systems: Marian, PyTorch, CTranslate2, StableHLO, safetensors.

Files are read as data: JSON and safetensors. Only PyTorch itself unpickles a file of
``torch.save``, with ``weights_only=True``.
"""
