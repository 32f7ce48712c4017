"""The command ``doctor``: reports the environment, or the memory that an experiment needs."""

import argparse
import os
import re

from jaxformer.cli.environment import print_report
from jaxformer.errors import UserError, missing_device

_UNITS = {"GB": 10**9, "GiB": 2**30, "MB": 10**6, "MiB": 2**20}


def doctor(options: argparse.Namespace) -> None:
    """Prints everything a bug report needs, or the memory that a training step needs.

    Raises:
      UserError: JAX has no device, there is no such config, or no settings make it fit.
    """
    if options.config is None:
        for flag in ("memory", "devices"):
            if getattr(options, flag) is not None:
                raise UserError(f"--{flag} needs --config FILE, whose training step is measured")
        if options.overrides:
            raise UserError(f"{options.overrides[0]} needs --config FILE, which it overrides")
        print_report()
        if reason := missing_device():
            raise UserError(reason)
    else:
        _measure(options)


def _measure(options: argparse.Namespace) -> None:
    """Prints the memory per device for settings that save more and more, until a step fits."""
    # Imported late, so that the report works even if a library that these need is broken.
    from jaxformer.cli.config_file import load_config
    from jaxformer.config import StreamConfig

    config = load_config(options.config, options.overrides)
    data = config.data
    limit = None if options.memory is None else _bytes(options.memory)
    if options.devices is not None and options.devices < 1:
        raise UserError(f"--devices must be at least 1: got {options.devices}")
    import jax

    if options.devices:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", options.devices)
    # Imported late, since the number of devices must be set before JAX initializes them.
    from jaxformer.analysis.memory import savings, step_memory, with_settings
    from jaxformer.workdir import use_compilation_cache

    use_compilation_cache()
    devices = jax.devices()
    limit = _memory(devices[0]) if limit is None else limit
    if isinstance(data, StreamConfig):
        batch, fields = f"{data.rows:,} rows of {data.length:,} tokens", "data.rows or data.length"
    else:
        batch = f"{data.tokens_per_batch:,} tokens per side in sentences of {data.max_length}"
        fields = "data.tokens_per_batch or data.max_length"
    print(
        f"A step of {batch}, on {len(devices)} {devices[0].device_kind} device(s). "
        f"Each has {limit / 1e9:.2f} GB and needs:",
        flush=True,
    )
    least = 0
    for settings in savings(config, len(devices)):
        memory = step_memory(with_settings(config, settings))
        flags = " ".join(f"--config.{name}={value}" for name, value in settings.items())
        fits = memory.total <= limit
        print(
            f"{memory.total / 1e9:8.2f} GB ({memory.state / 1e9:.2f} of it parameters, optimizer "
            f"state and batch) {'fits' if fits else 'too much'}: {flags or 'as it is'}",
            flush=True,
        )
        if fits:
            return
        least = memory.total
    raise UserError(
        f"{options.config} needs {least / 1e9:.2f} GB on each device with any settings, "
        f"more than {limit / 1e9:.2f} GB; use more devices, or lower {fields}"
    )


def _bytes(text: str) -> int:
    found = re.fullmatch(rf"(\d+(?:\.\d+)?) ?({'|'.join(_UNITS)})", text)
    if not found:
        raise UserError(f"--memory: expected a size such as 16GB or 16GiB, got {text!r}")
    size = int(float(found[1]) * _UNITS[found[2]])
    if size < 1:
        raise UserError(f"--memory must be at least 1 byte: got {text!r}")
    return size


def _memory(device) -> int:
    """Returns the bytes available to programs on a device; for a CPU, the machine's memory."""
    statistics = device.memory_stats() or {}
    if "bytes_limit" in statistics:
        return statistics["bytes_limit"]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
