"""Serves models and data sets the way the Hugging Face Hub does: python3 hub.py FOLDER.

FOLDER/owner/name/file is answered at /owner/name/resolve/REVISION/file, with ranges, ETag and
x-repo-commit; data sets are in FOLDER/datasets/owner/name, and their files are listed. The token hf_writer may upload. Prints the port on its first line and every request after it.
"""

import base64
import hashlib
import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(sys.argv[1])
REVISIONS = ("main", "v1")


class Hub(BaseHTTPRequestHandler):
    def do_GET(self):
        print(self.path if self.command == "GET" else f"{self.path} ({self.command})", flush=True)
        info = re.fullmatch(r"/api/models/([\w.-]+/[\w.-]+)/revision/([\w.-]+)", self.path)
        if info and info[2] in REVISIONS and (ROOT / info[1]).is_dir():
            self.answer({"id": info[1]})
            return
        tree = re.fullmatch(r"/api/(datasets/[\w.-]+/[\w.-]+)/tree/([\w.-]+)(\?.*)?", self.path)
        if tree and tree[2] in REVISIONS and (ROOT / tree[1]).is_dir():
            files = sorted(path for path in (ROOT / tree[1]).rglob("*") if path.is_file())
            self.answer([{"type": "file", "oid": "0" * 40, "size": path.stat().st_size,
                          "path": path.relative_to(ROOT / tree[1]).as_posix()} for path in files])
            return
        match = re.fullmatch(r"/((?:datasets/)?[\w.-]+/[\w.-]+)/resolve/([\w.-]+)/(.+)", self.path)
        path = ROOT / match[1] / match[3] if match else None
        if path is None or match[2] not in REVISIONS or not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first, last = (int(wanted[1]), int(wanted[2] or len(data) - 1)) if wanted else (0, len(data) - 1)
        part = data[first:last + 1]
        self.send_response(206 if wanted else 200)
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        self.send_header("x-repo-commit", hashlib.sha1(match[1].encode()).hexdigest())
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(part)

    do_HEAD = do_GET

    def do_POST(self):
        """What `push` asks: make a repository, which files are large, and the commit itself."""
        print(self.path, flush=True)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Authorization") != "Bearer hf_writer":
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        lines = [json.loads(line) for line in body.decode().splitlines()]
        if self.path == "/api/repos/create":
            answer = {"url": f"http://hub/{lines[0]['organization']}/{lines[0]['name']}"}
        elif "/preupload/" in self.path:
            files = [{"path": file["path"], "uploadMode": "regular"} for file in lines[0]["files"]]
            answer = {"files": files}
        else:
            repo = re.fullmatch(r"/api/models/([\w.-]+/[\w.-]+)/commit/main", self.path)[1]
            for line in lines:
                if line["key"] == "file":
                    path = ROOT / repo / line["value"]["path"]
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(base64.b64decode(line["value"]["content"]))
            answer = {"commitUrl": f"http://hub/{repo}/commit/1", "commitOid": "1", "success": True}
        self.answer(answer)

    def answer(self, value):
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
print(server.server_port, flush=True)
server.serve_forever()
