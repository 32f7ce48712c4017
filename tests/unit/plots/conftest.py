import pytest
from matplotlib.figure import Figure

from jaxformer.plots import figure


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved while a test runs."""
    written = []
    save = figure.save
    monkeypatch.setattr(figure, "save", lambda page, path: (written.append(page), save(page, path)))
    return written
