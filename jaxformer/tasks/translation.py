"""Translation: sentence pairs, the label-smoothed loss of section 5.4, and BLEU."""

import collections
import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import PyTree
from sacrebleu.metrics.bleu import BLEU

from jaxformer.config import Config
from jaxformer.data.batch import Batch, isolate_pair
from jaxformer.data.batch import make_batch as make_pair_batch
from jaxformer.data.corpus import Corpus, parse_mixture
from jaxformer.evaluation.bleu_report import corpus_bleu, sacrebleu
from jaxformer.inference.translator import Translator
from jaxformer.kinds.translation import TRANSLATION
from jaxformer.models.transformer import Transformer
from jaxformer.runs import processes
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.corpus_task import CorpusTask
from jaxformer.tasks.dataset import Dataset, open_dataset
from jaxformer.tasks.token_task import Output, Queries, TokenLoss
from jaxformer.training.flops import training_flops
from jaxformer.training.task import CheckStop, Randomness, Sums

Pairs: TypeAlias = Sequence[tuple[str, str]]
Report: TypeAlias = Callable[[int], object]  # called with the number of finished sentences

# Sentences that each of several processes decodes between checks for a stop.
_SENTENCES_BETWEEN_STOPS = 64


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
        is_token = batch.src_segments != 0
        source_tokens = is_token.sum(dtype=jnp.int32) // passes
        return sums | {"tokens": source_tokens + sums["count"]}

    def attention_queries(self, batch: Batch) -> Queries:
        """Returns a weight of 1 for each token, in the sub-layers where it is a query."""
        is_source = batch.src_segments != 0
        is_target = batch.tgt_segments != 0
        return {
            ("encoder", "self_attention"): is_source.astype(jnp.float32),
            ("decoder", "self_attention"): is_target.astype(jnp.float32),
            ("decoder", "cross_attention"): is_target.astype(jnp.float32),
        }


class Translation(CorpusTask):
    """Trains an encoder-decoder on sentence pairs; validates with loss, perplexity and BLEU."""

    kind = TRANSLATION
    loss_class = TranslationLoss
    make_batch = staticmethod(make_pair_batch)
    isolate = staticmethod(isolate_pair)

    def __init__(self, config: Config, data: Dataset) -> None:
        super().__init__(config, data)
        source_end = self.tokenizer.source_end
        self.make_batch = functools.partial(make_pair_batch, source_end=source_end)

    @classmethod
    def open(
        cls,
        config: Config,
        folder: Workdir,
        corpus: Corpus | None = None,
    ) -> "Translation":
        return cls(config, open_dataset(config, folder, corpus))

    def _log_formats(self) -> dict[str, str]:
        if self._section.corpus == "numerals":
            return {"exact_match": f"exact {{:.1f}}%{self._subset_note()}"}

        scorer = cast(BLEU, sacrebleu(self._section.target_language).scorer)
        tokenizer = scorer.tokenizer.signature()
        text = f"sacreBLEU {{:.2f}} (cased, {tokenizer} tokenizer){self._subset_note()}"
        formats = {"bleu": text}
        for corpus, count in self._decoded_corpora().items():
            name = corpus.replace("{", "{{").replace("}", "}}")
            sentences = "sentence" if count == 1 else "sentences"
            formats[f"bleu/{corpus}"] = f"{name} {{:.2f}} ({count:,} {sentences})"
        return formats

    def _subset_note(self) -> str:
        """Describes the decoded validation sentences, unless all are decoded."""
        decoded = len(self._data.valid_text)
        every = len(self._data.valid)
        if decoded >= every:
            return ""
        first = "" if self._decoded_corpora() else "the first "
        return f" of {first}{decoded:,} of {every:,} sentences"

    def _decoded_corpora(self) -> dict[str, int]:
        """Returns the numbers of decoded sentences of the corpora of a mixture."""
        names = parse_mixture(self._section.train)
        counts = collections.Counter(self._data.valid_origins)
        return {name: count for name, count in counts.items() if name in names}

    def flops(self, batch: Batch) -> int:
        rows, src_length = batch.src.shape
        _, tgt_length = batch.tgt_in.shape
        return training_flops(self.config.model, rows, src_length, tgt_length=tgt_length)

    def _name_sides(self, pair: tuple[str, str]) -> list[tuple[str, str]]:
        languages = (self._section.source_language, self._section.target_language)
        return list(zip(languages, pair, strict=True))

    def evaluate(
        self,
        params: PyTree,
        mesh: Mesh,
        check_stop: CheckStop,
    ) -> dict[str, float]:
        """Computes loss and perplexity, and decodes and scores the first sentences."""
        values = super().evaluate(params, mesh, check_stop)
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
            block_end = min(start + _SENTENCES_BETWEEN_STOPS, end)
            block = pairs[start:block_end]
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
        """Returns the scores of the validation sentences, and of each corpus of a mixture."""
        pairs = self._data.valid_text
        values = self.score_pairs(translations, pairs)

        origins = self._data.valid_origins
        for corpus in self._decoded_corpora():
            is_own = [origin == corpus for origin in origins]
            own = list(itertools.compress(translations, is_own))
            own_pairs = list(itertools.compress(pairs, is_own))
            for name, value in self.score_pairs(own, own_pairs).items():
                values[f"{name}/{corpus}"] = value
        return values

    def score_pairs(self, translations: Sequence[str], pairs: Pairs) -> dict[str, float]:
        """Returns BLEU of the translations of pairs; for numerals, exact matches in %."""
        references = [reference for _, reference in pairs]
        if self._section.corpus == "numerals":  # a number is one word, without 4-grams for BLEU
            return {"exact_match": percentage_equal(translations, references)}

        language = self._section.target_language
        return {"bleu": corpus_bleu(translations, references, target_language=language)}


def percentage_equal(ours: Sequence[str], references: Sequence[str]) -> float:
    """Returns the percentage of texts that equal their reference exactly."""
    equal = sum(map(operator.eq, ours, references))
    return 100 * equal / len(references)
