"""Tokenizers of Hugging Face's library ``tokenizers``, from a ``tokenizer.json``."""

import functools
import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

from jaxformer.checks import check_tokens, check_unicode
from jaxformer.data.tokenizer import BOS, EOS, PAD, SPECIAL_PIECES, UNK, Vocabulary, find_language
from jaxformer.errors import MALFORMED, UserError, needs_package, prefix_errors

# Special tokens, in the order of our ids.
_NAMES = ("pad", "eos", "bos", "unk")
# The first of these owns an id that several special tokens share: it alone is converted to and from
# the id.
_OWNERS = ("eos", "unk", "bos", "pad")
_MAX_VOCAB_SIZE = 2**20
# Decoders with which each token appends to the text, except that bytes are decoded in runs.
_APPENDING = {
    "BPEDecoder",
    "ByteFallback",
    "ByteLevel",
    "CTC",
    "Fuse",
    "Metaspace",
    "Replace",
    "Strip",
    "WordPiece",
}


def open_tokenizer_json(text: str) -> Any:
    """Returns a ``Tokenizer`` of the library, given the text of ``tokenizer.json``."""
    with needs_package("tokenizers", "which reads tokenizer.json", extra="interop"):
        import tokenizers

    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # The library raises no other class.
        raise UserError(f"expected a tokenizer.json: {error!s:.200}") from None


def language_ids(tokenizer: Any, size: int) -> dict[str, int]:
    """Returns the ids of the codes of languages, which are special tokens such as eng_Latn."""
    codes = {}
    added = tokenizer.get_added_tokens_decoder()
    for number, token in added.items():
        is_code = token.special and not token.content.startswith("<")
        if is_code and number < size:
            codes[token.content] = number
    return codes


class AlignedTokens(NamedTuple):
    """The tokens of a text, of a pair of texts or of words, and the place of each.

    Attributes:
      ids: Token ids, with special tokens.
      types: Token types; see :class:`~jaxformer.Bert`.
      texts: Number of the text that a token is of, 0 or 1; None for special tokens.
      spans: Index of the first character of a token in its text, and of the character after it.
      words: Number of the word that a token is of, in its text; None for special tokens.
    """

    ids: list[int]
    types: list[int]
    texts: list[int | None]
    spans: list[tuple[int, int]]
    words: list[int | None]


class HuggingFaceTokenizer(Vocabulary):
    """Converts text to token ids and back, like ``PreTrainedTokenizerFast`` in transformers.

    The special tokens have our ids 0 to 3, and all others follow in their own order. Ids in
    ``tokenizer.json`` are called theirs. The serialized form is one JSON object with

    * ``huggingface``: the text of ``tokenizer.json``,
    * ``special``: the ids of the special tokens in it,
    * ``vocab_size``: the size of the model's vocabulary,
    * ``mask``: the id of the token that stands for masked ones, if it is not [MASK],
    * ``token_types``: false if all tokens of a pair have type 0,
    * ``labels``, of an encoder: the labels of its classes,
    * ``skips_blank``, of an encoder-decoder: a blank source has no ids, not even special tokens,
    * ``other_ends``, of a language model: the ids in it of more tokens that end a text,
    * ``forced_start``, of an encoder-decoder: the id of the token in it that begins every output,
    * ``languages``, of a model of many languages: the languages of source and target. Their codes
      are the first tokens of the two sides,
    * ``code_follows``, of such a model: the code of the source follows its end, and the decoder
      begins with the code of the target, as in mBART-cc25.
    """

    json: str  # the text of ``tokenizer.json``
    special: dict[str, int | None]  # their id of each special token; None if they lack it
    their_mask: int | None  # their id of the token that stands for masked ones
    absent: str  # names of the special tokens without an id of their own, separated by spaces
    their_ids: np.ndarray  # for each of our ids; -1 for a token that they lack
    our_ids: np.ndarray  # for each of their ids
    forced_start: int | None  # their id of the token that begins every output

    form = "huggingface"
    their_class: str | None = None  # in transformers, if a layout's class does not read it
    uses = ("pairs", "stream")
    ends_texts = True
    keeps_lines = False

    def __init__(self, serialized: bytes) -> None:
        with prefix_errors("expected a tokenizer of Hugging Face", *MALFORMED):
            values = json.loads(serialized)
            self.json = str(values["huggingface"])

            size = operator.index(values["vocab_size"])
            special = {name: values["special"][name] for name in _NAMES}
            if not 0 < size <= _MAX_VOCAB_SIZE:
                raise ValueError(f"its vocabulary has the size {size}")
            self.special = {name: _optional_id(found) for name, found in special.items()}

            mask = _optional_id(values.get("mask"))
            self.has_types = bool(values.get("token_types", True))

            labels = values.get("labels")
            self._labels = [str(label) for label in labels or ()]
        super().__init__(serialized)

        self._tokenizer = open_tokenizer_json(self.json)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        languages = values.get("languages") or ()
        self.languages = tuple(map(str, languages))
        their_codes = self._language_ids(size)
        self.code_follows = bool(values.get("code_follows"))
        if self.code_follows:
            [_, self.special["bos"]] = their_codes

        decoders = _decoders(self._tokenizer.decoder)
        self._has_bytes = "ByteLevel" in decoders
        self._appends = _only_append(decoders)

        self._check_ids(size)
        owned = _owned_ids(self.special, size)
        others = [token for token in range(size) if token not in owned]
        absent = [name for name in _NAMES if name not in owned.values()]
        self.absent = " ".join(absent)

        self.their_ids = _their_id_of_each(self.special, others)
        self.our_ids = _our_id_of_each(owned, others)
        self.vocab_size = len(self.their_ids)

        self._symbols = _id_of_each_label(self._labels)
        self.target_symbols = labels is not None
        self.target_vocab_size = self.vocab_size
        if labels:
            self.target_vocab_size = UNK + 1 + len(self._labels)

        self._codes = []
        if their_codes:
            self._codes = self.our_ids[their_codes].tolist()
        if self.code_follows:
            self.source_end = self._codes[0]
        self._skips_blank = bool(values.get("skips_blank"))
        self.forced_start = _optional_id(values.get("forced_start"))
        self.target_start = self._target_start()
        self.other_ends = self._other_ends(values.get("other_ends") or ())

        self.their_mask = None
        self.mask_token = None
        if mask is None:  # as in files of version 0.3
            mask = self._tokenizer.token_to_id("[MASK]")
        if mask is not None and mask in range(size):
            self.their_mask = mask
            self.mask_token = int(self.our_ids[mask])

    def files(self) -> dict[str, bytes]:
        """Returns the files that a class in transformers reads, by their names."""
        return {"tokenizer.json": self.json.encode()}

    def special_pieces(self, names: Mapping[str, str]) -> dict[str, str]:
        """Returns the special tokens that the vocabulary has, under other names."""
        known = {**self.special, "mask": self.their_mask}

        pieces = {}
        for ours, theirs in names.items():
            number = known[ours]
            if number is not None:
                pieces[theirs] = self._tokenizer.id_to_token(number)
        return pieces

    def _check_ids(self, size: int) -> None:
        """Refuses ids that the model lacks, unless they are of added tokens.

        transformers accepts added tokens without an embedding until a text has one, as we do.
        """
        added = self._tokenizer.get_added_tokens_decoder()
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        ids = set(vocabulary.values())
        not_added = ids - added.keys()

        highest = max(not_added, default=0)
        if highest >= size:
            raise UserError(
                f"expected token ids below vocab_size={size}, the model's: got the id {highest}"
            )

    def _language_ids(self, size: int) -> list[int]:
        """Returns their ids of the codes of the languages, which are special tokens."""
        if not self.languages:
            return []

        codes = language_ids(self._tokenizer, size)
        return [find_language(name, codes) for name in self.languages]

    def _target_start(self) -> tuple[int, ...]:
        """Returns the code of the target's language, or the token that is forced."""
        if self.code_follows:  # BOS is this code.
            return ()
        if self.forced_start is None:
            return tuple(self._codes[1:])

        size = len(self.our_ids)
        if not 0 <= self.forced_start < size:
            raise UserError(
                f"expected forced_bos_token_id below vocab_size={size}: got {self.forced_start}"
            )
        forced = self.our_ids[self.forced_start]
        return (int(forced),)

    def _other_ends(self, their_ids: Sequence[int]) -> tuple[int, ...]:
        """Returns our ids of the tokens that end a text as EOS does."""
        size = len(self.our_ids)
        for number in their_ids:
            if not 0 <= number < size:
                raise UserError(f"expected eos_token_id below vocab_size={size}: got {number}")

        numbers = [operator.index(number) for number in their_ids]
        own_ids = self.our_ids[numbers]
        return tuple(own_ids.tolist())

    @classmethod
    def assemble(
        cls,
        json_text: str,
        special: Mapping[str, int | None],
        vocab_size: int,
        labels: Sequence[str] | None = None,
        languages: Sequence[str] = (),
        *,
        code_follows: bool = False,
        skips_blank: bool = False,
        forced_start: int | None = None,
        other_ends: Sequence[int] = (),
        mask: int | None = None,
        has_types: bool = True,
    ) -> "HuggingFaceTokenizer":
        """Creates a tokenizer from the text of ``tokenizer.json``."""
        values: dict[str, Any] = {
            "tokenizer": cls.form,
            "huggingface": json_text,
            "special": dict(special),
            "vocab_size": vocab_size,
        }

        if mask is not None:
            values["mask"] = mask
        if not has_types:
            values["token_types"] = False
        if labels is not None:
            values["labels"] = list(labels)
        if languages:
            values["languages"] = list(languages)
        if code_follows:
            values["code_follows"] = True
        if skips_blank:
            values["skips_blank"] = True
        if forced_start is not None:
            values["forced_start"] = forced_start
        if other_ends:
            values["other_ends"] = list(other_ends)

        serialized = json.dumps(values)
        return cls(serialized.encode())

    @property
    def symbols(self) -> list[str]:
        """Labels of the classes, in their order; several classes may share one."""
        return self._labels

    def with_symbols(self, targets: Iterable[str]) -> "HuggingFaceTokenizer":
        """Returns the tokenizer with the labels of a text, unless it has all of them."""
        labels = sorted(set(targets))
        has_all = self._symbols.keys() >= set(labels)
        if has_all:
            return self

        return HuggingFaceTokenizer.assemble(
            json_text=self.json,
            special=self.special,
            vocab_size=len(self.our_ids),
            labels=labels,
            mask=self.their_mask,
            has_types=self.has_types,
        )

    def encode(self, text: str) -> list[int]:
        encoding = self._tokenize(text, add_special_tokens=False)
        ids = self._convert_ids(encoding)
        return self._add_language(ids)

    def _add_language(self, ids: list[int], *, target: bool = False) -> list[int]:
        if not self.code_follows:
            return super()._add_language(ids, target=target)

        # The end that all texts have is the code of a source, after its own end.
        has_code = bool(ids) and not target
        if has_code:
            return [*ids, EOS]
        return ids

    def encode_prompt(self, text: str) -> list[int]:
        """Returns the ids of a prompt, with the special tokens that transformers adds."""
        encoding = self._tokenize(text, add_special_tokens=True)
        ids = self._convert_ids(encoding)
        return ids or [BOS]

    def _encode(self, texts: list[str], *, target: bool = False) -> list[list[int]]:
        """Returns the ids of texts, with the special tokens of the post-processor.

        A final end is left out, since batches add it. Tokenizers with languages get codes instead.
        """
        if target and self.target_symbols:
            return [[self._symbols.get(text, UNK)] for text in texts]

        rows = []
        for text in texts:
            encoding = self._tokenize(text, add_special_tokens=not self._codes)
            ids = self._convert_ids(encoding)
            is_blank = all(encoding.special_tokens_mask)
            if is_blank and self._skips_blank and not target:
                ids = []

            # An end that is typed in the text does not come from the post-processor, and stays.
            has_end = ids[-1:] == [EOS]
            if has_end and encoding.special_tokens_mask[-1]:
                ids = ids[:-1]

            ids = self._add_language(ids, target=target)
            if target:
                ids = self._add_forced_start(ids)
            rows.append(ids)
        return rows

    def _add_forced_start(self, ids: list[int]) -> list[int]:
        """Returns the ids of a target after the token that is forced, which they may begin with."""
        begins_so = tuple(ids[:1]) == self.target_start
        if self.forced_start is None or begins_so:
            return ids
        return [*self.target_start, *ids]

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Returns the ids of a pair of texts, with special tokens, and the type of each token.

        As in transformers, the post-processor of ``tokenizer.json`` adds the special tokens, and
        gives the types to models that have any: for BERT 0 in [CLS] first [SEP], and 1 in second
        [SEP]. RoBERTa has <s> first </s></s> second </s>, all of type 0.
        """
        encoding = self._tokenize(first, second, add_special_tokens=True)
        ids = self._convert_ids(encoding)
        types = self._types_of(encoding)
        return ids, types

    def align(self, text: str, pair: str | None = None) -> AlignedTokens:
        """Returns the tokens of a text, or of a pair of texts, with the characters of each."""
        encoding = self._tokenize(text, pair, add_special_tokens=True)
        return self._align_encoding(encoding)

    def align_words(self, words: Sequence[str]) -> AlignedTokens:
        """Returns the tokens of words, with the word of each.

        A tokenizer that splits text at spaces and punctuation also splits words at punctuation.
        """
        for word in words:
            check_unicode(word, "word")
        encoding = self._tokenizer.encode(list(words), is_pretokenized=True)
        self._check_tokens(encoding, words)
        return self._align_encoding(encoding)

    def _align_encoding(self, encoding: Any) -> AlignedTokens:
        return AlignedTokens(
            ids=self._convert_ids(encoding),
            types=self._types_of(encoding),
            texts=encoding.sequence_ids,
            spans=encoding.offsets,
            words=encoding.word_ids,
        )

    def _types_of(self, encoding: Any) -> list[int]:
        if not self.has_types:
            return [0] * len(encoding.ids)
        return encoding.type_ids

    def _convert_ids(self, encoding: Any) -> list[int]:
        """Returns our ids of an encoding of the library."""
        return self.our_ids[encoding.ids].tolist()

    def _tokenize(
        self,
        text: str,
        pair: str | None = None,
        *,
        add_special_tokens: bool,
    ) -> Any:
        """Returns the library's encoding of a text or of a pair of texts.

        Special tokens that are typed in a text are encoded as such, except padding.

        Raises:
          UserError: UTF-8 cannot encode a text, or one has the padding token, which models ignore,
            or a token that the model lacks.
        """
        texts = [text]
        if pair is not None:
            texts.append(pair)
        for each in texts:
            check_unicode(each, "text")

        encoding = self._tokenizer.encode(text, pair, add_special_tokens=add_special_tokens)
        self._check_tokens(encoding, texts)
        return encoding

    def _check_tokens(self, encoding: Any, texts: Sequence[str]) -> None:
        """Refuses texts with tokens that the model lacks, or ignores."""
        self._check_embedded(encoding, texts)

        if PAD in self.our_ids[encoding.ids]:
            their_padding = int(self.their_ids[PAD])
            padding = self._tokenizer.id_to_token(their_padding)
            raise UserError(
                f"expected a text without {padding}, the padding token, which the model would "
                f"ignore: got {' '.join(texts)!r:.80}; remove it"
            )

    def _check_embedded(self, encoding: Any, texts: Sequence[str]) -> None:
        """Refuses texts with tokens that were added to the tokenizer, but not to the model."""
        size = len(self.our_ids)
        for token, number in zip(encoding.tokens, encoding.ids, strict=True):
            if number >= size:
                raise UserError(
                    f"expected a text without {token}, which the tokenizer has but the model does "
                    f"not: got {' '.join(texts)!r:.80}; remove it"
                )

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        ids = check_tokens(ids, self.vocab_size, "token ids")
        kept = [i for i in ids if i > UNK and i not in self.target_start]
        their_ids = self.their_ids[kept].tolist()
        return self._tokenizer.decode(their_ids, skip_special_tokens=True)

    @functools.cached_property
    def _special_ids(self) -> set[int]:
        added = self._tokenizer.get_added_tokens_decoder()
        their_ids = [number for number, token in added.items() if token.special]
        own = self.our_ids[their_ids].tolist()
        return {*super()._special_ids, *own}

    @functools.cached_property
    def _byte_ids(self) -> set[int]:
        their_ids = []
        for byte in range(256):
            number = self._tokenizer.token_to_id(f"<0x{byte:02X}>")
            if number is not None:
                their_ids.append(number)

        own = self.our_ids[their_ids].tolist()
        return set(own)

    def piece(self, token: SupportsIndex) -> str:
        [number] = check_tokens([token], self.vocab_size, "token id")
        # With labels, the model is an encoder, whose special tokens have names such as [CLS].
        if number <= UNK and not self.target_symbols:
            return SPECIAL_PIECES[number]

        their_id = int(self.their_ids[number])
        if self._has_bytes:
            text = self._tokenizer.decode([their_id], skip_special_tokens=False)
            return text.replace(" ", "▁")
        return self._tokenizer.id_to_token(their_id) or ""


def _optional_id(value: Any) -> int | None:
    if value is None:
        return None
    return operator.index(value)


def _id_of_each_label(labels: Sequence[str]) -> dict[str, int]:
    """Returns our id of each label; of several classes with one label, the id of the first.

    Texts with such a label are thus trained towards the first class.
    """
    ids: dict[str, int] = {}
    for number, label in enumerate(labels, start=UNK + 1):
        ids.setdefault(label, number)
    return ids


def _owned_ids(special: Mapping[str, int | None], size: int) -> dict[int, str]:
    """Returns, for each of their ids of special tokens, the special token that owns it."""
    owned: dict[int, str] = {}
    for name in _OWNERS:
        token = special[name]
        if token is None:
            continue
        if not 0 <= token < size:
            raise UserError(f"expected {name}_token_id below vocab_size={size}: got {token}")
        owned.setdefault(token, name)

    if "eos" not in owned.values():
        raise UserError("expected eos_token_id to be an id, since texts end with it: got none")
    return owned


def _their_id_of_each(special: Mapping[str, int | None], others: Sequence[int]) -> np.ndarray:
    """Returns their id of each of ours: special tokens, and then all others in their order."""
    first = []
    for name in _NAMES:
        token = special[name]
        if token is None:
            token = -1
        first.append(token)
    return np.array([*first, *others])


def _our_id_of_each(owned: Mapping[int, str], others: Sequence[int]) -> np.ndarray:
    """Returns our id of each of theirs."""
    size = len(owned) + len(others)
    ids = np.zeros(size, np.int32)
    ids[others] = len(_NAMES) + np.arange(len(others))
    for token, name in owned.items():
        ids[token] = _NAMES.index(name)
    return ids


def _decoders(decoder: Any) -> list[str]:
    """Returns the type of a decoder, or of the decoders in a sequence."""
    if decoder is None:
        return []

    state = json.loads(decoder.__getstate__())
    parts = [state]
    if state["type"] == "Sequence":
        parts = state["decoders"]
    return [part["type"] for part in parts]


def _only_append(decoders: Sequence[str]) -> bool:
    """Returns whether later tokens leave the text of earlier ones unchanged."""
    if "Fuse" in decoders:
        after_fuse = decoders[decoders.index("Fuse") :]
        if "Replace" in after_fuse:
            return False  # It replaces strings that begin in one token and end in another.
    return _APPENDING.issuperset(decoders)


TOKENIZER = HuggingFaceTokenizer
