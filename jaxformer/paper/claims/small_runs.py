"""Trains small models that differ in one thing, and tabulates and draws what came of it.

A claim is a table of settings: for each line of its picture, and each place on that line, a task, a
network and how it is trained. All seeds of a setting are one program.
"""

import dataclasses
import functools
import operator
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxformer.paper.claims.charts import Panel, draw_panels
from jaxformer.paper.claims.claim import Claim
from jaxformer.paper.table_commands import markdown_table
from jaxformer.training.losses import class_sums


class Batch(NamedTuple):
    """Rows of tokens, and the right token at each place."""

    tokens: Int[Array, "B T"]
    targets: Int[Array, "B T"]
    is_scored: Bool[Array, "B T"]


# Returns the logits of each place, given tokens.
Network = Callable[[Array], Array]
# Changes the tokens that a network reads.
Inputs = Callable[[Network, Batch], Batch]
# Computes what else is kept of a test, given the parameters of the network.
Examine = Callable[[PyTree], PyTree]


def true_inputs(network: Network, batch: Batch) -> Batch:
    """Returns rows as they are: teacher forcing."""
    return batch


def nothing_else(params: PyTree) -> PyTree:
    """Returns an empty tree: losses and accuracy are enough."""
    return ()


class Task(Protocol):
    """A source of rows to learn, and of rows to test on."""

    def train_rows(self, key: Array, rows: int) -> Batch:
        """Returns random rows to train on."""
        ...

    def test_rows(self) -> Batch:
        """Returns rows to test on, the same for all networks and seeds."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """A network, its task, and how it is trained.

    Attributes:
      network: Returns the logits of each place, given tokens.
      task: Draws the rows.
      steps: Number of steps of Adam; its rate falls linearly to 0 in the last step.
      rows: Rows in each step.
      learning_rate: The highest rate.
      warmup: Number of steps in which the rate rises linearly from 0.
      label_smoothing: Probability that is spread over all tokens in training.
      train_inputs: Changes the tokens that are read in training, given the network of that step.
      test_inputs: The same for tests.
      examine: Computes what else is kept of each test, given the parameters of the network.
      tests: Number of times that the network is tested, the last time after training.
    """

    network: nn.Module
    task: Task
    steps: int
    rows: int = 16
    learning_rate: float = 2e-3
    warmup: int = 0
    label_smoothing: float = 0.0
    train_inputs: Inputs = true_inputs
    test_inputs: Inputs = true_inputs
    examine: Examine = nothing_else
    tests: int = 1

    def describe(self) -> str:
        """Returns the training in words."""
        warmup = f", after {self.warmup} steps of warm-up" if self.warmup else ""
        return (
            f"{self.steps} steps of {self.rows} rows, Adam with a learning rate of at most "
            f"{self.learning_rate:g}{warmup}"
        )

    def rate(self) -> optax.Schedule:
        rise = optax.linear_schedule(0.0, self.learning_rate, max(1, self.warmup))
        fall = optax.linear_schedule(self.learning_rate, 0.0, self.steps - self.warmup)
        return optax.join_schedules([rise, fall], [self.warmup])


class Course(NamedTuple):
    """A training run, at each of its tests.

    Attributes:
      train_loss: Mean cross-entropy of the steps since the test before, in nats a token, with the
        label smoothing if there is any.
      test_loss: Cross-entropy of new rows, in nats a token, without label smoothing.
      right: Fraction of tokens in new rows that are the most probable ones.
      examined: Results of the setting's ``examine``, with the axes of the others in front.
    """

    train_loss: Float[Any, "seeds tests"]
    test_loss: Float[Any, "seeds tests"]
    right: Float[Any, "seeds tests"]
    examined: PyTree = ()


class Measure(NamedTuple):
    """A column of figures.

    Attributes:
      title: Its name and unit.
      values: Returns the value of each seed.
      form: How a value is formatted.
    """

    title: str
    values: Callable[[Course], Float[np.ndarray, " seeds"]]
    form: str


RIGHT = Measure("right tokens, %", lambda course: 100 * course.right[:, -1], ".0f")
TEST_LOSS = Measure("loss on new text, nats", lambda course: course.test_loss[:, -1], ".3f")

# By line and place on the line.
Settings = Mapping[str, Mapping[Any, Setting]]
Figures = dict[str, dict[Any, Course]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """Settings that differ in one thing or two, and what is measured after training.

    Attributes:
      about: What all settings have in common, in sentences.
      x_label: Name of the places on a line, as in "layers".
      column: Head of the column of a place, as in "{} layers".
      settings: The settings by line and place.
      measures: A table and a panel each.
      seeds: Number of runs of each setting.
      log_x: As for :class:`~jaxformer.paper.claims.charts.Panel`.
    """

    about: str
    x_label: str
    column: str
    settings: Settings
    measures: Sequence[Measure]
    seeds: int = 3
    log_x: float | None = 2

    def measure(self) -> Figures:
        figures: Figures = {}
        for line, by_place in self.settings.items():
            figures[line] = {x: train(setting, self.seeds) for x, setting in by_place.items()}
        return figures

    def report(self, figures: Figures) -> str:
        tables = [self._table(figures, measure) for measure in self.measures]
        summary = f"Median of {self.seeds} seeds, with the lowest and the highest."
        return f"{self.about} {summary}\n\n" + "\n".join(tables)

    def _table(self, figures: Figures, measure: Measure) -> str:
        places = list(dict.fromkeys(x for by_place in figures.values() for x in by_place))
        rows = []
        for line, by_place in figures.items():
            cells = ["-"] * len(places)
            for x, course in by_place.items():
                cells[places.index(x)] = interval(measure.values(course), measure.form)
            rows.append([line, *cells])
        return markdown_table([measure.title, *map(self.column.format, places)], rows)

    def draw(self, figures: Figures, path: pathlib.Path) -> None:
        draw_panels([self._panel(figures, measure) for measure in self.measures], path)

    def _panel(self, figures: Figures, measure: Measure) -> Panel:
        lines: dict[str, dict[Any, float]] = {}
        ranges: dict[str, dict[Any, tuple[float, float]]] = {}
        for line, by_place in figures.items():
            lines[line] = {}
            ranges[line] = {}
            for x, course in by_place.items():
                values = measure.values(course)
                lines[line][x] = float(np.median(values))
                ranges[line][x] = (float(values.min()), float(values.max()))

        title = measure.title[0].upper() + measure.title[1:]
        return Panel(title, self.x_label, lines, ranges, log_x=self.log_x)

    def as_claim(self, name: str, place: int, says: str) -> Claim:
        return Claim(
            name=name,
            place=place,
            says=says,
            measure=self.measure,
            report=self.report,
            draw=self.draw,
        )


class Curves(Experiment):
    """Settings with several tests; the places are the numbers of steps before each of them."""

    def measure(self) -> Figures:
        figures: Figures = {}
        for line, by_place in self.settings.items():
            [setting] = by_place.values()
            course = train(setting, self.seeds)

            figures[line] = {}
            for test in range(1, setting.tests + 1):
                until_test = operator.itemgetter(np.s_[:, :test])
                steps = test * setting.steps // setting.tests
                figures[line][steps] = jax.tree.map(until_test, course)
        return figures


def interval(values: Float[np.ndarray, " seeds"], form: str) -> str:
    """Formats the median of values, with the lowest and the highest."""
    lowest, median, highest = np.quantile(values, [0.0, 0.5, 1.0])
    return f"{median:{form}} ({lowest:{form}} to {highest:{form}})"


def train(setting: Setting, seeds: int) -> Course:
    """Trains one network for each seed."""
    run = train_function(setting)
    runs = jax.jit(
        lambda seeds: jax.lax.map(run, seeds),
        # All optimizations would take longer than such a run (jax 0.12, CPU, 2026-11-29).
        compiler_options={"xla_backend_optimization_level": 1},
    )
    return jax.device_get(runs(jnp.arange(seeds)))


def train_function(setting: Setting) -> Callable[[Array], Course]:
    """Returns a function that trains with a seed."""
    optimizer = optax.adam(setting.rate(), b1=0.9, b2=0.98, eps=1e-9)  # as in section 5.3
    test_rows = setting.task.test_rows()

    def logits(params: PyTree, tokens: Array) -> Array:
        return jnp.asarray(setting.network.apply({"params": params}, tokens))

    def sums(params: PyTree, batch: Batch, smoothing: float) -> dict[str, Array]:
        found = logits(params, batch.tokens)
        return class_sums(
            found.reshape(-1, found.shape[-1]),
            batch.targets.reshape(-1),
            batch.is_scored.reshape(-1),
            smoothing,
        )

    def loss(params: PyTree, batch: Batch) -> Array:
        found = sums(params, batch, setting.label_smoothing)
        return found["loss"] / found["count"]

    def run(seed: Array) -> Course:
        of_params, of_data = jax.random.split(jax.random.key(seed))

        def step(state: tuple, number: Array) -> tuple[tuple, Array]:
            params, optimizer_state = state
            batch = setting.task.train_rows(jax.random.fold_in(of_data, number), setting.rows)
            batch = setting.train_inputs(functools.partial(logits, params), batch)
            value, gradient = jax.value_and_grad(loss)(params, batch)
            updates, optimizer_state = optimizer.update(gradient, optimizer_state)
            return (optax.apply_updates(params, updates), optimizer_state), value

        def steps_and_test(state: tuple, numbers: Array) -> tuple[tuple, Course]:
            state, losses = jax.lax.scan(step, state, numbers)
            params, _ = state
            batch = setting.test_inputs(functools.partial(logits, params), test_rows)
            found = sums(params, batch, smoothing=0.0)
            course = Course(
                train_loss=losses.mean(),
                test_loss=found["loss"] / found["count"],
                right=found["accuracy"] / found["count"],
                examined=setting.examine(params),
            )
            return state, course

        params = setting.network.init(of_params, test_rows.tokens[:1])["params"]
        numbers = jnp.arange(setting.steps).reshape(setting.tests, -1)
        _, course = jax.lax.scan(steps_and_test, (params, optimizer.init(params)), numbers)
        return course

    return run
