"""Translation: sentence pairs, the label-smoothed loss of section 5.4, and BLEU."""

import contextlib
import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import PyTree
from sacrebleu.metrics.bleu import BLEU

from jaxformer.config import Config, DataConfig, data_section
from jaxformer.data.batch import Batch, isolate_pair
from jaxformer.data.characters import is_blank, replace_controls
from jaxformer.data.corpus import Corpus, parse_mixture
from jaxformer.data.examples import describe_example
from jaxformer.data.findings import EMPTY, LONG, Place, list_first
from jaxformer.data.loader import load_batches, round_up
from jaxformer.data.store import TokenStore
from jaxformer.errors import UserError
from jaxformer.evaluation.bleu_report import corpus_bleu, sacrebleu
from jaxformer.inference.translator import Translator
from jaxformer.kinds.translation import TRANSLATION
from jaxformer.models.transformer import Transformer
from jaxformer.runs import processes
from jaxformer.runs.workdir import DATA_NOTES, Workdir
from jaxformer.tasks.dataset import Dataset, open_dataset
from jaxformer.tasks.token_task import Output, TokenLoss, TokenTask
from jaxformer.training.flops import training_flops
from jaxformer.training.placement import BatchShards
from jaxformer.training.task import CheckStop, Example, Randomness, Sums
from jaxformer.training.validation import evaluate_loss

Pairs: TypeAlias = Sequence[tuple[str, str]]
Report: TypeAlias = Callable[[int], object]  # called with the number of finished sentences

# Sentences that each of several processes decodes between checks for a stop.
_SENTENCES_BETWEEN_STOPS = 64


class _Split(NamedTuple):
    """A split of a run, and the length from which its pairs are skipped."""

    name: str
    split: str
    store: TokenStore
    longest: int


@dataclasses.dataclass(frozen=True)
class TranslationLoss(TokenLoss):
    """Sums the loss of an encoder-decoder over a :class:`~jaxformer.data.batch.Batch`."""

    consistency: float = 0.0  # weight of R-Drop: how different two passes with dropout may be

    @classmethod
    def of(cls, config: Config) -> "TranslationLoss":
        consistency = config.training.consistency
        return dataclasses.replace(super().of(config), consistency=consistency)

    def __call__(
        self,
        params: PyTree,
        batch: Batch,
        randomness: Randomness | None,
    ) -> Sums:
        consistency = 0.0
        if randomness is not None:
            consistency = self.consistency
        passes = 2 if consistency else 1

        if randomness is not None and consistency:
            # R-Drop: each row is there twice, side by side, and each copy has its own dropout.
            batch = jax.tree.map(lambda x: jnp.repeat(x, passes, axis=0), batch)
            row_ids = passes * jnp.repeat(randomness.row_ids, passes)
            row_ids = row_ids + jnp.arange(len(batch.src)) % passes
            randomness = randomness._replace(row_ids=row_ids)

        def forward(module: Transformer, dropout: dict[str, Any]) -> Output:
            encoded = module.encode(  # [B, S, D]
                batch.src,
                batch.src_segments,
                batch.src_positions,
                **dropout,
            )
            features = module.decode(  # [B, T, D]
                batch.tgt_in,
                encoded,
                batch.src_segments,
                tgt_segments=batch.tgt_segments,
                tgt_positions=batch.tgt_positions,
                **dropout,
            )
            return features, module.output_projection()

        output = self.apply(params, randomness, forward)
        is_target = batch.tgt_segments != 0
        sums = self.sums(
            output,
            batch.tgt_out,
            is_target,
            consistency=consistency,
        )

        # Each pass has the same source tokens.
        source_tokens = (batch.src_segments != 0).sum(dtype=jnp.int32) // passes
        return sums | {"tokens": source_tokens + sums["count"]}


def abstract_batch(
    rows: int,
    src_length: int,
    tgt_length: int,
) -> Batch:
    """Returns shapes and dtypes of a global batch, without computing it."""
    src = jax.ShapeDtypeStruct((rows, src_length), jnp.int32)
    tgt = jax.ShapeDtypeStruct((rows, tgt_length), jnp.int32)
    return Batch(
        src=src,
        src_segments=src,
        src_positions=src,
        tgt_in=tgt,
        tgt_out=tgt,
        tgt_segments=tgt,
        tgt_positions=tgt,
    )


class Translation(TokenTask):
    """Trains an encoder-decoder on sentence pairs; validates with loss, perplexity and BLEU."""

    kind = TRANSLATION
    loss_class = TranslationLoss

    def __init__(self, config: Config, data: Dataset) -> None:
        self.config = config
        self.tokenizer = data.tokenizer
        self._data = data
        self._section = data_section(config, DataConfig)

        self.log_formats = {}
        if config.training.label_smoothing:
            self.log_formats["loss"] = "label-smoothed loss {:.3f}"
        self.log_formats |= self._log_formats()

    @classmethod
    def open(
        cls,
        config: Config,
        folder: Workdir,
        corpus: Corpus | None = None,
    ) -> "Translation":
        return cls(config, open_dataset(config, folder, corpus))

    @staticmethod
    def longest_batch(config: Config, shards: BatchShards) -> Batch:
        data = data_section(config, DataConfig)
        rows = round_up(data.tokens_per_batch // data.max_length, shards.row_multiple)
        return abstract_batch(rows, data.max_length, data.max_length)

    def _log_formats(self) -> dict[str, str]:
        if self._section.corpus == "numerals":
            return {"exact_match": f"exact {{:.1f}}%{self._subset_note()}"}

        scorer = cast(BLEU, sacrebleu(self._section.target_language).scorer)
        tokenizer = scorer.tokenizer.signature()
        return {"bleu": f"sacreBLEU {{:.2f}} (cased, {tokenizer} tokenizer){self._subset_note()}"}

    def _subset_note(self) -> str:
        """Describes the decoded validation sentences, unless all are decoded."""
        decoded = len(self._data.valid_text)
        every = len(self._data.valid)
        if decoded >= every:
            return ""
        return f" of the first {decoded:,} of {every:,} sentences"

    def batches(self, start: int, shards: BatchShards) -> Iterator[Batch]:
        return load_batches(
            self._data.train,
            self._data.plan,
            start=start,
            stop=self.config.training.steps,
            row_multiple=shards.row_multiple,
            local_shards=shards.local_shards,
            shard_count=shards.shard_count,
        )

    def shapes(self, shards: BatchShards) -> Sequence[Batch]:
        batches = []
        for rows, src_length, tgt_length in self._data.plan.shapes:
            padded_rows = round_up(rows, shards.row_multiple)
            batches.append(abstract_batch(padded_rows, src_length, tgt_length))
        return batches

    def flops(self, batch: Batch) -> int:
        rows, src_length = batch.src.shape
        _, tgt_length = batch.tgt_in.shape
        return training_flops(self.config.model, rows, src_length, tgt_length=tgt_length)

    def identity(self) -> dict[str, str]:
        return self._data.identity

    def summary(self) -> str:
        """Returns the numbers of pairs and batches, the first pairs, and unusual pairs."""
        splits = self._splits()
        corpus = self._data.corpus

        counts = []
        for each in splits:
            counts.append(f"{len(each.store):,} {each.name}, {_count_skipped(each)}")
        lines = ["; ".join(counts), self._describe_batches()]

        for each in splits:
            lines += corpus.notes(each.split)

        for each in splits:
            lines += self._first_examples(each.split)

        for each in splits:
            findings = each.store.findings
            lines += findings.summarize(each.name, self._place(each), DATA_NOTES)

        return "\n".join(lines)

    def save(self, workdir: Workdir) -> None:
        """Writes the tokenizer, and the places of unusual pairs."""
        super().save(workdir)

        lines: list[str] = []
        for each in self._splits():
            findings = each.store.findings
            lines += findings.list_places(each.name, self._place(each))
        workdir.write_data_notes(lines)

    def _splits(self) -> tuple["_Split", "_Split"]:
        train = _Split(
            name="training pairs",
            split=self._section.train,
            store=self._data.train,
            longest=self._section.max_length,
        )
        valid = _Split(
            name="validation pairs",
            split=self._section.valid,
            store=self._data.valid,
            longest=self.config.model.max_length,
        )
        return train, valid

    def _place(self, split: "_Split") -> Place:
        return functools.partial(self._data.corpus.place, split.split)

    def _describe_batches(self) -> str:
        plan = self._data.plan
        shapes = "1 shape" if len(plan.shapes) == 1 else f"{len(plan.shapes)} shapes"

        efficiency = self._efficiency()
        padding = f"{efficiency:.1%} tokens, {1 - efficiency:.1%} padding"
        return f"{plan.batches_per_epoch:,} batches an epoch in {shapes}: {padding}"

    def _first_examples(self, split: str) -> list[str]:
        """Returns a line with the first pair of a split, or of each corpus of a mixture."""
        lines = []
        for name in parse_mixture(split) or [split]:
            # A resumed run may no longer have the files.
            with contextlib.suppress(LookupError, OSError, UserError):
                for pair in self._data.corpus.pairs(name):
                    if not any(map(is_blank, pair)):
                        lines.append(describe_example(name, self._name_sides(pair)))
                        break
        return lines

    def _name_sides(self, pair: tuple[str, str]) -> list[tuple[str, str]]:
        """Returns the names and the texts of the sides of a pair, for the log."""
        languages = (self._section.source_language, self._section.target_language)
        return list(zip(languages, pair, strict=True))

    def _efficiency(self) -> float:
        """Returns the fraction of the computed tokens that are not padding."""
        return self._data.plan.efficiency

    def example_ids(self, number: int) -> list[int]:
        """Returns the numbers of a batch's pairs in the training split, from 1."""
        _, rows = self._data.plan.rows(number)
        ids = sorted(itertools.chain.from_iterable(rows))
        numbers = self._data.train.numbers[ids].astype(int) + 1
        return numbers.tolist()

    def describe_batch(self, number: int) -> str:
        ids = self.example_ids(number)
        places = []
        for pair in ids[:10]:
            places.append(self._data.corpus.place(self._section.train, pair - 1, 0))
        return f"it had {len(ids)} pairs: {list_first(places, len(ids))}"

    def examples(self, number: int, batch: Batch) -> Iterator[Example]:
        """Yields the pairs of a batch, numbered as in :meth:`example_ids`."""
        tokenizer = self._data.tokenizer
        store = self._data.train
        _, rows = self._data.plan.rows(number)

        for row, ids in enumerate(rows):
            for segment, pair in enumerate(ids, start=1):
                source, target = store[pair]
                texts = f"{tokenizer.decode(source)} ||| {tokenizer.decode(target)}"
                yield Example(
                    row=row,
                    batch=isolate_pair(batch, row, segment),
                    text=f"pair {store.numbers[pair] + 1}: {replace_controls(texts)}",
                )

    def evaluate(
        self,
        params: PyTree,
        mesh: Mesh,
        check_stop: CheckStop,
    ) -> dict[str, float]:
        """Computes loss and perplexity, and decodes and scores the first sentences."""
        shards = BatchShards.of(mesh)
        batches = load_batches(
            self._data.valid,
            self._data.valid_plan,
            stop=self._data.valid_plan.batches_per_epoch,
            row_multiple=shards.row_multiple,
            local_shards=shards.local_shards,
            shard_count=shards.shard_count,
        )
        values = evaluate_loss(self.loss, params, batches, mesh=mesh, check_stop=check_stop)

        if self._data.valid_text:
            values |= self.score_decoded(params, mesh, check_stop)
        return values

    def score_decoded(
        self,
        params: PyTree,
        mesh: Mesh,
        check_stop: CheckStop,
    ) -> dict[str, float]:
        """Decodes the first ``eval_sentences`` validation sentences, and scores the results."""
        if mesh.size > 1:
            params = processes.on_this_host(params)
        translator = Translator(self.config, params, self._data.tokenizer)

        if jax.process_count() == 1:
            pairs = self._data.valid_text
            return self.score(self.decode(translator, pairs, lambda _: check_stop()))

        shares = processes.all_gather(self._decode_share(translator, check_stop))
        return self.score([text for share in shares for text in share])

    def _decode_share(self, translator: Translator, check_stop: CheckStop) -> list[str]:
        """Decodes the share of this process on one device."""
        pairs = self._data.valid_text
        share = -(-len(pairs) // jax.process_count())
        first = jax.process_index() * share
        end = first + share

        # In blocks, to call check_stop equally often in all processes.
        translations = []
        for start in range(first, end, _SENTENCES_BETWEEN_STOPS):
            check_stop()
            block = pairs[start : min(start + _SENTENCES_BETWEEN_STOPS, end)]
            translations += self.decode(translator, block, lambda _: None)
        return translations

    def decode(
        self,
        translator: Translator,
        pairs: Pairs,
        report: Report,
    ) -> list[str]:
        """Translates the sources of validation pairs; calls ``report`` after each batch."""
        sources = [source for source, _ in pairs]
        return translator.translate(sources, name="validation", report=report)

    def score(self, translations: Sequence[str]) -> dict[str, float]:
        """Returns BLEU of the validation sentences; for numerals, exact matches in %."""
        references = [reference for _, reference in self._data.valid_text]
        if self._section.corpus == "numerals":  # a number is one word, without 4-grams for BLEU
            return {"exact_match": percentage_equal(translations, references)}

        language = self._section.target_language
        return {"bleu": corpus_bleu(translations, references, target_language=language)}


def percentage_equal(ours: Sequence[str], references: Sequence[str]) -> float:
    """Returns the percentage of texts that equal their reference exactly."""
    equal = sum(map(operator.eq, ours, references))
    return 100 * equal / len(references)


def _count_skipped(split: "_Split") -> str:
    findings = split.store.findings
    long = findings.count(LONG)
    empty = findings.count(EMPTY)
    return (
        f"{long + empty:,} skipped ({long:,} longer than {split.longest} tokens, {empty:,} with an "
        "empty side)"
    )
