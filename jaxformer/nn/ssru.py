"""The simpler simple recurrent unit (Kim et al. 2019), which replaces self-attention in decoders.

A cache of self-attention grows with the translation. A recurrence keeps one vector for each layer
and hypothesis, which makes decoding fast on CPUs.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from jaxformer.errors import UserError
from jaxformer.layout import zeros_for_rows
from jaxformer.nn.argument_checks import check_activations, check_recurrence
from jaxformer.nn.cache import LayerState, Slots
from jaxformer.nn.keys import Keys
from jaxformer.nn.matmul import project
from jaxformer.nn.parameters import parameter
from jaxformer.nn.precision import ComputeDtype, at_least_float32


@flax.struct.dataclass
class RecurrentCache(LayerState):
    """The state of one layer after the newest token of each hypothesis; a search reorders it."""

    state: Float[Array, "B N D"]  # c_t of the equations of SSRU


class SSRU(nn.Module):
    """Takes the place of causal self-attention in a :class:`~jaxformer.Block`.

    f_t = sigmoid(x_t W_f + b_f), c_t = f_t c_(t-1) + (1 - f_t) x_t W, with c_0 = 0 at the beginning
    of each sequence. The output is max(0, c_t). Sequences are computed by an associative scan.

    c_t is a weighted sum of x_s W over s <= t. The weights, averaged over the features, are sown as
    the intermediate "weights", [B, 1, T, T], as if there were one head of attention.

    >>> inputs = jax.random.key(0), jnp.ones((1, 3, 8)), Keys.of_sequence(3, causal=True)
    >>> shapes = jax.eval_shape(lambda: SSRU().init(*inputs, method="attend"))
    >>> {name: leaf.shape for name, leaf in shapes["params"].items()}
    {'forget': (8, 8), 'forget_bias': (8,), 'input': (8, 8)}
    """

    compute_dtype: ComputeDtype = "float32"

    @nn.compact
    def attend(
        self,
        x: Float[Array, "B T D"],
        keys: Keys,
        memory: None = None,
        *,
        cache: RecurrentCache | None = None,
        dropout: Int[Array, " B"] | None = None,
    ) -> tuple[Float[Array, "B T D"], RecurrentCache | None]:
        """Runs the recurrence; see :meth:`~jaxformer.MultiHeadAttention.attend`.

        There is no memory and, without attention weights, no dropout.

        Raises:
          UserError: x has another shape, or the keys are not causal or have other rules than
            segments, which are contiguous.
        """
        check_activations("SSRU", "x", x, axes=3)
        self._check_rules(keys, memory, cache)
        kept, gate, new = self._gates(x)
        slots = keys.slots
        if cache is not None and not slots.is_prompt:
            # One more token of each beam: c_t = f_t c_(t-1) + (1 - f_t) x_t W
            state = kept * cache.state + new
            return nn.relu(state).astype(x.dtype), RecurrentCache(state)

        segments = keys.queries.segments
        if segments is not None:
            # Nothing is kept from one packed sequence to the next.
            before = jnp.pad(segments[:, :-1], ((0, 0), (1, 0)))
            is_same = (segments == before)[..., None]  # [B, T, 1]
            kept = jnp.where(is_same, kept, 0.0)

        state = _scan(kept, new)  # [B, T, D]
        if self.is_mutable_collection("intermediates"):
            self.sow("intermediates", "weights", _weights(kept, gate))

        if cache is not None:
            # All beams share the state after the last token of the prompt.
            has_tokens = slots.length > 0
            last = jnp.where(has_tokens, state[:, slots.length - 1], 0.0)  # [B, D]
            shared = jnp.broadcast_to(last[:, None], cache.state.shape)
            cache = RecurrentCache(shared)
        return nn.relu(state).astype(x.dtype), cache

    def _gates(self, x: Float[Array, "B T D"]) -> tuple[Array, Array, Array]:
        """Returns f_t, 1 - f_t and (1 - f_t) x_t W, [B, T, D], at least float32."""
        size = x.shape[-1]
        glorot = nn.initializers.xavier_uniform()
        axes = ("d_model", "d_ff")
        matrix = parameter(self, "input", glorot, (size, size), axes=axes, role="matrix")
        forget = parameter(self, "forget", glorot, (size, size), axes=axes, role="matrix")
        bias = parameter(self, "forget_bias", nn.initializers.zeros, (size,))

        dtype = at_least_float32(x)
        inputs = project(x, matrix, None, compute_dtype=self.compute_dtype).astype(dtype)
        logits = project(x, forget, bias, compute_dtype=self.compute_dtype).astype(dtype)

        kept = nn.sigmoid(logits)
        gate = nn.sigmoid(-logits)  # 1 - f_t, without cancellation
        return kept, gate, inputs * gate

    @nn.nowrap
    def _check_rules(self, keys: Keys, memory: Any, cache: Any) -> None:
        check_recurrence(
            "SSRU",
            keys,
            memory,
            cache=cache,
            state=RecurrentCache,
            rules={"causal", "segments"},
            reason="which a recurrence lacks",
        )
        if not keys.causal and keys.slots is None:
            raise UserError("SSRU: expected causal keys, since a recurrence sees no later tokens")
        if keys.queries.segments is None and keys.keys.segments is not None:
            raise UserError("SSRU: expected segments of the keys to be segments of the queries")

    def init_cache(
        self,
        slots: Slots,
        d_model: int,
        dtype: str,
    ) -> RecurrentCache:
        """Returns the state before the first token, at least float32."""
        beams = slots.beam_slots.shape[1]
        rows = slots.beam_slots[:, 0, 0]
        wide = jnp.promote_types(dtype, jnp.float32)
        return RecurrentCache(zeros_for_rows(rows, (beams, d_model), wide))


def _scan(
    kept: Float[Array, "B T D"],
    new: Float[Array, "B T D"],
) -> Float[Array, "B T D"]:
    """Returns c_t = kept_t c_(t-1) + new_t for all t."""

    def join(
        first: tuple[Array, Array],
        second: tuple[Array, Array],
    ) -> tuple[Array, Array]:
        """Composes two steps, c -> kept c + new."""
        first_kept, first_new = first
        second_kept, second_new = second
        return first_kept * second_kept, first_new * second_kept + second_new

    _, states = jax.lax.associative_scan(join, (kept, new), axis=1)
    return states


def _weights(
    kept: Float[Array, "B T D"],
    gate: Float[Array, "B T D"],
) -> Float[Array, "B 1 T T"]:
    """Returns the weight of token s in the state of token t, averaged over the features."""
    length = kept.shape[1]

    def of_token(token: Int[Array, ""]) -> Float[Array, "B T"]:
        is_token = (jnp.arange(length) == token)[None, :, None]
        states = _scan(kept, jnp.where(is_token, gate, 0.0))  # [B, T, D]
        return states.mean(axis=2)

    by_token = jax.lax.map(of_token, jnp.arange(length))  # [S, B, T]
    return by_token.transpose(1, 2, 0)[:, None]
