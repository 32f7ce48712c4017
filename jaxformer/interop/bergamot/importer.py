"""Imports Bergamot's models: an encoder of the paper, and a decoder with a recurrence.

A bias of -inf keeps tokens from being generated: padding, the beginning of sentence, whose
embedding is the zero vector, and unknown tokens. With two vocabularies, ours is their union.
"""

import functools
import json
import pathlib
import re
from typing import Any

import flax.traverse_util
import jax
import numpy as np
from jaxtyping import Int

from jaxformer.config import Config, DataConfig
from jaxformer.data.marian_tokenizer import MarianTokenizer
from jaxformer.data.tokenizer import BOS, PAD, UNK, open_processor
from jaxformer.errors import UserError, prefix_errors
from jaxformer.files import local_path, read_whole, run_path, write_file
from jaxformer.inference.shortlist import Shortlist
from jaxformer.inference.weights import IMPORT, write_model
from jaxformer.interop.arrays import NamedArrays, Params, stack
from jaxformer.interop.bergamot import files, layout
from jaxformer.interop.bergamot.files import read_shortlist, read_tensors
from jaxformer.interop.hub import describe_source
from jaxformer.models.student import StudentConfig
from jaxformer.nn.feed_forward import Activation
from jaxformer.runs.workdir import Workdir
from jaxformer.search import BeamSearch

COMMAND = IMPORT
_LAYOUT = "model.XXYY.intgemm.alphas.bin, and vocab.XXYY.spm or srcvocab.XXYY.spm and trgvocab..."
_NAME = re.compile(r"model\.([a-z]{2})([a-z]{2})\..*bin")
_ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "swish": "swish"}
_SPECIAL = [-1, layout.EOS, -1, layout.UNK]  # our special tokens in theirs
_MAX_LENGTH = 512


def import_bergamot(directory: pathlib.Path, workdir: pathlib.Path) -> str:
    """Converts the model in a folder to a new workdir; returns a one-line summary of the model."""
    directory, folder = local_path(directory), Workdir(run_path(workdir))
    folder.check_writable(COMMAND)
    path = _single(directory, "model.*.bin")
    tensors, settings = read_tensors(path)
    vocabularies = _vocabularies(directory)
    sides = [_pieces(vocabulary, content) for vocabulary, content in vocabularies]
    pieces = list(dict.fromkeys(piece for side in (sides[-1], sides[0]) for piece in side[2:]))
    model = _model(path, settings, len(_SPECIAL) + len(pieces), split=len(sides) > 1)
    languages = _NAME.fullmatch(path.name)
    data = DataConfig(
        source_language=languages[1] if languages else DataConfig.source_language,
        target_language=languages[2] if languages else DataConfig.target_language,
        max_length=_MAX_LENGTH,
    )
    search = BeamSearch(beam_size=1, penalty="power", length_penalty=1.0)
    config = Config(model=model, data=data, search=search)
    orders = [_order(side, pieces) for side in sides]
    params = _read_params(path, tensors, model, [len(side) for side in sides], orders)
    contents = [content for _, content in vocabularies]
    tokenizer = MarianTokenizer.assemble(contents[0], contents[-1], pieces)
    identity = {"tokenizer": tokenizer.sha256}
    origin = describe_source("Bergamot", directory)
    write_model(folder, COMMAND, identity, tokenizer.serialized, config, params, origin=origin)
    alphas = {n: float(a.item()) for n, a in tensors.items() if n.endswith(layout.ALPHA)}
    write_file(folder.path / layout.ALPHAS, json.dumps(alphas).encode())
    lists = sorted(directory.glob("lex.*.s2t.bin"))
    if lists:
        _shortlist(read_shortlist(lists[0]), orders[0], orders[-1]).save(folder.path)
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    note = "" if lists else ", without a shortlist"
    return f"{size:,} parameters, {tokenizer.vocab_size:,} tokens, from {directory}{note}"


def _shortlist(
    theirs: files.Shortlist, source: Int[np.ndarray, " V"], target: Int[np.ndarray, " V"]
) -> Shortlist:
    """Returns a shortlist in our ids; ``source`` and ``target`` have Bergamot's id of each."""
    number = np.full(max(target.max() + 1, theirs.tokens.max(initial=0) + 1, theirs.first), UNK)
    number[target[target >= 0]] = np.flatnonzero(target >= 0)
    known = (source >= 0) & (source < len(theirs.offsets) - 1)
    lists = [
        theirs.tokens[theirs.offsets[i] : theirs.offsets[i + 1]] if ok else theirs.tokens[:0]
        for i, ok in zip(source, known, strict=True)
    ]
    offsets = np.cumsum([0, *map(len, lists)])
    targets = number[np.concatenate(lists)]
    return Shortlist(*(a.astype(np.int32) for a in (number[: theirs.first], offsets, targets)))


def _single(directory: pathlib.Path, pattern: str) -> pathlib.Path:
    found = sorted(directory.glob(pattern))
    if len(found) != 1:
        raise UserError(
            f"{directory}: expected one file {pattern}, found {len(found)}; a model is a folder "
            f"with {_LAYOUT}"
        )
    return found[0]


def _vocabularies(directory: pathlib.Path) -> list[tuple[pathlib.Path, bytes]]:
    """Returns the SentencePiece model of both sides, or of the source and of the target."""
    split = list(directory.glob("srcvocab.*.spm"))
    names = ["srcvocab.*.spm", "trgvocab.*.spm"] if split else ["vocab.*.spm"]
    paths = [_single(directory, name) for name in names]
    return [(path, read_whole(path)) for path in paths]


def _pieces(path: pathlib.Path, content: bytes) -> list[str]:
    with prefix_errors(str(path)):
        processor = open_processor(content)
    pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    if pieces[:2] != ["</s>", "<unk>"]:
        raise UserError(f"{path}: expected </s> and <unk> as its first pieces: got {pieces[:2]}")
    return pieces


def _order(side: list[str], pieces: list[str]) -> Int[np.ndarray, " V"]:
    """Returns the index in a side's vocabulary for each of our ids; -1 for those that it lacks."""
    ids = {piece: number for number, piece in enumerate(side)}
    return np.array([*_SPECIAL, *(ids.get(piece, -1) for piece in pieces)])


def _model(
    path: pathlib.Path, settings: dict[str, str], vocab_size: int, *, split: bool
) -> StudentConfig:
    for name, only in layout.SETTINGS.items():
        if (value := settings.get(name, only)) != only:
            raise UserError(f"{path}: expected {name} to be {only!r}: got {value!r:.80}")
    if settings.get("dec-cell") is None:
        raise UserError(f"{path}: expected settings in special:model.yml: none")
    activation = settings.get("transformer-ffn-activation", "swish")
    if activation not in _ACTIVATIONS:
        raise UserError(f"{path}: expected the activation relu or swish: {activation!r:.80}")
    values: dict[str, Any] = {}
    for ours, theirs in layout.SIZES.items():
        if not (text := settings.get(theirs, "")).isdecimal():
            raise UserError(f"{path}: expected {theirs} to be a whole number: got {text!r:.80}")
        values[ours] = int(text)
    with prefix_errors(str(path)):
        return StudentConfig(
            vocab_size=vocab_size,
            activation=_ACTIVATIONS[activation],
            biases=True,
            dropout_rate=0.0,
            positions="tensor2tensor",
            embeddings="separate" if split else "tied",
            max_length=_MAX_LENGTH,
            **values,
        )


def _read_params(
    path: pathlib.Path,
    tensors: dict[str, np.ndarray],
    config: StudentConfig,
    sizes: list[int],
    orders: list[np.ndarray],
) -> Params:
    """Returns the parameters of our model. ``sizes`` and ``orders`` are of the vocabularies."""
    arrays = NamedArrays(
        arrays=tensors,
        sizes={"D": config.d_model, "F": config.d_ff, "S": sizes[0], "V": sizes[-1], "1": 1},
        orders={"S": orders[0], "V": orders[-1]},
        place=str(path),
    )
    for name in tensors:
        if name.endswith(layout.ALPHA):  # The scale of int8 activations; ours is found per row.
            arrays.skip(name)

    bias = arrays.array("decoder_ff_logit_out_b", "1V")[0]
    bias[[PAD, BOS, UNK]] = -np.inf
    bias[orders[-1] < 0] = -np.inf
    params: Params = {
        side: {"layers": stack(functools.partial(_layer, arrays, config.num_heads, side), depth)}
        for side, depth in (("encoder", config.num_layers), ("decoder", config.num_decoder_layers))
    }
    params["logits_bias"] = bias
    if config.embeddings == "tied":
        params["embedding"] = arrays.array("Wemb", "VD")
    else:
        params["src_embedding"] = arrays.array("encoder_Wemb", "SD")
        params["tgt_embedding"] = params["output_embedding"] = arrays.array("decoder_Wemb", "VD")
    arrays.check_all_read()
    return params


def _layer(arrays: NamedArrays, heads: int, side: str, number: int) -> Params:
    found = {}
    for path, name in layout.LAYERS[side].items():
        is_matrix = "_W" in name and "_ln" not in name
        axes = layout.AXES.get(name, "DD" if is_matrix else "1D")
        array = arrays.array(f"{side}_l{number + 1}_{name}", axes)
        array = array if is_matrix else array[0]
        if path[-1].removesuffix("_bias") in layout.PROJECTIONS:
            array = array.reshape(*array.shape[:-1], heads, -1)
        found[path] = array
    return flax.traverse_util.unflatten_dict(found)
