"""The arrays of a model's parameters: their shapes and dtypes, casting, names and hash."""

import functools
import hashlib
import json
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxformer.inference import kept_programs
from jaxformer.kinds.kind import Kind
from jaxformer.kinds.model_parameters import describe_model
from jaxformer.kinds.translation import TRANSLATION
from jaxformer.layout import global_mesh
from jaxformer.models.architecture import Architecture
from jaxformer.nn.parameters import ParameterInfo
from jaxformer.nn.precision import Int8Matrix, cast_params


def abstract_params(config: Architecture, kind: Kind = TRANSLATION) -> PyTree:
    """Returns shapes and dtypes of the parameters in a workdir, without computing them."""
    array: Any = jax.ShapeDtypeStruct

    def abstract(info: ParameterInfo) -> Any:
        if config.compute_dtype != "int8" or info.summed_axis is None:
            return array(info.shape, jnp.float32)

        scale_shape = list(info.shape)
        scale_shape[info.summed_axis] = 1
        return Int8Matrix(
            array(info.shape, jnp.int8),
            array(tuple(scale_shape), jnp.float32),
        )

    def is_info(node: Any) -> bool:
        return isinstance(node, ParameterInfo)

    infos = _describe(config, kind)
    return jax.tree.map(abstract, infos, is_leaf=is_info)


@functools.lru_cache
def _describe(config: Architecture, kind: Kind) -> PyTree:
    """Returns what :func:`~jaxformer.kinds.model_parameters.describe_model` does, kept on disk."""
    path = kept_programs.kept_file((config, kind.description))
    if path is None:
        return describe_model(config, kind)

    content = kept_programs.read_kept(path)
    if content is not None:
        infos = {}
        for name, axes, role, shape in json.loads(content):
            infos[name] = ParameterInfo(tuple(axes), role, tuple(shape))
        return flax.traverse_util.unflatten_dict(infos, sep=".")

    described = describe_model(config, kind)
    flat: Any = flax.traverse_util.flatten_dict(described, sep=".")
    rows = [(name, *info) for name, info in flat.items()]
    kept_programs.write_kept(path, json.dumps(rows).encode())
    return described


def prepare_params(config: Architecture, params: PyTree, kind: Kind = TRANSLATION) -> PyTree:
    """Casts or quantizes parameters; see :func:`~jaxformer.nn.precision.cast_params`."""
    leaves = jax.tree.leaves(params)
    is_quantized = any(leaf.dtype == jnp.int8 for leaf in leaves)
    if is_quantized:  # saves a program at start
        return jax.tree.map(jnp.asarray, params)
    return _cast(config, params, kind)


@global_mesh(None)
@functools.partial(jax.jit, static_argnums=(0, 2))
def _cast(config: Architecture, params: PyTree, kind: Kind) -> PyTree:
    infos = _describe(config, kind)
    return cast_params(params, infos, config.compute_dtype)


def params_sha256(params: PyTree) -> str:
    """Returns the SHA-256 of the names, shapes and float32 bytes of the sorted parameters."""
    digest = hashlib.sha256()
    for name, array in sorted(named_arrays(params).items()):
        digest.update(f"{name}{list(array.shape)}".encode())
        digest.update(array.astype("<f4").tobytes())
    return digest.hexdigest()


def named_arrays(params: PyTree) -> dict[str, np.ndarray]:
    """Returns the parameters by name: their path in the tree, joined by dots."""
    flat: Any = flax.traverse_util.flatten_dict(jax.device_get(params), sep=".")
    return flat
