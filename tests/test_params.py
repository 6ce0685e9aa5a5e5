"""The three presets of every study: same keys, typed values, a Config that accepts them."""

from __future__ import annotations

import importlib

import pytest
import yaml

from quarl_lib.suite import catalog, parameters, plan

PROJECT = plan.PACKAGE.parent
STUDIES = catalog.find_studies(PROJECT)
CASES = [(study, preset) for study in STUDIES.values() for preset in catalog.PRESETS]


@pytest.mark.parametrize(("study", "preset"), CASES, ids=lambda value: getattr(value, "name", value))
def test_preset_names_every_parameter_once_and_its_config_accepts_it(study, preset):
    path = PROJECT / "params" / preset / f"{study.name}.yaml"
    given = parameters.read_file(path, study.parameters)
    assert set(given) == set(study.parameters)
    importlib.import_module(f"quarl_lib.studies.{study.name}").Config(**given)
    # Papermill alone reads the file by YAML's rules, where 1e-4 is a string: write what both read alike.
    assert yaml.safe_load(path.read_text()) == given


@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_smoke_is_what_the_cell_says(study):
    assert study.preset("smoke") == {name: one.default for name, one in study.parameters.items()}


def test_no_file_without_a_study():
    found = {path.stem for preset in catalog.PRESETS for path in (PROJECT / "params" / preset).glob("*")}
    assert found == set(STUDIES)
