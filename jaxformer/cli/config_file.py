"""Config files with overrides such as ``--config.model.num_layers=3`` on the command line."""

import pathlib
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from absl import flags
from ml_collections import config_flags

from jaxformer.cli.configs import find_config, shipped_configs
from jaxformer.config import Config
from jaxformer.errors import UserError, did_you_mean
from jaxformer.fields import RENAMED, check_known
from jaxformer.files import local_path

# Exceptions that absl, ml_collections and Python raise for a mistake in a flag, a field or a file.
MISTAKES = (
    *(flags.Error, AttributeError, ImportError, LookupError, NameError, OSError),
    *(TypeError, ValueError),
)

# Names of fields in the previous release.
_RENAMED_FLAGS = {
    f"--config.{old}": f"--config.{old.rpartition('.')[0]}.{new}" for old, new in RENAMED.items()
}
# Causes in absl's messages about values, and the type that the flag takes.
_EXPECTED = {
    "invalid literal for int": "an integer",
    "could not convert string to float": "a number",
    "Non-boolean argument": "true or false",
}


def load_config(path: str, overrides: Sequence[str] = ()) -> Config:
    """Loads the config that ``jaxformer train`` would use.

    Args:
      path: Python file, which is executed, or the name of a config that comes with jaxformer;
        both optionally with a variant: ``configs/base.py:tiny``, ``base:tiny``.
      overrides: Overrides of fields, such as ``--config.model.num_layers=3``.

    Raises:
      UserError: There is no such file, variant or field, or a value is invalid.
    """
    local_path(path)
    words = ["jaxformer", f"--config={find_config(path)}", *rename_flags(overrides)]
    try:
        fields = _load(words)
    except UserError:
        raise
    except (SyntaxError, *MISTAKES) as error:
        raise UserError(explain(error, words)) from None
    return Config.from_dict(fields)


def _load(words: Sequence[str]) -> dict[str, Any]:
    """Returns the sections and fields of the config that a command line names."""
    # ml_collections would run the file in the namespace of the config that it loaded last.
    sys.modules.pop("config_config", None)
    values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=list(words))
    values(list(words), known_only=True)
    return values.config.to_dict()


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


def explain(error: BaseException, words: Sequence[str]) -> str:
    """Returns one line for an exception of absl or ml_collections, which may quote a traceback.

    Args:
      error: One of ``MISTAKES``, or a ``SyntaxError`` of the config file.
      words: The command line; its second word is ``--config=PATH``.
    """
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {error.msg}"
    path = words[1].removeprefix("--config=").partition(":")[0]
    if mistake := _mistake_in_file(error, path):
        return mistake
    if isinstance(error, AttributeError) and error.name in ("get_config", "to_dict"):
        return f"{path}: expected a function get_config that returns a config; add it or its return"
    message = str(error.args[0] if error.args else error).replace("\\n", "\n")
    for cause, expected in _EXPECTED.items():
        if value := re.match(rf"flag (--[\w.]+)=(.*): {cause}", message, re.DOTALL):
            return f"{value[1]}: expected {expected}, got {value[2]!r}"
    if isinstance(error, (AttributeError, KeyError)) and (unknown := _unknown_field(words)):
        return unknown
    lines = [line.strip() for line in message.split("\n") if line.strip(" '\\")]
    if missing := re.search(r"No such file or directory: '(.+?)'", lines[-1]):
        return _no_such_file(pathlib.Path(missing[1]))
    if "Traceback (most recent call last):" in lines:
        return re.sub(r"^[\w.]*Error: ", "", lines[-1])
    return " ".join(line.strip("'\\ ") for line in lines)


def _mistake_in_file(error: BaseException | None, path: str) -> str | None:
    """Returns line and cause of an exception that the code of the file raised.

    Returns:
      None if it did not, or if the cause is a ``UserError``, whose message needs no line.
    """
    while error is not None:
        frames = traceback.extract_tb(error.__traceback__)
        if lines := [frame.lineno for frame in frames if frame.filename == path]:
            if isinstance(error, UserError):
                return None
            cause = " ".join(str(error).split())
            return f"{path}:{lines[-1]}: {type(error).__name__}: {cause}"
        error = error.__cause__ or error.__context__
    return None


def _unknown_field(words: Sequence[str]) -> str | None:
    """Names the first override of a field that the config does not have."""
    overrides = [word for word in words if word.startswith("--config.")]
    try:
        config = _load([word for word in words if word not in overrides])
        for word in overrides:
            fields, prefix = config, ""
            for name in word.removeprefix("--config.").partition("=")[0].split("."):
                check_known({name: None}, fields, prefix)
                fields, prefix = fields[name], f"{prefix}{name}."
    except UserError as error:
        return str(error)
    except MISTAKES:  # The file has a mistake, too.
        pass
    return None


def _no_such_file(path: pathlib.Path) -> str:
    ours = path.stem in shipped_configs()
    otherwise = f"jaxformer's own is named {path.stem}" if ours else "name another"
    hint = did_you_mean(str(path), map(str, path.parent.glob("*.py")), otherwise)
    return f"{path}: no such file; {hint}"
