"""Search algorithms: settings, and methods that run them over any step function.

``start`` creates a state, ``advance`` takes steps, ``finalize`` returns the hypotheses; calling an
algorithm does all three. ``prefill``, optional, reads forced tokens in one pass. Call the methods
yourself for more control: between two calls of ``advance`` you may grow ``state.cache``, or drop
sentences that are ``done``.

>>> import jax.numpy as jnp
>>> log_probs = jnp.log(jnp.array([[0.0, 0.4, 0.6], [0.0, 0.9, 0.1], [0.0, 0.5, 0.5]]))
>>> step_fn = lambda tokens, cache: (log_probs[tokens], cache)  # a Markov chain; 1 is EOS
>>> search = BeamSearch(beam_size=2, length_penalty=0.0, bos_id=0)
>>> result = search(step_fn, (), max_lengths=[4], capacity=4)
>>> result.tokens[0].tolist()
[[1, 0, 0, 0], [2, 1, 0, 0]]
"""

import abc
import dataclasses
from typing import TYPE_CHECKING, Any

from jaxformer.search.settings import BeamSettings, SamplingSettings, SearchSettings

if TYPE_CHECKING:
    from jaxtyping import Array, Int, Key

    from jaxformer.search.state import BeamResult, MaxLengths, Prefix
    from jaxformer.search.step_loop import PrefillFn, StepFn


@dataclasses.dataclass(frozen=True, kw_only=True)
class Algorithm(SearchSettings, abc.ABC):
    """A search algorithm. Its attributes are its settings."""

    @property
    @abc.abstractmethod
    def num_hypotheses(self) -> int:
        """Number of hypotheses per sentence, N."""

    @abc.abstractmethod
    def _implementation(self) -> Any:
        """Returns the module that implements the methods as functions of the settings.

        It is imported lazily, because configs hold algorithms and need no JAX.
        """

    def start(
        self,
        cache: Any,
        max_lengths: "MaxLengths",
        capacity: int,
        prefix: "Prefix | None" = None,
        *,
        keys: "Key[Array, ' B'] | None" = None,
        sentence_ids: "Int[Array, ' B'] | None" = None,
        first_tokens: "Int[Array, ' B'] | None" = None,
    ) -> Any:
        """Returns the state before the first step, a pytree.

        Args:
          cache: The cache of the step function: any pytree, whose structure, shapes and dtypes it
            must keep. Arrays with leading axes ``[B, N]`` belong to hypotheses and are reordered
            with them. Arrays with leading axes ``[B, 1]`` are shared by the hypotheses of a
            sentence, and scalars by all hypotheses; neither is ever copied or reordered.
          max_lengths: Maximum number of tokens of each sentence, EOS included; clipped to
            ``capacity``. A sentence with limit 0 costs no step, and its result is empty.
          capacity: Size of the result in tokens, EOS included, T.
          prefix: Tokens that every hypothesis of a sentence starts with, padded on the right with
            ``pad_id``. They count toward length, score and limit. If the limit is not longer than
            the prefix, it truncates the prefix, and the hypothesis is unfinished.
          keys: One typed PRNG key per sentence, for sampling; derived from ``seed`` and
            ``sentence_ids`` when None.
          sentence_ids: Ids of the sentences, int32, for constraints and keys; indices in the batch
            when None.
          first_tokens: Inputs of the first step, such as the last token of a prompt whose other
            tokens are in the cache; ``bos_id`` when None.

        Raises:
          UserError: An argument is out of range, or the cache has other axes.
        """
        return self._implementation().start(
            self, cache, max_lengths, capacity, prefix, keys, sentence_ids, first_tokens
        )

    def prefill(self, prefill_fn: "PrefillFn", state: Any) -> Any:
        """Returns the state after reading forced tokens in one pass instead of one by one.

        It reads the tokens that are forced for all sentences that are not done; :meth:`advance`
        reads the rest. Calling it is optional: it saves time and does not change the result.

        Args:
          prefill_fn: ``(inputs [B, P], targets [B, P], length, cache) -> (log_probs [B, P],
            cache)``: log probabilities of the targets given the inputs up to their position, and
            the cache including the first ``length`` inputs. Inputs begin with the input of the
            first step.
          state: From :meth:`start`.
        """
        return self._implementation().prefill(self, prefill_fn, state)

    def advance(self, step_fn: "StepFn", state: Any, until: "int | Int[Array, '']") -> Any:
        """Returns the state after ``until`` tokens, or when every sentence is done.

        Args:
          step_fn: ``(tokens [B, N] int32, cache) -> (logits [B, N, V], cache)``: from the newest
            token of each hypothesis, at first BOS, to scores of the next token. Logits of any float
            dtype are normalized in float32; -inf means impossible; V is at least 2.
          state: From :meth:`start` or a previous call; its cache may have grown.
          until: Value of ``state.step`` to stop at.

        Raises:
          UserError: The logits have other axes than expected, or EOS or a token of the prefix is
            not in the vocabulary.
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
        max_lengths: "MaxLengths",
        capacity: int,
        prefix: "Prefix | None" = None,
        keys: "Key[Array, ' B'] | None" = None,
        sentence_ids: "Int[Array, ' B'] | None" = None,
        prefill_fn: "PrefillFn | None" = None,
    ) -> "BeamResult":
        """Runs the whole search. The methods that it calls describe the arguments and errors.

        It works inside the caller's ``jit`` and ``vmap``. Outside, wrap it in ``jax.jit`` to
        compile once.
        """
        state = self.start(
            cache, max_lengths, capacity, prefix, keys=keys, sentence_ids=sentence_ids
        )
        if prefill_fn is not None:
            state = self.prefill(prefill_fn, state)
        return self.finalize(self.advance(step_fn, state, capacity))


@dataclasses.dataclass(frozen=True, kw_only=True)
class BeamSearch(BeamSettings, Algorithm):
    """Beam search (section 6.1 of the paper); greedy search with ``beam_size=1``.

    ``BeamSearch(beam_size=4, length_penalty=0.6)`` is the paper's, and the default. It has
    the attributes of :class:`~jaxformer.search.settings.BeamSettings` and the methods of
    :class:`Algorithm`. :mod:`jaxformer.search.beam` describes the search.
    """

    def _implementation(self) -> Any:
        from jaxformer.search import beam

        return beam


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling(SamplingSettings, Algorithm):
    """Random sampling of hypotheses from the distribution that the step function defines.

    ``Sampling(num_samples=4, temperature=0.8, top_k=20)``, for instance. It has the
    attributes of :class:`~jaxformer.search.settings.SamplingSettings` and the methods of
    :class:`Algorithm`. :mod:`jaxformer.search.sampling` describes the sampling.
    """

    def _implementation(self) -> Any:
        from jaxformer.search import sampling

        return sampling


def beam_search(
    step_fn: "StepFn",
    cache: Any,
    *,
    max_lengths: "MaxLengths",
    capacity: int,
    prefix: "Prefix | None" = None,
    prefill_fn: "PrefillFn | None" = None,
    **settings: Any,
) -> "BeamResult":
    """Returns the best hypotheses that beam search finds: ``BeamSearch(**settings)`` in one call.

    Args:
      step_fn: ``(tokens [B, N], cache) -> (logits [B, N, V], cache)``; see
        :meth:`Algorithm.advance`.
      cache: The cache of the step function; see :meth:`Algorithm.start`.
      max_lengths: Maximum number of tokens of each sentence, EOS included.
      capacity: Size of the result in tokens, T.
      prefix: Tokens that every hypothesis of a sentence starts with, [B, P].
      prefill_fn: Reads the prefix in one pass; see :meth:`Algorithm.prefill`.
      **settings: Attributes of :class:`~jaxformer.search.settings.BeamSettings`, such as
        ``beam_size``, ``length_penalty``, ``min_length``, ``no_repeat_ngram``, ``constraints`` and
        ``eos_id``.

    Raises:
      UserError: An argument is out of range, or has other axes than expected.

    >>> import jax.numpy as jnp
    >>> log_probs = jnp.log(jnp.array([[0.0, 0.4, 0.6], [0.0, 0.9, 0.1], [0.0, 0.5, 0.5]]))
    >>> step_fn = lambda tokens, cache: (log_probs[tokens], cache)  # a Markov chain; 1 is EOS
    >>> beam_search(step_fn, (), max_lengths=[4], capacity=4, beam_size=1, bos_id=0).tokens.tolist()
    [[[2, 1, 0, 0]]]
    """
    options: dict[str, Any] = {"prefix": prefix, "prefill_fn": prefill_fn}
    search = BeamSearch(**settings)
    return search(step_fn, cache, max_lengths=max_lengths, capacity=capacity, **options)


def sample(
    step_fn: "StepFn",
    cache: Any,
    *,
    max_lengths: "MaxLengths",
    capacity: int,
    prefix: "Prefix | None" = None,
    keys: "Key[Array, ' B'] | None" = None,
    prefill_fn: "PrefillFn | None" = None,
    length_penalty: float = 0.0,
    **settings: Any,
) -> "BeamResult":
    """Returns samples, best score first: ``Sampling(**settings)`` in one call.

    Takes the arguments of :func:`beam_search` and raises the same errors.

    Args:
      step_fn: The step function.
      cache: Its cache.
      max_lengths: Maximum number of tokens of each sentence, EOS included.
      capacity: Size of the result in tokens, T.
      prefix: Tokens that every sample of a sentence starts with, [B, P].
      keys: One typed PRNG key per sentence; derived from the setting ``seed`` when None.
      prefill_fn: Reads the prefix in one pass.
      length_penalty: alpha of the length penalty; 0 makes scores log probabilities.
      **settings: Attributes of :class:`~jaxformer.search.settings.SamplingSettings`, such as
        ``num_samples``, ``temperature``, ``top_k``, ``top_p`` and ``seed``.

    >>> import jax.numpy as jnp
    >>> logits = jnp.log(jnp.array([0.0, 0.1, 0.9]))  # 1 is EOS
    >>> step_fn = lambda tokens, cache: (jnp.broadcast_to(logits, (*tokens.shape, 3)), cache)
    >>> result = sample(
    ...     step_fn, (), max_lengths=[4], capacity=4, num_samples=2, bos_id=0, top_k=1)
    >>> result.tokens[0].tolist()
    [[2, 2, 2, 2], [2, 2, 2, 2]]
    """
    options: dict[str, Any] = {"prefix": prefix, "prefill_fn": prefill_fn, "keys": keys}
    search = Sampling(length_penalty=length_penalty, **settings)
    return search(step_fn, cache, max_lengths=max_lengths, capacity=capacity, **options)
