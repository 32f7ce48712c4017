"""Scores of translations against one reference, each with its name and how it was computed.

"BLEU" alone names no number: it depends on case, tokenisation and smoothing, by several points.
The report therefore gives the variants that papers quote, side by side:

* **sacreBLEU**: cased, on plain text, with the tokenisation of WMT's mteval-v13a. The one to quote.
* **chrF**: character n-grams; kinder to long German compounds.
* **Tokenised BLEU**: cased, ``tokenizer.perl`` followed by ``multi-bleu.perl``, as most papers on
  WMT14 since 2014. Words with hyphens are kept whole.
* **Lower-cased tokenised BLEU**: the metric of the Multi30k papers. They train and score on the
  files ``*.lc.norm.tok`` of the data set, made by ``lowercase.perl``,
  ``normalize-punctuation.perl`` and ``tokenizer.perl``, in this order; the same is done here to
  both sides. On the German reference of ``test_2016_flickr`` the normalisation changes nothing.
* **Exact match**: the share of lines that equal their reference.

The Perl scripts are the ports in ``sacremoses``. They write ``&quot;`` for a quotation mark; we do
not, which makes no difference, since both are one token.
"""

import dataclasses
import json
from collections.abc import Sequence
from importlib import metadata

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacremoses import MosesPunctNormalizer, MosesTokenizer

from jaxformer.errors import UserError


@dataclasses.dataclass(frozen=True)
class Metric:
    """One score.

    Attributes:
      name: What the score is called.
      score: Its value, from 0 to 100.
      method: How it was computed, precisely enough to repeat it.
    """

    name: str
    score: float
    method: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationReport:
    """Everything measured on one set of translations; the module says what each metric is."""

    target_language: str
    lines: int
    sacrebleu: Metric
    chrf: Metric
    tokenised_bleu: Metric
    lowercased_tokenised_bleu: Metric
    exact_match: Metric

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """All metrics, in the order of the fields."""
        values = (getattr(self, field.name) for field in dataclasses.fields(self))
        return tuple(value for value in values if isinstance(value, Metric))

    def to_json(self) -> str:
        """The report as a JSON object: the fields, and name, score and method of each metric."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False, indent=2)

    def table(self) -> str:
        """The report as aligned text: metric, score, and how it was computed."""
        rows = [
            ("metric", "score", f"lines: {self.lines}, target language: {self.target_language}"),
            *((metric.name, f"{metric.score:.2f}", metric.method) for metric in self.metrics),
        ]
        width = max(len(name) for name, _, _ in rows)
        return "\n".join(f"{name:{width}}  {score:>6}  {method}" for name, score, method in rows)


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Scores with the defaults of sacreBLEU: cased, tokenisation 13a; from 0 to 100.

    >>> corpus_bleu(["Ein Hund läuft im Schnee."], ["Ein Hund läuft im Schnee."])
    100.0

    Raises:
      UserError: The numbers of lines differ, or are 0.
    """
    _check_lines(hypotheses, references)
    return _measured("sacreBLEU", BLEU(force=True), hypotheses, references).score


def translation_report(
    hypotheses: Sequence[str], references: Sequence[str], *, target_language: str
) -> TranslationReport:
    """Scores translations by every metric of this module.

    Args:
      hypotheses: Translations as plain, cased, detokenised text.
      references: The reference for each, likewise.
      target_language: Code such as "de"; chooses the rules of the Moses tokenizer.

    Raises:
      UserError: The numbers of lines differ, or are 0.
    """
    _check_lines(hypotheses, references)
    both, language = (hypotheses, references), target_language
    tokenised = [_tokenised(lines, language) for lines in both]
    lowercased = [_tokenised(_lowercased(lines, language), language) for lines in both]
    matches = sum(h == r for h, r in zip(hypotheses, references, strict=True))
    moses = (
        f"tokenizer.perl -l {language}, hyphens whole | multi-bleu.perl | "
        f"sacremoses {metadata.version('sacremoses')}"
    )
    return TranslationReport(
        target_language=language,
        lines=len(references),
        sacrebleu=_measured("sacreBLEU", BLEU(force=True), hypotheses, references),
        chrf=_measured("chrF", CHRF(), hypotheses, references),
        tokenised_bleu=Metric("tokenised BLEU", _multi_bleu(*tokenised), f"cased | {moses}"),
        lowercased_tokenised_bleu=Metric(
            "lower-cased tokenised BLEU",
            _multi_bleu(*lowercased),
            f"lowercase.perl | normalize-punctuation.perl -l {language} | {moses}",
        ),
        exact_match=Metric(
            "exact match", 100 * matches / len(references), "lines equal to their reference, in %"
        ),
    )


def _check_lines(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references):
        raise UserError(
            "expected one reference line for each translation: got "
            f"{len(hypotheses)} translations and {len(references)} reference lines"
        )
    if not references:
        raise UserError("expected translations to score: got 0 lines")


def _measured(
    name: str, metric: BLEU | CHRF, hypotheses: Sequence[str], references: Sequence[str]
) -> Metric:
    score = metric.corpus_score(hypotheses, [references]).score
    # Perfect translations score 100.00000000000004, rounded so by the exponential of the formula.
    return Metric(name, min(score, 100.0), str(metric.get_signature()))


def _multi_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """The score of ``multi-bleu.perl``, which splits at spaces and does not smooth."""
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    return _measured("", metric, hypotheses, references).score


def _tokenised(lines: Sequence[str], language: str) -> list[str]:
    tokenizer = MosesTokenizer(language)
    return [" ".join(tokenizer.tokenize(line, escape=False)) for line in lines]


def _lowercased(lines: Sequence[str], language: str) -> list[str]:
    # perl_parity: the tokenised files of Multi30k come from the Perl script, its quirks included.
    normalizer = MosesPunctNormalizer(language, perl_parity=True)
    return [normalizer.normalize(line.lower()) for line in lines]
