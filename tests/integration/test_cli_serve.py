"""The command ``serve``: its process under requests of many clients, and its error messages."""

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest

from jaxformer.cli import main
from jaxformer.data.numerals import NumeralsCorpus
from jaxformer.inference.translator import Translator
from jaxformer.search import BeamSearch
from jaxformer.serving.backend import TranslatorBackend
from jaxformer.serving.protocol import Sentence

from .. import printed
from . import pages

SEARCH = BeamSearch(max_length=24)


@pytest.fixture
def address(learned_workdir):
    """The process and the address of a server."""
    options = ["--workdir", str(learned_workdir), "--max-length", "24", "--max-batch", "4"]
    process = subprocess.Popen(
        [sys.executable, "-m", "jaxformer", "serve", *options, "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    messages = []
    for message in process.stderr:
        messages.append(message)
        if found := re.match(r"serving (http://.*)\n", message):
            break
    else:
        pytest.fail("".join(messages))
    assert sum(message.startswith("compiling ") for message in messages) > 3
    yield process, found[1]
    process.kill()
    process.communicate()


@pytest.mark.ci
def test_every_client_gets_its_own_answer_until_the_server_is_stopped(learned_workdir, address):
    process, address = address
    (block,) = pages.sections("serving.md")["Clients"]
    names = {}
    pages.run("serving.md", block.replace("http://127.0.0.1:5000", address), names)
    translate = names["translate"]
    sources = [english for english, _ in NumeralsCorpus().pairs("held_out")][:40]
    expected = Translator.load(learned_workdir, search=SEARCH).translate(sources)
    assert len(set(expected)) > 30
    with ThreadPoolExecutor(17) as pool:
        assert list(pool.map(translate, sources)) == expected
        running = pool.submit(translate, sources * 3)
        metrics = ""
        while not re.search(r"jaxformer_queue_sentences [1-9]", metrics) and not running.done():
            metrics = urllib.request.urlopen(f"{address}/metrics").read().decode()
        process.send_signal(signal.SIGTERM)
        assert running.result() == expected * 3
    assert process.wait(60) == 0
    with pytest.raises(OSError, match="refused"):
        translate("one")


@pytest.mark.ci
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_the_commands_of_the_page_get_answers(address):
    found = printed.shell_commands(pages.DOCS / "serving.md")
    commands = [command for command in found if command.startswith("curl")]
    assert len(commands) == 2
    for command, count in zip(commands, (1, 2), strict=True):
        command = command.replace("http://127.0.0.1:5000", address[1])
        answer = subprocess.run(["bash", "-c", command], capture_output=True, check=True).stdout
        translated = json.loads(answer)["translatedText"]
        assert len([translated] if isinstance(translated, str) else translated) == count


@pytest.mark.ci
def test_after_warm_up_nothing_compiles_and_a_bad_sentence_fails_alone(learned_workdir):
    translator, compiled = Translator.load(learned_workdir, search=SEARCH), []
    backend = TranslatorBackend(translator)
    assert backend.languages == {"en": ["de"]}
    backend.warm_up(1, lambda step: None)
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if event.endswith("compile_duration") else 0
    )
    long, text = "nine " * 300, "two hundred"
    sentences = [Sentence(line, "de", True) for line in (text, long, " ")]
    good, bad, blank = backend.translate(sentences)
    backend.translate([Sentence(f"{text} and forty-two thousand", "de", True)])
    assert compiled == []
    assert good.texts == [hypothesis.text for hypothesis in translator.hypotheses([text])[0]]
    assert good.attention["source"] == ["two", "hundred"]
    assert good.attention["target"] == [good.texts[0]]
    assert sum(good.attention["weights"][0]) == pytest.approx(1, abs=0.5)
    assert json.loads(json.dumps(good)) == list(good)
    assert "split it into sentences" in str(bad)
    assert blank.texts == []


def test_a_server_that_is_stopped_before_it_runs_exits():
    code = """
import signal
import jaxformer.cli.commands.serve as command
class Backend:
    languages = {"en": ["de"]}
command.print = lambda *args, **options: signal.raise_signal(signal.SIGTERM)
command.run_server(Backend(), command.Limits(), command.Address(port=0).reserve())
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_used_address_is_refused_before_the_model_is_loaded(capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert main(["serve", "--port", port]) == 2
    assert main(["serve", "--host", "256.0.0.1"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"error: expected a free address: got --host 127.0.0.1 --port {port}: ")
    assert second.startswith("error: expected a free address: got --host 256.0.0.1 --port 5000: ")
