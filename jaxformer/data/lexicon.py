"""Translation probabilities of single tokens, learned by IBM model 1 (Brown et al. 1993).

Model 1 explains each target token by one source token of its sentence, or by none. All are equally
likely before the target is seen, so expectation maximization finds the best t(target | source).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

NONE = 0  # the source token of target tokens that no other explains; the id of padding
# Links between a source and a target token that are held in memory at a time.
_LINKS = 2**22

TokenIds = Sequence[int]
TokenPairs = Sequence[tuple[TokenIds, TokenIds]]


class _Links(NamedTuple):
    """Links of each target token with all tokens of its source and ``NONE``."""

    keys: Int[np.ndarray, " K"]  # source * vocab_size + target
    starts: Int[np.ndarray, " J"]  # the first link of each target token


class Lexicon(NamedTuple):
    """Translation probabilities, in the order of sources and then of targets."""

    sources: Int[np.ndarray, " N"]
    targets: Int[np.ndarray, " N"]
    probabilities: Float[np.ndarray, " N"]  # t(target | source)


def learn_lexicon(
    pairs: TokenPairs,
    vocab_size: int,
    iterations: int = 5,
) -> Lexicon:
    """Returns the lexicon of sentence pairs in token ids, after some steps of EM.

    It has an entry for each source token, or ``NONE``, and each target token of the same pair.

    >>> lexicon = learn_lexicon([([5], [7]), ([5, 6], [7, 8])], 9)
    >>> of_5 = lexicon.sources == 5
    >>> lexicon.targets[of_5].tolist(), lexicon.probabilities[of_5].round(2).tolist()
    ([7, 8], [0.88, 0.12])
    """
    chunks = _chunks(pairs)
    keys = np.zeros(0, np.int64)
    for chunk in chunks:
        links = _links(chunk, vocab_size)
        keys = np.union1d(keys, links.keys)
    sources, targets = np.divmod(keys, vocab_size)

    probabilities = np.ones(len(keys))
    for _ in range(iterations):
        # Expectation: each target token is divided among the source tokens that may explain it.
        counts = np.zeros(len(keys))
        for chunk in chunks:
            links = _links(chunk, vocab_size)
            counts += _expected_counts(links, keys, probabilities)

        # Maximization: t(target | source) is the fraction of the counts of the source.
        source_counts = np.bincount(sources, counts)
        probabilities = counts / source_counts[sources]

    return Lexicon(sources, targets, probabilities)


def _expected_counts(
    links: _Links,
    keys: Int[np.ndarray, " N"],
    probabilities: Float[np.ndarray, " N"],
) -> Float[np.ndarray, " N"]:
    """Returns how often each entry of the lexicon is expected to explain a target token."""
    entries = np.searchsorted(keys, links.keys)
    posteriors = probabilities[entries]

    # The probabilities of the links of one target token sum to 1.
    sums = np.add.reduceat(posteriors, links.starts)
    end = len(links.keys)
    sizes = np.diff(links.starts, append=end)
    posteriors /= np.repeat(sums, sizes)

    return np.bincount(entries, posteriors, len(keys))


def _chunks(pairs: TokenPairs) -> list[TokenPairs]:
    """Splits pairs where the number of links exceeds a limit; leaves out pairs without a target."""
    chunks: list[TokenPairs] = []
    pairs_of_chunk = []
    size = 0
    for source, target in pairs:
        if not target:
            continue

        pairs_of_chunk.append((source, target))
        size += (len(source) + 1) * len(target)
        if size > _LINKS:
            chunks.append(pairs_of_chunk)
            pairs_of_chunk = []
            size = 0

    if pairs_of_chunk:
        chunks.append(pairs_of_chunk)
    return chunks


def _links(pairs: TokenPairs, vocab_size: int) -> _Links:
    """Returns all links of the pairs, in the order of the target tokens."""
    source_tokens = []
    target_tokens = []
    source_sizes = []
    target_lengths = []
    for source, target in pairs:
        # A target token has a link to NONE and to each source token of its pair.
        source_tokens += [NONE, *source]
        target_tokens += target
        source_sizes.append(len(source) + 1)
        target_lengths.append(len(target))
    sources = np.array(source_tokens)
    targets = np.array(target_tokens)
    sizes = np.array(source_sizes)

    # The number of links of each target token, and the first of them.
    link_counts = np.repeat(sizes, target_lengths)
    starts = np.cumsum(link_counts) - link_counts

    # Link k of a target token is with token k of its source.
    first_of_pair = np.cumsum(sizes) - sizes
    first_sources = np.repeat(first_of_pair, target_lengths)
    shift = np.repeat(first_sources - starts, link_counts)
    link_sources = sources[np.arange(link_counts.sum()) + shift]

    link_targets = np.repeat(targets, link_counts)
    return _Links(
        keys=link_sources * vocab_size + link_targets,
        starts=starts,
    )
