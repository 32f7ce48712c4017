"""Recurrent layers of translation with attention (Bahdanau et al. 2015), before the Transformer.

A :class:`BidirectionalGRU` encodes a sentence, and an :class:`AttentiveGRU` decodes it. They take
the places of two stacks: they are called in the same way, and decode with the same cache.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from jaxformer.errors import UserError
from jaxformer.nn.argument_checks import check_activations, check_sizes, check_supported
from jaxformer.nn.cache import LayerState, Slots
from jaxformer.nn.dropout import Dropout
from jaxformer.nn.kernels import additive_attention
from jaxformer.nn.keys import Keys, Memory
from jaxformer.nn.matmul import project
from jaxformer.nn.parameters import parameter
from jaxformer.nn.precision import ComputeDtype, at_least_float32
from jaxformer.nn.rematerialization import Remat, rematerialize
from jaxformer.nn.sharding import constrain_batch
from jaxformer.nn.stack import StackCache

# The name of the only layer of a decoder in its cache.
_LAYER = "gru"


class GRU(NamedTuple):
    """The matrices that a gated recurrent unit multiplies its state with.

    With the inputs x_z, x_r and x_n of the two gates and of the new state,
    z = sigmoid(x_z + h U_z), r = sigmoid(x_r + h U_r), n = tanh(x_n + (r h) U_n), and the state
    becomes (1 - z) h + z n.
    """

    gates: Any  # U_z and U_r, [H, 2 H]
    candidate: Any  # U_n, [H, H]
    compute_dtype: ComputeDtype

    def step(
        self,
        state: Float[Array, "*rows H"],
        inputs: Float[Array, "*rows G"],
    ) -> Float[Array, "*rows H"]:
        """Returns the state after one more input."""
        size = state.shape[-1]
        logits = inputs[..., : 2 * size] + project(
            state, self.gates, compute_dtype=self.compute_dtype
        )
        update, reset = jnp.split(nn.sigmoid(logits), 2, axis=-1)

        kept = reset * state
        from_kept = project(kept, self.candidate, compute_dtype=self.compute_dtype)
        candidate = jnp.tanh(inputs[..., 2 * size :] + from_kept)
        return (1 - update) * state + update * candidate


class _Recurrent(nn.Module):
    """The base of both layers.

    Attributes:
      d_model: Width of the inputs, D.
      size: Number of units of a state, H.
      dropout_rate: Dropout rate of the outputs.
      compute_dtype: Dtype of the inputs of matmuls; states are at least float32.
      remat: Rematerialization policy of the backward pass, for each step of a recurrence.
    """

    d_model: int
    size: int
    dropout_rate: float = 0.0
    compute_dtype: ComputeDtype = "float32"
    remat: Remat = "none"

    @nn.nowrap
    def _matrix(self, name: str, inputs: int, outputs: int, orthogonal: bool = False) -> Any:
        """Creates a matrix, of square orthogonal ones side by side if ``orthogonal``."""
        return parameter(
            self,
            name,
            _orthogonal_parts if orthogonal else nn.initializers.xavier_uniform(),
            (inputs, outputs),
            axes=("d_model", None),
            role="matrix",
        )

    @nn.nowrap
    def _bias(self, name: str, size: int) -> Any:
        return parameter(self, name, nn.initializers.zeros, (size,))

    @nn.nowrap
    def _gru(self, prefix: str = "") -> GRU:
        """Creates the matrices of a GRU."""
        size = self.size
        return GRU(
            gates=self._matrix(f"{prefix}gates", size, 2 * size, orthogonal=True),
            candidate=self._matrix(f"{prefix}candidate", size, size, orthogonal=True),
            compute_dtype=self.compute_dtype,
        )

    @nn.nowrap
    def _project(self, x: Array, matrix: Any, bias: Any = None) -> Array:
        """Returns a product, at least float32, as states are."""
        wide = x.astype(at_least_float32(x))
        return project(wide, matrix, bias, compute_dtype=self.compute_dtype)

    @nn.nowrap
    def _scan(
        self,
        step: Callable[[Array, Any], tuple[Array, Any]],
        state: Array,
        inputs: Any,
        *,
        reverse: bool = False,
    ) -> Any:
        """Runs a step over inputs with axes [B, T, ...]; returns its outputs in these axes."""
        step = rematerialize(step, self.remat, prevent_cse=False)
        by_time = jax.tree.map(_swap_time, inputs)
        _, outputs = jax.lax.scan(step, state, by_time, reverse=reverse)
        return jax.tree.map(_swap_time, outputs)


class BidirectionalGRU(_Recurrent):
    """Two GRUs, which read a sentence forward and backward: the encoder.

    The output of a token, its annotation, has the states of both: [forward, backward].
    """

    def setup(self) -> None:
        check_sizes(self, "d_model", "size")
        inputs = 3 * self.size
        self.forward_input = self._matrix("forward_input", self.d_model, inputs)
        self.forward_bias = self._bias("forward_bias", inputs)
        self.forward = self._gru("forward_")

        self.backward_input = self._matrix("backward_input", self.d_model, inputs)
        self.backward_bias = self._bias("backward_bias", inputs)
        self.backward = self._gru("backward_")
        self.dropout = Dropout(self.dropout_rate)

    def __call__(
        self,
        x: Float[Array, "B S D"],
        keys: Keys,
        *,
        dropout: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B S A"]:
        """Encodes sentences; arguments as for :meth:`jaxformer.Stack.__call__`.

        Raises:
          UserError: x has another shape, or the keys have other rules than segments, which are
            contiguous.
        """
        check_activations("BidirectionalGRU", "x", x, self.d_model, axes=3)
        reason = "since a recurrence reads the whole sentence"
        check_supported("BidirectionalGRU", keys.rules(), {"segments"}, reason)

        segments = _segments_of(keys, x)
        forward = self._read(
            self._project(x, self.forward_input, self.forward_bias),
            self.forward,
            begins=_begins(segments),
        )
        backward = self._read(
            self._project(x, self.backward_input, self.backward_bias),
            self.backward,
            begins=_begins(segments[:, ::-1])[:, ::-1],
            reverse=True,
        )
        annotations = jnp.concatenate([forward, backward], axis=-1)
        annotations = self.dropout(annotations.astype(x.dtype), dropout)
        return constrain_batch(annotations)

    def _read(
        self,
        inputs: Float[Array, "B S G"],
        gru: GRU,
        *,
        begins: Bool[Array, "B S"],
        reverse: bool = False,
    ) -> Float[Array, "B S H"]:
        """Returns the states of one direction, which is zero before the first token of each."""

        def step(state: Array, token: tuple[Array, Array]) -> tuple[Array, Array]:
            inputs, begins = token
            state = jnp.where(begins[:, None], 0.0, state)
            state = gru.step(state, inputs)
            return state, state

        zeros = jnp.zeros_like(inputs[:, 0, : self.size])
        return self._scan(step, zeros, (inputs, begins), reverse=reverse)


@flax.struct.dataclass
class AttentiveState(LayerState):
    """The state of a decoder after the newest token of each hypothesis, and what it attends to.

    Attributes:
      state: State of the GRU; a search reorders it.
      annotations: The memory, which the beams of a sentence share.
      keys: The memory, projected to keys.
    """

    state: Float[Array, "B N H"]
    annotations: Float[Array, "B 1 S A"]
    keys: Float[Array, "B 1 S H"]


class AdditiveAttention(nn.Module):
    """Attention whose scores are v . tanh(s W + h U), of a state s and an annotation h.

    Its weights are sown as the intermediate "weights", as of one layer with one head.

    Attributes:
      size: Width of states and keys, H.
      memory_size: Width of annotations, A.
      compute_dtype: Dtype of the inputs of matmuls.
    """

    size: int
    memory_size: int
    compute_dtype: ComputeDtype = "float32"

    def setup(self) -> None:
        def matrix(name: str, inputs: int) -> Any:
            glorot = nn.initializers.xavier_uniform()
            shape = (inputs, self.size)
            return parameter(self, name, glorot, shape, axes=("d_model", None), role="matrix")

        self.query = matrix("query", self.size)
        self.key = matrix("key", self.memory_size)
        self.vector = parameter(self, "vector", nn.initializers.zeros, (self.size,))

    def project_keys(self, annotations: Float[Array, "B S A"]) -> Float[Array, "B S H"]:
        """Returns h U of all annotations, at least float32."""
        wide = annotations.astype(at_least_float32(annotations))
        return project(wide, self.key, compute_dtype=self.compute_dtype)

    def __call__(
        self,
        cache: AttentiveState,
        visible: Bool[Array, "#B #N S"],
    ) -> tuple[Float[Array, "B N A"], Float[Array, "B N S"]]:
        """Returns the weighted sum of the annotations for each state, and the weights."""
        query = project(cache.state, self.query, compute_dtype=self.compute_dtype)
        context, weights = additive_attention(
            query[:, :, None],
            keys=cache.keys[:, 0, :, None],
            values=cache.annotations[:, 0, :, None],
            mask=visible[:, None],
            vector=self.vector[None],
        )
        return context[:, :, 0], weights[:, 0]

    def record(self, weights: Float[Array, "B T S"]) -> None:
        """Sows the weights of whole sequences."""
        self.sow("intermediates", "weights", weights[None, :, None])


class AttentiveGRU(_Recurrent):
    """A GRU that attends to the annotations of a sentence before each step: the decoder.

    The context c of a step is the sum of the annotations, weighted by :class:`AdditiveAttention` of
    the state before the step. Token and context are the inputs of the step. The output is the
    larger of each two units ("maxout") of a layer of the new state, the token and the context. The
    first state is tanh(h W + b), where h is the backward state of the first token of the source.
    """

    def setup(self) -> None:
        check_sizes(self, "d_model", "size")
        size = self.size
        memory_size = 2 * size
        self.first = self._matrix("first", size, size)
        self.first_bias = self._bias("first_bias", size)

        self.cross_attention = AdditiveAttention(size, memory_size, self.compute_dtype)
        self.token_input = self._matrix("token_input", self.d_model, 3 * size)
        self.context_input = self._matrix("context_input", memory_size, 3 * size)
        self.input_bias = self._bias("input_bias", 3 * size)
        self.gru = self._gru()

        units = 2 * self.d_model
        self.state_output = self._matrix("state_output", size, units)
        self.token_output = self._matrix("token_output", self.d_model, units)
        self.context_output = self._matrix("context_output", memory_size, units)
        self.output_bias = self._bias("output_bias", units)
        self.dropout = Dropout(self.dropout_rate)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        keys: Keys,
        memory: Memory,
        *,
        dropout: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Decodes whole sequences; arguments as for :meth:`jaxformer.Stack.__call__`.

        Raises:
          UserError: x has another shape, or the keys have other rules than causality and segments,
            which are contiguous.
        """
        check_activations("AttentiveGRU", "x", x, self.d_model, axes=3)
        reason = "since a recurrence sees all earlier tokens, and nothing else"
        check_supported("AttentiveGRU", keys.rules(), {"causal", "segments"}, reason)
        if not keys.causal:
            raise UserError("AttentiveGRU: expected causal keys, since it sees no later tokens")

        annotations = memory.activations
        assert annotations is not None  # since a cache is not for whole sequences
        visible = memory.keys.allowed()
        if visible is None:
            visible = jnp.ones((1, 1, 1, annotations.shape[1]), bool)

        begins = _begins(_segments_of(keys, x))
        cache = self._empty(annotations, visible[:, 0])
        decoded = self._decode(x, cache, visible[:, 0], begins)
        self.cross_attention.record(decoded.weights)
        return constrain_batch(self.dropout(decoded.outputs, dropout))

    def init_cache(
        self,
        rows: Int[Array, " B"],
        d_model: int,
        dtype: str,
        *,
        num_beams: int,
        capacity: int,
        memory: Float[Array, "B S A"],
        memory_mask: Bool[Array, "B S"],
    ) -> StackCache:
        """Returns the cache before the first token; see :meth:`jaxformer.Stack.init_cache`."""
        slots = Slots.empty(rows, num_beams, capacity)
        visible = memory_mask[:, None]  # [B, 1, S]
        cache = self._empty(memory, visible)
        return StackCache(({_LAYER: _for_beams(cache, cache.state, num_beams)},), slots, visible)

    def step(
        self, x: Float[Array, "B N D"], cache: StackCache
    ) -> tuple[Float[Array, "B N D"], StackCache]:
        """Decodes one new token per beam; see :meth:`jaxformer.Stack.step`."""
        slots = cache.slots.add_position()
        x = jnp.where(slots.length < slots.capacity, x, jnp.nan)

        own: Any = cache.layers[0][_LAYER]
        inputs = self._project(x, self.token_input, self.input_bias)
        assert cache.memory_mask is not None
        new = self._advance(own, inputs, cache.memory_mask)
        outputs = self._output(x, new.state, new.context)

        layers = ({_LAYER: dataclasses.replace(own, state=new.state)},)
        slots = dataclasses.replace(slots, length=slots.length + 1)
        return outputs, cache._replace(layers=layers, slots=slots)

    def prefill(
        self,
        x: Float[Array, "B T D"],
        cache: StackCache,
        length: Int[Array, ""] | int,
        memory_mask: Bool[Array, "B T S"] | None = None,
    ) -> tuple[Float[Array, "B T D"], StackCache]:
        """Decodes the first tokens in one pass; see :meth:`jaxformer.Stack.prefill`."""
        # Only prompts of models of pictures in texts have masks of their own.
        assert memory_mask is None
        assert cache.memory_mask is not None
        own: Any = cache.layers[0][_LAYER]
        beams = own.state.shape[1]
        shared = dataclasses.replace(own, state=own.state[:, :1])

        index = jnp.arange(x.shape[1])[None]
        starts = jnp.zeros((1, 1), jnp.int32) if cache.slots.starts is None else cache.slots.starts
        decoded = self._decode(x, shared, cache.memory_mask, begins=index == starts)

        # All beams have the state after the last token of the prompt that is kept.
        length = jnp.asarray(length, jnp.int32)
        state = jnp.where(length > 0, decoded.states[:, length - 1], own.state[:, 0])
        layers = ({_LAYER: _for_beams(own, state[:, None], beams)},)
        slots = dataclasses.replace(cache.slots, length=length)
        return decoded.outputs, cache._replace(layers=layers, slots=slots)

    def _empty(
        self,
        annotations: Float[Array, "B S A"],
        visible: Bool[Array, "#B #T S"],
    ) -> AttentiveState:
        """Returns the state before the first token, for each target token that may be the first."""
        is_first = visible & (jnp.cumsum(visible, axis=-1) == 1)
        backward = annotations[..., self.size :].astype(at_least_float32(annotations))
        first = jnp.einsum("bts,bsh->bth", is_first.astype(backward.dtype), backward)
        state = jnp.tanh(self._project(first, self.first, self.first_bias))  # [B, T, H]

        keys = self.cross_attention.project_keys(annotations)
        return AttentiveState(state, annotations[:, None], keys[:, None])

    def _decode(
        self,
        x: Float[Array, "B T D"],
        cache: AttentiveState,
        visible: Bool[Array, "#B #T S"],
        begins: Bool[Array, "#B T"],
    ) -> "_Decoded":
        """Decodes whole sequences, given the state before each token that begins one."""
        batch, length, _ = x.shape
        visible = jnp.broadcast_to(visible, (batch, length, visible.shape[-1]))
        begins = jnp.broadcast_to(begins, (batch, length))
        starts = jnp.broadcast_to(cache.state, (batch, length, self.size))

        def step(state: Array, token: Any) -> tuple[Array, _Step]:
            inputs, visible, begins, start = jax.tree.map(lambda array: array[:, None], token)
            state = jnp.where(begins[..., None], start, state)
            new = self._advance(dataclasses.replace(cache, state=state), inputs, visible)
            return new.state, new

        inputs = self._project(x, self.token_input, self.input_bias)
        tokens = (inputs, visible, begins, starts)
        new = self._scan(step, starts[:, :1], tokens)
        states, contexts, weights = (array[:, :, 0] for array in new)
        return _Decoded(self._output(x, states, contexts), states, weights)

    def _advance(
        self,
        cache: AttentiveState,
        inputs: Float[Array, "B N G"],
        visible: Bool[Array, "#B #N S"],
    ) -> "_Step":
        """Attends with each state, and returns the next ones."""
        context, weights = self.cross_attention(cache, visible)
        inputs = inputs + self._project(context, self.context_input)
        return _Step(self.gru.step(cache.state, inputs), context, weights)

    def _output(
        self,
        x: Float[Array, "B T D"],
        state: Float[Array, "B T H"],
        context: Float[Array, "B T A"],
    ) -> Float[Array, "B T D"]:
        units = self._project(state, self.state_output, self.output_bias)
        units += self._project(x, self.token_output)
        units += self._project(context, self.context_output)
        pairs = units.reshape(*x.shape, 2)
        return pairs.max(axis=-1).astype(x.dtype)


class _Step(NamedTuple):
    """The results of one step of a decoder, for N hypotheses."""

    state: Float[Array, "B N H"]
    context: Float[Array, "B N A"]
    weights: Float[Array, "B N S"]


class _Decoded(NamedTuple):
    """The results of a decoder for whole sequences."""

    outputs: Float[Array, "B T D"]
    states: Float[Array, "B T H"]
    weights: Float[Array, "B T S"]


def _for_beams(
    cache: AttentiveState,
    state: Float[Array, "B 1 H"],
    num_beams: int,
) -> AttentiveState:
    """Returns the cache with one state, which all beams share."""
    batch, _, size = state.shape
    shared = jnp.broadcast_to(state, (batch, num_beams, size))
    return dataclasses.replace(cache, state=shared)


def _segments_of(keys: Keys, x: Float[Array, "B T D"]) -> Int[Array, "B T"]:
    """Returns the segments of the tokens; without any, each row is one."""
    segments = keys.queries.segments
    if segments is None:
        segments = jnp.ones((1, x.shape[1]), jnp.int32)
    return jnp.broadcast_to(segments, x.shape[:2])


def _begins(segments: Int[Array, "B T"]) -> Bool[Array, "B T"]:
    """Returns True at the first token of each segment."""
    before = jnp.pad(segments[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    return segments != before


def _swap_time(array: Array) -> Array:
    return jnp.swapaxes(array, 0, 1)


def _orthogonal_parts(key: Array, shape: tuple[int, int], dtype: Any) -> Array:
    """Returns square orthogonal matrices, side by side."""
    size, outputs = shape
    make = nn.initializers.orthogonal()
    keys = jax.random.split(key, outputs // size)
    return jnp.concatenate([make(own, (size, size), dtype) for own in keys], axis=1)
