"""What goes wrong: the one error type for what a user can mend, and how commands report errors."""

import sys
from collections.abc import Callable


class UserError(ValueError):
    """A mistake in the input, said in one line: what was expected, what came, what to do.

    Commands print the message without a traceback and exit with code 2.
    """


def exit_code(command: Callable[[], None]) -> int:
    """Runs a command; what goes wrong is one line on standard error.

    Returns:
      Its exit code: 0, 2 for a mistake in the input, 1 if a file cannot be written or training
      does not converge, 130 if it was interrupted.
    """
    try:
        command()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (FloatingPointError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:
        print(str(stop) or "interrupted", file=sys.stderr)
        return 130
    return 0
