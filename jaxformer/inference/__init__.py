"""Inference with trained models.

- :mod:`jaxformer.inference.translator`: translation of text.
- :mod:`jaxformer.inference.batched_search`: batched decoding with few compiled programs.
- :mod:`jaxformer.inference.generator`: continuation of prompts with a language model.
- :mod:`jaxformer.inference.pair_scores`: log probabilities of given translations.
- :mod:`jaxformer.inference.alignment`: word alignment from attention.
- :mod:`jaxformer.inference.attention_view`: attention weights of one sentence.
- :mod:`jaxformer.inference.weights`: choice and averaging of checkpoints.
- :mod:`jaxformer.inference.quantization`: int8 quantization of a trained model.
"""
