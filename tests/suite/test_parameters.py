"""Parameters are typed by the cell alone; what does not fit is refused with a remedy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_lib.suite import parameters

CELL = """\
env_ids: list[str] = ["CartPole-v1"]  # gym names
num_bits: list[int] = [2, 4]  # from 2 to 16
learning_rate: float = 1e-4  # Adam's; lr = 1e-4 is the paper's # see appendix B
episodes: int = 7
retrain: bool = False  # true = train anew
country: str = "NO"
"""
DECLARED = parameters.parse_cell(CELL)


def test_cell_keeps_name_type_default_and_help_with_equals_and_hash():
    rate = DECLARED["learning_rate"]
    assert (rate.type, rate.default) == ("float", 1e-4)
    assert rate.help == "Adam's; lr = 1e-4 is the paper's # see appendix B"
    assert DECLARED["num_bits"].default == [2, 4]
    assert DECLARED["episodes"].help == ""
    assert list(DECLARED) == ["env_ids", "num_bits", "learning_rate", "episodes", "retrain", "country"]


def test_cell_over_several_lines_has_the_help_of_its_last():
    cell = "names: list[str] = [\n    'a',\n    'b',\n]  # two names\n"
    assert parameters.parse_cell(cell)["names"] == parameters.Parameter("names", "list[str]", ["a", "b"], "two names")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("x = 3", "name: type = value"),
        ("import os", "name: type = value"),
        ("x: int | None = None", "int | None is not one of"),
        ("x: dict = {}", "dict is not one of"),
        ("x: int = '3'", "without quotes"),
        ("x: int = 2.5", "not of type int"),
        ("x: int = 2 + y", "write the value itself"),
        ("x: int = (", "parameters cell, line 1: no Python"),
        ("  x: int = 1", "parameters cell, line 1: no Python"),
        ("x: str = '", "parameters cell, line 1: no Python"),
    ],
)
def test_cell_refuses_other_lines(line, said):
    with pytest.raises(ValueError, match="parameter") as error:
        parameters.parse_cell(line)
    assert said in str(error.value)


def test_yaml_is_typed_by_the_cell():
    text = "learning_rate: 1e-4\nretrain: false\nepisodes: 1e3\ncountry: NO\nnum_bits: [2, 8]\nenv_ids: [yes, 1e3]\n"
    assert parameters.from_yaml(text, DECLARED, "a.yaml") == {
        "learning_rate": 1e-4, "retrain": False, "episodes": 1000, "country": "NO", "num_bits": [2, 8],
        "env_ids": ["yes", "1e3"],
    }  # fmt: skip
    assert parameters.from_yaml("num_bits: 4", DECLARED, "a.yaml") == {"num_bits": [4]}  # as on the command line
    whole = parameters.from_yaml("learning_rate: 7", DECLARED, "a.yaml")["learning_rate"]
    assert whole == 7.0
    assert type(whole) is float


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("episodez: 3", "unknown; did you mean episodes?"),
        ("episodes: abc", "parameter episodes: 'abc' is not of type int"),
        ("episodes: 2.5", "not of type int"),
        ("episodes: true", "not of type int"),
        ("episodes:", "keep its default"),
        ("country: ~", "keep its default"),
        ("learning_rate: .nan", "not of type float"),
        ("learning_rate: nan", "finite"),
        ("learning_rate: inf", "finite"),
        ("retrain: no", "true or false"),
        ("num_bits: [4, x]", "'x' is not of type int"),
        ("episodes: [1]", "--grid"),
        ("episodes: {a: 1}", "mapping"),
        ("episodes: 1\nepisodes: 2", "line 2: episodes stands there twice"),
        ("- 1", "name: value"),
        ("a: [", "not YAML"),
        ("episodes: 3\n[a, b]: 1", "line 2: a list or mapping stands where a parameter's name belongs"),
        ("? {a: 1}\n: 1", "line 1: a list or mapping stands where a parameter's name belongs"),
        ("episodes: &a [*a]", "parameter episodes"),
        ("api_key: abc", "looks like a secret"),
    ],
)
def test_yaml_refuses(text, said):
    with pytest.raises(ValueError, match=r"a\.yaml") as error:
        parameters.from_yaml(text, DECLARED, "a.yaml")
    assert said in str(error.value)


def test_pairs_from_the_command_line():
    pairs = ["env_ids=CartPole-v1,Pendulum-v1", "num_bits=[2, 4]", "learning_rate=1e-3", "retrain=True", "country=a=b"]
    assert parameters.from_pairs(pairs, DECLARED) == {
        "env_ids": ["CartPole-v1", "Pendulum-v1"], "num_bits": [2, 4], "learning_rate": 1e-3, "retrain": True,
        "country": "a=b",
    }  # fmt: skip
    assert parameters.from_pairs(["country=none", "env_ids=[]"], DECLARED) == {"country": "none", "env_ids": []}
    assert parameters.from_pairs(["country="], DECLARED) == {"country": ""}


@pytest.mark.parametrize("pair", ["episodes", "episodes=null", "env_ids=", "num_bits=[1", "episodes=nan", "epsodes=1"])
def test_pairs_refuse(pair):
    with pytest.raises(ValueError, match=r"episodes|env_ids|num_bits"):
        parameters.from_pairs([pair], DECLARED)


def test_secrets_are_refused_by_name_and_plain_words_are_not():
    for name in ("password", "hub_token", "AWS_SECRET", "apikey", "api_key", "private_key_path", "apiToken", "pwd",
                 "auth", "ssh_key", "wandb_key", "bearer", "APIKey", "hfToken", "DB_PASSWORD"):  # fmt: skip
        with pytest.raises(ValueError, match="secret"):
            parameters.from_pairs([f"{name}=x"], DECLARED)
    for name in ("num_tokens", "keys", "monkey", "key_bits", "authors", "tokenizer", "env_ids"):
        assert not parameters.looks_secret(name)


@pytest.mark.parametrize("text", ["", ",", " , "])
def test_empty_grid_is_refused(text):
    with pytest.raises(ValueError, match=r"episodes.*empty grid; give at least one value"):
        parameters.from_pairs([f"episodes={text}"], DECLARED, grid=True)


def test_params_file_in_another_encoding_names_file_and_line(tmp_path):
    path = tmp_path / "given.yaml"
    path.write_bytes("episodes: 3\ncountry: Österreich\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"given\.yaml, line 2: not UTF-8; save the file in that encoding"):
        parameters.read_file(path, DECLARED)
    path.write_bytes("episodes: 3\ncountry: Österreich\n".encode("utf-8-sig"))
    assert parameters.read_file(path, DECLARED) == {"episodes": 3, "country": "Österreich"}


def test_grid_gives_each_combination_once():
    values = parameters.from_pairs(["num_bits=[2],[4, 8]", "episodes=1,2"], DECLARED, grid=True)
    assert values == {"num_bits": [[2], [4, 8]], "episodes": [1, 2]}
    assert parameters.combinations(values) == [
        {"num_bits": bits, "episodes": n} for bits in ([2], [4, 8]) for n in (1, 2)
    ]
    assert parameters.from_pairs(["num_bits=2,4"], DECLARED, grid=True) == {"num_bits": [[2], [4]]}


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(), st.booleans())
def test_what_yaml_dumps_comes_back(rate, episodes, retrain):
    text = f"learning_rate: {rate!r}\nepisodes: {episodes}\nretrain: {str(retrain).lower()}"
    assert parameters.from_yaml(text, DECLARED, "x") == {
        "learning_rate": rate, "episodes": episodes, "retrain": retrain,
    }  # fmt: skip


def test_python_values_follow_the_same_rules():
    assert parameters.from_values({"learning_rate": 1, "num_bits": (2, 3)}, DECLARED) == {
        "learning_rate": 1.0, "num_bits": [2, 3],
    }  # fmt: skip
    for bad in ({"episodes": True}, {"learning_rate": float("nan")}, {"num_bits": [1.5]}, {"country": 3}):
        with pytest.raises(ValueError, match="not of type"):
            parameters.from_values(bad, DECLARED)
