"""Word alignment from attention.

Each pair is force-decoded, and the encoder-decoder attention of one layer is averaged over its
heads. Weights are summed over the pieces of a source word and averaged over the pieces of a target
word. Each target word is aligned to the source word with the largest weight (section 3 of Garg et
al. 2019, "Jointly Learning to Align and Translate with Transformer Models").
"""

import codecs
import difflib
import math
import re
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxformer.checks import check_same_length, check_texts
from jaxformer.data.characters import visible_characters
from jaxformer.data.tokenizer import PAD, split_spaces
from jaxformer.errors import UserError
from jaxformer.inference.decoder import Decoder
from jaxformer.inference.forced_pass import ForcedPass, PairBatch
from jaxformer.inference.kept_programs import KeptProgram
from jaxformer.inference.members import Ensemble, recorded_weights
from jaxformer.inference.pair_scores import check_pairs
from jaxformer.inference.translator import Translator

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
    source_ids: Sequence[list[int]] | None = None,
) -> list[list[tuple[int, int]]]:
    """Returns (source word, target word) pairs of each sentence, ordered by target word, from 0.

    Words are separated by spaces; other whitespace, such as tabs and U+00A0, belongs to a word. An
    ensemble averages the encoder-decoder attention of its models, which all must record it.

    Args:
      translator: The model or ensemble.
      sources: Source sentences.
      targets: Text and token ids of each translation, as in
        :class:`~jaxformer.inference.hypotheses.Hypothesis`.
      layer: Decoder layer, from 1; None: the second-to-last (or the only one).
      source_ids: Token ids of the sources, if they are known.
    """
    weights = word_attention(
        translator,
        sources,
        targets,
        layer=layer,
        source_ids=source_ids,
    )
    return [align_by_maximum(pair) for pair in weights]


def word_attention(
    translator: Translator,
    sources: Sequence[str],
    targets: Sequence[tuple[str, list[int]]],
    *,
    layer: int | None = None,
    source_ids: Sequence[list[int]] | None = None,
) -> list[Float[np.ndarray, "T S"]]:
    """Returns the attention of target words to source words, float64; see :func:`align`."""
    layers = layer_indices(translator, layer)

    sources = check_texts(sources, "sources")
    check_same_length(
        targets,
        sources,
        name="targets",
        other="sources",
    )

    if source_ids is None:
        source_ids = [translator.source_ids(source) for source in sources]

    pairs = []
    result = []
    for source, own_ids, (text, ids) in zip(sources, source_ids, targets, strict=True):
        pairs.append((own_ids, ids))
        num_target_words = len(split_spaces(text))
        num_source_words = len(split_spaces(source))
        result.append(np.zeros((num_target_words, num_source_words)))
    check_pairs(translator, pairs)

    def attention(models: Ensemble, batch: PairBatch) -> list[Array]:
        return _CROSS_ATTENTION(models, layers, batch)

    plan = ForcedPass(attention, _TOKENS_PER_BATCH)
    decoder = Decoder(translator.models, translator.config.search, plan)
    # One batch after another: all weights of all pieces would need too much memory.
    for number, padded in decoder.stream(pairs):
        own_ids, target_ids = pairs[number]
        target_text, _ = targets[number]
        of_pieces = padded[: len(target_ids), : len(own_ids)]
        result[number] = word_weights(
            of_pieces,
            source_words=word_ids(translator, own_ids, sources[number]),
            target_words=word_ids(translator, target_ids, target_text),
            shape=result[number].shape,
        )
    return result


def layer_indices(translator: Translator, layer: int | None) -> tuple[int, ...]:
    """Checks the number of a decoder layer, and returns its index, from 0, in each model."""
    counts = [member.config.decoder_layers for member in translator.models.experts]
    if layer is None:
        second_to_last = [max(0, count - 2) for count in counts]
        return tuple(second_to_last)

    most = min(counts)
    if not 1 <= layer <= most:
        raise UserError(f"expected a decoder layer from 1 to {most}: got {layer}")
    return (layer - 1,) * len(counts)


def format_pharaoh(alignment: Sequence[tuple[int, int]]) -> str:
    """Formats an alignment as Pharaoh and Moses do, such as "0-0 2-1"."""
    pairs = [f"{source}-{target}" for source, target in alignment]
    return " ".join(pairs)


def word_weights(
    weights: Float[np.ndarray, "P Q"],
    source_words: Sequence[int],
    target_words: Sequence[int],
    shape: tuple[int, int],
) -> Float[np.ndarray, "T S"]:
    """Reduces attention between pieces to attention between words; -1 is a piece of no word."""
    num_target_words, num_source_words = shape

    # Weights are summed over the pieces of a source word.
    all_source_words = np.arange(num_source_words)
    is_of_source = np.equal.outer(source_words, all_source_words)
    sums = is_of_source.astype(np.float64)  # [Q, S]

    # They are averaged over the pieces of a target word.
    all_target_words = np.arange(num_target_words)
    is_of_target = np.equal.outer(target_words, all_target_words)
    averages = is_of_target.astype(np.float64)  # [P, T]
    num_pieces = averages.sum(axis=0)
    averages /= np.maximum(num_pieces, 1)

    return averages.T @ weights @ sums


def align_by_maximum(weights: Float[np.ndarray, "T S"]) -> list[tuple[int, int]]:
    """Pairs each target word that has pieces with the first source word of largest weight."""
    pairs = []
    for target_word, row in enumerate(weights):
        has_pieces = row.any()
        if has_pieces:
            source_word = int(row.argmax())
            pairs.append((source_word, target_word))
    return pairs


def align_in_order(weights: Float[np.ndarray, "T S"]) -> list[tuple[int, int]]:
    """Finds the best monotonic one-to-one alignment (Needleman and Wunsch 1970).

    The alignment maximizes the product of the weights of its (source word, target word) pairs and
    of 0.05 for each unaligned word. It suits sequences in the same order, such as words and their
    parts of speech, but not translations.

    >>> weights = np.array([[0.8, 0.1, 0.1], [0.1, 0.2, 0.7], [0.1, 0.3, 0.6]])
    >>> align_in_order(weights[:2])  # the source word 1 is unaligned
    [(0, 0), (2, 1)]
    """
    costs = -np.log(weights + 1e-6)
    gap = -math.log(GAP_PROBABILITY)
    targets, sources = weights.shape

    least = np.zeros((targets + 1, sources + 1))  # least cost of aligning the first t and s words
    least[:, 0] = gap * np.arange(targets + 1)
    least[0] = gap * np.arange(sources + 1)
    for t in range(targets):
        for s in range(sources):
            with_pair = least[t, s] + costs[t, s]
            without_target = least[t, s + 1]
            without_source = least[t + 1, s]
            with_gap = min(without_target, without_source) + gap
            least[t + 1, s + 1] = min(with_pair, with_gap)

    # The decisions are read backward from the last words.
    pairs = []
    t = targets
    s = sources
    while t and s:
        with_pair = least[t - 1, s - 1] + costs[t - 1, s - 1]
        without_target = least[t - 1, s] + gap
        if least[t, s] == with_pair:
            t -= 1
            s -= 1
            pairs.append((s, t))
        elif least[t, s] == without_target:
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
    spelled = ""
    starts = []
    for piece in pieces:
        if piece is None:
            starts.append(None)
            continue

        # A multi-byte character is appended with its last byte, so all its bytes share a start.
        starts.append(len(spelled))
        content = piece.replace("▁", " ").encode()
        if byte := _BYTE.fullmatch(piece):
            content = bytes([int(byte[1], 16)])
        spelled += visible_characters(decoder.decode(content))

    words = list(map(visible_characters, split_spaces(text)))
    word_of = []  # index of the word of each visible character of the text
    for n, word in enumerate(words):
        word_of += [n] * len(word)
    position_of = _match_positions(spelled, "".join(words))

    def word_at(start: int | None) -> int:
        if start is None or not word_of:
            return -1
        # Bytes at the end may spell no character.
        if start >= len(spelled):
            return -1
        return word_of[position_of[start]]

    return [word_at(start) for start in starts]


def _match_positions(spelled: str, text: str) -> list[int]:
    """Returns the position in ``text``, exact or interpolated, of each character of ``spelled``."""
    if spelled == text:
        return list(range(len(text)))

    positions = []
    matcher = difflib.SequenceMatcher(
        isjunk=None,
        a=spelled,
        b=text,
        autojunk=False,
    )
    for _, start, end, text_start, text_end in matcher.get_opcodes():
        length = end - start
        text_length = text_end - text_start
        for n in range(length):
            position = text_start + n * text_length // length
            last = len(text) - 1
            positions.append(min(position, last))
    return positions


def cross_attention(
    models: Ensemble,
    layers: tuple[int, ...],
    batch: PairBatch,
) -> Float[Array, "B T S"]:
    """Returns the attention of targets to sources, the mean of heads and models, float32."""
    source_length = batch.src.shape[1]
    total = jnp.zeros((*batch.tgt_in.shape, source_length), jnp.float32)
    segments = (batch.src != PAD).astype(jnp.int32)

    for member, layer in zip(models, layers, strict=True):
        encoded = member(batch.src, segments, method="encode")
        _, recorded = member(
            batch.tgt_in,
            encoded,
            segments,
            method="decode",
            mutable="intermediates",
        )
        weights = recorded_weights(
            member.model,
            recorded,
            stack="decoder",
            sublayer="cross_attention",
        )  # [L, B, H, T, S]
        mean_of_heads = weights[layer].mean(axis=1)
        total += mean_of_heads

    return total / len(models)


_CROSS_ATTENTION = KeptProgram(cross_attention, static_argnums=(1,))
