"""Config files with overrides such as ``--config.model.num_layers=3`` on the command line."""

import re
import sys
from collections.abc import Sequence

from absl import flags
from ml_collections import config_flags

from jaxformer.config import Config
from jaxformer.errors import UserError
from jaxformer.fields import RENAMED
from jaxformer.files import local_path

# Exceptions that absl and ml_collections raise for a mistake in a flag, a field or a file.
MISTAKES = (flags.Error, AttributeError, KeyError, TypeError, ValueError, OSError)

# Flags of the previous release.
_RENAMED_FLAGS = {"--process": "--process_id", "--processes": "--num_processes"} | {
    f"--config.{old}": f"--config.{old.rpartition('.')[0]}.{new}" for old, new in RENAMED.items()
}


def load_config(path: str, overrides: Sequence[str] = ()) -> Config:
    """Loads the config that ``train.py`` would use.

    Args:
      path: Python file, which is executed, optionally with a variant: ``configs/base.py:tiny``.
      overrides: Overrides of fields, such as ``--config.model.num_layers=3``.

    Raises:
      UserError: There is no such file, variant or field, or a value is invalid.
    """
    local_path(path)
    values = flags.FlagValues()
    words = ["jaxformer", f"--config={path}", *rename_flags(overrides)]
    config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=words)
    try:
        values(words)
        fields = values.config.to_dict()
    except UserError:
        raise
    except (SyntaxError, *MISTAKES) as error:
        raise UserError(explain(error)) from None
    return Config.from_dict(fields)


def rename_flags(words: Sequence[str]) -> list[str]:
    """Replaces flags and names of config fields from earlier releases, with a warning for each."""
    renamed = []
    for word in words:
        flag, equals, value = word.partition("=")
        if new := _RENAMED_FLAGS.get(flag):
            print(f"warning: {flag} is now {new}", file=sys.stderr)
            word = f"{new}{equals}{value}"
        renamed.append(word)
    return renamed


def explain(error: BaseException) -> str:
    """Shortens messages of ml_collections, which quote tracebacks, to one line."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {error.msg}"
    message = str(error.args[0] if error.args else error).replace("\\n", "\n")
    lines = [line.strip() for line in message.split("\n") if line.strip(" '\\")]
    if "Traceback (most recent call last):" in lines or "Attempted [Relative path]:" in lines:
        return re.sub(r"^\[Errno \d+\] |^[\w.]*Error: ", "", lines[-1])
    if isinstance(error, (AttributeError, KeyError)):
        lines.insert(0, "unknown config field")
    return " ".join(line.strip("'\\ ") for line in lines)
