"""Activations."""

import jax
import numpy as np
import scipy.special
import scipy.stats

from jaxformer.nn.feed_forward import activate


def test_exact_gelu_is_the_formula_with_its_derivatives():
    """x P(X < x) for a standard normal X (Hendrycks and Gimpel 2016)."""
    x = np.linspace(-6, 6, 101)
    density = scipy.stats.norm.pdf(x)
    expected = (
        x * scipy.special.ndtr(x),
        scipy.special.ndtr(x) + x * density,
        (2 - x * x) * density,
    )

    def each(x):
        first = jax.grad(lambda x: activate("gelu_exact", x))
        return activate("gelu_exact", x), first(x), jax.grad(first)(x)

    found = jax.jit(jax.vmap(each))(x.astype(np.float32))
    np.testing.assert_allclose(np.array(found), np.array(expected), atol=2e-6)
