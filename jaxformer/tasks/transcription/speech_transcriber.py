"""Transcription of speech with a trained encoder-decoder, such as Whisper."""

import bisect
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

from jaxformer.config import data_section
from jaxformer.data.loader import round_up
from jaxformer.data.sound import Sound, standardize
from jaxformer.data.speech import pad_sounds
from jaxformer.data.tokenizer import BOS, EOS
from jaxformer.data.transcripts import TranscriptsConfig
from jaxformer.data.whisper_tokenizer import WhisperTokenizer
from jaxformer.errors import UserError
from jaxformer.inference.array_inputs import ArrayInput, ArrayInputs
from jaxformer.inference.array_predictor import ArrayPredictor
from jaxformer.inference.decoder import Decoder
from jaxformer.kinds.transcription import TRANSCRIPTION, RecordingReader
from jaxformer.models.whisper import WhisperConfig
from jaxformer.nn.log_mel import long_log_mel
from jaxformer.search import BeamSearch, Constraint
from jaxformer.search.constraints import Suppress, SuppressFirst
from jaxformer.tasks.transcriber import Segment, Transcriber
from jaxformer.tasks.transcription.timestamps import Reading, TimestampRules

# Windows that are encoded together: in Whisper, each has 1,500 positions that see all others.
_WINDOWS = 8
# A recording that is longer than a window is cut where it is quietest in the last fifth of one.
_LAST_PART = 5
_QUIET_SECONDS = 0.1


class SpeechTranscriber(ArrayPredictor, Transcriber):
    """Writes the texts of recordings with the model of a workdir.

    >>> transcriber = SpeechTranscriber.load("runs/whisper")  # doctest: +SKIP
    >>> transcriber.transcribe([read_sound(pathlib.Path("a.wav"))], language="de")  # doctest: +SKIP
    ['Das Haus ist alt.']

    Whisper reads windows of 30 seconds. :meth:`transcribe` cuts a longer recording at quiet places
    into windows that the model reads one by one, without timestamps: what is said across a cut may
    be lost or written twice. In :meth:`transcribe_segments`, a window begins where the last segment
    ended. A model that reads any number of seconds has windows of ``data.max_seconds``.
    """

    kinds = (TRANSCRIPTION,)
    most_rows = _WINDOWS

    def transcribe(
        self,
        sounds: Sequence[Sound],
        *,
        language: str | None = None,
        task: str | None = None,
        report: Callable[[int], object] = lambda finished: None,
    ) -> list[str]:
        """Returns the text of each recording, in the order given.

        Args:
          sounds: Recordings, at any rate.
          language: Code of the spoken language, such as "de", in a model of many. When None, the
            config's; if there is none either, the model detects the language of each recording
            from its first window.
          task: "transcribe", or "translate" to English; the config's when None.
          report: Called with the number of recordings that each batch of windows finishes.

        Raises:
          UserError: The model has no such language or task.
        """
        windows: list[Float32[np.ndarray, " N"]] = []
        ends = []
        for sound in sounds:
            windows += self._split(sound)
            ends.append(len(windows))
        ranges = list(itertools.pairwise([0, *ends]))

        arrays = self._encoder_inputs(windows)
        first_arrays = [arrays[first] for first, _ in ranges]
        prompts = self._prompts(first_arrays, language, task)

        inputs = []
        for prompt, (first, end) in zip(prompts, ranges, strict=True):
            for number in range(first, end):
                inputs.append(ArrayInput(arrays[number], prompt, number))

        longest_prompt = max((len(prompt) for prompt in prompts), default=0)
        found = self.decode_arrays(
            inputs,
            n_best=1,
            max_tokens=self.max_length - longest_prompt,
            constraints=self.constraints,
            report=_report_recordings(report, ends),
        )

        # Whisper's texts begin with a space where they should have one.
        texts = []
        for hypotheses in found:
            texts.append(hypotheses[0].text if hypotheses else "")
        separator = "" if isinstance(self.tokenizer, WhisperTokenizer) else " "
        joined = []
        for first, end in ranges:
            joined.append(separator.join(texts[first:end]).strip())
        return joined

    def transcribe_segments(
        self,
        sounds: Sequence[Sound],
        *,
        language: str | None = None,
        task: str | None = None,
        report: Callable[[int], object] = lambda finished: None,
    ) -> list[list[Segment]]:
        tokenizer = self.tokenizer
        model = self.config.model
        if not isinstance(tokenizer, WhisperTokenizer) or not isinstance(model, WhisperConfig):
            return super().transcribe_segments(sounds)

        window, num_bins = model.features_shape
        readings = []
        for sound in sounds:
            features = long_log_mel(sound.at(model.sample_rate), num_bins, block=window)
            readings.append(Reading(features))
        first_windows = [(reading.window(window),) for reading in readings]
        prompts = self._prompts(first_windows, language, task, timed=True)

        for count in itertools.count():
            active = [n for n, reading in enumerate(readings) if not reading.is_finished]
            if not active:
                break

            inputs = []
            for n in active:
                features = readings[n].window(window)
                number = count * len(readings) + n
                inputs.append(ArrayInput((features,), prompts[n], number))

            outputs = self._timed_outputs(inputs, TimestampRules.of(tokenizer))
            for n, output in zip(active, outputs, strict=True):
                readings[n].read(output, tokenizer.time_steps, window, self.detokenize)
            report(sum(readings[n].is_finished for n in active))
        return [reading.segments for reading in readings]

    def _timed_outputs(
        self,
        inputs: Sequence[ArrayInput],
        rules: TimestampRules,
    ) -> list[list[int]]:
        """Returns the best output for each window, without its end."""
        longest_prompt = max(len(each.prompt) for each in inputs)
        found = self.decode_arrays(
            inputs,
            n_best=1,
            max_tokens=self.max_length - longest_prompt,
            constraints=[*self.constraints, rules],
        )

        outputs = []
        for hypotheses in found:
            tokens = hypotheses[0].tokens if hypotheses else []
            outputs.append([token for token in tokens if token != EOS])
        return outputs

    def detect_languages(self, sounds: Sequence[Sound]) -> list[str]:
        """Returns the code of the language of each recording, from its first window."""
        starts = [next(self._split(sound)) for sound in sounds]
        return self._detect_languages(self._encoder_inputs(starts))

    @property
    def _reader(self) -> RecordingReader:
        model: Any = self.config.model
        return model

    @property
    def window(self) -> int:
        """Number of samples that the model reads at once, at most."""
        longest = self._reader.longest
        if longest is None:
            data = data_section(self.config, TranscriptsConfig)
            return int(data.max_seconds * self._reader.sample_rate)
        return longest

    def _split(self, sound: Sound) -> Iterator[Float32[np.ndarray, " N"]]:
        """Yields the windows of a recording."""
        rate = self._reader.sample_rate
        return split_at_quiet_places(sound.at(rate), self.window, rate)

    def _encoder_inputs(
        self,
        windows: Sequence[Float32[np.ndarray, " N"]],
    ) -> list[tuple[np.ndarray, ...]]:
        """Returns what the encoder reads of each window.

        Windows are padded with silence to the same length, a whole number of seconds.
        """
        model = self._reader
        if model.is_standardized:
            windows = [standardize(window) for window in windows]

        longest = max(map(len, windows), default=0)
        num_samples = min(round_up(longest, model.sample_rate), self.window)
        num_samples = max(num_samples, model.shortest)

        found: list[tuple[np.ndarray, ...]] = []
        for start in range(0, len(windows), _WINDOWS):
            rows = pad_sounds(windows[start : start + _WINDOWS], _WINDOWS, num_samples)
            arrays = jax.device_get(_encoder_inputs(model, rows.samples, rows.lengths))
            found += zip(*arrays, strict=True)
        return found[: len(windows)]

    def _prompts(
        self,
        arrays: Sequence[tuple[np.ndarray, ...]],
        language: str | None,
        task: str | None,
        *,
        timed: bool = False,
    ) -> list[list[int]]:
        """Returns the first tokens of the decoder for each recording.

        Args:
          arrays: What the encoder reads of the first window of each.
          language: As in :meth:`transcribe`; also ``task``.
          task: See there.
          timed: Whether the texts have timestamps.
        """
        data = data_section(self.config, TranscriptsConfig)
        tokenizer = self.tokenizer
        if not isinstance(tokenizer, WhisperTokenizer):
            if language is not None or task is not None:
                raise UserError(
                    "expected no language and no task, since the model's tokenizer has no tokens "
                    f"for them: got {language or task}"
                )
            # A tokenizer may force the beginning of every text.
            return [[BOS, *tokenizer.target_start] for _ in arrays]

        language = language or data.language
        task = task or data.task
        if language is None and tokenizer.spoken:
            language = tokenizer.default_language
        if language is None and tokenizer.spoken:
            detected = self._detect_languages(arrays)
            return [tokenizer.prompt(code, task, timed=timed) for code in detected]
        return [tokenizer.prompt(language, task, timed=timed) for _ in arrays]

    def _detect_languages(self, arrays: Sequence[tuple[np.ndarray, ...]]) -> list[str]:
        """Works as :meth:`detect_languages` does, given what the encoder reads of first windows.

        A language is the one whose token is the likeliest after the beginning of a transcript.
        """
        tokenizer = self.tokenizer
        if not isinstance(tokenizer, WhisperTokenizer) or not tokenizer.spoken:
            raise UserError("expected a model of several languages, to detect them: got one of one")

        codes = {number: code for code, number in tokenizer.spoken.items()}
        others = np.setdiff1d(np.arange(tokenizer.vocab_size), [*codes])
        greedy = BeamSearch(beam_size=1, constraints=(Suppress(others),))
        plan = ArrayInputs(max_tokens=1, most_rows=self.most_rows)
        decoder = Decoder(self.models, greedy, plan)

        items = [ArrayInput(own, number=number) for number, own in enumerate(arrays)]
        found = decoder.decode(items)
        return [codes[found[number].tokens[0][0]] for number in range(len(items))]

    @functools.cached_property
    def constraints(self) -> list[Constraint]:
        """The constraints of the tokens that the model may not write."""
        if not isinstance(self.tokenizer, WhisperTokenizer):
            return []
        never = np.array(self.tokenizer.suppressed, np.int32)
        not_first = np.array(self.tokenizer.suppressed_first, np.int32)
        return [Suppress(never), SuppressFirst(not_first)]


def _report_recordings(
    report: Callable[[int], object], ends: Sequence[int]
) -> Callable[[int], None]:
    """Returns a function that is called with numbers of windows, and reports recordings.

    Windows finish in their order. ``ends`` are the numbers of windows up to each recording's last.
    """
    finished = 0

    def report_windows(count: int) -> None:
        nonlocal finished
        before = bisect.bisect_right(ends, finished)
        finished += count
        report(bisect.bisect_right(ends, finished) - before)

    return report_windows


@functools.partial(jax.jit, static_argnums=0)
def _encoder_inputs(
    model: RecordingReader,
    samples: Float[Array, "B N"],
    lengths: Int[Array, " B"],
) -> tuple[Array, ...]:
    return model.encoder_inputs(jnp.asarray(samples), lengths)


def split_at_quiet_places(
    wave: Float32[np.ndarray, " N"],
    window: int,
    rate: int,
) -> Iterator[Float32[np.ndarray, " S"]]:
    """Yields a recording in parts of at most a window, cut where its last fifth is quietest."""
    quiet = min(int(_QUIET_SECONDS * rate), window // _LAST_PART)
    while len(wave) > window:
        first = window - window // _LAST_PART
        energy = np.square(wave[first:window], dtype=np.float64)
        sums = np.cumsum(np.concatenate([[0], energy]))
        energies = sums[quiet:] - sums[:-quiet]  # of each span
        cut = first + int(energies.argmin()) + quiet // 2
        yield wave[:cut]
        wave = wave[cut:]
    yield wave
