"""Chinese: three kinds of models of SentencePiece, and a run whose BLEU is sacreBLEU's."""

import io
import json
import subprocess
import sys

import pytest
import sentencepiece

from jaxformer import Tokenizer, load_config, train
from jaxformer.cli import main
from jaxformer.data.numerals import numbers_in, spell_chinese, spell_english

from ..runs import changed, reports, write_lines

NUMBERS = numbers_in("held_out")[:200]


def sentencepiece_model(kind):
    """Returns a model with our special ids, trained by SentencePiece itself."""
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*map(spell_chinese, NUMBERS), *map(spell_english, NUMBERS)]),
        model_writer=content,
        model_type=kind,
        vocab_size=60,
        hard_vocab_limit=False,
        character_coverage=1.0,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        minloglevel=2,
    )
    return content.getvalue()


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char"])
def test_models_of_sentencepiece_are_tokenizers(kind):
    content = sentencepiece_model(kind)
    reference = sentencepiece.SentencePieceProcessor(model_proto=content)
    tokenizer = Tokenizer(content)

    texts = [*map(spell_chinese, NUMBERS[:50]), "一万　二千"]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert ids == reference.encode(text)
        assert tokenizer.decode(ids) == reference.decode(ids)


def write_corpus(folder):
    for language, spell in (("en", spell_english), ("zh", spell_chinese)):
        write_lines(folder / f"text.{language}", map(spell, NUMBERS))


def test_bleu_of_a_chinese_run_is_that_of_sacrebleu(tmp_path, capsys):
    write_corpus(tmp_path)
    (tmp_path / "own.model").write_bytes(sentencepiece_model("unigram"))
    text = str(tmp_path / "text")
    config = changed(
        load_config("numerals:zh"),
        model={"vocab_size": 60, "d_model": 32, "d_ff": 32, "num_layers": 1},
        data={
            "corpus": "text",
            "train": text,
            "valid": text,
            "source_language": "en",
            "target_language": "zh",
            "tokenizer": str(tmp_path / "own.model"),
            "tokens_per_batch": 512,
        },
        training={
            "steps": 30,
            "warmup_steps": 5,
            "log_every": 30,
            "checkpoint_every": 30,
            "eval_every": 30,
            "eval_sentences": 16,
        },
        search={"beam_size": 1, "max_extra_length": 2},
    )
    run = tmp_path / "run"
    train(config, run)

    output = tmp_path / "output.zh"
    files = ["--source", f"{text}.en", "--reference", f"{text}.zh", "--output", str(output)]
    assert main(["evaluate", "--workdir", str(run), "--json", *files]) == 0
    report = json.loads(capsys.readouterr().out)["sacrebleu"]
    assert "tok:zh" in report["method"]

    command = [sys.executable, "-m", "sacrebleu", f"{text}.zh", "-i", str(output)]
    options = ["-l", "en-zh", "-b", "-w", "6"]
    printed = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    assert report["score"] == pytest.approx(float(printed.stdout), abs=1e-6)
    assert report["score"] > 0


@pytest.mark.nightly
def test_chinese_numbers_are_learned(tmp_path):
    train(load_config("numerals:zh"), tmp_path / "run")
    assert reports(tmp_path / "run", "valid")[-1]["exact_match"] > 80
