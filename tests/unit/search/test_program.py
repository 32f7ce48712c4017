"""The compiled search: it does not sort all candidates, and disabled options add no operations."""

import functools

import jax
import jax.numpy as jnp
import pytest

from jaxformer.search.beam import step

from .oracles import beam

TABLE = jax.random.normal(jax.random.key(0), (997, 997))


def table_step(tokens, cache):
    return TABLE[tokens], cache


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"min_length": 2, "no_repeat_ngram": 2},
        {"diversity_groups": 2, "diversity_penalty": 0.5},
    ],
)
def test_candidates_are_not_sorted(changes: dict):
    """XLA keeps its top-k and does not fall back to sorting all N * V candidates of every step."""
    settings = beam(beam_size=4, **changes)
    run = jax.jit(
        lambda limits: settings.advance(table_step, settings.start((), limits, 6), until=6)
    )
    program = run.lower(jnp.array([6])).compile().as_text()
    assert " sort(" not in program
    assert "TopK" in program


def program_of_a_step(**changes) -> str:
    settings = beam(beam_size=4, **changes)
    state = settings.start((), jnp.array([6]), 6)
    return str(jax.make_jaxpr(functools.partial(step, settings, table_step))(state))


def test_disabled_options_add_no_operations():
    assert "scatter" not in program_of_a_step()
    assert "scatter" in program_of_a_step(min_length=1)
    assert "scatter" in program_of_a_step(no_repeat_ngram=1)
    assert "scatter" in program_of_a_step(diversity_groups=2)
