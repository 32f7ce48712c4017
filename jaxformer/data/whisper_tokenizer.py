"""The tokenizer of Whisper, with the prompts of its decoder and the tokens it may not write."""

import functools
import json
import operator
import re
from collections.abc import Iterable, Mapping
from typing import Any, SupportsIndex

import numpy as np
from jaxtyping import Bool, Int32

from jaxformer.data.huggingface_tokenizer import HuggingFaceTokenizer
from jaxformer.data.tokenizer import BOS, find_language
from jaxformer.errors import MALFORMED, UserError, prefix_errors

# Fields of generation_config.json that the tokenizer keeps, with ids in tokenizer.json.
GENERATION_FIELDS = (
    "alignment_heads",
    "begin_suppress_tokens",
    "forced_decoder_ids",
    "is_multilingual",
    "lang_to_id",
    "language",
    "max_initial_timestamp_index",
    "no_timestamps_token_id",
    "prev_sot_token_id",
    "suppress_tokens",
    "task",
    "task_to_id",
)
TASKS = ("transcribe", "translate")
# Times are multiples of 20 milliseconds.
STEPS_PER_SECOND = 50
_LATEST_FIRST_STEP = STEPS_PER_SECOND
_TIME = re.compile(r"<\|(\d+\.\d\d)\|>")


class WhisperTokenizer(HuggingFaceTokenizer):
    """Converts text to token ids and back, like the class of the same name in transformers.

    The serialized form is a HuggingFaceTokenizer's with ``generation``, the fields of
    generation_config.json that choose the tokens of a prompt and forbid others.

    A prompt is the beginning of a transcript, the token of a language, the token of a task, and the
    token for no timestamps; models of English have neither languages nor tasks.

    Attributes:
      spoken: Our id of the token of each language, by its code, such as "de"; empty in models of
        English.
      suppressed: Our ids of tokens that no output has.
      suppressed_first: Our ids of tokens that no output begins with.
      no_times: Our id of the token for no timestamps.
      latest_first_step: Number of 20 milliseconds of the latest time with which an output may
        begin; None for no limit.
    """

    form = "whisper"
    their_class = "WhisperTokenizer"

    def __init__(self, serialized: bytes) -> None:
        super().__init__(serialized)
        self.spoken: dict[str, int] = {}
        self._tasks: dict[str, int] = {}

        with prefix_errors("expected generation_config.json of a Whisper", *MALFORMED):
            values = json.loads(serialized)
            self.generation: dict[str, Any] = dict(values["generation"])
            self.suppressed = self._our_ids_of("suppress_tokens")
            self.suppressed_first = self._our_ids_of("begin_suppress_tokens")

            if self.generation.get("is_multilingual"):
                languages = dict(self.generation["lang_to_id"])
                for token, number in languages.items():
                    code = token.strip("<|>")
                    self.spoken[code] = self._our_id(number)

                tasks = self.generation["task_to_id"]
                for task in TASKS:
                    self._tasks[task] = self._our_id(tasks[task])

            self.no_times = self._our_id(self.generation["no_timestamps_token_id"])
            latest = self.generation.get("max_initial_timestamp_index", _LATEST_FIRST_STEP)
            self.latest_first_step = None if latest is None else operator.index(latest)

    @classmethod
    def of(
        cls, tokenizer: HuggingFaceTokenizer, generation: Mapping[str, Any]
    ) -> "WhisperTokenizer":
        """Returns a tokenizer with the fields of generation_config.json that a Whisper has."""
        known = {name: generation[name] for name in GENERATION_FIELDS if name in generation}
        values = json.loads(tokenizer.serialized)
        values["tokenizer"] = cls.form
        values["generation"] = known

        serialized = json.dumps(values)
        return cls(serialized.encode())

    def prompt(self, language: str | None, task: str, *, timed: bool = False) -> list[int]:
        """Returns the first tokens that a decoder reads.

        Args:
          language: Code of the spoken language, such as "de"; None for a model of English.
          task: "transcribe", or "translate" to English.
          timed: Whether the output has timestamps.

        Raises:
          UserError: The model has no such language or task.
        """
        ends = [] if timed else [self.no_times]
        if not self.spoken:
            is_english = language in (None, "en")
            if not is_english or task != "transcribe":
                raise UserError(
                    "expected no language but en and no task but transcribe, since the model is of "
                    f"English: got {language or 'en'} and {task}"
                )
            return [BOS, *ends]

        if task not in self._tasks:
            raise UserError(f"expected the task {' or '.join(TASKS)}: got {task!r:.80}")

        language_token = find_language(language or "", self.spoken)
        task_token = self._tasks[task]
        return [BOS, language_token, task_token, *ends]

    @property
    def default_language(self) -> str | None:
        """Code of the language that the model is set to; None for one that detects languages.

        Raises:
          UserError: It has a language by another name than its code.
        """
        named = self.generation.get("language")
        if named is not None:
            code = str(named).strip("<|>").lower()
            if code not in self.spoken:
                raise UserError(
                    f"expected a language, since generation_config.json names {named!r:.80}: give "
                    "--language with its code"
                )
            return code

        codes = {number: code for code, number in self.spoken.items()}
        forced = self.generation.get("forced_decoder_ids") or []
        for place, number in forced:
            is_language = place == 1  # after the beginning of a transcript
            if is_language and number is not None:
                token = self._our_id(number)
                return codes.get(token)
        return None

    def encode(self, text: str) -> list[int]:
        encoding = self._tokenize(text, add_special_tokens=False)
        return self._convert_ids(encoding)

    def _encode(self, texts: list[str], *, target: bool = False) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """Returns the text of token ids, without special tokens and times."""
        numbers = map(operator.index, ids)
        text_ids = (number for number in numbers if number not in self._times)
        return super().decode(text_ids)

    @functools.cached_property
    def time_steps(self) -> Int32[np.ndarray, " V"]:
        """Number of 20 milliseconds of the time that each token stands for; -1 for other tokens."""
        steps = np.full(self.vocab_size, -1, np.int32)
        for number, seconds in self._times.items():
            steps[number] = round(seconds * STEPS_PER_SECOND)
        return steps

    @property
    def is_text(self) -> Bool[np.ndarray, " V"]:
        """True for the tokens of texts: the tokens before the end of a text in their order."""
        theirs = self.their_ids
        return (theirs >= 0) & (theirs < self.special["eos"])

    @functools.cached_property
    def _times(self) -> dict[int, float]:
        """The time of each token that stands for one, in seconds."""
        added = self._tokenizer.get_added_tokens_decoder()
        size = len(self.our_ids)

        times = {}
        for number, token in added.items():
            match = _TIME.fullmatch(token.content)
            if match and number < size:
                own = self._our_id(number)
                times[own] = float(match[1])
        return times

    def _our_ids_of(self, field: str) -> list[int]:
        numbers = self.generation.get(field) or []
        return [self._our_id(number) for number in numbers]

    def _our_id(self, number: int) -> int:
        size = len(self.our_ids)
        number = operator.index(number)
        if not 0 <= number < size:
            raise ValueError(f"the id {number} is not below vocab_size={size}")
        return int(self.our_ids[number])


TOKENIZER = WhisperTokenizer
