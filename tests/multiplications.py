"""Counts what a traced function multiplies."""

import math


def multiplications(jaxpr, times=1):
    """Counts the multiplications of matmuls and convolutions in a jaxpr, with loops and calls."""
    total = 0
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            each = math.prod(shape[axis] for axis in contracted)
            total += times * results_of(equation) * each
        if name == "conv_general_dilated":
            width, inputs, _ = equation.invars[1].aval.shape
            total += times * results_of(equation) * width * inputs

        repeats = equation.params.get("length", 1) if name == "scan" else 1
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                total += multiplications(inner, times * repeats)
    return total


def results_of(equation):
    """Returns how many numbers an equation computes."""
    [result] = equation.outvars
    return math.prod(result.aval.shape)
