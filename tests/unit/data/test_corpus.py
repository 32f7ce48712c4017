import codecs
import gzip
import pathlib

import pytest

from jaxformer.config import DataConfig
from jaxformer.data.corpus import open_corpus
from jaxformer.data.text_corpus import TextCorpus
from jaxformer.data.text_files import read_file
from jaxformer.errors import UserError


@pytest.fixture
def prefix(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "train.en").write_bytes(b"one\r\n\ntwo\xc2\x85half\nthree")
    (tmp_path / "train.de").write_bytes("eins\nleer\nzwei\ndreißig\n".encode())
    return tmp_path / "train"


CORPUS = TextCorpus("en", "de")
PAIRS = [("one", "eins"), ("", "leer"), ("two\x85half", "zwei"), ("three", "dreißig")]


def test_only_newlines_end_lines(prefix: pathlib.Path):
    assert list(CORPUS.pairs(str(prefix))) == PAIRS
    config = DataConfig(corpus="text")
    assert list(open_corpus(config).pairs(str(prefix))) == PAIRS


def test_compressed_files_are_the_same_corpus(prefix: pathlib.Path):
    plain = CORPUS.fingerprint(str(prefix))
    english = prefix.with_suffix(".en")
    prefix.with_suffix(".en.gz").write_bytes(gzip.compress(english.read_bytes()))
    english.unlink()
    packed = TextCorpus("en", "de")
    assert list(packed.pairs(str(prefix))) == PAIRS
    assert packed.fingerprint(str(prefix)) == plain


def test_fingerprint_depends_on_content_and_sides(prefix: pathlib.Path):
    prints = {CORPUS.fingerprint(str(prefix)), TextCorpus("de", "en").fingerprint(str(prefix))}
    prefix.with_suffix(".en").write_bytes(b"other\n\ntwo\nthree\n")
    prints.add(TextCorpus("en", "de").fingerprint(str(prefix)))
    # Move a line from the end of one side to the start of the other.
    assert len(prints) == 3


def test_pairs_are_read_lazily(prefix: pathlib.Path):
    prefix.with_suffix(".en").write_bytes(b"fine\n" * 100_000 + b"\xff\n")
    assert next(CORPUS.pairs(str(prefix))) == ("fine", "eins")


@pytest.mark.parametrize("longer", ["en", "de"])
def test_different_line_counts(prefix: pathlib.Path, longer: str):
    with prefix.with_suffix(f".{longer}").open("ab") as stream:
        stream.write(b"\nx\nx\n" if longer == "en" else b"x\nx\n")
    counts = "6 and 4" if longer == "en" else "4 and 6"
    with pytest.raises(UserError, match=rf"train.en as in .*train.de: got {counts}"):
        list(CORPUS.pairs(str(prefix)))


def test_bytes_that_are_not_utf8(prefix: pathlib.Path):
    prefix.with_suffix(".de").write_bytes(b"eins\nleer\nzw\xfflf\ndrei\n")
    with pytest.raises(UserError, match=r"train.de:3: not UTF-8: byte 0xff at position 3 .*iconv"):
        list(CORPUS.pairs(str(prefix)))


def test_missing_files(prefix: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match=r"trian.en: no such file, nor trian.en.gz; did you mean "):
        list(CORPUS.pairs(str(prefix.with_name("trian"))))
    with pytest.raises(UserError, match=r"zzz.en: no such file, nor zzz.en.gz; name another"):
        CORPUS.fingerprint(str(prefix.with_name("zzz")))
    with pytest.raises(UserError, match=r"no such file: there is no folder .*nowhere"):
        CORPUS.fingerprint(str(prefix.parent / "nowhere" / "train"))
    monkeypatch.setenv("JAXFORMER_DATA", str(prefix.parent))
    with pytest.raises(UserError, match="set JAXFORMER_DATA to the folder that holds nowhere/, or"):
        CORPUS.fingerprint(str(prefix.parent / "nowhere" / "train"))


def test_damaged_and_unreadable_files(tmp_path: pathlib.Path):
    packed = gzip.compress(b"line\n" * 1000)
    for content in (packed[:-12], b"plain text", packed[:20] + b"\x00\xff" * 8 + packed[36:]):
        (tmp_path / "a.en.gz").write_bytes(content)
        with pytest.raises(UserError, match=r"a.en.gz: expected a whole gzip file: .*copy it"):
            list(read_file(tmp_path / "a.en.gz"))
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        list(read_file(tmp_path))
    with pytest.raises(UserError, match="gone: cannot be read: No such file"):
        list(read_file(tmp_path / "gone"))


def test_a_byte_order_mark_before_the_first_line_is_left_out(tmp_path: pathlib.Path):
    content = codecs.BOM_UTF8 + "eins\n\ufeffzwei\n".encode()
    (tmp_path / "a.de").write_bytes(content)
    (tmp_path / "a.de.gz").write_bytes(gzip.compress(content))
    expected = content.decode("utf-8-sig").split("\n")[:-1]
    for name in ("a.de", "a.de.gz"):
        assert list(read_file(tmp_path / name)) == expected
