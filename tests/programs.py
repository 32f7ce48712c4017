"""A budget of compiled programs: compiling takes most of the time of the tests.

Counts the programs that XLA compiles for the tests of each file, prints them at the end, and fails
if a file exceeds its budget. Programs of session-wide fixtures, which files share, are one row.
Only tests without a tier count: the tests of `make test`. The seconds of each file are kept for
tests/changed.py.
"""

import collections
import pathlib
import tomllib
from collections.abc import Iterator

import jax
import pytest

TABLE = tomllib.loads((pathlib.Path(__file__).parent / "programs.toml").read_text())
SHARED = "fixtures of the session"
_KEY = "programs"
_COMPILED = "/jax/core/compile/backend_compile_duration"


class Programs:
    """Counts, in the process that runs a test; reports, in the process that prints."""

    def __init__(self) -> None:
        self._compiled, self._shared, self._begin = 0, 0, (0, 0)
        self._by_file: collections.Counter[str] = collections.Counter()
        self._seconds: collections.defaultdict[str, float] = collections.defaultdict(float)
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def _heard(self, event: str, seconds: float, **_: object) -> None:
        self._compiled += event == _COMPILED

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef) -> Iterator[None]:
        before = self._compiled - self._shared
        result = yield
        if fixturedef.scope == "session":  # fixtures that it uses are counted already
            self._shared = self._compiled - before
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        self._begin = self._compiled, self._shared
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        result = yield
        if not any(item.iter_markers("ci")) and not any(item.iter_markers("nightly")):
            shared = self._shared - self._begin[1]
            own = self._compiled - self._begin[0] - shared
            item.user_properties.append((_KEY, {item.nodeid.split("::")[0]: own, SHARED: shared}))
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.split("::")[0]] += report.duration
        if report.when == "teardown":
            for key, value in report.user_properties:
                if key == _KEY:
                    self._by_file.update(value)

    def _exceeded(self) -> dict[str, int]:
        budgets = TABLE["files"]
        return {
            file: budget
            for file, count in self._by_file.items()
            if count > (budget := budgets.get(file, TABLE["default"]))
        }

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[object]:
        result = yield
        session.testsfailed += len(self._exceeded())
        return result

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        if cache := getattr(config, "cache", None):  # pytest's, which may be turned off
            own = {file: round(value, 1) for file, value in self._seconds.items()}
            cache.set("jaxformer/seconds", cache.get("jaxformer/seconds", {}) | own)
        exceeded = self._exceeded()
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
