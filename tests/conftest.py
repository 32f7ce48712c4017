"""What every test stands on: eight simulated devices and checked array shapes.

The order matters: the environment comes before the first import of JAX, and the import hook before
the first import of jaxformer.
"""

import os
import pathlib
import signal
from collections.abc import Iterator

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["MPLBACKEND"] = "Agg"
# Processes inherit an ignored signal, as under nohup, but no handler. Tests send them SIGHUP.
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda number, frame: None)
# Compiling is most of the work: without LLVM's optimizations it takes about two thirds of the time.
# XLA's own passes, which decide what is computed in what order, are the same.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import hypothesis
import jaxtyping
import pytest

PROJECT = pathlib.Path(__file__).parents[1]

# Every annotation of the package is checked while it runs: classes, and Float[Array, "B T D"] with
# one meaning for each letter within a call. Not those of numerals, which has no arrays and spells
# so many numbers that checking took half of the time of all trainings.
_UNCHECKED = {"jaxformer.data.numerals"}
_MODULES = {
    ".".join(path.relative_to(PROJECT).with_suffix("").parts)
    for path in (PROJECT / "jaxformer").rglob("[!_]*.py")
}
jaxtyping.install_import_hook(
    sorted(_MODULES - _UNCHECKED),
    # The numeric tower of PEP 484, as type checkers have it: an int will do for a float.
    "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))",
)

# The first call of a jitted function compiles: no example is too slow.
hypothesis.settings.register_profile("jaxformer", deadline=None)
hypothesis.settings.load_profile("jaxformer")


@pytest.fixture(scope="session", autouse=True)
def _own_checks_of_settings() -> None:
    """Leaves wrong values of settings to their own checks, whose messages tests read."""
    from jaxformer import config

    for name in config.__all__:
        kind = getattr(config, name)
        if not hasattr(kind, "_section"):  # they are wrapped already: fields.understand_old_names
            kind.__init__ = kind.__init__.__wrapped__


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps tests, and the processes they start, off the user's own cache.

    They share one, and what one of them has compiled is compiled for all.
    """
    from jaxformer.workdir import use_compilation_cache

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXFORMER_CACHE", str(folder / "cache"))
        use_compilation_cache()
        yield


@pytest.fixture(scope="module", autouse=True)
def _few_programs() -> Iterator[None]:
    """Forgets compiled programs when there are many: Linux maps at most 65,530 pieces of memory.

    Every program of a CPU takes several; where they run out, XLA crashes.
    """
    yield
    maps = pathlib.Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 20_000:
        import jax

        jax.clear_caches()


@pytest.fixture(scope="session")
def data_directory() -> pathlib.Path:
    """The folder of real data; named by JAXFORMER_DATA, else shared/data beside the project."""
    default = PROJECT.parent / "shared" / "data"
    directory = pathlib.Path(os.environ.get("JAXFORMER_DATA", default))
    if not directory.is_dir():
        pytest.skip(f"no real data: {directory} is not a folder; name one with JAXFORMER_DATA")
    return directory
