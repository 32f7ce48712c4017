"""A budget of compiled programs: compiling takes most of the time of the tests.

Counts the programs that XLA compiles for the tests of each file, prints them at the end, and fails
if a file exceeds its budget. Programs of session-wide fixtures, which files share, are one row.
Only tests without a tier count: the tests of `make test`. The seconds of each file are kept for
tests/changed.py.
"""

import collections
import pathlib
import tomllib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import jax
import pytest

from .profiles import NIGHTLY

TABLE = tomllib.loads((pathlib.Path(__file__).parent / "programs.toml").read_text())
SHARED = "fixtures of the session"
_KEY = "programs"
_COMPILED = "/jax/core/compile/backend_compile_duration"


class Counts(NamedTuple):
    """Numbers of compiled programs: all, and for fixtures of the session."""

    compiled: int
    shared: int


class Programs:
    """Counts, in the process that runs a test; reports, in the process that prints."""

    def __init__(self) -> None:
        self._compiled = 0  # so far, for all tests
        self._shared = 0  # so far, for fixtures of the session
        self._begin = Counts(compiled=0, shared=0)  # when the test began
        self._by_file: collections.Counter[str] = collections.Counter()
        self._seconds: collections.defaultdict[str, float] = collections.defaultdict(float)
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def _heard(self, event: str, seconds: float, **_: object) -> None:
        if event == _COMPILED:
            self._compiled += 1

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef) -> Iterator[None]:
        before = self._compiled - self._shared
        result = yield
        if fixturedef.scope == "session":  # fixtures that it uses are counted already
            self._shared = self._compiled - before
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        self._begin = Counts(self._compiled, self._shared)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        result = yield
        if _has_no_tier(item):
            shared = self._shared - self._begin.shared
            own = self._compiled - self._begin.compiled - shared
            counts = {_file_of(item.nodeid): own, SHARED: shared}
            item.user_properties.append((_KEY, counts))
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[_file_of(report.nodeid)] += report.duration
        if report.when == "teardown":
            for key, value in report.user_properties:
                if key == _KEY:
                    self._by_file.update(value)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[object]:
        result = yield
        session.testsfailed += len(exceeded_budgets(self._by_file))
        return result

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        cache = getattr(config, "cache", None)  # pytest's, which may be turned off
        if cache:
            own = {file: round(value, 1) for file, value in self._seconds.items()}
            cache.set("jaxformer/seconds", cache.get("jaxformer/seconds", {}) | own)

        exceeded = exceeded_budgets(self._by_file)
        terminalreporter.section(f"{self._by_file.total():,} compiled programs")
        for file, count in self._by_file.most_common():
            if file in exceeded:
                terminalreporter.line(
                    f"{count:5} {file}: expected at most {exceeded[file]}; share shapes and "
                    "functions, or raise its budget in tests/programs.toml",
                    red=True,
                )
            elif count > TABLE["default"] // 2:
                terminalreporter.line(f"{count:5} {file}")


def exceeded_budgets(by_file: Mapping[str, int], nightly: bool = NIGHTLY) -> dict[str, int]:
    """Returns the budgets of the files that exceed them.

    Budgets are for `make test`. In the nightly profile, the same tests have more cases.
    """
    exceeded = {}
    for file, count in by_file.items():
        budget = TABLE["files"].get(file, TABLE["default"])
        if count > budget and not nightly:
            exceeded[file] = budget
    return exceeded


def _has_no_tier(item: pytest.Item) -> bool:
    tiers = [mark for mark in item.iter_markers() if mark.name in ("ci", "nightly")]
    return not tiers


def _file_of(node: str) -> str:
    """Returns the file of a test."""
    return node.split("::")[0]
