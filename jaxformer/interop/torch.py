"""Converts ``torch.nn.Transformer`` weights to our encoder and decoder (section 3.1)."""

import functools
import re
from collections.abc import Mapping

import numpy as np

from jaxformer.errors import UserError
from jaxformer.interop.arrays import NamedArrays, Params, split_heads, stack


def from_torch_transformer(state: Mapping[str, np.ndarray], *, num_heads: int) -> Params:
    """Converts a ``torch.nn.Transformer`` to parameters of our encoder and decoder stacks.

    >>> state = {k: v.numpy() for k, v in model.state_dict().items()}  # doctest: +SKIP
    >>> params = from_torch_transformer(state, num_heads=8)  # doctest: +SKIP
    >>> encoder = make_stack(config, cross_attention=False)  # doctest: +SKIP
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
    name = "encoder.layers.0.linear1.weight"
    if name not in state or state[name].ndim != 2:
        raise UserError(
            f"expected the state dictionary of a torch.nn.Transformer, with a matrix {name}: got "
            f"{', '.join(sorted(state)[:3]) or 'nothing'}, ..."
        )
    d_ff, d_model = state[name].shape
    if not isinstance(num_heads, int) or num_heads < 1 or d_model % num_heads:
        raise UserError(f"num_heads must divide the width of the model, {d_model}: got {num_heads}")
    arrays = NamedArrays(
        arrays=state,
        sizes={"D": d_model, "P": d_model, "Q": 3 * d_model, "F": d_ff},
        orders={},
        place="torch.nn.Transformer",
    )
    params = {}
    for side in ("encoder", "decoder"):
        layer = functools.partial(_layer, arrays, side, num_heads)
        layers = stack(layer, _num_layers(state, side))
        params[side] = {"layers": layers, "norm": arrays.norm(f"{side}.norm")}
    arrays.check_all_read()
    return params


def _num_layers(state: Mapping[str, np.ndarray], which: str) -> int:
    numbers = [re.match(rf"{which}\.layers\.(\d+)\.", name) for name in state]
    return 1 + max((int(found[1]) for found in numbers if found), default=0)


def _layer(arrays: NamedArrays, side: str, num_heads: int, number: int) -> Params:
    name = f"{side}.layers.{number}"
    params = {"self_attention": _attention(arrays, f"{name}.self_attn", num_heads)}
    if side == "decoder":
        params["cross_attention"] = _attention(arrays, f"{name}.multihead_attn", num_heads)
    inner = arrays.linear(f"{name}.linear1", "FD", "inner")
    params["feed_forward"] = inner | arrays.linear(f"{name}.linear2", "DF", "outer")
    norms = {
        f"{sublayer}_residual": {"norm": arrays.norm(f"{name}.norm{n}")}
        for n, sublayer in enumerate(params, 1)
    }
    return params | norms


def _attention(arrays: NamedArrays, name: str, num_heads: int) -> Params:
    """Converts attention, splitting PyTorch's fused projection of queries, keys and values."""
    params = arrays.linear(f"{name}.out_proj", "DP", "output")
    kernels = np.split(arrays.array(f"{name}.in_proj_weight", "QD").T, 3, axis=1)
    biases = np.split(arrays.array(f"{name}.in_proj_bias", "Q"), 3)
    for ours, kernel, bias in zip(("query", "key", "value"), kernels, biases, strict=True):
        params |= split_heads({ours: kernel, f"{ours}_bias": bias}, num_heads)
    return params
