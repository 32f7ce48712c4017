"""The model of section 3: masks, positions, attention, layers and the Transformer itself.

Knows no text, file, loss or search. One rule for numbers holds everywhere, and
:mod:`jaxformer.nn.projection` is where it is kept: what goes into matrix products is in
``ModelConfig.compute_dtype``; their sums, softmax and layer norm statistics are float32.
"""
