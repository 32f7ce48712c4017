"""Fine-tuning a Whisper of OpenAI on recordings of one language, with their transcripts.

    jaxformer import hf openai/whisper-tiny --workdir runs/whisper
    python train.py --config=configs/whisper.py --workdir=runs/whisper-de \
        --config.data.language=de --config.data.train=train.tsv --config.data.valid=valid.tsv

Lines of the files are the path of a WAV file, a tab and its transcript; docs/sound.md has other
forms. The sizes are of the tiny model. ``whisper.py:smoke`` has tiny ones, and learns from nothing.
Measured: nothing; it has not been run on speech.
"""

from jaxformer.config import Config, TrainingConfig, select
from jaxformer.data.transcripts import TranscriptsConfig
from jaxformer.models.whisper import WhisperConfig

VARIANTS = {
    "": Config(
        model=WhisperConfig(num_decoder_layers=4),
        data=TranscriptsConfig(seconds_per_batch=480.0),
        training=TrainingConfig(
            init_from="runs/whisper",
            steps=4000,
            warmup_steps=400,
            learning_rate=2e-5,
            schedule="linear",
            label_smoothing=0.0,
            eval_every=1000,
            checkpoint_every=1000,
            keep_checkpoints=1,
        ),
    ),
    "smoke": Config(
        model=WhisperConfig(
            vocab_size=272,
            num_mel_bins=20,
            max_source_length=50,  # a second
            d_model=16,
            d_ff=32,
            num_heads=2,
            num_layers=1,
            max_length=16,
        ),
        data=TranscriptsConfig(seconds_per_batch=8.0, max_seconds=1.0, max_length=16),
        training=TrainingConfig(
            steps=4,
            warmup_steps=2,
            log_every=2,
            eval_every=4,
            checkpoint_every=2,
        ),
    ),
}


def get_config(name: str = ""):
    """Returns the config, for ``--config=configs/whisper.py``."""
    return select(VARIANTS, name)
