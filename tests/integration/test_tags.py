"""Tags of words: of an imported model, and of one that learns."""

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest

from jaxformer import AnnotatedConfig, Config, Tagger, TrainingConfig, load_model, train
from jaxformer.cli import main
from jaxformer.data.tagged import TaggedSentence, read_tagged
from jaxformer.errors import UserError

from ..runs import reports
from .families import imported

pytest.importorskip("tokenizers")

TEXTS = ["The old house!", "a dog runs", "", "he has two books, the man"]
LABELS = ["O", "B-PER", "I-PER"]


@functools.cache
def tagger():
    return Tagger.load(imported("bert_tags").workdir)


@functools.cache
def network():
    model, params = load_model(imported("bert_tags").workdir)
    return jax.jit(functools.partial(model.apply, {"params": params}, method="tag_logits"))


def logits_alone(ids):
    """Returns the logits of the tokens of one text, padded to one length."""
    tokens = np.pad(ids, [(0, 24 - len(ids))])[None]
    return np.asarray(network()(tokens)[0, : len(ids)])


def test_the_tag_of_a_word_is_the_tag_of_its_first_token():
    together = tagger().tag(TEXTS)
    for text, words in zip(TEXTS, together, strict=True):
        assert "".join(word.word for word in words) == text.replace(" ", "")
        aligned = tagger().tokenizer.align(text)
        logits = logits_alone(aligned.ids)
        odds = np.exp(logits)
        probabilities = odds / odds.sum(axis=1, keepdims=True)

        for word in words:
            assert text[word.start : word.end] == word.word
            first = aligned.spans.index(
                next(span for span in aligned.spans[1:] if span[0] == word.start)
            )
            assert word.tag == LABELS[logits[first].argmax()]
            assert word.probability == pytest.approx(probabilities[first].max(), rel=1e-4)


def test_given_words_are_kept():
    """BERT splits them at punctuation; their first token counts."""
    words = ["house.", "\x07", "dog-cat"]
    [found] = tagger().tag_words([words])
    assert [word.word for word in found] == words
    assert [(word.start, word.end) for word in found] == [(0, 1), (1, 2), (2, 3)]
    assert found[1].tag == "O"
    assert found[1].probability == 0

    [separated] = tagger().tag(["house. dog-cat"])
    assert found[0].tag == separated[0].tag
    assert found[2].tag == separated[2].tag


def write_tagged(path, count, seed):
    """Writes sentences: "the man" is a person unless "two" precedes it."""
    rng = np.random.default_rng(seed)
    lines = ["-DOCSTART- -X- O O", ""]
    for _ in range(count):
        words = [str(word) for word in rng.choice(["a", "dog", "runs", "old"], 4)]
        tags = ["O"] * 4
        place = int(rng.integers(4))
        is_person = bool(rng.integers(2))
        before = "a" if is_person else "two"
        words[place:place] = [before, "the", "man"]
        tags[place:place] = ["O", "B-PER", "I-PER"] if is_person else ["O"] * 3
        lines += [f"{word} X {tag}" for word, tag in zip(words, tags, strict=True)]
        lines.append("")
    path.write_text("\n".join(lines))
    return str(path)


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tags")
    family = imported("bert_tags")
    model = dataclasses.replace(
        family.trained.config.model,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
    )
    config = Config(
        model=model,
        data=AnnotatedConfig(
            corpus="tagged",
            train=write_tagged(folder / "train.txt", 500, seed=0),
            valid=write_tagged(folder / "valid.txt", 40, seed=1),
            tokens_per_batch=512,
            max_length=24,
        ),
        training=TrainingConfig(
            init_from=str(family.workdir),
            steps=150,
            warmup_steps=15,
            learning_rate=1e-2,
            schedule="linear",
            label_smoothing=0.0,
            eval_every=75,
            checkpoint_every=75,
            log_every=75,
            best_metric="f1",
        ),
    )
    train(config, folder / "run")
    return folder


def test_it_learns_names(learned, capsys):
    last = reports(learned / "run", "valid")[-1]
    assert last["f1"] > 95
    assert last["accuracy"] > 0.95

    labeled = str(learned / "valid.txt")
    command = ["tag", "--workdir", str(learned / "run")]
    assert main([*command, "--labeled", labeled]) == 0
    accuracy = 100 * last["accuracy"]
    values = f"precision {last['precision']:.2f}  recall {last['recall']:.2f}  F1 {last['f1']:.2f}"
    assert capsys.readouterr().out == f"{values}  accuracy {accuracy:.2f}\n"

    assert main([*command, "--labeled", labeled, "--entities"]) == 2
    message = "error: --labeled prints scores of all sentences: leave --entities out\n"
    assert capsys.readouterr().err == message


def test_the_command_prints_words_or_entities(learned, capsys, tmp_path):
    source = tmp_path / "in"
    source.write_text("a the man runs\n" + "dog " * 30 + "\ntwo the man\n")
    command = ["tag", "--workdir", str(learned / "run"), "--input", str(source)]
    assert main(command) == 3
    out = capsys.readouterr()
    assert "in:2: expected at most 24 tokens" in out.err
    expected = ["a\tO", "the\tB-PER", "man\tI-PER", "runs\tO", "", "", "two\tO", "the\tO", "man\tO"]
    assert out.out == "\n".join([*expected, "", ""])

    assert main([*command, "--entities"]) == 3
    first, second, third = map(json.loads, capsys.readouterr().out.splitlines())
    [entity] = first
    assert entity.pop("probability") > 0.5
    assert entity == {"text": "the man", "type": "PER", "start": 2, "end": 9}
    assert second == third == []

    [found] = Tagger.load(learned / "run").entities("a the man runs")
    assert (found.text, found.type) == ("the man", "PER")


def test_tags_of_other_models_are_refused(tmp_path, capsys):
    path = tmp_path / "tagged"
    command = ["tag", "--workdir", str(imported("bert_tags").workdir), "--labeled", str(path)]
    path.write_text("a E-PER\ndog O\n")
    assert main(command) == 0

    path.write_text("a O\n\nthe O\ndog B-LOC\n")
    assert main(command) == 2
    message = f"{path}:3: expected tags of the model, O, B-PER, I-PER, got 'B-LOC' in this sentence"
    assert message in capsys.readouterr().err


def test_files_of_tags(tmp_path):
    path = tmp_path / "tagged"
    path.write_text("-DOCSTART-\n\nEU NNP I-ORG\nrejects\tVBZ\tO\n\n\nGerman B-MISC\n")
    assert list(read_tagged(path)) == [
        TaggedSentence(("EU", "rejects"), ("I-ORG", "O"), f"{path}:3"),
        TaggedSentence(("German",), ("B-MISC",), f"{path}:7"),
    ]
    path.write_text("EU B-ORG\nrejects\n")
    with pytest.raises(UserError, match=r":2: expected a word and its tag, .* got 'rejects'"):
        list(read_tagged(path))


def test_mistakes_are_refused(learned, tmp_path):
    family = imported("bert_tags")
    data = AnnotatedConfig(
        corpus="tagged",
        tokenizer=str(family.workdir),
        train=str(learned / "valid.txt"),
        valid=str(learned / "valid.txt"),
        max_length=24,
    )
    model = family.trained.config.model
    for number, message in ((0, "needs model.num_tags above 0"), (4, "num_tags must be 3, for t")):
        changed = dataclasses.replace(model, num_tags=number)
        with pytest.raises(UserError, match=message):
            train(Config(model=changed, data=data), tmp_path / "run")

    with pytest.raises(UserError, match="valid: expected files, got 5%"):
        dataclasses.replace(data, valid="5%")
    with pytest.raises(UserError, match=r"data\.train: expected files of your own, got none"):
        dataclasses.replace(data, train="").check_named()
    with pytest.raises(UserError, match=r"tokens_per_batch must hold an example of texts of"):
        dataclasses.replace(data, tokens_per_batch=23)
    with pytest.raises(UserError, match="texts:1: expected at most 24 tokens"):
        tagger().tag(["dog " * 30])
