"""Settings of training: the loop of any task, and the paper's optimizer."""

import dataclasses
import re
from typing import Any, Literal

from jaxformer.addresses import fetcher_of
from jaxformer.errors import UserError
from jaxformer.fields import Facts, build_section, check_known, check_values, facts_of, setting
from jaxformer.files import local_path
from jaxformer.nn.rematerialization import Remat

DECAYING = ("linear", "cosine")  # schedules that end at 0, and so depend on the number of steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitConfig:
    """Settings of the training loop of any task.

    Attributes:
      steps: Optimizer steps of the whole run.
      gradient_accumulation: Micro-batches per step. They change the result only by floating-point
        rounding.
      seed: Seed of the parameters, dropout and the order of the data; 0 to 2^31 - 1.
      log_every: Steps between two progress reports.
      eval_every: Steps between two validations; a multiple of checkpoint_every.
      eval_on_start: Whether a new run is also validated before its first step. Its last validation
        is then compared with the first one.
      checkpoint_every: Steps between two checkpoints.
      keep_checkpoints: Number of newest checkpoints to keep, for averaging. The best one is also
        kept.
      best_metric: Name of the validation metric that selects the best checkpoint, such as "bleu" or
        "loss"; by default the task's. Metrics of your own need a direction: "reward:max",
        "error:min".
      patience: Number of validations in a row without a better value after which the run ends; 0
        trains for all steps.
      stall_timeout: Seconds without progress after which a process counts as stuck. A run of
        several processes then ends, with the stacks of all threads; a single process only prints
        them. Progress is a step or a batch of a validation. Reading data, restoring a checkpoint
        and compiling the training step may take any time.
      mirror: Folder for a copy of the run, such as a mounted bucket or drive. Each checkpoint is
        copied there in the background. A run whose own checkpoints are gone resumes from it.
      profile: Steps to profile: "100:110" writes a trace of the steps 101 to 110 into the workdir.
      may_change: Names of fields, separated by commas, that a resumed run may change, such as
        "seed" or, in a config, "learning_rate,data.tokens_per_batch". The optimizer keeps its
        state, and the batches are as in a run that began with the new values.
    """

    steps: int = setting(100_000, "positive", may_change=True, is_usual=True)
    gradient_accumulation: int = setting(1, "positive", may_change=True)
    seed: int = setting(0, "own")
    log_every: int = setting(100, "positive", may_change=True)
    eval_every: int = setting(1500, "positive", may_change=True)
    eval_on_start: bool = setting(False, may_change=True)
    checkpoint_every: int = setting(1500, "positive", may_change=True)
    keep_checkpoints: int = setting(5, "positive", may_change=True)
    best_metric: str | None = None
    patience: int = setting(0, "not negative", may_change=True)
    stall_timeout: int = setting(600, "positive", may_change=True)
    mirror: str | None = setting(None, may_change=True)
    profile: str | None = setting(None, may_change=True)
    may_change: str = setting("", may_change=True)

    section = "fit"  # name of the section in the config, not a field

    def __post_init__(self) -> None:
        section = self.section
        check_values(self, section)
        if self.eval_every % self.checkpoint_every:
            raise UserError(
                f"{section}.eval_every must be a multiple of {section}.checkpoint_every, so that "
                f"what was validated is kept: got {self.eval_every} and {self.checkpoint_every}"
            )

        if self.mirror is not None:
            local_path(self.mirror)  # refuses URLs

        if self.profile is not None:
            self._check_profile()

        if not 0 <= self.seed < 2**31:
            raise UserError(f"{section}.seed must be from 0 to {2**31 - 1}: got {self.seed}")

    def _check_profile(self) -> None:
        # "100:110" profiles the steps 101 to 110, so step 2 is the first that can be profiled.
        steps = self.profiled_steps
        if steps and steps[0] > 1 and steps[-1] <= self.steps:
            return

        raise UserError(
            f"{self.section}.profile: expected two numbers from 1 to {self.steps}, the smaller "
            f"first, such as 100:110: got {self.profile!r}"
        )

    @property
    def profiled_steps(self) -> range:
        """The steps to profile; none if ``profile`` is None or malformed."""
        match = re.fullmatch(r"(\d{1,9}):(\d{1,9})", self.profile or "")
        if match is None:
            return range(0)

        before = int(match[1])
        last = int(match[2])
        return range(before + 1, last + 1)

    def facts(self) -> dict[str, Facts]:
        """Returns the facts about each field, by names such as "fit.steps"."""
        return {f"{self.section}.{name}": facts for name, facts in facts_of(self).items()}

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Returns the fields as one section."""
        return {self.section: dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "FitConfig":
        """Builds and validates the settings; the inverse of :meth:`to_dict`.

        Raises:
          UserError: A field is unknown, of the wrong type, or out of range.
        """
        check_known(values, [cls.section], "")
        section = values.get(cls.section, {})
        return build_section(cls, section, cls.section)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig(FitConfig):
    """Settings of the optimizer (sections 5.2 to 5.4), the loop and validation.

    Attributes:
      init_from: Workdir of a trained or imported model with the initial parameters of a new run, or
        its address, such as "hf://OWNER/NAME", or "pretrained" for the model that comes with
        jaxformer; see docs/fine_tuning.md. By default, parameters are random. A resumed run does
        not read it.
      freeze: Parameters that are not trained, comma-separated: components of their paths, such as
        "encoder,embedding", or several in a row, such as "decoder/layers/self_attention". Some
        layers of a stack are frozen by "encoder/layers[:6]", the first six. Frozen parameters have
        neither gradients nor optimizer state nor weight decay.
      lora: Rank of low-rank adapters (LoRA, Hu et al. 2021): each matrix W changes by a product of
        two thin ones, (lora_alpha / lora) A B. Only these factors and heads, such as a matrix of
        classes, are trained. By default, there are no adapters.
      lora_alpha: Factor of these products, divided by their rank.
      lora_matrices: Matrices with adapters, comma-separated, named as in freeze, such as
        "query,value". By default, all matrices have one.
      warmup_steps: Steps of linear warm-up in equation 3, and of all schedules.
      learning_rate: Learning rate at the end of warm-up; by default, equation 3 gives
        (d_model * warmup_steps)^-0.5.
      learning_rate_scale: Factor on the learning rate; 1 is the paper's.
      label_smoothing: Probability mass spread over the vocabulary, epsilon_ls.
      teacher: Workdir of a trained model whose attention maps are learned, for translation and
        classification; see docs/distillation.md. It has the tokenizer of the run, as many heads,
        and as many layers or more.
      attention_weight: Weight of the distance from the teacher's attention maps.
      consistency: Weight alpha of R-Drop (Liang et al. 2021), for translation: each batch passes
        twice with other dropout, and the distributions of both should be similar.
      clip_norm: Largest global gradient norm; None, as in the paper, turns clipping off.
      remat: Rematerialization policy. "none" keeps all activations; "dots" recomputes all but the
        matmuls with parameters; "layer" recomputes all but the inputs of layers. Recomputing is
        slower and saves memory. It changes the result only by floating-point rounding.
      optimizer: "adam" as in section 5.3, or "muon": Muon for the matrices of the layers, with
        updates of Adam's usual size, and Adam for all other parameters.
      schedule: Learning rate after warm-up: "inverse_sqrt" as in equation 3, "constant", or
        "linear" or "cosine", to 0 after the last step.
      weight_decay: Decoupled weight decay of the matrices of the layers, times the learning rate.
        With Adam, this is AdamW.
      adam_dtype: Dtype of Adam's two moments; "bfloat16" rounds them and halves their memory.
      ema_decay: Factor, such as 0.999, by which the weight of parameters in an exponential average
        falls at each step. The average is validated, and it is what commands read. By default,
        there is no average.
      eval_sentences: Number of validation sentences to translate for BLEU, or to parse for F1; 0
        turns this off.
    """

    init_from: str | None = setting(None, may_move=True)
    freeze: str | None = None
    lora: int | None = setting(None, "positive")
    lora_alpha: float = setting(16.0, "positive")
    lora_matrices: str | None = None
    warmup_steps: int = setting(4000, "positive", is_usual=True)
    learning_rate: float | None = setting(None, "positive")
    learning_rate_scale: float = setting(1.0, "positive", is_usual=True)
    label_smoothing: float = setting(0.1, "fraction")
    teacher: str | None = setting(None, may_move=True)
    attention_weight: float = setting(1.0, "positive")
    consistency: float = setting(0.0, "not negative")
    clip_norm: float | None = setting(None, "positive")
    remat: Remat = setting("none", may_change=True)
    optimizer: Literal["adam", "muon"] = "adam"
    schedule: Literal["inverse_sqrt", "constant", "linear", "cosine"] = "inverse_sqrt"
    weight_decay: float = setting(0.0, "not negative")
    adam_dtype: Literal["float32", "bfloat16"] = "float32"
    ema_decay: float | None = setting(None, "positive fraction")
    eval_sentences: int = setting(500, "not negative", may_change=True)

    section = "training"

    def __post_init__(self) -> None:
        # Configs that 0.2.0 saved may have "adamw", which needed a weight decay there.
        if self.optimizer == "adamw" and self.weight_decay:
            object.__setattr__(self, "optimizer", "adam")

        super().__post_init__()
        for model in (self.init_from, self.teacher):
            if model is not None and not fetcher_of(model):
                local_path(model)  # refuses other URLs

        # Combinations of fields.
        is_weighted = self.attention_weight != TrainingConfig.attention_weight
        if self.teacher is None and is_weighted:
            raise UserError(
                f"training.attention_weight={self.attention_weight} needs training.teacher, the "
                "model whose attention maps are learned"
            )
        if self.teacher is not None and self.consistency:
            raise UserError(
                "training.consistency has two passes over a batch, and training.teacher one: got "
                f"{self.consistency} and {self.teacher}; leave one of them out"
            )
        if self.schedule in DECAYING and self.warmup_steps >= self.steps:
            raise UserError(
                "training.warmup_steps must be less than training.steps with "
                f"training.schedule={self.schedule}: got {self.warmup_steps} and {self.steps}"
            )
        if self.optimizer != "adam" and self.adam_dtype != "float32":
            raise UserError(
                f"training.adam_dtype=bfloat16 needs training.optimizer=adam: got {self.optimizer}"
            )
        self._check_lora()

    def _check_lora(self) -> None:
        if self.lora is None:
            for name in ("lora_matrices", "lora_alpha"):
                if getattr(self, name) != getattr(TrainingConfig, name):
                    raise UserError(
                        f"training.{name} needs low-rank adapters: give their rank, such as "
                        "--config.training.lora=8"
                    )
        if self.lora is not None and self.freeze is not None:
            raise UserError(
                f"training.freeze={self.freeze} needs training.lora to be left out, with which all "
                "but adapters and heads are frozen; choose adapters with training.lora_matrices"
            )


def facts_by_name(config: Any) -> dict[str, Facts]:
    """Returns the facts about the fields of a config, by names such as "fit.steps".

    A user's own config may have no ``facts``. It then gets the facts of both sections above.
    """
    if hasattr(config, "facts"):
        return config.facts()
    return FitConfig().facts() | TrainingConfig().facts()
