"""The command ``serve``: a translation server."""

import dataclasses
import pathlib
import signal
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from jaxformer import pretrained
from jaxformer.cli.command import Command
from jaxformer.cli.options import ModelOptions, SearchOptions, TranslatorDir
from jaxformer.cli.signatures import Option
from jaxformer.data.languages import parse_pairs
from jaxformer.data.sentences import split_sentences
from jaxformer.errors import UserError, needs_package
from jaxformer.serving.limits import Limits

if TYPE_CHECKING:
    from jaxformer.serving.backend import Backend

_MAX_CONNECTIONS = 1000  # each holds at most --body-limit bytes; more get HTTP 503
_GRACE = 30  # seconds to finish running requests


@dataclasses.dataclass(frozen=True, kw_only=True)
class Address:
    """Address of the server.

    Address:
      host (HOST): IP address to listen on (default: 127.0.0.1, for this machine only)
      port: port to listen on; 0 is any free one
    """

    host: str = "127.0.0.1"
    port: int = 5000

    def reserve(self) -> socket.socket:
        """Returns a socket of the address, which does not listen yet."""
        reserved = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            reserved.bind((self.host, self.port))
        except (OSError, OverflowError) as error:
            reserved.close()
            given = f"--host {self.host} --port {self.port}"
            raise UserError(f"expected a free address: got {given}: {error}") from None
        return reserved


def serve(
    *,
    workdir: TranslatorDir = pretrained.WORKDIR,
    languages: Annotated[Sequence[str], Option(metavar="PAIR")] = (),
    task_prefix: str = "",
    split: bool = False,
    address: Address,
    limits: Limits,
    model: ModelOptions,
    search: SearchOptions,
) -> None:
    """Serve translations over HTTP, with LibreTranslate's protocol and a web page.

    Sentences of many requests are translated together. The server listens when all programs are
    compiled. SIGTERM finishes running requests.

    Options:
      languages: source and target language of a model that does not know its own, such as en-de for
        an imported T5; several pairs are separated by spaces (default: the model's)
      task_prefix: text before each sentence, which tells an imported T5 what to do, such as
        "translate {source} to {target}: "; the braces stand for the names of the languages
      split: lines are paragraphs: translate each sentence of a line by itself

    Example:
      jaxformer serve     # then open http://127.0.0.1:5000

      jaxformer serve --workdir runs/multi30k --host 0.0.0.0 --port 8000
    """
    with needs_package("starlette", "which serves HTTP", extra="serve"):
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    from jaxformer.serving.backend import TranslatorBackend

    def report(step: str) -> None:
        print(f"compiling {step}", file=sys.stderr)

    if split:
        split_sentences("", "en")  # refuses to start without its package
    pairs = parse_pairs(languages) if languages else None
    # Reserved first: loading and compiling would be in vain if another program has the port.
    with address.reserve() as reserved:
        translator = model.load(workdir, search.settings(workdir))
        backend = TranslatorBackend(translator, pairs, task_prefix, _model_name(workdir))
        backend.warm_up(limits.max_batch, report)
        run_server(backend, limits, reserved, split=split)


def _model_name(workdir: pathlib.Path) -> str:
    """Returns a model's name for the page, which shows no folders of this machine."""
    if workdir == pretrained.WORKDIR:
        return pretrained.DESCRIPTION
    return workdir.absolute().name


COMMAND = Command("serve", serve, place=40)


def run_server(
    backend: "Backend",
    limits: Limits,
    reserved: socket.socket,
    *,
    split: bool = False,
) -> None:
    """Serves until SIGTERM or SIGINT."""
    import uvicorn

    from jaxformer.serving.app import make_app

    config = uvicorn.Config(
        make_app(backend, limits, split=split),
        access_log=False,
        log_level="warning",
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_graceful_shutdown=_GRACE,
    )
    server = uvicorn.Server(config)
    # uvicorn sets this handler later, and then repeats the signal for ours: it exits with 0.
    signal.signal(signal.SIGTERM, server.handle_exit)

    reserved.listen()  # Whoever reads the line can connect.
    host, port = reserved.getsockname()[:2]
    if ":" in host:  # IPv6
        host = f"[{host}]"
    print(f"serving http://{host}:{port}", file=sys.stderr)
    server.run(sockets=[reserved])
