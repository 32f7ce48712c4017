"""Completions over HTTP: a random language model, beside the same texts from Python."""

import dataclasses
import json
import threading

import jax
import pytest
from starlette.testclient import TestClient

from jaxformer.config import Config, ModelConfig, StreamConfig
from jaxformer.data.character_tokenizer import CharacterTokenizer
from jaxformer.inference.generator import Generator
from jaxformer.inference.windows import Prompt
from jaxformer.kinds.language_modeling import LANGUAGE_MODELING
from jaxformer.kinds.model_parameters import make_init
from jaxformer.search import Sampling
from jaxformer.serving.completions import make_completions
from jaxformer.serving.generator_backend import Completion, GeneratorBackend
from jaxformer.serving.limits import Limits

LETTERS = "\nabcdefghijklmnop"
TOKENIZER = CharacterTokenizer.assemble(sorted(LETTERS))
SEARCH = Sampling(num_samples=1)
LIMITS = Limits(char_limit=20, batch_limit=4, token_limit=40, max_batch=4, threads=1)


@pytest.fixture(scope="module")
def generator():
    model = ModelConfig(
        vocab_size=TOKENIZER.vocab_size,
        d_model=16,
        d_ff=32,
        num_heads=2,
        num_layers=1,
        max_length=64,
    )
    config = Config(model=model, data=StreamConfig(file="none", length=32), search=SEARCH)
    params = jax.jit(make_init(model, LANGUAGE_MODELING))(jax.random.key(0))
    return Generator(config, params, TOKENIZER)


@pytest.fixture(scope="module")
def client(generator):
    app = make_completions(GeneratorBackend(generator), "letters", LIMITS)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def complete(client, prompt, status=200, **fields):
    body = {"model": "letters", "prompt": prompt, "max_tokens": 12, **fields}
    response = client.post("/v1/completions", json=body)
    assert response.status_code == status, response.text
    return response.json()


def expected(generator, prompts, **search):
    """Returns the texts of the same seeds from Python."""
    config = dataclasses.replace(generator.config, search=dataclasses.replace(SEARCH, **search))
    other = Generator(config, generator.params, TOKENIZER)
    texts = other.continuations(prompts, max_tokens=12)
    return [text for samples in texts for text in samples]


def test_texts_equal_those_from_python(client, generator):
    prompts = ["abc", "p"]
    found = complete(client, prompts, seed=3, n=2, temperature=1.5)
    texts = [choice["text"] for choice in found["choices"]]
    assert texts == expected(generator, prompts, seed=3, num_samples=2, temperature=1.5)
    assert len(set(texts)) == 4

    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3]
    assert {choice["finish_reason"] for choice in found["choices"]} == {"length"}
    assert found["usage"] == {"prompt_tokens": 4, "completion_tokens": 48, "total_tokens": 52}
    assert (found["object"], found["model"]) == ("text_completion", "letters")


def test_texts_without_a_seed_differ_and_the_best_tokens_do_not(client, generator):
    first, second = [complete(client, "abc")["choices"][0]["text"] for _ in range(2)]
    assert first != second

    best = [complete(client, "abc", temperature=0)["choices"][0]["text"] for _ in range(2)]
    assert best == expected(generator, ["abc"], top_k=1) * 2


def events_of(response):
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines]


def test_a_stream_has_the_same_texts_in_pieces(client):
    fields = {"prompt": ["abc", "no"], "seed": 5, "max_tokens": 30}
    whole = complete(client, fields["prompt"], seed=5, max_tokens=30)
    response = client.post("/v1/completions", json={**fields, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")

    events = events_of(response)
    assert len(events) > 4
    for choice in whole["choices"]:
        own = [event for event in events if event["index"] == choice["index"]]
        assert "".join(event["text"] for event in own) == choice["text"]
        assert [event["finish_reason"] for event in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_ends_before_a_stop_string(client, stream):
    """Also where it begins in one piece of a stream and ends in the next."""
    [choice] = complete(client, "abc", seed=5, max_tokens=30)["choices"]
    whole = choice["text"]
    for start in range(5, 12):
        stop = whole[start : start + 3]
        fields = {"prompt": "abc", "seed": 5, "max_tokens": 30, "stop": [stop, "zz"]}
        response = client.post("/v1/completions", json={**fields, "stream": stream})
        events = events_of(response) if stream else response.json()["choices"]
        assert "".join(event["text"] for event in events) == whole[: whole.index(stop)]
        assert events[-1]["finish_reason"] == "stop"


def test_many_clients_each_get_their_own_text(client):
    alone = [complete(client, "a" * n, seed=n)["choices"][0]["text"] for n in range(1, 9)]
    together = {}

    def ask(n):
        together[n] = complete(client, "a" * n, seed=n)["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=[n]) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[n] for n in range(1, 9)] == alone


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": 3}, "prompt must be a string or a list of strings"),
        ({"prompt": []}, "prompt must be a string or a list of strings"),
        ({"prompt": None}, "missing prompt parameter"),
        ({"prompt": "A"}, "'A'"),
        ({"prompt": "a" * 21}, "prompt: characters must be at most 20: got 21"),
        ({"max_tokens": 41}, "max_tokens must be at most 40: got 41"),
        ({"max_tokens": True}, "max_tokens must be a whole number of at least 1"),
        ({"n": 5}, "prompts times n must be at most 4: got 5"),
        ({"temperature": -1}, "temperature must be a number from 0 to 100"),
        ({"top_p": 0}, "top_p"),
        ({"seed": 2**31}, "seed"),
        ({"stop": [""]}, "stop must not be blank"),
        ({"stop": list("abcde")}, "stop: number of strings must be at most 4: got 5"),
        ({"stream": "yes"}, "stream must be true or false"),
        ({"echo": True}, "echo is not supported: leave it out"),
        ({"logprobs": 1}, "logprobs is not supported"),
        ({"temprature": 1}, "unknown parameter temprature; did you mean temperature?"),
        ({"model": "gpt"}, "the model gpt does not exist; this server has letters"),
    ],
)
def test_what_a_request_may_not_have(client, fields, message):
    for stream in (False, True):
        found = complete(client, **{"prompt": "a", "stream": stream, **fields}, status=400)
        assert message in found["error"]["message"]
        assert found["error"]["type"] == "invalid_request_error"


def test_defaults_of_openai_are_accepted(client):
    fields = {"echo": False, "logprobs": None, "best_of": 1, "frequency_penalty": 0.0, "user": "x"}
    complete(client, "a", logit_bias={}, suffix=None, **fields)


def test_what_the_server_says_of_itself(client):
    models = client.get("/v1/models").json()
    assert [model["id"] for model in models["data"]] == ["letters"]
    assert "v1/completions" in client.get("/").text
    assert client.get("/health").json() == {"status": "ok"}
    assert client.post("/v1/chat/completions", json={}).status_code == 404


def test_generation_ends_when_nobody_waits(generator):
    """One token would do for the first request; the second one's client has left."""
    shown = []
    left = Completion(Prompt([5, 6], 0), SEARCH, 4000)

    def leave(piece):
        shown.append(piece)
        left.is_wanted = len(shown) < 3

    left.show = leave
    [text] = GeneratorBackend(generator).complete([left])
    assert "".join(shown) == text.text
    assert len(text.text) < 64
