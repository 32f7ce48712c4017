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
from jaxformer.files import local_path

# Exceptions that absl, ml_collections and Python raise for a mistake in a flag, a field or a file.
MISTAKES = (
    *(flags.Error, AttributeError, ImportError, LookupError, NameError, OSError),
    *(TypeError, ValueError),
)

# Names of our fields and options in other programs.
_SYNONYMS = {
    "training.steps": "max_steps train_steps max_update max_iters iterations epochs num_epochs",
    "training.learning_rate": "lr peak_lr max_lr",
    "training.schedule": "lr_scheduler lr_scheduler_type scheduler",
    "training.weight_decay": "wd",
    "training.clip_norm": "clip grad_clip max_grad_norm gradient_clip_val",
    "training.gradient_accumulation": "accumulation grad_accum accumulate_grad_batches update_freq",
    "training.log_every": "log_interval logging_steps",
    "training.eval_every": "eval_interval eval_steps",
    "training.checkpoint_every": "save_every save_steps save_interval",
    "training.init_from": "pretrained model_name_or_path finetune_from_model restore_file",
    "data.train": "data dataset train_data",
    "data.tokens_per_batch": "batch_size batch bs max_tokens train_batch_size mini_batch",
    "data.rows": "batch_size batch bs tokens_per_batch train_batch_size",
    "data.max_length": "max_len max_seq_len seq_len block_size",
    "data.length": "max_length max_seq_len seq_len block_size context_length",
    "model.num_layers": "layers n_layer num_hidden_layers depth",
    "model.num_heads": "heads nhead num_attention_heads",
    "model.d_model": "hidden_size hidden_dim n_embd embed_dim width",
    "model.d_ff": "ffn_dim intermediate_size dim_feedforward",
    "model.compute_dtype": "dtype precision fp16 bf16 amp",
    "mesh.data": "gpus num_gpus devices num_devices",
}
_WORKDIR = ("output_dir", "out_dir", "save_dir", "model_dir", "log_dir")
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
    words = ["jaxformer", f"--config={find_config(path)}", *overrides]
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
    if unknown := _unknown_field(words):
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
            path = word.removeprefix("--config.").partition("=")[0]
            section, dot, name = path.rpartition(".")
            known = config.get(section, {}) if dot else config
            if name not in known:
                meant = field_names("", config) | {own: f"{section}{dot}{own}" for own in known}
                otherwise = f"known: {', '.join(known or config)}"
                hint = did_you_mean(name.replace("-", "_"), meant, otherwise, meant.__getitem__)
                return f"unknown config field {path}; {hint}"
    except MISTAKES:  # The file has a mistake, too.
        pass
    return None


def field_names(prefix: str, config: dict[str, dict[str, Any]] | None = None) -> dict[str, str]:
    """Returns fields, as in "training.steps", by their names and their names in other programs.

    Args:
      prefix: Put before the fields.
      config: Sections of a config; the paper's base model by default.
    """
    config = Config().to_dict() if config is None else config
    sections = sorted(config, key=["search", "mesh", "model", "data", "training"].index)
    names = {name: f"{prefix}{section}.{name}" for section in sections for name in config[section]}
    own = set(names.values())
    for field, others in _SYNONYMS.items():
        if f"{prefix}{field}" in own:
            names |= dict.fromkeys(others.split(), f"{prefix}{field}")
    return names | dict.fromkeys(_WORKDIR, "--workdir")


def _no_such_file(path: pathlib.Path) -> str:
    ours = path.stem in shipped_configs()
    otherwise = f"jaxformer's own is named {path.stem}" if ours else "name another"
    hint = did_you_mean(str(path), map(str, path.parent.glob("*.py")), otherwise)
    return f"{path}: no such file; {hint}"
