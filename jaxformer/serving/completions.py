"""Texts of a language model over HTTP, with the protocol of OpenAI's completions."""

import asyncio
import dataclasses
import functools
import itertools
import json
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from jaxformer.errors import UserError, did_you_mean
from jaxformer.inference.generator import Generator
from jaxformer.inference.windows import Prompt
from jaxformer.search import Sampling
from jaxformer.serving.body import Fields
from jaxformer.serving.generator_backend import Completion, GeneratorBackend, Text
from jaxformer.serving.limits import Limits
from jaxformer.serving.server import Service, Submit, make_server

_MAX_TOKENS = 16  # of a completion, as in OpenAI's protocol
_MAX_STOPS = 4
_PAGE = """The language model {name}, with the protocol of OpenAI's completions:

curl ADDRESS/v1/completions -H "Content-Type: application/json" \\
    -d '{{"prompt": "Once upon a time", "max_tokens": 50, "stream": true}}'
"""


class Query(NamedTuple):
    """A request for completions."""

    prompts: list[str]
    samples: int  # of each prompt
    search: Sampling
    seed: int | None
    max_tokens: int
    stops: Sequence[str]
    is_stream: bool


_Check: TypeAlias = Callable[[str, Any], Any]


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise UserError(f"{name} must be a string")
    return value


def _texts(name: str, value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    are_texts = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
    if not are_texts or not texts:
        raise UserError(f"{name} must be a string or a list of strings")
    return texts


def _whole(least: int) -> _Check:
    def check(name: str, value: Any) -> int:
        is_int = isinstance(value, int) and not isinstance(value, bool)
        if not is_int or value < least:
            raise UserError(f"{name} must be a whole number of at least {least}")
        return value

    return check


def _number(least: float, most: float) -> _Check:
    def check(name: str, value: Any) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= most or not math.isfinite(value):
            raise UserError(f"{name} must be a number from {least} to {most}")
        return float(value)

    return check


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UserError(f"{name} must be true or false")
    return value


def _only(*defaults: Any) -> _Check:
    """Returns a check of a field of OpenAI's that may only have its default."""

    def check(name: str, value: Any) -> Any:
        if value not in defaults:
            raise UserError(f"{name} is not supported: leave it out")
        return value

    return check


_FIELDS: dict[str, _Check] = {
    "model": _text,
    "prompt": _texts,
    "max_tokens": _whole(1),
    "n": _whole(1),
    "stop": _texts,
    "stream": _flag,
    "seed": _whole(0),
    "temperature": _number(0, 100),
    "top_p": _number(0, 1),
    # Not OpenAI's, but other servers'.
    "top_k": _whole(0),
    "min_p": _number(0, 1),
    "user": _text,  # has no effect, as with OpenAI
    "best_of": _only(1),
    "echo": _only(False),
    "frequency_penalty": _only(0),
    "logit_bias": _only([]),  # an empty object
    "logprobs": _only(),
    "presence_penalty": _only(0),
    "stream_options": _only(),
    "suffix": _only(),
}


def parse_request(given: Fields, search: Sampling, limits: Limits, model: str) -> Query:
    """Checks the fields of a request; raises a ``UserError`` about the first that is wrong.

    ``search`` has the values of fields that are left out.
    """
    fields: dict[str, Any] = {}
    for name, value in given:
        if name not in _FIELDS:
            hint = did_you_mean(name, _FIELDS, f"known: {', '.join(_FIELDS)}")
            raise UserError(f"unknown parameter {name:.20}; {hint}")
        if name in fields:
            raise UserError(f"{name} is given twice")
        if value is not None:
            fields[name] = _FIELDS[name](name, value)

    if fields.get("model", model) != model:
        raise UserError(f"the model {fields['model']:.50} does not exist; this server has {model}")
    if "prompt" not in fields:
        raise UserError("missing prompt parameter")

    max_tokens = fields.get("max_tokens", _MAX_TOKENS)
    stops = fields.get("stop", [])
    samples = fields.get("n", 1)
    _check_limit("max_tokens", max_tokens, limits.token_limit)
    _check_limit("stop: number of strings", len(stops), _MAX_STOPS)
    if "" in stops:
        raise UserError("stop must not be blank")
    _check_limit("prompts times n", len(fields["prompt"]) * samples, limits.batch_limit)
    for prompt in fields["prompt"]:
        _check_limit("prompt: characters", len(prompt), limits.char_limit)

    seed = fields.get("seed")
    return Query(
        prompts=fields["prompt"],
        samples=samples,
        search=_search_of(fields, search),
        seed=seed,
        max_tokens=max_tokens,
        stops=stops,
        is_stream=fields.get("stream", False),
    )


def _search_of(fields: Mapping[str, Any], search: Sampling) -> Sampling:
    """Returns the search with the values of a request; a temperature of 0 is the best token."""
    names = ("temperature", "top_p", "top_k", "min_p", "seed")
    changes = {name: fields[name] for name in names if name in fields}
    if changes.get("temperature") == 0:
        changes |= {"temperature": 1.0, "top_k": 1}
    return dataclasses.replace(search, **changes)


def _check_limit(what: str, value: int, limit: int) -> None:
    if value > limit:
        raise UserError(f"{what} must be at most {limit}: got {value}")


def make_completions(backend: GeneratorBackend, name: str, limits: Limits) -> Starlette:
    """Returns an ASGI application that continues prompts, for one event loop.

    The generator's search is a :class:`Sampling`, whose settings a request may change. Requests
    without a seed get other texts each time.
    """
    started = int(time.time())
    models = [{"id": name, "object": "model", "created": started, "owned_by": "jaxformer"}]
    service = Service(
        compute=backend.complete,
        posts={"/v1/completions": _Completer(backend.generator, name, limits).respond},
        gets={"/v1/models": {"object": "list", "data": models}},
        page=lambda: _page(name),
        error=_error,
        failure="Cannot complete the prompt",
    )
    return make_server(service, limits)


class _Completer:
    """Answers requests for completions."""

    def __init__(self, generator: Generator, name: str, limits: Limits) -> None:
        search = generator.config.search
        assert isinstance(search, Sampling)
        # Requests without a seed share one, so that they can share a batch. Their random numbers
        # depend on the number of the prompt, too.
        self._search = dataclasses.replace(search, seed=secrets.randbelow(2**31))
        self._numbers = itertools.count()
        self._generator = generator
        self._name = name
        self._limits = limits

    async def respond(self, fields: Fields, submit: Submit[Completion, Text]) -> Any:
        """Returns the JSON of a request's texts, or a response with a stream of events."""
        query = parse_request(fields, self._search, self._limits, self._name)
        completions = self._completions(query)
        identity = f"cmpl-{secrets.token_hex(12)}"
        if query.is_stream:
            choices = await _stream(completions, submit)
            events = self._events(choices, identity)
            return StreamingResponse(events, media_type="text/event-stream")

        try:
            texts = await submit(completions)
        finally:
            _abandon(completions)
        whole = [_choice(index, text.text, text.reason) for index, text in enumerate(texts)]
        return self._answer(whole, identity) | {"usage": _usage(query, completions, texts)}

    def _completions(self, query: Query) -> list[Completion]:
        """Returns the texts to generate, sample after sample of each prompt."""
        completions = []
        for index, prompt in enumerate(query.prompts):
            tokens = self._generator.prompt_ids(prompt)
            number = next(self._numbers) % 2**31 if query.seed is None else index
            for sample in range(query.samples):
                completions.append(
                    Completion(
                        Prompt(tokens, number, sample),
                        query.search,
                        query.max_tokens,
                        query.stops,
                    )
                )
        return completions

    async def _events(
        self,
        choices: AsyncIterator[dict[str, Any]],
        identity: str,
    ) -> AsyncIterator[str]:
        """Yields server-sent events of pieces of texts, or of an error."""
        async for choice in choices:
            value = choice if "error" in choice else self._answer([choice], identity)
            yield f"data: {json.dumps(value)}\n\n"
        yield "data: [DONE]\n\n"

    def _answer(self, choices: list[dict[str, Any]], identity: str) -> dict[str, Any]:
        return {
            "id": identity,
            "object": "text_completion",
            "created": int(time.time()),
            "model": self._name,
            "choices": choices,
        }


def _abandon(completions: Sequence[Completion]) -> None:
    """Lets the texts end that are still being generated."""
    for completion in completions:
        completion.is_wanted = False


async def _stream(
    completions: Sequence[Completion],
    submit: Submit[Completion, Text],
) -> AsyncIterator[dict[str, Any]]:
    """Returns the choices of texts in pieces, as they are generated, when the first one is known.

    Until then an error has an HTTP status of its own.
    """
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[tuple[int, str] | None] = asyncio.Queue()

    def show(index: int, piece: str) -> None:
        loop.call_soon_threadsafe(pieces.put_nowait, (index, piece))

    for index, completion in enumerate(completions):
        completion.show = functools.partial(show, index)
    work = asyncio.ensure_future(submit(completions))
    work.add_done_callback(lambda _: pieces.put_nowait(None))

    async def choices(piece: tuple[int, str] | None) -> AsyncIterator[dict[str, Any]]:
        try:
            while piece is not None:
                yield _choice(*piece, reason=None)
                piece = await pieces.get()
            for index, text in enumerate(work.result()):
                yield _choice(index, "", text.reason)
        except Exception:
            yield _error("Cannot complete the prompt; see the log of the server", 500)
            raise
        finally:
            _abandon(completions)
            work.cancel()

    try:
        first = await pieces.get()
        if first is None:
            work.result()  # raises its error, if it has one
    except BaseException:
        _abandon(completions)
        work.cancel()
        raise
    return choices(first)


def _choice(index: int, text: str, reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


def _usage(
    query: Query,
    completions: Sequence[Completion],
    texts: Sequence[Text],
) -> dict[str, int]:
    """Returns how many tokens a request had; a prompt counts once, whatever its samples."""
    of_prompts = sum(len(each.prompt.tokens) for each in completions[:: query.samples])
    of_texts = sum(text.num_tokens for text in texts)
    return {
        "prompt_tokens": of_prompts,
        "completion_tokens": of_texts,
        "total_tokens": of_prompts + of_texts,
    }


def _error(message: str, status: int) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def _page(name: str) -> Response:
    return PlainTextResponse(_PAGE.format(name=name))
