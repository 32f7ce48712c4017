"""BLEU and other scores of translations against one reference.

BLEU differs by several points between cases, tokenizers and smoothing methods. The report therefore
gives the variants that papers quote, each with its exact method:

* **sacreBLEU**: cased, on plain text, with sacreBLEU's tokenizer for the target language, which is
  WMT's mteval-v13a for most languages. Quote this one.
* **chrF**: F-score of character n-grams; more lenient with long German compounds.
* **Tokenized BLEU**: cased, ``tokenizer.perl`` followed by ``multi-bleu.perl``, as in most papers
  on WMT14 since 2014. Words with hyphens are kept whole.
* **Compound-split BLEU**: the paper's metric (Table 2). The authors' script ``get_ende_bleu.sh``
  applies ``replace-unicode-punctuation.perl``, tokenizes, and splits words at hyphens, ``x-y``
  into ``x ##AT##-##AT## y``, before ``multi-bleu.perl``. Each matching hyphen thus counts as a
  matching word. The script expects a tokenized reference; here both sides are processed alike.
* **Lowercased tokenized BLEU**: the metric of the Multi30k papers. They train and score on the
  files ``*.lc.norm.tok`` of the data set, made by ``lowercase.perl``,
  ``normalize-punctuation.perl`` and ``tokenizer.perl``, in this order. We process both sides alike.
  On the German reference of ``test_2016_flickr`` the normalization changes nothing.
* **Exact match**: percentage of lines that equal their reference, except for blanks at the ends.

BLEU counts sequences of up to four words. If no line has four, it would be 0 even for perfect
translations, and the report gives no value.

Some languages do not separate words by spaces. sacreBLEU splits the Chinese languages, Japanese and
Korean with the tokenizers ``zh``, ``ja-mecab`` and ``ko-mecab``. It has none for Thai, Lao, Khmer,
Burmese, Tibetan and Dzongkha: BLEU scores their single characters, ``tok:char``. The Perl scripts
can split none of these languages, so their three metrics are omitted. ``ja-mecab`` and ``ko-mecab``
need extra packages; without them, characters are scored, and the report names the package.

The Perl scripts are the ports in ``sacremoses``. Unlike the scripts, we do not escape quotation
marks as ``&quot;``; the score is the same, since both are one token.
"""

import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Sequence
from importlib import metadata

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacremoses import MosesPunctNormalizer, MosesTokenizer

from jaxformer.checks import check_texts
from jaxformer.errors import UserError

# Languages without spaces, ISO 639 codes and OPUS's "jap", by sacreBLEU's tokenizer, else "char".
_WITHOUT_SPACES = {
    "zh": "zh zho chi cmn yue wuu lzh nan hak gan hsn cdo cjy cpx czh czo mnp",
    "ja": "ja jpn jap",
    "ko": "ko kor",
    "char": "th tha lo lao km khm my mya bur bo bod tib dz dzo",
}


@dataclasses.dataclass(frozen=True)
class Metric:
    """A score from 0 to 100 and its exact method; None for BLEU if no line has four words."""

    name: str
    score: float | None
    method: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricDefinition:
    """Definition of a metric: sacreBLEU's metric, applied to lines after :attr:`prepare`."""

    name: str
    scorer: BLEU | CHRF
    prepare: Callable[[str], str] = str
    steps: str = ""  # the equivalent Perl scripts; without them, sacreBLEU's signature is shown
    note: str = ""  # at the end of the signature

    def method(self) -> str:
        """Returns a description of the method. Call it after scoring, for a complete signature."""
        return self.steps or f"{self.scorer.get_signature()}{self.note}"

    def is_defined(self, *sides: Sequence[str]) -> bool:
        """Returns whether prepared lines have a score: BLEU needs a line of at least four words."""
        scorer = self.scorer
        if isinstance(scorer, CHRF):
            return True

        for line in itertools.chain(*sides):
            words = scorer.tokenizer(line).split()
            if len(words) >= scorer.max_ngram_order:
                return True
        return False

    def score(
        self,
        hypotheses: Sequence[str],
        references: Sequence[str],
    ) -> Metric:
        """Scores plain text against one reference for each line."""
        ours = [self.prepare(line) for line in hypotheses]
        theirs = [self.prepare(line) for line in references]

        # Perfect translations score 100.00000000000004, a rounding error of BLEU's exponential.
        score = self.scorer.corpus_score(ours, [theirs]).score
        score = min(score, 100.0)

        return Metric(
            name=self.name,
            score=score if self.is_defined(ours, theirs) else None,
            method=self.method(),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationReport:
    """All metrics of a set of translations; the module's docstring defines them."""

    target_language: str
    lines: int
    sacrebleu: Metric
    chrf: Metric
    # None for languages that the Perl scripts cannot tokenize.
    tokenized_bleu: Metric | None = None
    compound_split_bleu: Metric | None = None
    lowercased_tokenized_bleu: Metric | None = None
    exact_match: Metric

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """All metrics that are not None, in the order of the fields."""
        values = vars(self).values()
        return tuple(value for value in values if isinstance(value, Metric))

    def to_json(self) -> str:
        """Returns the report as a JSON object with name, score and method of each metric."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False, indent=2)

    def table(self) -> str:
        """Returns the report as an aligned table of metric, score and method."""
        width = max(len(metric.name) for metric in self.metrics)
        head = f"lines: {self.lines}, target language: {self.target_language}"
        lines = [f"{'metric':{width}}  {'score':>6}  {head}"]

        for metric in self.metrics:
            if metric.score is None:
                score = "n/a"
                method = "(no line has 4 words)"
            else:
                score = f"{metric.score:.2f}"
                method = metric.method
            name = f"{metric.name:{width}}"
            lines.append(f"{name}  {score:>6}  {method}")
        return "\n".join(lines)


def corpus_bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    target_language: str,
) -> float:
    """Computes sacreBLEU, from 0 to 100: cased, with the target language's tokenizer.

    It is 0 if no line has four words, as in sacreBLEU.
    """
    check_lines(hypotheses, references)
    metric = sacrebleu(target_language).score(hypotheses, references)
    return metric.score or 0.0


def translation_report(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    target_language: str,
) -> TranslationReport:
    """Scores plain, cased, detokenized translations; a language such as "de" selects tokenizers."""
    check_lines(hypotheses, references)

    pairs = zip(hypotheses, references, strict=True)
    matches = sum(ours.strip() == theirs.strip() for ours, theirs in pairs)
    exact_match = Metric(
        name="exact match",
        score=100 * matches / len(references),
        method="lines equal to their reference but for blanks at the ends, in %",
    )

    scores = {}
    for field, metric in metric_definitions(target_language).items():
        scores[field] = metric.score(hypotheses, references)

    return TranslationReport(
        target_language=target_language,
        lines=len(references),
        exact_match=exact_match,
        **scores,
    )


def sacrebleu(language: str) -> MetricDefinition:
    """Returns sacreBLEU with its tokenizer for a language such as "de", "zh-TW" or "jpn"."""
    code = _without_words(language)
    if code == "char":
        return MetricDefinition(
            name="sacreBLEU",
            scorer=BLEU(tokenize="char", force=True),
            note=" (characters, since no tokenizer of sacreBLEU finds this language's words)",
        )

    try:
        scorer = BLEU(trg_lang=code or "", force=True)
        note = ""
    except RuntimeError:  # MeCab or its dictionary is missing
        scorer = BLEU(tokenize="char", force=True)
        note = f" (characters; pip install 'sacrebleu[{code}]' for words, tok:{code}-mecab)"
    return MetricDefinition(name="sacreBLEU", scorer=scorer, note=note)


def metric_definitions(language: str) -> dict[str, MetricDefinition]:
    """Returns the metrics of a target language by field of the report, without exact match."""
    metrics = {
        "sacrebleu": sacrebleu(language),
        "chrf": MetricDefinition(name="chrF", scorer=CHRF()),
    }

    # The Perl scripts find words by spaces.
    if not _without_words(language):
        metrics |= _moses_metrics(language)
    return metrics


def _without_words(language: str) -> str | None:
    """Returns the tokenizer of a language without spaces, such as "zh"; None for all others."""
    code = re.split("[-_]", language.lower())[0]
    for tokenizer, codes in _WITHOUT_SPACES.items():
        if code in codes.split():
            return tokenizer
    return None


def _moses_metrics(language: str) -> dict[str, MetricDefinition]:
    """Returns the definitions of the metrics of Moses' Perl scripts."""
    tokenizer = MosesTokenizer(language)
    punctuation = MosesPunctNormalizer()
    # perl_parity reproduces quirks of the Perl script that tokenized Multi30k.
    normalizer = MosesPunctNormalizer(language, perl_parity=True)

    def tokenized(line: str) -> str:
        tokens = tokenizer.tokenize(line, escape=False)
        return " ".join(tokens)

    def split_words(line: str) -> str:
        # The paper's script also keeps the second hyphen of "a-b-c".
        words = tokenized(punctuation.replace_unicode_punct(line))
        return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", words)

    def lowercased(line: str) -> str:
        return tokenized(normalizer.normalize(line.lower()))

    # The equivalent commands, for the report.
    tokenize = f"tokenizer.perl -l {language}, hyphens whole"
    split = rf"replace-unicode-punctuation.perl | {tokenize} | s/(\S)-(\S)/$1 ##AT##-##AT## $2/g"
    lower = f"lowercase.perl | normalize-punctuation.perl -l {language} | {tokenize}"
    return {
        "tokenized_bleu": _multi_bleu(
            "tokenized BLEU",
            prepare=tokenized,
            steps=f"cased | {tokenize}",
        ),
        "compound_split_bleu": _multi_bleu(
            "compound-split BLEU",
            prepare=split_words,
            steps=f"cased | {split}",
        ),
        "lowercased_tokenized_bleu": _multi_bleu(
            "lowercased tokenized BLEU",
            prepare=lowercased,
            steps=lower,
        ),
    }


def _multi_bleu(name: str, prepare: Callable[[str], str], steps: str) -> MetricDefinition:
    """Returns BLEU as by multi-bleu.perl, which splits at spaces and does not smooth."""
    version = metadata.version("sacremoses")
    return MetricDefinition(
        name=name,
        scorer=BLEU(tokenize="none", smooth_method="none", force=True),
        prepare=prepare,
        steps=f"{steps} | multi-bleu.perl | sacremoses {version}",
    )


def check_lines(
    hypotheses: Sequence[str],
    references: Sequence[str],
    place: str = "",
) -> None:
    """Checks that each translation has a reference; messages begin with ``place``."""
    check_texts(hypotheses, f"{place}translations")
    check_texts(references, f"{place}references")

    if len(hypotheses) != len(references):
        raise UserError(
            f"{place}expected one reference line for each translation: got "
            f"{len(hypotheses)} translations and {len(references)} reference lines"
        )
    if not references:
        raise UserError(f"{place}expected translations to score: got 0 lines")
