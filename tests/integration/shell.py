"""A shell whose ``jaxformer`` and ``python`` are this process.

Commands of pages run in bash, as readers run them, with its quotes, pipes and variables. Its
``jaxformer`` and ``python`` are a client of this process, which has JAX and compiled programs
already, and gets the arguments, the environment and the standard streams of the client.
"""

import contextlib
import io
import json
import os
import pathlib
import runpy
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from unittest import mock

from jaxformer.cli import main

PROJECT = pathlib.Path(__file__).parents[2]
_CLIENT = """
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    call = json.dumps([{program!r}, sys.argv[1:], dict(os.environ)]).encode()
    socket.send_fds(server, [len(call).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(call)
    sys.exit(int(server.recv(8)))
"""
# A new bash runs each command, in the environment in which the one before has ended.
_SCRIPT = """
set -o pipefail
{command}
code=$?
env -0 > {environment}
exit $code
"""


class Finished(NamedTuple):
    """A command that has ended."""

    code: int
    output: str
    errors: str


class Shell:
    """Runs commands one by one; ``edit`` may change the words of a call of our programs."""

    def __init__(self, folder: pathlib.Path, edit: Callable[[list[str]], list[str]]) -> None:
        self._folder = folder
        self._edit = edit
        # The address of a socket has at most 107 bytes.
        self._private = tempfile.TemporaryDirectory(prefix="jaxformer-")
        private = pathlib.Path(self._private.name)

        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(private / "socket"))
        self._server.listen()
        self._server.settimeout(0.02)

        for program in ("jaxformer", "python"):
            client = private / f"{program}.py"
            address = str(private / "socket")
            client.write_text(_CLIENT.format(address=address, program=program))
            words = shlex.join([sys.executable, "-SE", str(client)])
            (private / program).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
            (private / program).chmod(0o755)

        path = f"{private}{os.pathsep}{os.environ['PATH']}"
        self._variables = {**os.environ, "PATH": path}

    def close(self) -> None:
        self._server.close()
        self._private.cleanup()

    def run(self, command: str) -> Finished:
        """Runs a command, which may be several with pipes, loops and variables."""
        private = pathlib.Path(self._private.name)
        output = private / "out"
        errors = private / "err"
        environment = private / "environment"
        script = _SCRIPT.format(command=command, environment=shlex.quote(str(environment)))

        with output.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen(
                ["bash", "-c", script],
                cwd=self._folder,
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
            while process.poll() is None:
                with contextlib.suppress(TimeoutError):
                    client, _ = self._server.accept()
                    self._answer(client)

        if environment.exists():
            pairs = environment.read_text().split("\0")[:-1]
            self._variables = dict(pair.split("=", 1) for pair in pairs)
        return Finished(
            code=process.returncode,
            output=output.read_text(encoding="utf-8"),
            errors=errors.read_text(encoding="utf-8"),
        )

    def _answer(self, client: socket.socket) -> None:
        """Runs one call of a client with its streams, and sends it the exit code."""
        with client:
            size, streams, _, _ = socket.recv_fds(client, 4, 3)
            with client.makefile("rb") as file:
                call = file.read(int.from_bytes(size, "big"))
            program, arguments, environment = json.loads(call)

            with _process(environment, streams):
                _, *edited = self._edit([program, *arguments])
                code = _call(program, edited)
            client.sendall(str(code).encode())


@contextlib.contextmanager
def _process(environment: dict[str, str], streams: Sequence[int]) -> Iterator[None]:
    """Gives this process the environment and the standard streams of another."""
    with contextlib.ExitStack() as stack:
        # What is read from "-" is /dev/stdin, not Python's stream.
        stdin = os.dup(0)
        stack.callback(os.close, stdin)
        os.dup2(streams[0], 0)
        stack.callback(os.dup2, stdin, 0)

        for name, number in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            file = stack.enter_context(open(number, "rb" if name == "stdin" else "wb"))
            stream = io.TextIOWrapper(file, encoding="utf-8", line_buffering=True)
            stack.enter_context(stream)
            stack.enter_context(mock.patch.object(sys, name, stream))
        stack.enter_context(mock.patch.dict(os.environ, environment, clear=True))
        yield


def _call(program: str, arguments: list[str]) -> int:
    """Runs ``jaxformer ...``, ``python train.py ...``, a benchmark or ``python -m MODULE ...``."""
    match [program, *arguments]:
        case ["jaxformer", *words]:
            return main(words)
        case ["python", "train.py", *words]:
            return main(["train", *words])
        case ["python", "-m", module, *words] if module.startswith("jaxformer."):
            with mock.patch.object(sys, "argv", [module, *words]):
                try:
                    runpy.run_module(module, run_name="__main__")
                except SystemExit as stop:
                    return int(stop.code or 0)
            return 0
        case ["python", script, *words] if script.startswith("benchmarks/"):
            with mock.patch.object(sys, "argv", [script, *words]):
                runpy.run_path(str(PROJECT / script), run_name="__main__")
            return 0
    raise AssertionError(f"not a program of ours: {shlex.join([program, *arguments])}")
