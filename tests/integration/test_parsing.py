"""Parsing from the treebank to the tree: even an untrained model gives valid trees."""

import dataclasses
import io
import json
import os
import pathlib
import re
import shutil
import sys
import threading

import jax
import numpy as np
import pytest

from jaxformer import config as config_lib
from jaxformer.checkpoint import Checkpoints
from jaxformer.cli import main
from jaxformer.config import (
    Config,
    DataConfig,
    ModelConfig,
    TrainingConfig,
)
from jaxformer.errors import UserError
from jaxformer.experiment import make_optimizer
from jaxformer.inference.translator import Hypothesis, Translator
from jaxformer.search import BeamSearch
from jaxformer.tasks.dataset import open_dataset
from jaxformer.tasks.parsing.parser import Parser, best_hypothesis, one_tag_a_word
from jaxformer.tasks.parsing.task import Parsing
from jaxformer.tasks.parsing.treebank import TreesCorpus
from jaxformer.tasks.parsing.trees import escape, read_trees
from jaxformer.tasks.translation import make_init
from jaxformer.training.mesh import make_mesh
from jaxformer.training.step import init_state
from jaxformer.workdir import Workdir

from . import pages
from .nasty_lines import BAD, CONTENT, GOOD, KINDS

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
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen",
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
        search=BeamSearch(beam_size=3, length_penalty=0.3, max_extra_length=20),
    )


@pytest.fixture(scope="module")
def state(config):
    """The initial training state."""
    mesh = make_mesh(devices=jax.devices()[:1])
    return init_state(make_init(config.model), make_optimizer(config), mesh, seed=0)


@pytest.fixture(scope="module")
def data(config, tmp_path_factory):
    return open_dataset(config, Workdir(tmp_path_factory.mktemp("new")), TreesCorpus())


@pytest.fixture(scope="module")
def workdir(config, data, state, tmp_path_factory):
    """The run directory of an untrained model."""
    folder = Workdir(tmp_path_factory.mktemp("run"))
    data.tokenizer.save(folder.tokenizer)
    folder.identity.write_text(json.dumps(data.identity))
    config_lib.save(config, folder.config)
    with Checkpoints(folder.checkpoints, keep=1) as checkpoints:
        checkpoints.save(0, state, metadata={"tokenizer": data.tokenizer.sha256})
    return folder.path


@pytest.fixture
def run(workdir, monkeypatch, capsys):
    """Parses lines from standard input, and returns the output."""

    def parse(*arguments, lines=(), content=None, code=0):
        content = content or "".join(f"{line}\n" for line in lines).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), "utf-8"))
        assert main(["parse", "--workdir", str(workdir), *map(str, arguments)]) == code
        return capsys.readouterr().out.split("\n")[:-1]

    return parse


@pytest.mark.ci
def test_the_page_parses(workdir, tmp_path, monkeypatch):
    """Parses with docs/parsing.md's own code."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(workdir, tmp_path / "runs" / "parsing-small")
    (block,) = pages.sections("parsing.md")["Parse"]
    names = {}
    pages.run("parsing.md", block, names)
    assert names["tree"].words() == ["The", "gene", "works", "."]


def word_ids(line):
    """Splits words as ``split_words`` does, for ASCII only."""
    spaced = "".join(" " if character in " \t" else character for character in line)
    return [escape(word) for word in spaced.split(" ") if word]


def test_training_pairs_are_words_and_symbols(data):
    """Words are text, and every bracket and tag is a single token."""
    assert len(data.train) == 5  # Four trees with words, one of them twice.
    source, target = data.train[1]
    assert data.tokenizer.encode("It was XX -LRB- so .") == source.tolist()
    linearized = "(S (NP (PRP) )NP (VP (VBD) (ADJP (JJ) (-LRB-) (NN) )ADJP )VP (.) )S"
    assert data.tokenizer.decode(target.tolist()) == linearized
    assert [data.tokenizer.piece(int(token)) for token in target] == linearized.split(" ")


def test_targets_have_a_separate_vocabulary(config, data, state, tmp_path):
    linearized = [data.train[i][1] for i in range(len(data.train))]
    highest = int(max(max(target) for target in linearized))
    assert data.tokenizer.target_vocab_size == highest + 1
    for name in ("tgt_embedding", "output_embedding"):
        assert state.params[name].shape == (40, 16)
    model = dataclasses.replace(config.model, target_vocab_size=highest)
    with pytest.raises(UserError, match=f"must be at least {highest + 1}, .*: got {highest}"):
        open_dataset(dataclasses.replace(config, model=model), Workdir(tmp_path), TreesCorpus())


def validate(config, data, state):
    mesh = make_mesh(devices=jax.devices()[:1])
    return Parsing(config, data).evaluate(state.params, mesh, lambda: None)


def test_validation_reports_f1(config, data, state):
    values = validate(config, data, state)
    assert 0 <= values["f1"] <= 100
    assert "bleu" not in values


def test_validation_takes_the_best_hypothesis(config, data, state, monkeypatch):
    targets = dict(data.valid_text)

    def found(self, sources, **rest):
        texts = [[targets[source], "(S (NP (X) )S"] for source in sources]
        return [
            [Hypothesis(text, self.target_ids(text), 0.0, 0.0) for text in beam] for beam in texts
        ]

    monkeypatch.setattr(Translator, "hypotheses", found)
    values = validate(config, data, state)
    assert (values["f1"], values["exact_match"]) == (100, 100)


def test_every_line_gets_a_tree_over_its_words(run):
    lines = run(lines=WORDS)
    assert [not line for line in lines] == [not words.strip() for words in WORDS]
    bad = "\n".join([*WORDS, "word " * 100, "last"]).encode()[:-4] + b"\xff"
    assert run(content=bad, code=3) == [*lines, "", ""]
    for line, words in zip(lines, WORDS, strict=True):
        if line:
            (tree,) = read_trees([line], "output")
            assert tree.words() == word_ids(words)


@pytest.mark.ci
def test_nasty_lines_get_a_tree_or_a_blank_line(run):
    lines = run(content=CONTENT, code=3)
    assert len(lines) == len(KINDS)
    assert not any(lines[number - 1] for number in BAD)
    for line, kind, source in zip(lines, KINDS, CONTENT.split(b"\n"), strict=True):
        if kind == GOOD:
            words = [escape(word) for word in re.split(r"[ \t\r\v\f]+", source.decode()) if word]
            trees = list(read_trees([line], "output")) if line else []
            assert [tree.words() for tree in trees] == ([words] if words else [])


@pytest.mark.ci
def test_too_long_a_tree_keeps_the_files_aligned(run, tmp_path, capsys):
    treebank, gold, parsed = tmp_path / "trees", tmp_path / "gold", tmp_path / "parsed"
    long = f"(S {' '.join(['(NN word)'] * 100)})"
    treebank.write_text("\n".join([TREES[0], long, TREES[4]]), encoding="utf-8")
    assert run("--trees", treebank, "--gold", gold, "--output", parsed, code=3) == []
    right, found = (path.read_text("utf-8").split("\n")[:-1] for path in (gold, parsed))
    assert right[1] == long
    assert [not tree for tree in found] == [False, True, False]
    assert main(["evalb", str(gold), str(parsed)]) == 0
    assert "Number of Error sentence  =      0" in capsys.readouterr().out


@pytest.mark.parametrize(
    "written", ["", "(S", "XX XX XX XX", ")S )S (NP (X) ▁gene (S", "(DT) (NN)"]
)
def test_any_model_output_becomes_a_tree(workdir, monkeypatch, written):
    parser = Parser.load(workdir)
    beam = [Hypothesis(written, parser.translator.target_ids(written), 0.0, 0.0)]
    monkeypatch.setattr(Translator, "hypotheses", lambda self, s, **_: [beam for _ in s])
    sentences = [word_ids(words) for words in WORDS]
    trees = parser.parse(sentences)
    assert [tree.words() if tree else [] for tree in trees] == sentences
    tags = [["T"] * len(words) for words in sentences]
    for tree, known in zip(parser.parse(sentences, tags=tags), tags, strict=True):
        assert tree is None or tree.tags() == known


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
    assert one_tag_a_word(tokens, weights) == expected.split()


@pytest.mark.parametrize(
    ("log_probs", "chosen"),
    [((-5, -6, -3), 0), ((-5, -4, -3), 1), ((-5, -6, -1), 2), ((-8, -6, -3), 2)],
)
def test_missing_words_are_penalized(log_probs, chosen):
    texts = ["(S (A) (B) )S", "(S XX (B) )S", "(S (A) )S"]  # log 0.05 is -2.996
    beam = [Hypothesis(text, [], 0.0, p) for text, p in zip(texts, log_probs, strict=True)]
    assert best_hypothesis(beam, 2) == beam[chosen]
    assert best_hypothesis([], 2).text == ""


def test_a_sentence_without_hypotheses_gets_a_tree(workdir, monkeypatch):
    parser = Parser.load(workdir)
    monkeypatch.setattr(Translator, "hypotheses", lambda self, s, **_: [[] for _ in s])
    assert str(parser.parse([["a", "b"]])[0]) == "(TOP (XX a) (XX b))"


def test_a_treebank_is_parsed_and_scored(run, config, tmp_path, capsys):
    treebank, gold, parsed = config.data.valid, tmp_path / "gold", tmp_path / "parsed"
    assert run("--trees", treebank, "--gold", gold, "--output", parsed) == []
    right = gold.read_text(encoding="utf-8").split("\n")[:-1]
    assert right == [
        "(S (NP (DT The) (NN gene)) (VP (VBZ works)) (. .))",
        "(S (NP (PRP It)) (VP (VBD was) (ADJP (JJ XX) (-LRB- -LRB-) (NN so))) (. .))",
        "(NP (NN a\u200ab) (NN ▁))",
        "(FRAG (UH Yes))",
    ]
    found = list(read_trees(parsed.read_text(encoding="utf-8").split("\n"), "parsed"))
    expected = list(read_trees(right, "gold"))
    assert [tree.leaves() for tree in found] == [tree.leaves() for tree in expected]
    assert main(["evalb", str(gold), str(parsed)]) == 0
    assert "Number of Error sentence  =      0" in capsys.readouterr().out


def test_a_treebank_may_come_through_a_pipe(run, config, tmp_path):
    pipe, content = tmp_path / "pipe", pathlib.Path(config.data.valid).read_bytes()
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_bytes, args=[content], daemon=True).start()
    lines = run("--trees", pipe)
    assert len(lines) == 4
    assert lines == run("--trees", config.data.valid)


def test_invalid_words_are_refused_before_the_search(workdir, monkeypatch):
    monkeypatch.delattr(Translator, "hypotheses")  # Never reached.
    for word in ("(", "", "a b"):
        with pytest.raises(UserError, match="expected a word without white space and round brack"):
            Parser.load(workdir).parse([["a"], ["b", word]])


def test_files_and_contradictory_options(run, config, workdir, tmp_path, capsys):
    text = tmp_path / "words.txt"
    text.write_text("\n".join(WORDS), encoding="utf-8")
    assert run("--input", text) == run(lines=WORDS)

    def refused(*arguments):
        assert main(["parse", "--workdir", str(workdir), *map(str, arguments)]) == 2
        return capsys.readouterr().err

    text.write_text("short\n" + 100 * "word ", encoding="utf-8")
    assert f"{text}:2: expected at most 95 tokens (model.max_length)" in refused(
        "--strict", "--input", text
    )
    assert "--gold needs --trees FILE" in refused("--gold", tmp_path / "gold")
    trees = config.data.valid
    assert "leave --input out" in refused("--trees", trees, "--input", text)
    assert "is an input" in refused("--trees", trees, "--gold", trees)


def test_models_not_trained_on_trees_are_refused(workdir):
    translator = Translator.load(workdir)
    data = dataclasses.replace(translator.config.data, corpus="text")
    translator.config = dataclasses.replace(translator.config, data=data)
    with pytest.raises(UserError, match=r"trained to parse, .* got one of data\.corpus=text"):
        Parser(translator)
