"""Public corpora that the shipped configs read: their origin and download; see docs/data.md."""

import dataclasses
import fnmatch
import functools
import os
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from jaxformer.data import preparation
from jaxformer.errors import UserError, needs_package
from jaxformer.files import data_directory, make_folder, write_file
from jaxformer.version import __version__


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublicCorpus:
    """A corpus that anyone can download."""

    folder: str  # of the prepared files, below the data folder
    # SHA-256 of the prepared files by name, in the copy that we measured our results on, or ""
    files: Mapping[str, str]
    size: str  # of the prepared files
    license: str = "none stated; for research"  # of the text
    urls: Mapping[str, str]  # addresses of the files to download, by name
    # Their hashes, such as "md5:0123...", if they are known and do not change.
    hashes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    downloads: str  # folder of the downloaded files, below the data folder
    # Returns the prepared files from the folder of downloads; None if both folders are the same.
    prepare: Callable[[pathlib.Path], preparation.Prepared] | None = None


_GITHUB = "https://github.com"
_RAW = "https://raw.githubusercontent.com"
_MULTI30K_URL = f"{_GITHUB}/multi30k/dataset/raw/master/data/task1/raw"
_MULTI30K = {
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "train.fr": "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "val.fr": "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
    "test_2016_flickr.fr": "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
}
_SHAKESPEARE = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"

# Addresses of WMT's archives. The hashes are from TensorFlow Datasets (dev.tgz) and sacreBLEU.
_WMT_URLS = {
    "dev.tgz": "http://data.statmt.org/wmt19/translation-task/dev.tgz",
    "wmt15-test.tgz": "https://statmt.org/wmt15/test.tgz",
    **{
        f"wmt{year}-test.tgz": f"https://data.statmt.org/wmt{year}/translation-task/test.tgz"
        for year in range(16, 21)
    },
}
_WMT_HASHES = {
    "dev.tgz": "sha256:7a7deccf82ebb05ba508dba5eb21356492224e8f630ec4f992132b029b4b25e7",
    "wmt15-test.tgz": "md5:67e3beca15e69fe3d36de149da0a96df",
    "wmt16-test.tgz": "md5:3d809cd0c2c86adb2c67034d15c4e446",
    "wmt17-test.tgz": "md5:86a1724c276004aa25455ae2a04cef26",
    "wmt18-test.tgz": "md5:f996c245ecffea23d0006fa4c34e9064",
    "wmt19-test.tgz": "md5:84de7162d158e28403103b01aeefc39a",
    "wmt20-test.tgz": "md5:3b1f777cfd2fb15ccf66e9bfdb2b1699",
}


def _newstest(
    target: str,
    sets: tuple[str, ...],
    digests: Mapping[str, str],
    size: str,
):
    """Returns the corpus of WMT's test sets between English and a language."""
    years = dict.fromkeys(name.split()[0] for name in sets)
    tests = [f"wmt{year}-test.tgz" for year in years]
    names = ["dev.tgz", *tests]

    return PublicCorpus(
        folder=f"newstest-en-{target}",
        files=digests,
        size=size,
        urls={name: _WMT_URLS[name] for name in names},
        hashes=_WMT_HASHES,
        downloads="downloads/newstest",
        prepare=functools.partial(preparation.newstest, target=target, sets=sets),
    )


def _wmt14(pair: str, shards: int, size: str):
    """Returns the corpus of WMT14 for a pair of languages, in the order of its address."""
    address = f"https://huggingface.co/datasets/wmt/wmt14/resolve/main/{pair}"
    names = [f"train-{shard:05}-of-{shards:05}.parquet" for shard in range(shards)]
    names += ["validation-00000-of-00001.parquet", "test-00000-of-00001.parquet"]

    return PublicCorpus(
        folder=f"wmt14-{pair}",
        files=dict.fromkeys(names, ""),
        size=size,
        urls={name: f"{address}/{name}" for name in names},
        downloads=f"wmt14-{pair}",
    )


CATALOG = {
    "multi30k": PublicCorpus(
        folder="multi30k",
        files=_MULTI30K,
        size="6.4 MB",
        license="none stated",
        urls={f"{name}.gz": f"{_MULTI30K_URL}/{name}.gz" for name in _MULTI30K},
        downloads="downloads/multi30k",
        prepare=functools.partial(preparation.unpack, digests=_MULTI30K),
    ),
    "tatoeba": PublicCorpus(
        folder="tatoeba-en-de",
        files=dict.fromkeys(("train.en", "train.de", "valid.en", "valid.de"), ""),
        size="about 20 MB",
        license="CC BY 2.0 FR",
        urls={"deu-eng.zip": "http://www.manythings.org/anki/deu-eng.zip"},
        downloads="downloads/tatoeba",
        prepare=preparation.tatoeba,
    ),
    "newstest": _newstest(
        "de",
        (
            *(f"{year} newstest20{year}-ende" for year in range(15, 20)),
            "19 newstest2019-deen",
            "20 newstest2020-ende",
            "20 newstest2020-deen",
        ),
        digests={
            "train.en": "d6ba98cb124cf398b9907c3ebe2cf83e9710430465b529b5f228eb7a459c2936",
            "train.de": "cc673b25a911f3175d87c65a3828d860e2185ae5075e83139ce3764a17e9765e",
            "valid.en": "ace268a1d9724ca76f6d8e5c720ffdc08f01bdce45630ed8b269dc7918e1c16e",
            "valid.de": "d7ea35ab91ff3709e03ad9cb6bf5b4f2cc775cd2d72efd5254c4aec5e69663ca",
        },
        size="9.2 MB",
    ),
    "newstest-fr": _newstest(
        "fr",
        ("15 newsdiscusstest2015-enfr",),
        digests={
            "train.en": "11856ca7454bbc6b9b08dcff5d45044a88a90723d7215a97581fb9f93053f298",
            "train.fr": "b935d5366179b003ab249177667419f0240c578d27a68d9d33ec658beed05e00",
            "valid.en": "ace268a1d9724ca76f6d8e5c720ffdc08f01bdce45630ed8b269dc7918e1c16e",
            "valid.fr": "909b63be5df3eb8c13e1d5967bf3f0adfdb9f6ed5e638c5bffff563ee2ff7f41",
        },
        size="4.8 MB",
    ),
    "craft": PublicCorpus(
        folder="trees/craft",
        files={
            "train.trees": "41389f86739447e0bb8d7b30af4c1dc9978666ab8ab43fb298ec619a099719cd",
            "dev.trees": "375a93c83b1ea203c58881d75d68627f549f3b7dd9237e64f40710e97c428b30",
            "LICENSE.txt": "",
        },
        size="9.2 MB",
        license="CC BY 3.0",
        urls={
            "craft-v5.0.2.tar.gz": f"{_GITHUB}/UCDenver-ccp/CRAFT/archive/refs/tags/v5.0.2.tar.gz"
        },
        downloads="downloads/craft",
        prepare=preparation.craft,
    ),
    "wsj-sample": PublicCorpus(
        folder="trees/wsj-sample",
        files={
            "train.trees": "3b421c1859d5baf9d804a16ca01623c238f32991c06781d11e7e3f907a077364",
            "dev.trees": "4ab3340981bc7411360661834bf94c96a2b66e4f05ec9d0e4ee79d248302bc82",
        },
        size="1.5 MB",
        license="LDC fragment, non-commercial",
        urls={"treebank.zip": f"{_RAW}/nltk/nltk_data/gh-pages/packages/corpora/treebank.zip"},
        # The hash is in the index of NLTK's data.
        hashes={"treebank.zip": "md5:78c24a97940c2504d0ad35dd3f8a560b"},
        downloads="downloads/wsj-sample",
        prepare=preparation.wsj_sample,
    ),
    "wmt14": _wmt14("de-en", shards=3, size="about 0.8 GB"),
    "wmt14-fr": _wmt14("fr-en", shards=30, size="about 10 GB"),
    "shakespeare": PublicCorpus(
        folder="tinyshakespeare",
        files={"input.txt": _SHAKESPEARE},
        size="1.1 MB",
        license="public domain",
        urls={"input.txt": f"{_RAW}/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"},
        hashes={"input.txt": f"sha256:{_SHAKESPEARE}"},
        downloads="tinyshakespeare",
    ),
}


def is_present(corpus: PublicCorpus) -> bool:
    folder = data_directory() / corpus.folder
    return all((folder / name).is_file() for name in corpus.files)


def download_hint(path: pathlib.Path) -> str | None:
    """Returns advice on how to download a missing file; None if no shipped config reads it."""
    data = data_directory()
    for name, corpus in CATALOG.items():
        folder = data / corpus.folder
        known = fnmatch.filter(corpus.files, path.name)  # The name may be a pattern.
        if path.parent == folder and (known or not folder.is_dir()):
            return f"get it with: jaxformer data {name}"

    is_below = path != data and path.is_relative_to(data)
    if not is_below or path.parent.is_dir():
        return None

    missing = path.relative_to(data).parts[0]
    return (
        f"set JAXFORMER_DATA to the folder that holds {missing}/, or name other files in the config"
    )


def download_corpus(corpus: PublicCorpus) -> pathlib.Path:
    """Returns the folder of a corpus, after downloading and preparing it if it is missing."""
    folder = data_directory() / corpus.folder
    downloads = data_directory() / corpus.downloads

    # Files that are not prepared may be verified by their hashes, which the download does.
    is_verified = corpus.prepare is not None or not corpus.hashes
    if is_present(corpus) and is_verified:
        return folder

    make_folder(data_directory(), "JAXFORMER_DATA")
    _download(corpus, downloads)

    if corpus.prepare is not None:
        try:
            prepared = corpus.prepare(downloads)
        except UserError as error:
            raise UserError(f"{error}; delete this file and run the same command again") from None

        for name, content in prepared.items():
            write_file(folder / name, content)

    return folder


def _download(corpus: PublicCorpus, downloads: pathlib.Path) -> None:
    """Downloads the missing files; each gets its name once its hash is verified."""
    with needs_package("pooch", "which downloads corpora", extra="download"):
        import pooch
        import requests

    repository = pooch.create(
        downloads,
        base_url="",
        registry={name: corpus.hashes.get(name) for name in corpus.urls},
        urls=dict(corpus.urls),
        retry_if_failed=2,
    )
    downloader: Any = pooch.HTTPDownloader(
        progressbar=sys.stderr.isatty(),
        chunk_size=1 << 20,
        headers={
            "User-Agent": f"jaxformer/{__version__}",
            # A server that compresses on the fly would change files that are already compressed.
            "Accept-Encoding": "identity",
        },
    )

    for name, url in corpus.urls.items():
        try:
            repository.fetch(name, _make_readable, downloader)
        except (requests.RequestException, ValueError) as error:
            known = ""
            if name in corpus.hashes:
                known = f", whose hash is {corpus.hashes[name]}"
            if (downloads / name).exists():
                known += "; the file that is there has another hash, delete it"
            raise UserError(
                f"{url}: cannot be downloaded; run the same command again when there is a network, "
                f"or put the file there yourself as {downloads / name}{known}: {error}"
            ) from None


def _make_readable(path: str, action: str, _: object) -> str:
    """Makes a downloaded file readable for all users; pooch's temporary files are not."""
    if action != "fetch":
        os.chmod(path, 0o644)
    return path
