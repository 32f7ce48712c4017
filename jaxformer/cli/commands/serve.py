"""The command ``serve``: translations, completions or labels over HTTP."""

import dataclasses
import pathlib
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence, Set
from typing import TYPE_CHECKING, Annotated, NamedTuple

from jaxformer import pretrained
from jaxformer.cli.command import Command
from jaxformer.cli.options import (
    InputFile,
    ModelOptions,
    SearchOptions,
    TranslatorDir,
    option_names,
    refuse_options,
)
from jaxformer.cli.signatures import Option
from jaxformer.cli.source_fields import searches
from jaxformer.data.languages import parse_pairs
from jaxformer.data.sentences import split_sentences
from jaxformer.errors import UserError, needs_package
from jaxformer.fields import fields_given
from jaxformer.serving.limits import Limits

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from jaxformer.kinds.kind import Kind

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationOptions:
    """Options of a server of translations.

    Translations:
      languages: source and target language of a model that does not know its own, such as en-de for
        an imported T5; several pairs are separated by spaces (default: the model's)
      task_prefix: text before each sentence, which tells an imported T5 what to do, such as
        "translate {source} to {target}: "; the braces stand for the names of the languages
      split: lines are paragraphs: translate each sentence of a line by itself
      glossary: terms to be translated so: a term, a tab and its translation in each line; a request
        may have terms of its own
    """

    languages: Annotated[Sequence[str], Option(metavar="PAIR")] = ()
    task_prefix: str = ""
    split: bool = False
    glossary: InputFile | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options:
    """The options of the command, without the address."""

    workdir: pathlib.Path
    translations: TranslationOptions
    limits: Limits
    model: ModelOptions
    search: SearchOptions

    def given(self) -> Iterator[str]:
        """Yields the names of the options that do not have their defaults."""
        for group in (self.translations, self.limits, self.model):
            yield from fields_given(group)
        yield from self.search.given()


class KindServer(NamedTuple):
    """The server of a kind of models.

    Attributes:
      make: Loads the model, and returns the application.
      takes: Names of the options that it takes. All other options are refused, except workdir and
        address, which all servers have.
      note: What to know about a refused option.
    """

    make: "Callable[[_Options], Starlette]"
    takes: Set[str]
    note: str = ""


def kind_servers() -> "dict[Kind, KindServer]":
    """Returns the servers by the kind of the model."""
    from jaxformer.kinds.classification import CLASSIFICATION
    from jaxformer.kinds.language_modeling import LANGUAGE_MODELING
    from jaxformer.kinds.translation import TRANSLATION

    limits = {"char_limit", "batch_limit", "body_limit", "queue_limit", "max_batch", "threads"}
    decoding = {"weights", "ensemble", "dtype", "amateur", "contrast", "sampling"}
    beam_search, sampling = map(option_names, searches())
    translations = option_names(TranslationOptions)
    return {
        TRANSLATION: KindServer(
            _translations,
            limits | decoding | beam_search | sampling | translations | {"shortlist"},
        ),
        LANGUAGE_MODELING: KindServer(
            _completions,
            limits | decoding | sampling - {"num_samples"} | {"token_limit"},
            note=", which samples as many texts as a client asks for with the field n",
        ),
        CLASSIFICATION: KindServer(_labels, limits | {"weights"}),
    }


def serve(
    *,
    workdir: TranslatorDir = pretrained.WORKDIR,
    translations: TranslationOptions,
    address: Address,
    limits: Limits,
    model: ModelOptions,
    search: SearchOptions,
) -> None:
    """Serve translations over HTTP, with LibreTranslate's protocol and a web page.

    A language model is served with the protocol of OpenAI's completions, and a classifier of texts
    by POST /classify. Texts of many requests are computed together. The server listens when its
    programs are compiled. SIGTERM finishes running requests.

    Example:
      jaxformer serve     # then open http://127.0.0.1:5000

      jaxformer serve --workdir runs/multi30k --host 0.0.0.0 --port 8000

      jaxformer serve --workdir runs/shakespeare
    """
    with needs_package("starlette", "which serves HTTP", extra="serve"):
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401

    options = _Options(
        workdir=workdir,
        translations=translations,
        limits=limits,
        model=model,
        search=search,
    )
    server = _choose_server(options)
    # Reserved first: loading and compiling would be in vain if another program has the port.
    with address.reserve() as reserved:
        run_server(server.make(options), reserved)


def _choose_server(options: _Options) -> KindServer:
    """Returns the server of a model; refuses a kind without one, and options it does not take."""
    from jaxformer.config import read_config
    from jaxformer.runs.workdir import Workdir

    kind = read_config(Workdir(options.workdir)).kind
    server = kind_servers().get(kind)
    if server is None:
        raise UserError(
            f"{options.workdir}: expected a translator, a language model or a classifier of texts, "
            f"got {kind.description}, which has no server"
        )

    refused = [name for name in options.given() if name not in server.takes]
    refuse_options(refused, f"{options.workdir} is {kind.description}{server.note}")
    return server


def _translations(options: _Options) -> "Starlette":
    from jaxformer.inference.glossary import Glossary
    from jaxformer.serving.app import make_app
    from jaxformer.serving.backend import TranslatorBackend

    own = options.translations
    if own.split:
        split_sentences("", "en")  # refuses to start without its package
    languages = parse_pairs(own.languages) if own.languages else None
    terms = None if own.glossary is None else Glossary.load(own.glossary)

    workdir = options.workdir
    translator = options.model.load(workdir, options.search.settings(workdir))
    name = _model_name(workdir)
    backend = TranslatorBackend(translator, languages, own.task_prefix, name, terms)
    backend.warm_up(options.limits.max_batch, _report)
    return make_app(backend, options.limits, split=own.split)


def _completions(options: _Options) -> "Starlette":
    from jaxformer.inference.generator import Generator
    from jaxformer.search import Sampling
    from jaxformer.serving.completions import make_completions
    from jaxformer.serving.generator_backend import GeneratorBackend

    workdir = options.workdir
    settings = options.search.settings(workdir, default=Sampling(num_samples=1))
    backend = GeneratorBackend(options.model.load_as(Generator, workdir, settings))
    backend.warm_up(options.limits.max_batch, _report)
    return make_completions(backend, _model_name(workdir), options.limits)


def _labels(options: _Options) -> "Starlette":
    from jaxformer.serving.labels import make_labels
    from jaxformer.tasks.classification.text_classifier import Classifier

    workdir = options.workdir
    classifier = Classifier.load(workdir, weights=options.model.weights)
    print(f"{workdir}: {classifier.weights}", file=sys.stderr)
    _report("labels")
    classifier.probabilities([""])
    return make_labels(classifier, _model_name(workdir), options.limits)


def _report(step: str) -> None:
    print(f"compiling {step}", file=sys.stderr)


def _model_name(workdir: pathlib.Path) -> str:
    """Returns a model's name for the page, which shows no folders of this machine."""
    if workdir == pretrained.WORKDIR:
        return pretrained.DESCRIPTION
    return workdir.absolute().name


COMMAND = Command("serve", serve, place=40)


def run_server(app: "Starlette", reserved: socket.socket) -> None:
    """Serves until SIGTERM or SIGINT."""
    import uvicorn

    config = uvicorn.Config(
        app,
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
