"""Environment of all tests: eight simulated devices; nightly, runtime checks of array shapes.

The order matters: the environment comes before the first import of JAX, and the import hook before
the first import of jaxformer.
"""

import os
import pathlib
import signal
from collections.abc import Callable, Iterator

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["MPLBACKEND"] = "Agg"
# Processes inherit an ignored signal, as under nohup, but no handler. Tests send them SIGHUP.
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda number, frame: None)
# Most of the time goes to compiling, which takes about two thirds as long without LLVM's
# optimizations. XLA's own passes, which determine the order of computations, are not affected.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import hypothesis
import pytest

from .profiles import CHECKED
from .programs import Programs

PROJECT = pathlib.Path(__file__).parents[1]


def _check_annotations() -> None:
    """Checks annotations of the package at run time: classes, and ``Float[Array, "B T D"]``.

    A letter has one meaning within a call. The exception is numerals: it has no arrays, and spells
    so many numbers that the checks took half of the time of all training runs.
    """
    import jax
    import jaxtyping
    import numpy as np

    # Like jax.numpy, the package takes NumPy's arrays wherever it says Array; under jax.eval_shape,
    # pytrees hold structures. Their shapes and dtypes are checked, too.
    jaxtyping.Array = jax.Array | np.ndarray | jax.ShapeDtypeStruct
    modules = {
        ".".join(path.relative_to(PROJECT).with_suffix("").parts)
        for path in (PROJECT / "jaxformer").rglob("[!_]*.py")
    }
    jaxtyping.install_import_hook(
        sorted(modules - {"jaxformer.data.numerals"}),
        # The numeric tower of PEP 484: an int is valid where a float is expected.
        "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))",
    )


if CHECKED:
    _check_annotations()

# The first call of a jitted function compiles, so examples have no deadline.
hypothesis.settings.register_profile("jaxformer", deadline=None)
hypothesis.settings.load_profile("jaxformer")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Programs(), "programs")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files first, lest one process run them when the others have ended."""
    items.sort(key=lambda item: "system" not in item.path.parts)


@pytest.fixture(scope="session", autouse=True)
def _no_lines_about_slow_work() -> None:
    """Makes the log of a test the same on a loaded machine."""
    from jaxformer import waits

    waits.SECONDS = 3600.0


@pytest.fixture(scope="session", autouse=True)
def _own_checks_of_settings() -> None:
    """Leaves invalid settings to the settings' own checks, whose messages the tests read."""
    if CHECKED:
        from jaxformer import config, search
        from jaxformer.kinds.selection import known_kinds

        settings = {*map(config.__dict__.get, config.__all__), search.BeamSearch, search.Sampling}
        models = {network.section for kind in known_kinds() for network in kind.networks}
        for section in settings | models:
            section.__init__ = section.__init__.__wrapped__


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Redirects the user's cache, but not the user's data, for tests and their processes.

    All tests share one cache, so that a program is compiled only once. Each test traces its own.
    """
    from jaxformer.files import data_directory
    from jaxformer.inference import kept_programs
    from jaxformer.runs.workdir import use_compilation_cache

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXFORMER_DATA", str(data_directory()))
        patch.setenv("JAXFORMER_CACHE", str(folder / "cache"))
        use_compilation_cache()
        patch.setattr(kept_programs, "kept_folder", lambda: None)
        yield


@pytest.fixture(scope="module", autouse=True)
def _few_programs() -> Iterator[None]:
    """Drops compiled programs when there are many, by the memory maps that each of them takes.

    They take memory, and XLA crashes when a process has 65,530 maps, Linux's limit.
    """
    yield
    maps = pathlib.Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 8_000:
        import jax

        jax.clear_caches()


@pytest.fixture(scope="session")
def real_data(_cache: None) -> Callable[[str], pathlib.Path]:
    """Returns a function from the name of a corpus to its folder; without it, the test is skipped.

    It is below JAXFORMER_DATA, or below the data folder in the user's own cache.
    """

    def folder(name: str) -> pathlib.Path:
        path = pathlib.Path(os.environ["JAXFORMER_DATA"]) / name
        if not path.is_dir():
            pytest.skip(f"no real data: {path} is not a folder; JAXFORMER_DATA names another")
        return path

    return folder
