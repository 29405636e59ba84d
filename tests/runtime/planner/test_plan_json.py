"""Plans as text: whole or refused."""

import json

import pytest

from duckfleet.runtime.planner import BadPlan, FfnShape, ModelShape, cut, plan_from_json, plan_to_json

PLAN = cut(ModelShape("m", 64, (FfnShape(64),)), tp=2)


def test_same_plan_same_text():
    assert plan_to_json(plan_from_json(plan_to_json(PLAN))) == plan_to_json(PLAN)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "x.json is not JSON"),
        ("[]", "not a shard plan of version 1"),
        ('{"version": 9}', "version 9"),
        ('{"version": 1}', "not a whole shard plan"),
        (json.dumps({**json.loads(plan_to_json(PLAN)), "tp": "2"}), "tp should be int"),
        (json.dumps({**json.loads(plan_to_json(PLAN)), "chunks": [[1]]}), "not a whole shard plan"),
    ],
)
def test_anything_else_is_refused(text, message):
    with pytest.raises(BadPlan, match=message):
        plan_from_json(text, "x.json")
