"""Fine-tuning: a new run begins with the parameters and the tokenizer of another model."""

import dataclasses
import itertools
import json
import math
import pathlib
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Int, PyTree

from jaxformer import pretrained
from jaxformer.config import Config, read_config
from jaxformer.data.tokenizer import Vocabulary
from jaxformer.errors import UserError, did_you_mean, prefix_errors
from jaxformer.fields import STRICT, facts_of
from jaxformer.files import model_path, write_file
from jaxformer.inference.parameter_arrays import params_sha256
from jaxformer.inference.weights import TrainedModel
from jaxformer.models.architecture import NEVER_GENERATED, Architecture
from jaxformer.runs import processes
from jaxformer.runs.workdir import Workdir, read_workdir_object
from jaxformer.training.paths import path_of
from jaxformer.training.train_state import StartFrom
from jaxformer.waits import log_stream

# Value of data.tokenizer: learn one from the training text, even with training.init_from.
NEW = "new"
_TABLES = ("embedding", "src_embedding", "tgt_embedding", "output_embedding", "logits_bias")
_HAVE_ROWS = (*_TABLES, "positions", "src_positions", "tgt_positions")


class _Note(NamedTuple):
    """An array, or some of its rows, in the description of :func:`merge`."""

    name: str
    shape: tuple[int, ...]
    text: str = ""


def tokenizer_of_run(
    config: Config,
    run: Workdir,
    learn: Callable[[], Vocabulary],
) -> Vocabulary:
    """Returns the tokenizer of a workdir; a new run takes the config's or learns one."""
    load = config.kind.load_tokenizer
    assert load is not None, "this kind has a tokenizer"
    if run.config.exists():
        run.check_tokenizer()
        return load(run.tokenizer)

    found = named_tokenizer(config)
    if found is None:
        return learn()

    path, tokenizer = found
    if tokenizer.vocab_size != config.model.vocab_size:
        raise UserError(
            f"model.vocab_size must be {tokenizer.vocab_size}, the size of {path}: got "
            f"{config.model.vocab_size}; give --config.model.vocab_size={tokenizer.vocab_size}, or "
            f"--config.data.tokenizer={NEW} to learn another tokenizer"
        )
    return tokenizer


def named_tokenizer(config: Config) -> tuple[pathlib.Path, Vocabulary] | None:
    """Returns the file and the tokenizer that a new run takes; None if it learns one."""
    load = config.kind.load_tokenizer
    name = _named_tokenizer(config)
    if load is None or name is None:
        return None

    path = model_path(name)
    option = "data.tokenizer" if config.data.tokenizer else "training.init_from"
    with prefix_errors(f"{option}={name}"):
        if path.is_dir():
            folder = Workdir(path)
            folder.check_tokenizer()
            path = folder.tokenizer
        return path, load(path)


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

    print(f"model.vocab_size={size}: the size of the tokenizer of {name}", file=log_stream())
    model = dataclasses.replace(config.model, vocab_size=size)
    return dataclasses.replace(config, model=model)


def _named_tokenizer(config: Config) -> str | None:
    """Returns the file or workdir whose tokenizer a new run takes; None if it learns one."""
    if config.data.tokenizer == NEW:
        return None
    if config.data.tokenizer or config.training.init_from is None:
        return config.data.tokenizer

    # A model of speech that was pretrained without transcripts has no letters.
    folder = Workdir(model_path(config.training.init_from))
    has_none = folder.config.exists() and read_config(folder).kind.load_tokenizer is None
    if has_none:
        return None
    return config.training.init_from


def _vocab_size(config: Config, path: pathlib.Path) -> int | None:
    """Returns the size of the tokenizer of a file or workdir; None if there is none."""
    if path.is_dir():
        folder = Workdir(path)
        if not folder.config.exists():
            return None
        saved = read_config(folder)
        return getattr(saved.model, "vocab_size", None)

    load = config.kind.load_tokenizer
    if load is None or not path.is_file():
        return None
    return load(path).vocab_size


def make_start_from(
    config: Config,
    tokenizer: Vocabulary | None,
    run: Workdir,
) -> StartFrom | None:
    """Returns ``start_from`` of :func:`~jaxformer.fit` for ``training.init_from``, or None."""
    name = config.training.init_from
    if name is None:
        return None
    folder = Workdir(model_path(name))

    def start_from(fresh: PyTree) -> PyTree:
        source = TrainedModel.load(folder.path, dequantized=True)
        processes.check_agreement({"checkpoint in training.init_from": source.weights})
        _check_same(name, run, params_sha256(source.params))

        saved = jax.device_get(source.params)
        ids = np.zeros((2, 0), np.int64)
        note = ""
        theirs = source.tokenizer
        if tokenizer is not None and theirs is not None:
            other_heads = _heads_of_other_targets(tokenizer, theirs)
            saved = {name: array for name, array in saved.items() if name not in other_heads}

            ids = matching_ids(tokenizer, theirs)
            which = "another"
            if tokenizer.sha256 == theirs.sha256:
                which = "its"
                # Rows after the vocabulary, such as bins of numbers, are the same, too.
                others = np.arange(tokenizer.vocab_size, config.model.output_size)
                ids = np.hstack([ids, np.tile(others, (2, 1))])
            note = f", with {which} tokenizer"

        merged, lines = merge(processes.on_this_host(fresh), saved, ids)
        if processes.is_primary():
            first = f"starts from {folder.path}, {source.weights}{note}:"
            print(first, *lines, sep="\n", file=log_stream())
        return merged

    return start_from


def _heads_of_other_targets(ours: Vocabulary, theirs: Vocabulary) -> list[str]:
    """Returns the names of the parameters whose outputs mean something else in the new run."""
    heads = []
    if ours.sha256 != theirs.sha256:  # The letters of speech are others.
        heads += ["letters", "letters_bias"]
    if ours.symbols != theirs.symbols:  # The classes are others.
        heads += ["classes", "classes_bias", "tags", "tags_bias"]
    return heads


def _check_same(name: str, run: Workdir, digest: str) -> None:
    """Records the hash of a new run's initial parameters, or compares it with the recorded hash.

    A run that is killed before its first checkpoint starts again.
    """
    record = run.initial_parameters
    if not run.config.exists():
        if processes.is_primary():
            content = json.dumps({"sha256": digest}) + "\n"
            write_file(record, content.encode())
        return

    recorded = digest
    if record.exists():
        recorded = read_workdir_object(record).get("sha256")
    if recorded != digest:
        raise UserError(
            f"training.init_from={name}: expected the parameters that the run began with, "
            "but it has others now; bring them back, or begin again in another --workdir"
        )


def read_initial_config(config: Config) -> Config:
    """Returns the config of the model that ``training.init_from`` names."""
    name = config.training.init_from
    if name is None:
        raise UserError(
            "training.init_from: expected the model to begin with, got none; give "
            f"--config.training.init_from={pretrained.NAME}, or the folder of a run"
        )

    folder = Workdir(model_path(name))
    if not folder.config.exists():
        known = pretrained.NAME
        hint = did_you_mean(name, [known], "give the folder of a run, or of an imported model")
        raise UserError(
            f"training.init_from={name}: expected a workdir, or {known!r} for the model that "
            f"comes with jaxformer, but there is no {folder.config}; {hint}"
        )
    return read_config(folder)


def check_initialization(config: Config) -> None:
    """Checks that the model of ``training.init_from``, if any, has the config's layers."""
    name = config.training.init_from
    if name is None:
        return

    source = read_initial_config(config)
    with prefix_errors(f"training.init_from={name}"):
        network = config.kind.network_of(config.model)
        other_network = source.kind.network_of(source.model)
        extends = network.extends is other_network
        if other_network not in config.kind.networks and not extends:
            raise UserError(f"expected {config.kind.description}, got {source.kind.description}")

        own = type(config.model)
        other = type(source.model)
        if own is not other and not extends:
            raise UserError(f"expected a model of class {own.__name__}, got {other.__name__}")

        ours = _layers_of(config.model)
        theirs = _layers_of(source.model)
        flags = []
        for field, value in theirs.items():
            if value != ours[field] and field != "architecture":
                flags.append(f"--config.model.{field}={value}")
        if flags:
            raise UserError(f"its model has other layers than the config; give {' '.join(flags)}")


def _layers_of(model: Architecture) -> dict[str, object]:
    """Returns all fields that determine the layers, and the sizes of heads."""
    values = dataclasses.asdict(model)
    values["d_k"] = model.key_size
    values["d_v"] = model.value_size

    facts = facts_of(model)
    layers = {}
    for name, value in values.items():
        facts_of_field = facts.get(name, STRICT)
        if not facts_of_field.may_differ:
            layers[name] = value
    return layers


def matching_ids(ours: Vocabulary, theirs: Vocabulary) -> Int[np.ndarray, "2 N"]:
    """Returns the ids in both tokenizers of the pieces that they share."""
    our_pieces = [ours.piece(i) for i in range(ours.vocab_size)]
    their_pieces = [theirs.piece(i) for i in range(theirs.vocab_size)]
    if our_pieces == their_pieces:
        return np.tile(np.arange(len(our_pieces)), (2, 1))

    # The first id of a repeated piece.
    their_ids: dict[str, int] = {}
    for their_id, piece in enumerate(their_pieces):
        their_ids.setdefault(piece, their_id)

    pairs = []
    for our_id, piece in enumerate(our_pieces):
        if piece in their_ids:
            pairs.append((our_id, their_ids[piece]))
    return np.array(pairs, np.int64).T


def merge(
    fresh: PyTree,
    saved: PyTree,
    ids: Int[np.ndarray, "2 N"],
) -> tuple[PyTree, list[str]]:
    """Returns the fresh parameters with all saved values that fit, and a description in lines.

    Rows of embeddings are matched by piece, rows of learned positions by position. All else that is
    not in ``saved``, or of another shape, is fresh. The lines list taken, new and omitted arrays.
    """
    old = {}
    for path, leaf in jax.tree.leaves_with_path(saved):
        old[path_of(path)] = np.asarray(leaf)
    notes: dict[str, list[_Note]] = {
        "taken": [],
        "new": [],
        "left out": [],
    }

    def choose(path: jax.tree_util.KeyPath, leaf: np.ndarray) -> np.ndarray:
        name = path_of(path)
        leaf = np.asarray(leaf)
        has_rows = name in _HAVE_ROWS
        fits = name in old and (has_rows or leaf.shape == old[name].shape)
        if not fits:
            notes["new"].append(_Note(name, leaf.shape))
            return leaf

        values = old.pop(name)
        if not has_rows:
            notes["taken"].append(_Note(name, leaf.shape))
            return values.astype(leaf.dtype)

        if name == "logits_bias":
            # Training skips steps whose parameters are infinite.
            is_forbidden = np.isneginf(values)
            values = np.where(is_forbidden, np.float32(NEVER_GENERATED), values)

        if name in _TABLES:
            our_ids, their_ids = ids
            in_both = (our_ids < len(leaf)) & (their_ids < len(values))
            rows = our_ids[in_both]
            their_rows = their_ids[in_both]
            what = "pieces"
        else:
            count = min(len(leaf), len(values))
            rows = np.arange(count)
            their_rows = rows
            what = "positions"

        for kind, note in _note_rows(name, leaf, values=values, taken=len(rows), what=what):
            notes[kind].append(note)

        result = leaf.copy()
        result[rows] = values[their_rows]
        return result

    merged = jax.tree.map_with_path(choose, fresh)
    for name, values in old.items():
        notes["left out"].append(_Note(name, values.shape))

    lines = []
    for kind, found in notes.items():
        lines += [f"  {kind:8}  {line}" for line in _by_group(found)]
    return merged, lines


def _note_rows(
    name: str,
    leaf: np.ndarray,
    *,
    values: np.ndarray,
    taken: int,
    what: str,
) -> Iterator[tuple[str, _Note]]:
    """Yields notes about the rows of an array that are taken, new and left out, with their kind."""

    def note(count: int, text: str) -> _Note:
        return _Note(name, (count, *leaf.shape[1:]), text)

    new = len(leaf) - taken
    left_out = len(values) - taken
    if taken:
        text = ""
        if new or left_out:
            text = f": {taken:,} of {len(leaf):,} rows, of {what} that both have"
        yield "taken", note(taken, text)
    if new:
        yield "new", note(new, f": rows of new {what}")
    if left_out:
        yield "left out", note(left_out, f": rows of {what} that the new model lacks")


def _by_group(notes: list[_Note]) -> Iterator[str]:
    """Yields a line for the arrays of each part of a model."""

    def group_of(note: _Note) -> str:
        group, _, _ = note.name.partition("/")
        return group

    for group, found in itertools.groupby(notes, group_of):
        arrays = list(found)
        first = arrays[0]
        line = f"{first.name} {list(first.shape)}{first.text}"

        if len(arrays) > 1:
            size = sum(math.prod(note.shape) for note in arrays)
            line = f"{group}: {size:,} parameters in {len(arrays)} arrays, such as {line}"
        yield line
