"""A multi-task agent, from its run to its commands; resumed, on meshes, in int8 and fine-tuned."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest

from jaxformer import BeamSearch, load_config, train
from jaxformer.cli import main
from jaxformer.config import Config, TrainingConfig
from jaxformer.data import cart_pole
from jaxformer.data.agent_tasks import AgentConfig, read_examples, texts_of
from jaxformer.data.episodes import episode, make_rows
from jaxformer.errors import UserError
from jaxformer.inference.conversions import quantize
from jaxformer.inference.generator import Generator
from jaxformer.inference.weights import load_model
from jaxformer.models.gato import Gato, GatoConfig
from jaxformer.tasks.gato.agent import Agent, play_episodes

from ..runs import changed, reports
from . import pages
from .equal_runs import check_other_mesh, check_resumed

CONFIG = Config(
    model=GatoConfig(
        vocab_size=35,
        height=8,
        width=8,
        channels=1,
        patch_size=4,
        patch_channels=4,
        patch_groups=2,
        d_model=16,
        d_ff=16,
        num_heads=2,
        num_layers=2,
        num_positions=40,
        window=14,
        max_length=60,
        dropout_rate=0.1,
    ),
    data=AgentConfig(
        text_rows=2,
        caption_rows=2,
        control_rows=2,
        max_length=40,
        numbers_below=200,
        episodes=4,
        prompt_share=0.5,
    ),
    training=TrainingConfig(
        steps=12,
        warmup_steps=2,
        learning_rate=1e-2,
        log_every=6,
        eval_every=12,
        checkpoint_every=6,
        eval_sentences=3,
    ),
    search=BeamSearch(beam_size=1),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    pytest.importorskip("sklearn.datasets", reason="jaxformer[vision] is not installed")
    workdir = tmp_path_factory.mktemp("gato") / "run"
    train(CONFIG, workdir)
    return workdir


def test_the_loss_of_each_task_is_logged(run):
    *_, last = reports(run, "valid")
    losses = [last[f"{name}_loss"] for name in ("text", "caption", "control")]
    assert all(0 < loss < 8 for loss in losses)
    assert min(losses) < last["loss"] < max(losses)
    assert 0 <= last["caption_accuracy"] <= 1


def test_it_resumes_exactly_and_is_the_same_on_one_device(run, tmp_path):
    check_resumed(CONFIG, run, tmp_path, cut=8)
    check_other_mesh(CONFIG, run, tmp_path)


def test_the_commands_play_caption_and_generate(run, capsys, tmp_path):
    workdir = ["--workdir", str(run)]
    drawn = tmp_path / "play.png"
    assert main(["play", *workdir, "--episodes", "3", "--plot", str(drawn)]) == 0
    first, teacher, model, chance = capsys.readouterr().out.splitlines()
    assert first == "returns of 3 episodes, at most 500; 95 % intervals"
    assert teacher == "  teacher  500.0 (500.0 to 500.0)"
    assert model.split()[0] == "model"
    assert 5 < float(chance.split()[1]) < 100
    assert drawn.read_bytes().startswith(b"\x89PNG")

    pictures = np.zeros((2, 8, 8), np.uint8)
    np.savez(tmp_path / "digits.npz", images=pictures, labels=[3, 4])
    assert main(["play", *workdir, "--images", str(tmp_path / "digits.npz")]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert "of 2" in err

    assert main(["generate", *workdir, "--prompt", "12", "--tokens", "5", "--top-k", "9"]) == 0
    assert capsys.readouterr().out.startswith("12")


@jax.jit
def logits_of(params, rows):
    model = Gato(CONFIG.model)
    return model.apply({"params": params}, rows.tokens, positions=rows.positions)


def by_whole_passes(params, state, steps):
    """An episode by brute force: all items so far in one pass for each action."""
    states = []
    actions = []
    while len(states) < steps:
        states.append(state)
        seen = episode(CONFIG.model.ids, {"state": np.stack(states)}, np.array([*actions, 0]))
        rows = make_rows([[seen]], 6 * steps, max_pictures=0, image_shape=(8, 8, 1))
        separator = len(seen.tokens) - 2
        logits = np.asarray(logits_of(params, rows))[0, separator]
        actions.append(int(logits[:2].argmax()))
        state = cart_pole.step(state, actions[-1]).astype(np.float32)
    return np.stack(states)


def test_an_episode_equals_whole_passes(run):
    _, params = load_model(run)
    states = cart_pole.first_states(5, 2).astype(np.float32)
    played = play_episodes(CONFIG.model, params, states, longest=10)
    for number, state in enumerate(states):
        expected = by_whole_passes(params, state, steps=10)
        np.testing.assert_allclose(played.states[number], expected, atol=1e-4)

    lengths = []
    for own in played.states:
        failed = cart_pole.has_failed(own)
        lengths.append(int(failed.argmax()) if failed.any() else 10)
    assert played.returns.tolist() == lengths


def test_the_page_runs_as_printed(run, capsys, tmp_path, monkeypatch):
    shutil.copytree(run, tmp_path / "runs" / "gato")
    monkeypatch.chdir(tmp_path)
    pages.execute("gato.md")
    assert capsys.readouterr().out == "(3,) (3, 500, 4)\n"


def test_texts_are_only_characters(run):
    search = BeamSearch(beam_size=2)
    [text] = Generator.load(run, search=search).generate(["17"], max_tokens=8)
    assert set(text) <= set("0123456789 abcdefghijklmnopqrstuvwxyz-")


def test_int8_decodes(run, tmp_path):
    quantize(run, tmp_path / "int8")
    agent = Agent.load(tmp_path / "int8")
    played = agent.play(cart_pole.first_states(0, 2), longest=4)
    assert played.returns.tolist() == [4, 4]

    pictures = np.zeros((1, 8, 8, 1), np.uint8)
    assert len(agent.captions(pictures)) == 1

    # Logits of both are close: int8 rounds to 1 in 127.
    model, params = load_model(run)
    small, rounded = load_model(tmp_path / "int8")
    tokens = np.arange(4, 24)[None]

    def logits(model, params):
        return np.asarray(jax.jit(model.apply)({"params": params}, tokens))

    given = logits(model, params)
    difference = np.abs(logits(small, rounded) - given)
    assert difference.max() < 0.1 * np.abs(given).max()


def test_fine_tuning_keeps_the_bins(run, tmp_path):
    _, before = load_model(run)
    one = {"steps": 1, "init_from": str(run), "schedule": "constant", "learning_rate": 1e-5}
    alone = {"text_rows": 0, "caption_rows": 0}
    tuned = train(changed(CONFIG, data=alone, training=one), tmp_path / "tuned")
    assert set(reports(tmp_path / "tuned", "valid")[-1]) & {"text_loss", "caption_loss"} == set()
    moved = np.asarray(tuned.params["embedding"]) - before["embedding"]
    assert np.abs(moved).max() < 1e-3


def test_training_and_validation_share_no_example():
    class Characters:
        vocab_size = 35

        def encode(self, text):
            return [ord(character) % 31 + 4 for character in text]

        def encode_batch(self, texts):
            return [self.encode(text) for text in texts]

    train_split, valid_split = (
        read_examples(CONFIG.data, Characters(), patch_size=4, training=training)
        for training in (True, False)
    )
    texts = {bytes(items.tokens) for items in train_split.text}
    assert texts.isdisjoint(bytes(items.tokens) for items in valid_split.text)
    starts = {bytes(items.tokens[:4]) for items in train_split.control}
    assert starts.isdisjoint(bytes(items.tokens[:4]) for items in valid_split.control)


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        ("model", {"vocab_size": 40}, "model.vocab_size must be 35, four special tokens and all"),
        ("model", {"channels": 3}, r"must be \(8, 8, 1\), as in pictures of digits: got \(8, 8, 3"),
        ("model", {"num_positions": 30}, "num_positions must be at least data.max_length=40"),
        ("data", {"numbers_below": 10_000}, "data.max_length must be at least 52, the longest ex"),
    ],
)
def test_configs_that_do_not_fit_their_data_are_refused(tmp_path, section, changes, message):
    with pytest.raises(UserError, match=message):
        train(changed(CONFIG, **{section: changes}), tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict.fromkeys(["text_rows", "caption_rows", "control_rows"], 0), "must be above 0"),
        (
            {"max_length": 11},
            "must be at least 12, a prompt and a timestep: got 11",
        ),
        ({"noise": 1.0}, "data.noise must be at least 0 and less than 1: got 1.0"),
    ],
)
def test_sections_are_checked(changes, message):
    with pytest.raises(UserError, match=message):
        AgentConfig(**changes)


def test_what_cannot_be_played_is_refused(run, capsys):
    agent = Agent.load(run)
    with pytest.raises(UserError, match=r"expected pictures, uint8 \[N, 8, 8, 1\], got uint8 \[1"):
        agent.captions(np.zeros((1, 4, 4, 1), np.uint8))
    with pytest.raises(UserError, match="expected at least 1 timestep, got 0"):
        agent.play(cart_pole.first_states(0, 1), longest=0)

    model = dataclasses.replace(CONFIG.model, window=None)
    unlimited = Agent(dataclasses.replace(CONFIG, model=model), agent.params, agent.tokenizer)
    with pytest.raises(UserError, match=r"expected at most 10 timesteps, of model\.max_length=60"):
        unlimited.play(cart_pole.first_states(0, 1))

    workdir = ["play", "--workdir", str(run)]
    for words, message in (
        (["--episodes", "0"], "--episodes must be at least 1: got 0"),
        (["--seed", "-1"], "--seed must be 0 or more: got -1"),
        (["--plot", "a.txt"], ".png or .svg"),
        (["--images", "a.npz", "--plot", "a.png"], "leave --plot out"),
    ):
        assert main([*workdir, *words]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.nightly
def test_the_demonstration(tmp_path):
    train(load_config("gato"), tmp_path / "run")
    *_, last = reports(tmp_path / "run", "valid")
    assert last["caption_accuracy"] > 0.97

    agent = Agent.load(tmp_path / "run")
    played = agent.play(cart_pole.first_states(0, 100))
    assert played.returns.mean() > 400

    texts = texts_of("held_out", 10_000)
    prompts = [text.partition(" ")[0] + " " for text in texts]
    generator = Generator.load(tmp_path / "run", search=BeamSearch(beam_size=1))
    found = generator.generate(prompts, max_tokens=60)
    right = [prompt + rest for prompt, rest in zip(prompts, found, strict=True)]
    assert np.mean(np.array(right) == texts) > 0.95


def test_the_smoke_variant_takes_its_steps(tmp_path):
    pytest.importorskip("sklearn.datasets", reason="jaxformer[vision] is not installed")
    train(load_config("gato:smoke"), tmp_path / "run")
    *_, last = reports(tmp_path / "run", "valid")
    assert last["step"] == 4
