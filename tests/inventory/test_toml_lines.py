"""Line numbers of keys, for every way in which TOML lets a key be written."""

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from duckfleet.inventory.toml_lines import key_lines, line_of

TEXT = '''\
title = "a # b"      # comment with [brackets]
"quoted key" = 1

[owner.home]
text = """
[not.a.header]
key = 3
"""
after = 'single [x]'

[[ducks]]
mac = "1"
expect = { ram = 1, cpu = "x" }

[[ducks]]
list = [
  "a", # ] not the end
  "b",
]
mac = "2"

[[ducks.parts]]
size = 1
[[ducks.parts]]
size = 2
'''


def test_every_key_is_found_on_its_line() -> None:
    tomllib.loads(TEXT)
    lines = key_lines(TEXT)
    wanted = {
        ("title",): 'title = "a # b"',
        ("quoted key",): '"quoted key" = 1',
        ("owner", "home"): "[owner.home]",
        ("owner", "home", "text"): 'text = """',
        ("owner", "home", "after"): "after =",
        ("ducks", 0): "[[ducks]]",
        ("ducks", 0, "mac"): 'mac = "1"',
        ("ducks", 0, "expect"): "expect =",
        ("ducks", 1, "list"): "list = [",
        ("ducks", 1, "mac"): 'mac = "2"',
        ("ducks", 1, "parts", 1, "size"): "size = 2",
    }
    for path, start in wanted.items():
        assert TEXT.splitlines()[lines[path] - 1].startswith(start), path
    assert ("key",) not in lines


def test_what_stands_inside_a_value_is_on_the_line_of_its_key() -> None:
    lines = key_lines(TEXT)
    assert line_of(lines, ("ducks", 0, "expect", "ram")) == lines["ducks", 0, "expect"]
    assert line_of(lines, ("ducks", 1, "address")) == lines["ducks", 1]
    assert line_of(lines, ("nothing",)) == 1


_KEYS = st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True)
_VALUES = st.sampled_from(['"a#b"', "'[x]'", '"""\n[y]\nz = 1\n"""', "[\n 1, # ]\n 2\n]", "{ a = 1 }", "3", '"\\""'])


@given(st.lists(st.tuples(_KEYS, _VALUES), unique_by=lambda pair: pair[0], max_size=6), st.integers(0, 3))
def test_each_key_of_any_table_is_found_where_it_was_written(pairs: list[tuple[str, str]], blank: int) -> None:
    text = "\n" * blank + "[table]\n"
    expected = {}
    for key, value in pairs:
        expected["table", key] = text.count("\n") + 1
        text += f"{key} = {value}\n"
    tomllib.loads(text)
    lines = key_lines(text)
    assert {path: lines[path] for path in expected} == expected
