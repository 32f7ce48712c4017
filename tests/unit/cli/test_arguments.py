"""Command-line arguments: one-line error messages, and --help."""

import pathlib
import re
import subprocess
import sys
from dataclasses import fields

import pytest

from jaxformer.cli import main
from jaxformer.cli.arguments import known_commands, parse_arguments
from jaxformer.cli.config_file import load_config
from jaxformer.cli.signatures import command_parser
from jaxformer.config import DataConfig, LabeledConfig, MeshConfig, ModelConfig, TrainingConfig
from jaxformer.errors import UserError
from jaxformer.pretrained import WORKDIR
from jaxformer.search import BeamSearch, Sampling

TREES = pathlib.Path(__file__).parents[2] / "fixtures" / "evalb" / "listing.gld"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("transalte", "unknown command transalte; did you mean translate?"),
        ("generate", "the following arguments are required: --workdir; see jaxformer generate"),
        ("translate --workdir w --beamsize 4", "unknown argument --beamsize; did you mean --beam"),
        ("translate --workdir w in.txt", "unknown argument in.txt; see jaxformer translate --help"),
        ("translate --workdir w --beam-size x", "argument --beam-size: invalid int value: 'x'"),
        ("evaluate --source a --reference b --prefix c --prefixes d", "--prefix and --prefixes ex"),
        ("translate --workdir w --json --scores", "--scores is not needed with --json, which pri"),
        ("average --workdir pretrained", "--workdir: pretrained is the model that comes with"),
        ("train numerals --workdir pretrained", "add --config.training.init_from=pretrained"),
        ("import marian m --workdir pretrained", "--workdir: pretrained is the model that comes"),
        ("quantize --workdir w --output pretrained", "--output: pretrained is the model that"),
    ],
)
def test_mistakes_are_reported_in_one_line(arguments, words, capsys):
    assert main(arguments.split()) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"error: [^\n]+\n", err)
    assert words in err


def test_no_command_prints_the_help_and_fails(capsys):
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "\n    translate " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "name"), [("train.py", "python train.py"), ("/bin/jaxformer", "jaxformer train")]
)
def test_errors_name_the_command_as_it_was_typed(program, name, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [program])
    for words in ("--config numerals", "--config numerals --num_processes x"):
        assert main(["train", *words.split()]) == 2
        assert f"; see {name} --help" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    ["base:tiny --workdir w", "--workdir w base:tiny", "--config base:tiny --workdir=w"],
)
def test_train_takes_its_config_anywhere_and_overrides_with_spaces(arguments):
    words = ["--config.training.steps", "3", "--config.search.length_penalty=-1"]
    options = parse_arguments(["train", *words, *arguments.split()]).keywords

    assert options["config"] == "base:tiny"
    assert options["workdir"] == pathlib.Path("w")
    assert options["overrides"] == ["--config.training.steps=3", words[2]]


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ("--steps 100", "--config.training.steps"),
        ("--lr=0.1", "--config.training.learning_rate"),
        ("--epochs 3", "--config.training.steps"),
        ("--batch-size 64", "--config.data.tokens_per_batch"),
        ("--num_layer 2", "--config.model.num_layers"),
        ("--training.dropout=0", "--config.model.dropout_rate"),
        ("steps=100", "--config.training.steps"),
        ("--output_dir w", "--workdir"),
        ("--num-process 2", "--num_processes"),
    ],
)
def test_other_names_of_fields_are_understood_in_errors(words, field):
    with pytest.raises(UserError, match=rf"unknown argument \S+; did you mean {field}\?$"):
        parse_arguments(["train", "base", "--workdir=w", *words.split()])


def test_a_model_to_read_may_be_the_one_that_comes_along():
    for name, folder in (("pretrained", WORKDIR), ("./pretrained", pathlib.Path("pretrained"))):
        words = ["translate", "--workdir", name, "--ensemble", name, name]
        options = parse_arguments(words).keywords
        assert options["workdir"] == folder
        assert list(options["model"].ensemble) == [folder, folder]


def test_import_takes_a_folder_of_any_name_or_the_address_of_a_model_on_the_hub():
    model = "Helsinki-NLP/opus-mt"
    page = f"https://huggingface.co/{model}"
    for given, expected in (
        (page, model),
        (f"{page}/", model),
        (f"{page}/tree/main", model),
        (f"{page}/blob/main/config.json", model),
        ("my/model/tree/main", "my/model/tree/main"),
    ):
        options = parse_arguments(["import", "marian", given, "--workdir", "w"]).keywords
        assert options["directory"].as_posix() == expected


@pytest.mark.parametrize("name", known_commands())
def test_help_fits_the_terminal_and_has_examples_that_can_be_run(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    text = capsys.readouterr().out

    assert max(map(len, text.splitlines())) <= 100
    for list_item in ("numerals ", "--config.training.steps=100000"):
        assert (f"\n    {list_item}" in text) == (name == "train")
    assert ("\n    newstest-fr " in text) == (name == "data")

    assert re.search(rf"\nExample:\n  (echo .* \| )?jaxformer {name}\b", text)
    for example in re.findall(r"^  (?:.* \| )?jaxformer (.*)$", text, re.MULTILINE):
        # Up to a comment, or to the next command of a pipe.
        arguments = re.split(r" +[#|]", example)[0]
        words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', arguments)]
        assert callable(parse_arguments(words))


def test_fields_are_listed_with_the_defaults_and_the_help_of_their_classes(capsys):
    assert main(["train", "--fields"]) == 0
    printed = capsys.readouterr().out
    found = dict(re.findall(r"^  --config\.(\S+?)=(.*)$", printed, re.MULTILINE))

    for section, kind in (
        ("model", ModelConfig),
        ("data", DataConfig),
        ("mesh", MeshConfig),
        ("training", TrainingConfig),
    ):
        for field in fields(kind):
            assert found.pop(f"{section}.{field.name}") == str(field.default)

    searches = {*fields_of(BeamSearch), *fields_of(Sampling)}
    assert found.keys() == {f"search.{name}" for name in searches}


def fields_of(kind):
    return [field.name for field in fields(kind)]


def test_help_shows_inherited_fields():
    for kind in (TrainingConfig, LabeledConfig, BeamSearch):
        documented = re.findall(r"^  (\w+): ", kind.__doc__, re.MULTILINE)
        assert sorted(set(documented)) == sorted(documented)
        assert set(fields_of(kind)) <= set(documented)


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["translate", "--help"],
        ["train", "--fields"],
        ["translate", "--beam-size", "x"],
        ["evalb", str(TREES), str(TREES)],
    ],
)
def test_a_command_imports_only_what_it_needs(words):
    code = (
        "import sys, jaxformer.cli\n"
        "try: jaxformer.cli.main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "heavy = ('jax', 'numpy', 'tqdm', 'sentencepiece', 'sacrebleu')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, *words]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_every_option_refuses_a_url():
    given = []
    for name, command in known_commands().items():
        words = [name, "marian"] if name in ("import", "export") else [name]
        for action in command_parser(name, command.run)._actions:
            if action.metavar in ("FILE", "DIR", "GOLD", "TEST", "MODEL"):
                given.append([*words, *action.option_strings[:1], "gs://b/f"])

    assert len(given) > 35
    for arguments in given:
        with pytest.raises(UserError, match="expected a path on a local disk: got gs://b/f; "):
            parse_arguments(arguments)

    with pytest.raises(UserError, match=r"expected a path on a local disk: got gs://bucket/f\.py"):
        load_config("gs://bucket/f.py")
