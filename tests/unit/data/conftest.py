"""A web server on this machine, whose answers a test chooses."""

import http.server
import re
import threading

import pytest

from jaxformer.data import download


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers by the functions in ``server.answers``, and keeps each header Range."""

    def do_GET(self):
        self.server.requests.append(self.headers["Range"])
        answer = self.server.answers.get(self.path)
        self.send_error(404) if answer is None else answer(self)

    def log_message(self, *_):
        pass


def respond(handler, code, body=b"", **headers):
    handler.send_response(code)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), str(value))
    handler.end_headers()
    handler.wfile.write(body)


def serve(content, cut_after=None):
    """Returns an answer with a file, whose connection may be cut after so many bytes."""

    def answer(handler):
        asked = re.fullmatch(r"bytes=(\d+)-", handler.headers["Range"] or "")
        start, size = int(asked[1]) if asked else 0, len(content)
        place = {"Content_Range": f"bytes {start}-{size - 1}/{size}"} if asked else {}
        body = content[start:][:cut_after]
        respond(handler, 206 if asked else 200, body, Content_Length=size - start, **place)

    return answer


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "_PAUSE_SECONDS", 0)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.url = f"http://127.0.0.1:{server.server_port}"
        server.answers, server.requests = {}, []
        server.handle_error = lambda *_: None  # A client may end a connection early.
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
