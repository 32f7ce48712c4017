"""Output and error messages of the commands on a tiny trained model."""

import io
import json
import re
import shutil
import sys

import numpy as np
import pytest

from jaxformer.cli import main
from jaxformer.errors import UserError
from jaxformer.inference.attention_view import record_attention
from jaxformer.inference.translator import Translator
from jaxformer.inference.weights import average, load_model
from jaxformer.workdir import Workdir


@pytest.fixture
def feed(monkeypatch):
    """Feeds bytes to standard input."""

    def put(content):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), "utf-8"))

    return put


@pytest.fixture
def copy(tiny_workdir, tmp_path):
    """A copy of a workdir that tests may damage."""
    return shutil.copytree(tiny_workdir, tmp_path / "copy")


def refused(capsys, arguments, *words):
    """Runs a command that must fail with one line that contains these words."""
    assert main([str(argument) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    errors = [line for line in err.split("\n") if line.startswith("error: ")]
    assert len(errors) == 1
    assert "Traceback" not in err
    for word in words:
        assert word in errors[0]


@pytest.mark.smoke
def test_translate_prints_one_line_per_line_in_order(tiny_workdir, feed, capsys):
    hostile = "one hundred\n\n  \ntwo\r\n\x00\x07 \u0085 \u2028 three\n😀 ünïcode ½…\nlast"
    feed(hostile.encode())
    assert main(["translate", "--workdir", str(tiny_workdir)]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert len(lines) == 8  # Seven lines in, seven out, each with a line break.
    assert lines[1] == lines[2] == lines[7] == ""
    alone = Translator.load(tiny_workdir).translate(["two", "one hundred"])
    assert [lines[3], lines[0]] == alone


def test_translate_accepts_empty_input(tiny_workdir, feed, capsys):
    feed(b"")
    assert main(["translate", "--workdir", str(tiny_workdir)]) == 0
    assert capsys.readouterr().out == ""


def test_translation_does_not_depend_on_the_batch(tiny_workdir):
    translator = Translator.load(tiny_workdir)
    sentences = [
        f"{a} hundred and {b}" for a in ("one", "two", "nine") for b in ("six", "forty-two")
    ]
    sentences += ["ninety-nine thousand " * 3, "seven"]
    together = translator.translate(sentences)
    assert [translator.translate([s])[0] for s in sentences] == together
    assert translator.translate(sentences[::-1])[::-1] == together
    assert len(set(together)) > 1


def test_not_utf8_names_the_line(tiny_workdir, feed, capsys):
    feed(b"one\ntwo\ncaf\xe9\n")
    command = ["translate", "--workdir", tiny_workdir, "--strict"]
    refused(capsys, command, "standard input:3: not UTF-8")


def test_too_long_a_source_names_the_line_and_writes_nothing(tiny_workdir, feed, capsys):
    feed(b"one\n" + b"nine " * 200 + b"\n")
    refused(
        capsys,
        ["translate", "--workdir", tiny_workdir, "--strict"],
        "standard input:2: expected at most 63 tokens (model.max_length), got ",
        "split it into sentences",
    )


@pytest.mark.parametrize(
    "arguments", [["translate"], ["average"], ["plot"], ["attention", "one"]], ids=lambda a: a[0]
)
def test_folder_without_config_is_refused(arguments, tmp_path, feed, capsys):
    feed(b"one\n")
    command, *rest = arguments
    words = "metrics.jsonl: no such file" if command == "plot" else "expected the workdir of a"
    refused(capsys, [command, "--workdir", tmp_path, *rest], str(tmp_path), words)


def test_tokenizer_of_another_model_is_refused(copy, feed, capsys):
    feed(b"one\n")
    tokenizer = copy / "tokenizer.model"
    tokenizer.write_bytes(tokenizer.read_bytes() + b"\x00")
    refused(
        capsys,
        ["translate", "--workdir", copy],
        "expected the tokenizer that the model was trained with, SHA-256",
    )


def test_checkpoint_of_another_model_is_refused(copy, feed, capsys):
    feed(b"one\n")
    config = json.loads((copy / "config.json").read_text())
    config["model"]["d_ff"] = 64
    (copy / "config.json").write_text(json.dumps(config))
    refused(capsys, ["translate", "--workdir", copy], "inner", "expected")


def test_unknown_config_field_in_a_workdir_is_refused(copy, feed, capsys):
    feed(b"one\n")
    config = json.loads((copy / "config.json").read_text())
    config["model"]["num_layer"] = 1
    (copy / "config.json").write_text(json.dumps(config))
    refused(capsys, ["translate", "--workdir", copy], "did you mean model.num_layers?")


def test_unknown_weights_are_refused(tiny_workdir, feed, capsys):
    feed(b"one\n")
    refused(
        capsys,
        ["translate", "--workdir", tiny_workdir, "--weights", "5"],
        "--weights must be averaged, best, latest, auto or one of the steps 2, 4, 6: got 5",
    )


def write_pair(folder, sources, references):
    (folder / "in.en").write_text("".join(f"{s}\n" for s in sources), encoding="utf-8")
    (folder / "ref.de").write_text("".join(f"{r}\n" for r in references), encoding="utf-8")
    return ["--source", str(folder / "in.en"), "--reference", str(folder / "ref.de")]


def test_evaluate_names_every_metric(tiny_workdir, tmp_path, capsys):
    files = write_pair(tmp_path, ["one", "two"], ["eins", "zwei"])
    assert main(["evaluate", "--workdir", str(tiny_workdir), *files]) == 0
    table = capsys.readouterr().out
    for name in (
        "sacreBLEU",
        "chrF",
        "tokenized BLEU",
        "compound-split BLEU",
        "lowercased tokenized BLEU",
        "exact match",
    ):
        assert f"\n{name} " in table
    output = tmp_path / "out.de"
    arguments = [
        "evaluate",
        "--workdir",
        str(tiny_workdir),
        *files,
        "--json",
        "--output",
        str(output),
    ]
    assert main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["sacrebleu"]["method"].startswith("nrefs:1|case:mixed|eff:no|tok:13a")
    assert output.read_text(encoding="utf-8").count("\n") == 2
    assert main([*arguments, "--language", "zh"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["sacrebleu"]["method"].startswith("nrefs:1|case:mixed|eff:no|tok:zh")


def test_evaluate_own_translations_scores_100(tiny_workdir, tmp_path, capsys):
    sources = ["one hundred and two", "nine"]
    files = write_pair(tmp_path, sources, Translator.load(tiny_workdir).translate(sources))
    main(["evaluate", "--workdir", str(tiny_workdir), *files, "--json"])
    assert json.loads(capsys.readouterr().out)["exact_match"]["score"] == 100


def test_evaluate_refuses_files_of_different_length(tiny_workdir, tmp_path, capsys):
    files = write_pair(tmp_path, ["one", "two"], ["eins"])
    refused(
        capsys,
        ["evaluate", "--workdir", tiny_workdir, *files],
        "expected as many lines in",
        "got 2 and 1",
    )


def test_evaluate_names_a_missing_file(tiny_workdir, tmp_path, capsys):
    files = write_pair(tmp_path, ["one"], ["eins"])
    files[1] = str(tmp_path / "nowhere.en")
    refused(capsys, ["evaluate", "--workdir", tiny_workdir, *files], "nowhere.en", "cannot be read")


def embedding(translator):
    ((_, params),) = translator.models
    return params["embedding"]


def test_average_is_the_mean_and_becomes_the_default(copy, feed, capsys):
    parts = [embedding(Translator.load(copy, weights=step)) for step in ("2", "4", "6")]
    model, params = load_model(copy, weights=4)
    assert model.config == Translator.load(copy).config.model
    np.testing.assert_array_equal(params["embedding"], parts[1])
    assert main(["average", "--workdir", str(copy), "--last", "3"]) == 0
    assert "average of steps 2, 4, 6" in capsys.readouterr().out
    averaged = Translator.load(copy)
    assert averaged.weights == "average of steps 2, 4, 6"
    np.testing.assert_allclose(
        embedding(averaged), np.mean(parts, axis=0, dtype=np.float64), rtol=1e-6
    )
    assert Translator.load(copy, weights="latest").weights == "step 6"
    assert Translator.load(copy, weights="best").weights == "step 6"
    # An average is not the default if there is a newer checkpoint.
    shutil.rmtree(copy / "checkpoints" / "6")
    assert Translator.load(copy).weights == (
        "step 4; --weights averaged gives an average of other steps"
    )
    assert Translator.load(copy, weights="averaged").weights == "average of steps 2, 4, 6"


def test_best_weights_need_a_validation(copy, capsys):
    shutil.rmtree(copy / "checkpoints" / "6")  # The only step that was validated.
    refused(
        capsys,
        ["attention", "one", "--workdir", copy, "--weights", "best"],
        "no checkpoint has been validated yet; use --weights latest",
    )


def test_evaluate_refuses_a_source_that_is_too_long(tiny_workdir, tmp_path, capsys):
    files = write_pair(tmp_path, ["one", "nine " * 200], ["eins", "neun"])
    refused(capsys, ["evaluate", "--workdir", tiny_workdir, *files], "in.en:2: expected at most")


def test_evaluate_does_not_overwrite_its_input(tiny_workdir, tmp_path, capsys):
    files = write_pair(tmp_path, ["one"], ["eins"])
    arguments = ["evaluate", "--workdir", tiny_workdir, *files, "--output", files[1]]
    refused(capsys, arguments, "is an input; name another file")
    assert (tmp_path / "in.en").read_text(encoding="utf-8") == "one\n"


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (["--beam-size", "0"], "search.beam_size must be greater than 0"),
        (["--beam-size", "99999"], "search.beam_size must be at most 1000"),
        (["--length-penalty", "nan"], "search.length_penalty must be 0 to 10"),
        (["--length-penalty", "1e300"], "search.length_penalty must be 0 to 10"),
    ],
)
def test_invalid_searches_are_refused(option, words, tiny_workdir, feed, capsys):
    feed(b"one\n")
    refused(capsys, ["translate", "--workdir", tiny_workdir, *option], words)


def test_unpaired_surrogates_are_refused(tiny_workdir, capsys):
    refused(capsys, ["attention", "--workdir", tiny_workdir, "\udcff"], "sentence: not UTF-8")


def test_average_of_too_many_checkpoints_is_refused(copy, capsys):
    refused(
        capsys,
        ["average", "--workdir", copy, "--last", "7"],
        "expected 7 checkpoints to average, found 3; use --last 3, or train longer with "
        "--config.training.keep_checkpoints=7",
    )
    shutil.rmtree(copy / "checkpoints" / "4")  # The run keeps 3, so it need only train longer.
    with pytest.raises(UserError, match=r"use --last 2, or train longer$"):
        average(Workdir(copy), 3)


def test_attention_and_plot_write_images(tiny_workdir, tmp_path, capsys):
    for command in (["attention", "two hundred"], ["plot"]):
        output = tmp_path / f"{command[0]}.png"
        arguments = [*command, "--workdir", str(tiny_workdir), "--output", str(output)]
        assert main(arguments) == 0
        assert str(output) in capsys.readouterr().out
        assert output.read_bytes().startswith(b"\x89PNG")


def test_plot_refuses_other_formats_than_png_and_svg(tmp_path, capsys):
    arguments = ["plot", "--workdir", tmp_path, "--output", tmp_path / "curve.pdf"]
    refused(capsys, arguments, "--output: expected a name that ends in .png or .svg: got", ".pdf")


def test_attention_views_are_distributions_over_the_right_pieces(tiny_workdir):
    view = record_attention(Translator.load(tiny_workdir), "two hundred")
    for kind in ("encoder", "decoder", "cross"):
        queries, keys, weights = view.weights_of(kind)
        assert weights.shape == (1, 2, len(queries), len(keys))
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    assert "".join(view.source).replace("▁", " ").startswith(" two hundred")
    assert np.triu(view.decoder[0, 0], 1).max() == 0


def test_attention_of_a_missing_layer_is_refused(tiny_workdir, capsys):
    refused(
        capsys,
        ["attention", "--workdir", tiny_workdir, "one", "--layer", "2"],
        "--layer must be from 1 to 1: got 2",
    )


def test_help_has_examples(capsys):
    for command in ("translate", "evaluate", "average", "attention", "plot"):
        with pytest.raises(SystemExit, match="0"):
            main([command, "--help"])
        text = " ".join(capsys.readouterr().out.split())
        assert re.search(rf"Example: (echo [^|]*\| )?jaxformer {command}\b", text)
