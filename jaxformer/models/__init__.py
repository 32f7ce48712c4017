"""Models: assemblies of the parts in :mod:`jaxformer.nn`, one file each.

- :mod:`jaxformer.models.transformer`: the encoder-decoder of the paper (section 3).
- :mod:`jaxformer.models.language_model`: a decoder without an encoder.
- :mod:`jaxformer.models.assembly`: stacks of blocks from a :class:`~jaxformer.config.ModelConfig`.
"""

from jaxformer.models.language_model import LanguageModel
from jaxformer.models.transformer import Transformer

__all__ = ["LanguageModel", "Transformer"]
