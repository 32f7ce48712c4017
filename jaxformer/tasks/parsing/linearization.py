"""Trees as the tokens that a decoder writes (section 6.3), and back.

The source of the Transformer is the words, and its target the tree in the tokens of Vinyals et al.,
2015, "Grammar as a Foreign Language": an opening and a closing token for each constituent, and
``XX`` for each word, whatever its tag; or, if tags are to be predicted, too, the tag in brackets:

    (S (NP XX XX )NP (VP XX )VP )S
    (S (NP (DT) (NN) )NP (VP (VBZ) )VP )S

A decoder may write anything. :func:`delinearize` makes a tree over exactly the sentence's words of
any list of tokens. No function here is recursive, so that no depth of brackets is too much.
"""

import collections
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from jaxformer.errors import UserError
from jaxformer.tasks.parsing.trees import TEXT, Event, Leaf, Tree, build, single_root, walk

# Stands for a word in a linearized tree, and for the tag of a word whose tag is not known.
XX = "XX"

_TAG = re.compile(r"\(([^()\s]+)\)", re.ASCII)


def linearize(tree: Tree, *, tags: bool = False) -> list[str]:
    """The tokens that the decoder learns to write; they do not say the words.

    Args:
      tree: A normalized tree.
      tags: Whether they say the tag of each word.

    Raises:
      UserError: A constituent has no label, as before :func:`~jaxformer.tasks.parsing.trees.normalize`.

    >>> from jaxformer.tasks.parsing.trees import read_trees
    >>> (tree,) = read_trees(["(S (NP (DT The) (NN gene)) (VP (VBZ works)))"], "example")
    >>> " ".join(linearize(tree))
    '(S (NP XX XX )NP (VP XX )VP )S'
    >>> " ".join(linearize(tree, tags=True))
    '(S (NP (DT) (NN) )NP (VP (VBZ) )VP )S'
    """
    tokens, labels = [], []
    for event in walk(tree):
        if event == "":
            raise UserError(f"expected a normalized tree, got a constituent without label: {tree}")
        if isinstance(event, str):
            labels.append(event)
            tokens.append(f"({event}")
        elif event is None:
            tokens.append(f"){labels.pop()}")
        else:
            tokens.append(f"({event.tag})" if tags else XX)
    return tokens


def is_preterminal(token: str) -> bool:
    """Whether a token of :func:`linearize` is a word's: ``XX``, or a tag such as ``(NN)``."""
    return token == XX or _TAG.fullmatch(token) is not None


def delinearize(
    tokens: Iterable[str], words: Sequence[str], tags: Sequence[str] | None = None
) -> Tree:
    """A tree over exactly these words, whatever the tokens are.

    The tokens of :func:`linearize` give the tree that they came from. Others are repaired:

    1. ``XX``, or a tag such as ``(NN)``, is the next word; when all words are used up, it is
       ignored, as is any token that is not one of the linearization.
    2. ``)NP`` ends the innermost open ``NP`` and everything that is open within; if no ``NP`` is
       open, it is ignored.
    3. Words that are left go to the end of the innermost constituent that is open when the tokens
       end; if none is, to the end of the whole tree.
    4. Then all constituents end. Those without words are left out.
    5. If this is not one constituent, it is put under ``TOP``.

    Args:
      tokens: Anything.
      words: The sentence, at least one word, brackets escaped.
      tags: The part of speech of each word, whatever the tokens say; if left out, what they say,
        and ``XX`` where they do not.

    Raises:
      UserError: There are no words, or not as many tags, or one has white space or a bracket in it.

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
    leaves = iter([Leaf(tag, word) for tag, word in zip(known, words, strict=True)])
    events, depth = _repaired(tokens, leaves, tagged=tags is not None)
    if depth:
        return single_root(build([*events, *leaves, *[None] * depth]))
    trees, rest = build(events), tuple(leaves)
    if rest and len(trees) == 1 and isinstance(trees[0], Tree):
        return Tree(trees[0].label, (*trees[0].children, *rest))
    return single_root([*trees, *rest])


def _repaired(
    tokens: Iterable[str], leaves: Iterator[Leaf], *, tagged: bool
) -> tuple[list[Event], int]:
    """Rules 1 and 2; and how many constituents are open at the end."""
    events: list[Event] = []
    labels: list[str] = []
    count = collections.Counter()  # of each label in labels: a search in them could take long
    for token in tokens:
        label = token[1:]
        tag = _TAG.fullmatch(token)
        if token == XX or (tag and tagged):
            events.extend(itertools.islice(leaves, 1))
        elif tag:
            events.extend(Leaf(tag[1], leaf.word) for leaf in itertools.islice(leaves, 1))
        elif token.startswith("(") and TEXT.fullmatch(label):
            events.append(label)
            labels.append(label)
            count[label] += 1
        elif token.startswith(")") and count[label]:
            closed = None
            while closed != label:
                closed = labels.pop()
                count[closed] -= 1
                events.append(None)
    return events, len(labels)
