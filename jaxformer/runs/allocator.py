"""The C library's allocator, which by default returns large arrays to the system at once."""

import ctypes
import importlib.metadata
import importlib.util
import os
import sys

# Options of mallopt(3): large arrays are in arenas, too, which keep freed memory at their end.
_OPTIONS = {
    "M_MMAP_MAX": (-4, 0),
    "M_TRIM_THRESHOLD": (-1, 2**31 - 1),
}
# Training is fastest with one arena that all threads share, and decoding with several that grow by
# 64 MiB, their maximum, and are then kept (docs/log/2026.md, 2026-11-27).
_TRAINING = {"M_ARENA_MAX": (-8, 1)}
_DECODING = {"M_TOP_PAD": (-2, 2**26)}


def keep_freed_memory(*, training: bool) -> bool:
    """Makes the process reuse freed memory; returns whether it does.

    Otherwise every step of training and every batch of sentences maps its arrays again: page faults
    take a fifth of the step of a small model on a CPU, and a quarter of the greedy search of a base
    model. It has its full effect only before JAX starts its threads. Nothing changes with an
    accelerator, without glibc, or if the user has chosen settings of malloc.
    """
    prefixes = ("MALLOC_", "GLIBC_TUNABLES")
    is_chosen = any(name.startswith(prefixes) for name in os.environ)
    is_linux = sys.platform.startswith("linux")
    if is_chosen or not is_linux or not _is_on_cpu():
        return False

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    chosen = _TRAINING if training else _DECODING
    options = _OPTIONS | chosen
    return all(mallopt(option, value) for option, value in options.values())


def _is_on_cpu() -> bool:
    """Returns whether JAX will use the CPU, without importing it."""
    if "JAX_PLATFORMS" in os.environ:
        return os.environ["JAX_PLATFORMS"] == "cpu"

    # Plugins are of accelerators.
    has_tpu = importlib.util.find_spec("libtpu") is not None
    has_plugin = bool(importlib.metadata.entry_points(group="jax_plugins"))
    return not has_tpu and not has_plugin
