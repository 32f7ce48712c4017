"""Facts about fields of sections: values that are allowed, and strict defaults."""

import dataclasses
import json
import math
import typing

import pytest

from jaxformer.config import Config
from jaxformer.data.corpus import DataSection
from jaxformer.errors import UserError
from jaxformer.fields import (
    STRICT,
    Facts,
    check_values,
    expected_type,
    facts_of,
    fields_given,
    setting,
)
from jaxformer.models.architecture import Architecture
from jaxformer.runs.run_directory import check_workdir
from jaxformer.runs.workdir import Workdir
from jaxformer.training.mesh import MeshConfig
from jaxformer.training.settings import FitConfig

Config.from_dict({})  # imports all kinds of experiments


def subclasses(base):
    """Yields the dataclasses of the package among a class and its subclasses."""
    for cls in base.__subclasses__():
        yield from subclasses(cls)
    if dataclasses.is_dataclass(base) and base.__module__.startswith("jaxformer."):
        yield base


SECTIONS = {
    cls for base in (Architecture, DataSection, FitConfig, MeshConfig) for cls in subclasses(base)
}


def test_sections_of_all_kinds_are_found():
    names = {cls.__name__ for cls in SECTIONS}
    assert {"StudentConfig", "ViTConfig", "ImagesConfig", "TrainingConfig", "MeshConfig"} < names


@pytest.mark.parametrize("section", sorted(SECTIONS, key=repr))
def test_every_number_of_a_section_says_which_values_it_may_have(section):
    hints = typing.get_type_hints(section)
    for name, facts in facts_of(section).items():
        is_number = expected_type(hints[name]) in (int, float, tuple)
        assert is_number == bool(facts.check), name


def test_silence_is_strict():
    assert STRICT == Facts() == Facts(check="", in_files=True)
    allowed = (STRICT.may_change, STRICT.may_move, STRICT.may_differ, STRICT.per_use)
    assert not any(allowed)


RANGES = {
    "positive": ([1e-300, 0.5, 1, 10**400], [0, -1, math.inf, math.nan]),
    "not negative": ([0, 0.0, 3], [-1, -1e-300, math.inf, math.nan]),
    "fraction": ([0, 0.999], [1, -0.1, math.nan]),
    "positive fraction": ([1e-300, 0.999], [0, 1, math.nan]),
    "size": ([1, 2**20], [0, -1, 2**20 + 1, 10**400]),
    "own": ([0, -1], []),
    "any": ([0, -1], []),
}


@pytest.mark.parametrize("check", RANGES)
def test_values_out_of_range_are_refused(check):
    @dataclasses.dataclass
    class Section:
        number: object = setting(None, check)

        def __post_init__(self):
            check_values(self, "model")

    accepted, refused = RANGES[check]
    assert Section().number is None
    for value in accepted:
        assert Section(value).number == value
    for value in refused:
        with pytest.raises(UserError, match=r"^model\.number must be (greater|at|0)"):
            Section(value)


def resume(folder, before, after):
    (folder / "checkpoints").mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(before.to_dict()))
    check_workdir(Workdir(folder), after, after.facts())


def test_a_run_resumes_with_other_values_where_a_field_says_so(tmp_path):
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Settings(FitConfig):
        silent: int = 0
        changing: int = setting(0, "any", may_change=True)
        moving: str | None = setting(None, may_move=True)

    resume(tmp_path, Settings(), Settings(changing=3, steps=7))
    resume(tmp_path, Settings(moving="here"), Settings(moving="there"))
    for name, before, after in (
        ("silent", Settings(silent=1), Settings()),
        ("moving", Settings(moving="here"), Settings()),
        ("moving", Settings(), Settings(moving="there")),
        ("seed", Settings(seed=1), Settings()),
    ):
        with pytest.raises(UserError, match=rf"holds a run with fit\.{name}="):
            resume(tmp_path, before, after)


def test_facts_about_a_section_hold_for_its_fields(tmp_path):
    before = Config()
    resume(tmp_path, before, dataclasses.replace(before, mesh=MeshConfig(data=2)))
    model = dataclasses.replace(before.model, dropout_rate=0.3)
    message = r"holds a run with model\.dropout_rate=0\.1, .*training\.init_from="
    with pytest.raises(UserError, match=message):
        resume(tmp_path, before, dataclasses.replace(before, model=model))
    model = dataclasses.replace(before.model, d_ff=1024)
    with pytest.raises(UserError, match=r"model\.d_ff=2048, but 1024 .*, or another folder$"):
        resume(tmp_path, before, dataclasses.replace(before, model=model))


def test_fields_equal_to_their_defaults_are_not_given():
    @dataclasses.dataclass
    class Section:
        name: str = "auto"
        number: float = 1.0

    same_text = "".join(["au", "to"])  # Equal to the default, but another object.
    assert list(fields_given(Section(same_text, 1))) == []
    assert list(fields_given(Section("other", 1.5))) == ["name", "number"]
