"""The ``jaxformer`` command: arguments in, one call, messages out."""

import importlib
import os
import sys
from collections.abc import Sequence

from jaxformer.cli.parser import parse
from jaxformer.errors import UserError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Returns:
      Its exit code: 0, 2 for a mistake in the input, 1 if a file cannot be written, 130 if it
      was interrupted.
    """
    try:
        options = parse(arguments)
        # Imported here: what one command needs, the others, and --help, do not wait for.
        module, function = options.run.split(".")
        getattr(importlib.import_module(f"jaxformer.cli.{module}"), function)(options)
        sys.stdout.flush()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
