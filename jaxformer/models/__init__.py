"""Models: assemblies of the parts in :mod:`jaxformer.nn`, one file each.

- :mod:`jaxformer.models.transformer`: the encoder-decoder of the paper (section 3).
- :mod:`jaxformer.models.language_model`: a decoder without an encoder.
- :mod:`jaxformer.models.assembly`: :class:`ModelConfig`, and the stacks that it stands for.
- :mod:`jaxformer.models.stepwise`: what search needs of a model.
"""

from jaxformer.models.language_model import LanguageModel
from jaxformer.models.transformer import Transformer

__all__ = ["LanguageModel", "Transformer"]
