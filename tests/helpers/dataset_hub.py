"""The stub of the Hub, for data sets: their addresses become those of models, which it knows."""

import json
import re

from hub_stub import Answer, HubStub, ok, refusal


class DatasetHub(HubStub):
    def answer(self, method: str, path: str, authorization: str | None, body: bytes) -> Answer:
        path = re.sub("^/api/datasets/", "/api/models/", path)
        path = re.sub("^/datasets/", "/", path)
        asked = re.fullmatch("/api/models/([^/]+/[^/]+)(?:/(preupload|tree)/[^/]+(?:/(.+))?|/.+)?", path)
        if asked is None:
            return super().answer(method, path, authorization, body)
        repo, question, folder = asked.groups()
        if repo not in self.repos:
            return refusal(404, "Repository not found", "RepoNotFound")
        if question == "preupload":
            return preupload(body)
        if question == "tree":
            found = children(self.repos[repo].files, f"{folder}/" if folder else "")
            return ok(found) if found or folder is None else refusal(404, f"{folder} does not exist", "EntryNotFound")
        return super().answer(method, path, authorization, body)


def preupload(body: bytes) -> Answer:
    """Parquet files go by LFS, as the Hub's default `.gitattributes` says."""
    paths = [file["path"] for file in json.loads(body)["files"]]
    modes = [(path, "lfs" if path.endswith(".parquet") else "regular") for path in paths]
    return ok({"files": [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes]})


def children(files: dict[str, bytes], folder: str) -> list[dict[str, object]]:
    """The files and folders in a folder, without what is in those."""
    inside = [path.removeprefix(folder) for path in files if path.startswith(folder)]
    folders = {path.split("/")[0] for path in inside if "/" in path}
    return [{"type": "directory", "path": folder + name, "oid": name} for name in sorted(folders)] + [
        {"type": "file", "path": folder + name, "oid": name, "size": len(files[folder + name])}
        for name in inside
        if "/" not in name
    ]
