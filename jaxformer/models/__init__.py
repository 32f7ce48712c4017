"""Models, built from the layers in :mod:`jaxformer.nn`.

- :mod:`jaxformer.models.transformer`: the encoder-decoder of the paper (section 3).
- :mod:`jaxformer.models.language_model`: a decoder without an encoder.
- :mod:`jaxformer.models.assembly`: the config of a model, and the layers built from it.
- :mod:`jaxformer.models.stepwise`: models that decode token by token.
"""

from jaxformer.models.language_model import LanguageModel
from jaxformer.models.transformer import Transformer

__all__ = ["LanguageModel", "Transformer"]
