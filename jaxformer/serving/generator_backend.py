"""Completions of a language model: texts of several requests in one batch, in pieces."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxformer.data.tokenizer import EOS, PAD
from jaxformer.inference.generator import Generator
from jaxformer.inference.windows import BATCH_SIZES, Prompt
from jaxformer.search import Sampling

_WARM_UP_TOKENS = 16


class Text(NamedTuple):
    """A completion of a prompt."""

    text: str
    reason: str  # that it ended: "stop" or "length"
    num_tokens: int


@dataclasses.dataclass(eq=False)
class Completion:
    """A text to generate; the texts of a batch with equal settings are generated together.

    Attributes:
      prompt: Token ids, and the numbers of the random key.
      search: How tokens are chosen.
      max_tokens: Most tokens of the text.
      stops: Strings before which the text ends.
      show: Is called with each piece of the text.
      is_wanted: False as soon as nobody waits for the text.
    """

    prompt: Prompt
    search: Sampling
    max_tokens: int
    stops: Sequence[str] = ()
    show: Callable[[str], object] = lambda piece: None
    is_wanted: bool = True


class GeneratorBackend:
    """Generates the texts of a batch with a :class:`Generator`."""

    def __init__(self, generator: Generator) -> None:
        self.generator = generator

    def warm_up(self, max_batch: int, report: Callable[[str], object]) -> None:
        """Compiles the programs of batches up to this size, for short prompts and few tokens."""
        search = self.generator.config.search
        assert isinstance(search, Sampling)
        for size in BATCH_SIZES:
            report(f"completions, {size} at a time")
            # Prompts of two lengths, whose program pads them.
            prompts = [Prompt([EOS] * (1 + number % 2), number) for number in range(size)]
            for _ in self.generator.stream_ids(prompts, max_tokens=_WARM_UP_TOKENS, search=search):
                pass
            if size >= max_batch:
                return

    def complete(self, completions: list[Completion]) -> list[Text]:
        """Returns the texts of completions."""
        groups: dict[tuple[Sampling, int], list[int]] = {}
        for number, completion in enumerate(completions):
            settings = (completion.search, completion.max_tokens)
            groups.setdefault(settings, []).append(number)

        texts: dict[int, Text] = {}
        for (search, max_tokens), numbers in groups.items():
            group = [completions[number] for number in numbers]
            texts |= zip(numbers, self._generate(group, search, max_tokens), strict=True)
        return [texts[number] for number in range(len(completions))]

    def _generate(
        self,
        completions: Sequence[Completion],
        search: Sampling,
        max_tokens: int,
    ) -> list[Text]:
        """Generates until all texts have ended, or nobody waits for them."""
        writers = [_Writer(self.generator, each) for each in completions]
        found = self.generator.stream_ids(
            [each.prompt for each in completions],
            max_tokens=max_tokens,
            search=search,
        )
        for number, ids in found:
            writers[number].update(ids)
            if all(writer.is_done for writer in writers):
                break
        return [writer.finish() for writer in writers]


class _Writer:
    """Turns the tokens of a completion so far into text, shows it in pieces, and ends it."""

    def __init__(self, generator: Generator, completion: Completion) -> None:
        self._tokenizer = generator.tokenizer
        self._ends = {EOS, PAD, *generator.tokenizer.other_ends}
        self._completion = completion
        self._ids: list[int] = []
        self._stopped: str | None = None  # the text before a stop string
        self._shown = 0  # characters

    @property
    def is_done(self) -> bool:
        """True if no further token changes the text, or nobody waits for it."""
        return self._has_ended or self._stopped is not None or not self._completion.is_wanted

    @property
    def _has_ended(self) -> bool:
        return bool(self._ids) and self._ids[-1] in self._ends

    def update(self, ids: list[int]) -> None:
        """Takes all tokens so far."""
        if self.is_done:
            return
        self._ids = ids
        prompt = self._completion.prompt.tokens
        text = self._tokenizer.decode_settled(prompt, ids)
        self._stopped = _before_stop(text, self._completion.stops)
        if self._stopped is None:
            # The end may be the beginning of a stop string.
            self._show(text[: len(text) - _held_back(text, self._completion.stops)])

    def finish(self) -> Text:
        """Shows the rest, and returns the whole text."""
        if self._stopped is None:
            text = self._tokenizer.decode_after(self._completion.prompt.tokens, self._ids)
            self._stopped = _before_stop(text, self._completion.stops)
        text = text if self._stopped is None else self._stopped
        self._show(text)

        num_tokens = sum(each != PAD for each in self._ids)
        ended = self._stopped is not None or self._has_ended
        return Text(text, "stop" if ended else "length", num_tokens)

    def _show(self, text: str) -> None:
        if len(text) > self._shown:
            self._completion.show(text[self._shown :])
            self._shown = len(text)


def _before_stop(text: str, stops: Sequence[str]) -> str | None:
    """Returns the text before the first stop string; None if there is none.

    >>> _before_stop("one, two.", [".", ","]), _before_stop("one", [","])
    ('one', None)
    """
    found = [text.find(stop) for stop in stops if stop in text]
    return text[: min(found)] if found else None


def _held_back(text: str, stops: Sequence[str]) -> int:
    """Returns the length of the longest end of a text that a stop string begins with.

    >>> _held_back("one <", ["<end>"]), _held_back("one", ["<end>"])
    (1, 0)
    """
    longest = 0
    for stop in stops:
        for length in range(1, len(stop)):
            if text.endswith(stop[:length]):
                longest = max(longest, length)
    return longest
