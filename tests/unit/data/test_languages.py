"""Codes that clients send reach the languages of a model, whatever its own codes."""

import types

import pytest
from starlette.testclient import TestClient

from jaxformer.config import Config, DataConfig
from jaxformer.data.languages import client_codes, find_code, parse_pairs
from jaxformer.errors import UserError
from jaxformer.serving.app import make_app
from jaxformer.serving.backend import TranslatorBackend
from jaxformer.serving.limits import Limits
from jaxformer.serving.protocol import Translation


class Echo:
    """Answers with the target language."""

    def __init__(self, languages):
        self.name = "echo"
        self.languages = languages

    def translate(self, sentences):
        return [Translation([sentence.target], [0.0]) for sentence in sentences]


def post(languages, source, target):
    """Returns the answer to a request."""
    fields = {"q": "a", "source": source, "target": target}
    with TestClient(make_app(Echo(languages), Limits())) as client:
        return client.post("/translate", data=fields).json()


@pytest.mark.parametrize(
    ("code", "own"),
    [
        # Codes of NLLB and their ISO 639-1 codes, from the tables of FLORES-200 and ISO 639.
        ("en", "eng_Latn"),
        ("de", "deu_Latn"),
        ("ar", "arb_Arab"),
        ("fa", "pes_Arab"),
        ("sw", "swh_Latn"),
        ("lv", "lvs_Latn"),
        ("ms", "zsm_Latn"),
        ("uz", "uzn_Latn"),
        ("nb", "nob_Latn"),
        ("zh", "zho_Hans"),
        ("zh-Hans", "zho_Hans"),
        ("zt", "zho_Hant"),
        ("zh-TW", "zho_Hant"),
        ("ceb", "ceb_Latn"),
        ("eng_Latn", "eng_Latn"),
        # Of M2M-100 and OPUS-MT.
        ("en", "en"),
        ("EN", "en"),
        ("fr", "fra"),
        ("pt-BR", "pt_br"),
        ("pt", "pt_br"),
    ],
)
def test_codes_of_clients(code, own):
    assert find_code(code, ["xx", own]) == own

    [(listed, model)] = client_codes([own]).items()
    assert model == own
    assert find_code(code, [listed]) == listed


def test_two_variants_of_a_language_keep_apart():
    codes = ["por", "pt_br", "zho_Hans", "zho_Hant"]
    found = client_codes(codes)

    assert found == {"pt": "por", "pt_br": "pt_br", "zh": "zho_Hans", "zh-Hant": "zho_Hant"}
    assert find_code("pt-BR", found) == "pt_br"
    assert find_code("zz", found) is None


def test_a_model_whose_languages_are_unknown_takes_any():
    assert post({}, "en", "de") == {"translatedText": "de"}
    assert post({}, "auto", "tlh") == {
        "translatedText": "tlh",
        "detectedLanguage": {"confidence": 0.0, "language": "und"},
    }

    with TestClient(make_app(Echo({}), Limits())) as client:
        first, *others = client.get("/languages").json()

    # The page shows the first.
    assert first == {"code": "und", "name": "Unknown language", "targets": ["und"]}

    assert len(others) > 100
    by_code = {row["code"]: row for row in others}
    assert len(by_code) == len(others)
    assert by_code["de"]["name"] == "German"
    assert "en" in by_code["de"]["targets"]


def test_auto_is_the_language_of_the_model():
    detected = {"confidence": 0.0, "language": "en"}
    for target in ("de", "deu_Latn"):
        answer = post({"en": ["de"]}, "auto", target)
        assert answer == {"translatedText": "de", "detectedLanguage": detected}
    assert post({"en": ["de"]}, "en", "auto") == {"error": "auto is not supported"}


def test_pairs():
    assert parse_pairs(["en-de", "en-fr", "fr-zh_Hant", "en-de"]) == {
        "en": ["de", "fr"],
        "fr": ["zh_Hant"],
    }

    for word in ("en", "en-", "-de", "en-de-fr", "en de", ""):
        with pytest.raises(UserError, match="--languages: expected pairs such as en-de: got"):
            parse_pairs([word])


def languages_of(source, target, codes=(), given=None):
    """Returns the languages of a server whose model has these in its config and tokenizer."""
    data = DataConfig(source_language=source, target_language=target)
    config = Config(data=data)
    tokenizer = types.SimpleNamespace(language_codes=codes)
    translator = types.SimpleNamespace(config=config, tokenizer=tokenizer)
    return TranslatorBackend(translator, given).languages


@pytest.mark.parametrize(
    ("arguments", "languages"),
    [
        (("en", "de"), {"en": ["de"]}),  # M2M-100, and our own models
        (("eng_Latn", "zho_Hant"), {"en": ["zh-Hant"]}),  # NLLB
        (("eng", "unused", (">>deu<<", ">>pt_br<<")), {"en": ["de", "pt"]}),  # OPUS-MT
        (("unknown", "unknown"), {}),  # T5 and mT5
        (("unknown", "unknown", (), {"en": ["fr"]}), {"en": ["fr"]}),
        (("en", "de", (), {"en": ["fr"]}), {"en": ["fr"]}),
    ],
)
def test_languages_of_models(arguments, languages):
    assert languages_of(*arguments) == languages


def test_languages_cannot_be_given_to_a_model_with_codes():
    with pytest.raises(UserError, match="the model has its own target languages: de, fr; leave"):
        languages_of("en", "de", (">>deu<<", ">>fra<<"), {"en": ["de"]})


class Recorder:
    """A translator that keeps the texts that it is given."""

    config = Config(data=DataConfig(source_language="unknown", target_language="unknown"))
    tokenizer = types.SimpleNamespace(language_codes=())

    def __init__(self):
        self.texts = []

    def source_ids(self, text):
        self.texts.append(text)
        return [1]

    def translate_ids(self, sources, n_best):
        return sources

    def hypotheses_of(self, decoded):
        return []


TASK = "translate {source} to {target}: "


@pytest.mark.parametrize(
    ("prefix", "source", "target", "expected"),
    [
        ("", "en", "de", "a house"),
        ("summarize: ", "en", "de", "summarize: a house"),
        (TASK, "en", "de", "translate English to German: a house"),
        (TASK, "auto", "fra", "translate English to French: a house"),
        (TASK, "eng_Latn", "de", "translate English to German: a house"),
    ],
)
def test_a_server_names_the_task_of_each_line(prefix, source, target, expected):
    translator = Recorder()
    backend = TranslatorBackend(translator, {"en": ["de", "fr"]}, prefix)
    lines = {"q": "a house\n\na house", "source": source, "target": target}

    with TestClient(make_app(backend, Limits())) as client:
        assert client.post("/translate", json=lines).status_code == 200

    assert sorted(translator.texts) == sorted([expected, "", expected])


def test_a_task_names_known_languages():
    cases = [
        ("to {src}: ", {"en": ["de"]}, "expected {source} and {target} in braces, got {src}"),
        (TASK, None, "{source} stands for the name of a language, which .* give --languages"),
    ]
    for prefix, languages, message in cases:
        with pytest.raises(UserError, match=f"--task-prefix: {message}"):
            TranslatorBackend(Recorder(), languages, prefix)

    assert TranslatorBackend(Recorder(), None, "summarize: ").languages == {}
