"""Config files with overrides such as ``--config.model.num_layers=3`` on the command line."""

import contextlib
import dataclasses
import io
import pathlib
import runpy
import sys
import tokenize
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from jaxformer.cli.configs import find_config, shipped_configs
from jaxformer.config import Config, read_config
from jaxformer.data.text_files import read_file
from jaxformer.errors import UserError, did_you_mean, prefix_errors
from jaxformer.files import explain_read_errors, local_path
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.initialization import take_vocab_size

# The function ``adapt_config`` of a config file: of a config, its variant and the fields that the
# overrides give.
AdaptConfig: TypeAlias = Callable[[Config, str, Sequence[str]], Config]
# The same for one variant and its overrides.
Adapt: TypeAlias = Callable[[Config], Config]

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
    "data.file": "train train_data dataset text",
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
# In this order, since the last section with a name gets it.
_SECTIONS = ["search", "mesh", "model", "data", "training"]
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
      workdir: Run directory to train in. If it has a run already, fields that the file's
        ``adapt_config`` chooses, such as the sizes of ``base:small``, keep the values that the run
        began with, unless there is an override.
      tokenizer: ``data.tokenizer`` for a config that names neither a tokenizer nor a model to begin
        with.

    Raises:
      UserError: There is no such file, variant or field, or a value is invalid.
    """
    local_path(path)  # Refuses URLs.
    values, adapt_config = _execute_config(find_config(path))
    for word in overrides:
        _override(values, word)
    given = [_field_of(word) for word in overrides]
    config = _with_tokenizer(Config.from_dict(values.to_dict()), tokenizer)
    saved = None if workdir is None else _saved_config(workdir, config.training.mirror)
    config = take_vocab_size(config, given, saved)
    if adapt_config is None:
        return config

    _, _, variant = path.partition(":")

    def adapt(config: Config) -> Config:
        return adapt_config(config, variant, given)

    adapted = adapt(config)
    if saved is None:
        return adapted
    kept = _choices_to_keep(adapt, config, adapted, saved=saved, given=given)
    if not kept:
        return adapted

    choices = ", ".join(f"{name}={value}" for name, value in kept.items())
    print(f"{workdir}: keeps {choices}, as the run began", file=sys.stderr)
    with prefix_errors(f"{workdir}: keeps what the run began with"):
        return _with_fields(adapted, kept)


def _with_tokenizer(config: Config, tokenizer: str | None) -> Config:
    """Returns the config with a tokenizer, if it names neither one nor a model to begin with."""
    if tokenizer is None or config.data.tokenizer or config.training.init_from:
        return config
    data = dataclasses.replace(config.data, tokenizer=tokenizer)
    return dataclasses.replace(config, data=data)


def _saved_config(workdir: str | pathlib.Path, mirror: str | None) -> Config | None:
    """Returns the config of the run in a workdir, or else in its mirror; None without one."""
    for path in (workdir, mirror):
        if path is None:
            continue
        # The check of the run, which follows, explains why a config cannot be used.
        with contextlib.suppress(UserError):
            folder = Workdir(local_path(path))
            if folder.config.exists():
                return read_config(folder)
    return None


def _field_of(word: str) -> str:
    """Returns the field of an override: "training.steps" of ``--config.training.steps=10``."""
    field, _, _ = word.removeprefix("--config.").partition("=")
    return field


def _choices_to_keep(
    adapt: Adapt, config: Config, adapted: Config, *, saved: Config, given: Sequence[str]
) -> dict[str, Any]:
    """Returns the saved values of fields that ``adapt`` chose otherwise when the run began.

    A field that ``adapt`` does not choose is the user's, who may have edited the file: a new value
    must be refused. ``adapt`` chooses a field if it replaces its value, which is therefore first
    the value in the file, and then the saved one.
    """
    now = _fields_of(adapted)
    was = _fields_of(saved)
    differing = {}
    for name, value in now.items():
        if name in given or name not in was:
            continue
        if was[name] != value:
            differing[name] = was[name]

    chosen = _changed_fields(config, adapted)
    if differing.keys() - chosen:
        # Values of two configs may contradict each other; the check of the run reports that.
        with contextlib.suppress(UserError), contextlib.redirect_stderr(io.StringIO()):
            probe = _with_fields(config, differing)
            chosen |= _changed_fields(probe, adapt(probe))
    return {name: value for name, value in differing.items() if name in chosen}


def _fields_of(config: Config) -> dict[str, Any]:
    """Returns the values of all fields, by names such as "training.steps"."""
    return {
        f"{section}.{name}": value
        for section, values in config.to_dict().items()
        for name, value in values.items()
    }


def _changed_fields(before: Config, after: Config) -> set[str]:
    old = _fields_of(before)
    new = _fields_of(after)

    changed = set()
    for name, value in new.items():
        is_new = name not in old
        if is_new or old[name] != value:
            changed.add(name)
    return changed


def _with_fields(config: Config, fields: dict[str, Any]) -> Config:
    """Returns a config with other values of fields such as "training.steps"."""
    sections = config.to_dict()
    for name, value in fields.items():
        section, _, field = name.partition(".")
        sections[section][field] = value
    return Config.from_dict(sections)


def _execute_config(name: str) -> tuple[Any, AdaptConfig | None]:
    """Returns the ``ConfigDict`` of a file, which is executed, and its function for the overrides.

    A file may have a function ``adapt_config(config, variant, given)``. It returns the final
    config, after the overrides of the fields that are ``given``.
    """
    file, colon, variant = name.partition(":")
    path = pathlib.Path(file)
    _check_is_file(path)
    _check_encoding(path)

    try:
        found = runpy.run_path(file)
        get_config = found.get("get_config", lambda *_: None)
        values = get_config(variant) if colon else get_config()
    except UserError:
        raise
    except SyntaxError as error:
        place = f"{error.filename or file}:{error.lineno or 1}"
        raise UserError(f"{place}: {error.msg}") from None
    except Exception as error:
        # The last line of the file itself, and not of a library that it calls.
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == file]
        place = f"{file}:{lines[-1]}" if lines else file

        kind = type(error).__name__
        message = " ".join(str(error).split())
        hint = _import_hint(error, path)
        raise UserError(f"{place}: {kind}: {message}{hint}") from None

    if not hasattr(values, "to_dict"):
        raise UserError(
            f"{file}: expected a function get_config that returns a config; add it or its return"
        )
    return values, found.get("adapt_config")


def _check_is_file(path: pathlib.Path) -> None:
    """Refuses a path that is not a file, and hints at the file that may be meant."""
    if path.is_file():
        return

    problem = "no such file"
    if path.exists():
        problem = "expected a Python file, found a folder, a pipe or a device"
    otherwise = "name another"
    if path.stem in shipped_configs():
        otherwise = f"jaxformer's own is named {path.stem}"
    neighbors = [str(neighbor) for neighbor in path.parent.glob("*.py")]
    hint = did_you_mean(str(path), neighbors, otherwise)
    raise UserError(f"{path}: {problem}; {hint}")


def _check_encoding(path: pathlib.Path) -> None:
    """Refuses a file that is not text in UTF-8 or in the encoding that it declares to Python."""
    with explain_read_errors(path), path.open("rb") as file:
        try:
            encoding, _ = tokenize.detect_encoding(file.readline)
        except SyntaxError:  # Not UTF-8, or an unknown declaration, which Python reports.
            encoding = "utf-8"
    if encoding.startswith("utf-8"):
        for _ in read_file(path):
            pass


def _import_hint(error: Exception, path: pathlib.Path) -> str:
    """Returns how to import a module beside the config, whose folder is not searched."""
    if not isinstance(error, ModuleNotFoundError):
        return ""

    module, _, _ = str(error.name).partition(".")
    is_file = (path.parent / f"{module}.py").exists()
    is_package = (path.parent / module).exists()
    if not (is_file or is_package):
        return ""

    return (
        f"; {module} is beside the config: add its folder first, "
        "sys.path.append(os.path.dirname(__file__))"
    )


def _override(config: Any, word: str) -> None:
    """Sets a field of a ``ConfigDict``, such as ``--config.model.num_layers=3``."""
    path, equals, text = word.removeprefix("--config.").partition("=")
    section, dot, name = path.rpartition(".")
    is_section = not dot and name in config
    if is_section:
        fields = ", ".join(config[name])
        raise UserError(f"--config.{name}: expected one of its fields: {fields}")

    known = config.get(section, {}) if dot else config
    if name not in known:
        # A name that several sections have means the field of the given section.
        meant = field_names("", config.to_dict())
        meant |= {own: f"{section}{dot}{own}" for own in known}
        hint = did_you_mean(
            name.replace("-", "_"),
            known=meant,
            otherwise=f"known: {', '.join(known or config)}",
            meaning=meant.__getitem__,
        )
        raise UserError(f"unknown config field {path}; {hint}")

    kind = known.get_type(name)
    try:
        if kind is bool and not equals:
            known[name] = True
        elif kind is bool:
            known[name] = _BOOLEANS[text.lower()]
        elif kind in _EXPECTED:
            known[name] = kind(text)
        else:
            known[name] = text
    except (KeyError, ValueError):
        expected = _EXPECTED.get(kind, "text")
        raise UserError(f"--config.{path}: expected {expected}, got {text!r}") from None


def field_names(prefix: str, config: dict[str, dict[str, Any]] | None = None) -> dict[str, str]:
    """Returns fields such as "training.steps", by name here and in other programs."""
    if config is None:
        config = Config().to_dict()

    names: dict[str, str] = {}
    for section in sorted(config, key=_SECTIONS.index):
        for name in config[section]:
            names[name] = f"{prefix}{section}.{name}"

    own = set(names.values())
    for field, synonyms in _SYNONYMS.items():
        full_name = f"{prefix}{field}"
        if full_name in own:
            names |= dict.fromkeys(synonyms.split(), full_name)
    return names | dict.fromkeys(_WORKDIR, "--workdir")
