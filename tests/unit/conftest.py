"""A web server on this machine, and a browser."""

import hashlib
import http.server
import os
import shutil
import threading

import pytest


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers with the contents in ``server.files``, with the headers of the Hugging Face Hub.

    ``server.error`` is the Hub's reason why a file is missing, and ``server.sent`` the share of a
    file after which the connection is cut.
    """

    def do_GET(self):
        path = self.path.partition("?")[0]
        self.server.requests.append(path)
        content = self.server.files.get(path)

        if content is None:
            self.send_response(404)
            self.send_header("X-Error-Code", self.server.error)
            content = b""
        else:
            self.send_response(200)
        self.send_header("ETag", hashlib.sha256(content).hexdigest())
        self.send_header("X-Repo-Commit", self.server.commit)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()

        if self.command == "GET":
            size = int(len(content) * self.server.sent)
            self.wfile.write(content[:size])

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.url = f"http://127.0.0.1:{server.server_port}"
        server.files = {}
        server.requests = []
        server.commit = "0123456789" * 4
        server.error = "RepoNotFound"
        server.sent = 1

        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser():
    """A Chromium: the one that JAXFORMER_BROWSER names, the system's, or playwright's own."""
    reason = "no browser: needs playwright"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    with playwright.sync_playwright() as play:
        try:
            path = os.environ.get("JAXFORMER_BROWSER", shutil.which("chromium"))
            browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"no browser: {error.message.splitlines()[0]}; set JAXFORMER_BROWSER")
        yield browser
        browser.close()
