"""Line-aligned text files: pairs, fingerprints, and one message for every fault of a file."""

import bz2
import codecs
import functools
import gzip
import lzma
import os
import pathlib
import tracemalloc

import pyarrow
import pytest

from jaxformer.cli.text import read_text
from jaxformer.config import DataConfig
from jaxformer.data.corpus import open_corpus
from jaxformer.data.file_corpora import TextCorpus
from jaxformer.data.text_files import fingerprint_files, read_file
from jaxformer.errors import UserError

zstd = functools.partial(pyarrow.compress, codec="zstd", asbytes=True)
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
            "train.en.gz",
            gzip.compress(ENGLISH[:9]) + gzip.compress(ENGLISH[9:]),
        ),
        "bzip2": ("train.en.bz2", bz2.compress(ENGLISH, 1)),
        "xz": ("train.en.xz", lzma.compress(ENGLISH[:9]) + lzma.compress(ENGLISH[9:])),
        "Zstandard": ("train.en.zst", zstd(ENGLISH[:9]) + zstd(ENGLISH[9:])),
    }.items(),
)
def test_the_same_text_in_other_bytes_is_the_same_corpus(name, content, prefix):
    file, data = content
    plain = pathlib.Path("train.en")
    plain.unlink()
    pathlib.Path(file).write_bytes(data)

    assert list(TextCorpus("en", "de").pairs(prefix)) == PAIRS
    assert list(open_corpus(DataConfig(corpus="text")).pairs(prefix)) == PAIRS

    # A fingerprint is of the bytes that a file is unpacked to.
    found = TextCorpus("en", "de").fingerprint(prefix)
    pathlib.Path(file).unlink()
    plain.write_bytes(ENGLISH)
    same_bytes = name not in ("CRLF", "byte-order mark", "no end of the last line")
    assert (found == TextCorpus("en", "de").fingerprint(prefix)) == same_bytes


def test_fingerprint_depends_on_content_and_sides(prefix):
    one = TextCorpus("en", "de").fingerprint(prefix)
    other = TextCorpus("de", "en").fingerprint(prefix)

    # Move a line from the end of one side to the start of the other.
    pathlib.Path("train.en").write_bytes(ENGLISH.removesuffix(b"three\n"))
    pathlib.Path("train.de").write_bytes("three\neins\nleer\nzwei\ndreißig\n".encode())
    moved = TextCorpus("en", "de").fingerprint(prefix)

    assert len({one, other, moved}) == 3


HINDI = "हाँ, यह सही है।\nनहीं\n"
CHINESE = "他上船了。\n一天\n是2009年。\n"
TEXT = "naïve\nfour\nfive\nsix\n"
GZIP = gzip.compress(ENGLISH * 99)
COUNTS = r"as many lines in train\.en as in train\.de: got"
BROKEN = r"train\.en\.gz: expected a whole gzip file: .*"
# Content of train.en, or of train.en.gz if the message says so.
CONTENTS = [
    (ENGLISH + b"x\nx\n", rf"{COUNTS} 6 and 4; line n of one must translate line n of the other"),
    (b"one\ntw\xffo\n", r"en:2: not UTF-8: byte 0xff at position 3 of the line; convert .*iconv"),
    (TEXT.encode("windows-1252"), r"en:1: not UTF-8: .*iconv -f WINDOWS-1252 -t UTF-8"),
    (b"one\n\xed\xa0\x80\n", r"train\.en:2: not UTF-8: byte 0xed .*iconv"),
    *(
        (text.encode(name), rf"en:1: expected UTF-8 text, got {name}; .*iconv -f {name} -t UTF-8")
        for name in ("UTF-16", "UTF-32", "UTF-16LE", "UTF-16BE", "UTF-32LE", "UTF-32BE")
        for text in (TEXT, "a", HINDI, CHINESE)
    ),
    (CHINESE.encode("gb18030"), "en:1: expected UTF-8 text, got another encoding; .*-f ENCODING"),
    (b"PK\3\4\x14", "en:1: expected UTF-8 text, got zip, or a document .*; convert it with unzip"),
    (GZIP, r"train\.en:1: expected UTF-8 text, got gzip; convert it with gunzip, or name it \.gz"),
    (b"one\nni\0ne\n", r"en:2: expected text, got a NUL byte at position 3 .*remove the NUL"),
    (b"x" * 10**6 + b"\n", "en:1: expected one sentence per line, of at most 1,000,000 bytes"),
    (GZIP[:-12], rf"{BROKEN}; copy it again, or compress it with gzip"),
    (GZIP + b"rubbish", rf"{BROKEN}Not a gzipped file .*; copy it again"),
]


@pytest.mark.parametrize(("content", "message"), CONTENTS, ids=[m[:50] for _, m in CONTENTS])
def test_faults_of_content_are_refused(content, message, prefix):
    path = pathlib.Path("train.en")
    path.unlink()
    is_compressed = message.startswith(BROKEN)
    file = pathlib.Path("train.en.gz") if is_compressed else path
    file.write_bytes(content)

    with pytest.raises(UserError, match=message):
        list(TextCorpus("en", "de").pairs(prefix))

    if "expected UTF-8" in message:  # The other readers report bad lines one by one.
        for lines in (read_text(path).lines(), read_file(path)):
            with pytest.raises(UserError, match=message):
                list(lines)


# What is made of train.en, and the message.
PLACES = [
    (lambda path: None, r"en: no such file, nor one with \.gz, .*; did you mean train\.\w+\?"),
    (lambda path: path.with_name("train.en.zip").touch(), "en: no .*; unpack or rename train.en.z"),
    (pathlib.Path.mkdir, r"en: expected a file, this is a folder; name a file"),
    (os.mkfifo, r"en: expected a file, this is a pipe or a device, which can be read only once"),
    (lambda path: path.symlink_to("gone"), r"en: a link to gone, which does not exist; mount or"),
]


@pytest.mark.parametrize(("make", "message"), PLACES)
def test_what_is_no_file_is_refused(make, message, prefix):
    path = pathlib.Path("train.en")
    path.unlink()
    make(path)

    with pytest.raises(UserError, match=rf"train\.{message}"):
        TextCorpus("en", "de").fingerprint(prefix)


def test_a_file_in_place_of_a_prefix_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("train.en").touch()
    hint = (
        r"train\.en\.en: no such file, .*; train\.en is a file: leave out \.en, or name its format"
    )
    with pytest.raises(UserError, match=hint):
        TextCorpus("en", "de").fingerprint("train.en")


def test_a_compressed_line_of_100_megabytes_takes_little_memory(tmp_path):
    path = tmp_path / "text.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"one line\n")
        for _ in range(100):
            file.write(b"a" * 1_000_000)
    assert path.stat().st_size < 1_000_000

    tracemalloc.start()
    with pytest.raises(UserError, match=r"text\.gz:2: expected one sentence per line, of at mo"):
        list(read_file(path))
    fingerprint_files([path])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 10_000_000
