"""Activations."""

import jax
import numpy as np
import scipy.special
import scipy.stats

from jaxformer.nn.feed_forward import activate


def test_exact_gelu_is_the_formula_with_its_derivatives():
    """x P(X < x) for a standard normal X (Hendrycks and Gimpel 2016)."""
    x = np.linspace(-6, 6, 101)

    def each(x):
        first = jax.grad(lambda x: activate("gelu_exact", x))
        second = jax.grad(first)
        return activate("gelu_exact", x), first(x), second(x)

    compiled = jax.jit(jax.vmap(each))
    value, first, second = compiled(x.astype(np.float32))

    below = scipy.special.ndtr(x)
    density = scipy.stats.norm.pdf(x)
    np.testing.assert_allclose(value, x * below, atol=2e-6)
    np.testing.assert_allclose(first, below + x * density, atol=2e-6)
    np.testing.assert_allclose(second, (2 - x * x) * density, atol=2e-6)
