"""Fine-tuning: a new run begins with the parameters and the tokenizer of another model."""

import collections
import dataclasses
import functools
import json
import math
import pathlib
import sys
from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np
from jaxtyping import Int, PyTree

from jaxformer import pretrained
from jaxformer.config import Config, ModelConfig, load_run
from jaxformer.data.tokenizer import Vocabulary
from jaxformer.errors import UserError, did_you_mean
from jaxformer.files import model_path, write_file
from jaxformer.inference.weights import TrainedModel, params_sha256
from jaxformer.runs import processes
from jaxformer.runs.workdir import Workdir, read_object
from jaxformer.training.optimizer import path_of
from jaxformer.training.state import StartFrom

# Value of data.tokenizer: learn one from the training text, even with training.init_from.
NEW = "new"
# Fields of a model that may differ from the model it begins with. All others determine the layers.
_MAY_DIFFER = {
    *("vocab_size", "target_vocab_size", "max_length", "compute_dtype", "biases"),
    *("dropout_rate", "attention_dropout_rate", "window", "num_classes"),
}
_TABLES = ("embedding", "src_embedding", "tgt_embedding", "output_embedding", "logits_bias")
_CLASSES = ("classes", "classes_bias")
# An imported model's bias of -inf keeps tokens from being generated, but training skips steps whose
# parameters are infinite. XLA flushes the exponential of this number to 0 in float32.
_NEVER_GENERATED = -100.0

T = TypeVar("T", bound=Vocabulary)


def given_tokenizer(config: Config, load: Callable[[pathlib.Path], T]) -> T | None:
    """Returns the tokenizer that a new run does not learn, but takes from a file or a workdir.

    It is the tokenizer of ``data.tokenizer``, or else of ``training.init_from``.

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


def initialization(config: Config, tokenizer: Vocabulary, run: Workdir) -> StartFrom | None:
    """Returns how a new run gets its parameters from ``training.init_from``, or None."""
    if config.training.init_from is None:
        return None
    folder = Workdir(model_path(config.training.init_from))
    return functools.partial(_start_from, folder, config, tokenizer, run)


def _start_from(
    folder: Workdir, config: Config, tokenizer: Vocabulary, run: Workdir, fresh: PyTree
) -> PyTree:
    """Returns the parameters of a workdir where they fit, and the fresh ones elsewhere.

    Prints on stderr what was taken, what is new, and what was left out.

    Raises:
      UserError: The workdir holds no model, a damaged one, or another one than when the run began.
    """
    source = TrainedModel.load(folder.path, dequantized=True)
    processes.check_agreement({"checkpoint in training.init_from": source.weights})
    _check_same(folder, run, params_sha256(source.params))
    theirs = source.tokenizer
    merged, lines = merge(
        processes.on_this_host(fresh),
        jax.device_get(source.params),
        matching_ids(tokenizer, theirs),
    )
    if processes.is_primary():
        which = "its" if tokenizer.sha256 == theirs.sha256 else "another"
        print(
            f"starts from {folder.path}, {source.weights}, with {which} tokenizer:", file=sys.stderr
        )
        print("\n".join(lines), file=sys.stderr)
    return merged


def _check_same(folder: Workdir, run: Workdir, digest: str) -> None:
    """Records the hash of a new run's first parameters, or compares it with the one recorded.

    A run that is killed before its first checkpoint begins again.
    """
    record = run.initial_parameters
    if not run.config.exists():
        if processes.is_primary():
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
    if source.kind.network is not config.kind.network:
        raise UserError(
            f"training.init_from={folder.path}: expected {config.kind.description}, got "
            f"{source.kind.description}"
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


def matching_ids(ours: Vocabulary, theirs: Vocabulary) -> Int[np.ndarray, "2 N"]:
    """Returns our ids and their ids of the pieces that two tokenizers have in common."""
    if ours.sha256 == theirs.sha256:
        return np.tile(np.arange(ours.vocab_size), (2, 1))
    # The first of several ids of one piece.
    their_ids = {theirs.piece(i): i for i in reversed(range(theirs.vocab_size))}
    ids = [(i, their_ids.get(ours.piece(i))) for i in range(ours.vocab_size)]
    return np.array([pair for pair in ids if pair[1] is not None], np.int64).T


def merge(fresh: PyTree, saved: PyTree, ids: Int[np.ndarray, "2 N"]) -> tuple[PyTree, list[str]]:
    """Returns the saved parameters in the shapes of the fresh ones.

    Rows of embeddings are matched by piece, rows of learned positions by position.

    Args:
      fresh: Parameters on this host, for everything that is not in ``saved``.
      saved: Parameters on this host.
      ids: New ids and saved ids of the pieces that both vocabularies have.

    Returns:
      The parameters, and lines that list what was taken, is new, and was left out.
    """
    old = {path_of(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(saved)}
    # Sizes and descriptions of arrays, or of rows of them, by what became of them and their group.
    found: dict[tuple[str, str], list[tuple[int, str]]] = collections.defaultdict(list)

    def note(kind: str, path: str, shape: tuple[int, ...], rows: str = "") -> None:
        entry = f"{path} {list(shape)}{rows and ': '}{rows}"
        found[kind, path.partition("/")[0]].append((math.prod(shape), entry))

    def choose(path: jax.tree_util.KeyPath, leaf: np.ndarray) -> np.ndarray:
        name, leaf = path_of(path), np.asarray(leaf)
        values = old.pop(name, None)
        if values is None:
            note("new", name, leaf.shape)
            return leaf
        if name == "logits_bias":
            values = np.where(np.isneginf(values), np.float32(_NEVER_GENERATED), values)
        if name in _TABLES:
            rows, what = ids[:, (ids[0] < len(leaf)) & (ids[1] < len(values))], "pieces"
        elif name in _CLASSES and leaf.shape != values.shape:
            note("new", name, leaf.shape)
            note("left out", name, values.shape)
            return leaf
        elif leaf.shape != values.shape:
            rows, what = np.stack([np.arange(min(len(leaf), len(values)))] * 2), "positions"
        else:
            note("taken", name, leaf.shape)
            return values
        result, taken = leaf.copy(), rows.shape[1]
        result[rows[0]] = values[rows[1]]
        some = taken < max(len(leaf), len(values))
        for kind, count, text in (
            ("taken", taken, f"{taken:,} of {len(leaf):,} rows, of {what} that both have" * some),
            ("new", len(leaf) - taken, f"rows of new {what}"),
            ("left out", len(values) - taken, f"rows of {what} that the new model lacks"),
        ):
            if count:
                note(kind, name, (count, *leaf.shape[1:]), text)
        return result

    merged = jax.tree.map_with_path(choose, fresh)
    for name, values in old.items():
        note("left out", name, values.shape)
    return merged, [
        f"  {kind:8}  {_described(group, arrays)}"
        for kind in ("taken", "new", "left out")
        for (own, group), arrays in found.items()
        if own == kind
    ]


def _described(group: str, arrays: list[tuple[int, str]]) -> str:
    if len(arrays) == 1:
        return arrays[0][1]
    size = sum(size for size, _ in arrays)
    return f"{group}: {size:,} parameters in {len(arrays)} arrays, such as {arrays[0][1]}"
