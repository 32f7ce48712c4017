"""Configs with other fields, and what a run reports."""

import dataclasses
import json
import pathlib

from jaxformer.config import Config


class Killed(BaseException):
    """An exception that stands in for the end of the process."""


def changed(config: Config, **sections: dict) -> Config:
    """Returns a config with other fields in its sections."""
    new = {name: dataclasses.replace(getattr(config, name), **sections[name]) for name in sections}
    return dataclasses.replace(config, **new)


def reports(workdir: pathlib.Path, kind: str = "") -> list[dict]:
    """Returns the reports of a run, of all kinds or of one."""
    lines = (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [report for report in map(json.loads, lines) if report["kind"].startswith(kind)]
