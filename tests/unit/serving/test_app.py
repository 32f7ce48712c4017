"""The HTTP protocol, in process, with a model that spells backwards."""

import asyncio
import json
import threading

import pytest
from starlette.testclient import TestClient

from jaxformer.errors import UserError
from jaxformer.serving.app import make_app
from jaxformer.serving.limits import Limits
from jaxformer.serving.protocol import Translation

PAIR = {"source": "en", "target": "de"}


class Backwards:
    """Spells each sentence backwards, and as a second best in capitals."""

    def __init__(self):
        self.name = "backwards"
        self.languages = {"en": ["de", "xx"]}
        self.calls = []
        self.go = threading.Event()
        self.go.set()

    def translate(self, sentences):
        self.calls.append([sentence.text for sentence in sentences])
        assert self.go.wait(10)
        return [self.answer(*sentence) for sentence in sentences]

    def answer(self, text, target, attention, only_best, source, terms):
        assert target in ("de", "xx")
        if text == "bug":
            raise ZeroDivisionError
        if text == "bad":
            return UserError("sentence: expected another")

        for term, translation in terms:
            text = text.replace(term, translation[::-1])
        backwards = text[::-1]
        texts = [backwards, backwards.upper()] if text.strip() else []
        scores = [-1.0, -2.0] if text.strip() else []
        if only_best:
            texts = texts[:1]
            scores = scores[:1]
        return Translation(texts, scores, WEIGHTS if attention else None)


WEIGHTS = {"source": ["a"], "target": ["b"], "weights": [[1.0]]}
LIMITS = Limits(
    char_limit=20,
    batch_limit=3,
    body_limit=500,
    queue_limit=4,
    max_batch=2,
    threads=1,
)


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
    more = {"format": "text", "api_key": "x", "secret": "y", "apiKey": ""}
    assert answer(client, ["ab", "cd"], **more) == {"translatedText": ["ba", "dc"]}
    assert answer(client, ["ab"], alternatives=3)["alternatives"] == [["BA"]]
    assert answer(client, "1\u00e9", target="xx") == {"translatedText": "\u00e91"}

    # Lines are sentences; blank ones stay as they are.
    assert answer(client, "ab\n \ncd", alternatives=1) == {
        "translatedText": "ba\n \ndc",
        "alternatives": ["BA\n \nDC"],
    }

    detected = {"confidence": 0.0, "language": "en"}
    assert answer(client, "ab", source="auto")["detectedLanguage"] == detected
    assert answer(client, ["ab", "c"], source="auto")["detectedLanguage"] == [detected] * 2


def test_a_request_has_a_glossary(client):
    """As an object, or as a text with the lines of a glossary's file; terms in small letters."""
    for glossary in ({"Cat": "Katze"}, "cat\tKatze\n\n"):
        assert answer(client, "a cat", glossary=glossary) == {"translatedText": "Katze a"}
    assert answer(client, "a cat") == {"translatedText": "tac a"}
    response = client.post("/translate", data={"q": "cat", **PAIR, "glossary": "cat\tKatze"})
    assert response.json() == {"translatedText": "Katze"}


def test_paragraphs_are_split_into_sentences():
    pytest.importorskip("sentencex", reason="sentencex is not installed")
    app = make_app(Backwards(), LIMITS, split=True)
    with TestClient(app, raise_server_exceptions=False) as client:
        found = answer(client, "Ab. Cd.\nEf.", alternatives=1, details=True)
        assert found["translatedText"] == ".bA .dC\n.fE"
        assert found["alternatives"] == [".BA .DC\n.FE"]

        first, second = found["details"]
        assert first["texts"] == [".bA .dC", ".BA .DC"]
        assert first["scores"] == [-2.0, -4.0]
        assert [each["texts"][0] for each in first["sentences"]] == [".bA", ".dC"]
        assert second["texts"] == [".fE", ".FE"]
        assert second["attention"] == WEIGHTS

        assert answer(client, " \nAb.") == {"translatedText": " \n.bA"}
        four = client.post("/translate", json={"q": "Ab. Cd. Ef. Gh.", **PAIR})
        assert four.json() == {"error": "Invalid request: request (4) exceeds text limit (3)"}


@pytest.mark.parametrize("kind", ["data", "files", "params"])
def test_forms(client, kind):
    """URL-encoded, as libretranslatepy sends it, multipart, as browsers do, and in the URL."""
    fields = {"q": "1+1 = \u00e9", **PAIR}
    if kind == "files":
        fields = {name: (None, value) for name, value in fields.items()}
    response = client.post("/translate", **{kind: fields})
    assert response.json() == {"translatedText": "\u00e9 = 1+1"}


JSON = json.dumps({"q": "é", **PAIR}, ensure_ascii=False)


def multipart(*fields, close="--"):
    """Spells multipart/form-data by hand; a field is a name, a value, and more headers."""
    text = ""
    for name, value, *more in fields:
        disposition = f'Content-Disposition: form-data; name="{name}"'
        text += f"--X\r\n{disposition}{''.join(more)}\r\n\r\n{value}\r\n"
    return f"{text}--X{close}\r\n"


PARTS = [("source", "en"), ("target", "de")]
LATIN = "\r\nContent-Type: text/plain; charset=ISO-8859-1"


@pytest.mark.parametrize(
    ("kind", "content", "expected"),
    [
        # Media types and charsets are case-insensitive (RFC 9110, 8.3).
        ("Application/JSON", JSON.encode(), "é"),
        ('APPLICATION/JSON; CHARSET="UTF-8"', JSON.encode(), "é"),
        ("application/json", JSON.encode("utf-8-sig"), "é"),
        ("application/json; charset=utf-16", JSON.encode("utf-16"), "é"),
        ("application/json; charset=ISO-8859-1", JSON.encode("latin-1"), "é"),
        ("application/vnd.api+json", JSON.encode(), "é"),
        ("text/json", JSON.encode(), "é"),
        ("application/json", JSON.encode("latin-1"), "Invalid JSON format"),
        ("application/json; charset=utf-7", JSON.encode(), "charset utf-7 is not supported"),
        ("Application/X-WWW-Form-URLencoded", b"q=%C3%A9&source=en&target=de", "é"),
        # curl sends the bytes of its argument.
        ("application/x-www-form-urlencoded", "q=é&source=en&target=de".encode(), "é"),
        ("application/x-www-form-urlencoded; charset=latin1", b"q=%E9&source=en&target=de", "é"),
        ("application/x-www-form-urlencoded", b"q=%E9&source=en&target=de", "form in utf-8"),
        ("application/x-www-form-urlencoded", b"q=\xe9&source=en&target=de", "form in utf-8"),
        ("application/x-www-form-urlencoded; charset=hex", b"q=a", "charset hex is not supported"),
        ("application/x-www-form-urlencoded", b"q=a&" * 1001, "more than 1000 fields"),
        ("Multipart/Form-Data; Boundary=X", multipart(("q", "é"), *PARTS).encode(), "é"),
        ('multipart/form-data; boundary="X"', multipart(("q", "a\rb\0\n"), *PARTS), "\0b\ra\n"),
        ("multipart/form-data; boundary=X", multipart(("q", "é", LATIN), *PARTS), "é"),
        ("multipart/form-data; boundary=X", multipart(("q", "é"), *PARTS), "field q in utf-8"),
        ("multipart/form-data; boundary=X", multipart(("q", "a"), close=""), "whole parts"),
        ("multipart/form-data", multipart(("q", "a")), "whole parts"),
        ("multipart/form-data; boundary=X", multipart(("q", "a")) * 1001, "more than 1000 fields"),
        (
            "multipart/form-data; boundary=X",
            multipart(("q", "a", '; filename="a.txt"')),
            "expected a text as q, got a file",
        ),
        ("text/plain", b"q=a", "content type application/json"),
        ("", b"q=a", "multipart/form-data: got none"),
        ("text/plain", b"", "missing q parameter"),
    ],
)
def test_content_types(kind, content, expected):
    """Each is translated as it was sent, or refused with the reason."""
    content = content.encode("latin-1") if isinstance(content, str) else content
    headers = {"Content-Type": kind} if kind else {}
    roomy = Limits(char_limit=20, body_limit=1 << 20)

    with TestClient(make_app(Backwards(), roomy)) as client:
        response = client.post("/translate", content=content, headers=headers)

    check_text_or_error(response, expected)


def check_text_or_error(response, expected):
    """Checks a response of a request that is translated, or refused for its content."""
    if response.status_code == 200:
        assert response.json() == {"translatedText": expected}
    else:
        assert response.status_code == 400
        assert expected in response.json()["error"]


@pytest.mark.parametrize(
    ("url", "form", "expected"),
    [
        ("", "q=ab&q=cd&source=en&target=de", ["ba", "dc"]),
        ("", "q=ab&q=ab&source=en&target=de", ["ba", "ba"]),
        ("", "q=&q=cd&source=en&target=de", ["", "dc"]),
        ("q=ab&q=cd&source=en&target=de", "", ["ba", "dc"]),
        ("source=en&target=de", "q=ab", "ba"),
        ("source=en", "q=ab&source=en&target=de", "ba"),
        ("", "q=ab&source=en&target=de&format=&alternatives=&secret=x", "ba"),
        ("q=ab", "q=cd&source=en&target=de", "q is given twice, with different values"),
        ("q=ab", "q=ab&q=cd&source=en&target=de", "q is given twice, with different values"),
        ("target=xx", "q=ab&source=en&target=de", "target is given twice"),
        ("", "q=ab&source=en&target=de&source=de", "source is given twice"),
        ("", "q=ab&source=en&target=de&format=text&format=html", "html format is not supported"),
        ("", "q=ab&source=en&target=de&alternatives=1&alternatives=2", "alternatives is given"),
        ("", "q=ab&source=en&target=de&api_key=1&api_key=2", "api_key is given twice"),
        ("", "q=ab&source=en&target=de&x", "unknown parameter x; known: q, source, target"),
    ],
)
@pytest.mark.parametrize("kind", ["form", "multipart"])
def test_repeated_fields(client, url, form, expected, kind):
    """All values of q are texts; another field has one value, wherever it is given."""
    if kind == "form":
        content = form.encode()
        media_type = "application/x-www-form-urlencoded"
    else:
        pairs = [pair.partition("=")[::2] for pair in form.split("&") if pair]
        content = multipart(*pairs).encode() if pairs else b""
        media_type = "multipart/form-data; boundary=X"

    headers = {"Content-Type": media_type}
    response = client.post(f"/translate?{url}", content=content, headers=headers)

    check_text_or_error(response, expected)


def test_fields_of_url_and_json(client):
    response = client.post("/translate?source=en&target=de&alternatives=1", json={"q": "ab"})
    assert response.json() == {"translatedText": "ba", "alternatives": ["BA"]}

    response = client.post("/translate?alternatives=1", json={"q": "ab", "alternatives": 2, **PAIR})
    assert "alternatives is given twice, with different values" in response.json()["error"]


def test_details(client):
    assert answer(client, "ab\nc", details=True)["details"] == [
        {"texts": ["ba", "BA"], "scores": [-1.0, -2.0], "attention": WEIGHTS},
        {"texts": ["c", "C"], "scores": [-1.0, -2.0], "attention": WEIGHTS},
    ]

    for value, is_detailed in (("false", False), ("true", True), ("1", True)):
        fields = {"q": "ab", "details": value, **PAIR}
        response = client.post("/translate", data=fields)
        assert ("details" in response.json()) == is_detailed


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
        (
            {**PAIR, "q": "a", "format": "html"},
            400,
            "html format is not supported: the model has only seen plain text",
        ),
        (
            {**PAIR, "q": "a", "alternatives": "abc"},
            400,
            "Invalid request: alternatives parameter is not a number",
        ),
        ({**PAIR, "q": "a", "alternatives": -1}, 400, "alternatives must be at least 0: got -1"),
        ({**PAIR, "q": "a", "alternatives": 1.5}, 400, "alternatives parameter is not a number"),
        ({**PAIR, "q": "a", "alternatives": True}, 400, "alternatives parameter is not a number"),
        ({**PAIR, "q": "a", "details": "yes"}, 400, "details must be true or false"),
        ({**PAIR, "q": "a", "format": ["text"]}, 400, "format must be a string"),
        ({**PAIR, "q": "a", "api_key": 1}, 400, "api_key must be a string"),
        ({**PAIR, "q": "a", "glossary": 1}, 400, "glossary must be an object of terms"),
        ({**PAIR, "q": "a", "glossary": ["a"]}, 400, "glossary must be an object of terms"),
        ({**PAIR, "q": "a", "glossary": {"a": " "}}, 400, "glossary must be an object of terms"),
        ({**PAIR, "q": "a", "glossary": {"a": {}}}, 400, "glossary must be an object of terms"),
        ({**PAIR, "q": "a", "glossary": "a b"}, 400, "or lines of term, tab, translation"),
        ({**PAIR, "q": "a", "glossary": "a\tb\nA\tc"}, 400, "two translations of A"),
        (
            {**PAIR, "q": "a", "glossary": {"a": "b" * 20}},
            400,
            "request (21) exceeds text limit (20)",
        ),
        ({**PAIR, "q": "a", "source": ["en"]}, 400, "source must be a string"),
        ({**PAIR, "q": "a", "alternative": 1}, 400, "alternative; did you mean alternatives?"),
        ({**PAIR, "q[]": "a"}, 400, "unknown parameter q[]"),
        ({**PAIR, "q": ["a", 1]}, 400, "q must be a string or a list of strings"),
        ({**PAIR, "q": {"a": 1}}, 400, "q must be a string or a list of strings"),
        ({**PAIR, "q": [["a"]]}, 400, "q must be a string or a list of strings"),
        ('{"q": "a", "q": "b", "source": "en", "target": "de"}', 400, "q is given twice"),
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

    for path, status in (("/translate", 405), ("/detect", 405), ("/nowhere", 404)):
        response = client.get(path)
        assert response.status_code == status
        assert list(response.json()) == ["error"]


def test_detect(client):
    """As LibreTranslate: a list of languages, also for several texts (its test_api_detect)."""
    detected = [{"confidence": 0.0, "language": "en"}]
    for q in ("Hallo", ["Hallo", "Hello"]):
        assert client.post("/detect", json={"q": q, "api_key": "x"}).json() == detected
    assert client.post("/detect", data={"q": "Hallo", "secret": ""}).json() == detected

    for fields, message in (
        ({}, "Invalid request: missing q parameter"),
        ({"q": "a", "source": "en"}, "unknown parameter source; known: q, api_key, apiKey, secret"),
    ):
        response = client.post("/detect", json=fields)
        assert response.status_code == 400
        assert message in response.json()["error"]


def test_settings(client):
    """LibreTranslate's, with the names and types of its API page, and two of our page."""
    assert client.get("/frontend/settings").json() == {
        "apiKeys": False,
        "charLimit": 20,
        "filesTranslation": False,
        "frontendTimeout": 150,
        "keyRequired": False,
        "language": {
            "source": {"code": "en", "name": "English"},
            "target": {"code": "de", "name": "German"},
        },
        "suggestions": False,
        "supportedFilesFormat": [],
        "lineLimit": 3,
        "model": "backwards",
    }


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
    for other_files in ("http:", "https:", "src=", "url("):
        assert other_files not in response.text


class Connection:
    """An ASGI connection that sends a request, and can be closed."""

    def __init__(self, app, q):
        body = json.dumps({"q": q, **PAIR}).encode()
        self.messages = [{"type": "http.request", "body": body}]
        self.sent = []
        self.closed = asyncio.Event()

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/translate",
            "headers": [(b"content-type", b"application/json")],
            "query_string": b"",
            "http_version": "1.1",
            "scheme": "http",
        }
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
            # While a batch runs, three sentences wait, of at most four.
            backend.go.clear()
            running = Connection(app, ["a1", "a2"])
            while not backend.calls:
                await asyncio.sleep(0.001)
            waiting = Connection(app, "b1")
            leaving = Connection(app, ["c1", "c2"])
            await asyncio.sleep(0.02)

            # Two sentences more are too many.
            status, headers, content = await Connection(app, ["d1", "d2"]).answer()
            assert status == 429
            assert list(content) == ["error"]
            assert int(headers[b"retry-after"]) >= 1

            # A client that leaves makes room for another.
            leaving.closed.set()
            status, _, _ = await leaving.answer()
            assert status == 499
            later = Connection(app, ["e1", "e2"])
            await asyncio.sleep(0.02)

            backend.go.set()
            texts = []
            for connection in (running, waiting, later):
                _, _, content = await connection.answer()
                texts.append(content["translatedText"])
            assert texts == [["1a", "2a"], "1b", ["1e", "2e"]]
            assert backend.calls == [["a1", "a2"], ["b1", "e1"], ["e2"]]

    asyncio.run(main())


def test_limits_that_no_request_could_meet_are_refused():
    with pytest.raises(UserError, match="--max-batch must be at least 1: got 0"):
        Limits(max_batch=0)
    with pytest.raises(UserError, match="--batch-limit must be at most --queue-limit"):
        Limits(batch_limit=9, queue_limit=8)
