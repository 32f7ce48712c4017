"""The one error type for what a user can mend."""


class UserError(ValueError):
    """A mistake in the input, said in one line: what was expected, what came, what to do.

    The command line prints the message without a traceback and exits with code 2.
    """
