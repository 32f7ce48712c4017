"""Experiments on the command line: a file in ``configs/`` and ``--config.model.num_layers=3``."""

import re
from collections.abc import Sequence

from absl import flags
from ml_collections import config_flags

from jaxformer.config import Config
from jaxformer.errors import UserError
from jaxformer.files import local_path

# What absl and ml_collections raise for a mistake in a flag, a field or a file.
MISTAKES = (flags.Error, AttributeError, KeyError, TypeError, ValueError, OSError)


def load_config(path: str, overrides: Sequence[str] = ()) -> Config:
    """The experiment of a file, as ``train.py`` would run it.

    Args:
      path: The file, with the name of a variant if it has any: ``configs/base.py:tiny``. It is
        Python, and is executed.
      overrides: Changes to it, such as ``--config.model.num_layers=3``.

    Raises:
      UserError: There is no such file, variant or field, or a value does not fit.
    """
    local_path(path)
    values, words = flags.FlagValues(), ["jaxformer", f"--config={path}", *overrides]
    config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=words)
    try:
        values(words)
        fields = values.config.to_dict()
    except UserError:
        raise
    except (SyntaxError, *MISTAKES) as error:
        raise UserError(explain(error)) from None
    return Config.from_dict(fields)


def explain(error: BaseException) -> str:
    """The gist of ml_collections' messages, which quote tracebacks and span several lines."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {error.msg}"
    message = str(error.args[0] if error.args else error).replace("\\n", "\n")
    lines = [line.strip() for line in message.split("\n") if line.strip(" '\\")]
    if "Traceback (most recent call last):" in lines or "Attempted [Relative path]:" in lines:
        return re.sub(r"^\[Errno \d+\] |^[\w.]*Error: ", "", lines[-1])
    if isinstance(error, (AttributeError, KeyError)):
        lines.insert(0, "unknown config field")
    return " ".join(line.strip("'\\ ") for line in lines)
