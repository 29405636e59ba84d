"""How DeepSeek-V3.2 is told of its tools.

The wording is part of the format, as special tokens are: the model was trained on these very characters, and a test
holds their digest. It is DeepSeek's (MIT License), from `encoding/encoding_dsv32.py` of
https://huggingface.co/deepseek-ai/DeepSeek-V3.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from duckfleet.runtime.dialect.dsml import to_json

# ruff: noqa: E501
_BEFORE = """\
## Tools
You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<｜DSML｜function_calls>" block like the following as part of your reply to the user:
<｜DSML｜function_calls>
<｜DSML｜invoke name="$FUNCTION_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$FUNCTION_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜function_calls>
String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types (numbers, booleans, arrays, objects).
If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. Here is an example:
<｜DSML｜function_calls>
...
</｜DSML｜function_calls>
<function_results>
...
</function_results>
<think>...thinking about results</think>
Here are the functions available in JSONSchema format:
<functions>
"""
_AFTER = "\n</functions>\n"


def tools_preamble(tools: Sequence[Mapping[str, Any]]) -> str:
    """`tools`: functions as OpenAI describes them, one JSON object a line."""
    return _BEFORE + "\n".join(to_json(tool) for tool in tools) + _AFTER
