"""A trained model in use.

- :mod:`jaxformer.inference.translator`: text in, text out.
- :mod:`jaxformer.inference.decoding`: many sentences in few shapes.
- :mod:`jaxformer.inference.generate`: prompts in, continuations out.
- :mod:`jaxformer.inference.scoring`: what the model makes of given translations.
- :mod:`jaxformer.inference.alignment`: which words belong together.
- :mod:`jaxformer.inference.attention`: where the heads look.
- :mod:`jaxformer.inference.weights`: choosing a checkpoint, averaging several.
- :mod:`jaxformer.inference.quantization`: a workdir of parameters in int8.
"""
