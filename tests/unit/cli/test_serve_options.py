"""The options of ``serve``: each is taken or refused by name, whatever the kind of the model."""

import json
from typing import Any

import pytest

from jaxformer.cli import main
from jaxformer.cli.commands.serve import COMMAND, kind_servers
from jaxformer.cli.signatures import command_parser
from jaxformer.config import Config, ModelConfig
from jaxformer.data.labeled import LabeledConfig
from jaxformer.data.stream import StreamConfig
from jaxformer.models.encoder import EncoderConfig

# Of all servers, and --help.
OF_ALL = {"help", "workdir", "host", "port"}
SIZES: Any = {
    "vocab_size": 300,
    "d_model": 16,
    "d_ff": 32,
    "num_heads": 2,
    "num_layers": 1,
    "max_length": 256,
}
CONFIGS = {
    "a model of sentence pairs": Config(model=ModelConfig(**SIZES)),
    "a language model": Config(model=ModelConfig(**SIZES), data=StreamConfig()),
    "a classifier": Config(model=EncoderConfig(**SIZES), data=LabeledConfig()),
}


def options():
    """The actions of the command's parser, by the names of their parameters."""
    return {action.dest: action for action in command_parser("serve", COMMAND.run)._actions}


def word_of(action):
    """A word for an option that differs from its default, or none for a flag."""
    if action.nargs == 0:
        return []
    if action.choices:
        return [str(next(choice for choice in action.choices if choice != action.default))]
    return ["0.5"] if action.type is float else ["3"]


def test_every_option_is_of_some_server():
    taken = {name for server in kind_servers().values() for name in server.takes}
    assert options().keys() - OF_ALL <= taken


@pytest.mark.parametrize("description", CONFIGS)
def test_an_option_that_a_server_does_not_take_is_refused_by_name(description, tmp_path, capsys):
    config = CONFIGS[description]
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    takes = kind_servers()[config.kind].takes
    refused = [action for name, action in options().items() if name not in takes | OF_ALL]
    assert refused

    for action in refused:
        option = action.option_strings[0]
        assert main(["serve", "--workdir", str(tmp_path), option, *word_of(action)]) == 2
        error = capsys.readouterr().err
        if option != "--contrast":  # which needs another option
            assert f"{tmp_path} is {description}" in error
        assert f"{option} " in error


def test_a_kind_without_a_server_is_refused(tmp_path, capsys):
    data = LabeledConfig(corpus="masked", mask_rate=0.15)
    config = Config(model=EncoderConfig(**SIZES), data=data)
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    assert main(["serve", "--workdir", str(tmp_path)]) == 2
    assert "got a masked language model, which has no server" in capsys.readouterr().err
