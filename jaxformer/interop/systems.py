"""The formats that models are exported to, and the systems that they are imported from."""

import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from jaxformer.interop import exports, imports
from jaxformer.registry import find_entries

if TYPE_CHECKING:
    from jaxformer.inference.weights import TrainedModel
    from jaxformer.interop.formats import Usage
    from jaxformer.interop.hub import ModelFiles


class ExportFormat(NamedTuple):
    """A format of ``jaxformer export``.

    Attributes:
      name: Its word on the command line.
      help: A description of its files.
      place: Number that sorts the formats in ``--help``.
      stores: Dtype of the parameters in its files; None for a program, whose dtype ``--dtype``
        selects.
      write: Writes the files of a model to a folder.
    """

    name: str
    help: str
    place: int
    stores: str | None
    write: Callable[["TrainedModel", pathlib.Path], "Usage"]


class Importer(NamedTuple):
    """Converts the models of a system.

    Attributes:
      convert: Converts the model in a folder to a new workdir. Takes the folder, the workdir, and
        ``languages`` if the system has them; returns a summary of the model.
      files: The files of a model on the Hugging Face Hub; None if the system has none there.
    """

    convert: Callable[..., str]
    files: "ModelFiles | None"


class ImportSystem(NamedTuple):
    """A system of ``jaxformer import``.

    Attributes:
      name: Its word on the command line.
      help: A description of its models.
      place: Number that sorts the systems in ``--help``.
      has_languages: A model can have many languages; an import selects two.
      importer: Imports heavy libraries, and returns the importer.
    """

    name: str
    help: str
    place: int
    has_languages: bool
    importer: Callable[[], Importer]


def known_formats() -> dict[str, ExportFormat]:
    """Returns all formats by name, in the order of ``--help``."""
    return find_entries(exports, ExportFormat)


def known_systems() -> dict[str, ImportSystem]:
    """Returns all systems by name, in the order of ``--help``."""
    return find_entries(imports, ImportSystem)
