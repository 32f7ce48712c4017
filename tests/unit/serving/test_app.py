"""The HTTP protocol, in process, with a model that spells backwards."""

import asyncio
import json
import threading

import pytest
from starlette.testclient import TestClient

from jaxformer.errors import UserError
from jaxformer.serving.app import make_app
from jaxformer.serving.protocol import Limits, Translation

PAIR = {"source": "en", "target": "de"}


class Backwards:
    """Spells each sentence backwards, and as a second best in capitals."""

    def __init__(self):
        self.languages = {"en": ["de", "xx"]}
        self.go, self.calls = threading.Event(), []
        self.go.set()

    def translate(self, sentences):
        self.calls.append([sentence.text for sentence in sentences])
        assert self.go.wait(10)
        return [self.answer(*sentence) for sentence in sentences]

    def answer(self, text, target, attention, only_best):
        assert target in ("de", "xx")
        if text == "bug":
            raise ZeroDivisionError
        if text == "bad":
            return UserError("sentence: expected another")
        texts = [text[::-1], text[::-1].upper()] if text.strip() else []
        texts = texts[:1] if only_best else texts
        weights = {"source": ["a"], "target": ["b"], "weights": [[1.0]]} if attention else None
        return Translation(texts, [-1.0, -2.0][: len(texts)], weights)


LIMITS = Limits(char_limit=20, batch_limit=3, body_limit=500, queue_limit=4, max_batch=2, threads=1)


@pytest.fixture
def backend():
    return Backwards()


@pytest.fixture
def client(backend):
    with TestClient(make_app(backend, LIMITS), raise_server_exceptions=False) as client:
        yield client


def answer(client, q, **fields):
    """Returns the answer to a request as JSON."""
    response = client.post("/translate", json={"q": q, **PAIR, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def test_texts_and_lists(client):
    assert answer(client, "abc") == {"translatedText": "cba"}
    assert answer(client, ["ab", "cd"], format="text", api_key="x") == {
        "translatedText": ["ba", "dc"]
    }
    assert answer(client, ["ab"], alternatives=3)["alternatives"] == [["BA"]]
    # Lines are sentences; blank ones stay as they are.
    assert answer(client, "ab\n \ncd", alternatives=1) == {
        "translatedText": "ba\n \ndc",
        "alternatives": ["BA\n \nDC"],
    }
    assert answer(client, "1\u00e9", target="xx") == {"translatedText": "\u00e91"}
    detected = {"confidence": 0.0, "language": "en"}
    assert answer(client, "ab", source="auto")["detectedLanguage"] == detected
    assert answer(client, ["ab", "c"], source="auto")["detectedLanguage"] == [detected] * 2


@pytest.mark.parametrize("kind", ["data", "files", "params"])
def test_forms(client, kind):
    """URL-encoded, as libretranslatepy sends it, multipart, as browsers do, and in the URL."""
    fields = {"q": "1+1 = \u00e9", **PAIR}
    if kind == "files":
        fields = {name: (None, value) for name, value in fields.items()}
    response = client.post("/translate", **{kind: fields})
    assert response.json() == {"translatedText": "\u00e9 = 1+1"}


def test_details(client):
    weights = {"source": ["a"], "target": ["b"], "weights": [[1.0]]}
    assert answer(client, "ab\nc", details=True)["details"] == [
        {"texts": ["ba", "BA"], "scores": [-1.0, -2.0], "attention": weights},
        {"texts": ["c", "C"], "scores": [-1.0, -2.0], "attention": weights},
    ]
    form = client.post("/translate", data={"q": "ab", "details": "false", **PAIR})
    assert form.json() == {"translatedText": "ba"}


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({**PAIR}, 400, "Invalid request: missing q parameter"),
        ({**PAIR, "q": []}, 400, "Invalid request: missing q parameter"),
        ({"q": "a", "target": "de"}, 400, "Invalid request: missing source parameter"),
        ({"q": "a", "source": "en"}, 400, "Invalid request: missing target parameter"),
        ({**PAIR, "q": "a", "target": "zz"}, 400, "zz is not supported"),
        ({**PAIR, "q": "a", "source": "\ud800"}, 400, "\ud800 is not supported"),
        (
            {"q": "a", "source": "de", "target": "en"},
            400,
            "English (en) is not available as a target language from German (de)",
        ),
        ({**PAIR, "q": "a", "format": "html"}, 400, "html format is not supported"),
        (
            {**PAIR, "q": "a", "alternatives": "abc"},
            400,
            "Invalid request: alternatives parameter is not a number",
        ),
        ({**PAIR, "q": ["a", 1]}, 400, "q, source and target must be strings, or q a list"),
        ({**PAIR, "q": {"a": 1}}, 400, "q, source and target must be strings, or q a list"),
        ({**PAIR, "q": "a" * 21}, 400, "request (21) exceeds text limit (20)"),
        ({**PAIR, "q": ["a\nb", "c\nd"]}, 400, "request (4) exceeds text limit (3)"),
        ({**PAIR, "q": "a" * 500}, 413, "Invalid request: more than 500 bytes"),
        ({**PAIR, "q": ["good", "bad"]}, 400, "sentence: expected another"),
        ({**PAIR, "q": "bug"}, 500, "Cannot translate text; see the log of the server"),
        (["q"], 400, "Invalid JSON format"),
        ("[" * 400, 400, "Invalid JSON format"),
    ],
)
def test_errors(client, body, status, message):
    content = body if isinstance(body, str) else json.dumps(body)
    headers = {"Content-Type": "application/json"}
    response = client.post("/translate", content=content, headers=headers)
    assert response.status_code == status
    assert message in response.json()["error"]
    assert list(response.json()) == ["error"]
    # The next request does not suffer.
    assert answer(client, "ab") == {"translatedText": "ba"}


def test_other_addresses(client):
    assert client.get("/languages").json() == [
        {"code": "en", "name": "English", "targets": ["de", "xx"]},
        {"code": "de", "name": "German", "targets": []},
        {"code": "xx", "name": "xx", "targets": []},
    ]
    assert client.get("/health").json() == {"status": "ok"}
    for response, status in ((client.get("/translate"), 405), (client.get("/nowhere"), 404)):
        assert response.status_code == status
        assert list(response.json()) == ["error"]


def test_metrics(client):
    answer(client, ["a", "b", "c"])
    client.post("/translate", json={})
    lines = client.get("/metrics").text.split("\n")
    for line in (
        'jaxformer_requests_total{status="200"} 1.0',
        'jaxformer_requests_total{status="400"} 1.0',
        "jaxformer_request_seconds_count 2.0",
        'jaxformer_batch_sentences_bucket{le="1.0"} 1.0',
        "jaxformer_batch_sentences_sum 3.0",
        "jaxformer_queue_sentences 0.0",
    ):
        assert line in lines


def test_page_is_one_file_that_runs_only_its_own_script(client):
    response = client.get("/")
    assert response.headers["Content-Type"].startswith("text/html")
    policy = response.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; connect-src 'self'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert not any(text in response.text for text in ("http:", "https:", "src=", "url("))


class Connection:
    """An ASGI connection that sends a request, and can be closed."""

    def __init__(self, app, q):
        self.closed, self.sent, body = asyncio.Event(), [], json.dumps({"q": q, **PAIR}).encode()
        self.messages = [{"type": "http.request", "body": body}]
        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/translate", "headers": headers}
        scope |= {"query_string": b"", "http_version": "1.1", "scheme": "http"}
        self.task = asyncio.ensure_future(app(scope, self.receive, self.send))

    async def receive(self):
        if self.messages:
            return self.messages.pop()
        await self.closed.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.sent.append(message)

    async def answer(self):
        """Returns status, headers and JSON of the answer."""
        await asyncio.wait_for(self.task, 10)
        start, body = self.sent
        return start["status"], dict(start["headers"]), json.loads(body["body"])


def test_overload_and_clients_that_leave(backend):
    async def main():
        app = make_app(backend, LIMITS)
        async with app.router.lifespan_context(app):
            backend.go.clear()
            running = Connection(app, ["a1", "a2"])
            while not backend.calls:
                await asyncio.sleep(0.001)
            waiting, leaving = Connection(app, "b1"), Connection(app, ["c1", "c2"])
            await asyncio.sleep(0.02)
            status, headers, answer = await Connection(app, ["d1", "d2"]).answer()
            assert (status, list(answer)) == (429, ["error"])
            assert int(headers[b"retry-after"]) >= 1
            leaving.closed.set()
            assert (await leaving.answer())[0] == 499
            later = Connection(app, ["e1", "e2"])
            await asyncio.sleep(0.02)
            backend.go.set()
            answers = [(await c.answer())[2]["translatedText"] for c in (running, waiting, later)]
            assert answers == [["1a", "2a"], "1b", ["1e", "2e"]]
            assert backend.calls == [["a1", "a2"], ["b1", "e1"], ["e2"]]

    asyncio.run(main())


def test_limits_that_no_request_could_meet_are_refused():
    with pytest.raises(UserError, match="--max-batch must be at least 1: got 0"):
        Limits(max_batch=0)
    with pytest.raises(UserError, match="--batch-limit must be at most --queue-limit"):
        Limits(batch_limit=9, queue_limit=8)
