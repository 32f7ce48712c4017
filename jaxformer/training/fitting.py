"""The training loop: :func:`fit` trains any task."""

import pathlib
from collections.abc import Sequence

import optax
from jax.sharding import Mesh

from jaxformer.files import run_path
from jaxformer.runs import watchdog
from jaxformer.runs.run_directory import Settings
from jaxformer.runs.workdir import Workdir
from jaxformer.runs.writers import Writer
from jaxformer.training.hooks import Hook
from jaxformer.training.mesh import make_mesh
from jaxformer.training.profiling import profiling
from jaxformer.training.run import Run
from jaxformer.training.settings import FitConfig
from jaxformer.training.state import StartFrom, TrainState
from jaxformer.training.task import Task, check_task


def fit(
    task: Task,
    optimizer: optax.GradientTransformation,
    workdir: str | pathlib.Path,
    settings: FitConfig | None = None,
    *,
    mesh: Mesh | None = None,
    config: Settings | None = None,
    learning_rate: optax.Schedule | None = None,
    start_from: StartFrom | None = None,
    hooks: Sequence[Hook] = (),
    writers: Sequence[Writer] = (),
) -> TrainState:
    """Trains a task in ``workdir``, or resumes the run that is there.

    Training resumes exactly: after any interruption, even kill -9, batches and random numbers
    continue as if nothing had happened. SIGTERM, SIGINT and SIGHUP save a checkpoint first.

    Args:
      task: Parameters, loss, batches and evaluation.
      optimizer: Any gradient transformation; some need :func:`~jaxformer.per_layer`. A resumed run
        must be given the same one.
      workdir: Run directory: checkpoints, metrics, identity.
      settings: Length of the training, and intervals of reports, validations and checkpoints.
      mesh: Devices, from :func:`~jaxformer.training.mesh.make_mesh`. None puts all of them along
        "data".
      config: Your own config that contains the settings: any object with ``to_dict`` and
        ``from_dict``. It is saved, and a resumed run must match it. When None, a resumed run must
        match the seed of the settings.
      learning_rate: Schedule of the optimizer, used only in reports.
      start_from: Returns the parameters that a new run starts from, given the ones that
        ``task.init`` has created; with ``lambda fresh: params``, the run continues from ``params``.
        A resumed run does not call it.
      hooks: Called after each step, once it is reported and saved, with the step number, the state
        and the sums of the step. The next step donates the state: copy what you keep. An exception
        ends the run. The run can be resumed from the newest checkpoint, and then repeats the later
        steps and their hooks.
      writers: Receive all training and validation reports, in addition to the terminal,
        ``metrics.jsonl`` and TensorBoard. A writer that raises is dropped with a message in the
        log.

    Returns:
      The final state.

    Raises:
      UserError: The workdir belongs to another experiment, another process trains in it, its
        checkpoints are missing, or the task is invalid.
      FloatingPointError: Updates were not finite for many steps in a row, or the parameters are
        not finite.
      KeyboardInterrupt: The run was asked to stop. If it has taken steps, their state is saved.
    """
    check_task(task)
    folder, settings = Workdir(run_path(workdir)), settings or FitConfig()
    mesh = make_mesh() if mesh is None else mesh
    with Run.open(
        *(task, optimizer, folder, settings, mesh, config),
        learning_rate=learning_rate,
        start_from=start_from,
        writers=writers,
    ) as (run, state):
        if run.is_done():
            return state
        step, stop = run.start, False
        with profiling(settings.profiled_steps, folder.profile, run.reporter.log) as profile:
            for batch in run.batches():
                train_step = run.compiled(state, batch)
                if step == 0:
                    run.check_independence(state, batch)
                watchdog.progress(f"step {step}")
                state, sums = train_step(state, batch)
                step += 1
                run.checkpoints.check()
                run.window.add(step, sums, task.flops(batch))
                run.reporter.advance(step)
                last = step == settings.steps
                stop = run.stop.asked() and not last
                if step % settings.log_every == 0 or last:
                    run.report(state)
                due = step % settings.checkpoint_every == 0 or last
                if due or stop:
                    run.save(step, state, interim=not due)
                if run.validation.is_due(step) and not stop:
                    with run.window.paused():
                        stop = not run.validation.run(step, state)
                for hook in (*hooks, profile):
                    hook(step, state, sums)
                if stop or run.validation.out_of_patience():
                    break
            run.end(step, state, stopped=stop)
    return state
