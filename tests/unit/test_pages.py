"""Commands, links and names of all pages: README.md, CONTRIBUTING.md, CHANGELOG.md and docs/."""

import functools
import importlib
import importlib.util
import pathlib
import re
import shlex

import pytest

import jaxformer
from jaxformer.cli.arguments import known_commands, parse_arguments
from jaxformer.cli.config_file import load_config
from jaxformer.cli.configs import shipped_configs
from jaxformer.data.catalog import CATALOG

from ..printed import DOCS, PAGES, PROJECT, SHELL, blocks, name, prose, read, shell_commands

# Pages with Python code, and the tests that run it.
EXECUTED = {
    "README.md": "system/test_readme.py",
    "docs/README.zh-CN.md": "system/test_readme.py",
    "docs/attention.md": "integration/test_research_page.py",
    "docs/beam_search.md": "integration/test_research_page.py",
    "docs/classification.md": "integration/test_bert.py",
    "docs/configs.md": "unit/cli/test_config_file.py",
    "docs/decoding.md": "integration/test_research_page.py",
    "docs/decoding_speed.md": "integration/test_research_page.py",
    "docs/fine_tuning.md": "integration/test_fine_tuning_page.py",
    "docs/gato.md": "integration/test_gato.py",
    "docs/hugging_face.md": "integration/test_huggingface.py",
    "docs/language_model.md": "integration/test_language_model.py",
    "docs/layers.md": "integration/test_research_page.py",
    "docs/optimizers.md": "integration/test_training_page.py",
    "docs/parsing.md": "integration/test_parsing.py",
    "docs/pictures_and_text.md": "integration/test_clip.py",
    "docs/research.md": "integration/test_research_page.py",
    "docs/serving.md": "integration/test_cli_serve.py",
    "docs/small_vit.md": "integration/test_array_pages.py",
    "docs/sound.md": "integration/test_speech.py",
    "docs/text_classifier.md": "integration/test_array_pages.py",
    "docs/training.md": "integration/test_training_page.py",
    "docs/tutorial.md": "system/test_readme.py",
    "docs/vision.md": "integration/test_images.py",
    "docs/whisper.md": "integration/test_whisper.py",
}

# Nobody reads these from beginning to end.
LISTS = {"CHANGELOG.md", *map(name, DOCS.glob("log/*.md")), *map(name, DOCS.glob("reference/*.md"))}
MOST_WORDS = 3000

OURS = re.compile(
    r"(?:^|(?<=[|&$l] ))(?:jaxformer |make |python train\.py|python -m jaxf|python benchm)"
)


def simple_commands(line):
    """Returns the words of each command between pipes, semicolons and redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True

    commands = [[]]
    is_redirected = False
    for word in lexer:
        if set(word) <= set("();|&{}"):
            commands.append([])
        elif set(word) <= set("<>"):
            is_redirected = True
        elif is_redirected:
            is_redirected = False
        elif word not in ("$", "until", "do", "done"):
            commands[-1].append(word)
    return [words for words in commands if words]


@functools.cache
def commands(page):
    """Returns our commands on a page, in order."""
    found = set()
    for command in shell_commands(page):
        line = command.replace("\\\n", " ")
        if OURS.search(line):
            for words in simple_commands(line):
                if OURS.match(" ".join(words)):
                    found.add(shlex.join(words))
    return sorted(found)


@functools.cache
def make_targets():
    makefile = (PROJECT / "Makefile").read_text()
    return set(re.findall(r"^([a-z-]+):", makefile, flags=re.M))


def check_options(script, words):
    """Checks that the source of a program names the options of a call."""
    source = script.read_text(encoding="utf-8")
    for word in words:
        if word.startswith("--"):
            option = word.partition("=")[0]
            assert f'"{option}"' in source, (script, words)


def check_arguments(words, command):
    """Checks the arguments of one of our commands, and the config that they name."""
    call = parse_arguments(words)
    assert set(call.keywords.get("names") or []) <= set(CATALOG), command

    config = call.keywords.get("config")
    if not config:
        return
    is_the_readers = config.endswith(".py") and "/" not in config
    if not is_the_readers:
        load_config(config, call.keywords["overrides"])


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_are_understood(page, monkeypatch):
    monkeypatch.chdir(PROJECT)
    # The reader's texts do not exist.
    chosen = (
        "small_corpus.fit_to_corpus",
        "further_training.fit_to_model",
        "small_text.fit_to_text",
        "small_text.fit_vocabulary",
    )
    for function in chosen:
        monkeypatch.setattr(f"jaxformer.tasks.{function}", lambda config, _: config)

    for command in commands(page):
        match shlex.split(command):
            case ["make", *words]:
                targets = {word for word in words if "=" not in word}
                assert targets, command
                assert targets <= make_targets(), command
            case ["python", "-m", module, *words]:
                script = importlib.util.find_spec(module).origin
                check_options(pathlib.Path(script), words)
            case ["python", script, *words] if script.startswith("benchmarks/"):
                check_options(PROJECT / script, words)
            case ["python", "train.py", *words]:
                check_arguments(["train", *words], command)
            case ["jaxformer" | "python", *words]:
                check_arguments(words, command)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_name_their_language(page):
    """So that every command is found: integration/test_printed_commands.py runs them."""
    known = {*SHELL, "python", "text", "dockerfile", "nginx"}
    for block in blocks(page):
        assert block.language in known or block.language.startswith("{")

    assert not re.search(r"\n\n {4,}(?![-*\d|])", prose(page)), "an indented block"


def anchors(page):
    """Returns the anchors that GitHub and the site give to the headings of a page."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page), flags=re.M):
        without_links = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading)
        words = re.sub(r"[^\w\- ]", "", without_links.lower())
        found.add(words.replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    without_code = re.sub(r"`[^`\n]*`", "", prose(page))
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code):
        if target.startswith(("http://", "https://", "jaxformer.")):
            continue

        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_pages_are_short(page):
    """More is for two pages; each has one of the things that a reader wants."""
    if name(page) not in LISTS:
        assert len(read(page).split()) <= MOST_WORDS


def public_modules():
    """Returns the package, and the packages in it that list their names."""
    inits = sorted((PROJECT / "jaxformer").glob("*/__init__.py"))
    packages = [path.parent.name for path in inits if "__all__" in read(path)]
    assert {"nn", "search"} < set(packages)
    return [jaxformer, *(importlib.import_module(f"jaxformer.{name}") for name in packages)]


def test_python_blocks_are_executed_by_a_test():
    for page in PAGES:
        if "```python\n" in read(page):
            assert page.name in read(PROJECT / "tests" / EXECUTED[name(page)])


def test_the_reference_has_all_public_names():
    """Each object once: under the first of the packages that export it."""
    pages = "".join(read(page) for page in DOCS.glob("reference/*.md"))
    documented = re.findall(r"^\.\. auto\w+:: (\S+)$", pages, flags=re.M)
    assert len(documented) == len(set(documented))

    expected = {}
    for module in public_modules():
        for item in module.__all__:
            expected.setdefault(id(getattr(module, item)), f"{module.__name__}.{item}")
    assert set(documented) == set(expected.values())


def test_the_pages_of_commands_and_configs_are_complete():
    listed = re.findall(r"^```\{command-help\} (\S+)$", read(DOCS / "commands.md"), flags=re.M)
    assert listed == list(known_commands())

    included = re.findall(r"\{literalinclude\} \.\./configs/(\w+)\.py", read(DOCS / "configs.md"))
    assert included == list(shipped_configs())
