"""Every public corpus, from a server on this machine with files in the form of its origin.

The files of the origins are made from the prepared ones, by the formats that the origins document.
"""

import dataclasses
import errno
import gzip
import hashlib
import io
import pathlib
import re
import shutil
import tarfile
import zipfile

import pytest
from sacrebleu.dataset import DATASETS

from jaxformer.cli import main
from jaxformer.data import archives, catalog
from jaxformer.data.catalog import CATALOG
from jaxformer.data.checksum import Checksum
from jaxformer.data.fetching import MissingFilesError, fetch
from jaxformer.data.text_files import find_file
from jaxformer.errors import UserError
from jaxformer.files import data_directory, lock_folder

from .conftest import serve

# Test sets in the order of the prepared file, with their sizes in lines.
OLD = {"newssyscomb2009": 502, "news-test2008": 2051, "newstest2009": 2525, "newstest2010": 2489}
OLD |= {"newstest2011": 3003, "newstest2012": 3003}
GERMAN = {("wmt15", "en-de"): 2169, ("wmt16", "en-de"): 2999, ("wmt17", "en-de"): 3004}
GERMAN |= {("wmt18", "en-de"): 2998, ("wmt19", "en-de"): 1997, ("wmt19", "de-en"): 2000}
GERMAN |= {("wmt20", "en-de"): 1418, ("wmt20", "de-en"): 785}
NEW = {"newstest": GERMAN, "newstest-fr": {("wmt15", "en-fr"): 1500}}
TREE = "( (S (NP (DT the) (NN gene)) (VP (VBZ works)) (. .)) )"


def lines_of(content):
    return content.decode().removesuffix("\n").split("\n")


def joined(lines):
    return "".join(f"{line}\n" for line in lines).encode()


def tar(files):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def zipped(files):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def tatoeba_origin(pairs):
    rows = [f"{en}\t{de}\tCC-BY 2.0 (France) Attribution: somebody" for en, de in pairs]
    return {"deu-eng.zip": zipped({"_about.txt": b"Hello", "deu.txt": joined(rows)})}


def sgml(lines):
    """Returns a test set in WMT's format, with the names of its sets as sacreBLEU expects them."""
    escaped = (line.replace("&", "&amp;") for line in lines)
    body = "".join(f'<seg id="{n}">{line}</seg>\n' for n, line in enumerate(escaped, 1))
    return f'<srcset setid="s" srclang="any">\n<doc docid="d">\n<p>\n{body}</p></doc>\n'.encode()


def newstest_origin(name, prepared):
    """Returns the archives of the test sets. sacreBLEU knows their names."""
    target = "fr" if name == "newstest-fr" else "de"
    dev, tests = {}, {}
    for language in ("en", target):
        lines = lines_of(prepared[f"train.{language}"])
        scale = 1 if len(lines) > 10_000 else 10_000
        start = 0
        for key, size in (OLD | NEW[name]).items():
            size = max(1, size // scale)
            part, start = lines[start : start + size], start + size
            if isinstance(key, str):
                dev[f"dev/{key}.{language}"] = joined(part)
            else:
                year, pair = key
                side = pair.split("-").index(language)
                member = DATASETS[year].langpairs[pair][side]
                tests.setdefault(f"{year}-test.tgz", {})[member] = sgml(part)
        assert start == len(lines)
        dev[f"dev/newstest2013.{language}"] = prepared[f"valid.{language}"]
    return {"dev.tgz": tar(dev)} | {file: tar(members) for file, members in tests.items()}


def craft_origin(prepared):
    """Returns the archive of CRAFT: articles begin with their titles, and have splits."""
    root = "CRAFT-5.0.2/"
    files = {root + "LICENSE.txt": prepared["LICENSE.txt"], root + "README.md": b"Hello"}
    for first, split in ((10**7, "train"), (2 * 10**7, "dev")):
        articles = []
        for tree in lines_of(prepared[f"{split}.trees"]):
            if not articles or tree.startswith("( (TITLE"):
                articles.append([])
            articles[-1].append(tree)
        ids = joined(first + number for number in range(len(articles)))
        files[f"{root}articles/ids/craft-ids-{split}.txt"] = ids
        for number, trees in enumerate(articles):
            folder = f"{root}structural-annotation/treebank/penn/"
            files[f"{folder}{first + number}.tree"] = joined(trees)
    files[f"{root}structural-annotation/treebank/penn/99.tree"] = b"( (S (NN hidden)) )\n"
    return {"craft-v5.0.2.tar.gz": tar(files)}


def wsj_origin(prepared):
    """Returns the archive of NLTK: twenty trees a file, each on several lines."""
    trees = lines_of(prepared["train.trees"]) + lines_of(prepared["dev.trees"]) + [TREE] * 413
    files = {"treebank/README": b"Hello", "treebank/tagged/wsj_0001.pos": b"[ the/DT ]"}
    for number, start in enumerate(range(0, len(trees), 20), 1):
        text = "\n\n".join(tree.replace(" (VP", "\n    (VP") for tree in trees[start : start + 20])
        files[f"treebank/combined/wsj_{number:04}.mrg"] = f"\n{text}\n".encode()
    return {"treebank.zip": zipped(files)}


def tatoeba_pairs(files, split):
    sides = (lines_of(files[f"{split}.{language}"]) for language in ("en", "de"))
    return list(zip(*sides, strict=True))


def origin_of(name, prepared):
    """Returns the files of the origin by name, made from the prepared files."""
    if name == "multi30k":
        return {f"{file}.gz": gzip.compress(content) for file, content in prepared.items()}
    if name.startswith("newstest"):
        return newstest_origin(name, prepared)
    if name == "tatoeba":
        return tatoeba_origin(tatoeba_pairs(prepared, "train") + tatoeba_pairs(prepared, "valid"))
    origins = {"craft": craft_origin, "wsj-sample": wsj_origin}
    return origins[name](prepared) if name in origins else prepared


def small(name):
    """Returns prepared files of a corpus, in the right format but with other text."""
    sides = {"newstest": ("en", "de"), "newstest-fr": ("en", "fr"), "tatoeba": ("en", "de")}
    if name in sides:
        counts = {"train": len(OLD | NEW.get(name, {})), "valid": 3}
        return {
            f"{split}.{side}": joined(f"{split} R&D {n} in {side}" for n in range(count))
            for split, count in counts.items()
            for side in sides[name]
        }
    if name in ("craft", "wsj-sample"):
        counts = {"train": 3262, "dev": 239} if name == "wsj-sample" else {"train": 7, "dev": 5}
        trees = {
            split: joined(TREE.replace("gene", f"{split}{n}") for n in range(count))
            for split, count in counts.items()
        }
        files = {f"{split}.trees": content for split, content in trees.items()}
        return files | ({"LICENSE.txt": b"CC BY\n"} if name == "craft" else {})
    return {file: f"{file} of {name}\n".encode() for file in CATALOG[name].files}


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXFORMER_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def publish(server, data, monkeypatch):
    """Returns a function that puts the files of a corpus on the server."""

    def digest_of(checksum, content):
        if checksum is None:
            return None
        if checksum.unpacked:
            content = gzip.decompress(content)
        return dataclasses.replace(
            checksum, digest=hashlib.new(checksum.algorithm, content).hexdigest()
        )

    def publish(name, files):
        changed = []
        for file in CATALOG[name].origin:
            content, address = files[file.name], f"/{name}/{file.name}"
            server.answers[address] = serve(content, cut_after=len(content) // 2 + 1)
            checksum = digest_of(file.checksum, content)
            own = {"url": server.url + address, "checksum": checksum, "largest": 10**8}
            changed.append(dataclasses.replace(file, **own))
        corpus = dataclasses.replace(CATALOG[name], origin=tuple(changed))
        monkeypatch.setitem(catalog.CATALOG, name, corpus)
        return corpus

    return publish


def read(folder, corpus):
    return {name: (folder / name).read_bytes() for name in corpus.files}


@pytest.mark.parametrize("name", [name for name in CATALOG if name != "tatoeba"])
def test_command_downloads_and_prepares(name, data, publish, server, capsys):
    prepared = small(name)
    corpus = publish(name, origin_of(name, prepared))
    assert main(["data", name]) == 0
    out, _ = capsys.readouterr()
    assert f"{name}: {data / corpus.folder} ({corpus.license})" in out
    for file, content in prepared.items():
        digest = hashlib.sha256(content).hexdigest()
        assert f"  {file}: {len(content):,} bytes, SHA-256 {digest}" in out
    assert ("not as in docs/data.md" in out) == any(corpus.files.values())
    assert read(data / corpus.folder, corpus) == prepared
    asked = len(server.requests)
    assert main(["data", name]) == 0  # It is there, and not downloaded again.
    assert len(server.requests) == asked


@pytest.mark.ci
@pytest.mark.parametrize("name", ["multi30k", "newstest", "newstest-fr", "craft", "wsj-sample"])
def test_preparation_gives_the_files_that_results_are_measured_on(name, real_data, data, publish):
    folder = real_data(CATALOG[name].folder)
    prepared = read(folder, CATALOG[name])
    corpus = publish(name, origin_of(name, prepared))
    found = read(fetch(corpus), corpus)
    assert found == prepared
    for file, digest in corpus.files.items():
        assert digest in ("", hashlib.sha256(found[file]).hexdigest())


def splits(publish, pairs):
    corpus = publish("tatoeba", tatoeba_origin(pairs))
    files = read(fetch(corpus), corpus)
    return [tatoeba_pairs(files, split) for split in ("train", "valid")]


# Many translations of one sentence, in both directions.
MANY = [(f"sentence {n % 700}", f"Satz {n // 3 % 650}") for n in range(2000)]


def test_no_sentence_of_tatoeba_crosses_the_splits(publish):
    train, valid = splits(publish, [*MANY, *MANY[:50], ("", "leer"), ("empty", "")])
    for side in (0, 1):
        assert not {pair[side] for pair in train} & {pair[side] for pair in valid}
    assert set(train) | set(valid) <= set(MANY)
    assert len(set(train)) == len(train) > 1800
    assert len(set(valid)) == len(valid) > 9
    left_out = set(MANY) - set(train) - set(valid)
    assert {target for _, target in left_out} <= {target for _, target in valid}
    assert train != sorted(train, key=MANY.index)


def test_a_new_edition_of_tatoeba_keeps_the_splits(publish, data):
    train, valid = splits(publish, MANY)
    shutil.rmtree(data)
    more = [(f"new sentence {n}", f"neuer Satz {n}") for n in range(300)]
    later_train, later_valid = splits(publish, more + MANY[::-1])
    assert [pair for pair in later_train if pair in set(train)] == train
    assert [pair for pair in later_valid if pair in set(valid)] == valid


@pytest.mark.ci
def test_real_sentences_of_tatoeba_do_not_cross(real_data, publish):
    corpus = CATALOG["tatoeba"]
    files = read(real_data(corpus.folder), corpus)
    pairs = tatoeba_pairs(files, "train") + tatoeba_pairs(files, "valid")
    train, valid = splits(publish, pairs)
    for side in (0, 1):
        assert not {pair[side] for pair in train} & {pair[side] for pair in valid}
    assert 0.005 < len(valid) / len(pairs) < 0.02
    assert len(train) + len(valid) > 0.98 * len(pairs)


def test_names_and_list(data, capsys):
    assert main(["data"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"corpora in {data}; docs/data.md describes them:"
    assert [line.split()[:2] for line in lines[1:]] == [[name, "-"] for name in CATALOG]
    assert {"multi30k", "tatoeba", "newstest", "craft", "wsj-sample", "wmt14", "shakespeare"} <= {
        *CATALOG
    }
    folder = data / "tinyshakespeare"
    folder.mkdir(parents=True)
    (folder / "input.txt").touch()
    assert main(["data"]) == 0
    assert "  shakespeare  present  1.1 MB " in capsys.readouterr().out
    assert main(["data", "multi3k"]) == 2
    assert capsys.readouterr().err == "error: unknown corpus multi3k; did you mean multi30k?\n"
    assert main(["data", "xyz"]) == 2
    assert "unknown corpus xyz; choose from multi30k, tatoeba, " in capsys.readouterr().err


def test_without_a_network_the_files_are_named_and_then_used(data, publish, server, capsys):
    """The same command prepares files that somebody has copied to the folder."""
    prepared = small("multi30k")
    files = origin_of("multi30k", prepared)
    corpus = publish("multi30k", files)
    server.answers.clear()
    folder = data / "downloads" / "multi30k"
    folder.mkdir(parents=True)
    (folder / "train.en.gz").write_bytes(files["train.en.gz"])
    assert main(["data", "multi30k"]) == 2
    *listed, error = capsys.readouterr().err.splitlines()
    assert listed[0] == f"multi30k needs these files in {folder}:"
    names = [f"{name}  from  {server.url}/multi30k/{name}" for name in files]
    assert [line.strip() for line in listed[1:]] == names[1:]
    assert error.startswith(f"error: {server.url}/multi30k/train.de.gz: cannot be downloaded: ")
    assert error.endswith(f"or put the files into {folder} and run it then")
    for name, content in files.items():
        (folder / name).write_bytes(content)
    assert main(["data", "multi30k"]) == 0
    assert read(data / "multi30k", corpus) == prepared


def test_files_with_another_hash_are_refused(data, publish, server):
    """Files of users, and files on the server that have changed."""
    files = origin_of("multi30k", small("multi30k"))
    path = data / "downloads" / "multi30k" / "train.en.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(files["train.de.gz"])
    message = r"train.en.gz: expected SHA-256 of the content \w+, got \w+; delete it and"
    with pytest.raises(UserError, match=message):
        fetch(publish("multi30k", files))
    corpus = publish("shakespeare", small("shakespeare"))
    server.answers["/shakespeare/input.txt"] = serve(b"Francis Bacon")
    with pytest.raises(UserError, match=r"/shakespeare/input.txt: .*expected SHA-256"):
        fetch(corpus)
    assert [path.name for path in data.iterdir()] == ["downloads"]


def test_an_interruption_between_two_files(data, publish, server):
    """The first shard has already been moved to its place."""
    files = small("wmt14")
    corpus = publish("wmt14", files)
    first, second, *_ = files
    answer = server.answers.pop(f"/wmt14/{second}")
    with pytest.raises(MissingFilesError) as caught:
        fetch(corpus)
    assert first not in {file.name for file in caught.value.files}
    assert not (data / "wmt14-de-en").exists()  # No part of a corpus that looks like a whole.
    server.answers[f"/wmt14/{second}"] = answer
    (data / "wmt14-de-en").mkdir()
    (data / "downloads" / "wmt14-de-en" / first).rename(data / "wmt14-de-en" / first)
    del server.answers[f"/wmt14/{first}"]
    assert read(fetch(corpus), corpus) == files


def test_two_processes_do_not_write_the_same_files(data, publish):
    corpus = publish("shakespeare", small("shakespeare"))
    with (
        lock_folder(data / "downloads" / "shakespeare"),
        pytest.raises(UserError, match="another process is writing here"),
    ):
        fetch(corpus)


@pytest.mark.parametrize("name", ["tatoeba", "wsj-sample"])
def test_zip_archives_write_nothing_elsewhere(name, data, publish):
    files = origin_of(name, small(name))
    (file,) = files
    with zipfile.ZipFile(io.BytesIO(files[file])) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    hostile = {"../evil": b"x", "/evil": b"x", "..\\evil": b"x", "treebank/../../evil": b"x"}
    corpus = publish(name, {file: zipped(hostile | members)})
    before = {path for path in data.parent.rglob("*") if data not in path.parents}
    folder = fetch(corpus)
    assert {path for path in data.parent.rglob("*") if data not in path.parents} <= before | {data}
    assert {path.name for path in folder.iterdir()} == set(corpus.files)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_in_tar_archives_are_refused(kind, data, publish):
    (content,) = origin_of("craft", small("craft")).values()
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(content)) as archive,
        tarfile.open(fileobj=packed, mode="w:gz") as changed,
    ):
        for member in archive:
            body = archive.extractfile(member)
            if member.name.endswith("LICENSE.txt"):
                member.type, member.linkname, member.size = kind, "/etc/hostname", 0
                body = None
            changed.addfile(member, body)
    corpus = publish("craft", {"craft-v5.0.2.tar.gz": packed.getvalue()})
    with pytest.raises(UserError, match=r"expected CRAFT-5.0.2/LICENSE.txt to be a file, not a"):
        fetch(corpus)
    assert not (data / "trees").exists()


def test_archives_that_grow_are_refused(publish, monkeypatch):
    # A header that says it has 4 GB of a name, which tarfile would read into memory.
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 4 << 30
    content = gzip.compress(header.tobuf(tarfile.GNU_FORMAT) + bytes(8 << 20))
    huge = publish("craft", {"craft-v5.0.2.tar.gz": content})
    with pytest.raises(UserError, match=r"expected headers of at most 1,048,576 bytes, got more"):
        fetch(huge)
    craft = publish("craft", origin_of("craft", small("craft")))
    wsj = publish("wsj-sample", origin_of("wsj-sample", small("wsj-sample")))
    monkeypatch.setattr(archives, "_MOST_UNPACKED", 10_000)
    monkeypatch.setattr(archives, "_MOST_BYTES", 1000)
    shutil.rmtree(data_directory() / "downloads")
    with pytest.raises(UserError, match=r"craft-v5.0.2.tar.gz: expected at most 10,000 bytes in"):
        fetch(craft)
    with pytest.raises(UserError, match=r"treebank.zip: expected \S+ to have at most 1,000 bytes:"):
        fetch(wsj)


def test_downloads_on_another_disk(data, publish, monkeypatch):
    """As when the folder of downloads is a link."""
    files = origin_of("wmt14", small("wmt14"))
    corpus, replace = publish("wmt14", files), pathlib.Path.replace

    def across(source, target):
        if source.parent != pathlib.Path(target).parent:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return replace(source, target)

    monkeypatch.setattr(pathlib.Path, "replace", across)
    assert read(fetch(corpus), corpus) == files
    assert not list((data / "downloads").rglob("*.gz"))


@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        ("tatoeba", lambda content: content[:-30], "expected a whole zip archive"),
        ("tatoeba", lambda _: b"<html>", "expected a whole zip archive: File is not a zip file"),
        ("tatoeba", lambda _: zipped({"fra.txt": b"x"}), "expected a file deu.txt in the archive"),
        ("tatoeba", lambda _: zipped({"deu.txt": b"\xff"}), "expected UTF-8 text in the archive"),
        ("craft", lambda content: content[:-30], "expected a whole tar.gz archive"),
        ("craft", lambda _: b"<html>", "expected a whole tar.gz archive: Not a gzipped file"),
        ("craft", lambda _: gzip.compress(b"x" * 5000), "expected a whole tar.gz archive"),
        ("craft", lambda _: tar({"a": b"x"}), "expected a file LICENSE.txt in the archive"),
        ("wsj-sample", lambda _: zipped({"a": b"x"}), "expected at least 3,501 trees, got 0"),
    ],
)
def test_damaged_archives(name, spoil, said, publish, data):
    files = origin_of(name, small(name))
    (file,) = files
    corpus = publish(name, {file: spoil(files[file])})
    with pytest.raises(UserError, match=re.escape(said)) as caught:
        fetch(corpus)
    assert str(data / "downloads" / name / file) in str(caught.value)
    assert str(caught.value).endswith("; delete this file and run the same command again")
    assert not (data / corpus.folder).exists()


def test_test_sets_with_sides_of_different_lengths(publish):
    prepared = small("newstest")
    prepared["valid.de"] += b"one more\n"
    corpus = publish("newstest", origin_of("newstest", prepared))
    with pytest.raises(UserError, match=r"dev.tgz: expected two sides .* got 3 and 4"):
        fetch(corpus)


def test_addresses_and_hashes_of_wmt_are_those_of_other_programs():
    """sacreBLEU knows the test sets, and TensorFlow Datasets the development sets."""
    from tensorflow_datasets.core.download import checksums

    for name in ("newstest", "newstest-fr"):
        dev, *tests = CATALOG[name].origin
        known = checksums.get_all_url_infos()[dev.url]
        assert dev.checksum == Checksum(known.checksum)
        assert dev.largest == known.size
        for file in tests:
            dataset = DATASETS[file.name.partition("-")[0]]
            assert dataset.data == [file.url]
            assert file.checksum == Checksum(dataset.md5[0], "md5")


def test_packed_files_of_users_beside_the_prepared_ones_are_not_the_downloads(data, publish):
    prepared = small("multi30k")
    corpus = publish("multi30k", origin_of("multi30k", prepared))
    (data / corpus.folder).mkdir(parents=True)
    for file in corpus.origin:
        (data / corpus.folder / file.name).write_bytes(gzip.compress(b"mine\n"))
    assert read(fetch(corpus), corpus) == prepared


def test_a_missing_corpus_is_explained(data):
    """A command gets it; folders of others are named."""
    (data / "newstest-en-de").mkdir(parents=True)
    (data / "newstest-en-de" / "train.de").touch()
    command = "no such file.*; get it with: jaxformer data"
    for path, message in (
        ("multi30k/train.en", f"{command} multi30k"),
        ("trees/wsj-sample/dev.trees", f"{command} wsj-sample"),
        ("newstest-en-fr/valid.fr", f"{command} newstest-fr"),
        ("newstest-en-de/train.en", f"{command} newstest"),
        ("newstest-en-de/trian.de", r"trian.de: no such file, nor .*did you mean .*train.de"),
        ("ptb/wsj-22.trees", "set JAXFORMER_DATA to the folder that holds ptb/, or name"),
    ):
        with pytest.raises(UserError, match=message):
            find_file(data / path)
    assert catalog.how_to_get(data) is None


def test_the_data_folder_is_below_the_cache_by_default(tmp_path, monkeypatch):
    monkeypatch.delenv("JAXFORMER_DATA", raising=False)
    monkeypatch.setenv("JAXFORMER_CACHE", str(tmp_path))
    assert data_directory() == tmp_path / "data"
    monkeypatch.setenv("JAXFORMER_DATA", "~/corpora")
    assert data_directory() == pathlib.Path.home() / "corpora"
    monkeypatch.setenv("JAXFORMER_DATA", "gs://bucket/corpora")
    with pytest.raises(UserError, match="expected a path on a local disk"):
        data_directory()
