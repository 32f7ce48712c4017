"""Preparation of public corpora: from the files of their origin to the files that configs read.

Each function takes the folder of the downloaded files, and returns the contents of the prepared
files by name. Archives are read, and nothing of them is extracted to disk.
"""

import gzip
import hashlib
import pathlib
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping

from jaxformer.errors import UserError

Prepared = dict[str, bytes]

# Largest file that is read from an archive.
_MOST_BYTES = 64 << 20
# One English sentence in so many, with all its translations, is for validation.
_TATOEBA_SHARE = 100
# The last entity is replaced last, so that "&amp;lt;" becomes "&lt;".
_ENTITIES = {"&lt;": "<", "&gt;": ">", "&quot;": '"', "&apos;": "'", "&amp;": "&"}
# Trees of the Wall Street Journal in the order of NLTK's files; the rest is kept for tests.
_WSJ_SPLITS = {"train": slice(0, 3262), "dev": slice(3262, 3501)}


def unpack(downloads: pathlib.Path, digests: Mapping[str, str]) -> Prepared:
    """Unpacks gzip files.

    Args:
      downloads: Their folder.
      digests: SHA-256 of their contents by name, without ``.gz``.

    Raises:
      UserError: A file is damaged, or its content has another hash.
    """
    prepared = {}
    for name, digest in digests.items():
        path = downloads / f"{name}.gz"
        try:
            prepared[name] = gzip.decompress(path.read_bytes())
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UserError(f"{path}: expected a whole gzip file: {error}") from None
        if (found := hashlib.sha256(prepared[name]).hexdigest()) != digest:
            raise UserError(f"{path}: expected SHA-256 of the content {digest}, got {found}")
    return prepared


def tatoeba(downloads: pathlib.Path) -> Prepared:
    """Splits Tatoeba's pairs by the hashes of their sentences.

    No pair moves to the other split in a new edition of the corpus. No sentence of either language
    is in both splits. The pairs are ordered by hash, since the origin begins with the shortest.

    Raises:
      UserError: The archive does not have the pairs.
    """
    path = downloads / "deu-eng.zip"
    (content,) = _read_all(path, ["deu.txt"])
    fields = (line.split("\t") for line in _text(path, content).split("\n"))
    pairs = sorted({(row[0], row[1]) for row in fields if len(row) > 1 and row[0] and row[1]})
    valid = [pair for pair in pairs if _hash(pair[0]) % _TATOEBA_SHARE == 0]
    targets = {target for _, target in valid}
    sources = {source for source, _ in valid}
    train = [pair for pair in pairs if pair[0] not in sources and pair[1] not in targets]
    prepared = {}
    for split, found in {"train": train, "valid": valid}.items():
        found.sort(key=lambda pair: _hash("\t".join(pair)))
        for side, language in enumerate(("en", "de")):
            prepared[f"{split}.{language}"] = _lines(pair[side] for pair in found)
    return prepared


def newstest(downloads: pathlib.Path, target: str, sets: tuple[str, ...]) -> Prepared:
    """Joins the test sets of WMT, but for newstest2013, which is for validation.

    Args:
      downloads: Folder of the archives.
      target: Language beside English.
      sets: Sets of 2015 and later: year and name, such as "15 newstest2015-ende".

    Raises:
      UserError: An archive does not have a set, or its two sides have different numbers of lines.
    """
    languages = ("en", target)
    years = ("newssyscomb2009", "news-test2008", *(f"newstest{year}" for year in range(2009, 2014)))
    path = downloads / "dev.tgz"
    names = [f"dev/{year}.{language}" for year in years for language in languages]
    texts = [
        _blanks(_text(path, content)).removesuffix("\n").split("\n")
        for content in _read_all(path, names)
    ]
    parts = [_aligned(path, *sides) for sides in zip(texts[::2], texts[1::2], strict=True)]
    *train, valid = parts
    train += [_sgml_set(downloads, target, *name.split()) for name in sets]
    prepared = {}
    for split, found in {"train": train, "valid": [valid]}.items():
        for side, language in enumerate(languages):
            prepared[f"{split}.{language}"] = _lines(line for part in found for line in part[side])
    return prepared


def craft(downloads: pathlib.Path) -> Prepared:
    """Joins the trees of CRAFT's articles in its own splits, one tree a line.

    Raises:
      UserError: The archive does not have the trees.
    """
    path = downloads / "craft-v5.0.2.tar.gz"
    ids, trees = "articles/ids/craft-ids-", "structural-annotation/treebank/penn/"
    wanted = rf"[^/]+/(LICENSE\.txt|{ids}(train|dev)\.txt|{trees}\d+\.tree)"
    found = {
        name.partition("/")[2]: content for name, content in _read_archive(path, wanted).items()
    }
    (license_text,) = _members(path, found, ["LICENSE.txt"])
    prepared = {"LICENSE.txt": license_text}
    for split in ("train", "dev"):
        (articles,) = _members(path, found, [f"{ids}{split}.txt"])
        names = [f"{trees}{article}.tree" for article in _text(path, articles).split()]
        texts = [_text(path, content) for content in _members(path, found, names)]
        prepared[f"{split}.trees"] = _lines(tree for text in texts for tree in _trees(text))
    return prepared


def wsj_sample(downloads: pathlib.Path) -> Prepared:
    """Splits NLTK's sample of the Penn Treebank by the order of its trees, one tree a line.

    Raises:
      UserError: The archive does not have the trees.
    """
    path = downloads / "treebank.zip"
    found = _read_archive(path, r"treebank/combined/wsj_\d{4}\.mrg")
    trees = [tree for name in sorted(found) for tree in _trees(_text(path, found[name]))]
    most = max(part.stop for part in _WSJ_SPLITS.values())
    if len(trees) < most:
        raise UserError(f"{path}: expected at least {most:,} trees, got {len(trees):,}")
    return {f"{split}.trees": _lines(trees[part]) for split, part in _WSJ_SPLITS.items()}


def _sgml_set(
    downloads: pathlib.Path, target: str, year: str, name: str
) -> tuple[list[str], list[str]]:
    """Returns the two sides of a test set; ``name`` ends in its direction, such as "-ende"."""
    path = downloads / f"wmt{year}-test.tgz"
    folder = "test" if int(year) < 19 else "sgm"
    source, *_ = languages = ("en", target) if name.endswith(f"-en{target}") else (target, "en")
    kinds = {language: "src" if language == source else "ref" for language in languages}
    names = [f"{folder}/{name}-{kinds[lang]}.{lang}.sgm" for lang in ("en", target)]
    return _aligned(path, *(_segments(_text(path, content)) for content in _read_all(path, names)))


def _segments(text: str) -> list[str]:
    """Returns the segments of a file in WMT's SGML, with the blanks that sacreBLEU leaves."""
    segments = re.findall(r"^<seg .*?>(.*)</seg>", text, flags=re.MULTILINE)
    for entity, character in _ENTITIES.items():
        segments = [segment.replace(entity, character) for segment in segments]
    return [" ".join(segment.split()) for segment in segments]


def _trees(text: str) -> Iterator[str]:
    """Yields the bracketed trees of a text, each on one line."""
    depth = start = 0
    for bracket in re.finditer(r"[()]", text):
        if bracket[0] == "(":
            start = bracket.start() if depth == 0 else start
            depth += 1
        else:
            depth -= 1
            if depth == 0:
                yield _blanks(text[start : bracket.end()].replace("\n", " "))


def _aligned(
    path: pathlib.Path, source: list[str], target: list[str]
) -> tuple[list[str], list[str]]:
    if len(source) != len(target) or not source:
        raise UserError(
            f"{path}: expected two sides of a test set with as many lines each: got "
            f"{len(source):,} and {len(target):,}"
        )
    return source, target


def _read_archive(path: pathlib.Path, pattern: str) -> dict[str, bytes]:
    """Returns the contents of files of a zip or tar archive by name, for names that match.

    Links are left out, and so are files that are implausibly large.

    Raises:
      UserError: The archive is damaged.
    """
    wanted = re.compile(pattern).fullmatch
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                return {
                    member.filename: archive.read(member)
                    for member in archive.infolist()
                    if wanted(member.filename) and member.file_size <= _MOST_BYTES
                }
        with tarfile.open(path, "r:gz") as archive:
            return {
                member.name: archive.extractfile(member).read()  # type: ignore
                for member in archive
                if wanted(member.name) and member.isreg() and member.size <= _MOST_BYTES
            }
    except Exception as error:  # of many classes: what a damaged archive raises is not documented
        raise UserError(f"{path}: expected a whole archive: {error}") from None


def _read_all(path: pathlib.Path, names: list[str]) -> list[bytes]:
    return _members(path, _read_archive(path, "|".join(map(re.escape, names))), names)


def _members(path: pathlib.Path, found: dict[str, bytes], names: list[str]) -> list[bytes]:
    """Returns the contents of all names.

    Raises:
      UserError: The archive does not have one of them.
    """
    missing = [name for name in names if name not in found]
    if missing:
        raise UserError(
            f"{path}: expected a file {missing[0]} of at most {_MOST_BYTES:,} bytes in the "
            "archive, found none"
        )
    return [found[name] for name in names]


def _text(path: pathlib.Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: expected UTF-8 text in the archive: {error}") from None


def _blanks(text: str) -> str:
    """Returns text with one space between words of a line. Blanks beyond ASCII are unchanged."""
    return re.sub(r" *\n", "\n", re.sub(r"[ \t\r]+", " ", text)).strip(" ")


def _lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _hash(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest(), 16)
