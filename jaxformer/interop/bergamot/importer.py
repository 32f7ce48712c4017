"""Imports Bergamot's models: an encoder of the paper, and a decoder with a recurrence.

A bias of -inf keeps tokens from being generated: padding, the beginning of sentence, whose
embedding is the zero vector, and unknown tokens. With two vocabularies, ours is their union.
"""

import functools
import json
import pathlib
import re
from typing import NamedTuple

import flax.traverse_util
import numpy as np
from jaxtyping import Int

from jaxformer.config import Config, DataConfig
from jaxformer.data.marian_tokenizer import MarianTokenizer
from jaxformer.data.tokenizer import BOS, PAD, UNK, open_processor
from jaxformer.errors import UserError, prefix_errors
from jaxformer.files import local_path, read_whole, run_path, write_file
from jaxformer.inference.origins import IMPORT
from jaxformer.inference.shortlist import Shortlist
from jaxformer.interop.bergamot import bergamot_files, bergamot_names
from jaxformer.interop.bergamot.bergamot_files import read_shortlist, read_tensors
from jaxformer.interop.imported import write_import
from jaxformer.interop.named_arrays import NamedArrays, Params, stack
from jaxformer.models.student import StudentConfig
from jaxformer.nn.feed_forward import Activation
from jaxformer.runs.workdir import Workdir
from jaxformer.search import BeamSearch

_LAYOUT = "model.XXYY.intgemm.alphas.bin, and vocab.XXYY.spm or srcvocab.XXYY.spm and trgvocab..."
_NAME = re.compile(r"model\.([a-z]{2})([a-z]{2})\..*bin")
_ACTIVATION = "transformer-ffn-activation"
_ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "swish": "swish"}
# Bergamot's ids of our special tokens, PAD, EOS, BOS and UNK; -1 for those that it lacks.
_SPECIAL = [-1, bergamot_names.EOS, -1, bergamot_names.UNK]
_FIRST_PIECES = ["</s>", "<unk>"]  # the special tokens of Bergamot
_MAX_LENGTH = 512


def import_bergamot(directory: pathlib.Path, workdir: pathlib.Path) -> str:
    """Converts the model in a folder to a new workdir; returns a one-line summary of the model."""
    directory = local_path(directory)
    folder = Workdir(run_path(workdir))
    folder.check_writable(IMPORT)

    path = _single(directory, "model.*.bin")
    tensors, settings = read_tensors(path)
    vocabularies = _read_vocabularies(directory)  # one for both sides, or two
    source = vocabularies[0]
    target = vocabularies[-1]

    # Pieces that both sides have are one token.
    pieces = list(dict.fromkeys([*target.own_pieces, *source.own_pieces]))

    vocab_size = len(_SPECIAL) + len(pieces)
    model = _model(path, settings, vocab_size, split=len(vocabularies) > 1)
    config = _config(path, model)

    source_order = _order(source.pieces, pieces)
    target_order = _order(target.pieces, pieces)
    arrays = NamedArrays(
        arrays=tensors,
        sizes={
            "D": model.d_model,
            "F": model.d_ff,
            "S": len(source.pieces),
            "V": len(target.pieces),
            "1": 1,
        },
        orders={"S": source_order, "V": target_order},
        place=str(path),
    )
    params = _read_params(arrays, model)

    tokenizer = MarianTokenizer.assemble(source.content, target.content, pieces)
    size = write_import(
        folder,
        "Bergamot",
        directory,
        config=config,
        tokenizer=tokenizer,
        params=params,
    )
    _write_alphas(tensors, folder)

    summary = f"{size}, from {directory}"
    shortlists = sorted(directory.glob("lex.*.s2t.bin"))
    if not shortlists:
        return f"{summary}, without a shortlist"

    theirs = read_shortlist(shortlists[0])
    ours = _convert_shortlist(theirs, source_order, target_order)
    ours.save(folder.path)
    return summary


def _config(path: pathlib.Path, model: StudentConfig) -> Config:
    """Returns the config of a model, whose file may name the languages."""
    languages = _NAME.fullmatch(path.name)
    data = DataConfig(
        source_language=languages[1] if languages else DataConfig.source_language,
        target_language=languages[2] if languages else DataConfig.target_language,
        max_length=_MAX_LENGTH,
    )

    search = BeamSearch(beam_size=1, penalty="power", length_penalty=1.0)
    return Config(model=model, data=data, search=search)


def _write_alphas(tensors: dict[str, np.ndarray], folder: Workdir) -> None:
    """Keeps the scales of int8 activations, for an export."""
    alphas = {}
    for name, tensor in tensors.items():
        if name.endswith(bergamot_names.ALPHA_SUFFIX):
            alphas[name] = float(tensor.item())
    write_file(folder.path / bergamot_names.ALPHAS_FILE, json.dumps(alphas).encode())


def _convert_shortlist(
    theirs: bergamot_files.Shortlist,
    source_order: Int[np.ndarray, " V"],
    target_order: Int[np.ndarray, " V"],
) -> Shortlist:
    """Returns a shortlist in our ids; an order has Bergamot's id of each of ours."""
    # Our id of each target token of Bergamot.
    largest = max(target_order.max(), theirs.tokens.max(initial=0))
    our_ids = np.full(max(largest + 1, theirs.num_common), UNK)
    is_known = target_order >= 0
    our_ids[target_order[is_known]] = np.flatnonzero(is_known)

    # The targets of each source token of ours, in Bergamot's ids.
    lists = []
    none = theirs.tokens[:0]
    for source in source_order:
        if 0 <= source < len(theirs.offsets) - 1:
            start = theirs.offsets[source]
            end = theirs.offsets[source + 1]
            lists.append(theirs.tokens[start:end])
        else:
            lists.append(none)

    common = our_ids[: theirs.num_common]
    offsets = np.cumsum([0, *map(len, lists)])
    targets = our_ids[np.concatenate(lists)]
    return Shortlist(
        common.astype(np.int32),
        offsets.astype(np.int32),
        targets.astype(np.int32),
    )


def _single(directory: pathlib.Path, pattern: str) -> pathlib.Path:
    found = sorted(directory.glob(pattern))
    if len(found) != 1:
        raise UserError(
            f"{directory}: expected one file {pattern}, found {len(found)}; a model is a folder "
            f"with {_LAYOUT}"
        )
    return found[0]


class _Vocabulary(NamedTuple):
    content: bytes  # a SentencePiece model
    pieces: list[str]

    @property
    def own_pieces(self) -> list[str]:
        """All pieces but the special ones, which are the first."""
        return self.pieces[len(_FIRST_PIECES) :]


def _read_vocabularies(directory: pathlib.Path) -> list[_Vocabulary]:
    """Returns the vocabulary that both sides share, or one of the source and one of the target."""
    is_split = any(directory.glob("srcvocab.*.spm"))
    names = ["srcvocab.*.spm", "trgvocab.*.spm"] if is_split else ["vocab.*.spm"]
    paths = [_single(directory, name) for name in names]
    contents = [read_whole(path) for path in paths]

    vocabularies = []
    for path, content in zip(paths, contents, strict=True):
        pieces = _pieces(path, content)
        vocabularies.append(_Vocabulary(content, pieces))
    return vocabularies


def _pieces(path: pathlib.Path, content: bytes) -> list[str]:
    with prefix_errors(str(path)):
        processor = open_processor(content)
    pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]

    first = pieces[: len(_FIRST_PIECES)]
    if first != _FIRST_PIECES:
        raise UserError(f"{path}: expected </s> and <unk> as its first pieces: got {first}")
    return pieces


def _order(side: list[str], pieces: list[str]) -> Int[np.ndarray, " V"]:
    """Returns the id in a side's vocabulary of each of our tokens; -1 for tokens that it lacks."""
    ids = {piece: number for number, piece in enumerate(side)}
    of_pieces = [ids.get(piece, -1) for piece in pieces]
    return np.array(_SPECIAL + of_pieces)


def _model(
    path: pathlib.Path,
    settings: dict[str, str],
    vocab_size: int,
    *,
    split: bool,
) -> StudentConfig:
    _check_settings(path, settings)
    activation = settings.get(_ACTIVATION, "swish")
    if activation not in _ACTIVATIONS:
        raise UserError(f"{path}: expected the activation relu or swish: {activation!r:.80}")

    sizes = {}
    for ours, theirs in bergamot_names.SIZES.items():
        text = settings.get(theirs, "")
        if not text.isdecimal():
            raise UserError(f"{path}: expected {theirs} to be a whole number: got {text!r:.80}")
        sizes[ours] = int(text)

    with prefix_errors(str(path)):
        return StudentConfig(
            vocab_size=vocab_size,
            activation=_ACTIVATIONS[activation],
            biases=True,
            dropout_rate=0.0,
            positions="tensor2tensor",
            embeddings="separate" if split else "tied",
            max_length=_MAX_LENGTH,
            **sizes,
        )


def _check_settings(path: pathlib.Path, settings: dict[str, str]) -> None:
    """Refuses settings that our layers do not have, and settings that nobody knows."""
    for name, only in bergamot_names.SETTINGS.items():
        value = settings.get(name, only)
        if value != only:
            raise UserError(f"{path}: expected {name} to be {only!r}: got {value!r:.80}")
    if settings.get("dec-cell") is None:
        # All models have this setting, so that the file has no settings at all.
        raise UserError(f"{path}: expected settings in special:model.yml: none")

    known = {_ACTIVATION, *bergamot_names.SETTINGS, *bergamot_names.SIZES.values()}
    for name, value in settings.items():
        is_known = name in known or bergamot_names.IGNORED.fullmatch(name)
        if not is_known and value not in bergamot_names.UNSET:
            raise UserError(f"{path}: jaxformer does not know {name}={value!r:.80}")


def _read_params(arrays: NamedArrays, config: StudentConfig) -> Params:
    """Returns the parameters of our model."""
    for name in arrays.arrays:
        # The scale of int8 activations. Ours are computed for each row of activations.
        if name.endswith(bergamot_names.ALPHA_SUFFIX):
            arrays.skip(name)

    bias = arrays.array("decoder_ff_logit_out_b", "1V")[0]
    is_absent = arrays.orders["V"] < 0
    bias[[PAD, BOS, UNK]] = -np.inf
    bias[is_absent] = -np.inf
    params: Params = {"logits_bias": bias}

    depths = {"encoder": config.num_layers, "decoder": config.num_decoder_layers}
    for side, depth in depths.items():
        layer = functools.partial(_layer, arrays, config.num_heads, side)
        params[side] = {"layers": stack(layer, depth)}

    if config.embeddings == "tied":
        params["embedding"] = arrays.array("Wemb", "VD")
    else:
        target = arrays.array("decoder_Wemb", "VD")
        params["src_embedding"] = arrays.array("encoder_Wemb", "SD")
        params["tgt_embedding"] = target
        params["output_embedding"] = target
    arrays.check_all_read()
    return params


def _layer(arrays: NamedArrays, num_heads: int, side: str, number: int) -> Params:
    found = {}
    for path, name in bergamot_names.LAYERS[side].items():
        is_matrix = bergamot_names.is_matrix(name)
        default_axes = "DD" if is_matrix else "1D"
        axes = bergamot_names.AXES.get(name, default_axes)

        array = arrays.array(f"{side}_l{number + 1}_{name}", axes)
        if not is_matrix:
            array = array[0]

        is_projection = path[-1].removesuffix("_bias") in bergamot_names.PROJECTIONS
        if is_projection:
            *others, _ = array.shape
            array = array.reshape(*others, num_heads, -1)

        found[path] = array
    return flax.traverse_util.unflatten_dict(found)
