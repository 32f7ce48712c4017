"""Every public corpus, from a server on this machine with files in the form of its origin."""

import dataclasses
import functools
import gzip
import hashlib
import io
import re
import shutil
import sys
import tarfile
import zipfile

import pytest
from sacrebleu.dataset import DATASETS

from jaxformer.cli import main
from jaxformer.data import catalog, preparation
from jaxformer.data.catalog import CATALOG, download_corpus
from jaxformer.data.text_files import find_file
from jaxformer.errors import UserError
from jaxformer.files import data_directory

# Test sets in the order of the prepared file.
YEARS = [f"newstest{year}" for year in range(2009, 2013)]
DEV = ["newssyscomb2009", "news-test2008", *YEARS]
TESTS = {
    "de": [
        ("wmt15", "en-de"),
        ("wmt16", "en-de"),
        ("wmt17", "en-de"),
        ("wmt18", "en-de"),
        ("wmt19", "en-de"),
        ("wmt19", "de-en"),
        ("wmt20", "en-de"),
        ("wmt20", "de-en"),
    ],
    "fr": [("wmt15", "en-fr")],
}


def joined(lines):
    return "".join(f"{line}\n" for line in lines).encode()


def tar(files, kind=tarfile.REGTYPE):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.type = kind
            member.linkname = "/etc/hostname"
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def zipped(files):
    """Returns a zip archive with files, and with one that leads out of the folder."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {"../evil": b"x", **files}.items():
            archive.writestr(name, content)
    return packed.getvalue()


def newstest(target):
    """Returns the archives of the test sets. sacreBLEU knows the names of their files."""
    prepared = {}
    dev = {}
    tests = {}
    for language in ("en", target):
        names = [*DEV, *TESTS[target]]
        lines = [f"R&D of {name} in {language}" for name in names]
        prepared[f"train.{language}"] = joined(lines)
        prepared[f"valid.{language}"] = b"valid\n"

        dev[f"dev/newstest2013.{language}"] = b"valid\n"
        for name, line in zip(DEV, lines, strict=False):
            dev[f"dev/{name}.{language}"] = joined([line])

        lines_of_tests = lines[len(DEV) :]
        for (year, pair), line in zip(TESTS[target], lines_of_tests, strict=True):
            side = pair.split("-").index(language)
            member = DATASETS[year].langpairs[pair][side]
            archive = tests.setdefault(f"{year}-test.tgz", {})
            archive[member] = sgml(line)

    archives = {"dev.tgz": tar(dev)}
    for name, files in tests.items():
        archives[name] = tar(files)
    return archives, prepared


def sgml(line):
    """Returns a file of a test set with one sentence."""
    body = line.replace("&", "&amp;")
    return f'<srcset setid="s">\n<doc docid="d">\n<seg id="1">{body}</seg>\n</doc>\n'.encode()


def tree(word, space=" "):
    return f"( (S (NP (DT the) (NN {word})){space}(VP (VBZ works)) (. .)) )"


def craft():
    """Returns an archive with two articles for each split, and one for none."""
    folder = "CRAFT-5.0.2/structural-annotation/treebank/penn/"
    files = {
        "CRAFT-5.0.2/LICENSE.txt": b"CC BY\n",
        f"{folder}99.tree": tree("hidden").encode(),
    }
    prepared = {"LICENSE.txt": b"CC BY\n"}

    for split, articles in {"train": (11, 12), "dev": (21, 22)}.items():
        files[f"CRAFT-5.0.2/articles/ids/craft-ids-{split}.txt"] = joined(articles)
        for article in articles:
            files[f"{folder}{article}.tree"] = tree(article, "\n   ").encode()
        prepared[f"{split}.trees"] = joined(map(tree, articles))

    return {"craft-v5.0.2.tar.gz": tar(files)}, prepared


def wsj_sample():
    """Returns an archive with twenty trees a file, each on several lines."""
    files = {
        "treebank/README": b"Hello",
        "treebank/tagged/wsj_0001.pos": b"[ the/DT ]",
    }
    for number in range(196):
        trees = [tree(20 * number + i, "\n    ") for i in range(20)]
        content = "\n\n".join(trees)
        files[f"treebank/combined/wsj_{number + 1:04}.mrg"] = content.encode()

    prepared = {
        "train.trees": joined(map(tree, range(3262))),
        "dev.trees": joined(map(tree, range(3262, 3501))),
    }
    return {"treebank.zip": zipped(files)}, prepared


ORIGINS = {
    "newstest": functools.partial(newstest, "de"),
    "newstest-fr": functools.partial(newstest, "fr"),
    "craft": craft,
    "wsj-sample": wsj_sample,
}


def origin_of(name):
    """Returns the files of the origin, and the prepared files that they become."""
    if name in ORIGINS:
        return ORIGINS[name]()

    prepared = {}
    packed = {}
    for file in CATALOG[name].files:
        content = f"{file} of {name}\n".encode()
        prepared[file] = content
        packed[f"{file}.gz"] = gzip.compress(content)

    files = packed if name == "multi30k" else prepared
    return files, prepared


def hashes_of(corpus, files):
    """Returns the hashes of files, by the algorithms of the catalog."""
    hashes = {}
    for file, known in corpus.hashes.items():
        if file in files:
            algorithm, _, _ = known.partition(":")
            digest = hashlib.new(algorithm, files[file]).hexdigest()
            hashes[file] = f"{algorithm}:{digest}"
    return hashes


def unpacks(files):
    """Returns the preparation of packed files, which knows the hashes of what is in them."""
    digests = {}
    for file, content in files.items():
        unpacked = gzip.decompress(content)
        digests[file.removesuffix(".gz")] = hashlib.sha256(unpacked).hexdigest()
    return functools.partial(preparation.unpack, digests=digests)


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXFORMER_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def publish(server, data, monkeypatch):
    """Returns a function that puts the files of a corpus on the server."""
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)

    def publish(name, files):
        corpus = CATALOG[name]
        server.files = {}
        urls = {}
        for file in corpus.urls:
            path = f"/{name}/{file}"
            server.files[path] = files[file]
            urls[file] = server.url + path

        corpus = dataclasses.replace(corpus, urls=urls, hashes=hashes_of(corpus, files))
        if name == "multi30k":
            corpus = dataclasses.replace(corpus, prepare=unpacks(files))
        monkeypatch.setitem(catalog.CATALOG, name, corpus)
        return corpus

    return publish


def read(folder, corpus):
    return {name: (folder / name).read_bytes() for name in corpus.files}


@pytest.mark.parametrize("name", [name for name in CATALOG if name != "tatoeba"])
def test_command_downloads_and_prepares(name, data, publish, server, capsys):
    files, prepared = origin_of(name)
    corpus = publish(name, files)

    assert main(["data", name]) == 0
    out, _ = capsys.readouterr()
    assert f"{name}: {data / corpus.folder} ({corpus.license})" in out
    for file, content in prepared.items():
        digest = hashlib.sha256(content).hexdigest()
        assert f"  {file}: {len(content):,} bytes, SHA-256 {digest}" in out
    has_known_digests = any(corpus.files.values())
    assert ("not as in docs/corpora.md" in out) == has_known_digests

    assert read(data / corpus.folder, corpus) == prepared
    assert not list(data.parent.rglob("evil"))

    asked = len(server.requests)
    assert main(["data", name]) == 0  # It is there, and not downloaded again.
    assert len(server.requests) == asked


def test_no_sentence_of_tatoeba_crosses_the_splits_nor_moves_in_a_new_edition(publish, data):
    def splits(pairs):
        origin = "CC-BY 2.0 (France) Attribution: someone"
        rows = [f"{en}\t{de}\t{origin}" for en, de in pairs]
        archive = zipped({"deu.txt": joined(rows)})
        corpus = publish("tatoeba", {"deu-eng.zip": archive})
        files = read(download_corpus(corpus), corpus)
        shutil.rmtree(data)

        def pairs_of(split):
            english = files[f"{split}.en"].decode().splitlines()
            german = files[f"{split}.de"].decode().splitlines()
            return list(zip(english, german, strict=True))

        return pairs_of("train"), pairs_of("valid")

    # Many translations of one sentence, in both directions.
    many = []
    for n in range(2000):
        sentence = n % 700
        translation = n // 3 % 650
        many.append((f"sentence {sentence}", f"Satz {translation}"))
    copies = many[:50]
    half_empty = [("", "leer"), ("empty", "")]
    train, valid = splits(many + copies + half_empty)
    for side in (0, 1):
        of_train = {pair[side] for pair in train}
        of_valid = {pair[side] for pair in valid}
        assert not of_train & of_valid
    assert set(train) | set(valid) <= set(many)
    assert train != sorted(train, key=many.index)

    # Without copies.
    assert len(set(train)) == len(train) > 1800
    assert len(set(valid)) == len(valid) > 9

    more = [(f"new sentence {n}", f"neuer Satz {n}") for n in range(300)]
    later_train, later_valid = splits(more + many[::-1])
    known_train = set(train)
    assert [pair for pair in later_train if pair in known_train] == train
    known_valid = set(valid)
    assert [pair for pair in later_valid if pair in known_valid] == valid


def test_names_and_list(data, capsys):
    folder = data / "tinyshakespeare"
    folder.mkdir(parents=True)
    (folder / "input.txt").touch()

    assert main(["data"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"corpora in {data}; docs/data.md describes them:"
    found = {}
    for line in lines[2:]:
        name, state, *_ = line.split()
        found[name] = state
    assert list(found) == list(CATALOG)
    assert found == dict.fromkeys(CATALOG, "absent") | {"shakespeare": "present"}

    assert main(["data", "multi3k"]) == 2
    assert capsys.readouterr().err == "error: unknown corpus multi3k; did you mean multi30k?\n"


def test_without_a_network_the_file_is_named_and_then_used(data, publish, server, capsys):
    """The same command prepares files that a user has copied to the folder."""
    files, prepared = origin_of("multi30k")
    corpus = publish("multi30k", files)
    server.files.clear()
    folder = data / "downloads" / "multi30k"
    folder.mkdir(parents=True)

    # One file is there, and the next one is asked for.
    (folder / "train.en.gz").write_bytes(files["train.en.gz"])
    assert main(["data", "multi30k"]) == 2
    assert re.fullmatch(
        rf"error: {server.url}/multi30k/train.de.gz: cannot be downloaded; run the same command "
        rf"again .*, or put the file there yourself as {folder}/train.de.gz: 404 Client .*\n",
        capsys.readouterr().err,
    )
    assert not (data / "multi30k").exists()  # No part of a corpus that looks like a whole.

    for name, content in files.items():
        (folder / name).write_bytes(content)
    for content, message in (
        (files["train.de.gz"], r"train.en.gz: expected SHA-256 of the content \w+, got"),
        (files["train.en.gz"][:-9], r"train.en.gz: expected a whole gzip file"),
    ):
        (folder / "train.en.gz").write_bytes(content)
        with pytest.raises(UserError, match=message):
            download_corpus(corpus)

    (folder / "train.en.gz").write_bytes(files["train.en.gz"])
    assert main(["data", "multi30k"]) == 0
    assert read(data / "multi30k", corpus) == prepared


def test_only_whole_files_with_the_right_hash_get_their_names(data, publish, server):
    files, _ = origin_of("shakespeare")
    corpus = publish("shakespeare", files)
    (address,) = server.files
    (known,) = corpus.hashes.values()
    path = data / corpus.folder / "input.txt"

    for content, sent in ((files["input.txt"], 0.5), (b"another text", 1)):
        server.files[address] = content
        server.sent = sent
        with pytest.raises(UserError, match=f"yourself as {path}, whose hash is {known}: "):
            download_corpus(corpus)
        assert not list(path.parent.iterdir())

    assert len(server.requests) == 6  # Two retries each.


def test_without_its_package_a_download_says_what_to_install(publish, monkeypatch):
    files, _ = origin_of("shakespeare")
    corpus = publish("shakespeare", files)

    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(UserError, match=r"pooch, .*: pip install '\.\[download\]'$"):
        download_corpus(corpus)


LICENSE = {"CRAFT-5.0.2/LICENSE.txt": b""}
DAMAGED = [
    ("tatoeba", b"<html>", "expected a whole archive: File is not a zip file"),
    ("tatoeba", zipped({"fra.txt": b"x"}), "expected a file deu.txt of at most 67,108,864 bytes"),
    ("tatoeba", zipped({"deu.txt": b"\xff"}), "expected UTF-8 text in the archive"),
    ("craft", tar({"a": b"x" * 5000})[:-30], "expected a whole archive"),
    ("craft", b"<html>", "expected a whole archive: not a gzip file"),
    ("craft", tar(LICENSE, tarfile.SYMTYPE), "expected a file LICENSE.txt of at most 67,108,864"),
    ("wsj-sample", zipped({"a": b"x"}), "expected at least 3,501 trees, got 0"),
]


@pytest.mark.parametrize(("name", "content", "message"), DAMAGED, ids=[m for *_, m in DAMAGED])
def test_damaged_archives(name, content, message, publish, data):
    (file,) = CATALOG[name].urls
    corpus = publish(name, {file: content})

    with pytest.raises(UserError, match=re.escape(message)) as caught:
        download_corpus(corpus)

    shown = str(caught.value)
    assert str(data / "downloads" / name / file) in shown
    assert shown.endswith("; delete this file and run the same command again")
    assert not (data / corpus.folder).exists()


def test_a_missing_corpus_is_explained(data, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"no such file.*; get it with: jaxformer data multi30k"):
        find_file(data / "multi30k/train.en")
    with pytest.raises(UserError, match="set JAXFORMER_DATA to the folder that holds ptb/, or nam"):
        find_file(data / "ptb/wsj-22.trees")

    monkeypatch.delenv("JAXFORMER_DATA")
    monkeypatch.setenv("JAXFORMER_CACHE", str(tmp_path))
    assert data_directory() == tmp_path / "data"
