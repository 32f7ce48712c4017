"""Settings of searches: every knob is declared, documented and checked here, and nowhere else.

Frozen and hashable, so they are static arguments of ``jax.jit``. They need no JAX, so that a config
can hold them and ``--help`` stays fast. The algorithms of :mod:`jaxformer.search.algorithm` are
these settings with their verbs.

Settings never change a log probability: what a search returns for a hypothesis is what the step
function gives for its tokens.
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
# (logits [B, N, V], SearchContext) -> logits [B, N, V], see jaxformer.search.constraints
Constraint: TypeAlias = Callable[[Any, Any], Any]

_MOST_HYPOTHESES = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """Settings that all searches share: what hypotheses may be, and how they are scored.

    Attributes:
      length_penalty: alpha of the length penalty, 0 to 10.
      penalty: What a log probability is divided by, of n tokens: "gnmt" ((5 + n) / 6)^alpha as in
        the paper, "power" n^alpha, "none" 1. See :mod:`jaxformer.search.penalties`.
      max_extra_length: Where there is a source, a hypothesis has at most the source's tokens plus
        this many. The caller's limits say so to the search.
      max_length: Most tokens of a hypothesis, EOS included; None: as many as the caller's limits
        allow.
      min_length: Fewest tokens before EOS. The limits win: a hypothesis with a lower limit is cut
        unfinished.
      no_repeat_ngram: No n tokens in a row come twice in a hypothesis; 0 allows it. A sentence in
        which this leaves nothing to say has no hypothesis.
      constraints: Callables that forbid tokens: see :mod:`jaxformer.search.constraints`. They come
        after ``min_length`` and ``no_repeat_ngram``. Not part of a config file.
      bos_id: Token that starts every hypothesis; not part of the result. The defaults of the
        three ids are the ids in jaxformer's vocabularies.
      eos_id: Token that ends a hypothesis.
      pad_id: Fills results after EOS; also fed to the step function for finished sentences.
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
        """Refuses settings that no search could obey.

        Raises:
          UserError: A value is out of range; the message begins with its name.
        """
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class BeamSettings(SearchSettings):
    """Settings of beam search. The defaults are the search of the paper (section 6.1).

    Attributes:
      beam_size: Hypotheses kept per sentence, N, at most 1000; greedy search if 1.
      diversity_groups: Groups of a diverse beam search (Vijayakumar et al. 2016) that share the
        beam; 1 is plain beam search. Groups may find the same hypothesis; each then counts.
      diversity_penalty: Log probability that a token costs, in the choice only, for each hypothesis
        of an earlier group that takes it at the same step.
      ends_within: Candidates among the 2N best that may end: all ("2N", the paper's, of
        tensor2tensor), or only the first N ("N", Hugging Face's).
      unfinished: Use of hypotheses that reach the limit without EOS. "fallback": they are the
        result of a sentence in which none has finished, else nothing. "compete": they count as
        finished (Hugging Face's).
      early_stop: When a sentence stops before its limit. "proven": when no hypothesis to come could
        displace one that is kept; never changes the result. "likely": when none would at its
        present length (Hugging Face's ``early_stopping=False``). "full": when N have finished (its
        ``True``). "never".
    """

    beam_size: int = 4
    diversity_groups: int = 1
    diversity_penalty: float = 0.0
    ends_within: EndsWithin = "2N"
    unfinished: Unfinished = "fallback"
    early_stop: EarlyStop = "proven"

    def __post_init__(self) -> None:
        """Refuses settings that no beam search could obey.

        Raises:
          UserError: A value is out of range, or two contradict each other; the message names them.
        """
        _check_whole(self, "beam_size", "diversity_groups", least=1)
        _check_most(self, "beam_size")
        super().__post_init__()
        _check_choice(self, "ends_within", EndsWithin)
        _check_choice(self, "unfinished", Unfinished)
        _check_choice(self, "early_stop", EarlyStop)
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
        """Hypotheses per sentence, N."""
        return self.beam_size


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingSettings(SearchSettings):
    """Settings of sampling. The defaults draw from the distribution as it is.

    Attributes:
      num_samples: Samples per sentence, N, at most 1000.
      temperature: Divides the logits; above 0.
      top_k: Only this many most probable tokens may be drawn; 0: all. Among equally probable ones
        those with the smallest ids.
      top_p: Only the fewest most probable tokens that together have at least this probability may
        be drawn; 1: all. Counted after temperature and top_k, as Hugging Face does.
      seed: Of the random keys, unless keys are given; 0 to 2^31 - 1.
    """

    num_samples: int = 4
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuses settings that no sampling could obey.

        Raises:
          UserError: A value is out of range; the message names it.
        """
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
        """Hypotheses per sentence, N."""
        return self.num_samples


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
        object.__setattr__(settings, name, int(value))  # JSON does not take NumPy's numbers


def _check_most(settings: SearchSettings, name: str) -> None:
    if getattr(settings, name) > _MOST_HYPOTHESES:
        raise UserError(f"{name} must be at most {_MOST_HYPOTHESES}: got {getattr(settings, name)}")


def _check_number(settings: SearchSettings, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise UserError(f"{name} must be a number: got {value!r}")
        object.__setattr__(settings, name, float(value))
