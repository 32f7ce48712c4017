"""The command ``replay``: repeats one training step and measures its examples."""

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

    found = experiment.replay(workdir, step)
    sums, count = found.sums, found.sums["count"]
    skipped = "; skipped, since its update was NaN or Inf" if sums["skipped"] else ""
    origin = f"the checkpoint of step {found.start}" if found.start else "the first parameters"
    print(f"step {step}, computed from {origin}")
    loss = sums["loss"] / count if count else float("nan")
    print(f"loss {loss:.6g}, gradient norm {sums['grad_norm']:.6g}, {count:g} tokens{skipped}")
    print(f"{'norm':>12} {'loss':>12} {'tokens':>6}  example")
    for each in found.contributions:
        print(f"{each.grad_norm:12.6g} {each.loss:12.6g} {each.count:6g}  {each.text}")
