"""Conversion between trees and token sequences (section 6.3).

The source of the Transformer is the words. Its target is the tree in the tokens of Vinyals et al.,
2015, "Grammar as a Foreign Language": an opening and a closing token for each constituent, and
``XX`` for each word, or the tag in brackets if tags are predicted, too:

    (S (NP XX XX )NP (VP XX )VP )S
    (S (NP (DT) (NN) )NP (VP (VBZ) )VP )S

A decoder may generate any sequence; :func:`delinearize` converts each to a tree over exactly the
sentence's words. No function here is recursive, so the depth of trees is unlimited.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from jaxformer.errors import UserError
from jaxformer.tasks.parsing.trees import TEXT, Event, Leaf, Tree, build_trees, single_root, walk

# Token of a word in a linearized tree without tags, and tag of a word whose tag is unknown.
XX = "XX"

_TAG = re.compile(r"\(([^()\s]+)\)", re.ASCII)


def linearize(tree: Tree, *, tags: bool = False) -> list[str]:
    """Converts a normalized tree to the tokens of the decoder, which do not contain the words.

    With ``tags``, the tag of each word is written instead of ``XX``.

    >>> from jaxformer.tasks.parsing.trees import read_trees
    >>> (tree,) = read_trees(["(S (NP (DT The) (NN gene)) (VP (VBZ works)))"], "example")
    >>> " ".join(linearize(tree))
    '(S (NP XX XX )NP (VP XX )VP )S'
    >>> " ".join(linearize(tree, tags=True))
    '(S (NP (DT) (NN) )NP (VP (VBZ) )VP )S'
    """
    tokens = []
    labels = []
    for event in walk(tree):
        if event == "":
            raise UserError(f"expected a normalized tree, got a constituent without label: {tree}")

        if isinstance(event, str):
            labels.append(event)
            tokens.append(f"({event}")
        elif event is None:
            tokens.append(f"){labels.pop()}")
        elif tags:
            tokens.append(f"({event.tag})")
        else:
            tokens.append(XX)

    return tokens


def is_preterminal(token: str) -> bool:
    """Returns whether a token of :func:`linearize` is ``XX`` or a tag such as ``(NN)``."""
    return token == XX or _TAG.fullmatch(token) is not None


def delinearize(
    tokens: Iterable[str],
    words: Sequence[str],
    tags: Sequence[str] | None = None,
) -> Tree:
    """Converts any tokens to a tree over exactly the given words.

    The function inverts :func:`linearize`, and repairs all other sequences:

    1. ``XX``, or a tag such as ``(NN)``, is the next word. It is ignored if no words are left.
       Tokens that :func:`linearize` never writes are ignored, too.
    2. ``)NP`` closes the innermost open ``NP`` and all constituents within it. It is ignored if no
       ``NP`` is open.
    3. Words that are left after the last token are appended to the innermost open constituent, or
       to the whole tree if none is open.
    4. All open constituents are closed, and constituents without words are removed.
    5. If the result is not a single constituent, it becomes the children of ``TOP``.

    There is at least one word, with brackets escaped. ``tags`` override the tags in the tokens;
    a word without any has the tag ``XX``.

    >>> delinearize("(S (NP XX )VP (VP )VP".split(), ["It", "works"])
    <Tree (S (NP (XX It) (XX works)))>
    >>> delinearize("(S (NP (PRP) )NP (VP (VBZ) )VP )S".split(), ["It", "works"])
    <Tree (S (NP (PRP It)) (VP (VBZ works)))>
    """
    known = [XX] * len(words) if tags is None else tags
    if not words or len(known) != len(words):
        raise UserError(
            f"expected at least one word, and a tag for each: got {len(words)} words and "
            f"{len(known)} tags"
        )

    tagged_words = zip(known, words, strict=True)
    leaves = iter([Leaf(tag, word) for tag, word in tagged_words])
    events, open_constituents = _repair_brackets(tokens, leaves, tagged=tags is not None)

    if open_constituents:
        closed = [None] * open_constituents
        trees = build_trees([*events, *leaves, *closed])
        return single_root(trees)

    trees = build_trees(events)
    rest = tuple(leaves)
    if rest and len(trees) == 1 and isinstance(trees[0], Tree):
        whole = trees[0]
        return Tree(whole.label, (*whole.children, *rest))
    return single_root([*trees, *rest])


def _repair_brackets(
    tokens: Iterable[str],
    leaves: Iterator[Leaf],
    *,
    tagged: bool,
) -> tuple[list[Event], int]:
    """Applies rules 1 and 2; returns events and the number of constituents still open."""
    events: list[Event] = []
    labels: list[str] = []
    for token in tokens:
        label = token[1:]
        tag = _TAG.fullmatch(token)

        if tag or token == XX:
            for leaf in itertools.islice(leaves, 1):
                if tag and not tagged:
                    leaf = Leaf(tag[1], leaf.word)
                events.append(leaf)

        elif token.startswith("(") and TEXT.fullmatch(label):
            events.append(label)
            labels.append(label)

        elif token.startswith(")") and label in reversed(labels):  # most often the last one
            events.append(None)
            while labels.pop() != label:
                events.append(None)

    return events, len(labels)
