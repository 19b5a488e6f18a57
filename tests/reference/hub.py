"""Serves models and data sets the way the Hugging Face Hub does: python3 hub.py FOLDER.

FOLDER/owner/name/file is answered at /owner/name/resolve/REVISION/file with git's sum as its ETag, and
weights, as large files, with their SHA-256 and a redirect to another server, which refuses the token; data
sets are in FOLDER/datasets/owner/name. The token hf_writer may upload: weights as git-lfs does, in
parts where they are long, all else in the commit. Prints the port on its first line and every request
after it.
"""

import base64
import hashlib
import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(sys.argv[1])
REVISIONS = ("main", "v1")
REPO = r"((?:datasets/)?[\w.-]+/[\w.-]+)"
LARGE = (".safetensors", ".bin", ".parquet")
PART = 16384
# Large files that were sent, by their sum, and parts of them.
objects, parts = {}, {}


def commit(repo):
    return hashlib.sha1(repo.encode()).hexdigest()


def tag(data, large):
    if large:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def files(repo):
    return sorted(path for path in (ROOT / repo).rglob("*") if path.is_file())


class Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        print(self.path if self.command == "GET" else f"{self.path} ({self.command})", flush=True)
        path, _, query = self.path.partition("?")
        if match := re.fullmatch(r"/api/models/" + REPO + r"/revision/([^/]+)", path):
            if self.has(match[1], match[2]):
                siblings = [{"rfilename": path.relative_to(ROOT / match[1]).as_posix(),
                             "size": path.stat().st_size} for path in files(match[1])]
                self.answer({"id": match[1], "sha": commit(match[1]), "siblings": siblings})
        elif match := re.fullmatch("/api/(?:models/)?" + REPO + r"/tree/([^/]+)", path):
            if self.has(match[1], match[2]):
                # Few files a page, so that pages are followed.
                names, cursor = files(match[1]), re.search(r"cursor=(\d+)", query)
                at = int(cursor[1]) if cursor else 0
                page = [self.entry(match[1], path) for path in names[at:at + 2]]
                link = f"<{self.host()}{path}?recursive=true&cursor={at + 2}>; rel=\"next\""
                self.answer(page, {"Link": link} if at + 2 < len(names) else {})
        elif match := re.fullmatch("/" + REPO + r"/resolve/([^/]+)/(.+)", path):
            if self.has(match[1], match[2]):
                self.resolve(match[1], ROOT / match[1] / unquote(match[3]))
        elif (match := re.fullmatch("/cdn/" + REPO + "/(.+)", path)) and not self.headers["Authorization"]:
            self.give((ROOT / match[1] / unquote(match[2])).read_bytes(), {"ETag": '"elsewhere-1"'})
        else:
            self.refuse(404)

    do_HEAD = do_GET

    def has(self, repo, revision):
        """Whether there is such a repository at a revision; says so where there is not."""
        if not (ROOT / repo).is_dir():
            self.refuse(401, "RepoNotFound", "Invalid username or password.")
        elif unquote(revision) not in (*REVISIONS, commit(repo)):
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {unquote(revision)}")
        else:
            return True
        return False

    def host(self):
        return f"http://{self.headers['Host']}"

    def entry(self, repo, path):
        """A file as lists have it."""
        data = path.read_bytes()
        large = {"lfs": {"oid": tag(data, True), "size": len(data), "pointerSize": 134}}
        return {"type": "file", "oid": tag(data, False), "size": len(data),
                "path": path.relative_to(ROOT / repo).as_posix(),
                **(large if path.name.endswith(LARGE) else {})}

    def resolve(self, repo, path):
        headers = {"X-Repo-Commit": commit(repo)}
        if not path.is_file():
            self.refuse(404, "EntryNotFound", "Entry not found", headers)
            return
        data = path.read_bytes()
        if path.name.endswith(LARGE):
            place = path.relative_to(ROOT / repo).as_posix()
            headers |= {"X-Linked-Etag": f'"{tag(data, True)}"', "X-Linked-Size": str(len(data)),
                        "Location": f"{STORE}/cdn/{repo}/{place}?signed"}
            self.answer(None, headers, 302)
        else:
            self.give(data, headers | {"ETag": f'"{tag(data, False)}"'})

    def give(self, data, headers):
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first, last = (int(wanted[1]), int(wanted[2] or len(data) - 1)) if wanted else (0, len(data) - 1)
        part = data[first:last + 1]
        self.send_response(206 if wanted else 200)
        if wanted:
            headers["Content-Range"] = f"bytes {first}-{first + len(part) - 1}/{len(data)}"
        self.finish_headers(headers, part)

    def do_PUT(self):
        print(f"{self.path} (PUT)", flush=True)
        data = self.rfile.read(int(self.headers["Content-Length"]))
        match = re.fullmatch(r"/store/(\w+)/(\d+)\?signed", self.path)
        if self.headers["Authorization"]:
            self.refuse(400)
            return
        parts.setdefault(match[1], {})[int(match[2])] = data
        # The whole at once, where there are no parts.
        if match[2] == "0":
            objects[match[1]] = data
        self.answer(None, {"ETag": f'"{hashlib.md5(data).hexdigest()}"'})

    def do_POST(self):
        """What `push` asks: make a repository, which files are large, their places, and the commit."""
        print(self.path, flush=True)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if "/complete/" in self.path:
            # Its address is the permission.
            oid, body = self.path.split("/")[-1].removesuffix("?signed"), json.loads(body)
            kept = [parts[oid][part["partNumber"]] for part in body["parts"]]
            whole = all(part["etag"] == f'"{hashlib.md5(data).hexdigest()}"'
                        for part, data in zip(body["parts"], kept))
            objects[oid] = b"".join(kept)
            self.answer(None) if whole and oid == body["oid"] else self.refuse(400)
            return
        if self.headers.get("Authorization") != "Bearer hf_writer":
            self.refuse(401, message="Invalid username or password.")
            return
        lines = [json.loads(line) for line in body.decode().splitlines()]
        if self.path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif self.path == "/api/repos/create":
            repo = f"{lines[0]['organization']}/{lines[0]['name']}"
            if (ROOT / repo).is_dir():
                self.refuse(409, message="You already created this model repo")
                return
            self.answer({"url": f"{self.host()}/{repo}"})
        elif "/preupload/" in self.path:
            self.answer({"files": [
                {"path": file["path"], "shouldIgnore": False,
                 "uploadMode": "lfs" if file["path"].endswith(LARGE) else "regular"}
                for file in lines[0]["files"]]})
        elif self.path.endswith(".git/info/lfs/objects/batch"):
            self.answer({"transfer": "basic", "objects": [self.place(one) for one in lines[0]["objects"]]})
        elif self.path == "/verify":
            whole = tag(objects[lines[0]["oid"]], True) == lines[0]["oid"]
            self.answer({}) if whole else self.refuse(400)
        else:
            repo = re.fullmatch(r"/api/models/([\w.-]+/[\w.-]+)/commit/main(?:\?.*)?", self.path)[1]
            for line in lines:
                value = line["value"]
                if line["key"] == "file":
                    self.write(repo, value["path"], base64.b64decode(value["content"]))
                elif line["key"] == "lfsFile":
                    self.write(repo, value["path"], objects[value["oid"]])
            url = f"{self.host()}/{repo}/commit/{commit(repo)}"
            self.answer({"commitUrl": url, "commitOid": commit(repo), "success": True})

    def place(self, one):
        """Where a large file is to be sent; in parts where it is long."""
        oid, size, host = one["oid"], one["size"], self.host()
        if oid in objects:
            return {"oid": oid, "size": size}
        verify = {"href": f"{host}/verify"}
        if size <= PART:
            return {"oid": oid, "size": size,
                    "actions": {"upload": {"href": f"{STORE}/store/{oid}/0?signed"}, "verify": verify}}
        count = -(-size // PART)
        header = {f"{part:05}": f"{STORE}/store/{oid}/{part}?signed" for part in range(1, count + 1)}
        upload = {"href": f"{host}/complete/{oid}?signed", "header": {"chunk_size": str(PART), **header}}
        return {"oid": oid, "size": size, "actions": {"upload": upload, "verify": verify}}

    def write(self, repo, name, data):
        path = ROOT / repo / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def refuse(self, status, code="", message="", headers={}):
        named = {"X-Error-Code": code, "X-Error-Message": message}
        self.answer(None, {**headers, **{name: text for name, text in named.items() if text}}, status)

    def answer(self, value, headers={}, status=200):
        self.send_response(status)
        if value is not None:
            headers = {"Content-Type": "application/json", **headers}
        self.finish_headers(headers, b"" if value is None else json.dumps(value).encode())

    def finish_headers(self, headers, body):
        for name, text in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args):
        pass


store, server = (ThreadingHTTPServer(("127.0.0.1", 0), Hub) for _ in range(2))
STORE = f"http://127.0.0.1:{store.server_port}"
threading.Thread(target=store.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
server.serve_forever()
