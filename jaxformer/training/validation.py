"""Validation while training: loss and perplexity, BLEU or F1 of trees, and exact matches."""

import operator
from collections.abc import Sequence

import jax
from jax.sharding import Mesh
from jaxtyping import PyTree

from jaxformer.config import Config
from jaxformer.data.loader import load_batches
from jaxformer.data.trees import delinearise
from jaxformer.evaluation import evalb
from jaxformer.evaluation.report import corpus_bleu
from jaxformer.inference.translator import Translator
from jaxformer.training import hosts
from jaxformer.training.dataset import Dataset
from jaxformer.training.mesh import row_parts, row_shards, to_devices
from jaxformer.training.reporting import loss_means
from jaxformer.training.step import make_eval_step


class Validation:
    """Loss and BLEU, or F1 of trees, on the validation part."""

    def __init__(self, config: Config, data: Dataset, mesh: Mesh) -> None:
        """Prepares; programs are compiled at the first use."""
        self._config, self._data, self._mesh = config, data, mesh
        self._eval_step = make_eval_step(config, mesh)

    def __call__(self, params: PyTree) -> dict[str, float]:
        """Loss and perplexity; BLEU or F1 and exact match in %, if sentences are set aside."""
        plan = self._data.valid_plan
        batches = load_batches(
            self._data.valid,
            plan,
            stop=plan.batches_per_epoch,
            row_multiple=row_shards(self._mesh),
            parts=row_parts(self._mesh),
            part_count=row_shards(self._mesh),
        )
        metrics = [self._eval_step(params, to_devices(self._mesh, batch)) for batch in batches]
        values = loss_means(jax.device_get(metrics))
        if self._data.valid_text:
            sources, references = zip(*self._data.valid_text, strict=True)
            translations = self._translate(params, sources)
            if self._config.data.corpus == "trees":
                values["f1"] = bracketing_f1(sources, translations, references)
            else:
                values["bleu"] = corpus_bleu(translations, references)
            same = sum(map(operator.eq, translations, references))
            values["exact_match"] = 100 * same / len(references)
        return values

    def _translate(self, params: PyTree, sources: Sequence[str]) -> list[str]:
        """Translates on one device of each process, each its share of the sentences."""
        if self._mesh.size > 1:
            params = hosts.on_this_host(params)
        translator = Translator(self._config, params, self._data.tokenizer)
        share = -(-len(sources) // jax.process_count())
        first = jax.process_index() * share
        mine = translator.translate(sources[first : first + share], name="validation")
        return [text for texts in hosts.everyones(mine) for text in texts]


def bracketing_f1(
    sentences: Sequence[str], parses: Sequence[str], references: Sequence[str]
) -> float:
    """F1 of labelled brackets in %, of linearised trees over the same words.

    Words have the reference's tags: EVALB leaves out punctuation by them.

    >>> reference = "(S (NP (PRP) )NP (VP (VBZ) )VP )S"
    >>> bracketing_f1(["It works"], ["(S (PRP) (VP (VB) )VP )S"], [reference])
    80.0
    """
    gold, parsed = [], []
    for sentence, parse, reference in zip(sentences, parses, references, strict=True):
        words = sentence.split(" ")
        right = delinearise(reference.split(" "), words)
        gold.append(str(right))
        parsed.append(str(delinearise(parse.split(" "), words, right.tags())))
    return evalb.score(gold, parsed, evalb.COLLINS).all.f1
