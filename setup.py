"""Maps the folder configs/ into the package, as jaxformer/configs; pyproject.toml has the rest."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["jaxformer", "jaxformer.*"]), "jaxformer.configs"],
    package_dir={"jaxformer.configs": "configs"},
)
