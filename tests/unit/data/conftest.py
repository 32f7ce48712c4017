"""A web server on this machine, whose answers a test chooses."""

import http.server
import re
import threading

import pytest

from jaxformer.data import download


class WebServer(http.server.ThreadingHTTPServer):
    """Answers GET requests by the functions in ``answers``, by path.

    Attributes:
      url: Address without a path.
      requests: Path and header Range of each request.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.answers, self.requests = {}, []

    def handle_error(self, *_):
        """Says nothing of clients that end a connection early."""


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append((self.path, self.headers["Range"]))
        answer = self.server.answers.get(self.path)
        self.send_error(404) if answer is None else answer(self)

    def log_message(self, *_):
        pass


def serve(content, *, cut_after=None, resumes=True):
    """Returns an answer with a file.

    Args:
      content: The file.
      cut_after: Bytes of each answer after which the connection is cut.
      resumes: Heeds the header Range.
    """

    def answer(handler):
        start = 0
        if resumes and (asked := re.fullmatch(r"bytes=(\d+)-", handler.headers["Range"] or "")):
            start = int(asked[1])
            if start >= len(content):
                handler.send_response(416)
                handler.send_header("Content-Range", f"bytes */{len(content)}")
                handler.end_headers()
                return
            handler.send_response(206)
            end = len(content) - 1
            handler.send_header("Content-Range", f"bytes {start}-{end}/{len(content)}")
        else:
            handler.send_response(200)
        handler.send_header("Content-Length", str(len(content) - start))
        handler.end_headers()
        handler.wfile.write(content[start:][:cut_after])

    return answer


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "_PAUSE_SECONDS", 0)
    with WebServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
