"""A stack of N identical blocks, for training and for decoding (section 3.1)."""

import dataclasses
import operator
import typing
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxformer.errors import UserError
from jaxformer.nn.argument_checks import check_choice
from jaxformer.nn.backend import backend
from jaxformer.nn.block import Block, LayerCache, Residual
from jaxformer.nn.cache import Slots
from jaxformer.nn.keys import Keys, Memory, Tokens
from jaxformer.nn.matmul import MATMUL
from jaxformer.nn.sharding import constrain_batch

# Rematerialization policy: the backward pass recomputes nothing, everything except matmuls with
# parameters, or everything except the inputs of the blocks.
Remat = Literal["none", "dots", "layer"]


class StackCache(NamedTuple):
    """Cached keys and values of a stack, a pytree.

    Attributes:
      layers: For each block, its caches by the name of the sub-layer.
      slots: The slots that hold each beam's tokens; one table for all blocks.
      memory_mask: True where the memory is not padding; None for a stack without a memory.
    """

    layers: tuple[LayerCache, ...]
    slots: Slots
    memory_mask: Bool[Array, "B 1 S"] | None

    def grow(self, length: int) -> "StackCache":
        """Returns the cache with capacity for at least ``length`` positions."""
        slots = self.slots.grow(length)

        def grow_layer(layer: LayerCache) -> LayerCache:
            return {name: state.grow(slots.capacity) for name, state in layer.items()}

        layers = tuple(grow_layer(layer) for layer in self.layers)
        return self._replace(layers=layers, slots=slots)


class Stack(nn.Module):
    """N blocks in sequence, whose parameters have a leading layer axis.

    Attributes:
      layers: The block that is repeated. Its parameters, stacked, are named "layers".
      num_layers: N, the number of blocks with parameters of their own.
      repeats: Times that each of them runs, one after another, as in ALBERT (Lan et al. 2020).
      final_norm: Creates the norm after the last block, which pre-norm needs.
      window: Maximum distance at which a token sees others; None for no limit.
      make_bias: Creates the module that returns the :data:`~jaxformer.nn.keys.Bias` of all
        self-attention; None adds nothing to its scores.
      remat: Rematerialization policy of the backward pass.
    """

    layers: Block
    num_layers: int
    repeats: int = 1
    final_norm: Callable[[], nn.Module] | None = None
    window: int | None = None
    make_bias: Callable[[], nn.Module] | None = None
    remat: Remat = "none"

    def setup(self) -> None:
        self.norm = None if self.final_norm is None else self.final_norm()
        self.bias = None if self.make_bias is None else self.make_bias()

        make_residual: Any = getattr(self.layers, "make_residual", Residual)
        is_pre_norm = getattr(make_residual(), "norm_position", None) == "pre"
        if is_pre_norm and self.norm is None:
            warnings.warn(
                "Stack: the output of pre-norm blocks grows with each layer, without a norm after "
                "the last one; give final_norm=LayerNorm",
                stacklevel=2,
            )

    def __call__(
        self,
        x: Float[Array, "B T D"],
        keys: Keys | None = None,
        memory: Memory | None = None,
        *,
        dropout: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Runs the stack over whole sequences. Arguments as for :meth:`Block.run`."""
        check_choice(self, "remat", typing.get_args(Remat))
        keys = Keys.of_sequence(x.shape[1]) if keys is None else keys
        keys = self._with_rules(keys)

        if self._has_separate_layers:
            return self._normalize(self._run_separate(x, keys, memory, dropout=dropout))

        def layer(block: Block, x: Float[Array, "B T D"]) -> tuple[Array, None]:
            x = constrain_batch(x)
            return block(x, keys, memory, dropout=dropout), None

        run_layers = _scan_layers(layer, self.num_layers, self.repeats, remat=self.remat)
        x, _ = run_layers(self.layers, x)
        return constrain_batch(self._normalize(x))

    @property
    def _has_separate_layers(self) -> bool:
        """True if the parameters are a tuple, one of each layer, as of :func:`unstack_layers`."""
        return isinstance(self.get_variable("params", "layers"), tuple)

    def _run_separate(
        self,
        x: Float[Array, "B T D"],
        keys: Keys,
        memory: Memory | None,
        *,
        dropout: Int[Array, " B"] | None,
    ) -> Float[Array, "B T D"]:
        """Runs the layers one after another, each with parameters of its own."""
        block, stack = self._unstack_layers()

        @jax.jit  # one trace for all layers
        def run(params: PyTree, x: Array) -> Array:
            return block.apply({"params": params}, x, keys, memory, dropout=dropout)

        for params in stack:
            x = run(params, x)
        return x

    def _with_rules(self, keys: Keys) -> Keys:
        """Returns the keys with the rules of this stack."""
        if self.window is not None:
            if keys.window not in (None, self.window):
                raise UserError(f"Stack: got window={self.window}, and keys with {keys.window}")
            keys = dataclasses.replace(keys, window=self.window)

        if self.bias is not None:
            if keys.bias is not None:
                raise UserError("Stack: got make_bias, and keys with a bias; leave one of them out")
            keys = dataclasses.replace(keys, bias=self.bias())
        return keys

    def _normalize(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        return x if self.norm is None else self.norm(x)

    def init_cache(
        self,
        rows: Int[Array, " B"],
        d_model: int,
        dtype: str,
        *,
        num_beams: int,
        capacity: int,
        memory: Float[Array, "B S D"] | None = None,
        memory_mask: Bool[Array, "B S"] | None = None,
    ) -> StackCache:
        """Returns an empty cache, which already holds the keys and values of the memory.

        Of ``rows``, integers such as ``tokens[:, 0]``, only number and sharding are used. The width
        and dtype are the activations', and the capacity is in tokens. ``memory_mask`` is True where
        the memory is not padding; everywhere when None.
        """
        if memory is not None and memory_mask is None:
            memory_mask = jnp.ones(memory.shape[:2], bool)
        slots = Slots.empty(rows, num_beams, capacity, window=self.window)

        block, stack = self._unstack_layers()
        layers = []
        for params in stack:
            bound = block.bind({"params": params})
            layers.append(bound.init_cache(slots, memory, d_model=d_model, dtype=dtype))

        if memory_mask is not None:
            memory_mask = memory_mask[:, None]  # [B, 1, S]
        return StackCache(tuple(layers), slots, memory_mask)

    def step(
        self, x: Float[Array, "B N D"], cache: StackCache
    ) -> tuple[Float[Array, "B N D"], StackCache]:
        """Runs the stack on one new token per beam.

        Returns the output for each beam, and the cache including the new tokens. The output is NaN
        once the cache is full.
        """
        slots = cache.slots.add_position()
        if not slots.is_rolling:  # Beyond the capacity, it would overwrite another token.
            x = jnp.where(slots.length < slots.capacity, x, jnp.nan)

        x, layers = self._run_cached(x, cache, slots)
        slots = dataclasses.replace(slots, length=slots.length + 1)
        return x, cache._replace(layers=layers, slots=slots)

    def prefill(
        self,
        x: Float[Array, "B T D"],
        cache: StackCache,
        length: Int[Array, ""] | int,
    ) -> tuple[Float[Array, "B T D"], StackCache]:
        """Runs the stack on the first tokens of a sequence in one pass, and fills an empty cache.

        Args:
          x: Activations of the prompt, which all beams share.
          cache: From :meth:`init_cache`, with capacity for the whole prompt.
          length: Number of tokens to keep; the next token takes this position.

        Raises:
          UserError: The prompt is longer than the capacity of the cache.
        """
        capacity = cache.slots.capacity
        if x.shape[1] > capacity and not cache.slots.is_rolling:
            raise UserError(
                f"prompt of {x.shape[1]} tokens: the cache has a capacity of {capacity}; create it "
                "with a larger one"
            )

        slots = dataclasses.replace(cache.slots, length=jnp.asarray(length, jnp.int32))
        prompt = dataclasses.replace(slots, is_prompt=True)
        x, layers = self._run_cached(x, cache, prompt)
        return x, cache._replace(layers=layers, slots=slots)

    def _run_cached(
        self,
        x: Array,
        cache: StackCache,
        slots: Slots,
    ) -> tuple[Array, tuple[LayerCache, ...]]:
        """Runs the stack on new tokens; returns the output, and the updated cache of each block."""
        bias = None if self.bias is None else self.bias()
        keys = slots.keys(x.shape[1], bias)
        memory = self._cached_memory(x, cache, slots)
        block, stack = self._unstack_layers()

        def run(
            params: PyTree,
            x: Array,
            own: LayerCache,
        ) -> tuple[Array, LayerCache]:
            bound = block.bind({"params": params})
            return bound.run(x, keys, memory, cache=own)

        # One trace for all layers. Outside of jit, each call would compile the function again.
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(stack)):
            run = jax.jit(run)

        layers = []
        for params, own in zip(stack, cache.layers, strict=True):
            x, new = run(params, x, own)
            layers.append(new)
        return self._normalize(x), tuple(layers)

    @nn.nowrap
    def _cached_memory(
        self,
        x: Array,
        cache: StackCache,
        slots: Slots,
    ) -> Memory | None:
        """Returns the memory whose keys and values are in the caches of the blocks."""
        if cache.memory_mask is None:
            return None
        mask = cache.memory_mask[:, :, None]  # [B, 1, 1, S]
        queries = Tokens.of(x.shape[1])
        keys = Tokens.of(mask.shape[-1])
        return Memory(None, Keys(queries, keys, mask, slots=slots))

    def _unstack_layers(self) -> tuple[Any, tuple[PyTree, ...]]:
        # A scan over layers would copy the whole cache for every token. A loop updates it in place.
        layers = unstack_layers(self.variables["params"]["layers"], self.num_layers)
        layers = tuple(layer for layer in layers for _ in range(self.repeats))
        return self.layers.clone(parent=None, name=None), layers


def unstack_layers(params: PyTree, num_layers: int) -> tuple[PyTree, ...]:
    """Returns the parameters of each layer, unboxed, given parameters with a layer axis.

    A tuple, which has no layer axis any more, is returned as it is. A stack accepts both forms. A
    decoding loop would slice the layers again for every token.
    """
    if isinstance(params, tuple):
        return params
    params = nn.unbox(params)

    def layer(number: int) -> PyTree:
        return jax.tree.map(operator.itemgetter(number), params)

    return tuple(layer(i) for i in range(num_layers))


def _scan_layers(
    layer: Callable,
    num_layers: int,
    repeats: int,
    *,
    remat: Remat,
) -> Callable:
    # In unrolled code XLA would eliminate the recomputation as a common subexpression.
    is_repeated = repeats > 1
    if remat == "dots":
        policy = jax.checkpoint_policies.save_only_these_names(MATMUL)
        layer = nn.remat(layer, prevent_cse=is_repeated, policy=policy)
    elif remat == "layer":
        layer = nn.remat(layer, prevent_cse=is_repeated)

    def repeat(block: Block, x: Array) -> tuple[Array, None]:
        for _ in range(repeats):
            x, _ = layer(block, x)
        return x, None

    unroll = backend().unroll_layers and remat == "none"
    return nn.scan(
        repeat if is_repeated else layer,
        # All collections and streams, since user-defined layers may have others.
        variable_axes={True: 0},
        split_rngs={True: True},
        metadata_params={nn.PARTITION_NAME: None},  # Layers are not sharded over devices.
        length=num_layers,
        unroll=num_layers if unroll else 1,
    )
