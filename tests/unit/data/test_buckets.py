import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data.buckets import _best_edges, bucket_edges

from ...profiles import by_profile


def cost(lengths, edges, tokens_per_batch):
    """Returns the tokens in full batches, counted example by example."""
    total = 0
    low = 0
    for edge in edges:
        examples = [length for length in lengths if low < length <= edge]
        rows = tokens_per_batch // edge
        batches = -(-len(examples) // rows)  # rounded up
        total += batches * rows * edge
        low = edge
    return total


def edges_up_to(longest, most):
    """Returns all lists of at most ``most`` edges that end with the longest."""
    found = []
    for count in range(most):
        for inner in itertools.combinations(range(1, longest), count):
            found.append((*inner, longest))
    return found


@settings(max_examples=by_profile(40, nightly=100))
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=40),
    st.integers(9, 30),
    st.integers(1, 4),
)
def test_dynamic_program_equals_brute_force(lengths, tokens, most):
    every = edges_up_to(max(lengths), most)
    best = min(cost(lengths, edges, tokens) for edges in every)

    histogram = np.bincount(lengths)
    found, edges = _best_edges(histogram, tokens, multiple=1, max_buckets=most)[-1]

    assert found == best
    assert cost(lengths, tuple(edges), tokens) == best
    assert len(edges) <= most


@settings(max_examples=by_profile(40, nightly=100))
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=300),
    st.integers(60, 500),
)
def test_edges_hold_all_and_waste_little(lengths, tokens):
    edges = bucket_edges(np.array(lengths), tokens)

    assert edges == sorted(set(edges))
    assert edges[-1] == max(lengths)
    assert len(edges) <= 12

    in_bucket = np.bincount(np.searchsorted(edges, lengths))
    assert in_bucket.min() > 0

    histogram = np.bincount(lengths)
    optimum, _ = _best_edges(histogram, tokens, multiple=1, max_buckets=12)[-1]
    assert cost(lengths, tuple(edges), tokens) <= 1.01 * optimum
