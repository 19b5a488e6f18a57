#!/usr/bin/env python3
"""`kiln embed`, `index` and `search` over the object stores of train-native/SCALE.md, each a real server on loopback:
`stores.py KILN s3|gs|az|http ...`. tests/stores.sh installs the servers and says what they are."""

import base64
import gzip
import hashlib
import hmac
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree as xml
from datetime import datetime, timezone
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODEL = HERE.parents[1] / "web-demo/kiln-mini.kiln"
CACHE = Path(os.environ.get("KILN_CACHE") or Path.home() / ".cache/kiln").absolute()
# Seconds of a command or of a server's start; more are a hang.
LONGEST = 300
ACCOUNT, SECRET = "kiln", base64.b64encode(b"only for these tests").decode()
# moto asks for a signature's form alone.
SIGNED = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
FILES, ROWS = 24, 60


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def check(holds, *said):
    if not holds:
        sys.exit("error: " + " ".join(str(part) for part in said))


class Server:
    """A server's process, ended with the block."""

    def __init__(self, port, command, **variables):
        self.port, self.command, self.variables = port, command, variables

    def __enter__(self):
        self.log = tempfile.TemporaryFile()
        self.child = subprocess.Popen(
            [str(part) for part in self.command], env={**os.environ, **self.variables}, stdout=self.log, stderr=self.log
        )
        start = time.monotonic()
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return self
            except OSError:
                if self.child.poll() is not None or time.monotonic() - start > LONGEST:
                    self.log.seek(0)
                    sys.exit(f"error: {self.command[0]} does not start: {self.log.read().decode()[-2000:]}")
                time.sleep(0.1)

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()


class S3:
    """moto, which knows S3; it looks at no key."""

    name, address = "s3", "s3://bucket"
    missing = "s3://nothing"

    def __init__(self, _work):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def server(self):
        command = [CACHE / "moto/bin/moto_server", "-H", "127.0.0.1", "-p", self.port]
        return Server(self.port, command, S3_UPLOAD_PART_MIN_SIZE="1024")

    def variables(self, port=None):
        return {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT": f"http://127.0.0.1:{port or self.port}",
            "AWS_ALLOW_HTTP": "true",
        }

    def refused(self):
        """A server that knows nobody, and its variables."""
        port = free_port()
        command = [CACHE / "moto/bin/moto_server", "-H", "127.0.0.1", "-p", port]
        return Server(port, command, INITIAL_NO_AUTH_ACTION_COUNT="0"), self.variables(port)

    def headers(self, _method, _path, _query, _length):
        return {"Authorization": SIGNED}

    def ask(self, method, path="", query=None, body=b""):
        query = query or {}
        url = f"{self.url}/bucket/{urllib.parse.quote(path)}".rstrip("/")
        url += "?" + urllib.parse.urlencode(query) if query else ""
        # Else a form is read.
        headers = {"Content-Type": "application/octet-stream", **self.headers(method, path, query, len(body))}
        request = urllib.request.Request(url, data=body if method == "PUT" else None, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=LONGEST) as answer:
            return answer.read()

    make = {}

    def create(self):
        self.ask("PUT", query=self.make)

    def put(self, path, body):
        self.ask("PUT", path, body=body)

    def keys(self, prefix):
        listing = xml.fromstring(self.ask("GET", query={"list-type": "2", "prefix": prefix}))
        return [one.text for one in listing.iter() if one.tag.endswith("}Key") or one.tag == "Key"]

    def get(self, path):
        return self.ask("GET", path)


class Google(S3):
    name, address = "gs", "gs://bucket"
    missing = "gs://nothing"

    def __init__(self, work):
        super().__init__(work)
        self.work = work

    def server(self):
        return Server(self.port, [CACHE / "moto/bin/python", HERE / "gs.py", self.port], S3_UPLOAD_PART_MIN_SIZE="1024")

    def variables(self, port=None, **changed):
        account = {
            "gcs_base_url": f"http://127.0.0.1:{port or self.port}",
            "disable_oauth": True,
            "private_key": "",
            "private_key_id": "",
            "client_email": "",
            **changed,
        }
        file = self.work / f"account-{len(list(self.work.glob('account-*')))}.json"
        file.write_text(json.dumps(account))
        return {"GOOGLE_SERVICE_ACCOUNT": str(file)}

    def refused(self):
        # Where tokens come from is written in object_store, so that no server here gives any.
        return None, self.variables(disable_oauth=False, private_key="no key")

    def headers(self, *_):
        return {}


class Azure(S3):
    name, address = "az", "az://bucket"
    missing = "az://nothing"

    def __init__(self, work):
        super().__init__(work)
        self.url += f"/{ACCOUNT}"

    def server(self):
        program = CACHE / "stores/node_modules/.bin/azurite-blob"
        command = [program, "--blobPort", self.port, "--inMemoryPersistence", "--disableTelemetry", "--silent"]
        return Server(self.port, command, AZURITE_ACCOUNTS=f"{ACCOUNT}:{SECRET}")

    def variables(self, port=None, key=SECRET):
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": key,
            "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port or self.port}/{ACCOUNT}",
            "AZURE_ALLOW_HTTP": "true",
        }

    def emulated(self):
        return {
            "AZURE_STORAGE_USE_EMULATOR": "true",
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": SECRET,
            "AZURITE_BLOB_STORAGE_URL": f"http://127.0.0.1:{self.port}",
        }

    def refused(self):
        return None, self.variables(key=base64.b64encode(b"another").decode())

    make = {"restype": "container"}

    def headers(self, method, path, query, length):
        """https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key"""
        own = {"x-ms-date": datetime.now(timezone.utc).strftime("%a, %d %b %Y %H:%M:%S GMT"), "x-ms-version": "2023-11-03"}
        if path and method == "PUT":
            own["x-ms-blob-type"] = "BlockBlob"
        lines = [method, "", "", str(length or ""), "", "application/octet-stream", "", "", "", "", "", ""]
        lines += [f"{name}:{value}" for name, value in sorted(own.items())]
        where = f"/{ACCOUNT}/{ACCOUNT}/bucket/{urllib.parse.quote(path)}".rstrip("/")
        lines.append("\n".join([where, *(f"{name}:{value}" for name, value in sorted(query.items()))]))
        signature = hmac.digest(base64.b64decode(SECRET), "\n".join(lines).encode(), hashlib.sha256)
        return {**own, "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}"}

    def keys(self, prefix):
        listing = xml.fromstring(self.ask("GET", query={"restype": "container", "comp": "list", "prefix": prefix}))
        return [one.text for one in listing.iterfind("Blobs/Blob/Name")]


class Dav:
    """wsgidav: `/open` to all, `/closed` to one user, whom object_store cannot name."""

    name = "http"

    def __init__(self, work):
        self.port, self.root = free_port(), work / "dav"
        self.root.mkdir()
        self.settings = work / "dav.json"
        share = {"root": str(self.root), "readonly": True}
        self.settings.write_text(json.dumps({
            "host": "127.0.0.1",
            "port": self.port,
            "server": "cheroot",
            "provider_mapping": {"/open": share, "/closed": share},
            "simple_dc": {"user_mapping": {"/open": True, "/closed": {ACCOUNT: {"password": "right"}}}},
            "http_authenticator": {"accept_basic": True, "accept_digest": False, "default_to_digest": False},
        }))
        self.address = f"http://127.0.0.1:{self.port}/open"
        self.missing = f"{self.address}/nothing"

    def closed(self, user=""):
        return f"http://{user}127.0.0.1:{self.port}/closed/docs/"

    def server(self):
        return Server(self.port, [CACHE / "stores/venv/bin/wsgidav", "--config", self.settings])

    def variables(self):
        return {}

    def create(self):
        pass

    def put(self, path, body):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)


class Kiln:
    def __init__(self, program, variables):
        # Else one of this machine's own accounts might be asked.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "AZURE_", "AZURITE_", "GOOGLE_"))}
        self.program, self.variables = program, {**kept, "KILN_UPLOAD_PART": "16384", "RAYON_NUM_THREADS": "1", **variables}

    def start(self, *args):
        command = [self.program, "--device", "cpu", *(str(part) for part in args)]
        return subprocess.Popen(command, env=self.variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *args):
        child = self.start(*args)
        out, said = child.communicate(timeout=LONGEST)
        check(child.returncode == 0, args, said)
        return out

    def fails(self, words, *args):
        child = self.start(*args)
        _, said = child.communicate(timeout=LONGEST)
        check(child.returncode != 0, args, "is done, and should not be")
        check(said.startswith("error: ") and said.count("\n") == 1 and words in said, args, "says", said)
        print(f"   {said.strip()[:300]}")
        return said

    def embed(self, source, target, *more):
        return ("embed", "--json", "--model", MODEL, "--input", source, "--output", target, *more)

    def job(self, source, target, *more):
        return json.loads(self.run(*self.embed(source, target, *more)))


def inputs(kiln, folder):
    """Lines of JSON, also packed and in a folder with a name that is written otherwise in an address; and Parquet."""

    def lines(number):
        texts = (f"passage {row} of file {number} says what lighthouse {row * 7} is for" for row in range(ROWS))
        return "".join(json.dumps({"id": f"{number}-{row}", "text": text}) + "\n" for row, text in enumerate(texts))

    (folder / "below it é").mkdir(parents=True)
    for number in range(FILES - 2):
        (folder / f"part-{number:02}.jsonl").write_text(lines(number))
    (folder / "below it é/packed+1.jsonl.gz").write_bytes(gzip.compress(lines(FILES - 2).encode(), mtime=0))
    rows = folder.parent / "rows.jsonl"
    rows.write_text(lines(FILES - 1))
    # Its columns are the text's, too.
    kiln.run("embed", "--quiet", "--model", MODEL, "--input", rows, "--output", folder / "rows.parquet")


def content(files):
    """Of an output's files by their names; a store's version of an input is its own."""
    kept = {}
    for name, data in files:
        if name.startswith("_kiln/") and name != "_kiln/settings.json":
            line = json.loads(data)
            check(line.pop("input_version"), name, "has no version")
            data = json.dumps(line).encode()
        kept[name] = data
    return kept


def of_folder(folder):
    files = (file for file in sorted(folder.rglob("*")) if file.is_file() and not file.name.startswith("."))
    return content((file.relative_to(folder).as_posix(), file.read_bytes()) for file in files)


def run(program, kind):
    work = Path(tempfile.mkdtemp())
    # What is written where it should not be goes away, too.
    os.chdir(work)
    try:
        store = kind(work)
        with store.server():
            print(f"== {store.name}")
            tried(Kiln(program, store.variables()), store, work)
    finally:
        shutil.rmtree(work)


def tried(kiln, store, work):
    reads_alone = isinstance(store, Dav)
    docs, here = work / "docs", work / "here"
    inputs(kiln, docs)
    check(kiln.job(docs, f"{here}/")["files"] == FILES, "not all files")
    whole = of_folder(here)
    store.create()
    for file in docs.rglob("*"):
        if file.is_file():
            store.put(f"docs/{file.relative_to(docs).as_posix()}", file.read_bytes())

    def target(name):
        return f"{work}/{name}/" if reads_alone else f"{store.address}/{name}/"

    def written(name):
        if reads_alone:
            return of_folder(work / name)
        return content((key.split("/", 1)[1], store.get(key)) for key in store.keys(f"{name}/"))

    def same(name, expected):
        got = written(name)
        check(got.keys() == expected.keys(), name, "has other files:", sorted(got.keys() ^ expected.keys()))
        other = [file for file in got if got[file] != expected[file]]
        check(not other, name, "has other bytes than a folder's:", other)

    print("   a folder, in two shards at once")
    source = f"{store.address}/docs/"
    both = [kiln.start(*kiln.embed(source, target("out"), "--shard", f"{index}/2")) for index in range(2)]
    ended = [child.communicate(timeout=LONGEST) for child in both]
    check(all(child.returncode == 0 for child in both), ended)
    counts = [json.loads(out) for out, _ in ended]
    check([count["files"] for count in counts] == [FILES / 2] * 2, counts)
    check(sum(count["texts"] for count in counts) == FILES * ROWS, counts)
    same("out", whole)
    check(kiln.job(source, target("out"))["skipped"] == FILES, "a second run does not skip all")
    check(kiln.job(source, target("out"), "--verify")["skipped"] == FILES, "a look at all finds damage")

    print("   patterns, and one address")
    patterns = [("part-*.jsonl", FILES - 2), ("**/*.gz", 1), ("part-00.jsonl", 1), ("rows.parquet", 1)]
    for number, (pattern, files) in enumerate(patterns):
        counts = kiln.job(f"{store.address}/docs/{pattern}", target(f"by-{number}"))
        check((counts["files"], counts["texts"]) == (files, files * ROWS), pattern, counts)
        got = written(f"by-{number}")
        other = [file for file in got if got[file] != whole[file]]
        check(len(got) == 2 * files + 1 and not other, pattern, "has other bytes:", other)

    print("   killed in the middle, and once more")
    child = kiln.start(*kiln.embed(source, target("killed")))
    lines = iter(child.stderr.readline, "")
    check(any(line.startswith("[3/") for line in lines), "it ended before it was killed")
    child.send_signal(signal.SIGKILL)
    child.communicate()
    check(child.returncode == -signal.SIGKILL, "it ended before it was killed")
    counts = kiln.job(source, target("killed"))
    check(3 <= counts["skipped"] < FILES and not counts["damaged"], counts)
    same("killed", whole)

    print("   an index, and a search")
    vectors = f"{store.address}/out/"
    if reads_alone:
        for file in (work / "out").rglob("*"):
            if file.is_file():
                store.put(f"out/{file.relative_to(work / 'out').as_posix()}", file.read_bytes())
    asked = ("search", "--json", "--model", MODEL, "--query", "what is lighthouse 14 for", "--top-k", "3", "--index")
    exact = kiln.run(*asked, here)
    check(kiln.run(*asked, vectors) == exact and "passage" in exact, exact)
    check(kiln.run(*asked, f"{store.address}/out/part-*.parquet"), "nothing is found")
    index = json.loads(kiln.run("index", "--json", "--input", vectors, "--output", work / "index"))
    kiln.run("index", "--json", "--input", here, "--output", work / "index-here")
    check(index["rows"] == FILES * ROWS, index)
    check(kiln.run(*asked, work / "index") == kiln.run(*asked, work / "index-here"), "another index than a folder's")

    if isinstance(store, Azure):
        print("   by the emulator's variables")
        emulated = Kiln(kiln.program, store.emulated())
        check(emulated.job(source, target("out"))["skipped"] == FILES, "it does not skip all")
    if reads_alone:
        print("   one file from a server without WebDAV")
        plain = free_port()
        with Server(plain, [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", store.root, plain]):
            one = f"http://127.0.0.1:{plain}/docs"
            check(kiln.job(f"{one}/part-00.jsonl", target("plain"))["texts"] == ROWS, "not all texts")
            kiln.fails(one, *kiln.embed(f"{one}/", target("none"), "--quiet"))

    print("   what is wrong, in a line")
    if reads_alone:
        kiln.fails("401", *kiln.embed(store.closed(), target("none"), "--quiet"))
        kiln.fails("has no file of texts", *kiln.embed(f"{store.missing}/docs/", target("none"), "--quiet"))
        kiln.fails("vectors not written", *kiln.embed(source, f"{store.address}/none/", "--quiet"))
        nobody = f"http://127.0.0.1:{free_port()}/docs"
        kiln.fails(nobody, *kiln.embed(nobody, target("none"), "--quiet"))
        said = kiln.fails("takes no user", *kiln.embed(store.closed(f"{ACCOUNT}:right@"), target("none"), "--quiet"))
        check("right" not in said, "a message has the password:", said)
        return
    server, variables = store.refused()
    failing = kiln.embed(source, target("none"), "--quiet")
    if server:
        with server:
            Kiln(kiln.program, variables).fails(source[:-1], *failing)
    else:
        Kiln(kiln.program, variables).fails(source[:-1], *failing)
    kiln.fails(f"{store.missing}/docs", *kiln.embed(f"{store.missing}/docs/", target("none"), "--quiet"))
    kiln.fails(f"{store.missing}/out", *kiln.embed(source, f"{store.missing}/out/", "--quiet"))
    kiln.fails("has no file of texts", *kiln.embed(f"{store.address}/nothing/", target("none"), "--quiet"))
    kiln.fails("name a folder", "index", "--quiet", "--input", here, "--output", f"{store.address}/index")
    Kiln(kiln.program, store.variables(port=free_port())).fails(source[:-1], *failing)
    check(not store.keys("none/"), "a failed job has written something:", store.keys("none/"))


if __name__ == "__main__":
    program = Path(sys.argv[1]).absolute()
    kinds = {"s3": S3, "gs": Google, "az": Azure, "http": Dav}
    for name in sys.argv[2:] or kinds:
        check(name in kinds, f"{name}: is none of {', '.join(kinds)}")
        run(program, kinds[name])
