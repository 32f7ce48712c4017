"""The model of section 3: masks, positions, attention, layers and the Transformer itself.

Knows no text, file, loss or search. One rule for numbers holds everywhere: matrix products and
the activations between them are in ``ModelConfig.compute_dtype``; parameters, softmax and layer
norm statistics are float32.
"""
