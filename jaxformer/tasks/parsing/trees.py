"""Constituency trees (section 6.3): reads and normalizes treebanks.

A treebank writes a sentence as ``(S (NP-SBJ (DT The) (NN gene)) (VP (VBZ works)))``.

No function here is recursive, so the depth of trees is unlimited. Only ASCII white space separates
words; other white space, such as the hair space U+200A, occurs inside words.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from jaxformer.errors import UserError

TOP = "TOP"  # the root of a sentence that is not a single constituent
# Labels of roots: none (Penn), TOP, ROOT (Stanford), S1 (Charniak).
_TOPS = ("", TOP, "ROOT", "S1")
_EMPTY = "-NONE-"  # the tag of empty elements, such as traces and dropped subjects

_BRACKET_OR_TEXT = re.compile(r"[()]|[^()\s]+", re.ASCII)
TEXT = re.compile(r"[^()\s]+", re.ASCII)  # a label, a tag or a word


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """A word and its part of speech, with brackets escaped by :func:`escape`."""

    tag: str
    word: str

    def __post_init__(self) -> None:
        for what, text in (("tag", self.tag), ("word", self.word)):
            if not TEXT.fullmatch(text):
                raise UserError(
                    f"expected a {what} without white space and round brackets, got {text!r}; "
                    "write -LRB- and -RRB- for brackets"
                )

    def __str__(self) -> str:
        return f"({self.tag} {self.word})"


@dataclasses.dataclass(
    frozen=True,
    slots=True,
    eq=False,
    repr=False,
)
class Tree:
    """A constituent: its label, empty only for the root of a sentence, and its children.

    Trees are immutable, and equal if their bracket notation is equal.
    """

    label: str
    children: "tuple[Tree | Leaf, ...]"

    def __post_init__(self) -> None:
        if self.label and not TEXT.fullmatch(self.label):
            raise UserError(
                f"expected a label without white space and round brackets, got {self.label!r}"
            )

        if not self.children:
            raise UserError(f"expected a constituent of words, got an empty one: ({self.label})")

    def leaves(self) -> list[Leaf]:
        """Returns all words with their tags, from left to right."""
        return [event for event in walk(self) if isinstance(event, Leaf)]

    def words(self) -> list[str]:
        """Returns all words, from left to right."""
        return [leaf.word for leaf in self.leaves()]

    def tags(self) -> list[str]:
        """Returns the part of speech of each word."""
        return [leaf.tag for leaf in self.leaves()]

    def __str__(self) -> str:
        """Returns the tree in bracket notation, on one line."""
        parts = []
        for event in walk(self):
            if event is None:
                parts.append(")")
            elif isinstance(event, str):
                parts.append(f" ({event}")
            else:
                parts.append(f" {event}")

        return "".join(parts).removeprefix(" ")

    def __repr__(self) -> str:
        return f"<Tree {self}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tree) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


# Element of a flattened tree: the label of a constituent at its start, a leaf, or None at its end.
Event: TypeAlias = str | Leaf | None


def walk(tree: Tree) -> Iterator[Event]:
    """Yields the events of a tree, from left to right."""
    todo: list[Tree | Leaf | None] = [tree]
    while todo:
        node = todo.pop()
        if not isinstance(node, Tree):
            yield node
            continue

        yield node.label
        todo.append(None)
        todo.extend(reversed(node.children))


def build_trees(events: Iterable[Event]) -> list[Tree | Leaf]:
    """Builds trees from events, without constituents that have no words."""
    labels: list[str] = []
    children: list[list[Tree | Leaf]] = [[]]
    for event in events:
        if isinstance(event, str):
            labels.append(event)
            children.append([])
        elif isinstance(event, Leaf):
            children[-1].append(event)
        else:
            label = labels.pop()
            inside = children.pop()
            if inside:
                children[-1].append(Tree(label, tuple(inside)))

    return children[0]


def single_root(trees: Sequence[Tree | Leaf]) -> Tree:
    """Returns a single constituent unchanged, and a ``TOP`` with all trees otherwise."""
    if len(trees) == 1 and isinstance(trees[0], Tree):
        return trees[0]
    return Tree(TOP, tuple(trees))


def escape(word: str) -> str:
    """Escapes the brackets of a word as treebanks do."""
    return word.replace("(", "-LRB-").replace(")", "-RRB-")


def split_words(text: str) -> list[str]:
    """Splits a text at ASCII white space, and escapes the words' brackets.

    >>> split_words("It works (so far) .")
    ['It', 'works', '-LRB-so', 'far-RRB-', '.']
    """
    words = re.split(r"\s+", text, flags=re.ASCII)
    return [escape(word) for word in words if word]


def read_trees(lines: Iterable[str], name: str) -> Iterator[Tree]:
    """Reads the trees in lines; a line may have several trees, and a tree may span several lines.

    Outermost brackets without a label, as in the Penn Treebank, are a constituent with an empty
    label. A sentence that is a single leaf, such as ``(UH Yes)``, becomes the child of ``TOP``.

    >>> [str(tree) for tree in read_trees(["( (S (NP (PRP It))", "(VP (VBZ works))))"], "example")]
    ['( (S (NP (PRP It)) (VP (VBZ works))))']
    """
    return (tree for _, tree in locate_trees(lines, name))


def locate_trees(lines: Iterable[str], name: str) -> Iterator[tuple[str, Tree]]:
    """Reads the trees in lines as :func:`read_trees` does, each with the line where it begins."""
    stack: list[_Bracket] = []
    for number, line in enumerate(lines, 1):
        place = f"{name}:{number}"

        for token in _BRACKET_OR_TEXT.findall(line):
            if stack:
                stack[-1].check(token, place, outermost=len(stack) == 1)
            elif token != "(":
                found = "a surplus )" if token == ")" else repr(token)
                raise UserError(f"{place}: expected ( at the beginning of a tree, got {found}")

            if token == "(":
                stack.append(_Bracket(place))
                continue

            if token != ")":
                stack[-1].texts.append(token)
                continue

            bracket = stack.pop()
            node = bracket.node()
            if stack:
                stack[-1].children.append(node)
            else:
                yield bracket.place, single_root([node])

    if stack:
        raise UserError(
            f"{stack[0].place}: the tree that begins here is never closed: {len(stack)} closing "
            "brackets are missing at the end of the file"
        )


@dataclasses.dataclass(slots=True)
class _Bracket:
    """A bracket that has been opened but not yet closed."""

    place: str
    texts: list[str] = dataclasses.field(default_factory=list)  # a label, and maybe a word
    children: list[Tree | Leaf] = dataclasses.field(default_factory=list)

    def check(self, token: str, place: str, outermost: bool) -> None:
        """Raises an error if the token cannot follow the content of the bracket so far."""
        label = self.texts[0] if self.texts else ""
        word = self.texts[1] if len(self.texts) > 1 else ""

        if token == "(" and word:
            raise UserError(f"{place}: expected ) after ({label} {word}, got (")

        if token == "(" and not label and not outermost:
            raise UserError(
                f"{place}: expected a label after (, got another (; only the outermost pair "
                "of brackets may lack a label"
            )

        if token == ")" and not word and not self.children:
            raise UserError(f"{place}: expected a word or a constituent after ({label}, got )")

        is_text = token not in ("(", ")")
        if is_text and (word or self.children):
            raise UserError(
                f"{place}: expected ( or ), got {token!r}; a word has a pair of brackets of its "
                "own, such as (NN gene)"
            )

    def node(self) -> Tree | Leaf:
        if len(self.texts) == 2:
            tag, word = self.texts
            return Leaf(tag, word)
        label = self.texts[0] if self.texts else ""
        return Tree(label, tuple(self.children))


def normalize(tree: Tree) -> Tree | None:
    """Normalizes a tree for training and scoring of parsers.

    * Empty elements (``-NONE-``), and constituents of only empty elements, are removed.
    * Function tags and indices of labels are removed: ``NP-SBJ=2`` becomes ``NP``, and
      ``ADVP|PRT`` becomes ``ADVP``. A label that begins with a hyphen, such as ``-LRB-``, is
      unchanged. So are the tags of words.
    * A root labeled ``TOP``, ``ROOT``, ``S1`` or nothing is removed if it has exactly one
      constituent below; otherwise it is labeled ``TOP``.

    A tree without words becomes None.

    >>> (tree,) = read_trees(["( (S (NP-SBJ=2 (-NONE- *)) (VP (VB Go))))"], "example")
    >>> normalize(tree)
    <Tree (S (VP (VB Go)))>
    """
    events: list[Event] = []
    for event in walk(tree):
        if isinstance(event, str):
            # The label without function tags and indices.
            label = re.match("[^-=|]+", event)
            events.append(label[0] if label else event)
        elif event is None or event.tag != _EMPTY:
            events.append(event)

    kept = build_trees(events)
    while len(kept) == 1 and isinstance(kept[0], Tree) and kept[0].label in _TOPS:
        kept = list(kept[0].children)

    if not kept:
        return None
    return single_root(kept)
