"""Weights and files of other systems: Marian (OPUS-MT) models and ``torch.nn.Transformer``.

Files are read as data: JSON, safetensors, and the tensors of a file of ``torch.save``. Nothing is
ever unpickled.
"""
