"""Models that decode token by token, for search."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxformer.data.tokenizer import PAD
from jaxformer.layout import take_rows
from jaxformer.models.assembly import TokenModel
from jaxformer.nn.constants import without_constants
from jaxformer.nn.embedding import output_logits
from jaxformer.nn.stack import StackCache, unstack_blocks
from jaxformer.search import StepFn


class StepwiseModel(TokenModel):
    """A model that decodes with a cache: ``Transformer``, ``LanguageModel``, or your own.

    Its ``setup`` also assigns ``embed``, the embedding of the tokens that it decodes, and
    ``decoder``, a :class:`~jaxformer.Stack`. A method ``start(inputs, *, num_beams, capacity)``
    returns an empty cache for inputs, which a model with an encoder encodes first.
    """

    def output_features(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows E"]:
        """Returns the input of :meth:`logits`, given the output of the decoder: the same."""
        return x

    def logits(self, features: Float[Array, "*rows D"]) -> Float[Array, "*rows V"]:
        """Returns the logits, which use the transposed embedding (section 3.4)."""
        return output_logits(features, self.output_table, self.logits_bias)

    def prefill(
        self,
        tokens: Int[Array, "B T"],
        cache: StackCache,
        length: Int[Array, ""] | int,
        starts: Int[Array, " B"] | None = None,
    ) -> tuple[Float[Array, "B T D"], StackCache]:
        """Reads the first tokens in one pass, for all beams; see :meth:`jaxformer.Stack.prefill`.

        Tokens are prompts, padded on the right, or start with the beginning of sentence. Prompts of
        other lengths are padded on the left, too; ``starts`` are the indices of their first tokens.
        Returns the decoder's output, whose :meth:`logits` predict the next tokens, and the cache.
        """
        if starts is None:
            x = self.embed(tokens)
        else:
            prompt_length = tokens.shape[1]
            slots = dataclasses.replace(cache.slots, starts=starts[:, None])
            cache = cache._replace(slots=slots)

            index = jnp.arange(prompt_length)[None]
            positions = jnp.maximum(index - starts[:, None], 0)  # [B, T]; 0 on padding
            x = self.embed(tokens, positions, longest=prompt_length)

        memory_mask = self._memory_mask(tokens, cache)
        x, cache = self.decoder.prefill(x, cache, length, memory_mask)
        return self.output_features(x), cache

    def _memory_mask(
        self,
        tokens: Int[Array, "B T"],
        cache: StackCache,
    ) -> Bool[Array, "B T S"] | None:
        """Returns what each token of a prompt sees of the memory; None if all see the same."""
        return None

    def candidate_output(self, candidates: Int[Array, " C"]) -> tuple[Any, Float[Array, " C"]]:
        """Returns the rows of the output matrix and the biases of some tokens, for :meth:`step`.

        Padding, except at the front, has the bias -inf.
        """

        def take(rows: Array) -> Array:
            return take_rows(rows, candidates)

        table = jax.tree.map(take, without_constants(self.output_table))

        # Sets of candidates are padded at the end to a common size.
        is_pad = candidates == PAD
        is_later = jnp.arange(len(candidates)) > 0
        bias = jnp.where(is_pad & is_later, -jnp.inf, 0.0)
        if self.logits_bias is not None:
            bias = bias + self.logits_bias[candidates]
        return table, bias

    def step(
        self,
        tokens: Int[Array, "B N"],
        cache: StackCache,
        output: tuple[Any, Any] | None = None,
    ) -> tuple[Float[Array, "B N V"], StackCache]:
        """Returns float32 logits of the next token of every beam, and the updated cache.

        The first step takes the beginning-of-sentence token, unless tokens were prefilled. With
        ``output``, from :meth:`candidate_output`, the logits are of the candidates.
        """
        positions = jnp.broadcast_to(cache.slots.length, tokens.shape)
        if cache.slots.starts is not None:
            positions -= cache.slots.starts
        longest = None if cache.slots.is_rolling else cache.slots.capacity

        x = self.embed(tokens, positions, longest)
        x, cache = self.decoder.step(x, cache)
        x = self.output_features(x)
        if output is None:
            return self.logits(x), cache
        return output_logits(x, *output), cache


def unstacked_variables(params: PyTree) -> dict[str, PyTree]:
    """Returns the variables of a model with a parameter for each layer of its decoder."""
    decoder = unstack_blocks(params["decoder"])
    return {"params": {**params, "decoder": decoder}}


def step_fn(
    model: StepwiseModel,
    params: PyTree,
    candidates: Int[Array, " C"] | None = None,
) -> StepFn:
    """Returns ``model.step`` as the step function of a search.

    It unstacks the layers once; the loop of the search would slice them again for every token.
    With ``candidates``, the search is over their indices. The special tokens come first.

    >>> search(step_fn(model, params), cache, max_lengths=[64], capacity=64)  # doctest: +SKIP
    """
    variables = unstacked_variables(params)
    output = None
    if candidates is not None:
        output = model.apply(variables, candidates, method="candidate_output")

    def step(
        tokens: Int[Array, "B N"],
        cache: Any,
    ) -> tuple[Float[Array, "B N V"], Any]:
        ids = tokens if candidates is None else candidates[tokens]
        return model.apply(variables, ids, cache, output, method="step")

    return step
