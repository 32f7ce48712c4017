"""The data of a run on a corpus: its tokenizer, token stores and batch plans."""

import collections
import dataclasses
import functools
import hashlib
import math
from collections.abc import Collection

from jaxformer.config import Config, DataConfig, data_section
from jaxformer.data.bpe import cached_tokenizer, suitable_vocabulary
from jaxformer.data.corpus import Corpus, VerifiedCorpus, parse_mixture
from jaxformer.data.held_out import open_splits, parse_share
from jaxformer.data.plan import BatchPlan, make_plan, sequential_plan
from jaxformer.data.store import TokenStore, build_store
from jaxformer.data.tokenizer import UNK, Tokenizer, Vocabulary
from jaxformer.errors import UserError
from jaxformer.files import cache_directory
from jaxformer.runs import processes
from jaxformer.runs.run_directory import check_identity
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.attention_distillation import Teacher
from jaxformer.tasks.initialization import tokenizer_of_run
from jaxformer.waits import log_stream


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Data of a training run."""

    corpus: VerifiedCorpus
    tokenizer: Vocabulary
    # SHA-256 of the tokenizer, of both splits, and of a teacher; weights of a mixture
    identity: dict[str, str]
    train: TokenStore
    plan: BatchPlan
    valid: TokenStore
    valid_plan: BatchPlan  # with each pair once
    valid_text: list[tuple[str, str]]  # the first validation pairs, for BLEU
    valid_origins: list[str]  # of each of them, its corpus in a mixture
    teacher: Teacher | None  # the model of training.teacher


def open_dataset(
    config: Config,
    folder: Workdir,
    corpus: Corpus | None = None,
    *,
    labels: Collection[str] = (),
    decodes: bool = True,
) -> Dataset:
    """Reads and tokenizes the corpus, or opens the results of earlier runs in the cache.

    A resumed run keeps its data and the tokenizer of its workdir, which is not changed.

    Args:
      config: The run's config.
      folder: The run's workdir.
      corpus: The corpus; by default, the config's.
      labels: Labels that the tokenizer of a new run has, if the targets of the corpus are labels.
      decodes: Whether validation decodes ``training.eval_sentences`` pairs.
    """
    data = data_section(config, DataConfig)
    corpus = open_splits(data, corpus)
    _check_no_weights(data.valid)

    tokenizer = _open_tokenizer(config, folder, corpus, labels)
    teacher = Teacher.load(config, tokenizer)
    identity = _identify(data, tokenizer, corpus)
    if teacher is not None:
        identity["teacher"] = teacher.sha256
    check_identity(folder, identity)

    cache = cache_directory()
    train = build_store(
        corpus,
        data.train,
        tokenizer,
        max_length=data.max_length,
        cache=cache,
    )
    if not (corpus.target_symbols or folder.config.exists()):
        _note_large_vocabulary(config, train)
    valid = build_store(
        corpus,
        data.valid,
        tokenizer,
        max_length=config.model.max_length,
        cache=cache,
    )

    valid_text: list[tuple[str, str]] = []
    valid_origins: list[str] = []
    if decodes:
        valid_text, valid_origins = _pairs_to_decode(config, corpus, tokenizer)

    repetitions = corpus.repetitions(data.train, train.numbers)
    plan = make_plan(train, data, config.training.seed, repetitions=repetitions)
    valid_plan = sequential_plan(
        valid.src_lengths,
        valid.tgt_lengths,
        tokens_per_batch=data.tokens_per_batch,
    )
    return Dataset(
        corpus=corpus,
        tokenizer=tokenizer,
        identity=identity,
        train=train,
        plan=plan,
        valid=valid,
        valid_plan=valid_plan,
        valid_text=valid_text,
        valid_origins=valid_origins,
        teacher=teacher,
    )


def _check_no_weights(split: str) -> None:
    """Refuses a mixture for validation."""
    if parse_mixture(split):
        raise UserError(f"data.valid: expected no weights, which are for training: got {split!r}")


def _open_tokenizer(
    config: Config,
    folder: Workdir,
    corpus: VerifiedCorpus,
    labels: Collection[str],
) -> Vocabulary:
    """Returns the tokenizer of a workdir; a new run takes the config's or learns one."""
    learn = functools.partial(_learn_tokenizer, config, corpus, labels)
    tokenizer = tokenizer_of_run(config, folder, learn)
    if labels and not folder.config.exists():
        tokenizer = tokenizer.with_symbols(labels)

    _check_vocabulary(config, tokenizer, corpus)
    return tokenizer


def _identify(
    data: DataConfig,
    tokenizer: Vocabulary,
    corpus: VerifiedCorpus,
) -> dict[str, str]:
    """Returns the hashes by which a resumed run recognizes its data."""
    identity = {
        "tokenizer": tokenizer.sha256,
        "train": corpus.fingerprint(data.train),
        "valid": corpus.fingerprint(data.valid),
    }

    weights = parse_mixture(data.train).values()
    if weights:
        # Runs of 0.2.0 on a mixture also hash this fingerprint.
        valid = identity["valid"].encode()
        identity["valid"] = hashlib.sha256(valid).hexdigest()
        identity["weights"] = " ".join(map(str, weights))

    return identity


def _note_large_vocabulary(config: Config, train: TokenStore) -> None:
    is_known = config.data.tokenizer or config.training.init_from
    if is_known or not processes.is_primary():
        return

    source_tokens = int(train.src_lengths.sum())
    target_tokens = int(train.tgt_lengths.sum())
    characters = 3 * (source_tokens + target_tokens)
    suitable = suitable_vocabulary(characters)
    size = config.model.vocab_size
    if size > 2 * suitable:
        text = f"note: model.vocab_size={size} is large for this text; {suitable} or so is usual"
        print(text, file=log_stream())


def _learn_tokenizer(
    config: Config,
    corpus: VerifiedCorpus,
    labels: Collection[str],
) -> Tokenizer:
    """Learns a tokenizer from the training text, or reads it from the cache."""
    data = data_section(config, DataConfig)
    learn = functools.partial(
        cached_tokenizer,
        split=data.train,
        vocab_size=config.model.vocab_size,
        cache_directory=cache_directory(),
        user_defined_symbols=data.symbols(),
    )

    if data.pretokenizer == "none":
        # Most validation splits have no other labels; then the cache of earlier versions is valid.
        more_symbols = set(labels)
        if labels:
            pairs = corpus.pairs(data.train)
            more_symbols -= {target for _, target in pairs}
        return learn(corpus, more_symbols=sorted(more_symbols))

    from jaxformer.data.moses_tokenizer import MosesTokenizer, PreprocessedCorpus, Preprocessing

    preprocessing = Preprocessing(
        source_language=data.source_language,
        target_language=data.target_language,
        lowercase=data.lowercase,
        detokenize=data.detokenize,
    )
    # As in subword-nmt, the pieces of a word may mix letters, digits and punctuation.
    learned = learn(
        PreprocessedCorpus(corpus, preprocessing),
        split_by_unicode_script=False,
        split_by_number=False,
    )
    return MosesTokenizer.assemble(preprocessing, learned.serialized)


def _check_vocabulary(
    config: Config,
    tokenizer: Vocabulary,
    corpus: VerifiedCorpus,
) -> None:
    if tokenizer.target_symbols != corpus.target_symbols:
        raise _symbols_error(tokenizer, corpus)

    for symbol in data_section(config, DataConfig).symbols():
        if symbol not in map(tokenizer.piece, tokenizer.encode(symbol)):
            raise UserError(
                f"data.user_defined_symbols: expected a tokenizer with the token {symbol}, got one "
                "without it; learn another with --config.data.tokenizer=new, or leave it out"
            )

    if config.model.output_size < tokenizer.target_vocab_size:
        raise UserError(
            f"model.target_vocab_size must be at least {tokenizer.target_vocab_size}, for all that "
            f"the target of this corpus may be made of: got {config.model.output_size}"
        )


def _symbols_error(tokenizer: Vocabulary, corpus: VerifiedCorpus) -> UserError:
    if corpus.target_symbols:
        return UserError(
            "expected a tokenizer for the symbols of trees, got one for text; give another "
            "data.tokenizer"
        )

    ids = range(UNK + 1, tokenizer.target_vocab_size)
    return UserError(
        "expected a tokenizer without control symbols, which no text contains: got "
        f"{', '.join(map(tokenizer.piece, ids[:5]))}; give spm_train --user_defined_symbols "
        "instead of --control_symbols, or give another data.tokenizer"
    )


def _pairs_to_decode(
    config: Config,
    corpus: VerifiedCorpus,
    tokenizer: Vocabulary,
) -> tuple[list[tuple[str, str]], list[str]]:
    """Returns the first validation pairs whose source is short enough, and the corpus of each.

    There are as many of each corpus of a mixture, or all if it has fewer.
    """
    max_length = config.model.max_length
    data = data_section(config, DataConfig)
    corpora = [data.valid]
    if parse_share(data.valid) is not None:
        corpora = [*parse_mixture(data.train)] or [data.train]
    most_of_each = math.ceil(config.training.eval_sentences / len(corpora))

    pairs = []
    chosen_origins = []
    counts = collections.Counter[str]()
    origins = corpus.origins(data.valid)
    for pair, origin in zip(corpus.pairs(data.valid), origins, strict=False):
        if counts[origin] == most_of_each:
            continue  # Reads the rest to detect changes.
        if len(tokenizer.encode(pair[0])) < max_length:
            pairs.append(pair)
            chosen_origins.append(origin)
            counts[origin] += 1

    for name in corpora:
        if most_of_each and not counts[name] and processes.is_primary():
            text = f"note: {name} has no pair in data.valid={data.valid}, and so no score"
            print(text, file=log_stream())
    return pairs, chosen_origins
