"""Prepares public corpora: converts downloaded files to the files that configs read.

Each function takes the folder of the downloaded files, and returns the contents of the prepared
files by name. Archives are never extracted to disk. A ``UserError`` names an unexpected file.
"""

import gzip
import hashlib
import itertools
import pathlib
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping

from jaxformer.errors import UserError, prefix_errors

Prepared = dict[str, bytes]
Pairs = list[tuple[str, str]]

_MAX_BYTES = 64 << 20  # largest file that is read from an archive
# One in this many English sentences, with all its translations, is for validation.
_TATOEBA_SHARE = 100
# The last entity is replaced last, so that "&amp;lt;" becomes "&lt;".
_ENTITIES = {
    "&lt;": "<",
    "&gt;": ">",
    "&quot;": '"',
    "&apos;": "'",
    "&amp;": "&",
}
# Trees of the Wall Street Journal in the order of NLTK's files; the rest is kept for tests.
_WSJ_SPLITS = {
    "train": slice(0, 3262),
    "dev": slice(3262, 3501),
}


def unpack(downloads: pathlib.Path, digests: Mapping[str, str]) -> Prepared:
    """Unpacks gzip files, given the SHA-256 of their contents by name, without ``.gz``."""
    prepared = {}
    for name, digest in digests.items():
        path = downloads / f"{name}.gz"
        damage = (EOFError, gzip.BadGzipFile, zlib.error)
        with prefix_errors(f"{path}: expected a whole gzip file", *damage):
            content = gzip.decompress(path.read_bytes())

        found = hashlib.sha256(content).hexdigest()
        if found != digest:
            raise UserError(f"{path}: expected SHA-256 of the content {digest}, got {found}")
        prepared[name] = content

    return prepared


def tatoeba(downloads: pathlib.Path) -> Prepared:
    """Splits Tatoeba's pairs by the hashes of their sentences.

    No pair moves to the other split in a new edition of the corpus. No sentence of either language
    is in both splits. The pairs are ordered by hash, since the original begins with the shortest.
    """
    archive = _Archive(downloads / "deu-eng.zip", "deu.txt")
    pairs = _tatoeba_pairs(archive.text("deu.txt"))

    valid = set()
    valid_sources = set()
    valid_targets = set()
    for source, target in pairs:
        if _hash(source) % _TATOEBA_SHARE == 0:
            valid.add((source, target))
            valid_sources.add(source)
            valid_targets.add(target)

    train = set()
    for source, target in pairs:
        if source not in valid_sources and target not in valid_targets:
            train.add((source, target))

    return _line_aligned(_sort_by_hash(train), _sort_by_hash(valid), "de")


def _tatoeba_pairs(text: str) -> set[tuple[str, str]]:
    """Returns the pairs of a file with a pair, and its origin, per line."""
    pairs = set()
    for line in text.split("\n"):
        fields = line.split("\t")
        if len(fields) < 2:
            continue
        source, target = fields[:2]
        if source and target:
            pairs.add((source, target))
    return pairs


def _sort_by_hash(pairs: set[tuple[str, str]]) -> Pairs:
    def hash_of_both(pair: tuple[str, str]) -> int:
        return _hash("\t".join(pair))

    return sorted(pairs, key=hash_of_both)


def newstest(
    downloads: pathlib.Path,
    target: str,
    sets: tuple[str, ...],
) -> Prepared:
    """Joins the test sets of WMT, except newstest2013, which is for validation.

    ``sets`` has year and name of the sets of 2015 and later, such as "15 newstest2015-ende".
    """
    years = [f"newstest{year}" for year in range(2009, 2014)]
    years = ["newssyscomb2009", "news-test2008", *years]
    any_year = "|".join(years)
    pattern = rf"dev/({any_year})\.(en|{target})"
    archive = _Archive(downloads / "dev.tgz", pattern)

    parts = []
    for year in years:
        sides = []
        for language in ("en", target):
            text = _join_blanks(archive.text(f"dev/{year}.{language}"))
            lines = text.removesuffix("\n").split("\n")
            sides.append(lines)

        source_lines, target_lines = sides
        parts.append(archive.read_aligned(source_lines, target_lines))

    # The last one is newstest2013.
    valid = parts.pop()
    for each in sets:
        year, name = each.split()
        parts.append(_sgml_set(downloads, target, year=year, name=name))

    train = list(itertools.chain.from_iterable(parts))
    return _line_aligned(train, valid, target)


def craft(downloads: pathlib.Path) -> Prepared:
    """Joins the trees of CRAFT's articles in its own splits, one tree per line."""
    ids = "articles/ids/craft-ids-"
    trees = "structural-annotation/treebank/penn/"
    wanted = rf"LICENSE\.txt|{ids}(train|dev)\.txt|{trees}\d+\.tree"
    archive = _Archive(downloads / "craft-v5.0.2.tar.gz", wanted, folder="[^/]+/")

    prepared = {"LICENSE.txt": archive.content("LICENSE.txt")}
    for split in ("train", "dev"):
        lines = []
        articles = archive.text(f"{ids}{split}.txt").split()
        for article in articles:
            text = archive.text(f"{trees}{article}.tree")
            lines += _trees(text)
        prepared[f"{split}.trees"] = _lines(lines)

    return prepared


def wsj_sample(downloads: pathlib.Path) -> Prepared:
    """Splits NLTK's sample of the Penn Treebank in the order of its trees, one tree per line."""
    archive = _Archive(downloads / "treebank.zip", r"treebank/combined/wsj_\d{4}\.mrg")

    trees = []
    for name in sorted(archive.files):
        text = archive.text(name)
        trees += _trees(text)

    needed = max(part.stop for part in _WSJ_SPLITS.values())
    if len(trees) < needed:
        raise UserError(f"{archive.path}: expected at least {needed:,} trees, got {len(trees):,}")

    prepared = {}
    for split, part in _WSJ_SPLITS.items():
        prepared[f"{split}.trees"] = _lines(trees[part])
    return prepared


def _sgml_set(
    downloads: pathlib.Path,
    target: str,
    year: str,
    name: str,
) -> Pairs:
    """Returns the pairs of a test set; ``name`` ends in its direction, such as "-ende"."""
    folder = "test" if int(year) < 19 else "sgm"
    source = "en" if name.endswith(f"-en{target}") else target

    path = downloads / f"wmt{year}-test.tgz"
    archive = _Archive(path, rf"{folder}/{name}-.*\.sgm")

    sides = []
    for language in ("en", target):
        kind = "src" if language == source else "ref"
        text = archive.text(f"{folder}/{name}-{kind}.{language}.sgm")
        sides.append(_segments(text))

    source_lines, target_lines = sides
    return archive.read_aligned(source_lines, target_lines)


def _segments(text: str) -> list[str]:
    """Returns the segments of a file in WMT's SGML, with the same blanks as in sacreBLEU."""
    segments = re.findall(r"^<seg .*?>(.*)</seg>", text, flags=re.MULTILINE)
    for entity, character in _ENTITIES.items():
        segments = [segment.replace(entity, character) for segment in segments]

    joined = []
    for segment in segments:
        words = segment.split()
        joined.append(" ".join(words))
    return joined


def _trees(text: str) -> Iterator[str]:
    """Yields the bracketed trees of a text, each on one line."""
    depth = 0
    start = 0
    for bracket in re.finditer(r"[()]", text):
        if bracket[0] == "(":
            if depth == 0:
                start = bracket.start()
            depth += 1
            continue

        depth -= 1
        if depth == 0:
            tree = text[start : bracket.end()]
            on_one_line = tree.replace("\n", " ")
            yield _join_blanks(on_one_line)


class _Archive:
    """The files of an archive whose names match a pattern, except links and files too large."""

    def __init__(
        self,
        path: pathlib.Path,
        pattern: str,
        folder: str = "",
    ) -> None:
        """Reads the files; their names here are without the ``folder``, another pattern."""
        self.path = path
        self.files: dict[str, bytes] = {}
        self._wanted = re.compile(f"{folder}({pattern})")

        # What a damaged archive raises is not documented.
        with prefix_errors(f"{path}: expected a whole archive", Exception):
            if path.suffix == ".zip":
                self._read_zip()
            else:
                self._read_tar()

    def _read_zip(self) -> None:
        with zipfile.ZipFile(self.path) as archive:
            for member in archive.infolist():
                match = self._wanted.fullmatch(member.filename)
                if match and member.file_size <= _MAX_BYTES:
                    name = match[1]
                    self.files[name] = archive.read(member)

    def _read_tar(self) -> None:
        with tarfile.open(self.path, "r:gz") as archive:
            for member in archive:
                match = self._wanted.fullmatch(member.name)
                if not match or member.size > _MAX_BYTES:
                    continue

                if member.isreg():
                    file = archive.extractfile(member)
                    assert file is not None, "a regular file has content"
                    name = match[1]
                    self.files[name] = file.read()

    def content(self, name: str) -> bytes:
        if name not in self.files:
            raise UserError(
                f"{self.path}: expected a file {name} of at most {_MAX_BYTES:,} bytes in the "
                "archive, found none"
            )

        return self.files[name]

    def text(self, name: str) -> str:
        with prefix_errors(f"{self.path}: expected UTF-8 text in the archive", UnicodeDecodeError):
            content = self.content(name)
            return content.decode("utf-8-sig")

    def read_aligned(self, source: list[str], target: list[str]) -> Pairs:
        """Returns the pairs of a test set, whose sides must have equally many lines."""
        if len(source) != len(target) or not source:
            raise UserError(
                f"{self.path}: expected two sides of a test set with as many lines each: got "
                f"{len(source):,} and {len(target):,}"
            )

        return list(zip(source, target, strict=True))


def _line_aligned(
    train: Pairs,
    valid: Pairs,
    language: str,
) -> Prepared:
    """Returns the files of both splits: the English side and the other one."""
    prepared = {}
    splits = {"train": train, "valid": valid}
    for split, pairs in splits.items():
        sources = (source for source, _ in pairs)
        targets = (target for _, target in pairs)
        prepared[f"{split}.en"] = _lines(sources)
        prepared[f"{split}.{language}"] = _lines(targets)
    return prepared


def _join_blanks(text: str) -> str:
    """Returns text with one space between words of a line. Non-ASCII blanks are unchanged."""
    single = re.sub(r"[ \t\r]+", " ", text)
    stripped_lines = re.sub(r" *\n", "\n", single)
    return stripped_lines.strip(" ")


def _lines(lines: Iterable[str]) -> bytes:
    text = "".join(f"{line}\n" for line in lines)
    return text.encode()


def _hash(text: str) -> int:
    digest = hashlib.sha256(text.encode()).hexdigest()
    return int(digest, 16)
