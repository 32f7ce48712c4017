"""The command ``serve``: its process under requests of many clients, and its error messages."""

import itertools
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import pytest

from jaxformer.cli import main
from jaxformer.data.numerals import NumeralsCorpus
from jaxformer.inference.glossary import Glossary
from jaxformer.inference.translator import Translator
from jaxformer.search import BeamSearch
from jaxformer.serving.backend import TranslatorBackend
from jaxformer.serving.protocol import Sentence

from .. import printed
from . import pages

SEARCH = BeamSearch(max_length=24)


class Server(NamedTuple):
    process: subprocess.Popen
    address: str


@pytest.fixture
def server(learned_workdir):
    """A server that is ready."""
    options = ["--workdir", str(learned_workdir), "--max-length", "24", "--max-batch", "4"]
    process = subprocess.Popen(
        [sys.executable, "-m", "jaxformer", "serve", *options, "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
    )

    messages = []
    found = None
    for message in process.stderr:
        messages.append(message)
        found = re.match(r"serving (http://.*)\n", message)
        if found:
            break
    assert found, "".join(messages)
    assert sum(message.startswith("compiling ") for message in messages) > 3

    yield Server(process, found[1])
    process.kill()
    process.communicate()


@pytest.mark.ci
def test_every_client_gets_its_own_answer_until_the_server_is_stopped(learned_workdir, server):
    [block] = pages.sections("serving.md")["Clients"]
    names = {}
    pages.run("serving.md", block.replace("http://127.0.0.1:5000", server.address), names)
    translate = names["translate"]
    settings = json.load(urllib.request.urlopen(f"{server.address}/frontend/settings"))
    assert settings["model"] == learned_workdir.name

    pairs = itertools.islice(NumeralsCorpus().pairs("held_out"), 40)
    sources = [english for english, _ in pairs]
    expected = Translator.load(learned_workdir, search=SEARCH).translate(sources)
    assert len(set(expected)) > 30

    with ThreadPoolExecutor(17) as pool:
        assert list(pool.map(translate, sources)) == expected

        # A stop while sentences wait still gives their translations.
        running = pool.submit(translate, sources * 3)
        metrics = ""
        while not re.search(r"jaxformer_queue_sentences [1-9]", metrics) and not running.done():
            metrics = urllib.request.urlopen(f"{server.address}/metrics").read().decode()
        server.process.send_signal(signal.SIGTERM)
        assert running.result() == expected * 3

    assert server.process.wait(60) == 0
    with pytest.raises(OSError, match="refused"):
        translate("one")


@pytest.mark.ci
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_the_commands_of_the_page_get_answers(server):
    found = printed.shell_commands(pages.DOCS / "serving.md")
    commands = [command for command in found if "/translate" in command]
    answers = []
    for command in commands:
        own = command.replace("http://127.0.0.1:5000", server.address)
        finished = subprocess.run(["bash", "-c", own], capture_output=True, check=True)
        answers.append(json.loads(finished.stdout)["translatedText"])

    single, several = answers
    assert isinstance(single, str)
    assert isinstance(several, list)
    assert len(several) == 2


@pytest.mark.ci
def test_after_warm_up_nothing_compiles_and_a_bad_sentence_fails_alone(learned_workdir):
    translator = Translator.load(learned_workdir, search=SEARCH)
    backend = TranslatorBackend(translator)
    assert backend.languages == {"en": ["de"]}

    backend.warm_up(1, lambda step: None)
    compiled = []

    def note(event, *_, **__):
        if event.endswith("compile_duration"):
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    text = "two hundred"
    long = "nine " * 300
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


def test_terms_of_a_request_come_before_the_servers(learned_workdir):
    translator = Translator.load(learned_workdir, search=SEARCH)
    own = {"two": "beide", "nine": "neune"}
    backend = TranslatorBackend(translator, glossary=Glossary(own))
    texts = ["two hundred", "nine", "two", "one"]
    given = [(), (("nine", "nein"),), (("two", "zwo"),), ()]
    pairs = zip(texts, given, strict=True)
    found = backend.translate([Sentence(text, "de", terms=terms) for text, terms in pairs])

    expected = []
    for text, terms in zip(texts, given, strict=True):
        alone = [translator.hypotheses([text])[0]]
        glossary = Glossary(own | dict(terms))
        ids = [translator.source_ids(text)]
        (best,) = glossary.apply(translator, [text], ids, alone, n_best=0)
        expected.append(best[0].text)
    assert [each.texts[0] for each in found] == expected
    assert expected[1].startswith("Nein")
    assert expected[2].startswith("Zwo")


def test_a_server_that_is_stopped_before_it_runs_exits():
    code = """
import signal
import jaxformer.cli.commands.serve as command
from jaxformer.serving.app import make_app
class Backend:
    name = ""
    languages = {"en": ["de"]}
    translate = None
command.print = lambda *args, **options: signal.raise_signal(signal.SIGTERM)
app = make_app(Backend(), command.Limits())
command.run_server(app, command.Address(port=0).reserve())
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
