"""The command ``serve``: translations, completions or labels over HTTP."""

import dataclasses
import pathlib
import signal
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from jaxformer import pretrained
from jaxformer.cli.command import Command
from jaxformer.cli.options import InputFile, ModelOptions, SearchOptions, TranslatorDir
from jaxformer.cli.signatures import Option, flag
from jaxformer.data.languages import Languages, parse_pairs
from jaxformer.data.sentences import split_sentences
from jaxformer.errors import UserError, needs_package
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


def serve(
    *,
    workdir: TranslatorDir = pretrained.WORKDIR,
    languages: Annotated[Sequence[str], Option(metavar="PAIR")] = (),
    task_prefix: str = "",
    split: bool = False,
    glossary: InputFile | None = None,
    address: Address,
    limits: Limits,
    model: ModelOptions,
    search: SearchOptions,
) -> None:
    """Serve translations over HTTP, with LibreTranslate's protocol and a web page.

    A language model is served with the protocol of OpenAI's completions, and a classifier of texts
    by POST /classify. Texts of many requests are computed together. The server listens when its
    programs are compiled. SIGTERM finishes running requests.

    Translations:
      languages: source and target language of a model that does not know its own, such as en-de for
        an imported T5; several pairs are separated by spaces (default: the model's)
      task_prefix: text before each sentence, which tells an imported T5 what to do, such as
        "translate {source} to {target}: "; the braces stand for the names of the languages
      split: lines are paragraphs: translate each sentence of a line by itself
      glossary: terms to be translated so: a term, a tab and its translation in each line; a request
        may have terms of its own

    Example:
      jaxformer serve     # then open http://127.0.0.1:5000

      jaxformer serve --workdir runs/multi30k --host 0.0.0.0 --port 8000

      jaxformer serve --workdir runs/shakespeare
    """
    with needs_package("starlette", "which serves HTTP", extra="serve"):
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    from jaxformer.config import read_config
    from jaxformer.kinds.classification import CLASSIFICATION
    from jaxformer.kinds.language_modeling import LANGUAGE_MODELING
    from jaxformer.kinds.translation import TRANSLATION
    from jaxformer.runs.workdir import Workdir

    kind = read_config(Workdir(workdir)).kind
    if kind != TRANSLATION:
        _check_translator_only(
            kind,
            languages=languages,
            task_prefix=task_prefix,
            split=split,
            glossary=glossary,
        )

    # Reserved first: loading and compiling would be in vain if another program has the port.
    with address.reserve() as reserved:
        if kind == TRANSLATION:
            if split:
                split_sentences("", "en")  # refuses to start without its package
            pairs = parse_pairs(languages) if languages else None
            app = _translations(
                workdir,
                model,
                search,
                limits,
                languages=pairs,
                task_prefix=task_prefix,
                split=split,
                glossary=glossary,
            )
        elif kind == LANGUAGE_MODELING:
            app = _completions(workdir, model, search, limits)
        elif kind == CLASSIFICATION:
            app = _labels(workdir, model, search, limits)
        else:
            raise UserError(
                f"{workdir}: expected a translator, a language model or a classifier of texts, got "
                f"{kind.description}, which has no server"
            )
        run_server(app, reserved)


def _check_translator_only(kind: "Kind", **options: object) -> None:
    for name, value in options.items():
        if value:
            raise UserError(
                f"{flag(name)} is for translations: leave it out for {kind.description}"
            )


def _translations(
    workdir: pathlib.Path,
    model: ModelOptions,
    search: SearchOptions,
    limits: Limits,
    *,
    languages: Languages | None,
    task_prefix: str,
    split: bool,
    glossary: pathlib.Path | None,
) -> "Starlette":
    from jaxformer.inference.glossary import Glossary
    from jaxformer.serving.app import make_app
    from jaxformer.serving.backend import TranslatorBackend

    terms = None if glossary is None else Glossary.load(glossary)
    translator = model.load(workdir, search.settings(workdir))
    backend = TranslatorBackend(translator, languages, task_prefix, _model_name(workdir), terms)
    backend.warm_up(limits.max_batch, _report)
    return make_app(backend, limits, split=split)


def _completions(
    workdir: pathlib.Path,
    model: ModelOptions,
    search: SearchOptions,
    limits: Limits,
) -> "Starlette":
    from jaxformer.inference.generator import Generator
    from jaxformer.search import Sampling
    from jaxformer.serving.completions import make_completions
    from jaxformer.serving.generator_backend import GeneratorBackend

    model.check_only(
        "weights",
        "ensemble",
        "dtype",
        "amateur",
        "contrast",
        reason="a language model has no words of a source to choose from",
    )
    settings = search.settings(workdir, default=Sampling(num_samples=1))
    if not isinstance(settings, Sampling):
        raise UserError("completions are sampled: leave the options of beam search out")
    if "num_samples" in search.changes:
        raise UserError("--samples: leave it out; clients ask for samples with the field n")

    generator = model.load_as(Generator, workdir, settings)
    backend = GeneratorBackend(generator)
    backend.warm_up(limits.max_batch, _report)
    return make_completions(backend, _model_name(workdir), limits)


def _labels(
    workdir: pathlib.Path,
    model: ModelOptions,
    search: SearchOptions,
    limits: Limits,
) -> "Starlette":
    from jaxformer.serving.labels import make_labels
    from jaxformer.tasks.classification.text_classifier import Classifier

    reason = "a classifier has neither a search nor an ensemble"
    model.check_only("weights", reason=reason)
    search.check_none(reason=reason)
    classifier = Classifier.load(workdir, weights=model.weights)
    print(f"{workdir}: {classifier.weights}", file=sys.stderr)
    _report("labels")
    classifier.probabilities([""])
    return make_labels(classifier, _model_name(workdir), limits)


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
