"""Serves model folders the way the Hugging Face Hub does: python3 hub.py FOLDER.

FOLDER/owner/name/file is answered at /owner/name/resolve/REVISION/file, with ranges, ETag and
x-repo-commit. Prints the port on its first line and every request after it.
"""

import hashlib
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(sys.argv[1])


class Hub(BaseHTTPRequestHandler):
    def do_GET(self):
        print(self.path, flush=True)
        match = re.fullmatch(r"/([\w.-]+/[\w.-]+)/resolve/([\w.-]+)/(.+)", self.path)
        path = ROOT / match[1] / match[3] if match else None
        if path is None or match[2] not in ("main", "v1") or not path.is_file():
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
        self.wfile.write(part)

    def log_message(self, *args):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
print(server.server_port, flush=True)
server.serve_forever()
