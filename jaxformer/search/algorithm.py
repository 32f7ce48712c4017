"""Algorithms of search: settings with verbs, over any step function.

``start`` makes a state of a cache, ``advance`` takes steps, ``finalize`` reads the hypotheses.
Calling an algorithm does all three. ``prefill``, optional, reads forced tokens in one pass. For
more control compose them: between two calls of ``advance`` a caller may grow ``state.cache``, or
drop sentences that are ``done``.

>>> import jax.numpy as jnp
>>> log_probs = jnp.log(jnp.array([[0.0, 0.4, 0.6], [0.0, 0.9, 0.1], [0.0, 0.5, 0.5]]))
>>> step_fn = lambda tokens, cache: (log_probs[tokens], cache)  # a Markov chain; 1 is EOS
>>> search = BeamSearch(beam_size=2, length_penalty=0.0, bos_id=0)
>>> result = search(step_fn, (), limits=[4], max_length=4)
>>> result.tokens[0].tolist()
[[1, 0, 0, 0], [2, 1, 0, 0]]
"""

import abc
import dataclasses
from typing import TYPE_CHECKING, Any

from jaxformer.search.settings import BeamSettings, SamplingSettings, SearchSettings

if TYPE_CHECKING:
    from jaxtyping import Array, Int, Key

    from jaxformer.search.state import BeamResult, Limits, Prefix
    from jaxformer.search.step_loop import PrefillFn, StepFn


@dataclasses.dataclass(frozen=True, kw_only=True)
class Algorithm(SearchSettings, abc.ABC):
    """A search with its verbs. Its attributes are its settings."""

    @property
    @abc.abstractmethod
    def num_hypotheses(self) -> int:
        """Hypotheses per sentence, N."""

    @abc.abstractmethod
    def _implementation(self) -> Any:
        """Returns the module with the verbs as functions of the settings.

        It is imported here, so that a config, which holds an algorithm, needs no JAX.
        """

    def start(
        self,
        cache: Any,
        limits: "Limits",
        max_length: int,
        prefix: "Prefix | None" = None,
        *,
        keys: "Key[Array, ' B'] | None" = None,
        rows: "Int[Array, ' B'] | None" = None,
        first_tokens: "Int[Array, ' B'] | None" = None,
    ) -> Any:
        """Returns the state before the first step, a pytree.

        Args:
          cache: What the step function needs to remember: any pytree, kept in structure, shapes and
            dtypes. Arrays lead with axes ``[B, N]`` and follow their hypotheses when these move.
            Arrays that lead with ``[B, 1]`` are shared by the hypotheses of a sentence, and scalars
            by all; neither is ever copied or reordered.
          limits: The most tokens that each sentence may get, EOS included; more than ``max_length``
            counts as ``max_length``. A sentence with limit 0 costs no step and comes out empty.
          max_length: Capacity for tokens, EOS included, T.
          prefix: Tokens that every hypothesis of a sentence starts with, padded on the right with
            ``pad_id``; they count for length, score and limit. A limit that is not longer cuts
            them: the hypothesis is unfinished.
          keys: One typed PRNG key per sentence, for sampling; None: made of ``seed`` and ``rows``.
          rows: Numbers of the sentences, int32, for constraints and keys; None: their places in the
            batch.
          first_tokens: What the first step feeds, such as the last token of a prompt that the cache
            has the others of; None: ``bos_id``.

        Raises:
          UserError: An argument is out of range, or the cache has other axes.
        """
        return self._implementation().start(
            self, cache, limits, max_length, prefix, keys, rows, first_tokens
        )

    def prefill(self, prefill_fn: "PrefillFn", state: Any) -> Any:
        """Returns the state after forced tokens, which are read in one pass and not one by one.

        As many are read as every sentence that is not done must begin with; :meth:`advance` takes
        the others. The result is the same without this verb, which only saves time.

        Args:
          prefill_fn: ``(inputs [B, P], targets [B, P], length, cache) -> (log_probs [B, P],
            cache)``: log probabilities of the targets given the inputs up to their position, and
            the cache that includes the first ``length`` inputs. Inputs begin with what the first
            step would feed.
          state: From :meth:`start`.
        """
        return self._implementation().prefill(self, prefill_fn, state)

    def advance(self, step_fn: "StepFn", state: Any, until: "int | Int[Array, '']") -> Any:
        """Returns the state when hypotheses have ``until`` tokens, or every sentence is done.

        Args:
          step_fn: ``(tokens [B, N] int32, cache) -> (logits [B, N, V], cache)``: the newest token
            of each hypothesis, BOS at first, to scores of the next one. Logits of any float dtype
            are normalized in float32; -inf means impossible; V is at least 2.
          state: From :meth:`start`, or an earlier call; its cache may have grown.
          until: Value of ``state.step`` to stop at.

        Raises:
          UserError: The logits have other axes than expected, or EOS or a token of the prefix is
            not among them.
        """
        return self._implementation().advance(self, step_fn, state, until)

    def finalize(self, state: Any) -> "BeamResult":
        """Returns the N hypotheses of each sentence, best first."""
        return self._implementation().finalize(self, state)

    def __call__(
        self,
        step_fn: "StepFn",
        cache: Any,
        *,
        limits: "Limits",
        max_length: int,
        prefix: "Prefix | None" = None,
        keys: "Key[Array, ' B'] | None" = None,
        rows: "Int[Array, ' B'] | None" = None,
        prefill_fn: "PrefillFn | None" = None,
    ) -> "BeamResult":
        """Searches to the end: all verbs, whose arguments and errors these are.

        Works inside the caller's ``jit`` and ``vmap``; outside, wrap it in ``jax.jit`` to compile
        once.
        """
        state = self.start(cache, limits, max_length, prefix, keys=keys, rows=rows)
        if prefill_fn is not None:
            state = self.prefill(prefill_fn, state)
        return self.finalize(self.advance(step_fn, state, max_length))


@dataclasses.dataclass(frozen=True, kw_only=True)
class BeamSearch(BeamSettings, Algorithm):
    """Beam search (section 6.1 of the paper); greedy search with ``beam_size=1``.

    Has the attributes of :class:`~jaxformer.search.settings.BeamSettings` and the verbs of
    :class:`Algorithm`. :mod:`jaxformer.search.beam` describes the search.
    """

    def _implementation(self) -> Any:
        from jaxformer.search import beam

        return beam


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling(SamplingSettings, Algorithm):
    """Sampling: hypotheses drawn from the distribution that the step function gives.

    Has the attributes of :class:`~jaxformer.search.settings.SamplingSettings` and the verbs of
    :class:`Algorithm`. :mod:`jaxformer.search.sampling` describes the draws.
    """

    def _implementation(self) -> Any:
        from jaxformer.search import sampling

        return sampling


def beam_search(
    step_fn: "StepFn",
    cache: Any,
    *,
    limits: "Limits",
    max_length: int,
    prefix: "Prefix | None" = None,
    prefill_fn: "PrefillFn | None" = None,
    **settings: Any,
) -> "BeamResult":
    """Returns the best hypotheses that beam search finds: ``BeamSearch(**settings)`` in one call.

    :meth:`Algorithm.start` and :meth:`Algorithm.advance` describe arguments and errors; settings
    are the attributes of :class:`~jaxformer.search.settings.BeamSettings`.
    """
    options: dict[str, Any] = {"prefix": prefix, "prefill_fn": prefill_fn}
    search = BeamSearch(**settings)
    return search(step_fn, cache, limits=limits, max_length=max_length, **options)


def sample(
    step_fn: "StepFn",
    cache: Any,
    *,
    keys: "Key[Array, ' B']",
    limits: "Limits",
    max_length: int,
    prefix: "Prefix | None" = None,
    prefill_fn: "PrefillFn | None" = None,
    length_penalty: float = 0.0,
    **settings: Any,
) -> "BeamResult":
    """Returns samples, best score first: ``Sampling(**settings)`` in one call.

    :meth:`Algorithm.start` and :meth:`Algorithm.advance` describe arguments and errors; settings
    are the attributes of :class:`~jaxformer.search.settings.SamplingSettings`. Without a
    ``length_penalty`` scores are log probabilities.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> logits = jnp.log(jnp.array([0.0, 0.1, 0.9]))  # 1 is EOS
    >>> step_fn = lambda tokens, cache: (jnp.broadcast_to(logits, (*tokens.shape, 3)), cache)
    >>> keys = jax.random.split(jax.random.key(0), 1)
    >>> result = sample(
    ...     step_fn, (), keys=keys, limits=[4], max_length=4, num_samples=2, bos_id=0, top_k=1)
    >>> result.tokens[0].tolist()
    [[2, 2, 2, 2], [2, 2, 2, 2]]
    """
    options: dict[str, Any] = {"prefix": prefix, "prefill_fn": prefill_fn, "keys": keys}
    search = Sampling(length_penalty=length_penalty, **settings)
    return search(step_fn, cache, limits=limits, max_length=max_length, **options)
