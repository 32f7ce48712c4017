"""Fine-tuning: a new run begins with the parameters and the tokenizer of another model."""

import dataclasses
import functools
import itertools
import json
import math
import pathlib
import sys
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import jax
import numpy as np
from jaxtyping import Int, PyTree

from jaxformer import pretrained
from jaxformer.config import Config, ModelConfig, StreamConfig, load_run, model_of
from jaxformer.data.marian_tokenizer import load_tokenizer
from jaxformer.data.stream import StreamTokenizer, load_stream_tokenizer
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.errors import UserError, did_you_mean
from jaxformer.files import model_path, write_file
from jaxformer.inference.weights import load_params, params_sha256
from jaxformer.nn.precision import dequantize
from jaxformer.training import hosts
from jaxformer.training.optimizer import path_of
from jaxformer.training.step import StartFrom
from jaxformer.workdir import Workdir, read_object

# Value of data.tokenizer: learn one from the training text, even with training.init_from.
NEW = "new"
# Fields of a model that may differ from the model it begins with. All others determine the layers.
_MAY_DIFFER = {
    *("vocab_size", "target_vocab_size", "max_length", "compute_dtype", "biases"),
    *("dropout_rate", "attention_dropout_rate"),
}
_TABLES = ("embedding", "src_embedding", "tgt_embedding", "output_embedding", "logits_bias")
# An imported model's bias of -inf keeps tokens from being generated, but training skips steps whose
# parameters are infinite. XLA flushes the exponential of this number to 0 in float32.
_NEVER_GENERATED = -100.0

T = TypeVar("T", Tokenizer, StreamTokenizer)
AnyTokenizer: TypeAlias = Tokenizer | StreamTokenizer
Kind = Literal["taken", "new", "left out"]


def given_tokenizer(config: Config, load: Callable[[pathlib.Path], T]) -> T | None:
    """Returns the tokenizer that a new run does not learn, but takes from a file or a workdir.

    It is the tokenizer of ``data.tokenizer``, or else of ``training.init_from``.

    Args:
      config: The experiment.
      load: Reads the file of a tokenizer.

    Raises:
      UserError: There is no such file, or its size is not ``model.vocab_size``.
    """
    name = config.data.tokenizer or config.training.init_from
    if name is None or config.data.tokenizer == NEW:
        return None
    path = model_path(name)
    try:
        if path.is_dir():
            folder = Workdir(path)
            folder.check_tokenizer()
            path = folder.tokenizer
        tokenizer = load(path)
    except UserError as error:
        option = "data.tokenizer" if config.data.tokenizer else "training.init_from"
        raise UserError(f"{option}={name}: {error}") from None
    if tokenizer.vocab_size != config.model.vocab_size:
        raise UserError(
            f"model.vocab_size must be {tokenizer.vocab_size}, the size of {path}: got "
            f"{config.model.vocab_size}; give --config.model.vocab_size={tokenizer.vocab_size}, or "
            f"--config.data.tokenizer={NEW} to learn another tokenizer"
        )
    return tokenizer


def initialization(config: Config, tokenizer: AnyTokenizer, run: Workdir) -> StartFrom | None:
    """Returns how a new run gets its parameters from ``training.init_from``, or None.

    Args:
      config: The experiment.
      tokenizer: The tokenizer of the new run.
      run: Its workdir.
    """
    if config.training.init_from is None:
        return None
    folder = Workdir(model_path(config.training.init_from))
    return functools.partial(_start_from, folder, config, tokenizer, run)


def _start_from(
    folder: Workdir, config: Config, tokenizer: AnyTokenizer, run: Workdir, fresh: PyTree
) -> PyTree:
    """Returns the parameters of a workdir where they fit, and the fresh ones elsewhere.

    Prints on stderr what was taken, what is new, and what was left out.

    Raises:
      UserError: The workdir holds no model, a damaged one, or another one than when the run began.
    """
    source = load_run(folder)
    params, origin = load_params(folder, source.model, "auto", model_of(source))
    if source.model.compute_dtype == "int8":
        params, origin = dequantize(params), f"{origin}, converted from int8"
    hosts.check_agreement({"checkpoint in training.init_from": origin})
    _check_same(folder, run, params_sha256(params))
    folder.check_tokenizer()
    is_stream = isinstance(config.data, StreamConfig)
    theirs = (load_stream_tokenizer if is_stream else load_tokenizer)(folder.tokenizer)
    merged, entries = merge(
        hosts.on_this_host(fresh), jax.device_get(params), matching_ids(tokenizer, theirs)
    )
    if hosts.is_primary():
        which = "its" if tokenizer.sha256 == theirs.sha256 else "another"
        print(f"starts from {folder.path}, {origin}, with {which} tokenizer:", file=sys.stderr)
        print("\n".join(listed(entries)), file=sys.stderr)
    return merged


def _check_same(folder: Workdir, run: Workdir, digest: str) -> None:
    """Records the hash of a new run's first parameters, or compares it with the one recorded.

    A run that is killed before its first checkpoint begins again.
    """
    record = run.initial_parameters
    if not run.config.exists():
        if hosts.is_primary():
            write_file(record, (json.dumps({"sha256": digest}) + "\n").encode())
    elif record.exists() and read_object(record).get("sha256") != digest:
        raise UserError(
            f"training.init_from={folder.path}: expected the parameters that the run began with, "
            "but it has others now; bring them back, or begin again in another --workdir"
        )


def check_initialization(config: Config) -> None:
    """Checks that the model of ``training.init_from``, if any, has the layers of the config.

    Raises:
      UserError: It has others, or there is no model.
    """
    if config.training.init_from is None:
        return
    folder = Workdir(model_path(config.training.init_from))
    if not folder.config.exists():
        name = config.training.init_from
        known = [pretrained.NAME]
        hint = did_you_mean(name, known, "give the folder of a run, or of an imported model")
        raise UserError(
            f"training.init_from={name}: expected a workdir, or {known[0]!r} for the model that "
            f"comes with jaxformer, but there is no {folder.config}; {hint}"
        )
    source = load_run(folder)
    if model_of(source) is not model_of(config):
        raise UserError(
            f"training.init_from={folder.path}: expected a {model_of(config).__name__}, got a "
            f"{model_of(source).__name__}"
        )
    ours, theirs = map(_layers_of, (config.model, source.model))
    flags = [f"--config.model.{name}={theirs[name]}" for name in ours if theirs[name] != ours[name]]
    if flags:
        raise UserError(
            f"training.init_from={folder.path}: its model has other layers than the config; give "
            f"{' '.join(flags)}"
        )


def _layers_of(model: ModelConfig) -> dict[str, object]:
    """Returns all fields that determine the layers, with the sizes of heads."""
    values = dataclasses.asdict(model) | {"d_k": model.key_size, "d_v": model.value_size}
    return {name: value for name, value in values.items() if name not in _MAY_DIFFER}


def matching_ids(ours: AnyTokenizer, theirs: AnyTokenizer) -> Int[np.ndarray, "2 N"]:
    """Returns our ids and their ids of the pieces that two tokenizers have in common."""
    if ours.sha256 == theirs.sha256:
        return np.tile(np.arange(ours.vocab_size), (2, 1))
    # The first of several ids of one piece.
    their_ids = {theirs.piece(i): i for i in reversed(range(theirs.vocab_size))}
    ids = [(i, their_ids.get(ours.piece(i))) for i in range(ours.vocab_size)]
    return np.array([pair for pair in ids if pair[1] is not None], np.int64).T


class Entry(NamedTuple):
    """An array, or rows of one, in the list that is printed.

    Attributes:
      kind: What became of it.
      path: Path of the parameter, such as "encoder/layers/norm".
      shape: Shape of the array, or of the rows.
      note: Which rows it has; "" for a whole array.
    """

    kind: Kind
    path: str
    shape: tuple[int, ...]
    note: str = ""


def merge(fresh: PyTree, saved: PyTree, ids: Int[np.ndarray, "2 N"]) -> tuple[PyTree, list[Entry]]:
    """Returns the saved parameters in the shapes of the fresh ones.

    Rows of embeddings are matched by piece, rows of learned positions by position.

    Args:
      fresh: Parameters on this host, for everything that is not in ``saved``.
      saved: Parameters on this host.
      ids: New ids and saved ids of the pieces that both vocabularies have.

    Returns:
      The parameters, and a list of what was taken, is new, and was left out.
    """
    old = {path_of(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(saved)}
    entries: list[Entry] = []

    def choose(path: jax.tree_util.KeyPath, leaf: np.ndarray) -> np.ndarray:
        name, leaf = path_of(path), np.asarray(leaf)
        values = old.pop(name, None)
        if values is None:
            entries.append(Entry("new", name, leaf.shape))
            return leaf
        if name == "logits_bias":
            values = np.where(np.isneginf(values), np.float32(_NEVER_GENERATED), values)
        if name in _TABLES:
            known = (ids[0] < len(leaf)) & (ids[1] < len(values))
            return _with_rows(name, leaf, values, ids[:, known], "pieces", entries)
        if leaf.shape != values.shape:
            common = np.arange(min(len(leaf), len(values)))
            return _with_rows(name, leaf, values, np.stack([common] * 2), "positions", entries)
        entries.append(Entry("taken", name, leaf.shape))
        return values

    merged = jax.tree.map_with_path(choose, fresh)
    entries += [Entry("left out", name, values.shape) for name, values in old.items()]
    return merged, entries


def _with_rows(
    name: str,
    leaf: np.ndarray,
    values: np.ndarray,
    rows: Int[np.ndarray, "2 N"],
    what: str,
    entries: list[Entry],
) -> np.ndarray:
    """Replaces rows of an array by rows of another one, and adds entries to the list."""
    result = leaf.copy()
    result[rows[0]] = values[rows[1]]
    taken, width = rows.shape[1], leaf.shape[1:]
    counts: list[tuple[Kind, int, str]] = [
        ("taken", taken, f"{taken:,} of {len(leaf):,} rows, of {what} that both have"),
        ("new", len(leaf) - taken, f"rows of new {what}"),
        ("left out", len(values) - taken, f"rows of {what} that the new model lacks"),
    ]
    for kind, count, note in counts:
        if count:
            whole = kind == "taken" and taken == len(leaf) == len(values)
            entries.append(Entry(kind, name, (count, *width), "" if whole else note))
    return result


def listed(entries: list[Entry]) -> list[str]:
    """Returns a line for each kind of entries and top-level name."""
    order = ("taken", "new", "left out")
    entries = sorted(entries, key=lambda entry: order.index(entry.kind))
    lines = []
    for (kind, name), group in itertools.groupby(
        entries, lambda entry: (entry.kind, entry.path.partition("/")[0])
    ):
        first, *others = group
        text = f"{first.path} {list(first.shape)}{first.note and ': '}{first.note}"
        if others:
            size = sum(math.prod(entry.shape) for entry in (first, *others))
            text = f"{name}: {size:,} parameters in {1 + len(others)} arrays, such as {text}"
        lines.append(f"  {kind:8}  {text}")
    return lines
