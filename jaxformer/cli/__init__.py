"""The ``jaxformer`` command."""

import gc
import os
import sys
from collections.abc import Sequence

from jaxformer.cli.arguments import parse_arguments
from jaxformer.cli.options import fetch_models
from jaxformer.errors import exit_code


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its :func:`~jaxformer.errors.exit_code`."""
    if sys.version_info < (3, 12):
        # JAX 0.10.1, the last for 3.11, prints errors about every program from its cache on CPUs.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

    def run() -> None:
        command = parse_arguments(arguments)
        try:
            command.func(**fetch_models(command.keywords))
            print(end="", flush=True)  # Standard output may be None: closed before Python started.
        except BrokenPipeError:  # The reader, such as `head`, has exited.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    code = exit_code(run)
    gc.freeze()  # Python's last collection would take 0.2 s.
    return code
