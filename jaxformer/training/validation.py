"""Validation while training: loss and perplexity, BLEU or F1 of trees, and exact matches."""

import operator
from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax
from jax.sharding import Mesh
from jaxtyping import PyTree

from jaxformer.config import Config
from jaxformer.data.linearisation import delinearise
from jaxformer.data.loader import load_batches
from jaxformer.evaluation import evalb
from jaxformer.evaluation.report import corpus_bleu
from jaxformer.inference.parser import Parser
from jaxformer.inference.translator import Translator
from jaxformer.training import hosts
from jaxformer.training.dataset import Dataset
from jaxformer.training.mesh import row_parts, row_shards, to_devices
from jaxformer.training.reporting import loss_means
from jaxformer.training.step import make_eval_step

# Called with how many sentences have been decoded since the last call.
Report: TypeAlias = Callable[[int], None]


class _GivenUpError(Exception):
    """Nobody waits for the validation any more."""


class Validation:
    """Loss and BLEU, or F1 of trees, on the validation part."""

    def __init__(self, config: Config, data: Dataset, mesh: Mesh) -> None:
        """Prepares; programs are compiled at the first use."""
        self._config, self._data, self._mesh = config, data, mesh
        self._eval_step = make_eval_step(config, mesh)

    def __call__(
        self, params: PyTree, *, stopped: Sequence[object] = ()
    ) -> dict[str, float] | None:
        """Loss and perplexity; BLEU or F1 and exact match in %, if sentences are set aside.

        Args:
          params: Of the model.
          stopped: As soon as something is in it, nobody waits for the result any more.

        Returns:
          None if it was given up.
        """
        try:
            return self._values(params, stopped)
        except _GivenUpError:
            return None

    def _values(self, params: PyTree, stopped: Sequence[object]) -> dict[str, float]:
        def give_up_if_stopped(*_: object) -> None:
            if stopped:
                raise _GivenUpError

        plan = self._data.valid_plan
        batches = load_batches(
            self._data.valid,
            plan,
            stop=plan.batches_per_epoch,
            row_multiple=row_shards(self._mesh),
            parts=row_parts(self._mesh),
            part_count=row_shards(self._mesh),
        )
        # One at a time: several that sum over a CPU's devices can wait for one another for ever.
        metrics = []
        for batch in batches:
            give_up_if_stopped()
            metrics.append(jax.device_get(self._eval_step(params, to_devices(self._mesh, batch))))
        values = loss_means(metrics)
        if self._data.valid_text:
            trees = self._config.data.corpus == "trees"
            values |= (self._parse if trees else self._translate)(params, give_up_if_stopped)
        return values

    def _translate(self, params: PyTree, report: Report) -> dict[str, float]:
        sources, references = zip(*self._data.valid_text, strict=True)

        def translate(translator: Translator, mine: slice) -> list[str]:
            return translator.translate(sources[mine], name="validation", report=report)

        translations = self._decode(params, translate)
        language = self._config.data.target_language
        return {
            "bleu": corpus_bleu(translations, references, target_language=language),
            "exact_match": _percentage_equal(translations, references),
        }

    def _parse(self, params: PyTree, report: Report) -> dict[str, float]:
        """As ``jaxformer parse --trees`` does, whose trees have the right parts of speech."""
        gold = [
            delinearise(target.split(" "), source.split(" "))
            for source, target in self._data.valid_text
        ]

        def parse(translator: Translator, mine: slice) -> list[str]:
            words = [tree.words() for tree in gold[mine]]
            tags = [tree.tags() for tree in gold[mine]]
            parser = Parser(translator)
            return list(map(str, parser.parse(words, tags=tags, name="validation", report=report)))

        references, parses = list(map(str, gold)), self._decode(params, parse)
        return {
            "f1": evalb.score(references, parses, evalb.COLLINS).all.f1,
            "exact_match": _percentage_equal(parses, references),
        }

    def _decode(
        self, params: PyTree, decode: Callable[[Translator, slice], list[str]]
    ) -> list[str]:
        """Decodes on one device of each process, each its share of the sentences."""
        if self._mesh.size > 1:
            params = hosts.on_this_host(params)
        translator = Translator(self._config, params, self._data.tokenizer)
        share = -(-len(self._data.valid_text) // jax.process_count())
        first = jax.process_index() * share
        mine = decode(translator, slice(first, first + share))
        return [text for texts in hosts.everyones(mine) for text in texts]


def _percentage_equal(ours: Sequence[str], references: Sequence[str]) -> float:
    return 100 * sum(map(operator.eq, ours, references)) / len(references)
