import importlib.util
import pathlib

PROJECT = pathlib.Path(__file__).parents[3]


def test_the_table_in_the_docs_is_up_to_date():
    script = PROJECT / "benchmarks" / "communication.py"
    spec = importlib.util.spec_from_file_location("communication", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.table() in (PROJECT / "docs" / "scaling.md").read_text(encoding="utf-8")
