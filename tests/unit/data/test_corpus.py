"""Line-aligned text files: pairs, fingerprints, and one message for every fault of a file."""

import codecs
import gzip
import io
import os
import pathlib
import tracemalloc

import pytest

from jaxformer.config import DataConfig
from jaxformer.data.corpus import open_corpus
from jaxformer.data.text_corpus import TextCorpus
from jaxformer.data.text_files import bounded_lines, fingerprint_files, read_file
from jaxformer.errors import UserError

CORPUS = TextCorpus("en", "de")
ENGLISH = b"one\n\ntwo\xc2\x85half\nthree\n"
PAIRS = [("one", "eins"), ("", "leer"), ("two\x85half", "zwei"), ("three", "dreißig")]


@pytest.fixture
def prefix(tmp_path, monkeypatch):
    """Returns the name of a split in the working directory, relative to it."""
    monkeypatch.chdir(tmp_path)
    pathlib.Path("train.en").write_bytes(ENGLISH)
    pathlib.Path("train.de").write_bytes("eins\nleer\nzwei\ndreißig\n".encode())
    return "train"


@pytest.mark.parametrize(
    ("name", "content"),
    {
        "plain": ("train.en", ENGLISH),
        "CRLF": ("train.en", ENGLISH.replace(b"\n", b"\r\n")),
        "byte-order mark": ("train.en", codecs.BOM_UTF8 + ENGLISH),
        "no end of the last line": ("train.en", ENGLISH[:-1]),
        "gzip": ("train.en.gz", gzip.compress(ENGLISH)),
        "gzip in two pieces": (
            *("train.en.gz", gzip.compress(ENGLISH[:9]) + gzip.compress(ENGLISH[9:])),
        ),
    }.items(),
)
def test_the_same_text_in_other_bytes_is_the_same_corpus(name, content, prefix):
    pathlib.Path("train.en").unlink()
    pathlib.Path(content[0]).write_bytes(content[1])
    assert list(TextCorpus("en", "de").pairs(prefix)) == PAIRS
    assert list(open_corpus(DataConfig(corpus="text")).pairs(prefix)) == PAIRS
    same_bytes = name in ("plain", "gzip", "gzip in two pieces")
    found = TextCorpus("en", "de").fingerprint(prefix)
    pathlib.Path(content[0]).unlink()
    pathlib.Path("train.en").write_bytes(ENGLISH)
    assert (found == TextCorpus("en", "de").fingerprint(prefix)) == same_bytes


def test_fingerprint_depends_on_content_and_sides(prefix):
    prints = {TextCorpus(*sides).fingerprint(prefix) for sides in (("en", "de"), ("de", "en"))}
    # Move a line from the end of one side to the start of the other.
    pathlib.Path("train.en").write_bytes(ENGLISH.removesuffix(b"three\n"))
    pathlib.Path("train.de").write_bytes("three\neins\nleer\nzwei\ndreißig\n".encode())
    assert len(prints | {TextCorpus("en", "de").fingerprint(prefix)}) == 3


def test_pairs_are_read_lazily(prefix):
    pathlib.Path("train.en").write_bytes(b"fine\n" * 100_000 + b"\xff\n")
    assert next(CORPUS.pairs(prefix)) == ("fine", "eins")


def flip_middle(whole):
    middle = len(whole) // 2
    return whole[:middle] + bytes([whole[middle] ^ 0xFF]) + whole[middle + 1 :]


TEXT = "naïve\nfour\nfive\nsix\n"
GZIP = gzip.compress(ENGLISH * 99)
COUNTS = r"as many lines in train\.en as in train\.de: got"
BROKEN = r"train\.en\.gz: expected a whole gzip file: .*"
# Content of train.en, or of train.en.gz if the message says so.
CONTENTS = [
    (ENGLISH + b"x\nx\n", rf"{COUNTS} 6 and 4; line n of one must translate line n of the other"),
    (b"one\n\n", rf"{COUNTS} 2 and 4"),
    (b"", rf"{COUNTS} 0 and 4"),
    (b"one\ntw\xffo\n", r"en:2: not UTF-8: byte 0xff at position 3 of the line; convert .*iconv"),
    (b"one\nf\xc3", r"en:2: not UTF-8: byte 0xc3 at position 2 .*iconv"),
    (TEXT.encode("windows-1252"), r"en:1: not UTF-8: .*iconv -f WINDOWS-1252 -t UTF-8"),
    (b"one\n\xed\xa0\x80\n", r"train\.en:2: not UTF-8: byte 0xed .*iconv"),
    (TEXT.encode("utf-16"), r"en:1: expected UTF-8 text, got UTF-16; .*iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff" + TEXT.encode("utf-16-be"), r"en:1: expected UTF-8 text, got UTF-16; convert it"),
    (b"o\0n\0\n\0", r"en:1: expected text, got a NUL byte at position 2 .*iconv -f UTF-16 -t UTF"),
    (b"one\nni\0ne\n", r"en:2: expected text, got a NUL byte at position 3 .*remove the NUL"),
    (GZIP, r"train\.en:1: expected UTF-8 text, got gzip; convert it with gunzip, or name it \.gz"),
    (b"PK\x03\x04", r"en:1: expected UTF-8 text, got zip; convert it with unzip"),
    (b"PAR1\x15\x04", r"en:1: expected UTF-8 text, got Parquet; convert it with a program that"),
    (b"\xfd7zXZ\0\0\x04", r"en:1: expected UTF-8 text, got xz; convert it with unxz"),
    (b"x" * 10**6 + b"\n", r"en:1: expected one sentence a line, of at most 1,000,000 bytes, got"),
    (GZIP[:-12], rf"{BROKEN}; copy it again, or compress it with gzip"),
    (GZIP + b"rubbish", rf"{BROKEN}Not a gzipped file .*; copy it again"),
    (flip_middle(GZIP), rf"{BROKEN}; copy it again"),
    (b"plain text", rf"{BROKEN}Not a gzipped file .* compress it with gzip"),
]


@pytest.mark.parametrize(("content", "message"), CONTENTS, ids=[m[:50] for _, m in CONTENTS])
def test_faults_of_content_are_refused(content, message, prefix):
    pathlib.Path("train.en").unlink()
    pathlib.Path("train.en.gz" if message.startswith(BROKEN) else "train.en").write_bytes(content)
    with pytest.raises(UserError, match=message):
        list(TextCorpus("en", "de").pairs(prefix))


PLACES = [
    (lambda path: None, r"en: no such file, nor train\.en\.gz; did you mean train\.\w+\?"),
    (pathlib.Path.mkdir, r"en: expected a file, this is a folder; name a file"),
    (os.mkfifo, r"en: expected a file, this is a pipe or a device, which can be read only once"),
    (lambda path: path.symlink_to("/dev/zero"), r"en: expected a file, this is a pipe or a device"),
    (lambda path: path.symlink_to("gone"), r"en: a link to gone, which does not exist; mount or"),
    (lambda path: path.symlink_to(path), r"en: cannot be read: Too many levels of symbolic links"),
]


@pytest.mark.parametrize(("make", "message"), PLACES)
def test_what_is_no_file_is_refused(make, message, prefix):
    pathlib.Path("train.en").unlink()
    make(pathlib.Path("train.en"))
    with pytest.raises(UserError, match=rf"train\.{message}"):
        TextCorpus("en", "de").fingerprint(prefix)


@pytest.mark.parametrize(
    ("split", "data", "message"),
    [
        ("trian", None, r"^trian\.en: no such file, nor trian\.en\.gz; did you mean train\.en\?"),
        ("zzz", None, r"zzz\.en: no such file, nor zzz\.en\.gz; name another"),
        ("no/train", None, r"no/train\.en: no such file: there is no folder no; name another"),
        ("no/train", ".", "set JAXFORMER_DATA to the folder that holds no/, or"),
    ],
)
def test_missing_files(split, data, message, prefix, monkeypatch):
    if data:
        monkeypatch.setenv("JAXFORMER_DATA", data)
    with pytest.raises(UserError, match=message):
        TextCorpus("en", "de").fingerprint(split)


def test_unreadable_files(tmp_path):
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        list(read_file(tmp_path))
    with pytest.raises(UserError, match="gone: cannot be read: No such file"):
        list(read_file(tmp_path / "gone"))


def test_only_the_byte_order_mark_before_the_first_line_is_left_out(tmp_path):
    (tmp_path / "a.de").write_bytes(codecs.BOM_UTF8 + "eins\n\ufeffzwei\n".encode())
    assert list(read_file(tmp_path / "a.de")) == ["eins", "\ufeffzwei"]


def test_a_compressed_line_of_100_megabytes_takes_little_memory(tmp_path):
    path = tmp_path / "text.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"one line\n")
        for _ in range(100):
            file.write(b"a" * 1_000_000)
    assert path.stat().st_size < 1_000_000
    for read in (lambda: list(read_file(path)), lambda: fingerprint_files([path])):
        tracemalloc.start()
        with pytest.raises(UserError, match=r"text\.gz:2: expected one sentence a line, of at mo"):
            read()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 10_000_000


def test_longest_line():
    lines = [b"a" * 999_999 + b"\n", b"b\r\n", b"c"]
    assert list(bounded_lines(io.BytesIO(b"".join(lines)).readline, "text")) == lines
    with pytest.raises(UserError, match="text:1: "):
        list(bounded_lines(io.BytesIO(b"a" + b"".join(lines)).readline, "text"))
