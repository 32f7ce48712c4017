"""Memory of a training step on each device, computed before anything runs."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jax.stages import Compiled

from jaxformer.config import Config
from jaxformer.experiment import make_optimizer
from jaxformer.kinds.model_parameters import make_init
from jaxformer.tasks.attention_distillation import Teacher, learn_attention
from jaxformer.tasks.token_task import task_class
from jaxformer.training.mesh import make_mesh
from jaxformer.training.placement import BatchShards
from jaxformer.training.step import make_train_step
from jaxformer.training.train_state import abstract_state


class StepMemory(NamedTuple):
    """Bytes on each device while a step runs."""

    state: int  # inputs of the step: parameters, optimizer state and batch
    total: int  # including gradients and the residuals of the backward pass


def step_memory(config: Config, devices: Sequence[Any] | None = None) -> StepMemory:
    """Returns XLA's estimate for the longest batch, without running the step."""
    program = compile_step(config, devices)
    return memory_of(program)


def memory_of(program: Compiled) -> StepMemory:
    """Returns XLA's estimate for a compiled step."""
    reserved = program.memory_analysis()
    assert reserved is not None

    inputs = reserved.argument_size_in_bytes
    # Outputs that replace an input, as parameters do, need no memory of their own.
    outputs = reserved.output_size_in_bytes - reserved.alias_size_in_bytes
    return StepMemory(
        state=inputs,
        total=inputs + reserved.temp_size_in_bytes + outputs,
    )


def compile_step(config: Config, devices: Sequence[Any] | None = None) -> Compiled:
    """Compiles the step for the longest batch."""
    mesh = make_mesh(config.mesh, devices)
    optimizer = make_optimizer(config)
    task = task_class(config)

    init = make_init(config.model, config.kind)
    state = abstract_state(init, optimizer, mesh)

    gradient_accumulation = config.training.gradient_accumulation
    shards = BatchShards.of(mesh, gradient_accumulation)
    batch = task.longest_batch(config, shards)

    loss = learn_attention(task.loss_class.of(config), config, Teacher.describe(config))
    step = make_train_step(
        loss,
        optimizer,
        mesh,
        gradient_accumulation=gradient_accumulation,
    )
    return step.lower(state, batch).compile()


def memory_savings(config: Config, devices: int) -> Iterator[dict[str, Any]]:
    """Yields settings that save memory, none first, and last the only one that changes results."""
    yield {}
    training = config.training
    settings: dict[str, Any] = {}

    mesh = config.mesh
    used = devices if -1 in (mesh.tensor, mesh.pipe) else mesh.tensor * mesh.pipe
    if devices > used and mesh.fsdp == 1:
        settings["mesh.data"] = -1
        settings["mesh.fsdp"] = devices // used
        yield dict(settings)

    for factor in (2, 4, 8):
        settings["training.gradient_accumulation"] = training.gradient_accumulation * factor
        yield dict(settings)

    # Other policies help only if they keep less than the config's.
    policies = ("none", "dots", "layer")
    for remat in policies[policies.index(training.remat) + 1 :]:
        settings["training.remat"] = remat
        yield dict(settings)

    if training.optimizer == "adam" and training.adam_dtype == "float32":
        yield settings | {"training.adam_dtype": "bfloat16"}


def with_settings(config: Config, settings: dict[str, Any]) -> Config:
    """Returns the config with some fields changed, such as "training.remat", to values."""
    for name, value in settings.items():
        section_name, field = name.split(".")
        section = getattr(config, section_name)
        changed = dataclasses.replace(section, **{field: value})
        config = dataclasses.replace(config, **{section_name: changed})
    return config
