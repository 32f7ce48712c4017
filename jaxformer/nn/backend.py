"""Settings that depend on the hardware. They affect speed, never results.

Layers and searches call :func:`backend`; no other code depends on the platform.
``print(backend())`` shows the settings. :func:`use_backend` overrides them, for instance to export
for another platform.
"""

import contextlib
import contextvars
import dataclasses
import functools
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import jax
import jaxlib.version

# Older versions of XLA do not know the mark of constant matrices.
_PACKS = jaxlib.version.__version_info__ >= (0, 10, 1)


@dataclasses.dataclass(frozen=True)
class Backend:
    """Settings of compilation and decoding for a kind of hardware.

    Attributes:
      float32_activations: Keep activations in float32 where matmuls take bfloat16. On CPUs the
        conversions take longer than reading twice as many bytes.
      unroll_layers: Compile each layer of a stack separately. This takes longer to compile, but
        avoids stacking the residuals of the backward pass. Not measured on TPUs.
      logits_per_chunk: Logits that the loss computes at a time, for at least d_model rows: few
        enough to fit in the caches. GPUs take more, because each chunk reads and writes the
        gradient of the embedding, which exceeds their caches.
      scores_per_chunk: Scores of a head, queries times keys, beyond which attention computes them
        for a few queries at a time, an eighth of this number.
      fused_attention: Use cuDNN's attention where it applies (NVIDIA GPUs from Ampere on).
      unsigned_int8: Decode in int8 with unsigned inputs, for AVX-512 VNNI without AMX.
      compiler_options: XLA options for the training step, by name. On GPUs XLA would merge the
        projections to queries, keys and values into one matmul, and then copy the results apart.
      decoding_threads: Batches of sentences that are decoded at the same time. On CPUs, much of a
        step keeps only one core busy (docs/log/2026.md, 2026-11-27).
      max_hypotheses: Most hypotheses of a batch. On CPUs they are few enough for the caches;
        elsewhere eight of 64 sentences limit the memory of wide beams.
      shortest_source: Fewest tokens that the sources of a batch are padded to.
      second_stage_divisor: Sentences of a batch for each one of its second stage. On CPUs, malloc
        can keep the arrays of so few sentences (docs/log/2026.md, 2026-11-28).
      ends_first_stage: End the first stage of a batch as soon as the unfinished sentences fit in
        one second stage. On accelerators, smaller batches are not faster.
      keeps_programs: Keep programs of searches on disk.
      packed_int8: Most hypotheses of a batch for which programs keep int8 matrices packed. Larger
        batches gain little (docs/log/2026.md, 2026-11-28).
      packed_bfloat16: The same for bfloat16 matrices.
    """

    float32_activations: bool = False
    unroll_layers: bool = False
    logits_per_chunk: int = 2**21
    scores_per_chunk: int = 2**22
    fused_attention: bool = False
    unsigned_int8: bool = False
    compiler_options: tuple[tuple[str, Any], ...] = ()
    decoding_threads: int = 1
    max_hypotheses: int = 512
    shortest_source: int = 16
    second_stage_divisor: int = 4
    ends_first_stage: bool = False
    keeps_programs: bool = False
    packed_int8: int = 0
    packed_bfloat16: int = 0


def backend_for(platform: str, compute_capability: str = "") -> Backend:
    """Returns the settings for "cpu", "gpu" or "tpu", as ``jax.default_backend()`` names them.

    The compute capability is a number for NVIDIA GPUs only, such as "9.0".
    """
    if platform == "cpu":
        int8_features = cpu_features() & {"avx512_vnni", "amx_int8"}
        return Backend(
            float32_activations=True,
            unroll_layers=True,
            unsigned_int8=int8_features == {"avx512_vnni"},
            decoding_threads=3,
            max_hypotheses=192,
            shortest_source=12,
            second_stage_divisor=8,
            ends_first_stage=True,
            keeps_programs=True,
            packed_int8=32 if _PACKS else 0,
            packed_bfloat16=8 if _PACKS else 0,
        )

    if platform == "gpu":
        is_nvidia = compute_capability.split(".")[0].isdigit()
        has_cudnn_attention = is_nvidia and float(compute_capability) >= 8.0  # from Ampere on
        return Backend(
            unroll_layers=True,
            logits_per_chunk=2**27,
            fused_attention=has_cudnn_attention,
            compiler_options=(("xla_gpu_dot_merger_threshold_mb", 0),),
        )

    return Backend()


# Instruction sets with matmuls in a compute dtype: AVX-512 and AMX on x86, others on Arm.
_INSTRUCTIONS = {
    "bfloat16": {"avx512_bf16", "amx_bf16", "bf16"},
    "float16": {"avx512_fp16", "amx_fp16", "fphp", "asimdhp"},
}


@functools.cache
def cpu_features(cpu_info: pathlib.Path = pathlib.Path("/proc/cpuinfo")) -> frozenset[str]:
    """Returns the instruction sets of the CPU, by Linux's list ``cpu_info``; none without it."""
    if not os.access(cpu_info, os.R_OK):
        return frozenset()

    features = re.search(r"^(?:flags|Features)\s*:(.*)", cpu_info.read_text(), re.MULTILINE)
    return frozenset(features[1].split() if features else ())


def emulates(compute_dtype: str) -> bool:
    """Returns whether JAX runs on a CPU that is known to lack instructions for a compute dtype.

    XLA then widens the inputs of matmuls, so that float32 is faster.
    """
    if jax.default_backend() != "cpu" or compute_dtype not in _INSTRUCTIONS:
        return False

    features = cpu_features()
    is_known = bool(features)
    return is_known and not _INSTRUCTIONS[compute_dtype] & features


_override: contextvars.ContextVar[Backend | None] = contextvars.ContextVar("backend", default=None)


def backend() -> Backend:
    """Returns the current settings: the override, or those for JAX's default device."""
    chosen = _override.get()
    if chosen is not None:
        return chosen

    device = jax.devices()[0]
    compute_capability = getattr(device, "compute_capability", "")
    return backend_for(jax.default_backend(), compute_capability)


@contextlib.contextmanager
def use_backend(chosen: Backend) -> Iterator[None]:
    """Overrides the settings for functions traced within the context.

    Functions that ``jax.jit`` has already compiled keep the settings they were traced with.

    >>> with use_backend(backend_for("tpu")):
    ...     backend().unroll_layers
    False
    """
    token = _override.set(chosen)
    try:
        yield
    finally:
        _override.reset(token)
