"""The choice of a predictor for a command that uses models of several kinds."""

import pathlib
from typing import Any, TypeVar

from jaxformer import tasks
from jaxformer.config import check_kind, read_config
from jaxformer.registry import find_classes
from jaxformer.runs.workdir import Workdir

InterfaceT = TypeVar("InterfaceT")


def predictor_class(workdir: pathlib.Path, interface: type[InterfaceT]) -> type[InterfaceT]:
    """Returns the predictor for the model of a workdir.

    Args:
      workdir: The run directory.
      interface: What the predictor must do, such as a
        :class:`~jaxformer.tasks.transcriber.Transcriber`. Its subclasses are in modules of
        :mod:`jaxformer.tasks`, and each names its ``kinds``.

    Raises:
      UserError: The model is of no kind that a subclass names, or the workdir has none.
    """
    known: Any = find_classes(tasks, interface)
    config = read_config(Workdir(workdir))
    kinds = [kind for cls in known for kind in cls.kinds]
    check_kind(config, *kinds)
    return next(cls for cls in known if config.kind in cls.kinds)
