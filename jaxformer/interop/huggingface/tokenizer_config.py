"""Reads tokenizers of transformers, with the settings of tokenizer_config.json.

Classes of transformers 5 take the vocabulary of tokenizer.json and build the rest of the tokenizer
from their own settings. A class without settings of its own takes the file as it is.
"""

import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxformer.data.huggingface_tokenizer import open_tokenizer_json
from jaxformer.errors import MALFORMED, UserError, needs_package, prefix_errors
from jaxformer.files import read_object, read_whole
from jaxformer.interop.huggingface.tokenizer_classes import (
    CLASSES,
    SpecialToken,
    Step,
    TokenizerClass,
    switch,
    template,
)
from jaxformer.interop.huggingface.vocabulary_files import (
    VocabularySource,
    of_pipeline,
    read_vocabulary,
)
from jaxformer.interop.json_fields import JsonFields

# Classes that take tokenizer.json as it is. transformers 5 no longer has all of them.
_AS_IT_IS = "PreTrainedTokenizer"
_OTHERS_AS_IT_IS = ("BloomTokenizer", "M2M100Tokenizer", "MT5Tokenizer", "TokenizersBackend")
# Classes of a type of model whose tokenizer_config.json names none.
_REGISTERED = {
    "albert": "AlbertTokenizer",
    "bart": "RobertaTokenizer",
    "bert": "BertTokenizer",
    "big_bird": "BigBirdTokenizer",
    "blenderbot": "BlenderbotTokenizer",
    "blenderbot-small": "BlenderbotSmallTokenizer",
    "clip": "CLIPTokenizer",
    "distilbert": "BertTokenizer",
    "electra": "BertTokenizer",
    "gemma": "GemmaTokenizer",
    "gpt2": "GPT2Tokenizer",
    "gpt_neo": "GPT2Tokenizer",
    "gptj": "GPT2Tokenizer",
    "longformer": "RobertaTokenizer",
    "m2m_100": "NllbTokenizer",  # M2M-100 itself has no tokenizer.json
    "mbart": "MBartTokenizer",
    "mt5": "T5Tokenizer",
    "opt": "GPT2Tokenizer",
    "pegasus": "PegasusTokenizer",
    "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
    "roberta": "RobertaTokenizer",
    "roberta-prelayernorm": "RobertaTokenizer",
    "roformer": "RoFormerTokenizer",
    "t5": "T5Tokenizer",
    "whisper": "WhisperTokenizer",
    "xglm": "XGLMTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
}
# transformers ignores the class that these types of models name.
_OVERRULED = {"qwen2": "Qwen2Tokenizer", "mistral": _AS_IT_IS, "umt5": _AS_IT_IS}
_SPECIAL = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
# Names of the mask in files that do not tell which token it is.
_MASKS = ("[MASK]", "<mask>")
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


class TokenizerFile(NamedTuple):
    """A tokenizer that encodes as AutoTokenizer of transformers does."""

    json: str  # as of tokenizer.json
    mask: int | None  # id of the token that stands for masked ones
    has_types: bool  # tokens of a pair have the types of tokenizer.json; otherwise, all have type 0


def read_tokenizer_file(directory: pathlib.Path, config: JsonFields, advice: str) -> TokenizerFile:
    """Reads the tokenizer in the folder of a model.

    Args:
      directory: Folder with tokenizer.json, or with the vocabulary of an older tokenizer.
      config: The model's config.json.
      advice: End of the message about a missing file.

    Raises:
      UserError: A file is missing or damaged, the tokenizer's class is unknown, or a setting
        has no counterpart in tokenizer.json or is not of its type.
    """
    settings = _read_settings(directory)
    path = directory / "tokenizer.json"
    text = _read_json(path) if path.exists() else None

    row = _class_of(settings, config, text)
    defaults = row.tokens if row else {}
    named = _named_tokens(settings, defaults)
    if row is None:
        if text is None:
            raise UserError(f"{path}: no such file; {advice}")
        text = _with_missing_tokens(text, named, settings)
    elif text is None:
        _check_files(directory, row, advice)
        source = read_vocabulary(directory, row, settings)
        text = _build(row, source, settings, named=named)
    else:
        text = _rebuild(row, text, settings, named=named, path=path)

    return TokenizerFile(
        json=text,
        mask=_mask_of(text, named.get("mask"), is_known=row is not None),
        has_types=_has_types(settings, default=row is not None and row.has_types),
    )


def _read_settings(directory: pathlib.Path) -> JsonFields:
    """Reads tokenizer_config.json, and the special tokens of older versions beside it."""
    settings = JsonFields(directory / "tokenizer_config.json", {})
    settings.check(
        "split_special_tokens",
        known=[None, False],
        expected="false",
        reason="tokens in a text are special",
    )

    older = directory / "special_tokens_map.json"
    if "added_tokens_decoder" not in settings.values and older.exists():
        settings.values |= read_object(older, advice="")
    return settings


def _read_json(path: pathlib.Path) -> str:
    content = read_whole(path)
    with prefix_errors(str(path), *MALFORMED):
        text = content.decode()
        open_tokenizer_json(text)  # refuses other JSON
    return text


def class_name(settings: JsonFields, config: JsonFields) -> str:
    """Returns the class that AutoTokenizer selects, without the older ending "Fast"."""
    model_type = config.values.get("model_type")
    if model_type == "encoder-decoder":
        model_type = config.values["encoder.model_type"]

    name = (
        _OVERRULED.get(str(model_type))
        or settings.values.get("tokenizer_class")
        or config.values.get("tokenizer_class")
        or _REGISTERED.get(str(model_type))
        or _AS_IT_IS
    )
    return str(name).removesuffix("Fast")


def _class_of(
    settings: JsonFields,
    config: JsonFields,
    text: str | None,
) -> TokenizerClass | None:
    """Returns the class that AutoTokenizer selects; None for one without settings of its own."""
    name = class_name(settings, config)
    if name == _AS_IT_IS or name in _OTHERS_AS_IT_IS:
        return None

    if name not in CLASSES:
        known = ", ".join(CLASSES)
        raise UserError(
            f"{settings.place}: expected tokenizer_class to be PreTrainedTokenizerFast, which "
            f"reads tokenizer.json as it is, or {known}: got {name!r:.80}"
        )

    # A class would lose the other kind of BPE, as LlamaTokenizer does the tokenizer of Llama 3.
    row = CLASSES[name]
    if row.model == "BPE" and text is not None:
        is_byte_level = '"ByteLevel"' in text
        if is_byte_level != row.is_byte_level:
            return None
    return row


def _check_files(directory: pathlib.Path, row: TokenizerClass, advice: str) -> None:
    """Refuses a folder without tokenizer.json and without all files of the older tokenizer."""
    missing = [name for name in row.files if not (directory / name).exists()]
    if len(missing) == len(row.files):
        missing = ["tokenizer.json"]
    if missing:
        raise UserError(f"{directory / missing[0]}: no such file; {advice}")


def _has_types(settings: JsonFields, default: bool) -> bool:
    """Returns whether AutoTokenizer gives the types of tokens."""
    inputs = settings.values.get("model_input_names")
    if isinstance(inputs, list):
        return "token_type_ids" in inputs
    return default


def _rebuild(
    row: TokenizerClass,
    text: str,
    settings: JsonFields,
    *,
    named: Mapping[str, Step],
    path: pathlib.Path,
) -> str:
    """Returns what a class makes of a tokenizer.json."""
    pipeline = json.loads(text)
    found = pipeline["model"].get("type", row.model)
    if found != row.model:
        raise UserError(
            f"{path}: expected a model of type {row.model}, as the tokenizer_class has it: got "
            f"{found!r:.80}; to read it as it is, name PreTrainedTokenizerFast in "
            f"{settings.place.name}"
        )

    # With a tokenizer.json, transformers ignores these settings.
    for name in ("add_bos_token", "add_eos_token"):
        settings.values.pop(name, None)
    built = _build(row, of_pipeline(pipeline), settings, named=named)

    # An unchanged pipeline keeps its text. Empty affixes are none.
    built_pipeline = _without_affixes(json.loads(built))
    if built_pipeline == _without_affixes(pipeline):
        return text
    return built


def _without_affixes(pipeline: Step) -> Step:
    """Returns a tokenizer.json without empty prefixes and suffixes of its model."""
    model = {}
    for name, value in pipeline["model"].items():
        if value not in ("", None):
            model[name] = value
    return pipeline | {"model": model}


def _build(
    row: TokenizerClass,
    source: VocabularySource,
    settings: JsonFields,
    *,
    named: Mapping[str, Step],
) -> str:
    """Returns the text of the tokenizer.json that a class makes of a vocabulary."""
    contents = {name: token["content"] for name, token in named.items()}
    pipeline = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": row.normalizer(settings, source.charsmap),
        "pre_tokenizer": row.pre_tokenizer(settings),
        "post_processor": None,
        "decoder": row.decoder(settings),
        "model": _model(row, source, contents.get("unk")),
    }

    more = _more_tokens(settings, row.more_tokens(settings))
    for symbol in source.symbols:
        is_named = symbol["content"] in contents.values()
        is_special = symbol["special"] or is_named
        more.append(symbol | {"special": is_special})

    text = json.dumps(pipeline, ensure_ascii=False)
    listed = _added_tokens(source, settings)
    text = _with_tokens(text, listed, [*named.values(), *more])
    pipeline = json.loads(text)

    post_processor = source.post_processor
    takes_own = row.post_processor is not None and row.prefers_own
    if post_processor is None or takes_own:
        post_processor = _post_processor(row, pipeline, settings, contents)
    pipeline["post_processor"] = post_processor
    return json.dumps(pipeline, ensure_ascii=False)


def _model(row: TokenizerClass, source: VocabularySource, unknown: str | None) -> Step:
    """Returns the model of a tokenizer.json."""
    model: Step = {"type": row.model, **row.options}
    if row.model == "Unigram":
        pieces = [piece for piece, _ in source.vocab]
        model["unk_id"] = None
        if unknown in pieces:
            model["unk_id"] = pieces.index(unknown)
    else:
        model["unk_token"] = unknown if row.has_unknown else None

    model["vocab"] = source.vocab
    if row.model == "BPE":
        model["merges"] = source.merges
    return model


def _post_processor(
    row: TokenizerClass,
    pipeline: Step,
    settings: JsonFields,
    contents: Mapping[str, str],
) -> Step | None:
    """Returns the post-processor of a class, or one with the ends that settings ask for."""
    source_language = settings.values.get("src_lang") or row.source_language
    contents = {"source": source_language, **contents}
    ids = {token["content"]: token["id"] for token in pipeline["added_tokens"]}
    tokens = {content: SpecialToken(content, number) for content, number in ids.items()}
    for name, content in contents.items():
        if content in ids:
            tokens[name] = SpecialToken(content, ids[content])

    if row.post_processor is None:
        first = ["bos"] if switch(settings, "add_bos_token", False) else []
        last = ["eos"] if switch(settings, "add_eos_token", False) else []
        single = " ".join([*first, "A", *last])
        if single == "A":
            return None

        second = single.replace("A", "B")
        return template(tokens, single, f"{single} {second}")

    try:
        return row.post_processor(settings, tokens)
    except KeyError as error:
        raise UserError(f"{settings.place}: expected the special token {error}") from None


def _added_tokens(source: VocabularySource, settings: JsonFields) -> Sequence[Step]:
    """Returns the added tokens of the files, in the order of their ids."""
    listed = settings.values.get("added_tokens_decoder")
    if listed is None:
        return source.added_tokens
    return [listed[number] for number in sorted(listed, key=int)]


def _with_missing_tokens(text: str, named: Mapping[str, Step], settings: JsonFields) -> str:
    """Returns a tokenizer.json with the special tokens that only settings name."""
    source = of_pipeline(json.loads(text))
    known = {token["content"] for token in source.added_tokens}

    listed = _added_tokens(source, settings)
    missing = [token for token in listed if token["content"] not in known]
    more = [*named.values(), *_more_tokens(settings, ())]
    more = [token for token in more if token["content"] not in known]
    if not missing and not more:
        return text
    return _with_tokens(text, missing, more)


def _with_tokens(text: str, listed: Sequence[Step], more: Iterable[Step]) -> str:
    """Returns a tokenizer.json with more added tokens.

    As in transformers, tokens that files list with their ids keep their flags. Otherwise, the last
    of tokens with the same content counts.
    """
    with needs_package("tokenizers", "which reads tokenizer.json", extra="interop"):
        import tokenizers

    contents = {token["content"] for token in listed}
    others = [token for token in more if token["content"] not in contents]
    added = []
    for token in [*listed, *others]:
        flags = {name: value for name, value in token.items() if name in _FLAGS}
        added.append(tokenizers.AddedToken(token["content"], **flags))

    tokenizer = open_tokenizer_json(text)
    tokenizer.add_tokens(added)
    return tokenizer.to_str()


def _mask_of(text: str, named: Step | None, *, is_known: bool) -> int | None:
    """Returns the id of the mask.

    Args:
      text: The content of tokenizer.json.
      named: The mask that the settings or the class name.
      is_known: There is no other mask. Otherwise, it is the special token with the usual name.
    """
    if named is not None:
        return open_tokenizer_json(text).token_to_id(named["content"])
    if is_known:
        return None

    for token in json.loads(text)["added_tokens"]:
        if token["special"] and token["content"] in _MASKS:
            return token["id"]
    return None


def _named_tokens(settings: JsonFields, defaults: Mapping[str, str | Step]) -> dict[str, Step]:
    """Returns the special tokens with names, such as "cls", as added tokens.

    An explicit null in the settings stands for none, and not for the default of a class.
    """
    values: dict[str, Any] = {}
    for name in _SPECIAL:
        default = defaults.get(name)
        value = settings.values.get(f"{name}_token", default)
        if isinstance(default, dict) and isinstance(value, str):
            value = default | {"content": value}
        values[name] = value

    # Names that only this model has, such as image_token.
    for key, value in settings.values.items():
        name = key.removesuffix("_token")
        if name != key and name not in values and isinstance(value, str | dict):
            values[name] = value
    return {name: _token(value, settings) for name, value in values.items() if value is not None}


def _more_tokens(settings: JsonFields, default: Iterable[str]) -> list[Step]:
    """Returns the special tokens without names."""
    found = list(default)
    for key in ("additional_special_tokens", "extra_special_tokens"):
        more = settings.values.get(key) or []
        found += more.values() if isinstance(more, dict) else more
    return [_token(value, settings) for value in found]


def _token(value: Any, settings: JsonFields) -> Step:
    """Returns the fields of a special token, given its content or its fields."""
    fields = {"content": value}
    if isinstance(value, dict):
        fields = value
    content = fields.get("content")
    if not isinstance(content, str) or not content:
        raise UserError(f"{settings.place}: expected a special token, got {value!r:.80}")
    return {**fields, "special": True}
