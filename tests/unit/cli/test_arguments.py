"""Command-line arguments: one-line error messages, and --help."""

import importlib
import re
import subprocess
import sys

import pytest

from jaxformer.cli import main
from jaxformer.cli.arguments import _parser, parse
from jaxformer.cli.config_file import load_config
from jaxformer.errors import UserError
from jaxformer.files import local_path

COMMANDS = [
    "train",
    "translate",
    "score",
    "evaluate",
    "parse",
    "generate",
    "average",
    "attention",
    "plot",
    "import",
    "export",
]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "the following arguments are required: COMMAND; see jaxformer --help"),
        ("transalte", "invalid choice: 'transalte'"),
        ("generate", "the following arguments are required: --workdir; see jaxformer generate"),
        ("translate --workdir w --beamsize 4", "unknown argument --beamsize; did you mean --beam"),
        ("translate --workdir w --topp=0.5", "unknown argument --topp=0.5; did you mean --top-p?"),
        ("translate --workdir w --xyz", "unknown argument --xyz; see jaxformer translate --help"),
        ("translate --workdir w in.txt", "unknown argument in.txt; see jaxformer translate --help"),
        ("translate --workdir w --beam-s 4", "unknown argument --beam-s; did you mean --beam-size"),
        ("translate --workdir w --beam-size x", "argument --beam-size: invalid int value: 'x'"),
        ("translate --workdir w --penalty google", "argument --penalty: invalid choice: 'google'"),
        ("translate --workdir w --json --scores", "argument --scores: not allowed with argument"),
        ("translate --workdir w --prefix a --prefixes f", "--prefixes: not allowed with argument"),
        ("translate --workdir", "argument --workdir: expected one argument"),
        ("score --workdir w --source f", "the following arguments are required: --target"),
        ("import torch d --workdir w", "argument system: invalid choice: 'torch'"),
        ("export onnx --workdir w", "argument format: invalid choice: 'onnx'"),
    ],
)
def test_mistakes_are_reported_in_one_line(arguments, words, capsys):
    assert main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"error: [^\n]+\n", err)
    assert words in err


@pytest.mark.parametrize(
    "arguments",
    ["base:tiny --workdir w", "--workdir w base:tiny", "--config base:tiny --workdir=w"],
)
def test_train_takes_its_config_anywhere_and_overrides_with_spaces(arguments):
    words = ["--config.training.steps", "3", "--config.search.length_penalty=-1"]
    options = parse(["train", *words, *arguments.split()])
    assert (options.config, str(options.workdir)) == ("base:tiny", "w")
    assert options.overrides == ["--config.training.steps=3", words[2]]


@pytest.mark.parametrize("page", ["", "/", "/tree/main", "/blob/main/config.json"])
def test_import_takes_the_address_of_a_model_on_the_hub(page):
    address = f"https://huggingface.co/Helsinki-NLP/opus-mt-en-de{page}"
    options = parse(["import", "marian", address, "--workdir", "w"])
    assert options.directory.as_posix() == "Helsinki-NLP/opus-mt-en-de"


def test_import_takes_a_folder_of_any_name():
    options = parse(["import", "marian", "my/model/tree/main", "--workdir", "w"])
    assert options.directory.as_posix() == "my/model/tree/main"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    text = capsys.readouterr().out
    assert re.search(rf"\nExample:\n  (echo .* \| )?jaxformer {command}\b", text)
    examples = re.findall(r"^  (?:.* \| )?jaxformer (.*)$", text, re.MULTILINE)
    for example in examples:  # The parser accepts every example.
        arguments = re.split(r" +#", example)[0]
        parse([word.strip('"') for word in re.findall(r'"[^"]*"|\S+', arguments)])


def test_decoding_options_are_grouped(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["translate", "--help"])
    headings = re.findall(r"^(\w[\w ]*):$", capsys.readouterr().out, re.MULTILINE)
    assert headings == [
        *("options", "text", "format", "model", "search", "constraints", "sampling"),
        *("forced prefix", "Example"),
    ]


def test_every_command_has_a_function():
    needed = {
        "score": ["--source", "f", "--target", "f"],
        "evaluate": ["--source", "f", "--reference", "f"],
        "attention": ["one"],
        "import": ["marian", "d"],
        "export": ["marian", "--output", "d"],
    }
    for command in COMMANDS:
        options = parse([command, "--workdir", "w", *needed.get(command, [])])
        module, function = options.run.split(".")
        assert callable(getattr(importlib.import_module(f"jaxformer.cli.{module}"), function))


def test_help_does_not_import_jax():
    code = (
        "import sys, jaxformer.cli\n"
        "try: jaxformer.cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('jax', 'numpy', 'tqdm', 'sentencepiece') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.endswith("\n[]\n")


def paths_in(command):
    """Returns arguments that give a URL to each option for a file or folder."""
    for action in command._actions:
        if action.metavar in ("FILE", "DIR", "GOLD", "TEST") or action.type is local_path:
            system = ["marian"] if command.prog.split()[-1] in ("import", "export") else []
            yield [*system, *action.option_strings[:1], "gs://bucket/f"]


def test_every_option_refuses_a_url():
    (commands,) = (a.choices for a in _parser()._actions if isinstance(a.choices, dict))
    given = [[name, *words] for name, command in commands.items() for words in paths_in(command)]
    assert len(given) > 35
    for arguments in given:
        if arguments[:2] == ["doctor", "--config"]:
            continue  # Refused when it is read.
        with pytest.raises(UserError, match="expected a path on a local disk: got gs://bucket/f; "):
            parse(arguments)
    with pytest.raises(UserError, match=r"expected a path on a local disk: got gs://bucket/f\.py"):
        load_config("gs://bucket/f.py")


@pytest.mark.parametrize("command", ["translate", "score", "parse", "generate"])
def test_help_explains_bad_lines(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        parse([command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "--strict refuse an input with a line that is too long or not UTF-8" in text
    assert "exit code is 3" in text
