"""Parsing from the treebank to the tree: even an untrained model gives valid trees."""

import dataclasses
import io
import os
import shutil
import sys
import threading

import jax
import numpy as np
import pytest

from jaxformer.cli import main
from jaxformer.config import Config, DataConfig, ModelConfig, TrainingConfig
from jaxformer.errors import UserError
from jaxformer.experiment import make_optimizer
from jaxformer.inference.conversions import write_model
from jaxformer.inference.hypotheses import Hypothesis
from jaxformer.inference.translator import Translator
from jaxformer.kinds.model_parameters import make_init
from jaxformer.runs.workdir import Workdir
from jaxformer.search import BeamSearch
from jaxformer.tasks.dataset import open_dataset
from jaxformer.tasks.parsing.parser import Parser, best_hypothesis, one_tag_per_word
from jaxformer.tasks.parsing.parsing_task import Parsing
from jaxformer.tasks.parsing.treebank import TreesCorpus
from jaxformer.tasks.parsing.trees import escape, read_trees
from jaxformer.training.mesh import make_mesh
from jaxformer.training.train_state import abstract_state

from . import pages

TREES = [
    "( (S (NP-SBJ-1 (DT The) (NN gene)) (VP (VBZ works) (NP (-NONE- *-1))) (. .)))",
    "( (S (NP-SBJ (PRP It)) (VP (VBD was) (ADJP (JJ XX) (-LRB- -LRB-) (NN so))) (. .)))",
    "( (S (NP (-NONE- *))))",  # no words
    "( (NP (NN a\u200ab) (NN ▁)))",
    "(TOP (FRAG (UH Yes)))",
]
WORDS = [
    "The gene works .",
    "",
    "f(x) (NP XX )NP <s> ▁ </s>",
    "   a\u200ab\t(XX) café \U0001f600 ",
    "one two three four five six seven eight nine ten eleven",  # 53 tokens
]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A tiny experiment on a few trees."""
    folder = tmp_path_factory.mktemp("parsing")
    (folder / "a.trees").write_text("\n".join(TREES), encoding="utf-8")
    (folder / "b.trees").write_text(TREES[0], encoding="utf-8")
    return Config(
        model=ModelConfig(
            vocab_size=320,
            d_model=16,
            d_ff=32,
            num_heads=2,
            num_layers=1,
            embeddings="separate",
            target_vocab_size=40,
            max_length=96,
        ),
        data=DataConfig(
            corpus="trees",
            train=f"{folder}/a.trees,{folder}/b.trees",
            valid=f"{folder}/a.trees",
            tokens_per_batch=128,
            max_length=64,
        ),
        training=TrainingConfig(eval_sentences=4),
        # One program for all searches, which have four sentences of at most 64 tokens.
        search=BeamSearch(beam_size=3, length_penalty=0.3, max_extra_length=20, max_length=64),
    )


@pytest.fixture(scope="module")
def state(config):
    """A training state with random parameters."""
    mesh = make_mesh(devices=jax.devices()[:1])
    shapes = abstract_state(make_init(config.model), make_optimizer(config), mesh)
    rng = np.random.default_rng(0)

    def draw(leaf):
        values = rng.normal(0, 0.3, leaf.shape)
        return values.astype(leaf.dtype)

    return jax.tree.map(draw, shapes)


@pytest.fixture(scope="module")
def data(config, tmp_path_factory):
    return open_dataset(config, Workdir(tmp_path_factory.mktemp("new")), TreesCorpus())


@pytest.fixture(scope="module")
def workdir(config, data, state, tmp_path_factory):
    folder = Workdir(tmp_path_factory.mktemp("parser") / "run")
    tokenizer = data.tokenizer.serialized
    write_model(folder, "a test", data.identity, tokenizer, config, state.params)
    return folder.path


@pytest.fixture
def run(workdir, monkeypatch, capsys):
    def parse(*arguments, lines=(), code=0):
        content = "".join(f"{line}\n" for line in lines).encode()
        stdin = io.TextIOWrapper(io.BytesIO(content), "utf-8")
        monkeypatch.setattr(sys, "stdin", stdin)
        command = ["parse", "--workdir", str(workdir), *map(str, arguments)]
        assert main(command) == code
        return capsys.readouterr().out.split("\n")[:-1]

    return parse


@pytest.mark.ci
def test_the_page_parses(workdir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(workdir, tmp_path / "runs" / "parsing-small")
    names = pages.execute("parsing.md", "Parse")
    assert names["tree"].words() == ["The", "gene", "works", "."]


def word_ids(line):
    """Splits words as ``split_words`` does, for ASCII only."""
    words = line.replace("\t", " ").split(" ")
    return [escape(word) for word in words if word]


def test_training_pairs_are_words_and_symbols(config, data, tmp_path):
    """Every bracket and tag is a single token of a separate vocabulary."""
    tokenizer = data.tokenizer
    assert len(data.train) == 5  # Four trees with words, one of them twice.

    source, target = data.train[1]
    assert tokenizer.encode("It was XX -LRB- so .") == source.tolist()
    linearized = "(S (NP (PRP) )NP (VP (VBD) (ADJP (JJ) (-LRB-) (NN) )ADJP )VP (.) )S"
    pieces = [tokenizer.piece(int(token)) for token in target]
    assert pieces == linearized.split(" ")

    pairs = [data.train[number] for number in range(len(data.train))]
    targets = [target for _, target in pairs]
    highest = int(np.concatenate(targets).max())
    assert tokenizer.target_vocab_size == highest + 1

    too_small = dataclasses.replace(config.model, target_vocab_size=highest)
    config = dataclasses.replace(config, model=too_small)
    message = f"must be at least {highest + 1}, .*: got {highest}"
    with pytest.raises(UserError, match=message):
        open_dataset(config, Workdir(tmp_path), TreesCorpus())


def hypothesis(translator, text):
    return Hypothesis(text, translator.target_ids(text), score=0.0, log_prob=0.0)


def test_validation_reports_f1_of_the_best_hypothesis(config, data, state, monkeypatch):
    """The right tree comes first, and a wrong one second."""
    targets = dict(data.valid_text)

    def found(self, sources, **_):
        beams = []
        for source in sources:
            right = hypothesis(self, targets[source])
            wrong = hypothesis(self, "(S (NP (X) )S")
            beams.append([right, wrong])
        return beams

    monkeypatch.setattr(Translator, "hypotheses", found)
    mesh = make_mesh(devices=jax.devices()[:1])
    task = Parsing(config, data)
    values = task.score_decoded(state.params, mesh, lambda: None)
    assert values == {"f1": 100, "exact_match": 100}


def test_every_line_gets_a_tree_over_its_words(run, tmp_path):
    lines = run(lines=WORDS)
    for line, words in zip(lines, WORDS, strict=True):
        if not words.strip():
            assert line == ""
            continue
        (tree,) = read_trees([line], "output")
        assert tree.words() == word_ids(words)

    # A line that is too long, and one that is not UTF-8, get no tree.
    text = tmp_path / "words.txt"
    content = "\n".join([*WORDS, "word " * 100, ""])
    text.write_bytes(content.encode() + b"\xff")
    assert run("--input", text, code=3) == [*lines, "", ""]


def test_any_model_output_becomes_a_tree(workdir, monkeypatch):
    def give(*beam):
        def hypotheses(self, sources, **_):
            return [list(beam)] * len(sources)

        monkeypatch.setattr(Translator, "hypotheses", hypotheses)

    parser = Parser.load(workdir)
    sentences = [word_ids(words) for words in WORDS]
    tags = [["T"] * len(words) for words in sentences]
    for written in ("", "(S", "XX XX XX XX", ")S )S (NP (X) ▁gene (S", "(DT) (NN)"):
        give(hypothesis(parser.translator, written))

        trees = parser.parse(sentences)
        for tree, words in zip(trees, sentences, strict=True):
            found = tree.words() if tree else []
            assert found == words

        trees = parser.parse(sentences, tags=tags)
        for tree, known in zip(trees, tags, strict=True):
            assert tree is None or tree.tags() == known

    give()
    (tree,) = parser.parse([["a", "b"]])
    assert str(tree) == "(TOP (XX a) (XX b))"


@pytest.mark.parametrize(
    ("tokens", "looks_at", "expected"),
    [
        ("(S (A) (B) (C) )S", "-012-", "(S (A) (B) (C) )S"),
        ("(S (NP (A) (B) )NP (C) )S", "--02-3-", "(S (NP (A) XX (B) )NP (C) )S"),
        ("(S (NP (A) )NP (VP (B) )VP )S", "--1--2--", "(S (NP XX (A) )NP (VP (B) )VP )S"),
        ("(S (A) (A) (B) (C) )S", "-0012-", "(S (A) (B) (C) )S"),
        ("XX )NP (x XX", "0--2", "XX XX )NP (x XX"),
        ("(S )S", "--", "(S )S"),
        ("", "", ""),
    ],
)
def test_parts_of_speech_follow_attention(tokens, looks_at, expected):
    tokens = tokens.split()
    assert len(tokens) == len(looks_at)

    weights = np.full((len(tokens), 4), 0.01)
    for token, word in enumerate(looks_at):
        if word != "-":
            weights[token, int(word)] = 0.97

    assert one_tag_per_word(tokens, weights) == expected.split()


@pytest.mark.parametrize(
    ("log_probs", "chosen"),
    [((-5, -6, -3), 0), ((-5, -4, -3), 1), ((-5, -6, -1), 2), ((-8, -6, -3), 2)],
)
def test_missing_words_are_penalized(log_probs, chosen):
    texts = ["(S (A) (B) )S", "(S XX (B) )S", "(S (A) )S"]  # log 0.05 is -2.996
    beam = [Hypothesis(text, [], 0.0, p) for text, p in zip(texts, log_probs, strict=True)]
    assert best_hypothesis(beam, 2) == beam[chosen]
    assert best_hypothesis([], 2).text == ""


def test_a_treebank_from_a_pipe_is_parsed_and_scored(run, tmp_path, capsys):
    """A tree that is too long gives a blank line, so that the files stay aligned."""
    pipe = tmp_path / "pipe"
    gold = tmp_path / "gold"
    parsed = tmp_path / "parsed"
    middle = f"(S {' '.join(['(NN word)'] * 14)})"
    long = f"(S {' '.join(['(NN word)'] * 100)})"
    lines = [*TREES[:3], middle, TREES[4], long]
    content = "\n".join(lines).encode()
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_bytes, args=[content], daemon=True).start()

    assert run("--trees", pipe, "--gold", gold, "--output", parsed, code=3) == []

    right = lines_of(gold)
    assert right == [
        "(S (NP (DT The) (NN gene)) (VP (VBZ works)) (. .))",
        "(S (NP (PRP It)) (VP (VBD was) (ADJP (JJ XX) (-LRB- -LRB-) (NN so))) (. .))",
        middle,
        "(FRAG (UH Yes))",
        long,
    ]
    *found, last = lines_of(parsed)
    assert last == ""
    trees = read_trees(found, "parsed")
    expected_trees = read_trees(right[:-1], "gold")
    for tree, expected in zip(trees, expected_trees, strict=True):
        assert tree.leaves() == expected.leaves()

    assert main(["evalb", str(gold), str(parsed)]) == 0
    assert "Number of Error sentence  =      0" in capsys.readouterr().out


def lines_of(path):
    *lines, rest = path.read_text("utf-8").split("\n")
    assert rest == ""
    return lines


def test_mistakes_are_refused_before_the_search(config, workdir, tmp_path, monkeypatch, capsys):
    monkeypatch.delattr(Translator, "hypotheses")  # Never reached.
    for word in ("(", "", "a b"):
        with pytest.raises(UserError, match="expected a word without white space and round brack"):
            Parser.load(workdir).parse([["a"], ["b", word]])

    trees = config.data.valid
    text = tmp_path / "words.txt"
    text.write_text("short\n" + 100 * "word ", encoding="utf-8")
    for arguments, message in [
        (["--strict", "--input", text], f"{text}:2: expected at most 95 tokens (model.max_length)"),
        (["--gold", tmp_path / "gold"], "--gold needs --trees FILE"),
        (["--trees", trees, "--input", text], "leave --input out"),
        (["--trees", trees, "--gold", trees], "is an input"),
    ]:
        assert main(["parse", "--workdir", str(workdir), *map(str, arguments)]) == 2
        assert message in capsys.readouterr().err
