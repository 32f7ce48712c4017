"""Constituency trees (section 6.3): as treebanks write them, and as parsers are scored on them.

A treebank writes a sentence as ``(S (NP-SBJ (DT The) (NN gene)) (VP (VBZ works)))``.

No function here is recursive, so that no depth of brackets is too much. Only ASCII white space
separates words: text has others, such as the hair space U+200A, inside of words.
"""

import dataclasses
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from jaxformer.data.text_files import read_file
from jaxformer.errors import UserError

# The constituent above a whole sentence, if there is need of one.
TOP = "TOP"
# What treebanks and parsers call it: nothing (Penn), ROOT (Stanford), S1 (Charniak).
_TOPS = ("", TOP, "ROOT", "S1")
# The tag of what is not in the text: traces, dropped subjects and other empty elements.
_EMPTY = "-NONE-"

_BRACKET_OR_TEXT = re.compile(r"[()]|[^()\s]+", re.ASCII)
# A label, a tag or a word.
TEXT = re.compile(r"[^()\s]+", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """A word and its part of speech; brackets in the text are written as ``escape`` does.

    Raises:
      UserError: One of them is empty, or has white space or a round bracket in it.
    """

    tag: str
    word: str

    def __post_init__(self) -> None:
        """Refuses what could not be read back."""
        for what, text in (("tag", self.tag), ("word", self.word)):
            if not TEXT.fullmatch(text):
                raise UserError(
                    f"expected a {what} without white space and round brackets, got {text!r}; "
                    "write -LRB- and -RRB- for brackets"
                )

    def __str__(self) -> str:
        """As in a file: ``(NN gene)``."""
        return f"({self.tag} {self.word})"


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tree:
    """A constituent: its label, which only the top of a sentence may lack, and what it is made of.

    Trees are values: they cannot be changed, and are equal if they are written alike.

    Raises:
      UserError: The label has white space or a round bracket in it, or there are no children.
    """

    label: str
    children: "tuple[Tree | Leaf, ...]"

    def __post_init__(self) -> None:
        """Refuses what could not be read back."""
        if self.label and not TEXT.fullmatch(self.label):
            raise UserError(
                f"expected a label without white space and round brackets, got {self.label!r}"
            )
        if not self.children:
            raise UserError(f"expected a constituent of words, got an empty one: ({self.label})")

    def leaves(self) -> list[Leaf]:
        """All words with their tags, from left to right."""
        return [event for event in walk(self) if isinstance(event, Leaf)]

    def words(self) -> list[str]:
        """All words, from left to right."""
        return [leaf.word for leaf in self.leaves()]

    def tags(self) -> list[str]:
        """The part of speech of each word."""
        return [leaf.tag for leaf in self.leaves()]

    def __str__(self) -> str:
        """The tree in brackets, on one line."""
        parts = []
        for event in walk(self):
            if isinstance(event, str):
                parts.append(f" ({event}")
            else:
                parts.append(")" if event is None else f" {event}")
        return "".join(parts).removeprefix(" ")

    def __repr__(self) -> str:
        """The brackets."""
        return f"<Tree {self}>"

    def __eq__(self, other: object) -> bool:
        """Whether both are written alike."""
        return isinstance(other, Tree) and str(self) == str(other)

    def __hash__(self) -> int:
        """Equal trees have equal hashes."""
        return hash(str(self))


# A tree as a sequence: the label of a constituent that begins, a leaf, or None where one ends.
Event: TypeAlias = str | Leaf | None


def walk(tree: Tree) -> Iterator[Event]:
    """The events of a tree, from left to right."""
    todo: list[Tree | Leaf | None] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, Tree):
            yield node.label
            todo.append(None)
            todo.extend(reversed(node.children))
        else:
            yield node


def build(events: Iterable[Event]) -> list[Tree | Leaf]:
    """The trees that events describe; a constituent without words is left out."""
    labels: list[str] = []
    children: list[list[Tree | Leaf]] = [[]]
    for event in events:
        if isinstance(event, str):
            labels.append(event)
            children.append([])
        elif isinstance(event, Leaf):
            children[-1].append(event)
        else:
            label, inside = labels.pop(), children.pop()
            if inside:
                children[-1].append(Tree(label, tuple(inside)))
    return children[0]


def single_root(trees: Sequence[Tree | Leaf]) -> Tree:
    """A single constituent as it is; anything else under a top of its own."""
    if len(trees) == 1 and isinstance(trees[0], Tree):
        return trees[0]
    return Tree(TOP, tuple(trees))


def escape(word: str) -> str:
    """A word of a text as treebanks write it.

    >>> escape("f(x)")
    'f-LRB-x-RRB-'
    """
    return word.replace("(", "-LRB-").replace(")", "-RRB-")


def split_words(text: str) -> list[str]:
    """The words of a text that has white space between them, as treebanks write them.

    >>> split_words("It works (so far) .")
    ['It', 'works', '-LRB-so', 'far-RRB-', '.']
    """
    return [escape(word) for word in re.split(r"\s+", text, flags=re.ASCII) if word]


def read_tree_file(path: pathlib.Path) -> Iterator[Tree]:
    """The trees of a file in the Penn Treebank's brackets, unpacked if it ends in ``.gz``.

    Raises:
      UserError: The file cannot be read, is not UTF-8, or a tree is malformed.
    """
    return read_trees(read_file(path), str(path))


def read_trees(lines: Iterable[str], name: str) -> Iterator[Tree]:
    """The trees in some lines: one to a line, several, or one over many lines.

    A tree may be wrapped in a pair of brackets without a label, as in the Penn Treebank; they are
    a constituent with an empty label. A sentence of only ``(UH Yes)`` is put under ``TOP``.

    Args:
      lines: Text.
      name: What to call it in messages.

    Raises:
      UserError: A tree is malformed; names the line.

    >>> [str(tree) for tree in read_trees(["( (S (NP (PRP It))", "(VP (VBZ works))))"], "example")]
    ['( (S (NP (PRP It)) (VP (VBZ works))))']
    """
    stack: list[_Open] = []
    for number, line in enumerate(lines, 1):
        for token in _BRACKET_OR_TEXT.findall(line):
            if token == "(":
                _open(stack, f"{name}:{number}")
            elif token != ")":
                _text(stack, token, f"{name}:{number}")
            else:
                node = _close(stack, f"{name}:{number}")
                if stack:
                    stack[-1].children.append(node)
                else:
                    yield single_root([node])
    if stack:
        raise UserError(
            f"{stack[0].where}: the tree that begins here is never closed: {len(stack)} closing "
            "brackets are missing at the end of the file"
        )


@dataclasses.dataclass(slots=True)
class _Open:
    """A bracket that has been opened but not yet closed."""

    where: str
    label: str | None = None
    word: str | None = None
    children: list[Tree | Leaf] = dataclasses.field(default_factory=list)


def _open(stack: list[_Open], where: str) -> None:
    if stack:
        parent = stack[-1]
        if parent.word is not None:
            raise UserError(f"{where}: expected ) after ({parent.label} {parent.word}, got (")
        if parent.label is None:
            if len(stack) > 1:
                raise UserError(
                    f"{where}: expected a label after (, got another (; only the outermost pair "
                    "of brackets may lack a label"
                )
            parent.label = ""
    stack.append(_Open(where))


def _text(stack: list[_Open], text: str, where: str) -> None:
    if not stack:
        raise UserError(f"{where}: expected ( at the beginning of a tree, got {text!r}")
    bracket = stack[-1]
    if bracket.label is None:
        bracket.label = text
    elif bracket.word is None and not bracket.children:
        bracket.word = text
    else:
        raise UserError(
            f"{where}: expected ( or ), got {text!r}; a word has a pair of brackets of its own, "
            "such as (NN gene)"
        )


def _close(stack: list[_Open], where: str) -> Tree | Leaf:
    if not stack:
        raise UserError(f"{where}: expected ( at the beginning of a tree, got a surplus )")
    bracket = stack.pop()
    label = bracket.label or ""
    if bracket.word is not None:
        return Leaf(label, bracket.word)
    if not bracket.children:
        raise UserError(f"{where}: expected a word or a constituent after ({label}, got )")
    return Tree(label, tuple(bracket.children))


def normalize(tree: Tree) -> Tree | None:
    """The tree as parsers are trained and scored on it.

    * Empty elements (``-NONE-``) go, and constituents of nothing else with them.
    * Labels lose function tags and indices: ``NP-SBJ=2`` is ``NP``, ``ADVP|PRT`` is ``ADVP``. A
      label that begins with a hyphen, ``-LRB-`` say, is one as a whole. Tags of words are kept.
    * The top (``TOP``, ``ROOT``, ``S1`` or none) goes if there is just one constituent below, else
      it is ``TOP``.

    Returns:
      The tree; None if it has no words.

    >>> (tree,) = read_trees(["( (S (NP-SBJ=2 (-NONE- *)) (VP (VB Go))))"], "example")
    >>> normalize(tree)
    <Tree (S (VP (VB Go)))>
    """
    kept = build(_normalized(tree))
    while len(kept) == 1 and isinstance(kept[0], Tree) and kept[0].label in _TOPS:
        kept = list(kept[0].children)
    return single_root(kept) if kept else None


def _normalized(tree: Tree) -> Iterator[Event]:
    for event in walk(tree):
        if isinstance(event, str):
            label = re.match("[^-=|]+", event)
            yield label[0] if label else event
        elif event is None or event.tag != _EMPTY:
            yield event
