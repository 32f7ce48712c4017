"""Extras, the groups of packages that some features need, and how to install them."""

import importlib.metadata
import pathlib
import re
import shlex

# What the extras for users are for, in the order of docs/install.md.
PURPOSES = {
    "plots": "jaxformer plot, and attention as an image",
    "download": "jaxformer data NAME",
    "parquet": "WMT14, and data in Parquet files",
    "interop": "models in the formats of other systems",
    "ctranslate2": "jaxformer export ctranslate2",
    "sentences": "--split of jaxformer translate and serve",
    "serve": "jaxformer serve",
    "vision": "PNG and JPEG files, digits of scikit-learn, jaxformer classify --baselines",
    "tensorboard": "TensorBoard files",
    "tfds": "TensorFlow Datasets",
    "wmt": "preparing WMT with TensorFlow Datasets, once",
}


def packages_of(extra: str) -> list[str]:
    """Returns the packages of an extra with their versions, such as ``numpy>=2``.

    The source is the metadata of the installed jaxformer. A folder that was only copied has none,
    and the list is empty.
    """
    try:
        requirements = importlib.metadata.requires("jaxformer") or []
    except importlib.metadata.PackageNotFoundError:
        return []

    marker = re.compile(rf"""\bextra == ["']{re.escape(extra)}["']""")
    packages = []
    for requirement in requirements:
        package, _, condition = requirement.partition(";")
        if marker.search(condition):
            packages.append(package.strip())
    return packages


def is_in_all(extra: str) -> bool:
    """Returns True for an extra that the extra ``all`` installs."""
    # The only package of all is jaxformer[plots,download,...].
    package = "".join(packages_of("all"))
    extras = package.partition("[")[2]
    return extra in re.findall(r"\w+", extras)


def install_command(package: str, extra: str = "") -> str:
    """Returns a command that installs a package, with the others of its extra.

    jaxformer is not on PyPI: a clone installs its extra, and elsewhere pip needs the packages.
    """
    if not extra:
        return f"pip install {shlex.quote(package)}"

    clone = _clone()
    if clone is None:
        packages = packages_of(extra) or [package]
        quoted = [shlex.quote(each) for each in packages]
        return f"pip install {' '.join(quoted)}"

    command = f"pip install '.[{extra}]'"
    if clone == pathlib.Path.cwd():
        return command
    return f"cd {shlex.quote(str(clone))} && {command}"


def _clone() -> pathlib.Path | None:
    """Returns the folder of the clone that this module is in, or None."""
    folder = pathlib.Path(__file__).resolve().parents[1]
    project = folder / "pyproject.toml"
    if not project.is_file():
        return None
    is_ours = 'name = "jaxformer"' in project.read_text("utf-8", "replace")
    return folder if is_ours else None
