import pytest

from jaxformer.plots import figure


@pytest.fixture
def pages(monkeypatch):
    """The figures that are laid out, instead of saved, while a test runs."""
    written = []

    def save(page, path):
        page.draw_without_rendering()
        written.append(page)

    monkeypatch.setattr(figure, "save_figure", save)
    return written
