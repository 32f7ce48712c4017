"""Counts what a traced function multiplies."""

import math


def multiplications(jaxpr, times=1):
    """Counts the multiplications of matmuls and convolutions in a jaxpr, with loops and calls."""
    total = 0
    for equation in jaxpr.eqns:
        # JAX 0.10 has equations without a result.
        results = math.prod(equation.outvars[0].aval.shape) if equation.outvars else 0
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            total += times * results * math.prod(shape[axis] for axis in contracted)
        if equation.primitive.name == "conv_general_dilated":
            width, inputs, _ = equation.invars[1].aval.shape
            total += times * results * width * inputs
        repeats = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                total += multiplications(inner, times * repeats)
    return total
