"""The command ``play``: episodes of a multi-task agent, and captions that it writes."""

import sys
from typing import TYPE_CHECKING

from jaxformer.cli.command import Command
from jaxformer.cli.commands.plot import check_suffix
from jaxformer.cli.options import Checkpoint, File, ModelDir, refuse_options
from jaxformer.cli.outputs import check_outputs
from jaxformer.errors import UserError

if TYPE_CHECKING:
    from jaxformer.tasks.gato.agent import Agent

_EPISODES = 20


def play(
    *,
    workdir: ModelDir,
    episodes: int = _EPISODES,
    seed: int = 0,
    plot: File | None = None,
    images: File | None = None,
    weights: Checkpoint = "auto",
) -> None:
    """Balance a pole with a multi-task agent, beside its teacher and chance, or caption pictures.

    Episodes: Each has its own first state, the same for all policies, and at most 500 timesteps.
    Mean returns have 95 % intervals over resampled episodes.
      episodes: number of episodes
      seed: seed of the first states, and of random actions
      plot: image to write, .png or .svg: the pole in the first episode, and the mean returns

    Pictures:
      images: .npz file with an array images, uint8 [N, height, width, channels]: print a caption of
        each instead; if it also has labels, the digits, the accuracy is printed to standard error

    Example:
      jaxformer play --workdir runs/gato --episodes 100 --plot play.png

      jaxformer play --workdir runs/gato --images digits.npz
    """
    from jaxformer.tasks.gato.agent import Agent

    if images is not None:
        options = {
            "episodes": episodes != _EPISODES,
            "seed": seed != 0,
            "plot": plot is not None,
        }
        given = [name for name, is_given in options.items() if is_given]
        refuse_options(given, "--images has pictures to caption")
        _caption(Agent.load(workdir, weights=weights), images)
        return

    if episodes < 1:
        raise UserError(f"--episodes must be at least 1: got {episodes}")
    if seed < 0:
        raise UserError(f"--seed must be 0 or more: got {seed}")
    if plot is not None:
        check_outputs([], {"--plot": plot})
        check_suffix(plot, ".png or .svg")
    _play(Agent.load(workdir, weights=weights), episodes, seed, plot=plot)


COMMAND = Command("play", play, place=112)


def _caption(agent: "Agent", images: File) -> None:
    """Prints the captions of pictures, and their accuracy."""
    from jaxformer.data.images import read_npz
    from jaxformer.data.numerals import spell_english

    pictures, labels = read_npz(str(images), needs_labels=False)
    found = agent.captions(pictures)
    if (labels >= 0).all():
        expected = [spell_english(label) for label in labels.tolist()]
        right = sum(a == b for a, b in zip(found, expected, strict=True))
        print(f"accuracy {right / len(found):.2%}, {right:,} of {len(found):,}", file=sys.stderr)
    for text in found:
        print(text)


def _play(agent: "Agent", episodes: int, seed: int, plot: File | None) -> None:
    """Prints the returns of the model, its teacher and chance, and draws them."""
    import numpy as np

    from jaxformer.data import cart_pole
    from jaxformer.tasks.gato.agent import describe_returns

    states = cart_pole.first_states(seed, episodes)
    played = agent.play(states)
    teacher = cart_pole.play(states, 0.0, np.random.default_rng(seed))
    chance = cart_pole.play(states, 1.0, np.random.default_rng(seed))

    returns = {
        "teacher": [len(episode.actions) for episode in teacher],
        "model": played.returns.tolist(),
        "random": [len(episode.actions) for episode in chance],
    }
    print(f"returns of {episodes:,} episodes, at most {cart_pole.LONGEST}; 95 % intervals")
    for name, values in returns.items():
        print(f"  {name:8} {describe_returns(values)}")

    if plot is not None:
        from jaxformer.plots.balancing import draw_balancing

        own = played.states[0, : returns["model"][0]]
        angles = {
            "teacher": teacher[0].states[:, 2],
            "model": own[:, 2],
            "random": chance[0].states[:, 2],
        }
        draw_balancing(angles, returns, plot)
