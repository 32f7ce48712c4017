"""Speaks numerals with a synthesizer: synthetic speech for ``configs/spoken_numerals.py``.

    pip install espeakng-loader==0.2.4
    python benchmarks/speak_numerals.py spoken_numerals

writes ``train.npz``, ``valid.npz`` and ``few.npz`` in the folder. The package has eSpeak NG and its
voices, which are under the GPL; jaxformer itself never needs it. A voice is an accent of English
with a variant, such as ``en-us+f1``. The variants of ``valid.npz`` are in no other file, and its
numbers are not in ``train.npz``. In training, speed, pitch and melody change with each recording.
``few.npz`` is a tenth of ``train.npz``.
"""

import ctypes
import pathlib
import sys
from typing import NamedTuple

import numpy as np

from jaxformer.data.numerals import spell_english
from jaxformer.data.sound import resample

RATE = 8000
NUMBERS = 1000
ACCENTS = (
    "en-us",
    "en-us-nyc",
    "en",
    "en-gb-x-rp",
    "en-gb-x-gbclan",
    "en-gb-x-gbcwmd",
    "en-gb-scotland",
    "en-029",
)
VARIANTS = (
    *("m1", "m2", "m3", "m4", "m5", "m6", "m7", "f1", "f2", "f3", "f4"),
    *("Alex", "Alicia", "Andrea", "Andy", "Denis", "Diogo", "Gene", "Gene2", "Hugo", "Jacky"),
    *("Lee", "Marco", "Mario", "Mike", "Reed", "Storm", "adam", "anika", "antonio", "aunty"),
    *("belinda", "benjamin", "boris", "caleb", "david", "ed", "edward", "edward2", "grandma"),
    *("grandpa", "gustave", "ian", "iven", "iven2", "iven3", "john", "linda", "marcelo", "max"),
    *("michel", "miguel", "mike2", "norbert", "pablo", "paul", "pedro", "quincy", "rob", "robert"),
    *("sandro", "shelby", "steph", "steph2", "steph3", "travis", "victor", "zac"),
)
HELD_OUT_VOICES = (
    "en-us+m8",
    "en+f5",
    "en-gb-scotland+m8",
    "en-us+Annie",
    "en-gb-x-gbcwmd+f5",
    "en-us-nyc+Michael",
)
HELD_OUT_NUMBERS = 100
TRAINING_VOICES_OF_A_NUMBER = 10
# Of speak_lib.h.
_SYNCHRONOUS = 2
_UTF8 = 1
_SPEED = 1
_PITCH = 3
_PITCH_RANGE = 4


class Voice(NamedTuple):
    """A voice, and how it speaks; by default as the synthesizer does.

    Attributes:
      name: Accent and variant.
      speed: Words per minute.
      pitch: 0 to 100.
      pitch_range: 0 for a monotonous voice, to 100.
    """

    name: str
    speed: int = 175
    pitch: int = 50
    pitch_range: int = 50


class Synthesizer:
    """eSpeak NG, by its C interface."""

    def __init__(self) -> None:
        import espeakng_loader

        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        data = espeakng_loader.get_data_path().encode()
        self.rate = self._library.espeak_Initialize(_SYNCHRONOUS, 0, data, 0)
        if self.rate <= 0:
            raise RuntimeError("eSpeak NG found no data")

        self._chunks: list[np.ndarray] = []
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
        )
        self._callback = kind(self._receive)
        self._library.espeak_SetSynthCallback(self._callback)

    def _receive(self, samples, count: int, events) -> int:
        if samples and count:
            self._chunks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    def speak(self, text: str, voice: Voice) -> np.ndarray:
        """Returns int16 samples at RATE."""
        if self._library.espeak_SetVoiceByName(voice.name.encode()):
            raise RuntimeError(f"eSpeak NG has no voice {voice.name}")

        settings = ((_SPEED, voice.speed), (_PITCH, voice.pitch), (_PITCH_RANGE, voice.pitch_range))
        for parameter, value in settings:
            self._library.espeak_SetParameter(parameter, value, 0)

        self._chunks.clear()
        content = text.encode() + b"\0"
        self._library.espeak_Synth(content, len(content), 0, 1, 0, _UTF8, None, None)
        self._library.espeak_Synchronize()
        samples = np.concatenate(self._chunks).astype(np.float32) / 2**15
        return (resample(samples, self.rate, RATE) * 2**15).clip(-(2**15), 2**15 - 1)


def draw_voice(rng: np.random.Generator, name: str) -> Voice:
    """Returns a voice with a speed, a pitch and a melody that are drawn."""
    return Voice(
        name,
        speed=int(rng.integers(130, 221)),
        pitch=int(rng.integers(25, 76)),
        pitch_range=int(rng.integers(20, 81)),
    )


def write(path: pathlib.Path, synthesizer: Synthesizer, pairs: list[tuple[int, Voice]]) -> None:
    """Speaks numbers in voices, with hyphens as spaces in the transcripts."""
    texts = [spell_english(number).replace("-", " ") for number, _ in pairs]
    waves = [
        synthesizer.speak(text, voice).astype(np.int16)
        for text, (_, voice) in zip(texts, pairs, strict=True)
    ]
    np.savez(
        path,
        samples=np.concatenate(waves),
        lengths=np.array([len(wave) for wave in waves]),
        rate=RATE,
        transcripts=np.array(texts),
    )
    seconds = sum(map(len, waves)) / RATE
    voices = {voice.name for _, voice in pairs}
    print(f"{path}: {len(waves):,} recordings, {seconds / 60:.1f} minutes, {len(voices)} voices")


def main() -> None:
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "spoken_numerals")
    folder.mkdir(parents=True, exist_ok=True)
    synthesizer = Synthesizer()

    rng = np.random.default_rng(0)
    numbers = rng.permutation(NUMBERS).tolist()
    held_out = numbers[:HELD_OUT_NUMBERS]
    voices = [f"{accent}+{variant}" for accent in ACCENTS for variant in VARIANTS]

    train = []
    for number in numbers[HELD_OUT_NUMBERS:]:
        for name in rng.choice(voices, TRAINING_VOICES_OF_A_NUMBER, replace=False):
            train.append((number, draw_voice(rng, str(name))))
    few = train[::10]
    # Whatever the training set is, the validation set stays the same.
    valid_rng = np.random.default_rng(1)
    valid = []
    for number in held_out:
        for name in valid_rng.choice(HELD_OUT_VOICES, 2, replace=False):
            valid.append((number, Voice(str(name))))

    write(folder / "train.npz", synthesizer, train)
    write(folder / "few.npz", synthesizer, few)
    write(folder / "valid.npz", synthesizer, valid)


if __name__ == "__main__":
    main()
