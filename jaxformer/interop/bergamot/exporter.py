"""Exports students as models for Bergamot, which Firefox translates with; inverse of the import."""

import base64
import dataclasses
import functools
import itertools
import json
import operator
import pathlib
import re
from typing import Any

import numpy as np
from jaxtyping import Int

from jaxformer.config import DataConfig, data_section
from jaxformer.data.held_out import training_pairs
from jaxformer.data.marian_tokenizer import MarianTokenizer
from jaxformer.data.tokenizer import EOS, PAD, UNK, Tokenizer, open_processor
from jaxformer.errors import UserError
from jaxformer.files import write_file
from jaxformer.inference import shortlist
from jaxformer.inference.members import Member
from jaxformer.inference.shortlist import Shortlist
from jaxformer.inference.translator import Translator
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop.bergamot import files, layout
from jaxformer.interop.bergamot.calibration import find_alphas
from jaxformer.interop.formats import Usage, check_fields, check_params, check_search
from jaxformer.models.student import StudentConfig
from jaxformer.runs.workdir import read_workdir_object

_SYSTEM = "Bergamot"
_SENTENCES = 200  # of the training text, for the scales of activations
_LOWEST_BIAS = -100.0  # in place of -inf
# Engines multiply matrices in blocks of as many features, and of as many tokens.
_FEATURES, _TOKENS = 64, 8
_CONFIG = """relative-paths: true
models:
  - {model}
vocabs:
  - {vocabulary}
  - {vocabulary}
{shortlist}beam-size: {beam_size}
normalize: {normalize}
word-penalty: 0
max-length-break: 128
mini-batch-words: 1024
max-length-factor: 2.0
workspace: 128
skip-cost: true
cpu-threads: 0
gemm-precision: int8shiftAlphaAll
"""
_CODE = """
import bergamot

service = bergamot.Service(bergamot.ServiceConfig(numWorkers=1))
model = service.modelFromConfigPath("config.yml")
options = bergamot.ResponseOptions()
[response] = service.translate(model, bergamot.VectorString(["A dog runs."]), options)
print(response.target.text)
"""
_NOTES = (
    "Matrices and their inputs are rounded to int8, so that some translations differ from "
    "jaxformer's.",
    "The package bergamot needs Python 3.10 or older. Firefox's models have the same files.",
)


def write(model: TrainedModel, folder: pathlib.Path) -> Usage:
    """Writes the model in int8, its vocabulary, its shortlist if it has one, and config.yml."""
    config = _checked_config(model)
    check_params(model, _SYSTEM)
    search = check_search(model.config, _SYSTEM)
    data = data_section(model.config, DataConfig)
    languages = f"{data.source_language}{data.target_language}"
    if not re.fullmatch(r"[a-z]{4}", languages):
        raise UserError(f"{_SYSTEM}: expected language codes such as en and de: got {languages!r}")
    names = {
        "model": f"model.{languages}.intgemm.alphas.bin",
        "vocabulary": f"vocab.{languages}.spm",
        "shortlist": "",
    }
    vocabulary = _vocabulary(model)
    write_file(folder / names["vocabulary"], vocabulary)
    order = _order(model.tokenizer, vocabulary)
    tensors = _tensors(config, model.params, order)
    tensors |= _alphas(model)
    sizes = {theirs: str(getattr(config, ours)) for ours, theirs in layout.SIZES.items()}
    settings = layout.SETTINGS | sizes | {"tied-embeddings-all": "true"}
    settings["transformer-ffn-activation"] = config.activation
    settings["dim-vocabs"] = f"\n  - {len(order)}" * 2
    files.write_tensors(folder / names["model"], tensors, settings)
    notes = _NOTES
    if (model.folder.path / shortlist.NAME).exists():
        file = f"lex.{languages}.s2t.bin"
        ours = Shortlist.load(model.folder.path, config.vocab_size)
        files.write_shortlist(folder / file, _shortlist(ours, order, config.vocab_size))
        names["shortlist"] = f"shortlist:\n  - {file}\n  - false\n"
    else:
        notes += ("It has no shortlist. `jaxformer shortlist` learns one, for another export.",)
    normalize = 0.0 if search.penalty == "none" else search.length_penalty
    text = _CONFIG.format(**names, beam_size=search.beam_size, normalize=normalize)
    write_file(folder / "config.yml", text.encode())
    return Usage("a model for Bergamot, as in Firefox", "bergamot", _CODE, notes)


def _checked_config(model: TrainedModel) -> StudentConfig:
    config = model.config.model
    if not isinstance(config, StudentConfig):
        raise UserError(
            f"{_SYSTEM}: expected a student, a StudentConfig, got a {type(config).__name__}; train "
            "one, as in configs/student.py"
        )
    known = {"num_decoder_layers": [config.num_decoder_layers], "architecture": ["student"]}
    activations = ["relu", "swish"]
    check_fields(config, _SYSTEM, positions=["tensor2tensor"], activation=activations, **known)
    for name, only in {"embeddings": "tied", "norm_epsilon": 1e-6}.items():
        if (value := getattr(config, name)) != only:
            raise UserError(f"{_SYSTEM}: expected model.{name}={only}, got {value}")
    for name in ("d_model", "d_ff"):
        if (value := getattr(config, name)) % _FEATURES:
            raise UserError(
                f"{_SYSTEM}: expected model.{name} to be a multiple of {_FEATURES}, got {value}"
            )
    return config


def _vocabulary(model: TrainedModel) -> bytes:
    """Returns the SentencePiece model of both sides, which begins with </s> and <unk>."""
    tokenizer = model.tokenizer
    if isinstance(tokenizer, MarianTokenizer):
        values = json.loads(tokenizer.serialized)
        if values["source"] == values["target"]:
            return base64.b64decode(values["source"])
        found = "one for each side"
    elif type(tokenizer) is Tokenizer and not tokenizer.target_symbols:
        return _without_padding(tokenizer.serialized)
    else:
        found = f"a {type(tokenizer).__name__}"
    raise UserError(f"{_SYSTEM}: expected one SentencePiece model for both sides, got {found}")


def _without_padding(model: bytes) -> bytes:
    """Returns a SentencePiece model with </s> and <unk> first, and unused pieces last."""
    # pyright does not see generated classes.
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # pyright: ignore

    found = ModelProto.FromString(model)
    pieces = [found.pieces[EOS], *found.pieces[UNK:]]
    for number in range(-len(pieces) % _TOKENS):
        piece = {"piece": f"<unused{number}>", "type": ModelProto.SentencePiece.UNUSED}
        pieces.append(ModelProto.SentencePiece(**piece))
    result = ModelProto.FromString(model)
    result.ClearField("pieces")
    result.pieces.extend(pieces)
    ids = {"unk_id": layout.UNK, "bos_id": -1, "eos_id": layout.EOS, "pad_id": -1}
    for name, number in ids.items():
        setattr(result.trainer_spec, name, number)
    return result.SerializeToString(deterministic=True)


def _order(tokenizer: Any, vocabulary: bytes) -> Int[np.ndarray, " V"]:
    """Returns our id of each of Bergamot's ids; PAD for unused ones."""
    ours = {tokenizer.piece(i): i for i in range(tokenizer.vocab_size)}
    processor = open_processor(vocabulary)
    pieces = (processor.id_to_piece(i) for i in range(UNK - 1, processor.get_piece_size()))
    return np.array([EOS, UNK, *(ours.get(piece, PAD) for piece in pieces)])


def _tensors(
    config: StudentConfig, params: Any, order: Int[np.ndarray, " V"]
) -> dict[str, np.ndarray]:
    bias = params.get("logits_bias", np.zeros(config.vocab_size, np.float32))
    is_used = order != PAD
    bias = np.where(is_used, np.maximum(bias[order], _LOWEST_BIAS), _LOWEST_BIAS)
    table = params["embedding"][order] * is_used[:, None]
    tensors = {"Wemb": table, "decoder_ff_logit_out_b": bias[None]}
    for side, names in layout.LAYERS.items():
        layers = params[side]["layers"]
        for (*groups, leaf), name in names.items():
            group = functools.reduce(operator.getitem, groups, layers)
            size = config.d_ff if leaf == "inner_bias" else config.d_model
            depth = config.num_layers if side == "encoder" else config.num_decoder_layers
            for n, array in enumerate(group.get(leaf, np.zeros((depth, size), np.float32))):
                is_matrix = "_W" in name and "_ln" not in name
                shape = (len(array), -1) if is_matrix else (1, -1)
                tensors[f"{side}_l{n + 1}_{name}"] = array.reshape(shape)
    return tensors


def _alphas(model: TrainedModel) -> dict[str, np.ndarray]:
    """Returns the scales of activations: of an imported model, or for the run's training text."""
    path = model.folder.path / layout.ALPHAS
    if path.exists():
        known = read_workdir_object(path)
        if not all(n.endswith(layout.ALPHA) and type(v) is float for n, v in known.items()):
            raise UserError(f"{path}: expected numbers by the names of matrices; delete the file")
        return {name: np.array([[value]], np.float32) for name, value in known.items()}
    text = training_pairs(data_section(model.config, DataConfig))
    translator = Translator(model.config, model.params, model.tokenizer)
    sources = map(translator.tokenizer.encode, (source for source, _ in text))
    fitting = ([*ids, EOS] for ids in sources if 0 < len(ids) < 100)
    chosen = list(itertools.islice(fitting, _SENTENCES))
    if not chosen:
        raise UserError(f"{_SYSTEM}: expected text to train on, for the scales: found none")
    found = [decoded.tokens[0] for decoded in translator.translate_ids(chosen, n_best=1)]
    exact = dataclasses.replace(model.config.model, compute_dtype="float32")
    return find_alphas(Member(exact, model.params), list(zip(chosen, found, strict=True)))


def _shortlist(ours: Shortlist, order: Int[np.ndarray, " V"], vocab_size: int) -> files.Shortlist:
    """Returns it in Bergamot's ids: common tokens are the first ids, or in the list of </s>."""
    number = np.full(vocab_size, -1)
    number[order] = np.arange(len(order))
    common = set(number[ours.common].tolist())
    first = next(n for n in itertools.count() if n not in common)
    lists = [number[ours.targets[ours.offsets[i] : ours.offsets[i + 1]]].tolist() for i in order]
    lists[layout.EOS] = [*lists[layout.EOS], *(common - set(range(first)) - {-1})]
    lists = [sorted({*tokens} - {-1}) for tokens in lists]
    offsets = np.cumsum([0, *map(len, lists)])
    return files.Shortlist(first, offsets, np.concatenate([np.array(t, int) for t in lists]))
