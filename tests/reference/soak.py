"""Good and hostile clients of one server, for a time; what became of them as JSON.

usage: soak.py BINARY MODEL SECONDS    (tests/soak.sh calls it; the standard library is enough)

Every vector that a good client gets is compared with the one that the server gave before the attack.
"""

import atexit
import contextlib
import http.client
import json
import multiprocessing
import os
import pathlib
import random
import re
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time

LIMIT = 1_000_000_000
CLIENTS = 3
# The model is in int8, and its vectors the same bits whatever stands beside them.
CLOSE = 0.0
TEXTS = [
    "How do I open a bank account?",
    "The lighthouse keeper counted the ships that passed before dawn.",
    "fn main() { println!(\"{}\", 6 * 7); }",
    "Ein Löffel Honig, 蜂蜜一匙, une cuillère de miel",
    "the river floods the lower streets",
    "a violinist from a small town " * 12,
    "",
    "petals of pale blue in wet meadows, seen from the road that leads up to the pass " * 4,
]


def percentile(values, share):
    values = sorted(values)
    return round(values[min(len(values) - 1, int(share * len(values)))], 1) if values else None


class Server:
    def __init__(self, binary, model):
        self.group = control_group()
        command = [binary, "--device", "cpu", "--json", "--quiet", "serve", "-m", model, "--port", "0"]
        if self.group:
            # In the group before it is the server.
            command = ["sh", "-c", 'echo $$ > "$0/cgroup.procs"; exec "$@"', str(self.group), *command]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.url = json.loads(self.process.stdout.readline())["url"]
        self.host, port = self.url.removeprefix("http://").rsplit(":", 1)
        self.port = int(port)

    def resident(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        return int(found[1]) / 1000 if found else None

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
        try:
            code = self.process.wait(90)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = "did not end"
        if self.group:
            time.sleep(0.5)
            with contextlib.suppress(OSError):
                self.group.rmdir()
            self.group = None
        return code


def control_group():
    """A control group with the limit (of either version), or None."""
    root = pathlib.Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        parent, limits = root, {"memory.max": LIMIT, "memory.swap.max": 0}
    else:
        parent, limits = root / "memory", {"memory.limit_in_bytes": LIMIT}
    group = parent / f"kiln-soak-{os.getpid()}"
    try:
        controllers = parent / "cgroup.subtree_control"
        if controllers.exists() and "memory" not in controllers.read_text().split():
            controllers.write_text("+memory")
        group.mkdir()
        for name, limit in limits.items():
            if (group / name).exists():
                (group / name).write_text(str(limit))
        return group
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        return None


def peak_of(group):
    """The most that a control group held, the system's buffers for it included, in MB."""
    for name in ("memory.peak", "memory.max_usage_in_bytes"):
        with contextlib.suppress(OSError, AttributeError, TypeError):
            return int((group / name).read_text()) / 1e6
    return None


# Good clients.


def ask(address, path, body, timeout=90):
    connection = http.client.HTTPConnection(*address, timeout=timeout)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def good(address, known, until, seen, lock):
    draw = random.Random(threading.get_ident())
    while time.time() < until:
        chosen = [draw.randrange(len(TEXTS)) for _ in range(draw.choice([1, 1, 1, 4, 16]))]
        texts = [TEXTS[at] for at in chosen]
        openai = draw.random() < 0.5
        start = time.time()
        refused, outcome = 0, "lost"
        difference = 0.0
        reason = None
        try:
            for _ in range(200):
                if openai:
                    status, body = ask(address, "/v1/embeddings", {"input": texts})
                else:
                    status, body = ask(address, "/embed", {"inputs": texts})
                if status != 429:
                    break
                refused += 1
                time.sleep(0.1)
            if status == 200:
                vectors = [entry["embedding"] for entry in body["data"]] if openai else body
                differences = [
                    abs(a - b)
                    for at, vector in zip(chosen, vectors, strict=True)
                    for a, b in zip(known[at], vector, strict=True)
                ]
                difference = max(differences)
                outcome = "answered" if difference <= CLOSE else "wrong"
            elif status == 503:
                outcome, reason = "timed_out", body
            else:
                reason = f"{status}: {body}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = repr(error)
            time.sleep(1)
        with lock:
            seen["sent"] += 1
            seen["refused"] += refused
            seen[outcome] += 1
            seen["difference"] = max(seen["difference"], difference)
            if outcome == "answered":
                seen["ms"].append((time.time() - start) * 1000)
            elif len(seen["reasons"]) < 10:
                seen["reasons"].append(str(reason)[:200])


def health(address, until, seen, lock):
    """A new connection each second has to be answered."""
    while time.time() < until:
        start, fine = time.time(), False
        connection = http.client.HTTPConnection(*address, timeout=30)
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/health")
            fine = connection.getresponse().status == 200
        connection.close()
        with lock:
            seen["health"].append((time.time() - start) * 1000)
            seen["health_lost"] += not fine
        time.sleep(1)


# Hostile clients: each sends one round of a kind, and returns how many requests that were.


def head(length, path="/embed"):
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


def connect(address, timeout=20):
    return socket.create_connection(address, timeout=timeout)


def status_of(stream):
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(stream.recv(65536).split(b" ", 2)[1])
    return None


def half_sent(address, draw):
    streams = []
    for _ in range(30):
        with contextlib.suppress(OSError):
            stream = connect(address)
            streams.append(stream)
            stream.sendall(head(7_900_000) + b'{"inputs": "')
            stream.setblocking(False)
    block = b"a" * 65536
    for _ in range(30):
        for stream in streams:
            with contextlib.suppress(OSError):
                for _ in range(16):
                    stream.send(block)
        time.sleep(0.1)
    time.sleep(draw.uniform(0, 8))
    for stream in streams:
        stream.close()
    return len(streams)


def slow_heads(address, draw):
    streams = []
    for _ in range(300):
        with contextlib.suppress(OSError):
            stream = connect(address)
            streams.append(stream)
            stream.sendall(b"POST /embed HTTP/1.1\r\nHost: local")
    for _ in range(8):
        time.sleep(1)
        for stream in streams:
            with contextlib.suppress(OSError):
                stream.sendall(b"x")
    for stream in streams:
        stream.close()
    return len(streams)


def long_texts(address, draw):
    kinds = ["a", "river ", "蜂", "\\u0000", "a\\n", "\U0001f6a2", "é"]
    text = draw.choice(kinds).encode()
    body = b'{"inputs": "' + text * (7_800_000 // len(text)) + b'"}'
    with contextlib.suppress(OSError), connect(address, 90) as stream:
        stream.sendall(head(len(body)) + body)
        status_of(stream)
    return 1


def prompt_bombs(address, draw):
    for size in (100_000, 7_000):
        body = json.dumps({"input": ["a"] * 2048, "prompt": "river " * (size // 6)}).encode()
        with contextlib.suppress(OSError), connect(address, 90) as stream:
            stream.sendall(head(len(body), "/v1/embeddings") + body)
            status_of(stream)
    return 2


def abandoned(address, draw):
    for _ in range(8):
        texts = [f"{at} ships on the river " * draw.choice([1, 40]) for at in range(2048)]
        body = json.dumps({"inputs": texts}).encode()
        with contextlib.suppress(OSError):
            stream = connect(address)
            if draw.random() < 0.5:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stream.sendall(head(len(body)) + body)
            time.sleep(draw.uniform(0, 0.3))
            stream.close()
    return 8


def unread(address, draw):
    body = json.dumps({"inputs": [f"ship {at}" for at in range(2048)]}).encode()
    streams = []
    for _ in range(10):
        with contextlib.suppress(OSError):
            stream = socket.socket()
            streams.append(stream)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            stream.settimeout(20)
            stream.connect(address)
            stream.sendall(head(len(body)) + body)
    time.sleep(draw.uniform(5, 15))
    for stream in streams:
        stream.close()
    return len(streams)


def garbage(address, draw):
    bodies = [
        b'{"input": [' + b'"",' * 2_000_000 + b'""]}',
        b'{"input": [' + b"1," * 3_000_000 + b"1]}",
        b'{"input": ' + b"[" * 1_000_000,
        b'{"inputs": "\xff\xfe"}',
        b'{"inputs": "\\ud800"}',
        b'["a"]',
        b"",
    ]
    raw = [
        draw.randbytes(20_000),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + draw.randbytes(100),
        b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + b"X: a\r\n" * 100_000 + b"\r\n",
        b"POST /embed HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /embed HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\nContent-Length: 2\r\n\r\n{}",
        b"GET /info HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3000,
    ]
    for bytes_ in [head(len(body)) + body for body in bodies] + raw:
        with contextlib.suppress(OSError), connect(address) as stream:
            stream.sendall(bytes_)
            status_of(stream)
    return len(bodies) + len(raw)


HOSTILE = [half_sent, slow_heads, long_texts, prompt_bombs, abandoned, unread, garbage]


def attack(round_, address, until, counts):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    draw = random.Random(round_.__name__)
    sent = 0
    while time.time() < until:
        with contextlib.suppress(OSError):
            sent += round_(address, draw)
        time.sleep(draw.uniform(0, 1))
    counts.put((round_.__name__, sent))


def slope(samples):
    """Megabytes an hour, by least squares."""
    if len(samples) < 3:
        return None
    times, sizes = zip(*samples)
    return round(statistics.linear_regression(times, sizes).slope * 3600, 1)


def main():
    binary, model, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    server = Server(binary, model)
    # Whatever ends this ends the server.
    atexit.register(server.end)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    address = (server.host, server.port)
    status, known = ask(address, "/embed", {"inputs": TEXTS})
    assert status == 200, known
    start = server.resident()

    until = time.time() + seconds
    counts = multiprocessing.Queue()
    hostile = [
        multiprocessing.Process(target=attack, args=(round_, address, until, counts), daemon=True)
        for round_ in HOSTILE
    ]
    for process in hostile:
        process.start()
    seen = dict.fromkeys(["sent", "answered", "refused", "timed_out", "lost", "wrong", "health_lost"], 0)
    seen |= {"difference": 0.0, "ms": [], "health": [], "reasons": []}
    lock = threading.Lock()
    threads = [
        threading.Thread(target=good, args=(address, known, until, seen, lock)) for _ in range(CLIENTS)
    ]
    threads.append(threading.Thread(target=health, args=(address, until, seen, lock)))
    for thread in threads:
        thread.daemon = True
        thread.start()
    samples, alive = [], True
    while time.time() < until and alive:
        time.sleep(2)
        alive = server.process.poll() is None
        if alive and (size := server.resident()):
            samples.append((time.time(), size))
    for thread in threads:
        thread.join()
    sent = {}
    for process in hostile:
        process.join(120)
    while not counts.empty():
        name, count = counts.get()
        sent[name] = count
    # What is left once nobody attacks any more.
    time.sleep(3)
    alive = alive and server.process.poll() is None
    end = server.resident() if alive else None
    after = None
    if alive:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            after = ask(address, "/embed", {"inputs": TEXTS})[0]
    peak = peak_of(server.group)
    limited = server.group is not None
    code = server.end()

    sizes = [size for _, size in samples]
    half = samples[len(samples) // 2 :]
    result = {
        "binary": binary,
        "seconds": seconds,
        "memory_limit": f"{LIMIT // 10**6} MB, " + ("control group" if limited else "watched"),
        "good": {
            "clients": CLIENTS,
            **{key: seen[key] for key in ("sent", "answered", "refused", "timed_out", "lost", "wrong")},
            "p50_ms": percentile(seen["ms"], 0.5),
            "p95_ms": percentile(seen["ms"], 0.95),
            "p99_ms": percentile(seen["ms"], 0.99),
            "largest_difference": seen["difference"],
            "reasons": seen["reasons"],
        },
        "health": {
            "sent": len(seen["health"]),
            "lost": seen["health_lost"],
            "p50_ms": percentile(seen["health"], 0.5),
            "p99_ms": percentile(seen["health"], 0.99),
        },
        "memory_mb": {
            "start": start,
            "min": min(sizes, default=None),
            "median": statistics.median(sizes) if sizes else None,
            "max": max(sizes, default=None),
            "end": end,
            "control_group_peak": peak,
            "slope_per_hour_second_half": slope(half),
        },
        "hostile": sent,
        "answers_afterwards": after == 200,
        "exit_code": code,
    }
    print(json.dumps(result, indent=2))
    fine = (
        alive
        and after == 200
        and code == 0
        and max(sizes, default=LIMIT) * 1e6 <= LIMIT
        and not any(seen[key] for key in ("timed_out", "lost", "wrong", "health_lost"))
    )
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
