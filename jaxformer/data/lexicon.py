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

TokenPairs = Sequence[tuple[Sequence[int], Sequence[int]]]


class Lexicon(NamedTuple):
    """Translation probabilities, in the order of sources and then of targets."""

    sources: Int[np.ndarray, " N"]
    targets: Int[np.ndarray, " N"]
    probabilities: Float[np.ndarray, " N"]  # t(target | source)


def learn_lexicon(pairs: TokenPairs, vocab_size: int, iterations: int = 5) -> Lexicon:
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
        keys = np.union1d(keys, _links(chunk, vocab_size)[0])
    sources, targets = np.divmod(keys, vocab_size)
    probabilities = np.ones(len(keys))
    for _ in range(iterations):
        counts = np.zeros(len(keys))
        for chunk in chunks:
            links, starts = _links(chunk, vocab_size)
            entries = np.searchsorted(keys, links)
            likely = probabilities[entries]
            sums = np.add.reduceat(likely, starts)
            likely /= np.repeat(sums, np.diff(starts, append=len(links)))
            counts += np.bincount(entries, likely, len(keys))
        probabilities = counts / np.bincount(sources, counts)[sources]
    return Lexicon(sources, targets, probabilities)


def _chunks(pairs: TokenPairs) -> list[TokenPairs]:
    """Splits pairs where the number of links exceeds a limit; leaves out pairs without a target."""
    chunks, size = [[]], 0
    for source, target in pairs:
        if target:
            size += (len(source) + 1) * len(target)
            chunks[-1].append((source, target))
            if size > _LINKS:
                chunks, size = [*chunks, []], 0
    return [chunk for chunk in chunks if chunk]


def _links(
    pairs: TokenPairs, vocab_size: int
) -> tuple[Int[np.ndarray, " K"], Int[np.ndarray, " J"]]:
    """Returns ``source * vocab_size + target`` of all links, and the first link of each target."""
    sources = np.concatenate([[NONE, *source] for source, _ in pairs])
    sizes = np.array([len(source) + 1 for source, _ in pairs])
    lengths = np.array([len(target) for _, target in pairs])
    targets = np.concatenate([target for _, target in pairs])
    sizes_of_targets = np.repeat(sizes, lengths)  # the number of links of each target token
    starts = np.cumsum(sizes_of_targets) - sizes_of_targets
    first_sources = np.repeat(np.cumsum(sizes) - sizes, lengths)
    places = np.arange(sizes_of_targets.sum()) + np.repeat(first_sources - starts, sizes_of_targets)
    return sources[places] * vocab_size + np.repeat(targets, sizes_of_targets), starts
