"""Values of the scripts of benchmarks/ that the docs quote."""

import inspect
import json
import pathlib
import runpy
import sys

PROJECT = pathlib.Path(__file__).parents[3]


def test_docs_are_up_to_date():
    notebook = runpy.run_path(str(PROJECT / "benchmarks" / "translation_notebook.py"))
    source = inspect.getsource(notebook["train_ours"])
    count = notebook["count_lines"](source)

    page = (PROJECT / "docs" / "notebooks.md").read_text(encoding="utf-8")
    assert f"| lines of code, without blank lines and comments | 327 | {count} |" in page


def test_measurements_of_a_gpu_go_on_where_a_call_has_ended(tmp_path, monkeypatch):
    """A failed measurement is repeated, a finished one is not, and a long one is not begun."""
    script = runpy.run_path(str(PROJECT / "benchmarks" / "gpu.py"))
    script_globals = script["main"].__globals__
    output = tmp_path / "gpu.jsonl"
    broken = tmp_path / "broken"
    broken.touch()

    def command_of(measurement, peers):
        program = f"""
import json, pathlib, sys
if pathlib.Path({str(broken)!r}).exists() and {measurement.name!r} == "second":
    sys.exit("cut off")
print(json.dumps({{"peers": {peers!r}}}))
"""
        return [sys.executable, "-c", program]

    # The third takes more than the 30 minutes of a call.
    measurements = []
    for name, minutes in {"first": 1, "second": 1, "third": 100}.items():
        measurement = script["Measurement"](name, minutes=minutes, script="", arguments=())
        measurements.append(measurement)
    monkeypatch.setitem(script_globals, "MEASUREMENTS", measurements)
    monkeypatch.setitem(script_globals, "command_of", command_of)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--peers", "python", "--output", str(output)])

    def written():
        return [json.loads(line)["measurement"] for line in output.read_text().splitlines()]

    script["main"]()
    assert written() == ["first"]

    broken.unlink()
    script["main"]()
    assert written() == ["first", "second"]
