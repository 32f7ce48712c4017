"""Word alignment from attention: which source word each target word looks at.

The pair is force-decoded and the encoder-decoder attention of one layer, averaged over its heads,
is recorded. The weights of the pieces of a source word are added up, those of the pieces of a
target word are averaged, and each target word is aligned to the source word with the most
(section 3 of Garg et al. 2019, "Jointly Learning to Align and Translate with Transformer Models").
"""

import codecs
import difflib
import functools
import math
import re
import reprlib
from collections.abc import Callable, Sequence
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from jaxformer.checks import check_same_length, check_texts
from jaxformer.config import ModelConfig
from jaxformer.data.tokenizer import PAD, UNK
from jaxformer.errors import UserError
from jaxformer.inference.pair_scores import check_pairs, pair_batches
from jaxformer.inference.translator import Translator
from jaxformer.models.transformer import Transformer

# Attention of all layers and heads is recorded, [L, B, H, T, S], so batches are smaller here.
_TOKENS_PER_BATCH = 1024
_NO_WORD = -1
# What aligning in order counts for a word that stays alone, as if it were a weight of attention.
GAP_PROBABILITY = 0.05
_BYTE = re.compile("<0x([0-9A-F]{2})>")


def align(
    translator: Translator,
    sources: Sequence[str],
    targets: Sequence[tuple[str, list[int]]],
    *,
    layer: int | None = None,
    report: Callable[[int], None] = lambda finished: None,
) -> list[list[tuple[int, int]]]:
    """The alignment of every pair: a source word for each target word, counted from 0.

    Words are what whitespace separates. Of an ensemble, the attention of the models is averaged.

    Args:
      translator: The model or ensemble.
      sources: Source sentences.
      targets: The translation of each: its text and its token ids, as of a ``Hypothesis``.
      layer: Decoder layer to look at, from 1; None: the last but one (or the only one).
      report: Called with the number of pairs of each finished batch.

    Returns:
      For each pair (source word, target word) pairs, by target word; empty for a blank one.

    Raises:
      UserError: There is no such layer, or the texts and token ids are not what is expected.
    """
    weights = word_attention(translator, sources, targets, layer=layer, report=report)
    return [most_attended(pair) for pair in weights]


def word_attention(
    translator: Translator,
    sources: Sequence[str],
    targets: Sequence[tuple[str, list[int]]],
    *,
    layer: int | None = None,
    report: Callable[[int], None] = lambda finished: None,
) -> list[Float[np.ndarray, "T S"]]:
    """The attention that :func:`align` is made from, whose arguments it takes.

    Returns:
      For each pair the weights of each target word over the source words, those of a word without
      pieces zero.

    Raises:
      UserError: There is no such layer, or the texts and token ids are not what is expected.
    """
    configs = tuple(config for config, _ in translator.models)
    params = tuple(params for _, params in translator.models)
    layers = layer_indices(translator, layer)
    sources = check_texts(sources, "sources")
    _check_targets(targets, sources)
    source_ids = [translator.encode(text) for text in sources]
    pairs = [(ids, target) for ids, (_, target) in zip(source_ids, targets, strict=True)]
    check_pairs(configs, pairs)
    shapes = [
        (len(target.split()), len(source.split()))
        for source, (target, _) in zip(sources, targets, strict=True)
    ]
    result = [np.zeros(shape) for shape in shapes]
    longest = min(config.max_length for config in configs)
    for batch in pair_batches(pairs, longest, _TOKENS_PER_BATCH):
        weights = jax.device_get(cross_attention(configs, layers, params, batch.src, batch.tgt_in))
        for row, number in enumerate(batch.numbers):
            ids, target = pairs[number]
            result[number] = between_words(
                weights[row, : len(target), : len(ids)],
                word_ids(translator, ids, sources[number]),
                word_ids(translator, target, targets[number][0]),
                shapes[number],
            )
        report(len(batch.numbers))
    return result


def _check_targets(targets: Sequence[tuple[str, list[int]]], sources: Sequence[str]) -> None:
    check_same_length(targets, sources, "targets", "sources")
    for number, target in enumerate(targets):
        if not isinstance(target, tuple) or len(target) != 2:
            raise UserError(
                f"targets[{number}]: expected a text and its token ids, as (hypothesis.text, "
                f"hypothesis.tokens): got {reprlib.repr(target)}"
            )


def layer_indices(translator: Translator, layer: int | None) -> tuple[int, ...]:
    """Which decoder layer of each model to look at, from 0.

    Raises:
      UserError: A model has no such layer.
    """
    fewest = min(config.num_layers for config, _ in translator.models)
    if layer is not None and not 1 <= layer <= fewest:
        raise UserError(f"expected a decoder layer from 1 to {fewest}: got {layer}")
    return tuple(
        max(0, config.num_layers - 2) if layer is None else layer - 1
        for config, _ in translator.models
    )


def pharaoh(alignment: Sequence[tuple[int, int]]) -> str:
    """The alignment in the format of Pharaoh and Moses.

    >>> pharaoh([(0, 0), (2, 1)])
    '0-0 2-1'
    """
    return " ".join(f"{source}-{target}" for source, target in alignment)


def between_words(
    weights: Float[np.ndarray, "P Q"],
    source_words: Sequence[int],
    target_words: Sequence[int],
    shape: tuple[int, int],
) -> Float[np.ndarray, "T S"]:
    """Attention between words, from that between their pieces.

    Args:
      weights: Attention of each target piece over the source pieces, float.
      source_words: The word of each source piece; -1: of none, as end-of-sentence.
      target_words: The word of each target piece, likewise.
      shape: How many target and source words there are.

    Returns:
      The weights of a source word's pieces added up, those of a target word's averaged; zeros for
      words without pieces.
    """
    of_targets, of_sources = (
        np.equal.outer(words, np.arange(count)).astype(np.float64)
        for words, count in zip((target_words, source_words), shape, strict=True)
    )
    averages = of_targets / np.maximum(of_targets.sum(axis=0), 1)
    return averages.T @ weights @ of_sources


def most_attended(weights: Float[np.ndarray, "T S"]) -> list[tuple[int, int]]:
    """(source word, target word) pairs, by target word: the source word with the most attention.

    Of equal ones the first. A target word without pieces, all zeros, has no couple.
    """
    return [(int(row.argmax()), word) for word, row in enumerate(weights) if row.any()]


def align_in_order(weights: Float[np.ndarray, "T S"]) -> list[tuple[int, int]]:
    """The best alignment that crosses nowhere and in which each word has at most one other.

    That of the highest product of weights, of which a word that stays alone has 0.05 (Needleman and
    Wunsch 1970). Where all words have their likes in the same order, but for a few of them:
    translations have not, but parts of speech.

    >>> weights = np.array([[0.8, 0.1, 0.1], [0.1, 0.2, 0.7], [0.1, 0.3, 0.6]])
    >>> align_in_order(weights[:2])  # the source word 1 stays alone
    [(0, 0), (2, 1)]

    Args:
      weights: Attention of each target word over the source words.

    Returns:
      (source word, target word) pairs, in order.
    """
    costs, alone = -np.log(weights + 1e-6), -math.log(GAP_PROBABILITY)
    targets, sources = weights.shape
    least = np.zeros((targets + 1, sources + 1))  # cost of the first words of both
    least[:, 0] = alone * np.arange(targets + 1)
    least[0] = alone * np.arange(sources + 1)
    for t in range(targets):
        for s in range(sources):
            one_alone = min(least[t, s + 1], least[t + 1, s]) + alone
            least[t + 1, s + 1] = min(least[t, s] + costs[t, s], one_alone)
    pairs, t, s = [], targets, sources
    while t and s:
        if least[t, s] == least[t - 1, s - 1] + costs[t - 1, s - 1]:
            t, s = t - 1, s - 1
            pairs.append((s, t))
        elif least[t, s] == least[t - 1, s] + alone:
            t -= 1
        else:
            s -= 1
    return pairs[::-1]


def word_ids(translator: Translator, ids: Sequence[int], text: str) -> list[int]:
    """The word of ``text`` that each token spells, from 0; -1 for special ids."""
    pieces: list[str | None] = []
    for token in ids:
        # What the tokenizer did not know stands for some character of the text.
        known = None if token < UNK else translator.tokenizer.piece(token)
        pieces.append("\ufffd" if token == UNK else known)
    return words_of_pieces(pieces, text)


def words_of_pieces(pieces: Sequence[str | None], text: str) -> list[int]:
    """The whitespace-separated word of ``text`` that each piece begins in, from 0.

    A lone "▁" belongs to the word it introduces, and each byte to the word of its character.

    >>> words_of_pieces(["▁Gu", "ten", "▁", "<0xC3>", "<0x84>", "rger", None], "Guten Ärger")
    [0, 0, 1, 1, 1, 1, -1]

    Args:
      pieces: Pieces as the tokenizer writes them, "▁" for a space; None for one that spells
        nothing.
      text: What they spell. Spaces and characters may differ, by the tokenizer's normalization.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    spelled, starts = "", []
    for piece in pieces:
        starts.append(None if piece is None else len(spelled))
        if piece is not None:
            # A character of several bytes is added with its last one: all start at its place.
            byte = _BYTE.fullmatch(piece)
            content = bytes([int(byte[1], 16)]) if byte else piece.replace("▁", " ").encode()
            spelled += "".join(decoder.decode(content).split())
    words = text.split()
    word_of = [n for n, word in enumerate(words) for _ in word]
    place_of = _matching(spelled, "".join(words))
    return [
        _NO_WORD
        if start is None or start >= len(spelled) or not word_of
        else word_of[place_of[start]]
        for start in starts
    ]


def _matching(spelled: str, text: str) -> list[int]:
    """For each character of ``spelled`` where it is in ``text``, or about where."""
    if spelled == text:
        return list(range(len(text)))
    places = []
    matcher = difflib.SequenceMatcher(None, spelled, text, autojunk=False)
    for _, start, end, text_start, text_end in matcher.get_opcodes():
        for n in range(end - start):
            place = text_start + n * (text_end - text_start) // (end - start)
            places.append(min(place, len(text) - 1))
    return places


@functools.partial(jax.jit, static_argnums=(0, 1))
def cross_attention(
    configs: tuple[ModelConfig, ...],
    layers: tuple[int, ...],
    params: tuple[PyTree, ...],
    src: Int[Array, "B S"] | Int[np.ndarray, "B S"],
    tgt_in: Int[Array, "B T"] | Int[np.ndarray, "B T"],
) -> Float[Array, "B T S"]:
    """Encoder-decoder attention of one layer of each model, averaged over heads and models.

    Args:
      configs: Architecture of each model.
      layers: Index of the layer to look at in each.
      params: Parameters of each model.
      src: Source ids.
      tgt_in: Target ids shifted right.

    Returns:
      The weights, float32.
    """
    total = jnp.zeros((*tgt_in.shape, src.shape[1]), jnp.float32)
    segments = (src != PAD).astype(jnp.int32)
    for config, layer, weights in zip(configs, layers, params, strict=True):
        model, variables = Transformer(config), {"params": weights}
        encoded = model.apply(variables, src, segments, method="encode")
        _, recorded = model.apply(
            variables, tgt_in, encoded, segments, method="decode", mutable="intermediates"
        )
        stack = cast(dict, recorded)["intermediates"]["decoder"]["layers"]
        total += stack["cross_attention"]["weights"][0][layer].mean(axis=1)
    return total / len(configs)
