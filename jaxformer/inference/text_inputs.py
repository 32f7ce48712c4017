"""Token ids and types of the texts, or of the pairs of texts, that a user gives an encoder."""

from collections.abc import Sequence
from typing import Any

from jaxformer.checks import check_text, check_tokens
from jaxformer.data.encoded_text import EncodedText
from jaxformer.data.huggingface_tokenizer import HuggingFaceTokenizer
from jaxformer.data.text_pairs import TextOrPair
from jaxformer.data.tokenizer import EOS, Vocabulary
from jaxformer.errors import UserError, prefix_errors
from jaxformer.models.architecture import Architecture


def encode_text(
    text: TextOrPair,
    tokenizer: Vocabulary,
    model: Architecture,
    place: str,
    *,
    is_limited: bool = True,
) -> EncodedText:
    """Returns the tokens of a text or of a pair of texts, with special tokens.

    Args:
      text: The text or the pair.
      tokenizer: The tokenizer.
      model: The architecture.
      place: Name of the text in error messages.
      is_limited: Refuse a text that is longer than the model allows.

    Raises:
      UserError: It is not text, it is too long, or the model takes no pairs.
    """
    texts = text if isinstance(text, tuple) else (text,)
    for each in texts:
        check_text(each, place)
    if len(texts) > 2:
        raise UserError(f"{place}: expected a text or a pair of texts, got {len(texts)} texts")

    with prefix_errors(place):
        if len(texts) == 2:
            ids, types = _encode_pair(texts, tokenizer, model)
        else:
            [own] = tokenizer.encode_batch(texts)
            ids = [*own, EOS]
            types = [0] * len(ids)

    longest = model.max_length if is_limited else None
    ids = check_tokens(ids, tokenizer.vocab_size, place, longest)
    num_types = getattr(model, "num_token_types", 1)
    return EncodedText.of(ids, types, num_types)


def encode_texts(
    texts: Sequence[TextOrPair | EncodedText],
    tokenizer: Vocabulary,
    model: Architecture,
) -> list[EncodedText]:
    """Returns the tokens of texts or of pairs of texts; refuses a single string.

    Texts that have been encoded by :func:`encode_text` are returned as they are.
    """
    if isinstance(texts, str):
        raise UserError(f"texts: expected a list of texts, got one string, {texts!r:.80}")

    encoded = []
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, EncodedText):
            text = encode_text(text, tokenizer, model, f"texts:{number}")
        encoded.append(text)
    return encoded


def _encode_pair(
    pair: Any,
    tokenizer: Vocabulary,
    model: Architecture,
) -> tuple[list[int], list[int]]:
    is_bert = hasattr(model, "num_token_types")
    if not is_bert or not isinstance(tokenizer, HuggingFaceTokenizer):
        raise UserError(
            "expected a single text for a model without token types, got a pair; begin with an "
            "imported BERT"
        )
    return tokenizer.encode_pair(*pair)
