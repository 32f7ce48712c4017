"""Lines go to files, streams and devices, and no two outputs mix in one of them."""

import os
import pathlib
import subprocess
import sys
import threading

import pytest

from jaxformer.cli.outputs import check_outputs, open_output
from jaxformer.data.text_files import read_file
from jaxformer.errors import UserError
from jaxformer.files import STDIN, STDOUT, descriptor_of, input_path, is_stream, output_path

NULL = pathlib.Path("/dev/null")
STDERR = pathlib.Path("/dev/stderr")


def test_a_hyphen_is_a_stream_and_not_a_file():
    assert input_path("-") == STDIN
    assert output_path("-") == STDOUT
    for path in ("./-", "a", "/dev/null"):
        assert input_path(path) == pathlib.Path(path)
        assert output_path(path) == pathlib.Path(path)

    for path, number in (
        (STDIN, 0),
        (STDOUT, 1),
        (STDERR, 2),
        (pathlib.Path("/dev/fd/63"), 63),
        (pathlib.Path("/proc/self/fd/1"), 1),
        (NULL, None),
        (pathlib.Path("-"), None),
        (pathlib.Path("fd/1"), None),
    ):
        assert descriptor_of(path) == number


def test_streams(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()

    for path in (tmp_path / "pipe", NULL, STDOUT):
        assert is_stream(path)
    for path in (tmp_path / "file", tmp_path, tmp_path / "new"):
        assert not is_stream(path)


def test_streams_are_written_directly(tmp_path, capsys):
    with open_output(NULL) as write:
        write(["lost"])
    assert NULL.is_char_device()

    with open_output(STDOUT) as write:
        write(["eins", "größer"])
        assert capsys.readouterr().out == "eins\ngrößer\n"

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text("utf-8")))
    reader.start()
    with open_output(pipe) as write:
        write(["zwei"])
    reader.join()
    assert found == ["zwei\n"]
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_full_device_is_named():
    message = r"\[Errno 28\] No space left on device: '/dev/full'"
    full = pathlib.Path("/dev/full")
    with pytest.raises(OSError, match=message), open_output(full) as write:
        write(["lost"])


def test_an_open_file_is_continued_and_not_emptied(tmp_path):
    """As with ``--alignments /dev/fd/3 3>>file``."""
    path = tmp_path / "file"
    path.write_text("before\n")

    with path.open("a") as file:
        with open_output(pathlib.Path(f"/dev/fd/{file.fileno()}")) as write:
            write(["new"])
        file.write("after\n")

    assert path.read_text() == "before\nnew\nafter\n"


def test_standard_input_is_read_from_where_it_is(tmp_path):
    path = tmp_path / "in"
    path.write_text("one\ntwo\n")
    code = """
import os, pathlib
from jaxformer.data.text_files import read_file

os.read(0, 4)  # "one" and its line break
print(*read_file(pathlib.Path("/dev/stdin")))
"""
    with path.open() as stdin:
        found = subprocess.check_output([sys.executable, "-c", code], stdin=stdin, text=True)
    assert found == "two\n"

    read_end, write_end = os.pipe()
    os.write(write_end, b"drei\n")
    os.close(write_end)
    assert list(read_file(pathlib.Path(f"/dev/fd/{read_end}"))) == ["drei"]
    os.close(read_end)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Puts a file, a second name of it, a folder, a link and a named pipe into a folder."""
    monkeypatch.chdir(tmp_path)
    pathlib.Path("file").write_text("one\n")
    os.link("file", "same")
    os.mkdir("folder")
    os.symlink("file", "link")
    os.mkfifo("pipe")


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ("file", "new", None),
        ("file", "/dev/null /dev/null", None),
        ("/dev/null /dev/null", "pipe", None),
        ("pipe", "new other", None),
        ("file file", "new", None),
        ("pipe pipe", "", "pipe can be read only once: name a file for one of its uses"),
        ("file", "file", "--1 file is an input; name another file"),
        ("file", "same", "--1 same is an input"),
        ("pipe", "pipe", "--1 pipe is an input"),
        ("", "new new", "--2 new is also --1; name another file"),
        ("", "new ./new", "--2 new is also --1"),
        ("", "pipe pipe", "--2 pipe is also --1"),
        ("", "/dev/stdout /dev/fd/1", "--2 /dev/fd/1 is also --1"),
        ("", "folder", "the name of a file to write, not of a folder or link: folder"),
        ("", "link", "the name of a file to write, not of a folder or link: link"),
        ("", "new.gz", "new.gz: expected a name without .gz, since the output is plain text"),
        ("", "/dev/fd/987", "--1 /dev/fd/987: expected an open file to write to; name another"),
    ],
)
def test_uses_of_files(files, inputs, outputs, message):
    input_paths = [pathlib.Path(name) for name in inputs.split()]
    options = {}
    for number, name in enumerate(outputs.split(), start=1):
        options[f"--{number}"] = pathlib.Path(name)

    if message is None:
        check_outputs(input_paths, options)
        return

    with pytest.raises(UserError) as found:
        check_outputs(input_paths, options)
    assert message in str(found.value)


def test_standard_streams_that_are_files(files):
    """The shell has opened them: ``< file > out``."""
    code = """
import pathlib, sys
from jaxformer.cli.outputs import check_outputs
from jaxformer.files import STDIN, STDOUT

gold = pathlib.Path(sys.argv[1])
check_outputs([STDIN], {"--output": STDOUT, "--gold": gold})
"""

    for gold, out, message in (
        ("new", "out", ""),
        ("file", "out", "--gold file is an input; name another file"),
        ("out", "out", "--gold out is also --output; name another file"),
        ("/dev/stderr", "out", ""),
        ("new", "file", "--output /dev/stdout is an input; name another file"),
    ):
        with open("file") as stdin, open(out, "a") as stdout:
            command = [sys.executable, "-c", code, gold]
            done = subprocess.run(
                command,
                stdin=stdin,
                stdout=stdout,
                stderr=subprocess.PIPE,
                text=True,
            )

        if message:
            last_line = done.stderr.splitlines()[-1]
            assert last_line == f"jaxformer.errors.UserError: {message}"
        else:
            assert not done.stderr
