"""What the axes of parameters and activations are called, for laying them out over devices.

The model knows names, not devices. Rules, as those of :mod:`jaxformer.training.mesh`, say which
name lies along which axis of a mesh.
"""

import jax
from flax.core.spmd import get_logical_axis_rules
from flax.linen.spmd import logical_to_mesh_axes
from jaxtyping import Array, Float, PyTree

_EMBEDDING = ("vocab", "d_model")
_HEADS = ("d_model", "heads", None)

# Axes of every parameter that is worth splitting, without the layer axis; others are small vectors.
_AXES = {
    "embedding": _EMBEDDING,
    "src_embedding": _EMBEDDING,
    "tgt_embedding": _EMBEDDING,
    "output_embedding": _EMBEDDING,
    "query": _HEADS,
    "key": _HEADS,
    "value": _HEADS,
    "output": ("heads", "d_model"),
    "inner": ("d_model", "d_ff"),
    "outer": ("d_ff", "d_model"),
}


def axis_names(tree: PyTree) -> PyTree:
    """The names of every array's axes: "vocab", "d_model", "heads", "d_ff", or None.

    Args:
      tree: Parameters, or anything that holds trees of the same names, such as Adam's moments.

    Returns:
      The tree with a tuple in the place of each array.

    >>> axis_names({"encoder": {"inner": jax.ShapeDtypeStruct((6, 512, 2048), "float32")}})
    {'encoder': {'inner': (None, 'd_model', 'd_ff')}}
    """

    def name(path: tuple, leaf: jax.Array | jax.ShapeDtypeStruct) -> tuple[str | None, ...]:
        names = _AXES.get(getattr(path[-1], "key", ""), ()) if path else ()
        return (None,) * (leaf.ndim - len(names)) + names

    return jax.tree_util.tree_map_with_path(name, tree)


def keep_rows_apart(x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """Pins activations to the layout of the name "batch", if there are rules that have one.

    Where parameters are split too, the compiler must be told that it is parameters which have to
    be gathered, not activations.
    """
    return _pin(x, ("batch", None, None))


def whole(table: Float[Array, "V D"]) -> Float[Array, "V D"]:
    """Pins a table to be whole on every device while rows are looked up, if there are rules.

    The compiler of jax 0.10 crashes on looking up rows of one that is split.
    """
    return _pin(table, (None, None))


def _pin(x: Array, names: tuple[str | None, ...]) -> Array:
    if not get_logical_axis_rules():
        return x
    spec = logical_to_mesh_axes(names)
    assert spec is not None, "there are rules"
    return jax.lax.with_sharding_constraint(x, spec)
