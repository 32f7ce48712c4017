"""Checks how the project is written: spelling, stand-in phrases, and how docstrings open.

    python tests/language.py

prints a line for each place to change, and fails if there is one. ``make lint`` runs it.
"""

import ast
import collections
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

PROJECT = pathlib.Path(__file__).parents[1]
SUFFIXES = {".py", ".pyi", ".md", ".toml", ".yml", ".cff", ".html", ".js", ""}

# Repeat the noun, or use the technical word.
PHRASES = re.compile(
    r"\b(that of|those of|as there|go(?:es|ing)? on|went on|of which|the (?:latter|former)"
    r"|some(?:body|one) else|in peace|strangers?|files of others|may not expect|needs not)\b",
    re.IGNORECASE,
)
# Translated phrases, and what to write instead, such as "an epoch per row" for "one epoch a row".
PLAIN = {
    r"last (?:layer )?but one": "second-to-last",
    r"one (?!is|has|of|with|in|for|at)\w+ an? (?:row|line|word|sentence|batch|epoch)": "per",
    r"but for (?:an?|the|its|their)": "except for",
    r"(?:cannot|could not|can not) be done": "failed",
    r"(?:computed|computes|built|tried|taken|takes) again": "recompute, rebuild, retry, repeat",
    r"(?<!here )is no (?!(?:longer|more|less|larger|better|worse|other|such)\b)\w+": "is not",
    r"the ones? of": "the noun again",
    r"(?:some|any)body": "someone, anyone, or the noun",
    r"and else": "and otherwise",
    r"if need be": "if needed",
    r"at night": "in the nightly profile",
}
# British spellings by their stems; identifiers of JAX and its libraries are American.
STEMS = (
    "canonicalis customis emphasis(?=e|ing) equalis factoris finalis generalis initialis linearis "
    "materialis maximis memoris minimis normalis optimis(?=e|ing|a) organis orthogonalis "
    "parallelis(?!m) penalis quantis randomis realis(?=e|ing) recognis regularis serialis "
    "specialis standardis summaris synchronis tokenis utilis vectoris visualis labell(?!edby) "
    "modell travell analys(?=ed|e\\b|ing) artefact (?<!legacy_)behaviour colour favour honour "
    "neighbour centre licence grey judgement learnt spelt whilst"
)
BRITISH = re.compile(rf"(?<![a-z])\w*?(?:{'|'.join(STEMS.split())})\w*", re.IGNORECASE)
OPENINGS = re.compile(
    r"(What|Which|How|Whether|Who|Where)\b"
    r"|(Reading|Writing|Learning|Loading|Training|Batching|Use|Choice|Conversion|Preparation) of\b"
)
# Functions with one of these names say neither what they do nor what they return.
BARE = re.compile(r"_?(?:[a-z]+(?:ed|ing)|begin|call|choose|like|first|beside|do)")
NOUNS = {"_listing", "setting", "allowed", "replicated", "embed", "_embed", "seed"}

# A line with one of these is quoted from others, or is this list.
ALLOWED = re.compile(r"tests/language\.py|^docs/table3/|^LICENSE|requirements")


def main() -> int:
    """Prints what is found, and returns the exit code."""
    found = []
    for path in files():
        found += complaints(path)
    found += shared_names()

    print("\n".join(found) or "language: nothing to change")
    return 1 if found else 0


def files() -> Iterator[pathlib.Path]:
    """Yields the text files of the project, without data of tests and the pretrained model."""
    others = (":!tests/fixtures", ":!jaxformer/pretrained/tatoeba_en_de")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *others]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PROJECT)
    for name in listed.stdout.splitlines():
        path = PROJECT / name
        if path.suffix in SUFFIXES and path.is_file() and not ALLOWED.search(name):
            yield path


def complaints(path: pathlib.Path) -> Iterator[str]:
    """Yields a line for each place to change in a file."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(PROJECT)
    for number, line in enumerate(text.splitlines(), 1):
        for complaint in complaints_of_line(line):
            yield f"{name}:{number}: {complaint}"

    if path.suffix != ".py":
        return
    tree = ast.parse(text)
    yield from openings(tree, name)
    if name.parts[0] == "jaxformer":
        yield from bare_names(tree, name)


def complaints_of_line(line: str) -> Iterator[str]:
    """Yields the phrases to change in a line, and what to write instead."""
    for match in PHRASES.finditer(line):
        yield f"say the noun again instead of {match[0]!r}"
    for pattern, better in PLAIN.items():
        for match in re.finditer(rf"\b{pattern}\b", line, re.IGNORECASE):
            yield f"{better!r} instead of {match[0]!r}"
    for match in BRITISH.finditer(line):
        yield f"American spelling instead of {match[0]!r}"


def openings(tree: ast.Module, name: pathlib.Path) -> Iterator[str]:
    """Yields a line for each docstring that opens with a question word or a gerund."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, documented):
            match = OPENINGS.match(ast.get_docstring(node) or "")
            if match:
                number = node.body[0].lineno
                yield f"{name}:{number}: open with a verb or a noun phrase, not {match[0]!r}"


def bare_names(tree: ast.Module, name: pathlib.Path) -> Iterator[str]:
    """Yields a line for each function or method whose name is a bare participle or verb."""
    nodes = list(tree.body)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            nodes += node.body

    for node in nodes:
        if not isinstance(node, ast.FunctionDef):
            continue
        if BARE.fullmatch(node.name) and node.name not in NOUNS:
            yield f"{name}:{node.lineno}: name {node.name!r} after what it does, with an object"


def shared_names() -> Iterator[str]:
    """Yields a line for each public function with the name of another one in the package.

    Commands are named after what they call. Each table or figure, and each format, has a module
    with the same functions.
    """
    places = collections.defaultdict(list)
    for path in sorted((PROJECT / "jaxformer").rglob("*.py")):
        name = path.relative_to(PROJECT)
        if name.parts[1] in ("cli", "paper"):
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                places[node.name].append(f"{name}:{node.lineno}")

    for name, found in places.items():
        if len(found) > 1 and name not in ("main", "write"):
            yield f"{found[0]}: {name!r} is a function of {', '.join(found[1:])}, too"


if __name__ == "__main__":
    sys.exit(main())
