"""The HTTP server: translation, languages, health, metrics, and a page to try the model."""

import asyncio
import contextlib
import importlib.resources
import json
import re
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import prometheus_client as prometheus
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from jaxformer.errors import UserError
from jaxformer.plots.attention_page import source_hash
from jaxformer.serving import protocol
from jaxformer.serving.backend import Backend
from jaxformer.serving.batching import BatchQueue, OverloadedError
from jaxformer.serving.body import Fields, parse_body, parse_url
from jaxformer.serving.protocol import Limits, Sentence, Translation

T = TypeVar("T")

_EXPECTED = (HTTPException, UserError, OverloadedError, ClientDisconnect)
_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)  # of the histogram


class _Metrics:
    """Numbers that ``/metrics`` shows."""

    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        self.requests = prometheus.Counter(
            "jaxformer_requests",
            "Requests",
            ["status"],
            registry=self.registry,
        )
        self.seconds = prometheus.Histogram(
            "jaxformer_request_seconds",
            "Time",
            registry=self.registry,
        )
        self.batches = prometheus.Histogram(
            "jaxformer_batch_sentences",
            "Batches",
            buckets=_BATCH_SIZES,
            registry=self.registry,
        )
        self.waiting = prometheus.Gauge(
            "jaxformer_queue_sentences",
            "Queue",
            registry=self.registry,
        )


def make_app(backend: Backend, limits: Limits, *, split: bool = False) -> Starlette:
    """Returns an ASGI application that translates with a model, for one event loop.

    If ``split``, the lines of a text are paragraphs, which it splits into sentences.
    """
    languages = backend.languages
    metrics = _Metrics()

    def compute(sentences: list[Sentence]) -> Sequence[Translation | Exception]:
        metrics.batches.observe(len(sentences))
        return backend.translate(sentences)

    queue = BatchQueue(
        compute,
        max_batch=limits.max_batch,
        capacity=limits.queue_limit,
        threads=limits.threads,
    )
    metrics.waiting.set_function(queue.__len__)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        running = asyncio.create_task(queue.run())
        yield
        # Requests that wait are answered before the server exits.
        queue.close()
        await running

    async def translate(request: Request) -> Response:
        status = 500
        try:
            with metrics.seconds.time():
                fields = await _read_fields(request, limits.body_limit)
                query = protocol.parse_query(fields, languages, limits, split=split)

                work = queue.submit(query.sentences)
                translations = await _unless_client_leaves(request, work)

                status = 200
                answer = protocol.make_answer(query, translations, languages)
                return _json_response(answer)
        except Exception as error:
            status = _explain(error).status
            raise
        finally:
            metrics.requests.labels(str(status)).inc()

    async def detect(request: Request) -> Response:
        fields = await _read_fields(request, limits.body_limit)
        return _json_response(protocol.detect(fields, languages))

    settings = protocol.list_settings(languages, limits, backend.name)

    def show_metrics(request: Request) -> Response:
        content = prometheus.generate_latest(metrics.registry)
        return Response(content, media_type=prometheus.CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[
            Route("/", _show_page),
            Route("/translate", translate, methods=["POST"]),
            Route("/detect", detect, methods=["POST"]),
            Route("/languages", lambda _: _json_response(protocol.list_languages(languages))),
            Route("/frontend/settings", lambda _: _json_response(settings)),
            Route("/health", lambda _: _json_response({"status": "ok"})),
            Route("/metrics", show_metrics),
        ],
        exception_handlers=dict.fromkeys((*_EXPECTED, Exception), _answer_error),
        lifespan=lifespan,
    )


async def _read_fields(request: Request, limit: int) -> Fields:
    """Reads the fields of a URL and of a body of at most ``limit`` bytes."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise HTTPException(413, f"Invalid request: more than {limit} bytes")

    content_type = request.headers.get("Content-Type", "")
    return [
        *parse_url(request.scope["query_string"]),
        *parse_body(bytes(body), content_type),
    ]


async def _unless_client_leaves(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of ``work``, which is cancelled if the client closes its connection."""
    task = asyncio.ensure_future(work)
    # The body has been read: only a closed connection can be received.
    left = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((task, left), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        left.cancel()


class _Failure(NamedTuple):
    status: int
    message: str
    headers: Mapping[str, str] = {}


def _explain(error: Exception) -> _Failure:
    """Returns status, message and headers of the answer to a request that failed."""
    if isinstance(error, HTTPException):
        return _Failure(error.status_code, error.detail, error.headers or {})
    if isinstance(error, UserError):
        return _Failure(400, str(error))
    if isinstance(error, OverloadedError):
        return _Failure(429, str(error), {"Retry-After": str(error.retry_after)})
    if isinstance(error, ClientDisconnect):  # For the metrics only; 499 as in the logs of nginx.
        return _Failure(499, "the client has left")
    return _Failure(500, "Cannot translate text; see the log of the server")


async def _answer_error(request: Request, error: Exception) -> Response:
    failure = _explain(error)
    return _json_response({"error": failure.message}, failure.status, failure.headers)


def _json_response(value: Any, status: int = 200, headers: Any = None) -> Response:
    # JSON's escapes spell any text that a client may have sent, also unpaired surrogates.
    return Response(json.dumps(value), status, headers, media_type="application/json")


def _show_page(request: Request) -> Response:
    file = importlib.resources.files("jaxformer.serving").joinpath("page.html")
    page = file.read_text("ascii")

    def hashes_of(tag: str) -> str:
        sources = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        return " ".join(map(source_hash, sources))

    # Browsers then run no script but the page's own.
    policy = (
        f"default-src 'none'; connect-src 'self'; script-src {hashes_of('script')}; "
        f"style-src {hashes_of('style')}; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return Response(page, media_type="text/html", headers={"Content-Security-Policy": policy})
