"""Settings of search algorithms: the only place that declares, documents and checks them.

Settings are frozen and hashable, so they can be static arguments of ``jax.jit``. They do not import
JAX, so a config can hold them and ``--help`` stays fast. The algorithms of
:mod:`jaxformer.search.algorithm` add methods to these settings.

Settings never change a log probability: the log probability of a returned hypothesis is always the
step function's.
"""

import dataclasses
import math
import numbers
import typing
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from jaxformer.errors import UserError

Penalty: TypeAlias = Literal["gnmt", "power", "none"]
EndsWithin: TypeAlias = Literal["2N", "N"]
Unfinished: TypeAlias = Literal["fallback", "compete"]
EarlyStop: TypeAlias = Literal["proven", "likely", "full", "never"]
# (logits [B, N, V], SearchContext) -> logits [B, N, V]; see jaxformer.search.constraints.
Constraint: TypeAlias = Callable[[Any, Any], Any]

_MOST_HYPOTHESES = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """Settings of all searches: constraints on hypotheses, and scores.

    Attributes:
      length_penalty: alpha of the length penalty, 0 to 10.
      penalty: Divisor of the log probability of n tokens: "gnmt" ((5 + n) / 6)^alpha as in the
        paper, "power" n^alpha, "none" 1. See :mod:`jaxformer.search.penalties`.
      max_extra_length: With a source sentence, a hypothesis has at most this many tokens more than
        the source, or ``min_length`` + 1 more if that is larger. Callers pass this to the search
        as ``max_lengths``.
      max_length: Maximum number of tokens of a hypothesis, EOS included; None for the caller's
        ``max_lengths`` only.
      min_length: Minimum number of tokens before EOS. Limits take precedence: a hypothesis with a
        lower limit is cut off unfinished.
      no_repeat_ngram: Forbids hypotheses to repeat an n-gram of this size; 0 allows it. A sentence
        for which this forbids every continuation has no hypothesis.
      constraints: Callables that forbid tokens: see :mod:`jaxformer.search.constraints`. They apply
        after ``min_length`` and ``no_repeat_ngram``. Not part of a config file.
      bos_id: Token that starts every hypothesis; not part of the result. The defaults of the three
        ids are the ids in jaxformer's vocabularies.
      eos_id: Token that ends a hypothesis.
      pad_id: Padding of results after EOS; also the step function's input for finished sentences.

    Raises:
      UserError: A value is out of range; the message begins with its name.
    """

    length_penalty: float = 0.6
    penalty: Penalty = "gnmt"
    max_extra_length: int = 50
    max_length: int | None = None
    min_length: int = 0
    no_repeat_ngram: int = 0
    constraints: tuple[Constraint, ...] = ()
    bos_id: int = 2
    eos_id: int = 1
    pad_id: int = 0

    def __post_init__(self) -> None:
        _check_choice(self, "penalty", Penalty)
        _check_whole(self, "bos_id", "eos_id", "pad_id")
        _check_number(self, "length_penalty")
        if not 0 <= self.length_penalty <= 10:
            raise UserError(f"length_penalty must be 0 to 10: got {self.length_penalty}")
        _check_whole(self, "max_extra_length", least=1)
        _check_whole(self, "min_length", "no_repeat_ngram", least=0)
        if self.max_length is not None:
            _check_whole(self, "max_length")
            if self.max_length <= self.min_length:
                raise UserError(
                    "max_length must exceed min_length, since end-of-sentence counts: got "
                    f"{self.max_length} and {self.min_length}"
                )
        several = isinstance(self.constraints, tuple | list)
        if not several or not all(map(callable, self.constraints)):
            raise UserError(
                "constraints must be a tuple of callables, (logits, context) -> logits: got "
                f"{self.constraints!r}"
            )
        object.__setattr__(self, "constraints", tuple(self.constraints))

    @property
    def extra_length(self) -> int:
        """Maximum number of tokens more than the source, at least ``min_length`` + 1."""
        return max(self.max_extra_length, self.min_length + 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BeamSettings(SearchSettings):
    """Settings of beam search. The defaults are the search of the paper (section 6.1).

    Attributes:
      beam_size: Number of hypotheses per sentence, N, at most 1000; 1 is greedy search.
      diversity_groups: Number of groups that share the beam in diverse beam search (Vijayakumar et
        al. 2016); 1 is plain beam search. Groups may find the same hypothesis, which then counts
        for each.
      diversity_penalty: Penalty on the log probability of a token, in the choice only, for each
        hypothesis of an earlier group that chooses it at the same step.
      ends_within: Candidates among the 2N best that may end: all ("2N", as in the paper's
        tensor2tensor), or only the first N ("N", as in Hugging Face).
      unfinished: Use of hypotheses that reach the limit without EOS. "fallback": they are the
        result only if no hypothesis of the sentence has finished. "compete": they count as finished
        (as in Hugging Face).
      early_stop: Rule for stopping a sentence before its limit. "proven": when no future hypothesis
        could displace a finished one; never changes the result. "likely": when none could at the
        current length (Hugging Face's ``early_stopping=False``). "full": when N have finished,
        however improbable (Hugging Face's ``early_stopping=True``); with ``ends_within="N"`` only.
        "never": at the limit only.

    Raises:
      UserError: A value is out of range, or two contradict each other; the message names them.
    """

    beam_size: int = 4
    diversity_groups: int = 1
    diversity_penalty: float = 0.0
    ends_within: EndsWithin = "2N"
    unfinished: Unfinished = "fallback"
    early_stop: EarlyStop = "proven"

    def __post_init__(self) -> None:
        _check_whole(self, "beam_size", "diversity_groups", least=1)
        _check_most(self, "beam_size")
        super().__post_init__()
        _check_choice(self, "ends_within", EndsWithin)
        _check_choice(self, "unfinished", Unfinished)
        _check_choice(self, "early_stop", EarlyStop)
        if self.early_stop == "full" and self.ends_within != "N":
            raise UserError("early_stop=full needs ends_within=N, or it stops too early: got 2N")
        _check_number(self, "diversity_penalty")
        if self.beam_size % self.diversity_groups:
            raise UserError(
                f"diversity_groups must divide beam_size: got {self.diversity_groups} and "
                f"{self.beam_size}"
            )
        if not 0 <= self.diversity_penalty < math.inf:
            raise UserError(f"diversity_penalty must be 0 or more: got {self.diversity_penalty}")
        if self.diversity_penalty and self.diversity_groups == 1:
            raise UserError(
                "diversity_groups above 1 and diversity_penalty above 0 go together: got 1 and "
                f"{self.diversity_penalty}"
            )

    @property
    def num_hypotheses(self) -> int:
        """Number of hypotheses per sentence, N."""
        return self.beam_size


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingSettings(SearchSettings):
    """Settings of sampling. The defaults sample from the unmodified distribution.

    Attributes:
      num_samples: Number of samples per sentence, N, at most 1000.
      temperature: Divisor of the logits, greater than 0.
      top_k: Samples only from this many most probable tokens; 0 for all. Of equally probable
        tokens, those with smaller ids come first.
      top_p: Samples only from the smallest set of most probable tokens with at least this total
        probability; 1 for all. Applies after temperature and top_k, as in Hugging Face.
      seed: Seed of the random keys if no keys are given; 0 to 2^31 - 1.

    Raises:
      UserError: A value is out of range; the message names it.
    """

    num_samples: int = 4
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _check_whole(self, "num_samples", least=1)
        _check_most(self, "num_samples")
        super().__post_init__()
        _check_whole(self, "top_k", least=0)
        _check_number(self, "temperature", "top_p")
        if not 0 < self.temperature < math.inf:
            raise UserError(
                f"temperature must be greater than 0: got {self.temperature}; for the most "
                "probable tokens use beam search with beam_size 1"
            )
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p must be above 0 and at most 1: got {self.top_p}")
        _check_whole(self, "seed")
        if not 0 <= self.seed < 2**31:
            raise UserError(f"seed must be from 0 to {2**31 - 1}: got {self.seed}")

    @property
    def num_hypotheses(self) -> int:
        """Number of hypotheses per sentence, N."""
        return self.num_samples


def is_set(value: Any, neutral: float) -> bool:
    """Returns whether a number is not the neutral one; a traced number counts as set."""
    return not isinstance(value, int | float) or value != neutral


def _check_choice(settings: SearchSettings, name: str, choices: Any) -> None:
    allowed, value = typing.get_args(choices), getattr(settings, name)
    if value not in allowed:
        raise UserError(f"{name} must be one of {', '.join(allowed)}: got {value}")


def _check_whole(settings: SearchSettings, *names: str, least: int | None = None) -> None:
    for name in names:
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise UserError(f"{name} must be a whole number: got {value!r}")
        if least is not None and value < least:
            must = "be greater than 0" if least else "be 0 or more"
            raise UserError(f"{name} must {must}: got {value}")
        object.__setattr__(settings, name, int(value))  # JSON cannot hold NumPy's integers.


def _check_most(settings: SearchSettings, name: str) -> None:
    if getattr(settings, name) > _MOST_HYPOTHESES:
        raise UserError(f"{name} must be at most {_MOST_HYPOTHESES}: got {getattr(settings, name)}")


def _check_number(settings: SearchSettings, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise UserError(f"{name} must be a number: got {value!r}")
        object.__setattr__(settings, name, float(value))
