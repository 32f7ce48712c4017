"""The command ``distill``: trains a student on translations of its teacher."""

import dataclasses
from collections.abc import Sequence

from jaxformer.cli.command import Command
from jaxformer.cli.options import InputFile, ModelDir, ModelOptions, RunDir, SearchOptions


def distill(
    *,
    teacher: ModelDir,
    student: str,
    workdir: RunDir,
    monolingual: InputFile | None = None,
    attention: bool = False,
    max_ratio: float = 3.0,
    min_log_prob: float = -1.0,
    model: ModelOptions,
    search: SearchOptions,
    overrides: Sequence[str] = (),
) -> None:
    """Train a student on a teacher's translations of its training text, and quantize it.

    Options:
      teacher: run directory of the teacher
      student (CONFIG): config of the student, NAME or FILE.py, as for jaxformer train;
        --config.FIELD=VALUE overrides its fields
      workdir: run directory of the student, with its text; DIR/quantized is the student in int8
      monolingual: more source text, without references, one sentence per line
      attention: also learn the attention maps of --teacher, which must have the student's number of
        heads, and as many layers or more; the weight is --config.training.attention_weight
      max_ratio: most tokens of one side of a pair for each token of the other (default: 3)
      min_log_prob: least log probability of a translation per token (default: -1)

    Example:
      jaxformer distill --teacher runs/teacher --student student:numerals --workdir runs/student

      The same command resumes. Of the hypotheses for a sentence, the student learns the one most
      similar to the reference, by chrF. It has the teacher's tokenizer, or the one in its config.
    """
    from jaxformer.runs.allocator import keep_freed_memory

    keep_freed_memory(training=True)  # before JAX starts its threads

    from jaxformer import distillation
    from jaxformer.cli.config_file import load_config
    from jaxformer.runs.workdir import Workdir

    config = load_config(student, overrides, workdir, tokenizer=str(teacher))
    if attention:
        training = dataclasses.replace(config.training, teacher=str(teacher))
        config = dataclasses.replace(config, training=training)
    run = Workdir(workdir)
    translator = model.load(teacher, search.settings(teacher))

    try:
        distillation.distill(
            config,
            translator,
            run,
            monolingual=monolingual,
            max_ratio=max_ratio,
            min_log_prob=min_log_prob,
        )
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(str(stop) or "interrupted; the same command resumes") from None
    print(f"{workdir}: the student; {workdir / 'quantized'}: the student in int8")


COMMAND = Command("distill", distill, place=20)
