"""Configs with other fields, what a run reports, and files."""

import dataclasses
import json
import pathlib
from collections.abc import Iterable

from jaxformer.config import Config


class Killed(BaseException):
    """An exception that stands in for the end of the process."""


def changed(config: Config, **sections: dict) -> Config:
    """Returns a config with other fields in its sections."""
    new = {}
    for name, fields in sections.items():
        section = getattr(config, name)
        new[name] = dataclasses.replace(section, **fields)
    return dataclasses.replace(config, **new)


def reports(workdir: pathlib.Path, kind: str = "") -> list[dict]:
    """Returns the reports of a run, of one kind, or of all but the use of its time."""
    lines = (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    found = list(map(json.loads, lines))
    if not kind:
        return [report for report in found if report["kind"] != "time"]
    return [report for report in found if report["kind"].startswith(kind)]


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    """Returns all files below a folder, with their bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def flip_a_bit(folder: pathlib.Path) -> None:
    """Damages the largest file below a folder."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    path = max(paths, key=lambda path: path.stat().st_size)

    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def write_lines(path: pathlib.Path, lines: Iterable[str]) -> None:
    """Writes lines to a text file."""
    content = "".join(f"{line}\n" for line in lines)
    path.write_text(content, encoding="utf-8")


def write_pairs(prefix: pathlib.Path, pairs: list[tuple[str, str]]) -> None:
    """Writes pairs of texts to PREFIX.en and PREFIX.de."""
    for side, language in enumerate(("en", "de")):
        path = pathlib.Path(f"{prefix}.{language}")
        write_lines(path, [pair[side] for pair in pairs])
