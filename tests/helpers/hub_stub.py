"""A stub of the Hugging Face Hub on loopback, for tests that push models and load them back.

It speaks real HTTP, keeps what was pushed and refuses every token but one. It knows models with one branch, `main`.
Large files travel by git LFS's basic transfer, so the client needs `HF_HUB_DISABLE_XET=1`. Any other request,
and one about a repository or revision that does not exist, is answered 501 and remembered.
"""

import base64
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_accepted"
# The suffixes of the Hub's default `.gitattributes` that a trainer writes.
LFS_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")


def client_environment(url: str, home) -> dict[str, str]:
    """This process's environment without its proxies and settings of the Hub's client, pointed at the stub."""
    hub_settings = ("HF_", "HUGGING", "TRANSFORMERS_")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(hub_settings) and not name.lower().endswith("_proxy")
    }
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "HF_ENDPOINT": url,
        "HF_TOKEN": TOKEN,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }


@dataclass
class Repo:
    """What was pushed to a repository: the files of its last commit, and all commit messages, oldest first."""

    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)

    @property
    def sha(self) -> str:
        return hashlib.sha1("\n".join(self.commits).encode()).hexdigest()


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


def ok(value: Any) -> Answer:
    return Answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})


def refusal(status: int, message: str, code: str | None = None) -> Answer:
    headers = {"Content-Type": "application/json", "X-Error-Message": message}
    if code is not None:
        headers["X-Error-Code"] = code
    return Answer(status, json.dumps({"error": message}).encode(), headers)


class HubStub(ThreadingHTTPServer):
    """The server.

    Attributes:
        url: where it listens.
        repos: what was pushed, by the repository's id.
        unknown: requests that were answered 501.

    Args:
        user: owner of repositories that are created without an owner.
        token: the one token that is let in.
    """

    daemon_threads = True

    def __init__(self, user: str, token: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.user = user
        self.token = token
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repos: dict[str, Repo] = {}
        self.objects: dict[str, bytes] = {}  # uploaded LFS objects by SHA-256
        self.unknown: list[str] = []

    def answer(self, method: str, path: str, authorization: str | None, body: bytes) -> Answer:
        # The address of an upload is its own permission, as on the Hub.
        if not path.startswith("/lfs/") and authorization != f"Bearer {self.token}":
            return refusal(401, "Invalid credentials in Authorization header")
        for route_method, pattern, action in _ROUTES:
            match = re.fullmatch(pattern, path)
            if match is None or route_method != method:
                continue
            names = match.groupdict()
            revision = names.pop("revision", None)
            if "repo" not in names or self._has(names["repo"], revision):
                return action(self, body, **names)
        self.unknown.append(f"{method} {path}")
        return refusal(501, f"The stub does not know {method} {path}")

    def _has(self, repo: str, revision: str | None) -> bool:
        return repo in self.repos and revision in (None, "main", self.repos[repo].sha)


# -------------------------------------------------------------------------------------------------------------- pushing


def create_repo(hub: HubStub, body: bytes) -> Answer:
    wanted = json.loads(body)
    repo_id = f"{wanted['organization'] or hub.user}/{wanted['name']}"
    hub.repos.setdefault(repo_id, Repo())
    return ok({"url": f"{hub.url}/{repo_id}"})


def validate_yaml(hub: HubStub, body: bytes) -> Answer:
    return ok({"errors": [], "warnings": []})


def preupload(hub: HubStub, body: bytes, repo: str) -> Answer:
    paths = [file["path"] for file in json.loads(body)["files"]]
    modes = [{"path": p, "uploadMode": "lfs" if p.endswith(LFS_SUFFIXES) else "regular"} for p in paths]
    return ok({"files": [{**mode, "shouldIgnore": False} for mode in modes]})


def lfs_batch(hub: HubStub, body: bytes, repo: str) -> Answer:
    objects = json.loads(body)["objects"]
    for wanted in objects:
        wanted["actions"] = {"upload": {"href": f"{hub.url}/lfs/{wanted['oid']}"}}
    return ok({"transfer": "basic", "objects": objects})


def put_object(hub: HubStub, body: bytes, oid: str) -> Answer:
    if hashlib.sha256(body).hexdigest() != oid:
        return refusal(400, f"The {len(body)} bytes received do not have the SHA-256 {oid}")
    hub.objects[oid] = body
    return ok({})


def commit(hub: HubStub, body: bytes, repo: str) -> Answer:
    operations = [json.loads(line) for line in body.splitlines()]
    target = hub.repos[repo]
    for operation in operations:
        key, value = operation["key"], operation["value"]
        if key == "header":
            target.commits.append(value["summary"])
        elif key == "file":
            target.files[value["path"]] = base64.b64decode(value["content"])
        elif key == "lfsFile":
            target.files[value["path"]] = hub.objects[value["oid"]]
        else:
            return refusal(501, f"The stub does not know the commit operation {key!r}")
    return ok({"commitUrl": f"{hub.url}/{repo}/commit/{target.sha}", "commitOid": target.sha})


# -------------------------------------------------------------------------------------------------------------- reading


def model_info(hub: HubStub, body: bytes, repo: str) -> Answer:
    found = hub.repos[repo]
    return ok({"id": repo, "sha": found.sha, "tags": [], "siblings": [{"rfilename": path} for path in found.files]})


def list_files(hub: HubStub, body: bytes, repo: str, folder: str | None) -> Answer:
    """All files in a folder and below it, or of the whole repository."""
    files = hub.repos[repo].files
    inside = [path for path in files if folder is None or path.startswith(f"{folder}/")]
    if not inside:
        return refusal(404, f"{folder} does not exist", "EntryNotFound")
    return ok([{"type": "file", "path": p, "size": len(files[p]), "oid": _etag(files[p])} for p in inside])


def resolve(hub: HubStub, body: bytes, repo: str, path: str) -> Answer:
    found = hub.repos[repo]
    if path not in found.files:
        return refusal(404, f"{path} does not exist", "EntryNotFound")
    content = found.files[path]
    return Answer(200, content, {"ETag": f'"{_etag(content)}"', "X-Repo-Commit": found.sha})


def _etag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# ----------------------------------------------------------------------------------------------------------------- HTTP

_REPO = r"(?P<repo>[^/]+/[^/]+)"
_REVISION = r"(?P<revision>[^/]+)"
_ROUTES: list[tuple[str, str, Callable[..., Answer]]] = [
    ("POST", "/api/repos/create", create_repo),
    ("POST", "/api/validate-yaml", validate_yaml),
    ("POST", f"/api/models/{_REPO}/preupload/{_REVISION}", preupload),
    ("POST", rf"/{_REPO}\.git/info/lfs/objects/batch", lfs_batch),
    ("PUT", "/lfs/(?P<oid>[0-9a-f]{64})", put_object),
    ("POST", f"/api/models/{_REPO}/commit/{_REVISION}", commit),
    ("GET", f"/api/models/{_REPO}(?:/revision/{_REVISION})?", model_info),
    ("GET", f"/api/models/{_REPO}/tree/{_REVISION}(?:/(?P<folder>.+))?", list_files),
    ("GET", f"/{_REPO}/resolve/{_REVISION}/(?P<path>.+)", resolve),
]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubStub

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        method = "GET" if self.command == "HEAD" else self.command
        path = unquote(urlsplit(self.path).path)
        answer = self.server.answer(method, path, self.headers.get("Authorization"), body)
        self.send_response(answer.status)
        for name, value in {**answer.headers, "Content-Length": str(len(answer.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_HEAD = do_POST = do_PUT = _serve

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the test's output quiet."""
