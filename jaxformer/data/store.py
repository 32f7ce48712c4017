"""The token store: a corpus as token ids, in memory-mapped files that are built once."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
import shutil
import tempfile
import time

import numpy as np
from jaxtyping import Int

from jaxformer.data.characters import is_blank
from jaxformer.data.corpus import Corpus, VerifiedCorpus
from jaxformer.data.findings import EMPTY, LONG, Finding, Findings
from jaxformer.data.tokenizer import Vocabulary
from jaxformer.errors import UserError
from jaxformer.files import file_sha256, make_folder
from jaxformer.progress import ProgressBar

_FORMAT = 2  # part of the key of every store, so that stores in another format are rebuilt
_HEADER = "header.json"
_TOKENS = "tokens.bin"
_OFFSETS = "offsets.bin"
_NUMBERS = "numbers.bin"
_PAIRS_AT_A_TIME = 10_000
# Prefix of the folders of unfinished stores, and time without progress until one is abandoned.
_PARTIAL = "partial-"
_ABANDONED_SECONDS = 24 * 3600


class TokenStore:
    """Sentence pairs as token ids, without BOS and EOS, read from disk on access."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Opens a store; raises many kinds of errors if it is missing or damaged."""
        header = json.loads((folder / _HEADER).read_bytes())
        for name, digest in header["sha256"].items():
            if file_sha256(folder / name) != digest:
                raise ValueError(f"{folder / name} is not as it was written")

        # Pairs that were skipped or are unusual.
        self.findings = Findings()
        for kind, values in header["findings"].items():
            self.findings[kind] = Finding(**values)

        dtype = np.dtype(header["dtype"])
        self._tokens = np.memmap(folder / _TOKENS, dtype, mode="r")
        # Sides alternate: side 2i is the source of pair i, side 2i + 1 its target.
        self._offsets = np.memmap(folder / _OFFSETS, np.int64, mode="r")
        # The number of every pair in its split, from 0; skipped pairs are counted, too.
        self.numbers = np.memmap(folder / _NUMBERS, np.uint32, mode="r")

        lengths = np.diff(self._offsets).astype(np.int32) + 1  # with EOS
        self.src_lengths = lengths[::2]
        self.tgt_lengths = lengths[1::2]

    def __len__(self) -> int:
        return len(self._offsets) // 2

    def first_targets(self) -> Int[np.ndarray, " N"]:
        """Returns the first target token of each pair, such as the label of a text."""
        starts = self._offsets[1::2]
        return np.asarray(self._tokens[starts], np.int32)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        if not 0 <= index < len(self):
            raise IndexError(index)

        first = 2 * index
        start, middle, end = self._offsets[first : first + 3]
        source = self._tokens[start:middle]
        target = self._tokens[middle:end]
        return source, target


def build_store(
    corpus: Corpus,
    split: str,
    tokenizer: Vocabulary,
    max_length: int,
    cache: pathlib.Path,
) -> TokenStore:
    """Returns the token store of a split, from the cache if it has an undamaged one.

    Memory use is bounded, however large the corpus. A progress bar appears if it takes long. Pairs
    with a side longer than ``max_length`` tokens, including EOS, are skipped. The cache has a
    folder for each store, named by a hash of its inputs.
    """
    corpus = VerifiedCorpus(corpus)
    inputs = (
        _FORMAT,
        corpus.fingerprint(split),
        tokenizer.sha256,
        max_length,
    )
    key = hashlib.sha256(repr(inputs).encode()).hexdigest()
    folder = cache / f"store-{key[:32]}"

    # Whatever is wrong with a damaged store, it is rebuilt.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        return TokenStore(folder)

    shutil.rmtree(folder, ignore_errors=True)
    make_folder(cache, "JAXFORMER_CACHE")
    _remove_abandoned(cache)

    with tempfile.TemporaryDirectory(
        dir=cache,
        prefix=_PARTIAL,
        ignore_cleanup_errors=True,  # NFS keeps the files that the store has open
    ) as temporary:
        partial = pathlib.Path(temporary, folder.name)
        partial.mkdir()
        _write(
            partial,
            corpus,
            split,
            tokenizer=tokenizer,
            max_length=max_length,
        )

        # Open before the rename: mapped files stay readable if another process replaces the folder.
        store = TokenStore(partial)
        with contextlib.suppress(OSError):
            partial.rename(folder)

    return store


def _remove_abandoned(cache: pathlib.Path) -> None:
    """Removes the unfinished stores of killed processes, which can be large."""
    for folder in cache.glob(f"{_PARTIAL}*"):
        with contextlib.suppress(OSError):
            idle_seconds = time.time() - folder.stat().st_mtime
            if idle_seconds > _ABANDONED_SECONDS:
                shutil.rmtree(folder)


def _write(
    folder: pathlib.Path,
    corpus: VerifiedCorpus,
    split: str,
    tokenizer: Vocabulary,
    max_length: int,
) -> None:
    dtype = np.uint16 if tokenizer.vocab_size <= 2**16 else np.int32
    findings = Findings()
    pairs = enumerate(corpus.pairs(split))
    end = 0  # tokens so far

    with (
        ProgressBar(
            desc=f"tokenizing {split}",
            unit=" pairs",
            delay=2,
            disable=None,
        ) as bar,
        (folder / _TOKENS).open("wb") as tokens_file,
        (folder / _OFFSETS).open("wb") as offsets_file,
        (folder / _NUMBERS).open("wb") as numbers_file,
    ):
        offsets_file.write(np.int64(0).tobytes())

        while chunk := list(itertools.islice(pairs, _PAIRS_AT_A_TIME)):
            numbers, sides = _filter_pairs(
                tokenizer,
                chunk,
                max_length=max_length,
                findings=findings,
            )
            tokens = np.fromiter(itertools.chain(*sides), dtype)
            lengths = np.array([len(ids) for ids in sides], np.int64)
            ends = end + np.cumsum(lengths)
            numbers = np.array(numbers, np.uint32)

            tokens_file.write(tokens.tobytes())
            offsets_file.write(ends.tobytes())
            numbers_file.write(numbers.tobytes())
            end += int(lengths.sum())

            bar.update(len(chunk))
            os.utime(folder.parent)  # Not abandoned.

    if not end:
        raise _empty_store_error(corpus, split, findings=findings, max_length=max_length)

    names = (_TOKENS, _OFFSETS, _NUMBERS)
    header = {
        "dtype": np.dtype(dtype).name,
        "findings": findings,
        "sha256": {name: file_sha256(folder / name) for name in names},
    }
    content = json.dumps(header, default=dataclasses.asdict)
    (folder / _HEADER).write_text(content, "utf-8")


def _filter_pairs(
    tokenizer: Vocabulary,
    pairs: list[tuple[int, tuple[str, str]]],
    max_length: int,
    findings: Findings,
) -> tuple[list[int], list[list[int]]]:
    """Returns the numbers and, in turn, the sides of pairs that are neither blank nor too long."""
    source_texts = [texts[0] for _, texts in pairs]
    target_texts = [texts[1] for _, texts in pairs]
    sources = tokenizer.encode_batch(source_texts)
    targets = tokenizer.encode_target_batch(target_texts)

    numbers = []
    kept = []
    for pair, source, target in zip(pairs, sources, targets, strict=True):
        number, texts = pair
        blank = [is_blank(text) for text in texts]
        long = [len(ids) >= max_length for ids in (source, target)]  # EOS is one more token

        if any(blank):
            findings.add(EMPTY, number, blank.index(True))
            continue
        if any(long):
            findings.add(LONG, number, long.index(True))
            continue

        findings.add_unusual(number, texts)
        numbers.append(number)
        kept.append(source)
        kept.append(target)

    return numbers, kept


def _empty_store_error(
    corpus: VerifiedCorpus,
    split: str,
    findings: Findings,
    max_length: int,
) -> UserError:
    places = []
    for finding in findings.values():
        number, side = finding.first[0]
        places.append(corpus.place(split, number, side))
    examples = f", such as {' and '.join(places)}" if places else ""

    return UserError(
        f"{split}: no sentence pair is left: {findings.count(LONG)} have a side longer than "
        f"{max_length} tokens, {findings.count(EMPTY)} an empty side"
        f"{examples}; raise data.max_length, or give other data"
    )
