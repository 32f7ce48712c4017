"""A stack of N identical blocks, for training and for decoding (section 3.1)."""

import dataclasses
import operator
import typing
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxformer.errors import UserError
from jaxformer.nn.argument_checks import check_choice
from jaxformer.nn.backend import backend
from jaxformer.nn.block import Block, LayerCache, Residual
from jaxformer.nn.block_pattern import BlockPattern
from jaxformer.nn.cache import MemoryCache, Slots
from jaxformer.nn.gated_block import GatedBlock
from jaxformer.nn.keys import Keys, Memory, Tokens
from jaxformer.nn.parameters import LAYERS
from jaxformer.nn.pipeline import run_stages
from jaxformer.nn.rematerialization import Remat, rematerialize
from jaxformer.nn.sharding import constrain_batch, num_shards

T = TypeVar("T")


class StackCache(NamedTuple):
    """Cached keys and values of a stack, a pytree.

    Attributes:
      layers: For each block, its caches by the name of the sub-layer.
      slots: The slots that hold each beam's tokens; one table for all blocks.
      memory_mask: True where new tokens see the memory, which is not padding; None for a stack
        without a memory.
      gated: For each gated block, the keys and values of the memory.
    """

    layers: tuple[LayerCache, ...]
    slots: Slots
    memory_mask: Bool[Array, "B 1 S"] | None
    gated: tuple[MemoryCache, ...] = ()

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
      window: Maximum distance at which a token sees others; None for no limit. A tuple has those
        of consecutive layers, and repeats: ``(None, 255)`` is for alternating layers.
      global_tokens: Number of first tokens that see all others, and that all others see.
      blocks: BigBird's pattern of self-attention; None for a stack without.
      make_bias: Creates the module that returns the :data:`~jaxformer.nn.keys.Bias` of all
        self-attention; None adds nothing to its scores.
      gated: The block that precedes every ``gated_every``-th layer, from the first on, and attends
        to the memory, which the layers then do not. Its parameters, stacked, are named "gated".
        None for none.
      gated_every: Number of layers after each gated block; divides ``num_layers``.
      remat: Rematerialization policy of the backward pass.
    """

    layers: Block
    num_layers: int
    repeats: int = 1
    final_norm: Callable[[], nn.Module] | None = None
    window: int | tuple[int | None, ...] | None = None
    global_tokens: int = 0
    blocks: BlockPattern | None = None
    make_bias: Callable[[], nn.Module] | None = None
    gated: GatedBlock | None = None
    gated_every: int = 1
    remat: Remat = "none"

    def setup(self) -> None:
        self.norm = None if self.final_norm is None else self.final_norm()
        self.bias = None if self.make_bias is None else self.make_bias()
        if self.repeats > 1 and isinstance(self.window, tuple):
            raise UserError(f"Stack: expected one window with repeats, got window={self.window}")
        if self.gated is not None:
            self._check_gated()

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
        if num_shards(LAYERS) > 1:
            return self._normalize(self._run_stages(x, keys, memory, dropout=dropout))
        if self.gated is not None and not self.is_initializing():
            return self._normalize(self._run_groups(x, keys, memory, dropout=dropout))
        if self.gated is not None:
            x = self._create_gated(x, memory)
            memory = None

        layer = _make_layer(keys, memory, dropout)
        run_layers = _scan_layers(layer, self.num_layers, self.repeats, remat=self.remat)
        x, _ = run_layers(self.layers, x, self._distances())
        return constrain_batch(self._normalize(x))

    def _check_gated(self) -> None:
        if self.gated_every < 1 or self.num_layers % self.gated_every:
            raise UserError(
                f"Stack: gated_every={self.gated_every} must divide num_layers={self.num_layers}"
            )
        if self.repeats > 1 or isinstance(self.window, tuple):
            raise UserError("Stack: expected neither repeats nor windows that differ, with gated")

    @property
    def _num_groups(self) -> int:
        """Number of gated blocks, each with the layers that follow it."""
        return self.num_layers // self.gated_every

    def _create_gated(self, x: Array, memory: Memory | None) -> Array:
        """Creates the parameters of the gated blocks."""

        def run(gated: GatedBlock, x: Array, _: None) -> tuple[Array, None]:
            return gated(x, _check_memory(memory)), None

        create = _scan_layers(run, self._num_groups, 1, remat="none")
        return create(self.gated, x, None)[0]

    def _run_groups(
        self,
        x: Float[Array, "B T D"],
        keys: Keys,
        memory: Memory | None,
        *,
        dropout: Int[Array, " B"] | None,
    ) -> Float[Array, "B T D"]:
        """Runs each gated block and the layers after it; all groups share one trace."""
        group = _Group(
            gated=self._unbound(self.gated),
            layers=self._unbound(self.layers),
            num_layers=self.gated_every,
            remat=self.remat,
            parent=None,
        )
        groups: Any = _Groups(group, self._num_groups, parent=None)

        def by_group(array: Array) -> Array:
            return array.reshape(self._num_groups, self.gated_every, *array.shape[1:])

        params = nn.unbox(self.variables["params"])
        layers = jax.tree.map(by_group, params["layers"])
        variables = {"params": {"group": {"gated": params["gated"], "layers": layers}}}
        rngs = None if dropout is None else {"dropout": self.make_rng("dropout")}
        memory = _check_memory(memory)
        return groups.apply(variables, x, keys, memory, dropout=dropout, rngs=rngs)

    def _run_stages(
        self,
        x: Float[Array, "B T D"],
        keys: Keys,
        memory: Memory | None,
        *,
        dropout: Int[Array, " B"] | None,
    ) -> Float[Array, "B T D"]:
        """Runs the layers where the mesh splits them into stages."""
        if self.gated is not None or self.repeats > 1:
            raise UserError("Stack: mesh.pipe splits neither layers with repeats nor gated blocks")
        block = self._unbound(self.layers)

        def stage(layers: PyTree, x: Array, context: PyTree) -> Array:
            def run(block: Block, x: Array, distance: Array | None) -> Array:
                layer = _make_layer(*context)
                # In a loop, as in a whole stack, Flax derives other random numbers than outside.
                run_layer = _scan_layers(layer, 1, 1, remat=self.remat, split_rngs=False)
                return run_layer(block, x, distance)[0]

            def step(x: Array, layer: PyTree) -> tuple[Array, None]:
                params, rngs, distance = layer
                params, distance = jax.tree.map(lambda array: array[None], (params, distance))
                return nn.apply(run, block)({"params": params}, x, distance, rngs=rngs), None

            return jax.lax.scan(step, x, layers, unroll=_unrolls(self.remat))[0]

        params = nn.unbox(self.variables["params"]["layers"])
        layers = (params, self._layer_rngs(), self._distances())
        return run_stages(stage, layers, x, (keys, memory, dropout))

    def _layer_rngs(self) -> dict[str, Any]:
        """Returns the keys of all layers, the same as without stages."""

        def rngs_of(block: Block, _: None, __: None) -> tuple[None, dict[str, Any]]:
            assert block.scope is not None
            return None, dict(block.scope.rngs)

        scan = _scan_layers(rngs_of, self.num_layers, 1, remat="none")
        return scan(self.layers, None, None)[1]

    @property
    def _windows(self) -> tuple[int | None, ...]:
        """The window of each layer."""
        pattern = self.window if isinstance(self.window, tuple) else (self.window,)
        num_layers = self.num_layers * self.repeats
        return tuple(pattern[number % len(pattern)] for number in range(num_layers))

    @property
    def _common_window(self) -> int | None:
        """The window that is all that any layer sees; None if a layer has no limit."""
        windows = self._windows
        limits = [window for window in windows if window is not None]
        return max(limits) if len(limits) == len(windows) else None

    def _distances(self) -> Int[np.ndarray, " L"] | None:
        """Returns the windows of layers that differ, as numbers; None if all are the same."""
        windows = self._windows
        if len(set(windows)) == 1:
            return None

        no_limit = np.iinfo(np.int32).max
        distances = np.full(len(windows), no_limit, np.int32)
        for layer, window in enumerate(windows):
            if window is not None:
                distances[layer] = window
        return distances

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
        gated, stack_of_gated = self._unstack_gated()

        @jax.jit
        def run_gated(params: PyTree, x: Array) -> Array:
            return gated.apply({"params": params}, x, _check_memory(memory), dropout=dropout)

        own_memory = None if stack_of_gated else memory

        def make_run(keys: Keys) -> Callable[[PyTree, Array], Array]:
            @jax.jit  # one trace for all layers with the same window
            def run(params: PyTree, x: Array) -> Array:
                return block.apply({"params": params}, x, keys, own_memory, dropout=dropout)

            return run

        runs = self._by_window(keys, make_run)
        for number, (window, params) in enumerate(zip(self._windows, stack, strict=True)):
            if self._follows_gated(number):
                x = run_gated(stack_of_gated[number // self.gated_every], x)
            x = runs[window](params, x)
        return x

    def _by_window(self, keys: Keys, make_run: Callable[[Keys], T]) -> dict[int | None, T]:
        """Returns what is made of the keys of each window that layers have."""
        if self._distances() is None:
            return {self._windows[0]: make_run(keys)}

        made = {}
        for window in dict.fromkeys(self._windows):
            made[window] = make_run(dataclasses.replace(keys, window=window))
        return made

    def _with_rules(self, keys: Keys) -> Keys:
        """Returns the keys with the rules of this stack."""
        if self.window is not None:
            if keys.window not in (None, self.window):
                raise UserError(f"Stack: got window={self.window}, and keys with {keys.window}")
            keys = dataclasses.replace(keys, window=self._common_window)
        if self.global_tokens:
            keys = dataclasses.replace(keys, global_tokens=self.global_tokens)
        if self.blocks is not None:
            keys = dataclasses.replace(keys, blocks=self.blocks)

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
        slots = Slots.empty(rows, num_beams, capacity, window=self._common_window)

        block, stack = self._unstack_layers()
        own_memory = None if self.gated is not None else memory
        layers = []
        for params in stack:
            bound = block.bind({"params": params})
            layers.append(bound.init_cache(slots, own_memory, d_model=d_model, dtype=dtype))

        gated, stack_of_gated = self._unstack_gated()
        caches = []
        for params in stack_of_gated:
            bound = gated.bind({"params": params})
            caches.append(bound.cache_memory(memory, d_model))

        if memory_mask is not None:
            memory_mask = memory_mask[:, None]  # [B, 1, S]
        return StackCache(tuple(layers), slots, memory_mask, gated=tuple(caches))

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
        memory_mask: Bool[Array, "B T S"] | None = None,
    ) -> tuple[Float[Array, "B T D"], StackCache]:
        """Runs the stack on the first tokens of a sequence in one pass, and fills an empty cache.

        Args:
          x: Activations of the prompt, which all beams share.
          cache: From :meth:`init_cache`, with capacity for the whole prompt.
          length: Number of tokens to keep; the next token takes this position.
          memory_mask: True where a token of the prompt sees the memory; where new tokens do when
            None.

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
        x, layers = self._run_cached(x, cache, prompt, memory_mask)
        return x, cache._replace(layers=layers, slots=slots)

    def _run_cached(
        self,
        x: Array,
        cache: StackCache,
        slots: Slots,
        memory_mask: Bool[Array, "B T S"] | None = None,
    ) -> tuple[Array, tuple[LayerCache, ...]]:
        """Runs the stack on new tokens; returns the output, and the updated cache of each block."""
        bias = None if self.bias is None else self.bias()
        keys = slots.keys(x.shape[1], bias)
        memory = self._cached_memory(x, cache, slots, memory_mask)
        block, stack = self._unstack_layers()
        gated, stack_of_gated = self._unstack_gated()
        own_memory = None if stack_of_gated else memory

        # One trace for all layers. Outside of jit, each call would compile the function again.
        is_traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(stack))

        def make_run(keys: Keys) -> Callable[..., tuple[Array, LayerCache]]:
            def run(
                params: PyTree,
                x: Array,
                own: LayerCache,
            ) -> tuple[Array, LayerCache]:
                bound = block.bind({"params": params})
                return bound.run(x, keys, own_memory, cache=own)

            return jax.jit(run) if is_traced else run

        def run_gated(params: PyTree, x: Array, own: MemoryCache) -> Array:
            return gated.apply({"params": params}, x, memory, cache=own)

        run_gated = jax.jit(run_gated) if is_traced else run_gated
        runs = self._by_window(keys, make_run)
        layers = []
        of_layers = zip(self._windows, stack, cache.layers, strict=True)
        for number, (window, params, own) in enumerate(of_layers):
            if self._follows_gated(number):
                group = number // self.gated_every
                x = run_gated(stack_of_gated[group], x, cache.gated[group])
            x, new = runs[window](params, x, own)
            layers.append(new)
        return self._normalize(x), tuple(layers)

    @nn.nowrap
    def _cached_memory(
        self,
        x: Array,
        cache: StackCache,
        slots: Slots,
        memory_mask: Bool[Array, "B T S"] | None,
    ) -> Memory | None:
        """Returns the memory whose keys and values are in the caches of the blocks."""
        if cache.memory_mask is None:
            return None
        mask = cache.memory_mask[:, :, None]  # [B, 1, 1, S]
        if memory_mask is not None:
            mask = memory_mask[:, None]  # [B, 1, T, S]
        queries = Tokens.of(x.shape[1])
        keys = Tokens.of(mask.shape[-1])
        return Memory(None, Keys(queries, keys, mask, slots=slots))

    def _unstack_layers(self) -> tuple[Any, tuple[PyTree, ...]]:
        # A scan over layers would copy the whole cache for every token. A loop updates it in place.
        layers = unstack_layers(self.variables["params"]["layers"], self.num_layers)
        layers = tuple(layer for layer in layers for _ in range(self.repeats))
        return self._unbound(self.layers), layers

    def _unstack_gated(self) -> tuple[Any, tuple[PyTree, ...]]:
        """Returns the gated block and the parameters of each; of none without one."""
        if self.gated is None:
            return None, ()
        params = unstack_layers(self.variables["params"]["gated"], self._num_groups)
        return self._unbound(self.gated), params

    def _follows_gated(self, number: int) -> bool:
        """True for a layer that a gated block precedes."""
        return self.gated is not None and number % self.gated_every == 0

    @nn.nowrap
    def _unbound(self, module: Any) -> Any:
        """Returns a module for parameters that are given."""
        return module.clone(parent=None, name=None)


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


def unstack_blocks(params: PyTree) -> PyTree:
    """Returns the parameters of a stack, with a tuple for its layers, and for its gated blocks.

    Parameters of another module, which has no layers, are returned as they are.
    """
    layers = params.get("layers")
    if not isinstance(layers, dict):
        return params

    unstacked = dict(params)
    for name in ("layers", "gated"):
        if name in params:
            blocks = params[name]
            num_blocks = jax.tree.leaves(blocks)[0].shape[0]
            unstacked[name] = unstack_layers(blocks, num_blocks)
    return unstacked


class _Group(nn.Module):
    """A gated block, and the layers after it, which do not see the memory."""

    gated: GatedBlock
    layers: Block
    num_layers: int
    remat: Remat

    def __call__(
        self,
        x: Float[Array, "B T D"],
        keys: Keys,
        memory: Memory,
        *,
        dropout: Int[Array, " B"] | None,
    ) -> Float[Array, "B T D"]:
        def run_gated(gated: GatedBlock, x: Array) -> Array:
            return gated(x, memory, dropout=dropout)

        def layer(block: Block, x: Array, _: None) -> tuple[Array, None]:
            return block(constrain_batch(x), keys, dropout=dropout), None

        run_gated = rematerialize(run_gated, self.remat, prevent_cse=True, checkpoint=nn.remat)
        x = run_gated(self.gated, constrain_batch(x))
        run_layers = _scan_layers(layer, self.num_layers, 1, remat=self.remat)
        return run_layers(self.layers, x, None)[0]


class _Groups(nn.Module):
    """All groups of a stack with gated blocks, in sequence."""

    group: _Group
    num_groups: int

    def __call__(
        self,
        x: Float[Array, "B T D"],
        keys: Keys,
        memory: Memory,
        *,
        dropout: Int[Array, " B"] | None,
    ) -> Float[Array, "B T D"]:
        def run(group: _Group, x: Array, _: None) -> tuple[Array, None]:
            return group(x, keys, memory, dropout=dropout), None

        run_groups = _scan_layers(run, self.num_groups, 1, remat="none")
        return run_groups(self.group, x, None)[0]


def _check_memory(memory: Memory | None) -> Memory:
    if memory is None:
        raise UserError("Stack: gated blocks need a memory, got None")
    return memory


def _unrolls(remat: Remat) -> bool:
    """Returns whether layers are unrolled, and not a loop."""
    # In unrolled code XLA would eliminate the recomputation as a common subexpression.
    return backend().unroll_layers and remat == "none"


def _make_layer(
    keys: Keys,
    memory: Memory | None,
    dropout: Int[Array, " B"] | None,
) -> Callable[[Block, Array, Array | None], tuple[Array, None]]:
    """Returns the body of a loop over the layers, given the window of each if they differ."""

    def layer(
        block: Block,
        x: Float[Array, "B T D"],
        distance: Int[Array, ""] | None,
    ) -> tuple[Array, None]:
        x = constrain_batch(x)
        own_keys = keys if distance is None else keys.within(distance)
        return block(x, own_keys, memory, dropout=dropout), None

    return layer


def _scan_layers(
    layer: Callable,
    num_layers: int,
    repeats: int,
    *,
    remat: Remat,
    split_rngs: bool = True,
) -> Callable:
    is_repeated = repeats > 1
    layer = rematerialize(layer, remat, prevent_cse=is_repeated, checkpoint=nn.remat)

    def repeat(block: Block, x: Array, distance: None) -> tuple[Array, None]:
        for _ in range(repeats):
            x, _ = layer(block, x, distance)
        return x, None

    return nn.scan(
        repeat if is_repeated else layer,
        # All collections and streams, since user-defined layers may have others.
        variable_axes={True: 0},
        split_rngs={True: split_rngs},
        metadata_params={nn.PARTITION_NAME: None},  # Parameters of this package have no boxes.
        length=num_layers,
        unroll=num_layers if _unrolls(remat) else 1,
    )
