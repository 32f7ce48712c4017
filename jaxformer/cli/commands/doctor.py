"""The command ``doctor``: reports the environment, or the memory that an experiment needs."""

import glob
import importlib.metadata
import os
import pathlib
import re
from collections.abc import Iterator, Sequence

from jaxformer.cli.command import Command
from jaxformer.errors import UserError, missing_device
from jaxformer.extras import PURPOSES, install_command, is_in_all, packages_of
from jaxformer.files import cache_directory, make_folder
from jaxformer.version import __version__

_PACKAGES = ("flax", "grain", "optax", "orbax-checkpoint", "sacrebleu", "sentencepiece")
# Variables that JAX does not print. The environment may hold passwords.
_VARIABLES = ("JAXFORMER_", "CUDA_VISIBLE_DEVICES", "LIBTPU", "TF_CPP")
_UNITS = {"GB": 10**9, "GiB": 2**30, "MB": 10**6, "MiB": 2**20}


def doctor(
    *,
    config: str | None = None,
    memory: str | None = None,
    devices: int | None = None,
    overrides: Sequence[str] = (),
) -> None:
    """Print all that a bug report needs, or with --config, how much memory training needs.

    Options:
      config (CONFIG): config of an experiment, as for train; add overrides such as
        --config.data.tokens_per_batch=8192. Prints the memory that training needs on each device,
        and settings with which it fits
      memory (SIZE): memory of a device, such as 16GB (default: the memory of this machine's device)
      devices: simulate N devices on the CPU (default: the devices of this machine)

    Example:
      jaxformer doctor

      jaxformer doctor --config configs/big.py --memory 16GB

      jaxformer doctor --config configs/big.py --memory 16GB --devices 8 --config.mesh.fsdp=8
    """
    if config is not None:
        _print_memory(config, overrides, size=memory, num_devices=devices)
        return

    for flag, value in {"memory": memory, "devices": devices}.items():
        if value is not None:
            raise UserError(f"--{flag} needs --config FILE, whose training step is measured")
    if overrides:
        raise UserError(f"{overrides[0]} needs --config FILE, which it overrides")

    _print_report()
    if reason := missing_device():
        raise UserError(reason)


COMMAND = Command("doctor", doctor, place=120)


def _print_report() -> None:
    """Prints versions, optional packages, variables, the cache, and JAX's report on the machine."""
    print(f"jaxformer: {__version__}")
    for name in _PACKAGES:
        version = _version(name) or f"is not installed: {install_command(name)}"
        print(f"{name}: {version}")
    for extra, purpose in PURPOSES.items():
        print(f"extra {extra}: {_extra_report(extra, purpose)}")

    for name in sorted(os.environ):
        if name.startswith(_VARIABLES):
            print(f"{name}={os.environ[name]}")

    try:
        folder = cache_directory()
        files = filter(pathlib.Path.is_file, folder.rglob("*"))
        size = sum(path.stat().st_size for path in files)
        place = str(folder).replace(os.path.expanduser("~"), "~", 1)  # A user's name is private.
        print(f"cache: {place}, {size / 1e6:.1f} MB")

        # Imported late, since JAX may be slow, or fail to find accelerators.
        import jax

        jax.print_environment_info()
        problems = list(_problems(folder))
        for line in problems or ["problems: none found"]:
            print(line)
    except Exception as error:  # The rest of the report is useful, whatever the error.
        print(f"failed with {missing_device(error) or repr(error)}")


def _problems(cache: pathlib.Path) -> Iterator[str]:
    """Yields a line for each problem of the environment, with what to do."""
    import jax

    has_gpu = bool(glob.glob("/dev/nvidia[0-9]*"))
    if has_gpu and jax.default_backend() == "cpu":
        yield (
            "problem: there is a GPU, but JAX uses the CPU: install JAX for the GPU, see "
            "https://docs.jax.dev/en/latest/installation.html"
        )
    try:
        make_folder(cache, "JAXFORMER_CACHE")
    except UserError as error:
        yield f"problem: {error}"


def _extra_report(extra: str, purpose: str) -> str:
    """Returns the versions of an extra's packages, or what needs the missing ones."""
    names = [re.split(r"[^\w.-]", package)[0] for package in packages_of(extra)]
    missing = [name for name in names if _version(name) is None]
    if not missing:
        described = [f"{name} {_version(name)}" for name in names]
        versions = ", ".join(described)
        return f"{versions or 'unknown packages'}, for {purpose}"

    absent = f"{' and '.join(missing)} not installed"
    note = "" if is_in_all(extra) else '; not in the extra "all"'
    command = install_command(missing[0], extra)
    return f"{absent}, needed only for {purpose}{note}: {command}"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _print_memory(
    name: str, overrides: Sequence[str], size: str | None, num_devices: int | None
) -> None:
    """Prints the memory per device with more and more savings, until a step fits."""
    # Imported late, so that the report works even if a library that these need is broken.
    import jax

    from jaxformer.cli.config_file import load_config

    config = load_config(name, overrides)
    limit = None if size is None else _parse_size(size)
    if num_devices is not None:
        if num_devices < 1:
            raise UserError(f"--devices must be at least 1: got {num_devices}")
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", num_devices)
    # Imported late, since the number of devices must be set before JAX initializes them.
    from jaxformer.memory import memory_savings, step_memory, with_settings
    from jaxformer.runs.workdir import use_compilation_cache

    use_compilation_cache()
    devices = jax.devices()
    if limit is None:
        statistics = devices[0].memory_stats() or {}  # A CPU has none.
        limit = statistics.get("bytes_limit", _machine_memory())

    batch, fields = config.data.batch
    print(
        f"A step of {batch}, on {len(devices)} {devices[0].device_kind} device(s). "
        f"Each has {limit / 1e9:.2f} GB and needs:",
        flush=True,
    )

    least = 0
    for settings in memory_savings(config, len(devices)):
        memory = step_memory(with_settings(config, settings))
        fits = memory.total <= limit

        verdict = "fits" if fits else "too much"
        flags = [f"--config.{field}={value}" for field, value in settings.items()]
        shown = " ".join(flags) or "as configured"
        print(
            f"{memory.total / 1e9:8.2f} GB ({memory.state / 1e9:.2f} of it parameters, optimizer "
            f"state and batch) {verdict}: {shown}",
            flush=True,
        )
        if fits:
            return
        least = memory.total

    raise UserError(
        f"{name} needs {least / 1e9:.2f} GB on each device with any settings, "
        f"more than {limit / 1e9:.2f} GB; use more devices, or lower {fields}"
    )


def _machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _parse_size(text: str) -> int:
    found = re.fullmatch(rf"(\d+(?:\.\d+)?) ?({'|'.join(_UNITS)})", text)
    if not found:
        raise UserError(f"--memory: expected a size such as 16GB or 16GiB, got {text!r}")
    return int(float(found[1]) * _UNITS[found[2]])
