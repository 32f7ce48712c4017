"""Commands with several uses: each option is taken or refused by name, whatever the use."""

import re

import pytest

from jaxformer.cli import main
from jaxformer.cli.commands import classify, play
from jaxformer.cli.signatures import command_parser

OF_ALL = {"help", "workdir", "weights"}
COMMANDS = {"classify": classify.COMMAND, "play": play.COMMAND}
PICTURES = {"images", "output", "probabilities"}
# The command, the options that select the use, and the parameters whose options it takes.
USES = {
    "texts": ("classify", [], {"input", "output", "probabilities", "pairs", "strict"}),
    "scores": ("classify", ["--labeled", "in.tsv"], {"labeled", "baselines", "pairs"}),
    "pictures": ("classify", ["--images", "in.npz"], PICTURES | {"attention", "texts"}),
    "labels": (
        "classify",
        ["--images", "in.npz", "--texts", "labels.txt"],
        PICTURES | {"texts", "template"},
    ),
    "episodes": ("play", [], {"episodes", "seed", "plot", "images"}),
    "captions": ("play", ["--images", "in.npz"], {"images"}),
}
# Parameters whose options select another use.
SELECT_OTHERS = {"texts": {"labeled", "images"}, "scores": {"images"}}


def options(command):
    """Returns the actions of a command's parser, by the names of their parameters."""
    parser = command_parser(command, COMMANDS[command].run)
    return {action.dest: action for action in parser._actions if action.dest not in OF_ALL}


def word_of(action):
    """Returns a word for an option, or none for a flag."""
    if action.nargs == 0:
        return []
    return ["3"] if action.type is int else ["file.png"]


def error_of(use, action, workdir, capsys):
    command, selecting, _ = USES[use]
    option = action.option_strings[0]
    words = [command, "--workdir", str(workdir), *selecting]
    if option not in selecting:
        words += [option, *word_of(action)]
    assert main(words) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("use", USES)
def test_an_option_that_a_use_does_not_take_is_refused_by_name(use, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command, _, takes = USES[use]
    actions = options(command)
    for name in actions.keys() - takes - SELECT_OTHERS.get(use, set()):
        error = error_of(use, actions[name], tmp_path, capsys)
        option = actions[name].option_strings[0]
        assert re.search(f"{option} .*(needs?|leave) --|leave {option} out", error), error

    # Without such an option, the error is about the model or a file, which does not exist.
    for name in takes & actions.keys():
        error = error_of(use, actions[name], tmp_path, capsys)
        assert not re.search("needs? --|leave", error), error
