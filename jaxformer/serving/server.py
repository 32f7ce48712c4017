"""The part that all servers share: requests, limits, a queue, errors, health and metrics."""

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import prometheus_client as prometheus
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from jaxformer.errors import UserError
from jaxformer.serving.batching import BatchQueue, OverloadedError
from jaxformer.serving.body import Fields, parse_body, parse_url
from jaxformer.serving.limits import Limits

T = TypeVar("T")
Item = TypeVar("Item")
Result = TypeVar("Result")

# Waits for the results of items, which other requests' items may share a batch with.
Submit: TypeAlias = Callable[[Sequence[Item]], Coroutine[Any, Any, list[Result]]]
# Answers the fields of a request with JSON, or with a response of its own.
Respond: TypeAlias = Callable[[Fields, Submit[Item, Result]], Awaitable[Any]]

_EXPECTED = (HTTPException, UserError, OverloadedError, ClientDisconnect)
_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)  # of the histogram


@dataclasses.dataclass(frozen=True, kw_only=True)
class Service(Generic[Item, Result]):
    """Answers that a server gives to its clients, with a model.

    Attributes:
      compute: Returns a result or an error for each item of a batch; runs in threads.
      posts: Answers to POST requests by path, which are counted, measured and limited.
      gets: Values of JSON by path.
      page: The answer to ``GET /``.
      error: Returns the JSON of an error, from its message and HTTP status.
      failure: The message of an error that is a bug.
    """

    compute: Callable[[list[Item]], Sequence[Result | Exception]]
    posts: Mapping[str, Respond[Item, Result]]
    gets: Mapping[str, Any]
    page: Callable[[], Response]
    error: Callable[[str, int], Any]
    failure: str


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


def make_server(service: Service[Item, Result], limits: Limits) -> Starlette:
    """Returns an ASGI application of a service, for one event loop."""
    metrics = _Metrics()

    def compute(items: list[Item]) -> Sequence[Result | Exception]:
        metrics.batches.observe(len(items))
        return service.compute(items)

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

    def post(path: str, respond: Respond[Item, Result]) -> Route:
        async def answer(request: Request) -> Response:
            status = 500
            try:
                with metrics.seconds.time():
                    fields = await _read_fields(request, limits.body_limit)
                    work = asyncio.ensure_future(respond(fields, queue.submit))
                    found = await _unless_client_leaves(request, work)

                    status = 200
                    return found if isinstance(found, Response) else _json_response(found)
            except Exception as error:
                status = _explain(error).status
                raise
            finally:
                metrics.requests.labels(str(status)).inc()

        return Route(path, answer, methods=["POST"])

    def get(path: str, value: Any) -> Route:
        return Route(path, lambda _: _json_response(value))

    def show_metrics(request: Request) -> Response:
        content = prometheus.generate_latest(metrics.registry)
        return Response(content, media_type=prometheus.CONTENT_TYPE_LATEST)

    async def answer_error(request: Request, error: Exception) -> Response:
        failure = _explain(error)
        message = failure.message or f"{service.failure}; see the log of the server"
        value = service.error(message, failure.status)
        return _json_response(value, failure.status, failure.headers)

    return Starlette(
        routes=[
            Route("/", lambda _: service.page()),
            *[post(path, respond) for path, respond in service.posts.items()],
            *[get(path, value) for path, value in service.gets.items()],
            get("/health", {"status": "ok"}),
            Route("/metrics", show_metrics),
        ],
        exception_handlers=dict.fromkeys((*_EXPECTED, Exception), answer_error),
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


async def _unless_client_leaves(request: Request, work: asyncio.Future[T]) -> T:
    """Returns the result of ``work``, which is cancelled if the client closes its connection."""
    # The body has been read: only a closed connection can be received.
    left = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return work.result()
    finally:
        work.cancel()
        left.cancel()


class _Failure(NamedTuple):
    status: int
    message: str = ""  # blank for a bug
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
    return _Failure(500)


def _json_response(value: Any, status: int = 200, headers: Any = None) -> Response:
    # JSON's escapes spell any text that a client may have sent, also unpaired surrogates.
    return Response(json.dumps(value), status, headers, media_type="application/json")
