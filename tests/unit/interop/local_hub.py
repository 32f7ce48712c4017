"""A server on this machine that answers as the Hugging Face Hub does: downloads, and commits."""

import base64
import hashlib
import http.server
import json
import re
import threading
import urllib.parse

TOKEN = "hf_of_the_tests"
SMALL = 2000  # bytes of a file that is in the commit itself; larger ones are uploaded before it


class LocalHub(http.server.ThreadingHTTPServer):
    """Repositories by name: each has branches, by name, and commits; a commit has files.

    ``calls`` has the method and the path of each request.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.branches = {}  # by repository: the commit of each branch
        self.commits = {}  # by repository and commit: the content of each file, by its name
        self.private = {}  # by repository
        self.uploaded = {}  # large files, by SHA-256
        self.calls = []
        self.refuses = False  # to create repositories, as for an owner that is not the user
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def create(self, repository):
        self.branches[repository] = {}
        self.commits[repository] = {}
        self.publish(repository, {".gitattributes": b""})

    def publish(self, repository, files, branch="main"):
        """Adds a commit with these files, and returns it."""
        if repository not in self.branches:
            self.branches[repository] = {}
            self.commits[repository] = {}
        number = len(self.commits[repository])
        commit = hashlib.sha1(f"{repository} {number}".encode()).hexdigest()
        self.commits[repository][commit] = dict(files)
        self.branches[repository][branch] = commit
        return commit

    def files(self, repository, branch="main"):
        return self.commits[repository][self.branches[repository][branch]]

    def stop(self):
        """Leaves no network."""
        if self.thread.is_alive():
            self.shutdown()
            self.server_close()
            self.thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers requests, whose paths are in ``ROUTES``."""

    server: LocalHub
    content: bytes  # of the request

    def answer(self):
        path = urllib.parse.urlparse(self.path).path
        self.server.calls.append((self.command, path))
        self.content = self.read_content()

        for methods, pattern, function in ROUTES:
            match = re.fullmatch(pattern, path)
            if match and self.command in methods:
                function(self, *map(urllib.parse.unquote, match.groups()))
                return
        self.send({"error": "no such page"}, 404)

    def read_content(self):
        """Returns the content of the request, which may come in chunks after their sizes."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            size = int(self.headers.get("Content-Length", 0))
            return self.rfile.read(size)

        content = b""
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    do_GET = do_HEAD = do_POST = do_PUT = answer  # noqa: N815

    def log_message(self, *_):
        pass

    def send(self, content, status=200, **headers):
        if not isinstance(content, bytes):
            content = json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def commit_of(self, repository, revision):
        """Returns a commit; None, and an error for the client, if there is none."""
        if repository not in self.server.branches:
            self.send({}, 404, X_Error_Code="RepoNotFound")
            return None
        commit = self.server.branches[repository].get(revision, revision)
        if commit not in self.server.commits[repository]:
            self.send({}, 404, X_Error_Code="RevisionNotFound")
            return None
        return commit

    def is_allowed(self):
        allowed = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if not allowed:
            self.send({"error": "Invalid credentials in Authorization header"}, 401)
        return allowed

    def info(self, repository, revision):
        commit = self.commit_of(repository, revision)
        if commit:
            self.send({"id": repository, "sha": commit})

    def tree(self, repository, revision):
        commit = self.commit_of(repository, revision)
        if commit:
            files = self.server.commits[repository][commit]
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": _oid(content)}
                for name, content in files.items()
            ]
            self.send(tree)

    def resolve(self, repository, revision, name):
        commit = self.commit_of(repository, revision)
        content = self.server.commits[repository][commit].get(name) if commit else None
        if content is not None:
            self.send(content, ETag=_oid(content), X_Repo_Commit=commit)
        elif commit:
            self.send({}, 404, X_Error_Code="EntryNotFound")

    def create_repository(self):
        if not self.is_allowed():
            return
        fields = json.loads(self.content)
        repository = f"{fields['organization']}/{fields['name']}"
        url = f"{self.server.url}/{repository}"
        if self.server.refuses:
            self.send({"error": "You don't have the rights to create a model there"}, 403)
        elif repository in self.server.branches:
            self.send({"error": "You already created this model repo", "url": url}, 409)
        else:
            self.server.create(repository)
            self.server.private[repository] = fields.get("visibility") == "private"
            self.send({"url": url})

    def create_branch(self, repository, branch):
        if not self.is_allowed():
            return
        if branch in self.server.branches[repository]:
            self.send({"error": "Reference already exists"}, 409)
        else:
            main = self.server.branches[repository]["main"]
            self.server.branches[repository][branch] = main
            self.send({})

    def preupload(self, repository, branch):
        files = json.loads(self.content)["files"]
        for file in files:
            file["uploadMode"] = "regular" if file["size"] < SMALL else "lfs"
            file["shouldIgnore"] = False
        self.send({"files": files})

    def batch(self, repository):
        objects = json.loads(self.content)["objects"]
        for each in objects:
            each["actions"] = {"upload": {"href": f"{self.server.url}/lfs/{each['oid']}"}}
        self.send({"transfer": "basic", "objects": objects})

    def upload(self, oid):
        assert hashlib.sha256(self.content).hexdigest() == oid
        self.server.uploaded[oid] = self.content
        self.send({})

    def commit(self, repository, branch):
        if not self.is_allowed():
            return
        files = dict(self.server.files(repository, branch))
        for line in self.content.splitlines():
            step = json.loads(line)
            value = step["value"]
            match step["key"]:
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.server.uploaded[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
        commit = self.server.publish(repository, files, branch)
        self.send({"commitUrl": f"{self.server.url}/{repository}", "commitOid": commit})

    def validate(self):
        self.send({"errors": [], "warnings": []})


def _oid(content):
    return hashlib.sha256(content).hexdigest()


_NAME = "([^/]+/[^/]+)"
ROUTES = [
    ("GET", rf"/api/models/{_NAME}/revision/([^/]+)", _Handler.info),
    ("GET", rf"/api/models/{_NAME}/tree/([^/]+)", _Handler.tree),
    (("GET", "HEAD"), rf"/{_NAME}/resolve/([^/]+)/(.+)", _Handler.resolve),
    ("POST", "/api/repos/create", _Handler.create_repository),
    ("POST", rf"/api/models/{_NAME}/branch/([^/]+)", _Handler.create_branch),
    ("POST", rf"/api/models/{_NAME}/preupload/([^/]+)", _Handler.preupload),
    ("POST", rf"/{_NAME}\.git/info/lfs/objects/batch", _Handler.batch),
    ("PUT", "/lfs/(.+)", _Handler.upload),
    ("POST", rf"/api/models/{_NAME}/commit/([^/]+)", _Handler.commit),
    ("POST", "/api/validate-yaml", _Handler.validate),
]
