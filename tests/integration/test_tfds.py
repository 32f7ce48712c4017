"""TensorFlow Datasets without TensorFlow: files written by ``download_and_prepare``."""

import dataclasses
import itertools
import pathlib
import re
import shutil

import pytest
import tensorflow_datasets as tfds

from jaxformer.config import DataConfig
from jaxformer.data.corpus import open_corpus
from jaxformer.errors import UserError

SENTENCES = {f"sentence {i}": f"Satz {i}, ähnlich" for i in range(2000)}


def wmt14(directory):
    """Prepares a dataset with the name, version and features of WMT14."""

    class Wmt14Translate(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        """Replaces the real builder, which downloads gigabytes."""

        VERSION = tfds.core.Version("1.0.0")
        BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="de-en", version=VERSION)]  # noqa: RUF012
        # Otherwise TFDS searches for files beside the code, with importlib_resources.
        code_path = None
        pkg_dir_path = directory

        def _info(self):
            return self.dataset_info_from_configs(
                features=tfds.features.Translation(languages=("de", "en")),
                supervised_keys=("de", "en"),
            )

        def _split_generators(self, dl_manager):
            return {"train": self._examples(2000), "validation": self._examples(5)}

        def _examples(self, count):
            sentences = itertools.islice(SENTENCES.items(), count)
            for number, (en, de) in enumerate(sentences):
                yield number, {"de": de, "en": en}

        def _generate_examples(self):
            raise NotImplementedError

    builder = Wmt14Translate(config="de-en", data_dir=directory, file_format="array_record")
    builder.download_and_prepare()
    return directory


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return wmt14(tmp_path_factory.mktemp("tfds"))


@pytest.fixture
def config(directory):
    return DataConfig(directory=str(directory))


def test_reads_wmt14(config):
    corpus = open_corpus(config)
    pairs = list(corpus.pairs("train"))
    assert len(pairs) == 2000
    assert dict(pairs) == SENTENCES
    assert pairs == list(open_corpus(config).pairs("train"))
    assert len(list(corpus.pairs("validation"))) == 5

    turned = dataclasses.replace(config, source_language="de", target_language="en")
    assert list(open_corpus(turned).pairs("train")) == [(de, en) for en, de in pairs]

    assert corpus.fingerprint("train") == open_corpus(config).fingerprint("train")
    assert corpus.fingerprint("train") != corpus.fingerprint("validation")


def test_missing_data_says_how_to_get_it(tmp_path):
    corpus = open_corpus(DataConfig(directory=str(tmp_path)))
    with pytest.raises(UserError, match="wmt14_translate/de-en is not prepared") as error:
        list(corpus.pairs("train"))

    message = str(error.value)
    assert "\n" not in message
    assert "pip install importlib_resources tensorflow-cpu" in message
    assert "--config.data.corpus=text --config.data.train=PREFIX" in message

    # The program in the message runs up to the download, and requests the right files.
    found = re.search(r'python -c "(.*?)"', message)
    assert found
    program = found[1].replace(".download_and_prepare()", "").replace("; tfds", "; b = tfds")
    names = {}
    exec(program, names)
    builder = names["b"]
    assert builder.info.file_format == tfds.core.FileFormat.ARRAY_RECORD
    assert pathlib.Path(builder.data_path).is_relative_to(tmp_path)


def test_wrong_names(config):
    for change, split, message in (
        ({}, "test", "has no split 'test'; expected one of train, validation"),
        ({"target_language": "fr"}, "train", "has no language 'fr'; expected two of de, en"),
        ({"builder": "wmt14_trnslate/de-en"}, "train", r"data\.builder: TensorFlow Datasets has"),
    ):
        corpus = open_corpus(dataclasses.replace(config, **change))
        with pytest.raises(UserError, match=message):
            list(corpus.pairs(split))


def test_damaged_files(directory, tmp_path):
    copy = shutil.copytree(directory, tmp_path / "copy")
    corpus = open_corpus(DataConfig(directory=str(copy)))
    (path,) = copy.rglob("*train.array_record*")
    whole = path.read_bytes()

    for damaged in (b"", whole[:-10]):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"split 'train': .*; the files are damaged: delete "):
            list(corpus.pairs("train"))


def test_missing_records_are_detected(config, monkeypatch):
    corpus = open_corpus(config)
    builder = tfds.builder(config.builder, data_dir=config.directory)
    source = builder.as_data_source("train")
    monkeypatch.setattr(type(source), "__iter__", lambda self: iter([self[0], self[1]]))

    with pytest.raises(UserError, match="expected 2000 records, got 2; the files are damaged"):
        list(corpus.pairs("train"))
