"""Translations over HTTP, with LibreTranslate's protocol, and a page to try the model."""

import importlib.resources
import re
from typing import Any

from starlette.applications import Starlette
from starlette.responses import Response

from jaxformer.plots.attention_page import source_hash
from jaxformer.serving import protocol
from jaxformer.serving.backend import Backend
from jaxformer.serving.body import Fields
from jaxformer.serving.limits import Limits
from jaxformer.serving.protocol import Sentence, Translation
from jaxformer.serving.server import Service, Submit, make_server


def make_app(backend: Backend, limits: Limits, *, split: bool = False) -> Starlette:
    """Returns an ASGI application that translates with a model, for one event loop.

    If ``split``, the lines of a text are paragraphs, which it splits into sentences.
    """
    languages = backend.languages

    async def translate(fields: Fields, submit: Submit[Sentence, Translation]) -> Any:
        query = protocol.parse_query(fields, languages, limits, split=split)
        translations = await submit(query.sentences)
        return protocol.make_answer(query, translations, languages)

    async def detect(fields: Fields, submit: Submit[Sentence, Translation]) -> Any:
        return protocol.detect(fields, languages)

    service = Service(
        compute=backend.translate,
        posts={"/translate": translate, "/detect": detect},
        gets={
            "/languages": protocol.list_languages(languages),
            "/frontend/settings": protocol.list_settings(languages, limits, backend.name),
        },
        page=_page,
        error=lambda message, status: {"error": message},
        failure="Cannot translate text",
    )
    return make_server(service, limits)


def _page() -> Response:
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
