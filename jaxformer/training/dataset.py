"""From the config to batches: corpus, tokenizer, token stores and plans of one run."""

import dataclasses
import itertools
import json

from jaxformer.config import Config
from jaxformer.data.corpus import Corpus, open_corpus
from jaxformer.data.plan import BatchPlan, make_plan, sequential_plan
from jaxformer.data.store import TokenStore, build_store
from jaxformer.data.tokenizer import Tokenizer, cached_tokenizer
from jaxformer.errors import UserError
from jaxformer.workdir import Workdir, cache_directory, read_json


@dataclasses.dataclass(frozen=True)
class Dataset:
    """What training reads.

    Attributes:
      tokenizer: The shared vocabulary.
      train: Training pairs as token ids.
      plan: Which training pairs are in which batch.
      valid: Validation pairs as token ids.
      valid_plan: Batches of validation pairs, each pair once.
      valid_text: The first validation pairs as text, for BLEU.
    """

    tokenizer: Tokenizer
    train: TokenStore
    plan: BatchPlan
    valid: TokenStore
    valid_plan: BatchPlan
    valid_text: list[tuple[str, str]]


def open_dataset(config: Config, folder: Workdir) -> Dataset:
    """Reads and tokenizes the corpus, or takes up what earlier runs left in the cache.

    The tokenizer is trained on demand; it and the SHA-256 of tokenizer and data are written to
    the workdir, where later runs are held to them.

    Raises:
      UserError: Data is missing or malformed, or is not what the run began with.
    """
    corpus = open_corpus(config.data)
    cache = cache_directory()
    if folder.tokenizer.exists():
        folder.check_tokenizer()
        tokenizer = Tokenizer.load(folder.tokenizer)
    else:
        tokenizer = cached_tokenizer(corpus, config.data.train, config.model.vocab_size, cache)
    _check_identity(config, corpus, tokenizer, folder)
    longest = config.data.max_length
    train = build_store(corpus, config.data.train, tokenizer, longest, cache)
    valid = build_store(corpus, config.data.valid, tokenizer, config.model.max_length, cache)
    return Dataset(
        tokenizer=tokenizer,
        train=train,
        plan=make_plan(train, config.data, config.training.seed),
        valid=valid,
        valid_plan=sequential_plan(
            valid.src_lengths, valid.tgt_lengths, tokens_per_batch=config.data.tokens_per_batch
        ),
        valid_text=list(
            itertools.islice(corpus.pairs(config.data.valid), config.training.eval_sentences)
        ),
    )


def _check_identity(config: Config, corpus: Corpus, tokenizer: Tokenizer, folder: Workdir) -> None:
    identity = {
        "tokenizer": tokenizer.sha256,
        "train": corpus.fingerprint(config.data.train),
        "valid": corpus.fingerprint(config.data.valid),
    }
    if folder.identity.exists():
        for name, expected in read_json(folder.identity).items():
            if identity.get(name) != expected:
                raise UserError(
                    f"{folder.path}: the run began with other data: {name} was {expected}, now "
                    f"{identity.get(name)}; give it the old data, or another --workdir"
                )
        return
    tokenizer.save(folder.tokenizer)
    partial = folder.identity.with_name(folder.identity.name + ".partial")
    partial.write_text(json.dumps(identity, indent=2) + "\n", encoding="utf-8")
    partial.replace(folder.identity)
