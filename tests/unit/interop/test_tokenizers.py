"""Ids of tokenizers of every kind equal AutoTokenizer's; ``make_tokenizers.py`` made them."""

import functools
import pathlib
import zipfile

import numpy as np
import pytest

from jaxformer.data.huggingface_tokenizer import HuggingFaceTokenizer
from jaxformer.interop.huggingface.tokenizer_config import read_tokenizer_file
from jaxformer.interop.json_fields import JsonFields

tokenizers = pytest.importorskip("tokenizers")
FIXTURES = pathlib.Path(__file__).parents[2] / "fixtures" / "tokenizers"
NAMES = ("pad", "eos", "bos", "unk", "mask")
with zipfile.ZipFile(FIXTURES / "tokenizers.zip") as archive:
    FOLDERS = sorted({str(pathlib.PurePosixPath(name).parent) for name in archive.namelist()})


@functools.cache
def outputs():
    with np.load(FIXTURES / "ids.npz") as file:
        return {name: file[name].tolist() for name in file.files}


@functools.cache
def lines():
    text = (FIXTURES / "lines.txt").read_bytes().decode()
    return text.removesuffix("\n").split("\n")


def rows(flat):
    """Returns rows that -1 ends."""
    found = [[]]
    for number in flat:
        if number == -1:
            found.append([])
        else:
            found[-1].append(number)
    return found[:-1]


def extract(folder, target):
    with zipfile.ZipFile(FIXTURES / "tokenizers.zip") as archive:
        names = [name for name in archive.namelist() if name.startswith(f"{folder}/")]
        archive.extractall(target, names)
    return target / folder


def read(directory):
    return read_tokenizer_file(directory, JsonFields(directory / "config.json", {}), "")


@pytest.mark.parametrize("folder", FOLDERS)
def test_ids_equal_autotokenizer(folder, tmp_path):
    name = folder.partition("/")[0]
    expected = {key: outputs()[f"{name}/{key}"] for key in ("lines", "pairs", "types", "special")}

    *special, size = expected["special"]
    numbers = {}
    for key, number in zip(NAMES, special, strict=True):
        numbers[key] = None if number < 0 else number

    found = read(extract(folder, tmp_path))
    assert found.mask == numbers["mask"]
    tokenizer = HuggingFaceTokenizer.assemble(
        found.json,
        {key: numbers[key] for key in NAMES[:4]},
        size,
        mask=found.mask,
        has_types=found.has_types,
    )

    library = tokenizers.Tokenizer.from_str(found.json)
    words = {}
    for key, number in numbers.items():
        words[key] = "" if number is None else library.id_to_token(number)
    texts = [line.format_map(words) for line in lines()]

    assert len(texts) == 200
    for text, ids in zip(texts, rows(expected["lines"]), strict=True):
        assert tokenizer.their_ids[tokenizer.encode_prompt(text)].tolist() == ids, text

    pairs = zip(rows(expected["pairs"]), rows(expected["types"]), strict=True)
    for number, (ids, types) in enumerate(pairs):
        found_ids, found_types = tokenizer.encode_pair(texts[number], texts[number + 1])
        assert tokenizer.their_ids[found_ids].tolist() == ids
        assert found_types == types
