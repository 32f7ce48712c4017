"""Sentence pairs from translation memories: TMX and XLIFF, which are read unit by unit."""

import abc
import contextlib
import pathlib
import xml.etree.ElementTree
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxformer.data import text_files
from jaxformer.data.file_corpora import RecordCorpus, find_files
from jaxformer.errors import UserError

# Elements within a segment that hold markup of the document, and no text.
_CODES = ("bpt", "ept", "it", "ph", "ut", "x", "bx", "ex", "sc", "ec")
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
# XML names its own encoding. These begin UTF-16, which other text may not have.
_WIDE_STARTS = (b"\xff\xfe", b"\xfe\xff", b"<\0", b"\0<")
_CHUNK_BYTES = 1 << 16

Element = xml.etree.ElementTree.Element


class Segment(NamedTuple):
    """A sentence in one language, with the element that holds its text."""

    language: str
    element: Element


class TranslationMemory(RecordCorpus):
    """Files of units, each with a sentence in several languages.

    A sentence has the right language if it is the config's, or a variety of it: for "en",
    "en-US" is right. Units without both languages are left out.

    Attributes:
      root: Name of the first element of a file.
      units: Names of the elements that are units.
    """

    root: str
    units: tuple[str, ...]

    def __init__(self, source_language: str, target_language: str) -> None:
        super().__init__(source_language, target_language)
        self._left_out: dict[pathlib.Path, int] = {}

    def languages_of(self, element: Element) -> tuple[str, str] | None:
        """Returns source and target language of all units in an element, if it names them."""
        return None

    @abc.abstractmethod
    def segments(self, unit: Element, languages: tuple[str, str]) -> Iterator[Segment]:
        """Yields the sentences of a unit; ``languages`` are the ones that hold for it."""

    @contextlib.contextmanager
    def open(self, path: pathlib.Path) -> Iterator[Any]:
        with text_files.open_bytes(path, check=_check_format) as stream:
            yield stream

    def lines(self, path: pathlib.Path) -> Sequence[object]:
        return [f"unit {number}" for number, _ in self._pairs(path)]

    def rows(self, path: pathlib.Path) -> Iterator[tuple[str, str]]:
        for number, row in self._pairs(path):
            yield self.pair(row, f"{path}:unit {number}")

    def notes(self, split: str) -> list[str]:
        """Returns a line for each file that has units without both languages."""
        notes = []
        for path in find_files(split):
            count = self._left_out.get(path)
            if count:
                notes.append(f"{path}: {count:,} units without both languages are left out")
        return notes

    def _pairs(self, path: pathlib.Path) -> Iterator[tuple[int, dict[str, str]]]:
        """Yields the numbers of the units with both languages, and their texts by language."""
        found: set[str] = set()
        units = 0
        pairs = 0
        for texts in self._texts(path):
            units += 1
            found |= texts.keys()
            row = {}
            for language in self.columns:
                name = _matching_language(language, texts)
                if name is not None:
                    row[language] = texts[name]
            if len(row) == len(self.columns):
                pairs += 1
                yield units, row

        if not pairs:
            wanted = " and ".join(self.columns)
            languages = ", ".join(sorted(found)) or "no language"
            raise UserError(
                f"{path}: expected units in {wanted}, got {units:,} units in {languages}; give "
                "--config.data.source_language and --config.data.target_language"
            )
        self._left_out[path] = units - pairs

    def _texts(self, path: pathlib.Path) -> Iterator[dict[str, str]]:
        """Yields the texts of each unit by language; holds one unit in memory."""
        languages = ("", "")
        parents: list[Element] = []
        with self.open(path) as stream:
            for event, element in _parse(stream, path):
                if event == "start":
                    if not parents:
                        self._check_root(element, path)
                    languages = self.languages_of(element) or languages
                    parents.append(element)
                    continue

                parents.pop()
                if _name_of(element) in self.units:
                    texts: dict[str, str] = {}
                    for segment in self.segments(element, languages):
                        texts.setdefault(segment.language, _text_of(segment.element))
                    yield texts

                    if parents:
                        parents[-1].remove(element)

    def _check_root(self, element: Element, path: pathlib.Path) -> None:
        name = _name_of(element)
        if name != self.root:
            raise UserError(
                f"{path}: expected <{self.root}> as the first element, got <{name}>; name the "
                "format of the file in data.corpus"
            )


class TmxCorpus(TranslationMemory):
    """TMX files: a ``<tu>`` has a ``<tuv>`` with a ``<seg>`` for each language."""

    kind = "tmx"
    root = "tmx"
    units = ("tu",)

    def segments(self, unit: Element, languages: tuple[str, str]) -> Iterator[Segment]:
        for variant in _children(unit, "tuv"):
            language = variant.get(_LANGUAGE) or variant.get("lang", "")  # "lang" is TMX 1.1
            for element in _children(variant, "seg"):
                yield Segment(language, element)


class XliffCorpus(TranslationMemory):
    """XLIFF files, 1.2 and 2: a unit has a ``<source>`` and, once translated, a ``<target>``."""

    kind = "xliff"
    root = "xliff"
    units = ("trans-unit", "segment")

    def languages_of(self, element: Element) -> tuple[str, str] | None:
        source = element.get("source-language") or element.get("srcLang")
        if source is None:
            return None
        target = element.get("target-language") or element.get("trgLang")
        return source, target or ""

    def segments(self, unit: Element, languages: tuple[str, str]) -> Iterator[Segment]:
        for name, language in zip(("source", "target"), languages, strict=True):
            for element in _children(unit, name):
                yield Segment(language, element)


def _check_format(head: bytes, name: str) -> None:
    if not head.startswith(_WIDE_STARTS):
        text_files.check_format(head, name)


def _parse(stream: Any, path: pathlib.Path) -> Iterator[tuple[str, Element]]:
    """Yields the starts and ends of the elements of an XML file; reads no other file."""
    parser = xml.etree.ElementTree.XMLPullParser(("start", "end"))
    chunk = b" "
    while chunk:
        chunk = stream.read(_CHUNK_BYTES)
        try:
            if chunk:
                parser.feed(chunk)
            else:
                parser.close()
            events: Any = list(parser.read_events())
        except (xml.etree.ElementTree.ParseError, LookupError, ValueError) as error:
            raise UserError(
                f"{path}: expected a whole XML file: {error}; get it again, or name its format "
                "in data.corpus"
            ) from None
        yield from events


def _children(element: Element, name: str) -> Iterator[Element]:
    for child in element:
        if _name_of(child) == name:
            yield child


def _name_of(element: Element) -> str:
    """Returns the name of an element without its namespace."""
    return element.tag.rpartition("}")[2]


def _text_of(segment: Element) -> str:
    """Returns the text of a segment without the markup in it."""
    texts = []
    # What is still to be read, the last first; no recursion, since a file may nest deeply.
    pending: list[Element | str] = [segment]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            texts.append(item)
            continue
        if _name_of(item) in _CODES:
            continue

        texts.append(item.text or "")
        for child in reversed(item):
            pending += [child.tail or "", child]
    return "".join(texts)


def _matching_language(language: str, texts: Mapping[str, str]) -> str | None:
    """Returns the name of a language in a file: the same, or else its first variety."""
    wanted = _normalize(language)
    varieties = []
    for name in texts:
        normalized = _normalize(name)
        if normalized == wanted:
            return name
        if normalized.startswith(f"{wanted}-"):
            varieties.append(name)
    return varieties[0] if varieties else None


def _normalize(language: str) -> str:
    """Returns a language as in "en-us": programs write EN-US and en_US, too."""
    return language.replace("_", "-").lower()
