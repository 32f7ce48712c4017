"""The command ``shortlist``: learns the likely translations of each token."""

import itertools
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxformer.cli.command import Command
from jaxformer.cli.options import InputFile, RunDir
from jaxformer.cli.outputs import check_outputs
from jaxformer.errors import UserError

if TYPE_CHECKING:
    from jaxformer.config import Config
    from jaxformer.inference.shortlist import Shortlist
    from jaxformer.runs.workdir import Workdir


def shortlist(
    *,
    workdir: RunDir,
    source: InputFile | None = None,
    target: InputFile | None = None,
    pairs: int = 500_000,
    first: int = 100,
    best: int = 100,
) -> None:
    """Learn the shortlist of a translation model, for the option --shortlist.

    Options:
      source: source text (default: the run's training text)
      target: its translation, line by line
      pairs: number of sentence pairs to learn from, the first ones
      first: number of the most frequent target tokens, which are likely for every sentence
      best: number of the most probable translations of each source token, by IBM model 1

    Example:
      jaxformer shortlist --workdir runs/student
      jaxformer translate --workdir runs/student --dtype int8 --shortlist
    """
    import numpy as np

    from jaxformer.config import check_kind, read_config
    from jaxformer.inference.shortlist import NAME
    from jaxformer.kinds.translation import TRANSLATION
    from jaxformer.runs.workdir import Workdir

    folder = Workdir(workdir)
    config = read_config(folder)
    check_kind(config, TRANSLATION)

    if (source is None) != (target is None):
        raise UserError("--source and --target go together: give both or none")
    for name, number in {"pairs": pairs, "first": first, "best": best}.items():
        if number < 1:
            raise UserError(f"--{name} must be at least 1: got {number}")
    check_outputs([source, target], {})

    text = _sentence_pairs(config, source, target)
    text_pairs = list(itertools.islice(text, pairs))
    if not text_pairs:
        raise UserError("expected sentence pairs to learn from: found none")

    learned = _learn(folder, text_pairs, first=first, best=best)
    learned.save(folder.path)

    known = np.count_nonzero(np.diff(learned.offsets))
    print(
        f"{folder.path / NAME}: {len(learned.targets):,} translations of {known:,} tokens, learned "
        f"from {len(text_pairs):,} pairs"
    )


def _sentence_pairs(
    config: "Config",
    source: pathlib.Path | None,
    target: pathlib.Path | None,
) -> Iterator[tuple[str, str]]:
    """Returns the sentence pairs of two files, or of the run's training text."""
    from jaxformer.config import DataConfig, data_section
    from jaxformer.data.held_out import training_pairs
    from jaxformer.data.text_files import zip_files

    if source is None or target is None:
        return training_pairs(data_section(config, DataConfig))
    return zip_files(source, target)


def _learn(
    folder: "Workdir",
    text_pairs: list[tuple[str, str]],
    first: int,
    best: int,
) -> "Shortlist":
    """Returns the shortlist of sentence pairs, tokenized as by the run."""
    from jaxformer.data.tokenizer import Tokenizer
    from jaxformer.inference.shortlist import Shortlist

    folder.check_tokenizer()
    tokenizer = Tokenizer.load(folder.tokenizer)
    source_ids = tokenizer.encode_batch([source for source, _ in text_pairs])
    target_ids = tokenizer.encode_target_batch([target for _, target in text_pairs])
    return Shortlist.learn(
        list(zip(source_ids, target_ids, strict=True)),
        tokenizer.vocab_size,
        first=first,
        best=best,
    )


COMMAND = Command("shortlist", shortlist, place=160)
