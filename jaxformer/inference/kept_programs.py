"""Compiled programs of searches, kept on disk: a new process need not trace them again.

JAX's cache of compiled programs is looked up after tracing and lowering, which take most of the
time of a first translation. These programs are in the folder of that cache, too, and are only as
trustworthy: reading one runs its code.
"""

import contextlib
import functools
import hashlib
import os
import pathlib
import platform
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import flax
import jax
import jax.numpy as jnp
import jaxlib.version
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache
from jaxtyping import Array

from jaxformer.errors import UserError
from jaxformer.files import write_file
from jaxformer.nn.backend import backend, cpu_features
from jaxformer.nn.constants import holds_constants
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
    the arrays of JAX are not all on one device. Others are traced as ``jax.jit`` does.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        static_argnums: tuple[int, ...] = (),
        donate_argnums: tuple[int, ...] = (),
    ) -> None:
        """Takes a function of pytrees and, at ``static_argnums``, of hashable values.

        The arrays of the arguments at ``donate_argnums`` are deleted, and their memory is reused.
        """
        self.function = function
        self.static_argnums = static_argnums
        self.donate_argnums = donate_argnums
        self._name = (function.__module__, function.__name__)
        self._lock = threading.RLock()
        self._programs: dict[Hashable, Callable[..., list[Array]]] = {}
        self._structures: dict[Hashable, Any] = {}
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any) -> list[Array]:
        """Returns the leaves of the function's result."""
        assert not holds_constants(args), "programs of constant matrices belong to them"
        if jax.config.values["jax_disable_jit"]:  # for debugging: there is no program
            function, leaves, _ = self._describe(args)
            return function(*map(jnp.asarray, leaves))
        return self._run(self._programs, args)

    def call_bound(
        self,
        programs: dict[Hashable, Callable[..., list[Array]]],
        *args: Any,
    ) -> list[Array]:
        """Works as a call, with programs that belong to constant matrices in the arguments.

        Programs in the dictionary are called with these matrices only, as long as they live.
        """
        return self._run(programs, args)

    def _run(
        self,
        programs: dict[Hashable, Callable[..., list[Array]]],
        args: tuple[Any, ...],
    ) -> list[Array]:
        function, leaves, arguments_key = self._describe(args)
        devices = _devices(leaves)
        key = (self._name, (arguments_key, devices))
        with self._lock:  # so that one of several threads traces and compiles it
            if key not in programs:
                path = None
                if len(devices) == 1:
                    path = kept_file(key)
                jitted = jax.jit(function, donate_argnums=self._donated_leaves(args))
                programs[key] = _open(jitted, leaves, path)
                # The first call is in the lock, too, since jax.jit compiles in it.
                return programs[key](*leaves)
        return programs[key](*leaves)

    def structure(self, *args: Any) -> Any:
        """Returns the structure of the function's result, without computing it."""
        function, leaves, key = self._describe(args)
        if key not in self._structures:
            # When the function of ``_describe`` is traced, it notes the structure.
            jax.eval_shape(function, *leaves)
        return self._structures[key]

    def _donated_leaves(self, args: tuple[Any, ...]) -> list[int]:
        """Returns the numbers of the dynamic leaves that are donated."""
        donated = []
        first = 0
        for i, arg in enumerate(args):
            if i in self.static_argnums:
                continue
            end = first + len(jax.tree.leaves(arg))
            if i in self.donate_argnums:
                donated += range(first, end)
            first = end
        return donated

    def _describe(self, args: tuple[Any, ...]) -> tuple[Callable[..., list[Array]], list, Hashable]:
        """Returns a function of the dynamic leaves, these leaves, and the key of its program."""
        static = tuple(args[i] for i in self.static_argnums)
        dynamic_argnums = [i for i in range(len(args)) if i not in self.static_argnums]
        dynamic = [args[i] for i in dynamic_argnums]
        leaves, structure = jax.tree.flatten(dynamic)

        # The key has everything that changes the program.
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        settings = tuple(getattr(jax.config, name) for name in _SETTINGS)
        key = (
            static,
            structure,
            shapes,
            settings,
            backend(),
        )

        def call(*leaves: Array) -> list[Array]:
            given = list(args)
            dynamic = jax.tree.unflatten(structure, leaves)
            for i, arg in zip(dynamic_argnums, dynamic, strict=True):
                given[i] = arg

            results, result_structure = jax.tree.flatten(self.function(*given))
            self._structures[key] = result_structure
            return results

        return call, leaves, key


def is_distributed(leaves: Iterable[Any]) -> bool:
    """Returns whether arrays of JAX are on several devices."""
    return len(_devices(leaves)) > 1


def _devices(leaves: Iterable[Any]) -> frozenset[Any]:
    devices = set()
    for leaf in leaves:
        if isinstance(leaf, jax.Array):
            devices |= leaf.sharding.device_set
    return frozenset(devices)


def _open(
    jitted: Any,
    leaves: list[Any],
    path: pathlib.Path | None,
) -> Callable[..., list[Array]]:
    """Returns the compiled function; with a path, the program there, which is added if needed."""
    if path is None:
        return jitted

    kept = _read(path, leaves)
    if kept is not None:
        return kept

    lowered = jitted.lower(*leaves)
    with _without_jax_cache():
        program = lowered.compile()
    # A callback is a pointer into this process.
    if "callback" in lowered.as_text():
        return program

    content, _, results = serialize_executable.serialize(program)
    num_results = results.num_leaves.to_bytes(4, "little")
    write_kept(path, num_results + content)
    return program


@contextlib.contextmanager
def _without_jax_cache() -> Iterator[None]:
    """Makes JAX compile, since it cannot write a program again that its cache has read."""
    enabled = jax.config.values["jax_enable_compilation_cache"]
    try:
        jax.config.update("jax_enable_compilation_cache", False)
        compilation_cache.reset_cache()
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", enabled)
        compilation_cache.reset_cache()


def kept_folder() -> pathlib.Path | None:
    """Returns the folder of the programs; None on accelerators, or without a cache of JAX."""
    folder = jax.config.values["jax_compilation_cache_dir"]
    is_local = bool(folder) and "://" not in folder
    if not is_local:
        return None
    if not backend().keeps_programs:
        return None
    return pathlib.Path(folder, "kept")


def _read(path: pathlib.Path, leaves: list[Any]) -> Callable[..., list[Array]] | None:
    """Returns the program in a file, or None if there is none."""
    content = read_kept(path)
    if content is None:
        return None

    num_results = int.from_bytes(content[:4], "little")
    program = content[4:]
    no_keywords = {}
    arguments = jax.tree.structure((tuple(leaves), no_keywords))
    results = jax.tree.structure([0] * num_results)
    return serialize_executable.deserialize_and_load(
        program,
        arguments,
        results,
        execution_devices=[*_devices(leaves)],
    )


def kept_file(key: Hashable) -> pathlib.Path | None:
    """Returns the file of a key, such as a config, or None if there is nothing to keep."""
    folder = kept_folder()
    if folder is None:
        return None

    # The representation of a function has its address, which another process does not share.
    text = repr(key)
    if " at 0x" in text:
        return None
    digest = hashlib.sha256(text.encode())
    return folder / digest.hexdigest()


def read_kept(path: pathlib.Path) -> bytes | None:
    """Returns what a file keeps, or None if there is none, of these versions and undamaged."""
    try:
        file_content = path.read_bytes()
    except OSError:
        return None

    digest = file_content[:_DIGEST_SIZE]
    content = file_content[_DIGEST_SIZE:]
    if digest != _digest(content):
        return None
    return content


def write_kept(path: pathlib.Path, content: bytes) -> None:
    """Writes what :func:`read_kept` reads, if the folder can be written."""
    with contextlib.suppress(OSError, UserError):
        write_file(path, _digest(content) + content)


def _digest(content: bytes) -> bytes:
    """Returns the SHA-256 of content and of all that it was made with, the processor too."""
    versions = (
        jax.__version__,
        jaxlib.version.__version__,
        flax.__version__,
        code_digest(),
    )
    processor = sorted(cpu_features())
    if not processor:
        processor = platform.uname()
    made_with = (versions, os.environ.get("XLA_FLAGS"), processor)

    digest = hashlib.sha256(repr(made_with).encode())
    digest.update(content)
    return digest.digest()
