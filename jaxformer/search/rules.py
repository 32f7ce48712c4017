"""What a search is told once: frozen and hashable, so a static argument of ``jax.jit``.

Rules forbid hypotheses and choose among them. They never change a log probability: what a search
returns for a hypothesis is what the step function gives for its tokens.
"""

import dataclasses
import math
import numbers
import typing
from typing import Any, Literal

from jaxformer.errors import UserError
from jaxformer.search.penalties import Penalty


@dataclasses.dataclass(frozen=True, kw_only=True)
class HypothesisRules:
    """What hypotheses may be, however they are found, and how they are scored.

    Attributes:
      bos_id: Token that starts every hypothesis; not part of the result.
      eos_id: Token that ends a hypothesis.
      pad_id: Fills results after EOS; also fed to the step function for sentences that are over.
      length_penalty: alpha of the penalty, 0 or more.
      penalty: Which of :mod:`jaxformer.search.penalties`.
      min_length: Tokens before EOS may come, EOS not counted. Limits go first: a hypothesis with
        a lower limit is cut unfinished.
      no_repeat_ngram: No n tokens in a row come twice in a hypothesis; 0 allows it. A sentence in
        which this leaves nothing to say has no hypothesis.
    """

    bos_id: int
    eos_id: int
    pad_id: int
    length_penalty: float
    penalty: Penalty = "gnmt"
    min_length: int = 0
    no_repeat_ngram: int = 0

    def __post_init__(self) -> None:
        """Refuses what no search could obey.

        Raises:
          UserError: A value is out of range; the message names it.
        """
        _check_choice("penalty", self.penalty, Penalty)
        _check_whole(self, "eos_id", "min_length", "no_repeat_ngram")
        _check_not_negative(self, "length_penalty", "min_length", "no_repeat_ngram")


EndsWithin = Literal["2N", "N"]
Unfinished = Literal["fallback", "compete"]
EarlyStop = Literal["proven", "likely", "full", "never"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules(HypothesisRules):
    """Rules of a beam search. The defaults are the search of the paper.

    Attributes:
      beam_size: Hypotheses kept per sentence, N; greedy search if 1.
      diversity_groups: Groups of a diverse beam search (Vijayakumar et al. 2016) that N is shared
        out to; 1 is plain beam search. Groups may find the same hypothesis; each then counts.
      diversity_penalty: Log probability that a token costs, in the choice only, for each
        hypothesis of an earlier group that goes on with it at the same step.
      ends_within: Of the 2N best continuations, which may end: any ("2N", the paper's, of
        tensor2tensor), or only the first N ("N", Hugging Face's).
      unfinished: What becomes of hypotheses that reach the limit without EOS. "fallback": they are
        the result of a sentence in which none has finished, else nothing. "compete": they count as
        finished (Hugging Face's).
      early_stop: When a sentence is over before its limit. "proven": when no hypothesis to come
        could displace one that is kept; never changes the result. "likely": when none would at its
        present length (Hugging Face's ``early_stopping=False``). "full": when N have finished
        (its ``True``). "never".
    """

    beam_size: int
    diversity_groups: int = 1
    diversity_penalty: float = 0.0
    ends_within: EndsWithin = "2N"
    unfinished: Unfinished = "fallback"
    early_stop: EarlyStop = "proven"

    def __post_init__(self) -> None:
        """Refuses what no search could obey.

        Raises:
          UserError: A value is out of range, or two do not go together; the message names them.
        """
        super().__post_init__()
        _check_whole(self, "beam_size", "diversity_groups")
        _check_positive(self, "beam_size", "diversity_groups")
        _check_not_negative(self, "diversity_penalty")
        _check_choice("ends_within", self.ends_within, EndsWithin)
        _check_choice("unfinished", self.unfinished, Unfinished)
        _check_choice("early_stop", self.early_stop, EarlyStop)
        if self.beam_size % self.diversity_groups:
            raise UserError(
                f"diversity_groups must divide beam_size: got {self.diversity_groups} and "
                f"{self.beam_size}"
            )
        if self.diversity_penalty and self.diversity_groups == 1:
            raise UserError(
                "diversity_penalty needs diversity_groups of 2 or more: got "
                f"{self.diversity_penalty} and 1"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingRules(HypothesisRules):
    """Rules of sampling. The defaults draw from the distribution as it is.

    Attributes:
      num_samples: Samples per sentence, N.
      temperature: Divides the logits; above 0.
      top_k: Only this many most probable tokens may be drawn; 0: all. Of equally probable ones
        those with the smallest ids.
      top_p: Only the fewest most probable tokens that together have at least this probability may
        be drawn; 1: all. Counted after temperature and top_k, as Hugging Face does.
    """

    num_samples: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        """Refuses what no sampling could obey.

        Raises:
          UserError: A value is out of range; the message names it.
        """
        super().__post_init__()
        _check_whole(self, "num_samples", "top_k")
        _check_positive(self, "num_samples")
        _check_not_negative(self, "top_k")
        if not 0 < self.temperature < math.inf:
            raise UserError(
                f"temperature must be above 0: got {self.temperature}; for the most probable "
                "tokens use beam search with beam_size 1"
            )
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p must be above 0 and at most 1: got {self.top_p}")


def _check_choice(name: str, value: Any, choices: Any) -> None:
    allowed = typing.get_args(choices)
    if value not in allowed:
        raise UserError(f"{name} must be one of {', '.join(allowed)}: got {value}")


def _check_whole(rules: HypothesisRules, *names: str) -> None:
    for name in names:
        if not isinstance(value := getattr(rules, name), numbers.Integral):
            raise UserError(f"{name} must be a whole number: got {value!r}")


def _check_positive(rules: HypothesisRules, *names: str) -> None:
    for name in names:
        if getattr(rules, name) < 1:
            raise UserError(f"{name} must be at least 1: got {getattr(rules, name)}")


def _check_not_negative(rules: HypothesisRules, *names: str) -> None:
    for name in names:
        if not 0 <= getattr(rules, name) < math.inf:
            raise UserError(f"{name} must be 0 or more: got {getattr(rules, name)}")
