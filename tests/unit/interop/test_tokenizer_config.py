"""Settings of tokenizer_config.json; AutoTokenizer of transformers 5.24 gives all tokens here."""

import json

import pytest

from jaxformer.errors import UserError
from jaxformer.interop.huggingface.tokenizer_config import read_tokenizer_file
from jaxformer.interop.json_fields import JsonFields

tokenizers = pytest.importorskip("tokenizers")
models = tokenizers.models
pre_tokenizers = tokenizers.pre_tokenizers

FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}
LLAMA = {"tokenizer_class": "LlamaTokenizer"}


def bert():
    """Returns a tokenizer that keeps upper case, as of a file with do_lower_case=false."""
    words = ["[PAD]", "[UNK]", "The", "the", "Café", "café", "cafe", "中", "文", "中文"]
    vocabulary = {word: number for number, word in enumerate(words)}

    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def gpt2():
    """Returns a tokenizer that begins texts with a space."""
    letters = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {letter: number for number, letter in enumerate(letters)}

    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


def llama():
    """Returns a tokenizer as older files describe it: every part of a text begins with a space."""
    tokens = ["<unk>", "</s>", "▁", "a", "b"]
    vocabulary = {token: number for number, token in enumerate(tokens)}

    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    steps = [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = tokenizers.normalizers.Sequence(steps)
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


def applied(make, model_type, settings, folder, **fields):
    """Returns the tokenizer's file after the settings, which None leaves out."""
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": model_type, **fields}))
    config = JsonFields(path, {})

    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "tokenizer.json").write_text(make().to_str())
    return read_tokenizer_file(folder, config, "").json


def tokens_of(file, text):
    """Returns the tokens of a text, by the tokenizer in a file, without special tokens."""
    tokenizer = tokenizers.Tokenizer.from_str(file)
    return tokenizer.encode(text, add_special_tokens=False).tokens


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        (None, ["the", "cafe", "中", "文"]),
        ({}, ["the", "cafe", "中", "文"]),
        (FAST, ["The", "Café", "中", "文"]),
        ({"do_lower_case": False}, ["The", "Café", "中", "文"]),
        ({"do_lower_case": False, "strip_accents": True}, ["The", "[UNK]", "中", "文"]),
        ({"strip_accents": False}, ["the", "café", "中", "文"]),
        ({"tokenize_chinese_chars": False}, ["the", "cafe", "中文"]),
        ({"tokenizer_class": "DistilBertTokenizerFast"}, ["the", "cafe", "中", "文"]),
        ({**FAST, "do_lower_case": True}, ["The", "Café", "中", "文"]),
    ],
)
def test_bert_has_its_own_normalizer(settings, tokens, tmp_path):
    file = applied(bert, "bert", settings, tmp_path)
    assert tokens_of(file, "The Café 中文") == tokens


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        (None, ["a", "Ġ", "b"]),
        ({"add_prefix_space": True}, ["Ġ", "a", "Ġ", "b"]),
        ({"add_bos_token": True}, ["a", "Ġ", "b"]),
        (FAST, ["Ġ", "a", "Ġ", "b"]),
        ({**FAST, "add_prefix_space": False}, ["Ġ", "a", "Ġ", "b"]),
    ],
)
def test_gpt2_has_its_own_prefix(settings, tokens, tmp_path):
    file = applied(gpt2, "gpt2", settings, tmp_path)
    assert tokens_of(file, "a b") == tokens


@pytest.mark.parametrize(
    ("model_type", "settings", "tokens"),
    [
        ("llama", None, ["▁", "a", "</s>", "▁", "b", "▁", "a"]),
        ("llama", {"legacy": False}, ["▁", "a", "</s>", "▁", "b", "▁", "a"]),
        ("llama", LLAMA, ["▁", "a", "</s>", "b", "▁", "a"]),
        ("llama", LLAMA | {"legacy": True}, ["▁", "a", "</s>", "▁", "b", "▁", "a"]),
        ("llama", LLAMA | {"add_prefix_space": False}, ["a", "</s>", "b", "▁", "a"]),
        ("llama", LLAMA | {"add_bos_token": True}, ["▁", "a", "</s>", "b", "▁", "a"]),
        ("mistral", LLAMA, ["▁", "a", "</s>", "▁", "b", "▁", "a"]),
    ],
)
def test_llama_has_its_own_spaces(model_type, settings, tokens, tmp_path):
    file = applied(llama, model_type, settings, tmp_path)
    assert tokens_of(file, "a</s>b a") == tokens


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (LLAMA, "a</s>b a"),
        (LLAMA | {"legacy": True}, "a</s> b a"),
        (LLAMA | {"add_prefix_space": False}, "a</s>b a"),
    ],
)
def test_llama_has_its_own_decoder(settings, text, tmp_path):
    file = applied(llama, "llama", settings, tmp_path)
    tokenizer = tokenizers.Tokenizer.from_str(file)

    ids = tokenizer.encode("a</s>b a").ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_the_class_may_be_in_config_json(tmp_path):
    file = applied(llama, "llama", {}, tmp_path, tokenizer_class="LlamaTokenizerFast")
    assert tokens_of(file, "a</s>b") == ["▁", "a", "</s>", "b"]


def test_settings_that_change_nothing_leave_the_file(tmp_path):
    settings = FAST | {"model_max_length": 512, "padding_side": "left", "do_basic_tokenize": True}
    assert applied(bert, "bert", settings, tmp_path) == bert().to_str()


def test_special_tokens_of_the_settings_are_added(tmp_path):
    """A token of the vocabulary keeps its id, and a new one has the next."""
    settings = {"additional_special_tokens": ["b"], "bos_token": "<s>"}
    file = applied(llama, "llama", settings, tmp_path)
    tokenizer = tokenizers.Tokenizer.from_str(file)

    assert tokenizer.encode("ab<s>").ids == [2, 3, 4, 5]
    added = tokenizer.get_added_tokens_decoder()
    contents = {number: token.content for number, token in added.items()}
    assert contents == {1: "</s>", 4: "b", 5: "<s>"}


def test_other_settings_are_refused_by_name(tmp_path):
    for settings, message in (
        ({"do_lower_case": "yes"}, "do_lower_case to be true or false: got 'yes'"),
        ({"split_special_tokens": True}, "expected split_special_tokens to be false: got True"),
        ({"pad_token": 3}, "expected a special token, got 3"),
    ):
        with pytest.raises(UserError, match=f"tokenizer_config.json: .*{message}"):
            applied(bert, "bert", settings, tmp_path)
