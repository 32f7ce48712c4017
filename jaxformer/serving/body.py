"""Fields of a request, read from its URL and from its body: JSON, a form or multipart."""

import codecs
import email
import email.message
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias, cast
from urllib.parse import parse_qsl

from jaxformer.errors import UserError

# Names and values in order; a name can occur several times. In JSON, a value can be anything.
Fields: TypeAlias = list[tuple[str, Any]]

_TYPES = "application/json, application/x-www-form-urlencoded or multipart/form-data"
# Python's names of the charsets that requests may have. Its other codecs are not for text, or are
# slow for hostile bytes.
_CHARSETS = ("ascii", "cp1252", "iso8859-1", "utf-8")
_MAX_FIELDS = 1000  # of a form; --batch-limit has the limit of the texts


def parse_url(query: bytes) -> Fields:
    """Returns the parameters of a URL."""
    return _with_list(_parse_form(query, "utf-8", "URL"))


def parse_body(body: bytes, content_type: str) -> Fields:
    """Returns the fields of a body, or raises a ``UserError``."""
    if not body:
        return []

    # In lower case, since media types and charsets are case-insensitive (RFC 9110, 8.3).
    header = email.message.Message()
    header["Content-Type"] = content_type
    kind = header.get_content_type()
    subtype = header.get_content_subtype()
    charset = header.get_content_charset() or "utf-8"

    if subtype == "json" or subtype.endswith("+json"):
        return _parse_json(body, charset)
    if kind == "application/x-www-form-urlencoded":
        return _with_list(_parse_form(body, charset, "form"))
    if kind == "multipart/form-data":
        return _with_list(_parse_multipart(body, header, charset))
    raise UserError(
        f"Invalid request: expected the content type {_TYPES}: got {content_type[:80] or 'none'}"
    )


def _with_list(fields: Iterable[tuple[str, Any]]) -> Fields:
    """Joins several fields ``q``, the texts to translate, to one field with a list.

    A form can express a list only by repeating a name.
    """
    pairs = list(fields)
    texts = [value for name, value in pairs if name == "q"]
    if len(texts) < 2:
        return pairs

    others = [(name, value) for name, value in pairs if name != "q"]
    return [("q", texts), *others]


def _decode(text: bytes, charset: str, what: str) -> str:
    """Decodes a text of a request; ``what`` names it in error messages, as in "the form"."""
    codec = _codec(charset)
    try:
        return text.decode(codec)
    except UnicodeDecodeError:
        raise UserError(f"Invalid request: expected the {what} in {charset:.20}") from None


def _codec(charset: str) -> str:
    """Returns Python's name of a charset that requests may have."""
    try:
        name = codecs.lookup(charset).name
    except (LookupError, ValueError):  # A name with a NUL is a ValueError.
        name = ""

    if name not in _CHARSETS:
        raise UserError(f"Invalid request: charset {charset:.20} is not supported; send UTF-8")
    return name


class _Pairs(list[tuple[str, Any]]):
    """The members of a JSON object; a dictionary would keep only the last of equal names."""


def _parse_json(body: bytes, charset: str) -> Fields:
    # The first bytes of JSON tell UTF-8, UTF-16 and UTF-32 apart.
    is_unicode = re.fullmatch("utf-?(8|16|32)([-_]?[bl]e)?", charset)
    codec = json.detect_encoding(body) if is_unicode else _codec(charset)

    try:
        text = body.decode(codec).removeprefix("\ufeff")
        fields = json.loads(text, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        raise UserError("Invalid JSON format") from None

    if not isinstance(fields, _Pairs):
        raise UserError("Invalid JSON format")
    return fields


def _parse_form(form: bytes, charset: str, what: str) -> Fields:
    codec = _codec(charset)
    text = _decode(form, charset, what)

    # Bytes may also be escaped, as in "%C3%A9"; these are decoded here.
    try:
        return parse_qsl(
            text,
            keep_blank_values=True,
            encoding=codec,
            errors="strict",
            max_num_fields=_MAX_FIELDS,
        )
    except UnicodeDecodeError:
        raise UserError(f"Invalid request: expected the {what} in {charset:.20}") from None
    except ValueError:
        raise UserError(f"Invalid request: more than {_MAX_FIELDS} fields") from None


def _parse_multipart(
    body: bytes,
    header: email.message.Message,
    charset: str,
) -> Iterator[tuple[str, str]]:
    """Yields the fields of multipart/form-data (RFC 7578), each in the charset of its part."""
    # The parts are counted before they are parsed, since parsing takes time for each part.
    boundary = header.get_boundary() or ""
    delimiter = f"--{boundary}".encode(errors="replace")
    if body.count(delimiter) > _MAX_FIELDS:
        raise UserError(f"Invalid request: more than {_MAX_FIELDS} fields")

    head = f"Content-Type: {header['Content-Type']}\r\n\r\n".encode("latin-1")
    message = email.message_from_bytes(head + body)
    if message.defects or not message.is_multipart():
        raise UserError("Invalid request: expected whole parts of multipart/form-data")

    for part in cast(list[email.message.Message], message.get_payload()):
        name = part.get_param("name", header="Content-Disposition")
        content = part.get_payload(decode=True)
        if not isinstance(name, str) or not isinstance(content, bytes):
            raise UserError("Invalid request: expected parts of multipart/form-data with names")
        if part.get_filename() is not None:
            raise UserError(f"Invalid request: expected a text as {name:.20}, got a file")

        charset_of_part = part.get_content_charset() or charset
        yield name, _decode(content, charset_of_part, f"field {name:.20}")
