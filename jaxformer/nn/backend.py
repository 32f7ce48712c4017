"""Decisions that depend on the hardware, in one place: they change speed, never results.

Layers ask :func:`backend`; nothing else looks at the platform. ``print(backend())`` shows what was
decided, and :func:`use_backend` overrides it, for instance while exporting for another platform.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax


@dataclasses.dataclass(frozen=True)
class Backend:
    """Decisions on how programs are compiled for a kind of hardware.

    Attributes:
      float32_activations: Keep activations in float32 where matmuls take bfloat16. CPUs need
        longer to convert them than to read twice as much.
      unroll_layers: Compile every layer of a stack by itself. It takes longer than stacking what
        the backward pass needs (on TPUs, not measured).
      logits_per_chunk: Logits that the loss holds at a time: enough rows to fill the matrix units,
        few enough to stay near the caches. GPUs take more, because every chunk reads and writes
        the embedding's gradient, which fits into no cache there.
      fused_attention: Use cuDNN's attention where it applies (NVIDIA GPUs from Ampere on).
      compiler_options: Options of XLA for the training step, by name. GPUs would multiply one input
        with queries, keys and values at once, and then copy them apart.
    """

    float32_activations: bool = False
    unroll_layers: bool = False
    logits_per_chunk: int = 2**23
    fused_attention: bool = False
    compiler_options: tuple[tuple[str, Any], ...] = ()


def backend_for(platform: str, compute_capability: str = "") -> Backend:
    """Returns the decisions for "cpu", "gpu" or "tpu".

    Args:
      platform: As ``jax.default_backend()`` names it.
      compute_capability: Of an NVIDIA GPU, "9.0" for instance; other GPUs have other words.
    """
    if platform == "cpu":
        return Backend(float32_activations=True, unroll_layers=True)
    if platform == "gpu":
        is_nvidia = compute_capability.split(".")[0].isdigit()
        fused = is_nvidia and float(compute_capability) >= 8.0
        return Backend(
            unroll_layers=True,
            logits_per_chunk=2**27,
            fused_attention=fused,
            compiler_options=(("xla_gpu_dot_merger_threshold_mb", 0),),
        )
    return Backend()


_override: contextvars.ContextVar[Backend | None] = contextvars.ContextVar("backend", default=None)


def backend() -> Backend:
    """Returns the decisions in force: an override, or those for jax's default device."""
    chosen = _override.get()
    if chosen is not None:
        return chosen
    capability = getattr(jax.devices()[0], "compute_capability", "")
    return backend_for(jax.default_backend(), capability)


@contextlib.contextmanager
def use_backend(chosen: Backend) -> Iterator[None]:
    """Overrides the decisions for functions that are traced within.

    A function that ``jax.jit`` has compiled before keeps the earlier ones.

    >>> with use_backend(backend_for("tpu")):
    ...     backend().unroll_layers
    False
    """
    token = _override.set(chosen)
    try:
        yield
    finally:
        _override.reset(token)
