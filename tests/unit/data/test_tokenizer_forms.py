"""The file of a tokenizer names its form; files of earlier versions are recognized."""

import json
import pathlib
import pkgutil

import pytest

from jaxformer import data
from jaxformer.data.bpe import train_tokenizer
from jaxformer.data.character_tokenizer import CharacterTokenizer
from jaxformer.data.huggingface_tokenizer import HuggingFaceTokenizer
from jaxformer.data.letters_tokenizer import LettersTokenizer
from jaxformer.data.m2m100_tokenizer import M2M100Tokenizer
from jaxformer.data.marian_tokenizer import MarianTokenizer
from jaxformer.data.moses_tokenizer import MosesTokenizer, Preprocessing
from jaxformer.data.stream import load_stream_tokenizer
from jaxformer.data.tokenizer import Tokenizer, form_of
from jaxformer.data.whisper_tokenizer import WhisperTokenizer
from jaxformer.errors import UserError
from jaxformer.registry import find_module

FIXTURES = pathlib.Path(__file__).parents[2] / "fixtures"
LEARNED = train_tokenizer([f"the {n} cats" for n in range(40)], 300).serialized
SPECIAL = {"pad": None, "eos": 0, "bos": None, "unk": None}
SPEECH = {"pad": 300, "eos": 300, "bos": 301, "unk": None}
TOKENIZERS = (
    CharacterTokenizer.assemble("abc"),
    HuggingFaceTokenizer.assemble(
        (FIXTURES / "huggingface" / "gpt2" / "tokenizer.json").read_text(), SPECIAL, 300
    ),
    LettersTokenizer.learn(["abc"]),
    M2M100Tokenizer.assemble(LEARNED, LEARNED, ["▁the", "__en__", "__de__"], languages="en to de"),
    MarianTokenizer.assemble(LEARNED, LEARNED, ["▁the", "cats"]),
    MosesTokenizer.assemble(Preprocessing(source_language="en", target_language="de"), LEARNED),
    WhisperTokenizer.of(
        HuggingFaceTokenizer.assemble(
            (FIXTURES / "families" / "whisper" / "tokenizer.json").read_text(), SPEECH, 362
        ),
        {"no_timestamps_token_id": 310},
    ),
)
ROUND_TRIPS = pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=lambda each: each.form)
# Forms of version 0.2, whose files did not name them.
OLD = [each for each in TOKENIZERS if each.form not in ("letters", "whisper")]


def load(path, content, use):
    path.write_bytes(content)
    return load_stream_tokenizer(path) if use == "stream" else Tokenizer.load(path)


def test_each_form_has_a_module_of_its_name():
    modules = [module.name for module in pkgutil.iter_modules(data.__path__)]
    forms = [name.removesuffix("_tokenizer") for name in modules if name.endswith("_tokenizer")]
    assert forms == [each.form for each in TOKENIZERS]
    for each in TOKENIZERS:
        module = find_module(data, f"{each.form}_tokenizer")
        assert module is not None
        assert module.TOKENIZER is type(each)


@ROUND_TRIPS
def test_files_name_their_form(tokenizer, tmp_path):
    assert next(iter(json.loads(tokenizer.serialized).items())) == ("tokenizer", tokenizer.form)
    for use in tokenizer.uses:
        loaded = load(tmp_path / "tokenizer.model", tokenizer.serialized, use)
        assert type(loaded) is type(tokenizer)
        assert loaded.sha256 == tokenizer.sha256


@pytest.mark.parametrize("tokenizer", OLD, ids=lambda each: each.form)
def test_old_files_are_recognized_and_keep_their_hash(tokenizer, tmp_path):
    values = json.loads(tokenizer.serialized)
    del values["tokenizer"]
    for separators in (None, (",", ":")):
        old = json.dumps(values, ensure_ascii=False, separators=separators).encode()
        assert form_of(old) == tokenizer.form
        loaded = load(tmp_path / "tokenizer.model", old, tokenizer.uses[0])
        assert type(loaded) is type(tokenizer)
        assert loaded.serialized == old
        assert loaded.encode("abc") == tokenizer.encode("abc")


def test_forms_of_another_use_or_version_are_refused(tmp_path):
    path = tmp_path / "tokenizer.model"
    for content, use, message in (
        (TOKENIZERS[0].serialized, "pairs", "a tokenizer of pairs, got one of the form character"),
        (TOKENIZERS[4].serialized, "stream", "of a language model, got one of the form marian"),
        (b'{"tokenizer": "syllable"}', "pairs", "knows: got the form syllable"),
        (b'{"tokenizer": "os"}', "stream", "knows: got the form os"),
        (b'{"tokenizer": "character", "characters"', "stream", "tokenizer of a language model: "),
    ):
        with pytest.raises(UserError, match=rf"tokenizer\.model: expected .*{message}"):
            load(path, content, use)
