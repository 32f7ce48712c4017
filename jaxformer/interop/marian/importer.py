"""Imports Marian models (OPUS-MT) in the Hugging Face layout.

A Marian model is the paper's Transformer with biases in attention and logits, usually a swish
activation, and three differences in layout:

- Its translations begin with the padding token. Our beginning-of-sentence embedding is a copy of
  the padding row, and a bias of -inf keeps both from being generated. The transformers library
  gives the same probabilities with ``bad_words_ids=[[pad]]`` and ``renormalize_logits=True``, as in
  OPUS-MT's configs, and so does Marian itself, which cannot generate padding.
- Its position encodings have all sines before all cosines, whereas ours alternate as in section
  3.5. We permute the features of every layer accordingly.
- Its vocabulary is numbered differently.
"""

import functools
import pathlib

import numpy as np
from jaxtyping import Float, Int

from jaxformer.checks import is_unicode
from jaxformer.config import DataConfig, ModelConfig, model_section
from jaxformer.data.marian_tokenizer import MarianTokenizer
from jaxformer.data.tokenizer import BOS, PAD
from jaxformer.errors import UserError
from jaxformer.files import local_path, read_object, read_whole, run_path
from jaxformer.inference.origins import IMPORT
from jaxformer.interop.hub import ModelFiles
from jaxformer.interop.imported import write_import
from jaxformer.interop.marian.marian_config import LAYOUT, MarianConfig
from jaxformer.interop.marian.marian_names import LINEAR, NORMS, OUTPUT, SHARED, SOURCE, TARGET
from jaxformer.interop.named_arrays import NamedArrays, Params, split_heads, stack
from jaxformer.interop.weight_files import NOTHING, WEIGHTS, read_weights
from jaxformer.nn.positions import sinusoidal_positions
from jaxformer.runs.workdir import Workdir

# Axes [out, in] of linear layers; all others project features to heads.
_AXES = {
    "output": "DP",
    "inner": "FD",
    "outer": "DF",
}
_TO_HEADS = "PD"
FILES = ModelFiles(
    model="a Marian model",
    needed=("config.json", "source.spm", "target.spm", "vocab.json"),
    optional=("generation_config.json", "tokenizer_config.json"),
    weights=WEIGHTS,
)


def import_marian(directory: pathlib.Path, workdir: pathlib.Path) -> str:
    """Converts the model in a folder to a new workdir; returns a summary with unused fields."""
    directory = local_path(directory)
    folder = Workdir(run_path(workdir))
    folder.check_writable(IMPORT)

    marian = MarianConfig(directory)
    config = marian.config(_languages(directory / "tokenizer_config.json"))

    pieces, order = _vocabulary(directory / "vocab.json", marian)
    source = read_whole(directory / "source.spm")
    target = read_whole(directory / "target.spm")
    tokenizer = MarianTokenizer.assemble(source, target, pieces)

    place, found = read_weights(directory, NOTHING, LAYOUT)
    model = model_section(config, ModelConfig)
    arrays = _name_axes(place, found, marian=marian, config=model, vocabulary=order)
    params = _read_params(arrays, marian, model)

    size = write_import(
        folder,
        "Marian",
        directory,
        config=config,
        tokenizer=tokenizer,
        params=params,
    )
    summary = f"{size}, from {directory}"
    if marian.unused:
        summary += f"; not used: {', '.join(marian.unused)}"
    return summary


def _languages(path: pathlib.Path) -> tuple[str, str]:
    """Returns the codes of source and target language; DataConfig has the defaults."""
    settings = read_object(path, advice=LAYOUT) if path.exists() else {}
    if settings.get("separate_vocabs"):
        raise UserError(
            f"{path}: expected one vocabulary for both sides: got "
            f"separate_vocabs={settings['separate_vocabs']!r}"
        )

    source = settings.get("source_lang") or DataConfig.source_language
    target = settings.get("target_lang") or DataConfig.target_language
    return str(source), str(target)


def _vocabulary(
    path: pathlib.Path,
    marian: MarianConfig,
) -> tuple[list[str], Int[np.ndarray, " V"]]:
    """Returns our pieces from id 4 on, and the Marian id for each of our ids."""
    ids = _read_ids(path, marian)
    special = [marian.pad, marian.eos, marian.pad, ids["<unk>"]]
    in_order = sorted(ids, key=ids.__getitem__)
    rest = [piece for piece in in_order if ids[piece] not in special]
    return rest, np.array(special + [ids[piece] for piece in rest])


def _read_ids(path: pathlib.Path, marian: MarianConfig) -> dict[str, int]:
    """Reads vocab.json, with the id of each piece; refuses ids that differ from config.json."""
    ids = read_object(path, advice=LAYOUT)
    if not is_unicode("".join(ids)):
        raise UserError(f"{path}: expected pieces of text, got half of a surrogate pair")

    found = sorted(map(repr, ids.values()))
    expected = sorted(map(repr, range(marian.vocab_size)))
    if found != expected:
        raise UserError(
            f"{path}: expected the ids 0 to {marian.vocab_size - 1} (vocab_size in config.json), "
            f"each for one piece: got {len(ids)} pieces with other ids"
        )

    for piece, name, number in (
        ("<pad>", "pad_token_id", marian.pad),
        ("</s>", "eos_token_id", marian.eos),
    ):
        if ids.get(piece) != number:
            raise UserError(
                f"{path}: expected {piece} to have the id {number} ({name} in config.json): got "
                f"{ids.get(piece, 'none')}"
            )

    if "<unk>" not in ids:
        raise UserError(f"{path}: expected an id for <unk>: none")
    return ids


def _name_axes(
    place: pathlib.Path,
    found: dict[str, np.ndarray],
    marian: MarianConfig,
    config: ModelConfig,
    vocabulary: Int[np.ndarray, " V"],
) -> NamedArrays:
    """Returns the arrays of a file with their axes; ``vocabulary`` has Marian's id of each."""
    width = config.d_model
    return NamedArrays(
        arrays=found,
        sizes={
            "D": width,
            "P": width,
            "F": config.d_ff,
            "M": config.max_length,
            "V": marian.vocab_size,
            "1": 1,
        },
        orders={
            "D": np.arange(width).reshape(2, -1).T.ravel(),  # 0, D/2, 1, D/2 + 1, ...
            "V": vocabulary,
        },
        place=str(place),
    )


def _read_params(arrays: NamedArrays, marian: MarianConfig, config: ModelConfig) -> Params:
    """Returns the parameters of our Transformer as float32 numpy arrays."""
    bias = arrays.array("final_logits_bias", "1V")[0]
    bias[[PAD, BOS]] = -np.inf
    params = {"logits_bias": bias}
    params |= _embeddings(arrays, marian, config.d_model)

    for side in ("encoder", "decoder"):
        layer = functools.partial(_layer, arrays, side, config.num_heads)
        params[side] = {"layers": stack(layer, config.num_layers)}
    _check_positions(arrays, config)
    arrays.check_all_read()
    return params


def _layer(arrays: NamedArrays, side: str, num_heads: int, number: int) -> Params:
    name = f"model.{side}.layers.{number}"
    modules = list(NORMS)
    if side == "encoder":
        modules.remove("cross_attention")

    params: Params = {module: {} for module in modules}
    for linear, (module, ours) in LINEAR.items():
        if module not in modules:
            continue
        axes = _AXES.get(ours, _TO_HEADS)
        found = arrays.linear(f"{name}.{linear}", axes, ours)
        if axes == _TO_HEADS:
            found = split_heads(found, num_heads)
        params[module] |= found

    for module in modules:
        norm = arrays.norm(f"{name}.{NORMS[module]}")
        params[f"{module}_residual"] = {"norm": norm}
    return params


def _embeddings(arrays: NamedArrays, marian: MarianConfig, width: int) -> Params:
    """Returns the embeddings under our names; files have tied ones under one or several names."""
    shared = [SHARED] if marian.shared else []
    names = {
        "src_embedding": [SOURCE, *shared],
        "tgt_embedding": [TARGET, *shared],
        "output_embedding": [OUTPUT],
    }
    if marian.output_tied and marian.shared:
        names = {name: [SHARED, SOURCE, TARGET, OUTPUT] for name in names}
    elif marian.output_tied:
        names["tgt_embedding"] = [TARGET, OUTPUT]
        names["output_embedding"] = [TARGET, OUTPUT]
    else:  # The transformers library also saves a shared embedding, but only uses it as a fallback.
        arrays.skip(SHARED)

    tables = {}
    for name, found in names.items():
        tables[name] = _first_of(arrays, found, tied=marian.output_tied)

    if marian.all_tied:
        return {"embedding": tables["src_embedding"]}

    if not marian.scaled:  # ours are always multiplied by sqrt(d_model)
        scale = np.sqrt(np.float32(width))
        for name in ("src_embedding", "tgt_embedding"):
            tables[name] = tables[name] / scale
    return tables


def _first_of(arrays: NamedArrays, names: list[str], *, tied: bool) -> Float[np.ndarray, "V D"]:
    """Returns the first array that exists; if ``tied``, all others must be equal."""
    found = [name for name in names if name in arrays] or names[:1]
    first = arrays.array(found[0], "VD")
    if not tied:
        return first

    others = [arrays.array(name, "VD") for name in found[1:]]
    if not all(np.array_equal(first, other) for other in others):
        raise UserError(
            f"{arrays.place}: expected {' and '.join(found)} to be the same, as config.json says"
        )
    return first


def _check_positions(arrays: NamedArrays, config: ModelConfig) -> None:
    """Checks that position embeddings, which old files hold, are sinusoids and not learned."""
    for which in ("encoder", "decoder"):
        name = f"model.{which}.embed_positions.weight"
        if name not in arrays:
            continue

        found = arrays.array(name, "MD")
        sinusoids = sinusoidal_positions(config.max_length, config.d_model)
        if np.abs(found - sinusoids).max() > 1e-3:
            raise UserError(
                f"{arrays.place}: expected {name} to hold sinusoids: learned positions are not read"
            )
