"""Exports translation, including the search, as one StableHLO program."""

import dataclasses
import io
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxformer.config import Config
from jaxformer.data.tokenizer import PAD
from jaxformer.files import write_file
from jaxformer.inference.parameter_arrays import named_arrays, prepare_params
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop.formats import Usage, required_beam_search, write_tokenizer
from jaxformer.layout import global_mesh
from jaxformer.models.stepwise import step_fn
from jaxformer.nn.backend import backend, use_backend

# Number of source tokens that batches are padded to, end of sentence included.
_SOURCE_LENGTH = 64
_PLATFORMS = ("cpu", "cuda", "tpu")
_CODE = """
import json, jax, jax.export, numpy as np, sentencepiece

source = sentencepiece.SentencePieceProcessor(model_file="source.spm")
target = sentencepiece.SentencePieceProcessor(model_file="target.spm")
pieces = json.load(open("vocabulary.json", encoding="utf-8"))
params = dict(np.load("parameters.npz"))
translate = jax.jit(jax.export.deserialize(bytearray(open("translate.jax", "rb").read())).call)

numbers = {{piece: number for number, piece in enumerate(pieces)}}
ids = [numbers.get(piece, 3) for piece in source.encode("A dog runs.", out_type=str)] + [1]
tokens, scores = translate(params, np.array([ids + [0] * ({0} - len(ids))], np.int32))
print(target.decode([pieces[token] for token in tokens[0, 0] if token > 3]))
"""


def write(model: TrainedModel, folder: pathlib.Path) -> Usage:
    config = model.config
    pieces = write_tokenizer(model, folder)
    search = required_beam_search(config, "StableHLO")

    length = min(_SOURCE_LENGTH, config.model.max_length)
    capacity = length + search.extra_length
    capacity = min(capacity, config.model.max_length, search.max_length or capacity)

    arrays: dict[str, Any] = named_arrays(model.params)
    program = _program(config, arrays, length, capacity=capacity)
    write_file(folder / "translate.jax", program)

    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_file(folder / "parameters.npz", buffer.getvalue())

    vocabulary = json.dumps(pieces, ensure_ascii=False)
    write_file(folder / "vocabulary.json", vocabulary.encode())

    notes = (
        f"`translate(params, src)` takes any number of sentences, int32 [B, {length}]: at most "
        f"{length - 1} token ids, 1 (end of sentence), and padding with 0.",
        f"It returns token ids [B, {search.num_hypotheses}, {capacity}] and scores [B, "
        f"{search.num_hypotheses}], best first, by the search below.",
        f"It runs on {', '.join(_PLATFORMS)}, and computes in {config.model.compute_dtype}. Every "
        "number of sentences is compiled once.",
        f"jax {jax.__version__} wrote it. JAX promises to read it for six months after the release "
        "of that version; then export the model again.",
    )
    return Usage(
        format="StableHLO",
        requires="jax sentencepiece",
        code=_CODE.format(length),
        notes=notes,
    )


@global_mesh(None)
def _program(
    config: Config,
    arrays: Mapping[str, np.ndarray],
    length: int,
    capacity: int,
) -> bytes:
    """Returns the serialized program, for any number of sentences."""
    model: Any = config.kind.build(config.model)
    search = config.search

    @jax.jit
    def translate(
        arrays: Mapping[str, Array], src: Int[Array, "B S"]
    ) -> tuple[Int[Array, "B N T"], Float[Array, "B N"]]:
        params = flax.traverse_util.unflatten_dict(dict(arrays), sep=".")
        params = prepare_params(config.model, params)

        # A row of padding gets no tokens.
        lengths = (src != PAD).sum(axis=1)  # [B]
        max_lengths = jnp.where(lengths > 0, lengths + search.extra_length, 0)

        cache = model.apply(
            {"params": params},
            src,
            num_beams=search.num_hypotheses,
            capacity=capacity,
            method="start",
        )
        result = search(
            step_fn(model, params),
            cache,
            max_lengths=max_lengths,
            capacity=capacity,
        )
        return result.tokens, result.scores

    shapes = {name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in arrays.items()}
    (num_sentences,) = jax.export.symbolic_shape("sentences")
    src = jax.ShapeDtypeStruct((num_sentences, length), jnp.int32)

    # The kernel of an NVIDIA GPU exists on no other platform.
    portable = dataclasses.replace(backend(), fused_attention=False)
    with use_backend(portable):
        export = jax.export.export(translate, platforms=_PLATFORMS)
        exported = export(shapes, src)
    return bytes(exported.serialize())
