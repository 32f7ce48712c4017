"""Translation: sentence pairs, the label-smoothed loss of section 5.4, and BLEU."""

import contextlib
import dataclasses
import functools
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
from jaxformer.models.transformer import Transformer
from jaxformer.runs import processes
from jaxformer.runs.workdir import DATA_NOTES, Workdir
from jaxformer.tasks.dataset import Dataset, open_dataset
from jaxformer.tasks.token_task import Output, TokenLoss, TokenTask
from jaxformer.training.flops import training_flops
from jaxformer.training.mesh import BatchShards
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
        return dataclasses.replace(super().of(config), consistency=config.training.consistency)

    def __call__(self, params: PyTree, batch: Batch, randomness: Randomness | None) -> Sums:
        consistency = self.consistency if randomness is not None else 0.0
        if randomness is not None and consistency:
            batch = jax.tree.map(lambda x: jnp.repeat(x, 2, axis=0), batch)
            row_ids = 2 * jnp.repeat(randomness.row_ids, 2) + jnp.arange(len(batch.src)) % 2
            randomness = randomness._replace(row_ids=row_ids)

        def forward(module: Transformer, dropout: dict[str, Any]) -> Output:
            encoded = module.encode(batch.src, batch.src_segments, batch.src_positions, **dropout)
            segments = batch.src_segments, batch.tgt_segments
            features = module.decode(
                batch.tgt_in, encoded, *segments, batch.tgt_positions, **dropout
            )
            return features, module.output_projection()

        output = self.apply(params, randomness, forward)
        sums = self.sums(output, batch.tgt_out, batch.tgt_segments != 0, consistency)
        source_tokens = (batch.src_segments != 0).sum(dtype=jnp.int32) // (2 if consistency else 1)
        return sums | {"tokens": source_tokens + sums["count"]}


def abstract_batch(rows: int, src_length: int, tgt_length: int) -> Batch:
    """Returns shapes and dtypes of a global batch, without computing it."""
    src = jax.ShapeDtypeStruct((rows, src_length), jnp.int32)
    tgt = jax.ShapeDtypeStruct((rows, tgt_length), jnp.int32)
    return Batch(src, src, src, tgt, tgt, tgt, tgt)


class Translation(TokenTask):
    """Trains an encoder-decoder on sentence pairs; validates with loss, perplexity and BLEU."""

    loss_class = TranslationLoss

    def __init__(self, config: Config, data: Dataset) -> None:
        self.config, self.tokenizer, self._data = config, data.tokenizer, data
        self._section = data_section(config, DataConfig)
        smoothed = {"loss": "label-smoothed loss {:.3f}"} if config.training.label_smoothing else {}
        self.log_formats = {**smoothed, **self._log_formats()}

    @classmethod
    def open(cls, config: Config, folder: Workdir, corpus: Corpus | None = None) -> "Translation":
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
        decoded, every = len(self._data.valid_text), len(self._data.valid)
        return f" of the first {decoded:,} of {every:,} sentences" if decoded < every else ""

    def batches(self, start: int, shards: BatchShards) -> Iterator[Batch]:
        stop, options = self.config.training.steps, shards._asdict()
        return load_batches(self._data.train, self._data.plan, start=start, stop=stop, **options)

    def shapes(self, shards: BatchShards) -> Sequence[Batch]:
        multiple, shapes = shards.row_multiple, self._data.plan.shapes
        return [abstract_batch(round_up(rows, multiple), src, tgt) for rows, src, tgt in shapes]

    def flops(self, batch: Batch) -> int:
        rows, src_length = batch.src.shape
        return training_flops(self.config.model, rows, src_length, batch.tgt_in.shape[1])

    def identity(self) -> dict[str, str]:
        return self._data.identity

    def summary(self) -> str:
        """Returns the numbers of pairs and batches, the first pairs, and unusual pairs."""
        splits = self._splits()
        counts = "; ".join(f"{len(s.store):,} {s.name}, {_count_skipped(s)}" for s in splits)
        lines = [counts, self._describe_batches()]
        for split in splits:
            lines += self._data.corpus.notes(split.split)
        for split in splits:
            lines += self._first_examples(split.split)
        for split in splits:
            lines += split.store.findings.summarize(split.name, self._place(split), DATA_NOTES)
        return "\n".join(lines)

    def save(self, workdir: Workdir) -> None:
        """Writes the tokenizer, and the places of unusual pairs."""
        super().save(workdir)
        lines: list[str] = []
        for split in self._splits():
            lines += split.store.findings.list_places(split.name, self._place(split))
        workdir.write_data_notes(lines)

    def _splits(self) -> tuple["_Split", "_Split"]:
        section, data = self._section, self._data
        longest = self.config.model.max_length
        return (
            _Split("training pairs", section.train, data.train, section.max_length),
            _Split("validation pairs", section.valid, data.valid, longest),
        )

    def _place(self, split: "_Split") -> Place:
        return functools.partial(self._data.corpus.place, split.split)

    def _describe_batches(self) -> str:
        plan, efficiency = self._data.plan, self._efficiency()
        shapes = f"{len(plan.shapes)} {'shape' if len(plan.shapes) == 1 else 'shapes'}"
        padding = f"{efficiency:.1%} tokens, {1 - efficiency:.1%} padding"
        return f"{plan.batches_per_epoch:,} batches an epoch in {shapes}: {padding}"

    def _first_examples(self, split: str) -> list[str]:
        """Returns a line with the first pair of a split, or of each corpus of a mixture."""
        lines = []
        for name in parse_mixture(split) or [split]:
            # A resumed run may no longer have the files.
            with contextlib.suppress(LookupError, OSError, UserError):
                pairs = self._data.corpus.pairs(name)
                first = next((pair for pair in pairs if not any(map(is_blank, pair))), None)
                if first is not None:
                    lines.append(describe_example(name, self._name_sides(first)))
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
        ids = sorted(i for row in self._data.plan.rows(number)[1] for i in row)
        return (self._data.train.numbers[ids].astype(int) + 1).tolist()

    def describe_batch(self, number: int) -> str:
        ids, place = self.example_ids(number), self._data.corpus.place
        places = [place(self._section.train, i - 1, 0) for i in ids[:10]]
        return f"it had {len(ids)} pairs: {list_first(places, len(ids))}"

    def examples(self, number: int, batch: Batch) -> Iterator[Example]:
        """Yields the pairs of a batch, numbered as in :meth:`example_ids`."""
        tokenizer = self._data.tokenizer
        for row, ids in enumerate(self._data.plan.rows(number)[1]):
            for segment, pair in enumerate(ids, start=1):
                source, target = self._data.train[pair]
                texts = f"{tokenizer.decode(source)} ||| {tokenizer.decode(target)}"
                number = self._data.train.numbers[pair] + 1
                text = f"pair {number}: {replace_controls(texts)}"
                yield Example(row, isolate_pair(batch, row, segment), text)

    def evaluate(self, params: PyTree, mesh: Mesh, check_stop: CheckStop) -> dict[str, float]:
        """Computes loss and perplexity, and decodes and scores the first sentences."""
        plan, options = self._data.valid_plan, BatchShards.of(mesh)._asdict()
        batches = load_batches(self._data.valid, plan, stop=plan.batches_per_epoch, **options)
        values = evaluate_loss(self.loss, params, batches, mesh, check_stop)
        if self._data.valid_text:
            values |= self.score_decoded(params, mesh, check_stop)
        return values

    def score_decoded(self, params: PyTree, mesh: Mesh, check_stop: CheckStop) -> dict[str, float]:
        """Decodes the first ``eval_sentences`` validation sentences, and scores the results."""
        if mesh.size > 1:
            params = processes.on_this_host(params)
        translator = Translator(self.config, params, self._data.tokenizer)
        pairs, count = self._data.valid_text, jax.process_count()
        if count == 1:
            return self.score(self.decode(translator, pairs, lambda _: check_stop()))
        # Each process decodes a share on one device, in blocks, to call check_stop equally often.
        share = -(-len(pairs) // count)
        first, mine = jax.process_index() * share, []
        end = first + share
        for start in range(first, end, _SENTENCES_BETWEEN_STOPS):
            check_stop()
            block = pairs[start : min(start + _SENTENCES_BETWEEN_STOPS, end)]
            mine += self.decode(translator, block, lambda _: None)
        return self.score([text for texts in processes.all_gather(mine) for text in texts])

    def decode(self, translator: Translator, pairs: Pairs, report: Report) -> list[str]:
        """Translates the sources of validation pairs; calls ``report`` after each batch."""
        return translator.translate([src for src, _ in pairs], name="validation", report=report)

    def score(self, translations: Sequence[str]) -> dict[str, float]:
        """Returns BLEU of the validation sentences; for numerals, exact matches in %."""
        references = [reference for _, reference in self._data.valid_text]
        language = self._section.target_language
        if self._section.corpus == "numerals":  # a number is one word, without 4-grams for BLEU
            return {"exact_match": percentage_equal(translations, references)}
        return {"bleu": corpus_bleu(translations, references, target_language=language)}


def percentage_equal(ours: Sequence[str], references: Sequence[str]) -> float:
    """Returns the percentage of texts that equal their reference exactly."""
    return 100 * sum(map(operator.eq, ours, references)) / len(references)


def _count_skipped(split: "_Split") -> str:
    findings = split.store.findings
    long, empty = findings.count(LONG), findings.count(EMPTY)
    return (
        f"{long + empty:,} skipped ({long:,} longer than {split.longest} tokens, {empty:,} with an "
        "empty side)"
    )
