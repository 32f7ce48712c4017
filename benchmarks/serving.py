"""Latency and throughput of the server with many clients: a JSON line for each system.

    python benchmarks/serving.py --text valid.en

Every client sends single sentences of the text, one after the other. Ours is ``jaxformer serve``.
The peer is CTranslate2 with the int8 export of the same model, behind the same HTTP server and
queue, with its backend for integers with and without MKL, and with all waiting sentences in one
batch or with several batches at once, as ours. The systems take turns in rounds, never
concurrently, on equal numbers of threads; the clients run on the same machine.

A line has the median over the rounds of:
  p50, p95   milliseconds from request to answer
  requests_per_second
  ratio      requests_per_second relative to the best peer; above 1 is faster
"""

import argparse
import concurrent.futures
import contextlib
import http.client
import itertools
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import decode_text
from machine import machine

from jaxformer import pretrained
from jaxformer.cli.commands.serve import Address, run_server
from jaxformer.interop.export import export_model
from jaxformer.serving.app import make_app
from jaxformer.serving.limits import Limits
from jaxformer.serving.protocol import Sentence, Translation

SYSTEMS = {n: s for n, s in decode_text.SYSTEMS.items() if n.endswith(("int8", "int8 MKL"))}
# The peer translates all waiting sentences in one batch, or as many batches at once as we do.
SYSTEMS |= {f"{name}, batches at once": SYSTEMS[name] for name in SYSTEMS if "ct" in name}
# Seconds between systems: OpenMP's threads keep their cores busy for 0.2 s after their work.
PAUSE = 0.3


class CTranslate2:
    """The peer behind our server."""

    name = "CTranslate2"
    languages = {"en": ["de"]}  # noqa: RUF012

    def __init__(self, folder: str, beam: int, threads: int) -> None:
        self._translate = decode_text.ctranslate2(folder, "int8", threads)
        self._beam = beam
        self._translate(["Hello."], beam)  # warms up

    def translate(self, sentences: list[Sentence]) -> list[Translation]:
        """Returns the best translation of each sentence."""
        found = self._translate([sentence.text for sentence in sentences], self._beam)
        return [Translation([text], [0.0]) for text in found]


class Server:
    """The process of a server."""

    def __init__(self, name: str, command: list[str]) -> None:
        environment = os.environ | SYSTEMS[name]
        self._process = subprocess.Popen(
            [sys.executable, *command], stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            print(f"{name}: {line}", end="", file=sys.stderr)
            if found := re.match(r"serving http://(.*)", line):
                self.address = found[1]
                # The pipe must not fill up.
                threading.Thread(target=self._process.stderr.read, daemon=True).start()
                return
        raise SystemExit(f"{name}: the server did not start")

    def close(self) -> None:
        """Stops the server."""
        self._process.terminate()
        self._process.wait()


def send_all(address: str, lines: list[str], clients: int) -> dict[str, float]:
    """Sends each line as a request, by several clients at once; returns the measurements."""
    remaining = iter(lines)
    lock = threading.Lock()

    def run_client(number: int) -> list[float]:
        connection = http.client.HTTPConnection(address)
        seconds = []
        headers = {"Content-Type": "application/json"}
        while True:
            with lock:
                line = next(remaining, None)
            if line is None:
                return seconds
            body = json.dumps({"q": line, "source": "auto", "target": "de"})
            began = time.perf_counter()
            connection.request("POST", "/translate", body, headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
            seconds.append(time.perf_counter() - began)
            assert response.status == 200, answer

    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        seconds = sorted(itertools.chain(*pool.map(run_client, range(clients))))
    return {
        "p50": 1000 * seconds[len(seconds) // 2],
        "p95": 1000 * seconds[len(seconds) * 95 // 100],
        "requests_per_second": len(seconds) / (time.perf_counter() - began),
    }


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measures each system in rounds; yields its medians."""
    text = options.text.read_text(encoding="utf-8").splitlines()
    lines = list(itertools.islice(filter(str.strip, text), options.requests))
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name, "model")
        export_model("ctranslate2", options.workdir, folder)
        servers = {}
        for name in SYSTEMS:
            servers[name] = Server(name, command_of(name, folder, options))
            stack.callback(servers[name].close)

        found = {name: [] for name in SYSTEMS}
        for round_ in range(1 + options.rounds):
            for name, server in servers.items():
                time.sleep(PAUSE)
                if round_ == 0:  # The first round warms up.
                    send_all(server.address, lines[: 4 * options.clients], options.clients)
                else:
                    found[name].append(send_all(server.address, lines, options.clients))

    medians = {name: medians_of(rows) for name, rows in found.items()}
    best = max(row["requests_per_second"] for name, row in medians.items() if "ct" in name)
    for name, row in medians.items():
        sizes = {"clients": options.clients, "requests": len(lines), "beam": options.beam}
        rounded = {key: round(value, 1) for key, value in row.items()}
        ratio = round(row["requests_per_second"] / best, 3)
        yield {"benchmark": "serving", "system": name, **sizes, **rounded, "ratio": ratio}


def command_of(name: str, folder: pathlib.Path, options: argparse.Namespace) -> list[str]:
    """Returns the arguments of Python for the server of a system."""
    beam = str(options.beam)
    batches = ["--threads", str(options.threads), "--max-batch", str(options.max_batch)]
    if name.startswith("ours"):
        ours = ["-m", "jaxformer", "serve", "--workdir", str(options.workdir), "--dtype", "int8"]
        return [*ours, "--port", "0", "--beam-size", beam, *batches]

    peer = [__file__, "--peer", str(folder), "--beam", beam]
    if "at once" in name:
        return [*peer, *batches]
    return [*peer, "--threads", "1", "--max-batch", "64"]


def medians_of(rows: list[dict[str, float]]) -> dict[str, float]:
    medians = {}
    for key in rows[0]:
        medians[key] = statistics.median(row[key] for row in rows)
    return medians


def main() -> None:
    """Measures, or with ``--peer`` serves CTranslate2's model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--text", type=pathlib.Path, help="English sentences, one per line")
    parser.add_argument("--workdir", type=pathlib.Path, default=pretrained.WORKDIR)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=1000, help="lines to send in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--max-batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2, help="batches at once")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer is not None:
        with Address(port=0).reserve() as reserved:
            limits = Limits(max_batch=options.max_batch, threads=options.threads)
            peer = CTranslate2(options.peer, options.beam, options.threads)
            run_server(make_app(peer, limits), reserved)
        return
    if options.text is None:
        parser.error("expected --text FILE")
    facts = machine()
    for row in measure(options):
        print(json.dumps(row | facts), flush=True)


if __name__ == "__main__":
    main()
