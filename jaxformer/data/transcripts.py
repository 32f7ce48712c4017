"""The data section of recordings whose transcripts a model writes token by token."""

import dataclasses
from typing import Literal

from jaxformer.data.speech import SpeechConfig
from jaxformer.fields import setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranscriptsConfig(SpeechConfig):
    """Recordings and their transcripts, to train an encoder-decoder such as Whisper on.

    Fields that are not listed are as in :class:`~jaxformer.data.speech.SpeechConfig`.

    Attributes:
      corpus: "transcripts": recordings with transcripts.
      language: Code of the spoken language, such as "de", for a model of many. When None, a trained
        model detects it, and training needs it.
      task: For a model of many languages: "transcribe", or "translate" to English.
      max_length: Maximum number of tokens of a transcript, with the prompt. Longer ones are skipped
        and counted.
    """

    corpus: Literal["transcripts"] = "transcripts"
    language: str | None = setting(None, may_change=True, is_usual=True)
    task: Literal["transcribe", "translate"] = setting("transcribe", may_change=True)
    seconds_per_batch: float = setting(480.0, "positive", is_usual=True)
    max_seconds: float = setting(30.0, "positive")
    max_length: int = setting(448, "positive")
    length_field = "max_length"
