"""Scores of translations against one reference, each with its name and how it was computed.

"BLEU" alone names no number: it depends on case, tokenization and smoothing, by several points.
The report therefore gives the variants that papers quote, side by side:

* **sacreBLEU**: cased, on plain text, with sacreBLEU's tokenizer for the target language, which is
  that of WMT's mteval-v13a for most of them. The one to quote.
* **chrF**: character n-grams; kinder to long German compounds.
* **Tokenized BLEU**: cased, ``tokenizer.perl`` followed by ``multi-bleu.perl``, as most papers on
  WMT14 since 2014. Words with hyphens are kept whole.
* **Compound-split BLEU**: the paper's (Table 2). Its authors' script ``get_ende_bleu.sh`` replaces
  punctuation with ``replace-unicode-punctuation.perl``, tokenizes, and splits words at hyphens,
  ``x-y`` into ``x ##AT##-##AT## y``, before ``multi-bleu.perl``; one hyphen more that matches is
  a word more that does. There the reference had been tokenized by others; here both sides get all.
* **Lower-cased tokenized BLEU**: the metric of the Multi30k papers. They train and score on the
  files ``*.lc.norm.tok`` of the data set, made by ``lowercase.perl``,
  ``normalize-punctuation.perl`` and ``tokenizer.perl``, in this order; the same is done here to
  both sides. On the German reference of ``test_2016_flickr`` the normalization changes nothing.
* **Exact match**: the share of lines that equal their reference.

Chinese, Japanese and Korean are not split into words at spaces. sacreBLEU splits them with the
tokenizers ``zh``, ``ja-mecab`` and ``ko-mecab``; the Perl scripts cannot, so the three metrics that
are made with them are left out. ``ja-mecab`` and ``ko-mecab`` need packages of their own. Without
them single characters are scored, ``tok:char``, and the report says what to install.

The Perl scripts are the ports in ``sacremoses``. They write ``&quot;`` for a quotation mark; we do
not, which makes no difference, since both are one token.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from importlib import metadata

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacremoses import MosesPunctNormalizer, MosesTokenizer

from jaxformer.checks import check_texts
from jaxformer.errors import UserError

# Languages that sacreBLEU has tokenizers of their own for, by ISO 639's codes and OPUS's "jap".
_LANGUAGES = {
    **{"zh": "zh", "zho": "zh", "chi": "zh", "cmn": "zh"},
    **{"ja": "ja", "jpn": "ja", "jap": "ja"},
    **{"ko": "ko", "kor": "ko"},
}


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
class Measure:
    """How one of the scores is computed.

    Attributes:
      name: What the score is called.
      prepare: What is done to the lines of either side first.
      scorer: sacreBLEU's metric, applied to the prepared lines.
      steps: The Perl scripts that do the same; empty where the scorer's signature says it all.
      note: What to add to the signature.
    """

    name: str
    prepare: Callable[[Sequence[str]], Sequence[str]]
    scorer: BLEU | CHRF
    steps: str = ""
    note: str = ""

    def method(self) -> str:
        """Returns the method of the last score, with sacreBLEU's signature once it has scored."""
        return self.steps or f"{self.scorer.get_signature()}{self.note}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationReport:
    """Everything measured on one set of translations; the module says what each metric is.

    The metrics of the Perl scripts are None for languages that those cannot split into words.
    """

    target_language: str
    lines: int
    sacrebleu: Metric
    chrf: Metric
    tokenized_bleu: Metric | None = None
    compound_split_bleu: Metric | None = None
    lowercased_tokenized_bleu: Metric | None = None
    exact_match: Metric

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """All metrics there are, in the order of the fields."""
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


def corpus_bleu(
    hypotheses: Sequence[str], references: Sequence[str], *, target_language: str
) -> float:
    """The sacreBLEU of a report, from 0 to 100: cased, with the target language's tokenizer.

    >>> lines = ["Ein Hund läuft im Schnee."]
    >>> corpus_bleu(lines, lines, target_language="de")
    100.0

    Raises:
      UserError: The numbers of lines differ, or are 0.
    """
    check_lines(hypotheses, references)
    return _score(sacrebleu(target_language).scorer, hypotheses, references)


def translation_report(
    hypotheses: Sequence[str], references: Sequence[str], *, target_language: str
) -> TranslationReport:
    """Scores translations by every metric of this module.

    Args:
      hypotheses: Translations as plain, cased, detokenized text.
      references: The reference for each, likewise.
      target_language: Code such as "de"; chooses sacreBLEU's tokenizer and the rules of Moses'.

    Raises:
      UserError: The numbers of lines differ, or are 0.
    """
    check_lines(hypotheses, references)
    metrics = {}
    for field, measure in measures(target_language).items():
        sides = measure.prepare(hypotheses), measure.prepare(references)
        score = _score(measure.scorer, *sides)
        metrics[field] = Metric(measure.name, score, measure.method())
    matches = sum(h == r for h, r in zip(hypotheses, references, strict=True))
    return TranslationReport(
        target_language=target_language,
        lines=len(references),
        exact_match=Metric(
            "exact match", 100 * matches / len(references), "lines equal to their reference, in %"
        ),
        **metrics,
    )


def sacrebleu(language: str) -> Measure:
    """Returns sacreBLEU with the tokenizer that its own ``trg_lang`` chooses for the language.

    Args:
      language: Code of the target language, such as "de", "zh-TW" or "jpn".
    """
    code, note = _without_words(language), ""
    try:
        scorer = BLEU(trg_lang=code or "", force=True)
    except RuntimeError:  # MeCab or its dictionary is missing
        scorer = BLEU(tokenize="char", force=True)
        note = f" (characters; pip install 'sacrebleu[{code}]' for words, tok:{code}-mecab)"
    return Measure(name="sacreBLEU", prepare=_plain, scorer=scorer, note=note)


def measures(language: str) -> dict[str, Measure]:
    """How each score of a report but the exact matches is computed, by its field of the report.

    Args:
      language: Code of the target language, such as "de"; chooses the tokenizers.
    """
    plain = {
        "sacrebleu": sacrebleu(language),
        "chrf": Measure(name="chrF", prepare=_plain, scorer=CHRF()),
    }
    return plain if _without_words(language) else plain | _moses_measures(language)


def _without_words(language: str) -> str | None:
    """Returns sacreBLEU's code of a language whose words it finds by itself; None for all others.

    >>> _without_words("zh-Hant_TW"), _without_words("de")
    ('zh', None)
    """
    return _LANGUAGES.get(re.split("[-_]", language.lower())[0])


def _moses_measures(language: str) -> dict[str, Measure]:
    """The scores that are made with Moses' Perl scripts."""
    tokenizer = f"tokenizer.perl -l {language}, hyphens whole"
    multi_bleu = f"multi-bleu.perl | sacremoses {metadata.version('sacremoses')}"
    return {
        "tokenized_bleu": Measure(
            name="tokenized BLEU",
            prepare=lambda lines: _tokenized(lines, language),
            scorer=_multi_bleu(),
            steps=f"cased | {tokenizer} | {multi_bleu}",
        ),
        "compound_split_bleu": Measure(
            name="compound-split BLEU",
            prepare=lambda lines: _split_compounds(_tokenized(_ascii_quotes(lines), language)),
            scorer=_multi_bleu(),
            steps=f"cased | replace-unicode-punctuation.perl | {tokenizer} | "
            rf"s/(\S)-(\S)/$1 ##AT##-##AT## $2/g | {multi_bleu}",
        ),
        "lowercased_tokenized_bleu": Measure(
            name="lower-cased tokenized BLEU",
            prepare=lambda lines: _tokenized(_lowercased(lines, language), language),
            scorer=_multi_bleu(),
            steps=f"lowercase.perl | normalize-punctuation.perl -l {language} | {tokenizer} | "
            f"{multi_bleu}",
        ),
    }


def check_lines(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Sees to it that there is a reference for each translation.

    Raises:
      UserError: The numbers of lines differ, or are 0, or one string is given instead of a list.
    """
    for side, name in ((hypotheses, "translations"), (references, "references")):
        check_texts(side, name)
    if len(hypotheses) != len(references):
        raise UserError(
            "expected one reference line for each translation: got "
            f"{len(hypotheses)} translations and {len(references)} reference lines"
        )
    if not references:
        raise UserError("expected translations to score: got 0 lines")


def _score(scorer: BLEU | CHRF, hypotheses: Sequence[str], references: Sequence[str]) -> float:
    # Perfect translations score 100.00000000000004, rounded so by the exponential of the formula.
    return min(scorer.corpus_score(hypotheses, [references]).score, 100.0)


def _multi_bleu() -> BLEU:
    """The score of ``multi-bleu.perl``, which splits at spaces and does not smooth."""
    return BLEU(tokenize="none", smooth_method="none", force=True)


def _plain(lines: Sequence[str]) -> Sequence[str]:
    return lines


def _tokenized(lines: Sequence[str], language: str) -> list[str]:
    tokenizer = MosesTokenizer(language)
    return [" ".join(tokenizer.tokenize(line, escape=False)) for line in lines]


def _lowercased(lines: Sequence[str], language: str) -> list[str]:
    # perl_parity: the tokenized files of Multi30k come from the Perl script, its quirks included.
    normalizer = MosesPunctNormalizer(language, perl_parity=True)
    return [normalizer.normalize(line.lower()) for line in lines]


def _ascii_quotes(lines: Sequence[str]) -> list[str]:
    normalizer = MosesPunctNormalizer()
    return [normalizer.replace_unicode_punct(line) for line in lines]


def _split_compounds(lines: Sequence[str]) -> list[str]:
    """Splits at hyphens as the paper's script does, which leaves the second one of "a-b-c".

    >>> _split_compounds(["rich-text format , a-b-c , -"])
    ['rich ##AT##-##AT## text format , a ##AT##-##AT## b-c , -']
    """
    return [re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", line) for line in lines]
