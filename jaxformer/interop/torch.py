"""Converts ``torch.nn.Transformer`` weights to our encoder and decoder (section 3.1)."""

import functools
import re
from collections.abc import Mapping

import numpy as np

from jaxformer.errors import UserError
from jaxformer.interop.named_arrays import NamedArrays, Params, split_heads, stack


def from_torch_transformer(state: Mapping[str, np.ndarray], *, num_heads: int) -> Params:
    """Converts a ``torch.nn.Transformer`` to parameters of our encoder and decoder stacks.

    >>> state = {k: v.numpy() for k, v in model.state_dict().items()}  # doctest: +SKIP
    >>> params = from_torch_transformer(state, num_heads=8)  # doctest: +SKIP
    >>> encoder = make_stack(config.stack_settings())  # doctest: +SKIP
    >>> memory = encoder.apply({"params": params["encoder"]}, x, None, mask)  # doctest: +SKIP

    The config needs ``biases=True`` and ``norm_epsilon=1e-5``, ``norm_position="pre"`` for
    ``norm_first=True``, and ``activation="swish"`` for ``torch.nn.functional.silu``; see
    :func:`~jaxformer.models.assembly.make_stack`.

    Unlike the paper, PyTorch ends both stacks with a layer norm even if layers are post-norm. Our
    post-norm stacks ignore its parameters; the caller applies ``LayerNorm(1e-5)`` with
    ``params["encoder"]["norm"]`` and ``params["decoder"]["norm"]``.

    Args:
      state: Arrays of the state dictionary, by name. ``torch.nn.Transformer`` has no embeddings.
      num_heads: The model's ``nhead``, which the shapes do not determine.

    Returns:
      {"encoder": {"layers": ..., "norm": ...}, "decoder": {"layers": ..., "norm": ...}}, float32
      numpy arrays.

    Raises:
      UserError: An array is missing, of another shape, or unknown.
    """
    state = {name: np.asarray(array) for name, array in state.items()}
    d_ff, d_model = _inner_shape(state)
    is_positive = isinstance(num_heads, int) and num_heads > 0
    if not is_positive or d_model % num_heads:
        raise UserError(f"num_heads must divide the width of the model, {d_model}: got {num_heads}")

    arrays = NamedArrays(
        arrays=state,
        sizes={
            "D": d_model,
            "P": d_model,
            "Q": 3 * d_model,
            "F": d_ff,
        },
        orders={},
        place="torch.nn.Transformer",
    )

    params = {}
    for side in ("encoder", "decoder"):
        layer = functools.partial(_layer, arrays, side, num_heads)
        num_layers = _num_layers(state, side)
        params[side] = {
            "layers": stack(layer, num_layers),
            "norm": arrays.norm(f"{side}.norm"),
        }

    arrays.check_all_read()
    return params


def _inner_shape(state: Mapping[str, np.ndarray]) -> tuple[int, ...]:
    """Returns the shape of a matrix whose sizes are the inner size and the model's width."""
    name = "encoder.layers.0.linear1.weight"
    has_matrix = name in state and state[name].ndim == 2
    if not has_matrix:
        first_names = sorted(state)[:3]
        given = ", ".join(first_names) or "nothing"
        raise UserError(
            f"expected the state dictionary of a torch.nn.Transformer, with a matrix {name}: got "
            f"{given}, ..."
        )
    return state[name].shape


def _num_layers(state: Mapping[str, np.ndarray], which: str) -> int:
    last = 0
    for name in state:
        found = re.match(rf"{which}\.layers\.(\d+)\.", name)
        if found:
            number = int(found[1])
            last = max(last, number)
    return 1 + last


def _layer(arrays: NamedArrays, side: str, num_heads: int, number: int) -> Params:
    name = f"{side}.layers.{number}"
    params = {"self_attention": _attention(arrays, f"{name}.self_attn", num_heads)}
    if side == "decoder":
        params["cross_attention"] = _attention(arrays, f"{name}.multihead_attn", num_heads)

    inner = arrays.linear(f"{name}.linear1", "FD", "inner")
    outer = arrays.linear(f"{name}.linear2", "DF", "outer")
    params["feed_forward"] = inner | outer

    # PyTorch numbers the norms of the sublayers in their order.
    norms = {}
    for norm_number, sublayer in enumerate(params, start=1):
        norm = arrays.norm(f"{name}.norm{norm_number}")
        norms[f"{sublayer}_residual"] = {"norm": norm}
    return params | norms


def _attention(arrays: NamedArrays, name: str, num_heads: int) -> Params:
    """Converts attention, splitting PyTorch's fused projection of queries, keys and values."""
    params = arrays.linear(f"{name}.out_proj", "DP", "output")

    fused_kernel = arrays.array(f"{name}.in_proj_weight", "QD").T  # [D, 3 * H * K]
    fused_bias = arrays.array(f"{name}.in_proj_bias", "Q")  # [3 * H * K]
    kernels = np.split(fused_kernel, 3, axis=1)
    biases = np.split(fused_bias, 3)
    for ours, kernel, bias in zip(("query", "key", "value"), kernels, biases, strict=True):
        linear = {ours: kernel, f"{ours}_bias": bias}
        params |= split_heads(linear, num_heads)
    return params
