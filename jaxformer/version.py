"""The version of the package, which ``pyproject.toml`` reads."""

__version__ = "0.3.0"
