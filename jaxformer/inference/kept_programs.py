"""Traced programs of searches, kept on disk: a new process need not trace and lower them again.

XLA's cache of compiled programs is looked up after tracing and lowering, which take most of the
time of a first translation. Programs are kept in the folder of that cache as StableHLO, written and
read by ``jax.export``. Reading one runs no code.
"""

import contextlib
import functools
import hashlib
import pathlib
import threading
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import flax
import jax
import numpy as np
from jax import export
from jaxtyping import Array

from jaxformer.errors import UserError
from jaxformer.files import write_file
from jaxformer.nn.backend import backend
from jaxformer.runs.workdir import code_digest

# Settings of JAX that change what is traced.
_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_disable_jit",
    "jax_numpy_dtype_promotion",
    "jax_threefry_partitionable",
)
_DIGEST_SIZE = hashlib.sha256().digest_size


class KeptProgram:
    """A compiled function that returns the leaves of its result, and keeps its programs on disk.

    Programs on CPUs are kept, unless a static argument holds a function, such as a constraint, or
    arrays are distributed over devices. All others are traced as ``jax.jit`` does.
    """

    def __init__(self, function: Callable[..., Any], static_argnums: tuple[int, ...] = ()) -> None:
        """Takes a function of pytrees and, at ``static_argnums``, of hashable values."""
        self.function, self.static_argnums = function, static_argnums
        self._lock = threading.RLock()
        self._programs: dict[Hashable, Callable[..., list[Array]]] = {}
        self._structures: dict[Hashable, Any] = {}
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any) -> list[Array]:
        """Returns the leaves of the function's result."""
        function, leaves, key = self._describe(args)
        key = key, is_distributed(leaves)
        with self._lock:  # so that one of several threads traces and compiles it
            if key not in self._programs:
                path = None if key[1] else self._path(key[0])
                self._programs[key] = _open(function, leaves, path)
                return self._programs[key](*leaves)
        return self._programs[key](*leaves)

    def structure(self, *args: Any) -> Any:
        """Returns the structure of the function's result, without computing it."""
        function, leaves, key = self._describe(args)
        if key not in self._structures:
            jax.eval_shape(function, *leaves)
        return self._structures[key]

    def _describe(self, args: tuple[Any, ...]) -> tuple[Callable[..., list[Array]], list, Hashable]:
        """Returns a function of the dynamic leaves, these leaves, and the key of its program."""
        static = tuple(args[i] for i in self.static_argnums)
        dynamic = [arg for i, arg in enumerate(args) if i not in self.static_argnums]
        leaves, structure = jax.tree.flatten(dynamic)
        shapes = tuple((np.shape(leaf), str(leaf.dtype)) for leaf in leaves)
        settings = tuple(getattr(jax.config, name) for name in _SETTINGS)
        key = static, structure, shapes, settings, backend()

        def call(*leaves: Array) -> list[Array]:
            dynamic = iter(jax.tree.unflatten(structure, leaves))
            given = [a if i in self.static_argnums else next(dynamic) for i, a in enumerate(args)]
            found, self._structures[key] = jax.tree.flatten(self.function(*given))
            return found

        return call, leaves, key

    def _path(self, key: Hashable) -> pathlib.Path | None:
        """Returns the file of a program, or None if it is not to be kept."""
        folder, text = kept_folder(), repr((self.function.__module__, self.function.__name__, key))
        # The representation of a function has its address, which another process does not share.
        if folder is None or " at 0x" in text:
            return None
        return folder / hashlib.sha256(text.encode()).hexdigest()


def is_distributed(leaves: Iterable[Any]) -> bool:
    """Returns whether one of the arrays is on several devices."""
    arrays = (leaf for leaf in leaves if isinstance(leaf, jax.Array))
    return any(len(array.sharding.device_set) > 1 for array in arrays)


def _open(
    function: Callable[..., list[Array]], leaves: list[Any], path: pathlib.Path | None
) -> Callable[..., list[Array]]:
    """Returns the jitted function; with a path, by the program there, which is added if needed."""
    traced = jax.jit(function)
    if path is None:
        return traced
    program = _read(path)
    if program is None:
        try:
            program = export.export(traced)(*leaves)
            content = bytes(program.serialize())
        except (NotImplementedError, ValueError):  # such as a custom call without guarantees
            return traced
        # A folder that cannot be written costs time, and nothing else.
        with contextlib.suppress(OSError, UserError):
            write_file(path, _digest(content) + content)
    return jax.jit(program.call)


def kept_folder() -> pathlib.Path | None:
    """Returns the folder of the programs; None on accelerators, or without a cache of JAX."""
    folder = jax.config.values["jax_compilation_cache_dir"]
    if not folder or "://" in folder or jax.default_backend() != "cpu":
        return None
    return pathlib.Path(folder, "traced")


def _read(path: pathlib.Path) -> export.Exported | None:
    """Reads a program; None if there is none, of this version and undamaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, content = content[:_DIGEST_SIZE], content[_DIGEST_SIZE:]
    return export.deserialize(bytearray(content)) if digest == _digest(content) else None


def _digest(content: bytes) -> bytes:
    """Returns the SHA-256 of a program and of all code that it was traced with."""
    versions = (jax.__version__, flax.__version__, code_digest())
    return hashlib.sha256(repr(versions).encode() + content).digest()
