"""Settings of tokenizer_config.json that override tokenizer.json in transformers.

Classes of transformers 5 take the vocabulary of tokenizer.json and build the rest of the tokenizer
from their own settings. A class without settings of its own takes the file as it is.
"""

import json
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jaxformer.data.huggingface_tokenizer import open_tokenizer_json
from jaxformer.errors import UserError
from jaxformer.interop.json_fields import JsonFields

Pipeline = dict[str, Any]  # of tokenizer.json

# Classes of a type of model whose tokenizer_config.json names none.
_REGISTERED = {
    "bert": "BertTokenizer",
    "gpt2": "GPT2Tokenizer",
    "mbart": "MBartTokenizer",
    "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
}
# transformers ignores the class that these types of models name, and reads the second with a class
# without settings.
_OVERRULED = {"qwen2": "Qwen2Tokenizer", "mistral": "PreTrainedTokenizer"}
_SPECIAL = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def apply_settings(text: str, place: pathlib.Path, config: JsonFields) -> str:
    """Returns the tokenizer.json that AutoTokenizer of transformers encodes with.

    Args:
      text: The content of the model's tokenizer.json.
      place: The path of tokenizer_config.json, which need not exist.
      config: The model's config.json.

    Raises:
      UserError: A setting has no counterpart in tokenizer.json, or is not of its type.
    """
    settings = JsonFields(place, {})
    settings.check("split_special_tokens", [None, False], "false", "tokens in a text are special")

    pipeline = json.loads(text)
    before = json.dumps(pipeline)
    override = _OVERRIDES.get(class_name(settings, config))
    if override is not None:
        override(pipeline, settings)

    # An unchanged pipeline keeps its text.
    if json.dumps(pipeline) != before:
        text = json.dumps(pipeline, ensure_ascii=False)
    return _with_special_tokens(text, pipeline, settings)


def class_name(settings: JsonFields, config: JsonFields) -> str:
    """Returns the class that AutoTokenizer selects, without the older ending "Fast"."""
    model_type = str(config.values.get("model_type"))

    name = (
        _OVERRULED.get(model_type)
        or settings.values.get("tokenizer_class")
        or config.values.get("tokenizer_class")
        or _REGISTERED.get(model_type)
    )
    return str(name).removesuffix("Fast")


def _switch(settings: JsonFields, name: str, default: bool | None) -> bool | None:
    """Returns a setting that is true, false, or its default when it is left out."""
    if settings.values.get(name) is None:
        return default
    return settings.boolean(name)


def _override_bert(pipeline: Pipeline, settings: JsonFields) -> None:
    if pipeline["model"].get("type") != "WordPiece":
        return
    pipeline["normalizer"] = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": _switch(settings, "tokenize_chinese_chars", True),
        "strip_accents": _switch(settings, "strip_accents", None),
        "lowercase": _switch(settings, "do_lower_case", True),
    }


def _override_byte_level(pipeline: Pipeline, settings: JsonFields) -> None:

    prefix = _switch(settings, "add_prefix_space", False)
    for step in _steps(pipeline.get("pre_tokenizer"), "pretokenizers"):
        if step.get("type") == "ByteLevel":
            step["add_prefix_space"] = prefix


def _override_llama(pipeline: Pipeline, settings: JsonFields) -> None:

    steps = _steps(pipeline.get("pre_tokenizer"), "pretokenizers")
    is_byte_level = any(step.get("type") == "ByteLevel" for step in steps)
    if pipeline["model"].get("type") != "BPE" or is_byte_level:
        return

    scheme = "always" if _switch(settings, "legacy", False) else "first"
    has_prefix_space = _switch(settings, "add_prefix_space", True)
    if not has_prefix_space:
        scheme = "never"
    pipeline["normalizer"] = None
    pipeline["pre_tokenizer"] = {
        "type": "Metaspace",
        "replacement": "▁",
        "prepend_scheme": scheme,
        "split": False,
    }

    decoders: list[Pipeline] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if has_prefix_space:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    pipeline["decoder"] = {"type": "Sequence", "decoders": decoders}


_OVERRIDES: Mapping[str, Callable[[Pipeline, JsonFields], None]] = {
    "BertTokenizer": _override_bert,
    "ConvBertTokenizer": _override_bert,
    "DistilBertTokenizer": _override_bert,
    "MobileBertTokenizer": _override_bert,
    "SqueezeBertTokenizer": _override_bert,
    "GPT2Tokenizer": _override_byte_level,
    "Qwen2Tokenizer": _override_byte_level,
    "LlamaTokenizer": _override_llama,
}


def _steps(step: Pipeline | None, name: str) -> Iterator[Pipeline]:
    """Yields the steps of a part of the pipeline, which may be a sequence."""
    if step is not None:
        yield step
        yield from step.get(name, ())


def _with_special_tokens(text: str, pipeline: Pipeline, settings: JsonFields) -> str:
    """Adds the special tokens that only tokenizer_config.json names."""
    known = {token["content"] for token in pipeline.get("added_tokens", ())}
    missing = [token for token in _named_tokens(settings) if token not in known]
    if not missing:
        return text

    tokenizer = open_tokenizer_json(text)
    each_once = list(dict.fromkeys(missing))
    tokenizer.add_special_tokens(each_once)
    return tokenizer.to_str()


def _named_tokens(settings: JsonFields) -> Iterator[str]:
    """Yields the contents of the special tokens of tokenizer_config.json."""
    found = [settings.values.get(f"{name}_token") for name in _SPECIAL]

    for name in ("additional_special_tokens", "extra_special_tokens"):
        more = settings.values.get(name) or []
        if isinstance(more, dict):
            more = more.values()
        found += more

    for token in found:
        content = token
        if isinstance(token, dict):
            content = token.get("content")

        if isinstance(content, str) and content:
            yield content
        elif token is not None:
            raise UserError(f"{settings.place}: expected a special token, got {token!r:.80}")
