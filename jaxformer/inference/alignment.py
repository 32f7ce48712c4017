"""Word alignment from attention.

Each pair is force-decoded, and the encoder-decoder attention of one layer is averaged over its
heads. Weights are summed over the pieces of a source word and averaged over the pieces of a target
word. Each target word is aligned to the source word with the largest weight (section 3 of Garg et
al. 2019, "Jointly Learning to Align and Translate with Transformer Models").
"""

import codecs
import difflib
import functools
import math
import re
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxformer.checks import check_same_length, check_texts
from jaxformer.data.characters import visible_characters
from jaxformer.data.tokenizer import PAD, split_spaces
from jaxformer.errors import UserError
from jaxformer.inference.members import Member, recorded_weights
from jaxformer.inference.pair_scores import check_pairs, pair_batches
from jaxformer.inference.translator import Translator
from jaxformer.layout import global_mesh

# Attention of all layers and heads is recorded, [L, B, H, T, S], so batches are smaller here.
_TOKENS_PER_BATCH = 1024
GAP_PROBABILITY = 0.05  # attention weight that align_in_order assigns to leaving a word unaligned
_BYTE = re.compile("<0x([0-9A-F]{2})>")


def align(
    translator: Translator,
    sources: Sequence[str],
    targets: Sequence[tuple[str, list[int]]],
    *,
    layer: int | None = None,
) -> list[list[tuple[int, int]]]:
    """Returns (source word, target word) pairs of each sentence, ordered by target word, from 0.

    Words are separated by spaces; other whitespace, such as tabs and U+00A0, belongs to a word. An
    ensemble averages the encoder-decoder attention of its models, which all must record it.

    Args:
      translator: The model or ensemble.
      sources: Source sentences.
      targets: Text and token ids of each translation, as in
        :class:`~jaxformer.inference.translator.Hypothesis`.
      layer: Decoder layer, from 1; None: the second-to-last (or the only one).
    """
    weights = word_attention(translator, sources, targets, layer=layer)
    return [align_by_maximum(pair) for pair in weights]


@global_mesh(None)
def word_attention(
    translator: Translator,
    sources: Sequence[str],
    targets: Sequence[tuple[str, list[int]]],
    *,
    layer: int | None = None,
) -> list[Float[np.ndarray, "T S"]]:
    """Returns the attention of target words to source words, float64; see :func:`align`."""
    layers = layer_indices(translator, layer)
    sources = check_texts(sources, "sources")
    check_same_length(targets, sources, "targets", "sources")
    pairs, result = [], []
    for source, (text, ids) in zip(sources, targets, strict=True):
        pairs.append((translator.source_ids(source), ids))
        result.append(np.zeros((len(split_spaces(text)), len(split_spaces(source)))))
    check_pairs(translator, pairs)
    for batch in pair_batches(pairs, translator.max_length, _TOKENS_PER_BATCH):
        weights = cross_attention(translator.models, layers, batch.src, batch.tgt_in)
        for number, of_pieces in zip(batch.numbers, jax.device_get(weights), strict=False):
            source, target = pairs[number]
            result[number] = word_weights(
                of_pieces[: len(target), : len(source)],
                word_ids(translator, source, sources[number]),
                word_ids(translator, target, targets[number][0]),
                result[number].shape,
            )
    return result


def layer_indices(translator: Translator, layer: int | None) -> tuple[int, ...]:
    """Checks the number of a decoder layer, and returns its index, from 0, in each model."""
    layers = [member.config.decoder_layers for member in translator.models]
    if layer is not None and not 1 <= layer <= min(layers):
        raise UserError(f"expected a decoder layer from 1 to {min(layers)}: got {layer}")
    return tuple(max(0, count - 2) if layer is None else layer - 1 for count in layers)


def format_pharaoh(alignment: Sequence[tuple[int, int]]) -> str:
    """Formats an alignment as Pharaoh and Moses do, such as "0-0 2-1"."""
    return " ".join(f"{source}-{target}" for source, target in alignment)


def word_weights(
    weights: Float[np.ndarray, "P Q"],
    source_words: Sequence[int],
    target_words: Sequence[int],
    shape: tuple[int, int],
) -> Float[np.ndarray, "T S"]:
    """Reduces attention between pieces to attention between words; -1 is a piece of no word."""
    of_targets, of_sources = (
        np.equal.outer(words, np.arange(count)).astype(np.float64)
        for words, count in zip((target_words, source_words), shape, strict=True)
    )
    averages = of_targets / np.maximum(of_targets.sum(axis=0), 1)
    return averages.T @ weights @ of_sources


def align_by_maximum(weights: Float[np.ndarray, "T S"]) -> list[tuple[int, int]]:
    """Pairs each target word that has pieces with the first source word of largest weight."""
    return [(int(row.argmax()), word) for word, row in enumerate(weights) if row.any()]


def align_in_order(weights: Float[np.ndarray, "T S"]) -> list[tuple[int, int]]:
    """Finds the best monotonic one-to-one alignment (Needleman and Wunsch 1970).

    The alignment maximizes the product of the weights of its (source word, target word) pairs and
    of 0.05 for each unaligned word. It suits sequences in the same order, such as words and their
    parts of speech, but not translations.

    >>> weights = np.array([[0.8, 0.1, 0.1], [0.1, 0.2, 0.7], [0.1, 0.3, 0.6]])
    >>> align_in_order(weights[:2])  # the source word 1 is unaligned
    [(0, 0), (2, 1)]
    """
    costs, gap = -np.log(weights + 1e-6), -math.log(GAP_PROBABILITY)
    targets, sources = weights.shape
    least = np.zeros((targets + 1, sources + 1))  # least cost of aligning the first t and s words
    least[:, 0] = gap * np.arange(targets + 1)
    least[0] = gap * np.arange(sources + 1)
    for t in range(targets):
        for s in range(sources):
            with_gap = min(least[t, s + 1], least[t + 1, s]) + gap
            least[t + 1, s + 1] = min(least[t, s] + costs[t, s], with_gap)
    pairs, t, s = [], targets, sources
    while t and s:
        if least[t, s] == least[t - 1, s - 1] + costs[t - 1, s - 1]:
            t, s = t - 1, s - 1
            pairs.append((s, t))
        elif least[t, s] == least[t - 1, s] + gap:
            t -= 1
        else:
            s -= 1
    return pairs[::-1]


def word_ids(translator: Translator, ids: Sequence[int], text: str) -> list[int]:
    """Returns the index of the word of ``text`` that each token spells; -1 for special ids."""
    pieces: list[str | None] = [translator.tokenizer.spelled_piece(token) for token in ids]
    return words_of_pieces(pieces, text)


def words_of_pieces(pieces: Sequence[str | None], text: str) -> list[int]:
    """Returns the index of the space-separated word of ``text`` that each piece begins in.

    A lone "▁" belongs to the word that follows, and a byte to the word of its character. None is a
    piece that spells nothing. The pieces spell the text, up to normalization.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    spelled, starts = "", []
    for piece in pieces:
        starts.append(None if piece is None else len(spelled))
        if piece is not None:
            # A multi-byte character is appended with its last byte, so all its bytes share a start.
            byte = _BYTE.fullmatch(piece)
            content = bytes([int(byte[1], 16)]) if byte else piece.replace("▁", " ").encode()
            spelled += visible_characters(decoder.decode(content))
    words = list(map(visible_characters, split_spaces(text)))
    word_of = [n for n, word in enumerate(words) for _ in word]
    position_of = _match_positions(spelled, "".join(words))
    return [
        -1 if start is None or start >= len(spelled) or not word_of else word_of[position_of[start]]
        for start in starts
    ]


def _match_positions(spelled: str, text: str) -> list[int]:
    """Returns the position in ``text``, exact or interpolated, of each character of ``spelled``."""
    if spelled == text:
        return list(range(len(text)))
    positions = []
    matcher = difflib.SequenceMatcher(None, spelled, text, autojunk=False)
    for _, start, end, text_start, text_end in matcher.get_opcodes():
        for n in range(end - start):
            position = text_start + n * (text_end - text_start) // (end - start)
            positions.append(min(position, len(text) - 1))
    return positions


@functools.partial(jax.jit, static_argnums=1)
def cross_attention(
    members: tuple[Member, ...],
    layers: tuple[int, ...],
    src: Int[Array, "B S"] | Int[np.ndarray, "B S"],
    tgt_in: Int[Array, "B T"] | Int[np.ndarray, "B T"],
) -> Float[Array, "B T S"]:
    """Returns the attention of targets to sources, the mean of heads and models, float32."""
    total = jnp.zeros((*tgt_in.shape, src.shape[1]), jnp.float32)
    segments = (src != PAD).astype(jnp.int32)
    for member, layer in zip(members, layers, strict=True):
        encoded = member(src, segments, method="encode")
        _, recorded = member(tgt_in, encoded, segments, method="decode", mutable="intermediates")
        weights = recorded_weights(member.model, recorded, "decoder", "cross_attention")
        total += weights[layer].mean(axis=1)
    return total / len(members)
