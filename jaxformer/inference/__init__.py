"""A trained model in use.

- :mod:`jaxformer.inference.translator`: text in, text out.
- :mod:`jaxformer.inference.batched_search`: many sentences in few shapes.
- :mod:`jaxformer.inference.generator`: prompts in, continuations out.
- :mod:`jaxformer.inference.pair_scores`: what the model makes of given translations.
- :mod:`jaxformer.inference.alignment`: which words belong together.
- :mod:`jaxformer.inference.attention_view`: where the heads look.
- :mod:`jaxformer.inference.weights`: choosing a checkpoint, averaging several.
- :mod:`jaxformer.inference.quantization`: a workdir of parameters in int8.
"""
