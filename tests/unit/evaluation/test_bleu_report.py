import collections
import json
import math
import re
import subprocess
import sys

import pytest
from sacrebleu.metrics.bleu import BLEU

from jaxformer.errors import UserError
from jaxformer.evaluation.bleu_report import corpus_bleu, metric_definitions, translation_report

REFERENCES = [
    "Ein Hund läuft durch den Schnee.",
    'Die Frau sagt: "Guten Tag!"',
    "Zwei Männer in T-Shirts spielen Fußball, z.B. im Park.",
    "Kinder, die lachen",
]
HYPOTHESES = [
    "Ein hund läuft durch den tiefen Schnee.",
    'die Frau sagt: "Guten Tag!"',
    "Zwei Männer in T-Shirts spielen Ball im Park.",
    "Kinder, die lachen",
]


def lines_of(path):
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def multi_bleu(hypotheses, references):
    """Computes BLEU of Papineni et al. (2002): one reference, no smoothing, split at spaces."""
    pairs = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        pairs.append((hypothesis.split(), reference.split()))
    precisions = [ngram_precision(pairs, n) for n in range(1, 5)]
    if not all(precisions):
        return 0.0

    our_length = sum(len(ours) for ours, _ in pairs)
    their_length = sum(len(theirs) for _, theirs in pairs)
    brevity = min(1.0, math.exp(1 - their_length / our_length))
    return 100 * brevity * math.prod(precisions) ** 0.25


def ngram_precision(pairs, n):
    """Returns the part of the n-grams that match; each of the reference matches once."""
    proposed = 0
    matched = 0
    for ours, theirs in pairs:
        grams = ngrams(ours, n)
        proposed += grams.total()
        matched += (grams & ngrams(theirs, n)).total()
    return matched / proposed if matched else 0.0


def ngrams(words, n):
    starts = range(len(words) - n + 1)
    return collections.Counter(tuple(words[i : i + n]) for i in starts)


def scored(hypotheses=HYPOTHESES):
    return translation_report(hypotheses, REFERENCES, target_language="de")


def test_sacrebleu_equals_the_published_scores_to_the_last_digit(real_data):
    folder = real_data("bleu")
    references = lines_of(folder / "newstest2021.en-de.ref.A.de")
    published = {"Facebook-AI": 31.258143689269097, "UEdin": 29.901656376893754}

    for system, score in published.items():
        hypotheses = lines_of(folder / f"newstest2021.en-de.hyp.{system}.de")
        assert corpus_bleu(hypotheses, references, target_language="de") == score


def test_tokenized_bleu_by_hand():
    def tokenized(line):
        return re.sub(r'([,:!"])|\.$', lambda mark: f" {mark[0]} ", line)

    hypotheses = [tokenized(line) for line in HYPOTHESES]
    references = [tokenized(line) for line in REFERENCES]
    cased = multi_bleu(hypotheses, references)
    lowercased = multi_bleu(
        list(map(str.lower, hypotheses)),
        list(map(str.lower, references)),
    )
    assert 0 < cased < lowercased < 100

    found = scored()
    assert found.tokenized_bleu.score == pytest.approx(cased, rel=1e-12)
    assert found.lowercased_tokenized_bleu.score == pytest.approx(lowercased, rel=1e-12)


def test_compounds_are_split_as_the_papers_script_does():
    # "T-Shirts" becomes three words on both sides, and curly quotation marks become straight.
    found = translation_report(
        ["Zwei „Männer“ in T-Shirts spielen Ball"],
        ['Zwei "Männer" in T-Shirts spielen'],
        target_language="de",
    )
    split = multi_bleu(
        ['Zwei „ Männer " in T ##AT##-##AT## Shirts spielen Ball'],
        ['Zwei " Männer " in T ##AT##-##AT## Shirts spielen'],
    )
    whole = multi_bleu(
        ["Zwei „ Männer “ in T-Shirts spielen Ball"],
        ['Zwei " Männer " in T-Shirts spielen'],
    )
    assert found.compound_split_bleu.score == pytest.approx(split, rel=1e-12)
    assert found.tokenized_bleu.score == pytest.approx(whole, rel=1e-12)
    assert whole < split < 100


def test_bleu_has_no_value_if_no_line_has_four_words():
    # Split at hyphens, "Haus-und" is four words.
    lines = ["zweihundert", "Haus-und-Hof fertig"]

    found = translation_report(lines, lines, target_language="de")

    assert found.sacrebleu.score is None
    assert found.tokenized_bleu.score is None
    assert found.compound_split_bleu.score == 100.0
    assert found.chrf.score == 100.0
    assert found.exact_match.score == 100.0
    assert re.search(r"^sacreBLEU +n/a  \(no line has 4 words\)$", found.table(), re.MULTILINE)
    assert json.loads(found.to_json())["sacrebleu"]["score"] is None


def test_preprocessing_gives_the_word_counts_that_multi30k_publishes(real_data):
    """Word counts equal the table "Statistics" in the data set's README."""
    published = {
        "val": {"en": 13308, "de": 12828, "fr": 14381},
        "test_2016_flickr": {"en": 12968, "de": 12103, "fr": 13988},
    }

    for part, counts in published.items():
        for language, words in counts.items():
            prepare = metric_definitions(language)["lowercased_tokenized_bleu"].prepare
            lines = lines_of(real_data("multi30k") / f"{part}.{language}")
            found = sum(len(prepare(line).split()) for line in lines)
            assert found == words, (part, language)


def test_exact_match_and_chrf_by_hand():
    assert scored().exact_match.score == 25.0
    blanks = [f" {reference}\t" for reference in REFERENCES]
    assert scored(blanks).exact_match.score == 100.0
    assert [metric.score for metric in scored(REFERENCES).metrics] == [100.0] * 6

    # Three characters: 1- and 2-grams, 3-grams. "abc" and "abd" share 2/3, 1/2 and 0 of them;
    # recall equals precision, so every F is their mean.
    found = translation_report(["abc"], ["abd"], target_language="en")
    assert found.chrf.score == pytest.approx(100 * (2 / 3 + 1 / 2 + 0) / 3)


@pytest.mark.parametrize("function", [corpus_bleu, translation_report])
@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        (HYPOTHESES[:3], REFERENCES, "got 3 translations and 4 reference lines"),
        ([], [], "got 0 lines"),
        (["E", "s"], "Es", r"expected a list of texts, got one string, 'E.*\['E"),
    ],
)
def test_other_arguments_are_refused(hypotheses, references, message, function):
    with pytest.raises(UserError, match=message):
        function(hypotheses, references, target_language="de")


CHINESE = ["我喜欢吃苹果和香蕉。", "今天天气很好。我们去公园。", "他买了三本新书。"]
CHINESE_REFERENCES = [
    "我很喜欢吃苹果和香蕉。",
    "今天天气真好。我们去公园吧。",
    "他在2024年买了3本书。",
]


def sacrebleu_command(hypotheses, references, pair, folder):
    """Returns the score that sacreBLEU's command prints for a language pair."""
    for name, lines in (("hypotheses", hypotheses), ("references", references)):
        text = "".join(f"{line}\n" for line in lines)
        (folder / name).write_text(text, encoding="utf-8")

    options = ["-i", str(folder / "hypotheses"), "-l", pair, "-b", "-w", "6"]
    command = [sys.executable, "-m", "sacrebleu", str(folder / "references"), *options]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(printed)


def test_chinese_is_scored_as_sacrebleu_does(tmp_path):
    expected = sacrebleu_command(CHINESE, CHINESE_REFERENCES, "en-zh", folder=tmp_path)
    assert 20 < expected < 90

    for language in ("zh", "zh-TW", "zho"):
        found = corpus_bleu(CHINESE, CHINESE_REFERENCES, target_language=language)
        assert found == pytest.approx(expected, abs=1e-6)
    assert corpus_bleu(CHINESE, CHINESE_REFERENCES, target_language="de") == 0.0

    report = translation_report(CHINESE, CHINESE_REFERENCES, target_language="zh")
    assert report.sacrebleu.score == pytest.approx(expected, abs=1e-6)
    assert "|tok:zh|" in report.sacrebleu.method


@pytest.mark.parametrize(
    ("language", "tokenizer"),
    [
        ("yue", "zh"),
        ("wuu", "zh"),
        ("th", "char"),
        ("my", "char"),
    ],
)
def test_languages_without_spaces_get_the_tokenizer_of_their_script(language, tokenizer):
    """Cantonese is split like Chinese; languages without a tokenizer into characters."""
    found = translation_report(CHINESE, CHINESE_REFERENCES, target_language=language)

    expected = BLEU(tokenize=tokenizer).corpus_score(CHINESE, [CHINESE_REFERENCES]).score
    assert found.sacrebleu.score == pytest.approx(expected)
    assert f"tok:{tokenizer}|" in found.sacrebleu.method
    assert ("no tokenizer of sacreBLEU" in found.sacrebleu.method) == (tokenizer == "char")
    assert found.tokenized_bleu is None
