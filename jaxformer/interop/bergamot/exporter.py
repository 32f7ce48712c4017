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
from jaxformer.interop.bergamot import bergamot_files, bergamot_names
from jaxformer.interop.bergamot.calibration import find_alphas
from jaxformer.interop.formats import Usage, check_fields, check_params, check_search
from jaxformer.models.student import StudentConfig
from jaxformer.runs.workdir import read_workdir_object

_SYSTEM = "Bergamot"
_SENTENCES = 200  # of the training text, for the scales of activations
_LOWEST_BIAS = -100.0  # in place of -inf
_MAX_TOKENS = 99  # of each of these sentences
# Engines multiply matrices in blocks of as many features, and of as many tokens.
_FEATURES = 64
_TOKENS = 8
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
    languages = _language_pair(model)
    model_name = f"model.{languages}.intgemm.alphas.bin"
    vocabulary_name = f"vocab.{languages}.spm"
    shortlist_name = f"lex.{languages}.s2t.bin"

    vocabulary = _vocabulary(model)
    write_file(folder / vocabulary_name, vocabulary)

    order = _order(model.tokenizer, vocabulary)
    tensors = _tensors(config, model.params, order)
    tensors |= _alphas(model)
    settings = _settings(config, vocab_size=len(order))
    bergamot_files.write_tensors(folder / model_name, tensors, settings)

    notes = _NOTES
    shortlist_entry = ""
    if (model.folder.path / shortlist.NAME).exists():
        ours = Shortlist.load(model.folder.path, config.vocab_size)
        theirs = _shortlist(ours, order, config.vocab_size)
        bergamot_files.write_shortlist(folder / shortlist_name, theirs)
        shortlist_entry = f"shortlist:\n  - {shortlist_name}\n  - false\n"
    else:
        notes += ("It has no shortlist. `jaxformer shortlist` learns one, for another export.",)

    text = _CONFIG.format(
        model=model_name,
        vocabulary=vocabulary_name,
        shortlist=shortlist_entry,
        beam_size=search.beam_size,
        normalize=0.0 if search.penalty == "none" else search.length_penalty,
    )
    write_file(folder / "config.yml", text.encode())
    return Usage(
        format="a model for Bergamot, as in Firefox",
        requires="bergamot",
        code=_CODE,
        notes=notes,
    )


def _language_pair(model: TrainedModel) -> str:
    """Returns the codes of both languages, such as "ende", which names of files contain."""
    data = data_section(model.config, DataConfig)
    languages = f"{data.source_language}{data.target_language}"
    if not re.fullmatch(r"[a-z]{4}", languages):
        raise UserError(f"{_SYSTEM}: expected language codes such as en and de: got {languages!r}")
    return languages


def _settings(config: StudentConfig, vocab_size: int) -> dict[str, str]:
    """Returns the settings in special:model.yml."""
    settings = dict(bergamot_names.SETTINGS)
    for ours, theirs in bergamot_names.SIZES.items():
        settings[theirs] = str(getattr(config, ours))

    settings["tied-embeddings-all"] = "true"
    settings["transformer-ffn-activation"] = config.activation
    settings["dim-vocabs"] = f"\n  - {vocab_size}" * 2
    return settings


def _checked_config(model: TrainedModel) -> StudentConfig:
    config = model.config.model
    if not isinstance(config, StudentConfig):
        raise UserError(
            f"{_SYSTEM}: expected a student, a StudentConfig, got a {type(config).__name__}; train "
            "one, as in configs/student.py"
        )

    check_fields(
        config,
        _SYSTEM,
        architecture=["student"],
        positions=["tensor2tensor"],
        activation=["relu", "swish"],
        num_decoder_layers=[config.num_decoder_layers],
    )

    for name, only in {"embeddings": "tied", "norm_epsilon": 1e-6}.items():
        value = getattr(config, name)
        if value != only:
            raise UserError(f"{_SYSTEM}: expected model.{name}={only}, got {value}")

    for name in ("d_model", "d_ff"):
        size = getattr(config, name)
        if size % _FEATURES:
            raise UserError(
                f"{_SYSTEM}: expected model.{name} to be a multiple of {_FEATURES}, got {size}"
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
        unused = ModelProto.SentencePiece(
            piece=f"<unused{number}>",
            type=ModelProto.SentencePiece.UNUSED,
        )
        pieces.append(unused)

    result = ModelProto.FromString(model)
    result.ClearField("pieces")
    result.pieces.extend(pieces)
    result.trainer_spec.unk_id = bergamot_names.UNK
    result.trainer_spec.bos_id = -1
    result.trainer_spec.eos_id = bergamot_names.EOS
    result.trainer_spec.pad_id = -1
    return result.SerializeToString(deterministic=True)


def _order(tokenizer: Any, vocabulary: bytes) -> Int[np.ndarray, " V"]:
    """Returns our id of each of Bergamot's ids; PAD for unused ones."""
    our_ids = {tokenizer.piece(i): i for i in range(tokenizer.vocab_size)}
    order = [EOS, UNK]

    processor = open_processor(vocabulary)
    for number in range(len(order), processor.get_piece_size()):
        piece = processor.id_to_piece(number)
        order.append(our_ids.get(piece, PAD))
    return np.array(order)


def _tensors(
    config: StudentConfig,
    params: Any,
    order: Int[np.ndarray, " V"],
) -> dict[str, np.ndarray]:
    is_used = order != PAD
    no_bias = np.zeros(config.vocab_size, np.float32)
    bias = params.get("logits_bias", no_bias)
    bias = np.maximum(bias[order], _LOWEST_BIAS)
    bias = np.where(is_used, bias, _LOWEST_BIAS)
    tensors = {
        "Wemb": params["embedding"][order] * is_used[:, None],
        "decoder_ff_logit_out_b": bias[None],
    }

    for side, names in bergamot_names.LAYERS.items():
        depth = config.num_layers if side == "encoder" else config.num_decoder_layers
        for path, name in names.items():
            *groups, leaf = path
            group = functools.reduce(operator.getitem, groups, params[side]["layers"])

            # A model without biases gets zeros.
            width = config.d_ff if leaf == "inner_bias" else config.d_model
            zeros = np.zeros((depth, width), np.float32)
            for number, array in enumerate(group.get(leaf, zeros), start=1):
                rows = len(array) if bergamot_names.is_matrix(name) else 1
                tensors[f"{side}_l{number}_{name}"] = array.reshape(rows, -1)
    return tensors


def _alphas(model: TrainedModel) -> dict[str, np.ndarray]:
    """Returns the scales of activations: of an imported model, or for the run's training text."""
    path = model.folder.path / bergamot_names.ALPHAS_FILE
    if path.exists():
        return _read_alphas(path)

    translator = Translator(model.config, model.params, model.tokenizer)
    chosen = _calibration_sources(model, translator)
    decoded = translator.translate_ids(chosen, n_best=1)
    translations = [each.tokens[0] for each in decoded]

    exact = dataclasses.replace(model.config.model, compute_dtype="float32")
    student = Member(model.config.kind.build(exact), model.params)
    pairs = list(zip(chosen, translations, strict=True))
    return find_alphas(student, pairs)


def _read_alphas(path: pathlib.Path) -> dict[str, np.ndarray]:
    alphas = {}
    for name, value in read_workdir_object(path).items():
        if not name.endswith(bergamot_names.ALPHA_SUFFIX) or type(value) is not float:
            raise UserError(f"{path}: expected numbers by the names of matrices; delete the file")
        alphas[name] = np.array([[value]], np.float32)
    return alphas


def _calibration_sources(model: TrainedModel, translator: Translator) -> list[list[int]]:
    """Returns the ids of the first sentences of the training text, with the end of sentence."""
    chosen: list[list[int]] = []
    text = training_pairs(data_section(model.config, DataConfig))
    for source, _ in text:
        ids = translator.tokenizer.encode(source)
        if 0 < len(ids) <= _MAX_TOKENS:
            chosen.append([*ids, EOS])

        if len(chosen) == _SENTENCES:
            break

    if not chosen:
        raise UserError(f"{_SYSTEM}: expected text to train on, for the scales: found none")
    return chosen


def _shortlist(
    ours: Shortlist,
    order: Int[np.ndarray, " V"],
    vocab_size: int,
) -> bergamot_files.Shortlist:
    """Returns it in Bergamot's ids: common tokens are the first ids, or in the list of </s>."""
    their_ids = np.full(vocab_size, -1)
    their_ids[order] = np.arange(len(order))
    common = set(their_ids[ours.common].tolist())
    num_common = next(number for number in itertools.count() if number not in common)

    lists: list[set[int]] = []
    for our_id in order:
        start = ours.offsets[our_id]
        end = ours.offsets[our_id + 1]
        targets = ours.targets[start:end]
        lists.append(set(their_ids[targets].tolist()))

    # Every sentence has a </s>.
    lists[bergamot_names.EOS] |= common - set(range(num_common))

    tokens = [sorted(each - {-1}) for each in lists]
    offsets = np.cumsum([0, *map(len, tokens)])
    joined = np.concatenate([np.array(each, int) for each in tokens])
    return bergamot_files.Shortlist(num_common, offsets, joined)
