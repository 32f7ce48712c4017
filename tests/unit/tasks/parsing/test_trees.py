"""Reading, normalization and linearization of trees, and repair of any decoder output."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.errors import UserError
from jaxformer.tasks.parsing.linearization import delinearize, linearize
from jaxformer.tasks.parsing.trees import Leaf, Tree, escape, normalize, read_trees

from ....profiles import by_profile

FEW = settings(max_examples=by_profile(25, nightly=100))


def as_word(text):
    """Any text without ASCII white space and round brackets is a word."""
    return re.sub(r"[()\s]", "_", text, flags=re.A)


def inner_node(children):
    return st.builds(Tree, LABELS, st.lists(children, min_size=1, max_size=4).map(tuple))


def as_tree(node):
    return node if isinstance(node, Tree) else Tree("S", (node,))


WORDS = st.text(min_size=1, max_size=6).map(as_word)
LABELS = st.sampled_from(["S", "NP", "VP", "XX", "TOP", "-LRB-", "NP-SBJ", "NP=2", "A"])
LEAVES = st.builds(Leaf, WORDS, WORDS)
TREES = st.recursive(LEAVES, inner_node, max_leaves=12).map(as_tree)
TOKENS = st.lists(
    st.one_of(
        st.sampled_from(["XX", "(NP", ")NP", "(S", ")S", "(VP", ")VP", "(TOP", "(A)", "(", ")"]),
        st.text(max_size=3),
    ),
    max_size=40,
)


def one(text):
    (tree,) = read_trees(text.split("\n"), "f")
    return tree


@FEW
@given(TREES)
def test_writing_and_reading_are_inverse(tree):
    assert one(str(tree)) == tree

    lines = str(tree).split(" ")  # A tree over many lines.
    assert list(read_trees(lines, "f")) == [tree]


@FEW
@given(TREES)
def test_linearize_and_delinearize_are_inverse(tree):
    assert delinearize(linearize(tree), tree.words(), tree.tags()) == tree
    assert delinearize(linearize(tree, tags=True), tree.words()) == tree


@FEW
@given(TOKENS, st.lists(LEAVES, min_size=1, max_size=8))
def test_any_tokens_become_a_tree_over_the_words(tokens, leaves):
    words = [leaf.word for leaf in leaves]
    tags = [leaf.tag for leaf in leaves]

    tree = delinearize(tokens, words, tags)
    assert tree.leaves() == leaves
    assert one(str(tree)) == tree
    assert delinearize(linearize(tree), words, tags) == tree

    # Only a root may be added.
    opened = {token[1:] for token in tokens if token.startswith("(")}
    labels = {token[1:] for token in linearize(tree) if token.startswith("(")}
    assert labels - opened <= {"TOP"}


@FEW
@given(TREES, st.data())
def test_a_truncated_tree_keeps_its_closed_constituents(tree, data):
    """A prefix of the tokens keeps every constituent that it closes."""
    tokens = linearize(tree)
    end = data.draw(st.integers(0, len(tokens)))

    repaired = delinearize(tokens[:end], tree.words())

    assert spans(tokens[:end]) <= spans(linearize(repaired))


def spans(tokens):
    """Returns label, first and last word of each closed constituent."""
    found = set()
    still_open = []
    words = 0
    for token in tokens:
        if token == "XX":
            words += 1
        elif token.startswith("("):
            still_open.append((token[1:], words))
        else:
            label, first = still_open.pop()
            found.add((label, first, words))
    return found


REPAIRED = [
    ("(S (NP XX )NP (VP XX XX )VP )S", "(S (NP (XX a)) (VP (XX b) (XX c)))"),
    ("(S (NP XX )NP (VP XX XX XX XX )VP )S", "(S (NP (XX a)) (VP (XX b) (XX c)))"),
    ("(S (NP XX )NP (VP XX", "(S (NP (XX a)) (VP (XX b) (XX c)))"),  # open brackets
    ("(S XX )NP XX XX )S", "(S (XX a) (XX b) (XX c))"),  # no open NP
    ("(S (NP (NP XX )S XX XX", "(TOP (S (NP (NP (XX a)))) (XX b) (XX c))"),  # closes both NPs
    ("(S (NP )NP XX (VP (PP )PP )VP XX XX )S", "(S (XX a) (XX b) (XX c))"),  # empty
    ("(NP XX )NP (VP XX )VP", "(TOP (NP (XX a)) (VP (XX b)) (XX c))"),
    ("<unk> ( ) (S XX XX hello XX )S </s>", "(S (XX a) (XX b) (XX c))"),
    ("", "(TOP (XX a) (XX b) (XX c))"),
    ("((S XX (S)) XX )S", "(TOP (XX a) (XX b) (XX c))"),  # no label
    ("(S (NP (DT) (NN) )NP (VP (VBZ) )VP )S", "(S (NP (DT a) (NN b)) (VP (VBZ c)))"),
    ("(S XX (DT) )S", "(S (XX a) (DT b) (XX c))"),
]


def test_repair():
    for tokens, tree in REPAIRED:
        assert str(delinearize(tokens.split(), ["a", "b", "c"])) == tree


def test_sentences_without_a_tree_are_refused():
    words = "expected at least one word, and a tag for each: got "
    with pytest.raises(UserError, match=f"{words}0 words and 0 tags"):
        delinearize(["(S", "XX", ")S"], [])
    with pytest.raises(UserError, match=f"{words}1 words and 2 tags"):
        delinearize(["(S", "XX", ")S"], ["a"], ["A", "B"])


NORMALIZED = [
    ("( (S (NP-SBJ-1 (PRP I)) (VP=2 (VB go))))", "(S (NP (PRP I)) (VP (VB go)))"),
    ("(TOP (S (NN a)))", "(S (NN a))"),
    ("(S (ADVP|PRT (RP up)) (X-Y=1-3 (NN a)))", "(S (ADVP (RP up)) (X (NN a)))"),
    # Labels with a leading hyphen, and the tags of words, are unchanged.
    ("(S (-LRB- -LRB-) (NN-X b))", "(S (-LRB- -LRB-) (NN-X b))"),
    # Traces, and constituents of only traces.
    ("(S (SBAR (-NONE- 0) (S (-NONE- *T*-1))) (NN a))", "(S (NN a))"),
    ("(S (NP (-NONE- *)) (VP (VB go) (NP (-NONE- *-1))))", "(S (VP (VB go)))"),
    # A root that is needed.
    ("( (S (NN a)) (. .))", "(TOP (S (NN a)) (. .))"),
    ("(UH Yes)", "(TOP (UH Yes))"),
    ("(S (NP (-NONE- *)))", "None"),
]


def test_normalize():
    for raw, expected in NORMALIZED:
        assert str(normalize(one(raw))) == expected


@FEW
@given(TREES)
def test_normalization_is_idempotent(tree):
    normalized = normalize(tree)
    kept = [leaf for leaf in tree.leaves() if leaf.tag != "-NONE-"]

    if normalized is None:
        assert kept == []
        return

    assert normalized.leaves() == kept
    assert normalize(normalized) == normalized
    assert delinearize(linearize(normalized), normalized.words(), normalized.tags())


BEGIN = "expected ( at the beginning of a tree, got"
EMPTY = "expected a word or a constituent"
MALFORMED = [
    ("(S (NN a))\nhello", f"f:2: {BEGIN} 'hello'"),
    ("(S\n(NN a b))", "f:2: expected ( or ), got 'b'; a word has a pair of brackets"),
    ("(S (NN a (B b)))", "f:1: expected ) after (NN a, got ("),
    ("(S (NP))", f"f:1: {EMPTY} after (NP, got )"),
    ("(S ( (NN a)))", "f:1: expected a label after (, got another (; only the outermost pair"),
    ("\n(S (NP\n(NN a)\n", "f:2: the tree that begins here is never closed: 2 closing brac"),
]


@pytest.mark.parametrize(("text", "message"), MALFORMED)
def test_malformed_trees_are_refused(text, message):
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        list(read_trees(text.split("\n"), "f"))


def test_brackets_in_words_are_escaped():
    assert Leaf("NN", escape("(x)")).word == "-LRB-x-RRB-"


def test_depth_is_unlimited():
    depth = 10_000  # Ten times the recursion limit.
    closing = depth * ")"
    deep = "( " + depth * "(NP-SBJ " + "(NN a)" + closing + ")"

    tree = normalize(one(deep))
    assert tree == one(depth * "(NP " + "(NN a)" + closing)

    tokens = linearize(tree)
    assert tokens == [*depth * ["(NP"], "XX", *depth * [")NP"]]
    assert delinearize(tokens, ["a"], ["NN"]) == tree
    assert delinearize(tokens[: depth + 1], ["a"], ["NN"]) == tree

    with pytest.raises(UserError, match=f"never closed: {depth + 1} closing brackets are missing"):
        one(deep[: -depth - 1])
