"""The interface of models that decode token by token, as search needs it."""

from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Float, Int, PyTree

from jaxformer.models.assembly import ModelConfig
from jaxformer.nn.stack import StackCache, unstack_layers


@runtime_checkable
class StepwiseModel(Protocol):
    """A linen module that decodes with a cache: ``Transformer``, ``LanguageModel``, or your own.

    Attributes:
      config: The architecture.
    """

    config: ModelConfig

    def start(self, inputs: Array, /, *, num_beams: int, capacity: int) -> StackCache:
        """Returns an empty cache for inputs, which a model with an encoder encodes first."""
        ...

    def prefill(
        self, tokens: Int[Array, "B T"], cache: StackCache, length: Int[Array, ""] | int
    ) -> tuple[Float[Array, "B T D"], StackCache]:
        """Reads tokens in one pass, and keeps the first ``length`` in the cache."""
        ...

    def step(
        self, tokens: Int[Array, "B N"], cache: StackCache
    ) -> tuple[Float[Array, "B N V"], StackCache]:
        """Returns logits of the next token of every beam, and the updated cache."""
        ...

    def logits(self, features: Float[Array, "*rows D"]) -> Float[Array, "*rows V"]:
        """Returns the logits of the features that :meth:`prefill` returns."""
        ...

    def apply(self, variables: Any, *arguments: Any, method: str, **named: Any) -> Any:
        """Calls a method with parameters, like any linen module."""
        ...


def step_fn(model: StepwiseModel, params: PyTree) -> Any:
    """Returns ``model.step`` as the step function of a search.

    It unstacks layers once, before the loop of the search, which would slice them again for every
    token.

    >>> search(step_fn(model, params), cache, max_lengths=[64], capacity=64)  # doctest: +SKIP
    """
    layers = unstack_layers(params["decoder"]["layers"], model.config.num_layers)
    variables = {"params": {**params, "decoder": {**params["decoder"], "layers": layers}}}

    def step(tokens: Int[Array, "B N"], cache: Any) -> tuple[Float[Array, "B N V"], Any]:
        return model.apply(variables, tokens, cache, method="step")

    return step
