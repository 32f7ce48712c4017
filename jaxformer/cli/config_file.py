"""Config files with overrides such as ``--config.model.num_layers=3`` on the command line."""

import contextlib
import dataclasses
import pathlib
import runpy
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from jaxformer.cli.configs import find_config, shipped_configs
from jaxformer.config import Config, read_config
from jaxformer.errors import UserError, did_you_mean
from jaxformer.files import local_path
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.initialization import take_vocab_size

# Names of fields and options in other programs.
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
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_EXPECTED = {bool: "true or false", int: "an integer", float: "a number"}


def load_config(
    path: str,
    overrides: Sequence[str] = (),
    workdir: str | pathlib.Path | None = None,
    *,
    tokenizer: str | None = None,
) -> Config:
    """Loads the config that ``jaxformer train`` would use.

    If the config names a tokenizer, or a model to begin with, and the overrides have no
    ``model.vocab_size``, it is the size of that tokenizer.

    Args:
      path: Python file, which is executed, or the name of a config that comes with jaxformer;
        both optionally with a variant: ``configs/base.py:tiny``, ``base:tiny``.
      overrides: Overrides of fields, such as ``--config.model.num_layers=3``.
      workdir: Run directory that the config is for. A run that resumes has its own tokenizer.
      tokenizer: ``data.tokenizer`` for a config that names neither a tokenizer nor a model to begin
        with.

    Raises:
      UserError: There is no such file, variant or field, or a value is invalid.
    """
    local_path(path)
    values, adapt = _execute_config(find_config(path))
    for word in overrides:
        _override(values, word)
    given = [word.removeprefix("--config.").partition("=")[0] for word in overrides]
    config = _with_tokenizer(Config.from_dict(values.to_dict()), tokenizer)
    saved = None if workdir is None else _saved_config(workdir, config.training.mirror)
    config = take_vocab_size(config, given, saved)
    return adapt(config, path.partition(":")[2], given)


def _with_tokenizer(config: Config, tokenizer: str | None) -> Config:
    """Returns the config with a tokenizer, if it names neither one nor a model to begin with."""
    if tokenizer is None or config.data.tokenizer or config.training.init_from:
        return config
    data = dataclasses.replace(config.data, tokenizer=tokenizer)
    return dataclasses.replace(config, data=data)


def _saved_config(workdir: str | pathlib.Path, mirror: str | None) -> Config | None:
    """Returns the config of the run in a workdir, or else in its mirror; None without one."""
    for path in (workdir, mirror):
        # The check of the run, which follows, explains why a config cannot be used.
        with contextlib.suppress(UserError):
            folder = None if path is None else Workdir(local_path(path))
            if folder is not None and folder.config.exists():
                return read_config(folder)
    return None


def _execute_config(name: str) -> tuple[Any, Callable[[Config, str, Sequence[str]], Config]]:
    """Returns the ``ConfigDict`` of a file, which is executed, and its function for the overrides.

    A file may have a function ``adapt_config(config, variant, given)``. It returns the final
    config, after the overrides of the fields that are ``given``.
    """
    file, colon, variant = name.partition(":")
    path = pathlib.Path(file)
    if not path.is_file():
        ours = path.stem in shipped_configs()
        otherwise = f"jaxformer's own is named {path.stem}" if ours else "name another"
        hint = did_you_mean(str(path), map(str, path.parent.glob("*.py")), otherwise)
        raise UserError(f"{path}: no such file; {hint}")
    try:
        found = runpy.run_path(file)
        get_config = found.get("get_config", lambda *_: None)
        values = get_config(variant) if colon else get_config()
    except UserError:
        raise
    except SyntaxError as error:
        raise UserError(f"{error.filename}:{error.lineno}: {error.msg}") from None
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == file]
        place = f"{file}:{lines[-1]}" if lines else file
        cause = " ".join(str(error).split())
        raise UserError(f"{place}: {type(error).__name__}: {cause}") from None
    if not hasattr(values, "to_dict"):
        raise UserError(
            f"{file}: expected a function get_config that returns a config; add it or its return"
        )
    return values, found.get("adapt_config", lambda config, *_: config)


def _override(config: Any, word: str) -> None:
    """Sets a field of a ``ConfigDict``, such as ``--config.model.num_layers=3``."""
    path, equals, text = word.removeprefix("--config.").partition("=")
    section, dot, name = path.rpartition(".")
    known = config.get(section, {}) if dot else config
    if not dot and name in config:
        raise UserError(f"--config.{name}: expected one of its fields: {', '.join(config[name])}")
    if name not in known:
        meant = field_names("", config.to_dict()) | {own: f"{section}{dot}{own}" for own in known}
        otherwise = f"known: {', '.join(known or config)}"
        hint = did_you_mean(name.replace("-", "_"), meant, otherwise, meant.__getitem__)
        raise UserError(f"unknown config field {path}; {hint}")
    kind = known.get_type(name)
    try:
        if kind is bool:
            known[name] = _BOOLEANS[text.lower()] if equals else True
        else:
            known[name] = kind(text) if kind in _EXPECTED else text
    except (KeyError, ValueError):
        expected = _EXPECTED.get(kind, "text")
        raise UserError(f"--config.{path}: expected {expected}, got {text!r}") from None


def field_names(prefix: str, config: dict[str, dict[str, Any]] | None = None) -> dict[str, str]:
    """Returns fields such as "training.steps", by name here and in other programs."""
    config = Config().to_dict() if config is None else config
    sections = sorted(config, key=["search", "mesh", "model", "data", "training"].index)
    names = {name: f"{prefix}{section}.{name}" for section in sections for name in config[section]}
    own = set(names.values())
    for field, others in _SYNONYMS.items():
        if f"{prefix}{field}" in own:
            names |= dict.fromkeys(others.split(), f"{prefix}{field}")
    return names | dict.fromkeys(_WORKDIR, "--workdir")
