"""The command ``replay``: repeats one training step and measures its examples."""

from jaxformer.cli.command import Command
from jaxformer.cli.options import ModelDir


def replay(*, workdir: ModelDir, step: int) -> None:
    """Repeat one training step, and print the loss and gradient norm of its examples.

    Options:
      step (STEP): step, from 1

    Example:
      jaxformer replay --workdir runs/multi30k --step 1234 | head

      A norm is the norm of the example's share of the gradient. Examples that cause NaN come first,
      then the largest norms. The steps since the newest checkpoint before STEP are recomputed;
      nothing is saved.
    """
    from jaxformer import experiment

    replayed = experiment.replay(workdir, step)

    origin = "the first parameters"
    if replayed.start:
        origin = f"the checkpoint of step {replayed.start}"
    print(f"step {step}, computed from {origin}")

    sums = replayed.sums
    count = sums["count"]
    norm = sums["grad_norm"]
    loss = float("nan")
    if count:
        loss = sums["loss"] / count

    note = ""
    if sums["skipped"]:
        note = "; skipped, since its update was NaN or Inf"
    print(f"loss {loss:.6g}, gradient norm {norm:.6g}, {count:g} tokens{note}")

    print(f"{'norm':>12} {'loss':>12} {'tokens':>6}  example")
    for each in replayed.contributions:
        print(f"{each.grad_norm:12.6g} {each.loss:12.6g} {each.count:6g}  {each.text}")


COMMAND = Command("replay", replay, place=130)
