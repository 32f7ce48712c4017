"""Translation: sentence pairs, the label-smoothed loss of section 5.4, and BLEU."""

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, cast

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, PyTree
from sacrebleu.metrics.bleu import BLEU

from jaxformer.config import Config, DataConfig, data_of
from jaxformer.data.batch import Batch, only_pair
from jaxformer.data.corpus import Corpus
from jaxformer.data.findings import EMPTY, LONG, Findings, listed
from jaxformer.data.loader import load_batches, padded_shapes, round_up
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.evaluation.bleu_report import corpus_bleu, sacrebleu
from jaxformer.inference.translator import Translator
from jaxformer.kinds import make_init
from jaxformer.models.flops import training_flops
from jaxformer.models.transformer import Transformer
from jaxformer.runs import processes
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.dataset import Dataset, open_dataset
from jaxformer.tasks.token_loss import TokenLoss
from jaxformer.training.losses import projected_cross_entropy
from jaxformer.training.mesh import BatchShards
from jaxformer.training.task import Example, Init, Loss, Randomness, Sums, Task, dropout_of
from jaxformer.training.validation import evaluate_loss

# Decodes a slice of the validation sentences; calls its last argument after each batch.
Decode: TypeAlias = Callable[[Translator, slice, Callable[[int], None]], list[str]]

# Sentences that each of several processes decodes before it may stop.
_SENTENCES_BETWEEN_STOPS = 64

# Findings about pairs that are skipped, in the log.
_DESCRIPTIONS = {LONG: "too long, skipped", EMPTY: "with an empty side, skipped"}


class TranslationLoss(TokenLoss):
    """Sums the loss of a Transformer over a :class:`~jaxformer.data.batch.Batch`."""

    def __call__(self, params: PyTree, batch: Batch, randomness: Randomness | None) -> Sums:
        model = Transformer(self.model, "none" if randomness is None else self.remat)
        dropout, rngs = dropout_of(randomness)

        def forward(module: Transformer) -> tuple[Array, Any]:
            encoded = module.encode(batch.src, batch.src_segments, batch.src_positions, **dropout)
            segments = batch.src_segments, batch.tgt_segments
            features = module.decode(
                batch.tgt_in, encoded, *segments, batch.tgt_positions, **dropout
            )
            return features, module.output_projection()

        features, projection = cast(Any, model.apply({"params": params}, rngs=rngs, method=forward))
        real = batch.tgt_segments != 0
        smoothing, dtype = self.label_smoothing, self.model.compute_dtype
        loss, nll = projected_cross_entropy(
            features, projection, batch.tgt_out, real, smoothing, dtype
        )
        source_tokens = (batch.src_segments != 0).sum(dtype=jnp.int32)
        target_tokens = real.sum(dtype=jnp.int32)
        tokens = source_tokens + target_tokens
        return {"loss": loss, "nll": nll, "count": target_tokens, "tokens": tokens}


def abstract_batch(rows: int, src_length: int, tgt_length: int) -> Batch:
    """Returns shapes and dtypes of a global batch, without computing it."""
    src = jax.ShapeDtypeStruct((rows, src_length), jnp.int32)
    tgt = jax.ShapeDtypeStruct((rows, tgt_length), jnp.int32)
    return Batch(src, src, src, tgt, tgt, tgt, tgt)


class Translation(Task):
    """Trains a Transformer on sentence pairs; validates with loss, perplexity and BLEU."""

    def __init__(self, config: Config, data: Dataset) -> None:
        self.config, self._data = config, data
        smoothed = {"loss": "label-smoothed loss {:.3f}"} if config.training.label_smoothing else {}
        self.log_formats = {**smoothed, **self._log_formats()}

    @classmethod
    def open(cls, config: Config, folder: Workdir, corpus: Corpus | None = None) -> "Translation":
        """Opens the data of a config; see :func:`~jaxformer.tasks.dataset.open_dataset`."""
        return cls(config, open_dataset(config, folder, corpus))

    @classmethod
    def longest_step(cls, config: Config, shards: BatchShards) -> tuple[Init, Loss, Batch]:
        """Returns initialization, loss and the shape of the longest batch, without any data."""
        data = data_of(config, DataConfig)
        rows = round_up(data.tokens_per_batch // data.max_length, shards.row_multiple)
        batch = abstract_batch(rows, data.max_length, data.max_length)
        return make_init(config.model, config.kind), TranslationLoss.of(config), batch

    def _log_formats(self) -> dict[str, str]:
        data = data_of(self.config, DataConfig)
        if data.corpus == "numerals":
            return {"exact_match": f"exact {{:.1f}}%{self._of_sentences()}"}
        scorer = cast(BLEU, sacrebleu(data.target_language).scorer)
        tokenizer = scorer.tokenizer.signature()
        return {"bleu": f"sacreBLEU {{:.2f}} (cased, {tokenizer} tokenizer){self._of_sentences()}"}

    def _of_sentences(self) -> str:
        """Returns which validation sentences are decoded, if not all."""
        decoded, every = len(self._data.valid_text), len(self._data.valid)
        return f" of the first {decoded:,} of {every:,} sentences" if decoded < every else ""

    @property
    def init(self) -> Init:
        """Creates the parameters."""
        return make_init(self.config.model, self.config.kind)

    @property
    def loss(self) -> Loss:
        """Sums the label-smoothed loss and counts tokens."""
        return TranslationLoss.of(self.config)

    @property
    def tokenizer(self) -> Tokenizer:
        """The shared vocabulary."""
        return self._data.tokenizer

    def batches(self, start: int, shards: BatchShards) -> Iterator[Batch]:
        """Yields the batches of the plan, made in threads."""
        data, stop = self._data, self.config.training.steps
        options = shards._asdict()
        return load_batches(data.train, data.plan, start=start, stop=stop, **options)

    def shapes(self, shards: BatchShards) -> Sequence[Batch]:
        """Returns every shape of a training batch."""
        shapes = padded_shapes(self._data.plan, shards.row_multiple)
        return [abstract_batch(*shape) for shape in shapes]

    def flops(self, batch: Batch) -> int:
        """Returns the operations of all matmuls of a step, for padding too."""
        rows, src_length = batch.src.shape
        return training_flops(self.config.model, rows, src_length, batch.tgt_in.shape[1])

    def identity(self) -> dict[str, str]:
        """Returns the SHA-256 of the tokenizer and of both splits of the corpus."""
        return self._data.identity

    def save(self, workdir: Workdir) -> None:
        """Writes the tokenizer.

        Raises:
          UserError: The workdir already holds another tokenizer.
        """
        workdir.write_tokenizer(self._data.tokenizer.serialized)

    def summary(self) -> str:
        """Returns the numbers of pairs and batches, the share of padding, and unusual pairs."""
        config, data = self.config, self._data
        pairs = data_of(config, DataConfig)
        splits = (
            ("training", pairs.train, data.train, pairs.max_length),
            ("validation", pairs.valid, data.valid, config.model.max_length),
        )
        counts = [
            f"{len(store):,} {name} pairs, {_counts(store.findings, longest)}"
            for name, _, store, longest in splits
        ]
        shapes = len(data.plan.shapes)
        batches = (
            f"{data.plan.batches_per_epoch:,} batches an epoch in {shapes} "
            f"{'shape' if shapes == 1 else 'shapes'}: {data.plan.efficiency:.1%} tokens, "
            f"{1 - data.plan.efficiency:.1%} padding"
        )
        notes = [
            line
            for name, split, store, _ in splits
            for line in (*data.corpus.notes(split), *self._places(name, split, store.findings))
        ]
        return "\n".join(("; ".join(counts), batches, *notes))

    def _places(self, name: str, split: str, findings: Findings) -> Iterator[str]:
        """Yields a line for each kind of findings, with the places of the first ones."""
        for kind, finding in findings.items():
            places = [self._data.corpus.place(split, *place) for place in finding.first]
            yield (
                f"{name} pairs {_DESCRIPTIONS.get(kind, f'with {kind}, kept')}: "
                f"{listed(places, finding.count)}"
            )

    def example_ids(self, number: int) -> list[int]:
        """Returns the numbers of a batch's pairs in the training split, from 1."""
        ids = sorted(i for row in self._data.plan.rows(number)[1] for i in row)
        return (self._data.train.numbers[ids].astype(int) + 1).tolist()

    def describe_batch(self, number: int) -> str:
        """Names the first examples of a batch."""
        corpus, split = self._data.corpus, data_of(self.config, DataConfig).train
        ids = self.example_ids(number)
        places = [corpus.place(split, i - 1, 0) for i in ids[:10]]
        return f"it had {len(ids)} pairs: {listed(places, len(ids))}"

    def examples(self, number: int, batch: Batch) -> Iterator[Example]:
        """Yields the pairs of a batch, numbered as in :meth:`example_ids`."""
        decode = self._data.tokenizer.decode
        for row, ids in enumerate(self._data.plan.rows(number)[1]):
            for segment, pair in enumerate(ids, start=1):
                source, target = map(decode, self._data.train[pair])
                text = f"pair {self._data.train.numbers[pair] + 1}: {source} ||| {target}"
                yield Example(row, only_pair(batch, row, segment), text)

    def evaluate(
        self, params: PyTree, mesh: Mesh, check_stop: Callable[[], None]
    ) -> dict[str, float]:
        """Computes loss and perplexity, and scores the decoded sentences that are set aside."""
        plan, shards = self._data.valid_plan, BatchShards.of(mesh)
        options = shards._asdict()
        batches = load_batches(self._data.valid, plan, stop=plan.batches_per_epoch, **options)
        values = evaluate_loss(self.loss, params, batches, mesh, check_stop)
        if self._data.valid_text:
            values |= self.score_decoded(params, mesh, check_stop)
        return values

    def score_decoded(
        self, params: PyTree, mesh: Mesh, check_stop: Callable[[], None]
    ) -> dict[str, float]:
        """Translates the sentences set aside; returns BLEU, or exact matches of numerals in %."""
        sources, references = zip(*self._data.valid_text, strict=True)

        def translate(
            translator: Translator, mine: slice, report: Callable[[int], object]
        ) -> list[str]:
            return translator.translate(sources[mine], name="validation", report=report)

        translations = self._decode(params, mesh, translate, check_stop)
        data = data_of(self.config, DataConfig)
        if data.corpus == "numerals":  # a German number is one word, which has no 4-grams for BLEU
            return {"exact_match": percentage_equal(translations, references)}
        bleu = corpus_bleu(translations, references, target_language=data.target_language)
        return {"bleu": bleu}

    def _decode(
        self, params: PyTree, mesh: Mesh, decode: Decode, check_stop: Callable[[], None]
    ) -> list[str]:
        """Decodes a share of the sentences on one device of each process."""
        if mesh.size > 1:
            params = processes.on_this_host(params)
        translator = Translator(self.config, params, self._data.tokenizer)
        if jax.process_count() == 1:
            return decode(translator, slice(None), lambda _: check_stop())
        share = -(-len(self._data.valid_text) // jax.process_count())
        first = jax.process_index() * share
        mine, end = [], first + share
        # In blocks, so that all processes call check_stop equally often.
        for start in range(first, end, _SENTENCES_BETWEEN_STOPS):
            check_stop()
            block = slice(start, min(start + _SENTENCES_BETWEEN_STOPS, end))
            mine += decode(translator, block, lambda _: None)
        return [text for texts in processes.all_gather(mine) for text in texts]


def percentage_equal(ours: Sequence[str], references: Sequence[str]) -> float:
    """Returns the percentage of texts that equal their reference exactly."""
    return 100 * sum(map(operator.eq, ours, references)) / len(references)


def _counts(findings: Findings, longest: int) -> str:
    """Returns how many pairs are skipped, and how many of the others are unusual."""
    long, empty = findings.count(LONG), findings.count(EMPTY)
    unusual = [f"{f.count:,} with {kind}" for kind, f in findings.unusual().items()]
    return (
        f"{long + empty:,} skipped ({long:,} longer than {longest} tokens, {empty:,} with an empty "
        f"side){' and of the others ' if unusual else ''}{', '.join(unusual)}"
    )
