"""Fine-tuning: a new run begins with the parameters and the tokenizer of another model."""

import dataclasses
import itertools
import json
import math
import pathlib
import sys
from collections.abc import Callable, Collection, Iterator
from typing import TypeAlias

import jax
import numpy as np
from jaxtyping import Int, PyTree

from jaxformer import pretrained
from jaxformer.config import Config, read_config
from jaxformer.data.tokenizer import Vocabulary
from jaxformer.errors import UserError, did_you_mean, prefix_errors
from jaxformer.files import model_path, write_file
from jaxformer.inference.weights import TrainedModel, params_sha256
from jaxformer.models.architecture import Architecture
from jaxformer.runs import processes
from jaxformer.runs.workdir import Workdir, read_workdir_object
from jaxformer.training.optimizer import path_of
from jaxformer.training.state import StartFrom

# Value of data.tokenizer: learn one from the training text, even with training.init_from.
NEW = "new"
# Fields that may differ from the initial model. All others determine the layers.
_MAY_DIFFER = {
    *("vocab_size", "target_vocab_size", "max_length", "compute_dtype", "biases"),
    *("dropout_rate", "attention_dropout_rate", "window", "num_classes", "heads"),
    "absent_tokens",
}
_TABLES = ("embedding", "src_embedding", "tgt_embedding", "output_embedding", "logits_bias")
_HAVE_ROWS = (*_TABLES, "positions", "src_positions", "tgt_positions")
# An imported model's bias of -inf keeps tokens from being generated, but training skips steps whose
# parameters are infinite. XLA flushes the exponential of this number to 0 in float32.
_NEVER_GENERATED = -100.0

# Name and shape of an array or of some of its rows, and a description of the rows.
_Note: TypeAlias = tuple[str, tuple[int, ...], str]


def tokenizer_of_run(config: Config, run: Workdir, learn: Callable[[], Vocabulary]) -> Vocabulary:
    """Returns the tokenizer of a workdir; a new run takes the config's or learns one."""
    load = config.kind.load_tokenizer
    assert load is not None
    if run.config.exists():
        run.check_tokenizer()
        return load(run.tokenizer)
    name = _named_tokenizer(config)
    if name is None:
        return learn()
    path = model_path(name)
    option = "data.tokenizer" if config.data.tokenizer else "training.init_from"
    with prefix_errors(f"{option}={name}"):
        if path.is_dir():
            folder = Workdir(path)
            folder.check_tokenizer()
            path = folder.tokenizer
        tokenizer = load(path)
    if tokenizer.vocab_size != config.model.vocab_size:
        raise UserError(
            f"model.vocab_size must be {tokenizer.vocab_size}, the size of {path}: got "
            f"{config.model.vocab_size}; give --config.model.vocab_size={tokenizer.vocab_size}, or "
            f"--config.data.tokenizer={NEW} to learn another tokenizer"
        )
    return tokenizer


def take_vocab_size(config: Config, given: Collection[str], saved: Config | None = None) -> Config:
    """Returns the config with the vocabulary size of the tokenizer that it names, and logs it.

    A size among the ``given`` fields stays. A run that resumes, with the ``saved`` config, has its
    own copy of the tokenizer, so that the model it began with may be deleted.
    """
    name = _named_tokenizer(config)
    if name is None or "model.vocab_size" in given:
        return config
    own = getattr(config.model, "vocab_size", None)  # Models of pictures have none.
    if saved is None:
        size = _vocab_size(config, model_path(name))
    else:
        size = getattr(saved.model, "vocab_size", None)
    if None in (size, own) or size == own:
        return config
    print(f"model.vocab_size={size}: the size of the tokenizer of {name}", file=sys.stderr)
    return dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=size))


def _named_tokenizer(config: Config) -> str | None:
    """Returns the file or workdir whose tokenizer a new run takes; None if it learns one."""
    if config.data.tokenizer == NEW:
        return None
    return config.data.tokenizer or config.training.init_from


def _vocab_size(config: Config, path: pathlib.Path) -> int | None:
    """Returns the size of the tokenizer of a file or workdir; None if there is none."""
    if path.is_dir():
        folder = Workdir(path)
        model = read_config(folder).model if folder.config.exists() else None
        return getattr(model, "vocab_size", None)
    load = config.kind.load_tokenizer
    return load(path).vocab_size if load is not None and path.is_file() else None


def make_start_from(config: Config, tokenizer: Vocabulary | None, run: Workdir) -> StartFrom | None:
    """Returns ``start_from`` of :func:`~jaxformer.fit` for ``training.init_from``, or None."""
    if config.training.init_from is None:
        return None
    folder = Workdir(model_path(config.training.init_from))

    def start_from(fresh: PyTree) -> PyTree:
        source = TrainedModel.load(folder.path, dequantized=True)
        processes.check_agreement({"checkpoint in training.init_from": source.weights})
        _check_same(folder, run, params_sha256(source.params))
        saved, ids, note = jax.device_get(source.params), np.zeros((2, 0), np.int64), ""
        if tokenizer is not None:
            theirs = source.tokenizer
            if tokenizer.symbols != theirs.symbols:  # The classes are others.
                saved = {n: a for n, a in saved.items() if n not in ("classes", "classes_bias")}
            ids = matching_ids(tokenizer, theirs)
            which = "its" if tokenizer.sha256 == theirs.sha256 else "another"
            note = f", with {which} tokenizer"
        merged, lines = merge(processes.on_this_host(fresh), saved, ids)
        if processes.is_primary():
            first = f"starts from {folder.path}, {source.weights}{note}:"
            print(first, *lines, sep="\n", file=sys.stderr)
        return merged

    return start_from


def _check_same(folder: Workdir, run: Workdir, digest: str) -> None:
    """Records the hash of a new run's initial parameters, or compares it with the recorded hash.

    A run that is killed before its first checkpoint starts again.
    """
    record = run.initial_parameters
    if not run.config.exists():
        if processes.is_primary():
            write_file(record, (json.dumps({"sha256": digest}) + "\n").encode())
    elif record.exists() and read_workdir_object(record).get("sha256") != digest:
        raise UserError(
            f"training.init_from={folder.path}: expected the parameters that the run began with, "
            "but it has others now; bring them back, or begin again in another --workdir"
        )


def check_initialization(config: Config) -> None:
    """Checks that the model of ``training.init_from``, if any, has the config's layers."""
    if config.training.init_from is None:
        return
    folder = Workdir(model_path(config.training.init_from))
    if not folder.config.exists():
        name, known = config.training.init_from, pretrained.NAME
        hint = did_you_mean(name, [known], "give the folder of a run, or of an imported model")
        raise UserError(
            f"training.init_from={name}: expected a workdir, or {known!r} for the model that "
            f"comes with jaxformer, but there is no {folder.config}; {hint}"
        )
    source, kind = read_config(folder), config.kind
    with prefix_errors(f"training.init_from={folder.path}"):
        if source.kind.networks != kind.networks:
            raise UserError(f"expected {kind.description}, got {source.kind.description}")
        own, other = type(config.model), type(source.model)
        if own is not other:
            raise UserError(f"expected a model of class {own.__name__}, got {other.__name__}")
        ours, theirs = map(_layers_of, (config.model, source.model))
        flags = [f"--config.model.{n}={theirs[n]}" for n in ours if theirs[n] != ours[n]]
        if flags:
            raise UserError(f"its model has other layers than the config; give {' '.join(flags)}")


def _layers_of(model: Architecture) -> dict[str, object]:
    """Returns all fields that determine the layers, and the sizes of heads."""
    values = dataclasses.asdict(model) | {"d_k": model.key_size, "d_v": model.value_size}
    return {name: value for name, value in values.items() if name not in _MAY_DIFFER}


def matching_ids(ours: Vocabulary, theirs: Vocabulary) -> Int[np.ndarray, "2 N"]:
    """Returns the ids in both tokenizers of the pieces that they share."""
    own, others = ([each.piece(i) for i in range(each.vocab_size)] for each in (ours, theirs))
    if own == others:
        return np.tile(np.arange(len(own)), (2, 1))
    # The first id of a repeated piece.
    their_ids = {piece: i for i, piece in reversed(list(enumerate(others)))}
    ids = [(i, their_ids.get(piece)) for i, piece in enumerate(own)]
    return np.array([pair for pair in ids if pair[1] is not None], np.int64).T


def merge(fresh: PyTree, saved: PyTree, ids: Int[np.ndarray, "2 N"]) -> tuple[PyTree, list[str]]:
    """Returns the fresh parameters with all saved values that fit, and a description in lines.

    Rows of embeddings are matched by piece, rows of learned positions by position. All else that is
    not in ``saved``, or of another shape, is fresh. The lines list taken, new and omitted arrays.
    """
    old = {path_of(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(saved)}
    notes: dict[str, list[_Note]] = {"taken": [], "new": [], "left out": []}

    def choose(path: jax.tree_util.KeyPath, leaf: np.ndarray) -> np.ndarray:
        name, leaf = path_of(path), np.asarray(leaf)
        if name not in old or (name not in _HAVE_ROWS and leaf.shape != old[name].shape):
            notes["new"].append((name, leaf.shape, ""))
            return leaf
        values = old.pop(name)
        if name == "logits_bias":
            values = np.where(np.isneginf(values), np.float32(_NEVER_GENERATED), values)
        if name in _TABLES:
            rows, what = ids[:, (ids[0] < len(leaf)) & (ids[1] < len(values))], "pieces"
        else:
            rows, what = np.tile(np.arange(min(len(leaf), len(values))), (2, 1)), "positions"
        result, taken = leaf.copy(), rows.shape[1]
        result[rows[0]] = values[rows[1]]
        some = taken < max(len(leaf), len(values))
        for kind, count, text in (
            ("taken", taken, f": {taken:,} of {len(leaf):,} rows, of {what} that both have" * some),
            ("new", len(leaf) - taken, f": rows of new {what}"),
            ("left out", len(values) - taken, f": rows of {what} that the new model lacks"),
        ):
            if count:
                notes[kind].append((name, (count, *leaf.shape[1:]), text))
        return result

    merged = jax.tree.map_with_path(choose, fresh)
    notes["left out"] += [(name, values.shape, "") for name, values in old.items()]
    return merged, [f"  {kind:8}  {line}" for kind in notes for line in _by_group(notes[kind])]


def _by_group(notes: list[_Note]) -> Iterator[str]:
    """Yields a line for the arrays of each part of a model."""
    for group, found in itertools.groupby(notes, lambda note: note[0].partition("/")[0]):
        arrays = list(found)
        name, shape, text = arrays[0]
        line = f"{name} {list(shape)}{text}"
        if (count := len(arrays)) > 1:
            size = sum(math.prod(shape) for _, shape, _ in arrays)
            line = f"{group}: {size:,} parameters in {count} arrays, such as {line}"
        yield line
