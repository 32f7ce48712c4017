from ..plots.conftest import pages  # noqa: F401
