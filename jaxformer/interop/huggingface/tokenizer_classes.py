"""Tokenizer classes of transformers 5, as a table of what each builds around a vocabulary.

A class takes the vocabulary of tokenizer.json, or of the files that transformers 1 to 3 wrote, and
builds the rest of the tokenizer from its own settings. Steps are JSON as in tokenizer.json.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from jaxformer.interop.json_fields import JsonFields

Step: TypeAlias = dict[str, Any]  # of tokenizer.json
Pieces: TypeAlias = list[tuple[str, float]]  # of a SentencePiece model, with their scores
SPACE = "▁"

_MBART_CODES = """
ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV
my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"""
_MBART50_CODES = f"""{_MBART_CODES}
af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX
sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"""
_MADE_UP = " ".join(f"<madeupword{number}>" for number in range(7))


class SpecialToken(NamedTuple):
    content: str
    number: int  # its id


SpecialTokens: TypeAlias = Mapping[str, SpecialToken]  # by their names, such as "cls"


def switch(settings: JsonFields, name: str, default: bool | None) -> bool | None:
    """Returns a setting that is true, false, or its default when it is left out."""
    if settings.values.get(name) is None:
        return default
    return settings.boolean(name)


def count(settings: JsonFields, name: str, default: int) -> int:
    """Returns a setting that is a whole number, or its default when it is left out."""
    if settings.values.get(name) is None:
        return default
    return settings.integer(name)


def template(tokens: SpecialTokens, single: str, pair: str) -> Step:
    """Returns a post-processor, given what it makes of one text and of two.

    Args:
      tokens: Special tokens by name.
      single: Names of special tokens, and A for the text, such as "cls A sep".
      pair: The same for two texts A and B. ``:1`` after a name is the type of the tokens, else 0.
    """
    used: dict[str, Step] = {}

    def steps(text: str) -> list[Step]:
        found: list[Step] = []
        for part in text.split():
            name, _, number = part.partition(":")
            type_id = int(number or 0)
            if name in ("A", "B"):
                found.append({"Sequence": {"id": name, "type_id": type_id}})
                continue

            content, token_id = tokens[name]
            found.append({"SpecialToken": {"id": content, "type_id": type_id}})
            used[content] = {"id": content, "ids": [token_id], "tokens": [content]}
        return found

    return {
        "type": "TemplateProcessing",
        "single": steps(single),
        "pair": steps(pair),
        "special_tokens": used,
    }


def _replace(pattern: Step, content: str) -> Step:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _sequence(*steps: Step | None) -> Step:
    """Returns a sequence of normalizers, without those that are None."""
    return {"type": "Sequence", "normalizers": [step for step in steps if step is not None]}


def _apply_charsmap(charsmap: str | None) -> Step | None:
    """Returns the normalizer of a SentencePiece model, unless its table is empty."""
    if not charsmap:
        return None
    return {"type": "Precompiled", "precompiled_charsmap": charsmap}


_ONE_SPACE = _replace({"Regex": " {2,}"}, " ")
_BYTES_AS_TEXT = {
    "type": "ByteLevel",
    "add_prefix_space": True,
    "trim_offsets": True,
    "use_regex": True,
}


def _metaspace(scheme: str = "always", split: bool = True) -> Step:
    """Returns the step that marks spaces, before a model or, reversed, after it."""
    return {
        "type": "Metaspace",
        "replacement": SPACE,
        "prepend_scheme": scheme,
        "split": split,
    }


def _mark_prefixed_spaces(settings: JsonFields) -> Step:
    return _metaspace("always" if switch(settings, "add_prefix_space", True) else "never")


def _words(metaspace: Step) -> Step:
    """Returns the steps that mark spaces, after all white space was split."""
    return {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]}


def _byte_level(default: bool) -> Callable[[JsonFields], Step]:
    """Returns the step of byte-level BPE, given whether texts begin with a space by default."""
    return lambda settings: (
        _BYTES_AS_TEXT | {"add_prefix_space": switch(settings, "add_prefix_space", default)}
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerClass:
    """A class: the steps that it builds.

    Attributes:
      model: Type of its model in tokenizer.json.
      options: Settings of the model.
      is_byte_level: A BPE model has bytes, and not characters, as its smallest tokens.
      has_unknown: A BPE model gives the unknown token for what it does not know, not nothing.
      files: Files of the vocabulary in place of a tokenizer.json.
      arrange: Returns the vocabulary, given a SentencePiece model's and the settings.
      tokens: Special tokens by default; a mapping has the fields of an added token.
      more_tokens: Returns further special tokens, given the settings.
      source_language: Code of the source's language, if the settings name none.
      normalizer: Returns the normalizer, given the settings and the table of a SentencePiece model.
      pre_tokenizer: Returns what splits texts, given the settings.
      decoder: Returns what makes a text of tokens, given the settings.
      post_processor: Returns what adds special tokens; None for what tokenizer.json has, or for the
        first and the last token that settings ask for.
      prefers_own: Its post-processor has priority over tokenizer.json's.
      has_types: Tokens of a pair have types; otherwise, all have type 0.
    """

    model: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    is_byte_level: bool = False
    has_unknown: bool = False
    files: tuple[str, ...] = ()
    arrange: Callable[[Pieces, JsonFields], Pieces] = lambda pieces, settings: pieces
    tokens: Mapping[str, str | Step]
    more_tokens: Callable[[JsonFields], Sequence[str]] = lambda settings: ()
    source_language: str = ""
    normalizer: Callable[[JsonFields, str | None], Step | None] = lambda settings, charsmap: None
    pre_tokenizer: Callable[[JsonFields], Step]
    decoder: Callable[[JsonFields], Step]
    post_processor: Callable[[JsonFields, SpecialTokens], Step] | None = None
    prefers_own: bool = True
    has_types: bool = False


def _bert_normalizer(settings: JsonFields, charsmap: str | None) -> Step:
    return {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": switch(settings, "tokenize_chinese_chars", True),
        "strip_accents": switch(settings, "strip_accents", None),
        "lowercase": switch(settings, "do_lower_case", True),
    }


def _cls_template(settings: JsonFields, tokens: SpecialTokens) -> Step:
    return template(tokens, "cls A sep", "cls A sep B:1 sep:1")


_BERT = TokenizerClass(
    model="WordPiece",
    options={"continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
    has_unknown=True,
    files=("vocab.txt",),
    tokens={
        "unk": "[UNK]",
        "sep": "[SEP]",
        "pad": "[PAD]",
        "cls": "[CLS]",
        "mask": "[MASK]",
    },
    normalizer=_bert_normalizer,
    pre_tokenizer=lambda settings: {"type": "BertPreTokenizer"},
    decoder=lambda settings: {"type": "WordPiece", "prefix": "##", "cleanup": True},
    post_processor=_cls_template,
    has_types=True,
)


_BYTE_PAIRS = {
    "dropout": None,
    "continuing_subword_prefix": "",
    "end_of_word_suffix": "",
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
}
_GPT2 = TokenizerClass(
    model="BPE",
    options=_BYTE_PAIRS,
    is_byte_level=True,
    files=("vocab.json", "merges.txt"),
    tokens=dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>"),
    pre_tokenizer=_byte_level(False),
    decoder=lambda settings: _BYTES_AS_TEXT,
)

# As of CLIP: special tokens, contractions, letters, single digits, and other signs.
_CLIP_WORDS = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]"
    r"|[^\s\p{L}\p{N}]+"
)


def _clip_words(settings: JsonFields) -> Step:
    words = {
        "type": "Split",
        "pattern": {"Regex": _CLIP_WORDS},
        "behavior": "Removed",
        "invert": True,
    }
    return {"type": "Sequence", "pretokenizers": [words, _byte_level(False)(settings)]}


def _clip_post_processor(settings: JsonFields, tokens: SpecialTokens) -> Step:
    return {
        "type": "RobertaProcessing",
        "sep": list(tokens["eos"]),
        "cls": list(tokens["bos"]),
        "trim_offsets": False,
        "add_prefix_space": False,
    }


_CLIP = dataclasses.replace(
    _GPT2,
    options=_BYTE_PAIRS | {"end_of_word_suffix": "</w>"},
    has_unknown=True,
    tokens={"bos": "<|startoftext|>"} | dict.fromkeys(("eos", "unk", "pad"), "<|endoftext|>"),
    normalizer=lambda settings, charsmap: _sequence(
        {"type": "NFC"}, _replace({"Regex": r"\s+"}, " "), {"type": "Lowercase"}
    ),
    pre_tokenizer=_clip_words,
    post_processor=_clip_post_processor,
)

# As of Qwen2: contractions, letters, single digits, punctuation, line breaks and spaces.
_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _qwen2_words(settings: JsonFields) -> Step:
    words = {
        "type": "Split",
        "pattern": {"Regex": _QWEN2_WORDS},
        "behavior": "Isolated",
        "invert": False,
    }
    letters = _byte_level(False)(settings) | {"use_regex": False}
    return {"type": "Sequence", "pretokenizers": [words, letters]}


_QWEN2 = dataclasses.replace(
    _GPT2,
    tokens=dict.fromkeys(("eos", "unk", "pad"), "<|endoftext|>"),
    normalizer=lambda settings, charsmap: {"type": "NFC"},
    pre_tokenizer=_qwen2_words,
)

_FAIRSEQ_TOKENS = {
    "bos": "<s>",
    "eos": "</s>",
    "unk": "<unk>",
    "sep": "</s>",
    "pad": "<pad>",
    "cls": "<s>",
    "mask": "<mask>",
}
_AFTER_SPACE = _FAIRSEQ_TOKENS | {"mask": {"content": "<mask>", "lstrip": True}}


def _roberta_post_processor(settings: JsonFields, tokens: SpecialTokens) -> Step:
    return {
        "type": "RobertaProcessing",
        "sep": list(tokens["sep"]),
        "cls": list(tokens["cls"]),
        "trim_offsets": switch(settings, "trim_offsets", True),
        "add_prefix_space": switch(settings, "add_prefix_space", False),
    }


_ROBERTA = dataclasses.replace(
    _GPT2,
    tokens=_FAIRSEQ_TOKENS,
    post_processor=_roberta_post_processor,
)
# transformers 5 leaves out the end that transformers 4 adds to files without tokenizer.json.
_BLENDERBOT = dataclasses.replace(
    _GPT2,
    tokens=_AFTER_SPACE,
    pre_tokenizer=_byte_level(True),
    post_processor=lambda settings, tokens: template(tokens, "A eos", "A B eos"),
    prefers_own=False,
)


def _whisper_post_processor(settings: JsonFields, tokens: SpecialTokens) -> Step:
    """Returns what begins a text with the prompt of the decoder, and ends it."""
    prompt = ["<|startoftranscript|>"]
    for name in ("language", "task"):
        value = settings.values.get(name)
        if value is not None:
            prompt.append(f"<|{value}|>")
    if not switch(settings, "predict_timestamps", False):
        prompt.append("<|notimestamps|>")

    single = " ".join([*prompt, "A", "eos"])
    return template(tokens, single, single.replace("A eos", "A B:1 eos:1"))


_WHISPER = dataclasses.replace(_GPT2, post_processor=_whisper_post_processor)


def _fairseq(more: str) -> Callable[[Pieces, JsonFields], Pieces]:
    """Returns a function that arranges pieces as fairseq does, with more pieces at the end."""

    def arrange(pieces: Pieces, settings: JsonFields) -> Pieces:
        first = ["<s>", "<pad>", "</s>", "<unk>"]
        return [*_without_scores(first), *pieces[3:], *_without_scores(more.split())]

    return arrange


def _without_scores(pieces: Sequence[str]) -> Pieces:
    return [(piece, 0.0) for piece in pieces]


_SENTENCE_PIECES = TokenizerClass(
    model="Unigram",
    options={"byte_fallback": False},
    files=("sentencepiece.bpe.model",),
    tokens=_FAIRSEQ_TOKENS,
    pre_tokenizer=_mark_prefixed_spaces,
    decoder=_mark_prefixed_spaces,
)
_XLM_ROBERTA = dataclasses.replace(
    _SENTENCE_PIECES,
    arrange=_fairseq("<mask>"),
    normalizer=lambda settings, charsmap: _apply_charsmap(charsmap),
    pre_tokenizer=lambda settings: _words(_mark_prefixed_spaces(settings)),
    post_processor=lambda settings, tokens: template(tokens, "bos A eos", "bos A eos eos B eos"),
)


def _one_space(settings: JsonFields, charsmap: str | None) -> Step:
    return _sequence(_apply_charsmap(charsmap), _ONE_SPACE)


_XGLM = dataclasses.replace(
    _SENTENCE_PIECES,
    arrange=_fairseq(_MADE_UP),
    tokens={name: token for name, token in _FAIRSEQ_TOKENS.items() if name != "mask"},
    more_tokens=lambda settings: _MADE_UP.split(),
    normalizer=_one_space,
    post_processor=lambda settings, tokens: template(tokens, "eos A", "eos A eos eos B"),
)
_MBART = dataclasses.replace(
    _SENTENCE_PIECES,
    arrange=_fairseq(f"{_MBART_CODES} <mask>"),
    tokens=_AFTER_SPACE,
    source_language="en_XX",
    more_tokens=lambda settings: _MBART_CODES.split(),
    pre_tokenizer=lambda settings: _words(_metaspace()),
    decoder=lambda settings: _metaspace(),
    post_processor=lambda settings, tokens: template(tokens, "A eos source", "A B eos source"),
)
_MBART50 = dataclasses.replace(
    _MBART,
    arrange=_fairseq(f"{_MBART50_CODES} <mask>"),
    tokens={name: token for name, token in _MBART.tokens.items() if name != "bos"},
    more_tokens=lambda settings: _MBART50_CODES.split(),
    normalizer=_one_space,
    pre_tokenizer=lambda settings: _metaspace(),
    post_processor=lambda settings, tokens: template(tokens, "source A eos", "source A B eos"),
)


def _albert_normalizer(settings: JsonFields, charsmap: str | None) -> Step:
    accents: list[Step | None] = []
    if not switch(settings, "keep_accents", False):
        accents = [{"type": "NFKD"}, {"type": "StripAccents"}]

    lowercase = None
    if switch(settings, "do_lower_case", True):
        lowercase = {"type": "Lowercase"}
    return _sequence(
        _replace({"String": "``"}, '"'),
        _replace({"String": "''"}, '"'),
        *accents,
        lowercase,
        _apply_charsmap(charsmap),
    )


_ALBERT = dataclasses.replace(
    _SENTENCE_PIECES,
    files=("spiece.model",),
    tokens={
        "bos": "[CLS]",
        "eos": "[SEP]",
        "unk": "<unk>",
        "sep": "[SEP]",
        "pad": "<pad>",
        "cls": "[CLS]",
        "mask": "[MASK]",
    },
    normalizer=_albert_normalizer,
    pre_tokenizer=_XLM_ROBERTA.pre_tokenizer,
    post_processor=_cls_template,
    prefers_own=False,
)
_BIG_BIRD = dataclasses.replace(
    _SENTENCE_PIECES,
    files=("spiece.model",),
    tokens={
        "bos": "<s>",
        "eos": "</s>",
        "unk": "<unk>",
        "sep": "[SEP]",
        "pad": "<pad>",
        "cls": "[CLS]",
        "mask": {"content": "[MASK]", "lstrip": True},
    },
    normalizer=lambda settings, charsmap: _sequence(
        {"type": "Strip", "strip_left": False, "strip_right": False},
        _replace({"Regex": " {2,}"}, SPACE),
    ),
    post_processor=_cls_template,
)


def _pegasus_tokens(settings: JsonFields) -> list[str]:
    """Returns the special tokens of PEGASUS beside the named ones."""
    sentence = settings.values.get("mask_token_sent", "<mask_1>")
    unused = [f"<unk_{number}>" for number in range(2, count(settings, "offset", 103))]
    return unused if sentence is None else [str(sentence), *unused]


def _pegasus_pieces(pieces: Pieces, settings: JsonFields) -> Pieces:
    """Returns the vocabulary of PEGASUS, as transformers 4 does.

    transformers 5 leaves out a mask that tokenizer_config.json names, which moves all pieces.
    """
    masks = _without_scores(["<mask_1>", "<mask_2>"])
    unused = [f"<unk_{number}>" for number in range(2, count(settings, "offset", 103))]
    return [*pieces[:2], *masks, *((piece, -100.0) for piece in unused), *pieces[2:]]


def _pegasus_normalizer(settings: JsonFields, charsmap: str | None) -> Step:
    if charsmap:
        return _one_space(settings, charsmap)
    return _sequence(_replace({"Regex": "\\n"}, " "), _ONE_SPACE)


_PEGASUS = dataclasses.replace(
    _SENTENCE_PIECES,
    files=("spiece.model",),
    arrange=_pegasus_pieces,
    tokens={
        "eos": "</s>",
        "unk": "<unk>",
        "pad": "<pad>",
        "mask": "<mask_2>",
    },
    more_tokens=_pegasus_tokens,
    normalizer=_pegasus_normalizer,
    pre_tokenizer=lambda settings: _metaspace(),
    decoder=lambda settings: _metaspace(),
    post_processor=lambda settings, tokens: template(tokens, "A eos", "A B eos"),
)


def _sentinels(settings: JsonFields) -> list[str]:
    """Returns the tokens of T5 that stand for left out spans, the last first."""
    return [f"<extra_id_{number}>" for number in range(count(settings, "extra_ids", 100))][::-1]


_T5 = dataclasses.replace(
    _SENTENCE_PIECES,
    files=("spiece.model",),
    arrange=lambda pieces, settings: [*pieces, *_without_scores(_sentinels(settings))],
    tokens={
        "eos": "</s>",
        "unk": "<unk>",
        "pad": "<pad>",
    },
    more_tokens=lambda settings: _sentinels(settings)[::-1],
    normalizer=lambda settings, charsmap: _apply_charsmap(charsmap),
    pre_tokenizer=lambda settings: _words(_metaspace()),
    decoder=lambda settings: _metaspace(),
    post_processor=lambda settings, tokens: template(tokens, "A eos", "A eos B eos"),
)

_MERGED = {
    "dropout": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": True,
    "ignore_merges": False,
}
_NLLB = TokenizerClass(
    model="BPE",
    options=_MERGED | {"byte_fallback": False},
    has_unknown=True,
    tokens=_FAIRSEQ_TOKENS | {"mask": {"content": "<mask>", "lstrip": True, "normalized": True}},
    source_language="eng_Latn",
    normalizer=lambda settings, charsmap: _one_space(settings, charsmap) if charsmap else None,
    pre_tokenizer=lambda settings: _metaspace(),
    decoder=lambda settings: _metaspace(),
    post_processor=lambda settings, tokens: template(tokens, "source A eos", "source A B eos"),
)
_TEXT_OF_BYTES = (
    _replace({"String": SPACE}, " "),
    {"type": "ByteFallback"},
    {"type": "Fuse"},
)


def _llama_spaces(settings: JsonFields) -> Step:
    scheme = "always" if switch(settings, "legacy", False) else "first"
    if not switch(settings, "add_prefix_space", True):
        scheme = "never"
    return _metaspace(scheme, split=False)


def _llama_decoder(settings: JsonFields) -> Step:
    decoders: list[Step] = list(_TEXT_OF_BYTES)
    if switch(settings, "add_prefix_space", True):
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": decoders}


_LLAMA = TokenizerClass(
    model="BPE",
    options=_MERGED | {"byte_fallback": True},
    files=("tokenizer.model",),
    tokens={
        "bos": "<s>",
        "eos": "</s>",
        "unk": "<unk>",
    },
    pre_tokenizer=_llama_spaces,
    decoder=_llama_decoder,
)
_GEMMA = dataclasses.replace(
    _LLAMA,
    has_unknown=True,
    tokens={
        "bos": "<bos>",
        "eos": "<eos>",
        "unk": "<unk>",
        "pad": "<pad>",
        "mask": "<mask>",
    },
    normalizer=lambda settings, charsmap: _replace({"String": " "}, SPACE),
    pre_tokenizer=lambda settings: {
        "type": "Split",
        "pattern": {"String": " "},
        "behavior": "MergedWithPrevious",
        "invert": False,
    },
    decoder=lambda settings: {"type": "Sequence", "decoders": list(_TEXT_OF_BYTES)},
)

CLASSES: Mapping[str, TokenizerClass] = {
    "AlbertTokenizer": _ALBERT,
    "BartTokenizer": _ROBERTA,
    "BertTokenizer": _BERT,
    "BigBirdTokenizer": _BIG_BIRD,
    "BlenderbotTokenizer": _BLENDERBOT,
    "CLIPTokenizer": _CLIP,
    "ConvBertTokenizer": _BERT,
    "DistilBertTokenizer": dataclasses.replace(_BERT, has_types=False),
    "ElectraTokenizer": _BERT,
    "GPT2Tokenizer": _GPT2,
    "GemmaTokenizer": _GEMMA,
    "LlamaTokenizer": _LLAMA,
    "LongformerTokenizer": _ROBERTA,
    "MBart50Tokenizer": _MBART50,
    "MBartTokenizer": _MBART,
    "MobileBertTokenizer": _BERT,
    "NllbTokenizer": _NLLB,
    "PegasusTokenizer": _PEGASUS,
    "Qwen2Tokenizer": _QWEN2,
    "RobertaTokenizer": _ROBERTA,
    "SqueezeBertTokenizer": _BERT,
    "T5Tokenizer": _T5,
    "WhisperTokenizer": _WHISPER,
    "XGLMTokenizer": _XGLM,
    "XLMRobertaTokenizer": _XLM_ROBERTA,
}
