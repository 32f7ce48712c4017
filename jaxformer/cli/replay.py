"""The command ``replay``: takes one step of training again, and measures its examples."""

import argparse

from jaxformer import experiment


def replay(options: argparse.Namespace) -> None:
    """Prints the loss and the gradient norm of a step and of each of its examples.

    Raises:
      UserError: There is no such run or step, its data differs, or its checkpoint is damaged.
    """
    found = experiment.replay(options.workdir, options.step)
    sums, count = found.sums, found.sums["count"]
    skipped = "; skipped, since its update was NaN or Inf" if sums["skipped"] else ""
    origin = f"the checkpoint of step {found.start}" if found.start else "the first parameters"
    print(f"step {options.step}, computed from {origin}")
    loss = sums["loss"] / count if count else float("nan")
    print(f"loss {loss:.6g}, gradient norm {sums['grad_norm']:.6g}, {count:g} tokens{skipped}")
    print(f"{'norm':>12} {'loss':>12} {'tokens':>6}  example")
    for each in found.contributions:
        print(f"{each.grad_norm:12.6g} {each.loss:12.6g} {each.count:6g}  {each.text}")
