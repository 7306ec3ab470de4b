"""Records shapes.json and final.json: what vLLM of autumn 2026 makes of the messages and the
tools of random chat requests, by pydantic itself, and of final messages that are to
be continued, by Jinja2 itself.

    python3 record.py      # Python 3.11, pydantic 2.13.4, openai 3.3, Jinja2 3.1.6

The types of messages are those of the package openai and of vLLM's
entrypoints/chat_utils.py, the types of tools those of its
entrypoints/generate/base/protocol.py. Nothing here runs in the tests.
"""

import json
import random
from typing import Any, Literal, Union

import jinja2.sandbox
from openai.types.chat.chat_completion_content_part_input_audio_param import ChatCompletionContentPartInputAudioParam
from openai.types.chat.chat_completion_content_part_param import ChatCompletionContentPartParam
from openai.types.chat.chat_completion_content_part_refusal_param import ChatCompletionContentPartRefusalParam
from openai.types.chat.chat_completion_function_tool_param import ChatCompletionFunctionToolParam
from openai.types.chat.chat_completion_message_param import ChatCompletionMessageParam
from openai.types.chat.chat_completion_message_tool_call_param import ChatCompletionMessageToolCallParam
from pydantic import BaseModel, ConfigDict, TypeAdapter, model_serializer, model_validator
from typing_extensions import Required, TypedDict


def typed(title, /, **fields):
    return TypedDict(title, fields, total=False)


Text = str | None
URL = typed("URL", url=Required[str])
Part = Union[
    ChatCompletionContentPartParam,
    typed("Audio", audio_url=Required[URL], type=Required[Literal["audio_url"]]),
    ChatCompletionContentPartInputAudioParam,
    typed("Video", video_url=Required[URL], type=Required[Literal["video_url"]]),
    ChatCompletionContentPartRefusalParam,
    typed("Picture", image_pil=Any, uuid=Text),
    typed("Image", image_url=Text, uuid=Text),
    typed("ImageEmbeds", image_embeds=str | dict[str, str] | None, type=Required[Literal["image_embeds"]], uuid=Text),
    typed("AudioEmbeds", audio_embeds=str | dict[str, str] | None, type=Required[Literal["audio_embeds"]], uuid=Text),
    typed("PromptEmbeds", data=Required[str], type=Required[Literal["prompt_embeds"]]),
    typed("SimpleAudio", audio_url=Text),
    typed("SimpleVideo", video_url=Text, uuid=Text),
    typed("ToolReference", name=str, type=Literal["tool_reference"]),
    str,
    typed("Thinking", thinking=Required[str], closed=bool, type=Required[Literal["thinking"]]),
]
Custom = typed(
    "Custom",
    role=Required[str],
    content=str | list[Part],
    name=str,
    tool_call_id=Text,
    tool_calls=list[ChatCompletionMessageToolCallParam] | None,
    reasoning=Text,
    tools=list[ChatCompletionFunctionToolParam] | None,
    task=Text,
)


class Chat(BaseModel):
    model_config = ConfigDict(extra="allow")
    messages: list[Union[ChatCompletionMessageParam, Custom]]


KEEP = False  # as vLLM up to 0.24


class Tool(BaseModel):
    model_config = ConfigDict(extra="allow")

    @model_serializer(mode="wrap")
    def dump(self, handler):
        fields = type(self).model_fields
        return {
            k: v
            for k, v in handler(self).items()
            if (KEEP or k in fields) and not (v is None and k in ("strict", "defer_loading"))
        }


class Function(Tool):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class FunctionTool(Tool):
    type: Literal["function"] = "function"
    function: Function
    defer_loading: bool | None = None

    @model_validator(mode="after")
    def propagate(self):
        if self.function.defer_loading is None:
            self.function.defer_loading = self.defer_loading
        return self


TOOLS = TypeAdapter(list[FunctionTool])
TEXTS = {"text": "text", "input_text": "text", "refusal": "refusal", "thinking": "thinking", "tool_reference": "name"}


def plain(x):
    """Makes lists of pydantic's iterators."""
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    if x is None or isinstance(x, (str, int, float)):
        return x
    return [plain(y) for y in x]


def part(p, wrap):
    if isinstance(p, str):
        p = {"type": "text", "text": p}
    kind = p["type"]
    text = p.get(TEXTS[kind])
    if p.get("uuid") is not None:
        raise ValueError("uuid")
    if not wrap:
        return text
    return {"type": kind, "name": text} if kind == "tool_reference" else {"type": "text", "text": text}


def message(m, wrap):
    role, content = m["role"], m.get("content")
    content = [content] if isinstance(content, str) else content or []
    parts = [s for s in (part(p, wrap) for p in content) if s]
    out = {"role": role, "content": parts if wrap else "\n".join(parts)}
    if role == "assistant":
        if m.get("tool_calls"):
            out["tool_calls"] = m["tool_calls"]
            for call in m["tool_calls"]:
                try:
                    call["function"]["arguments"] = json.loads(call["function"]["arguments"])
                except json.JSONDecodeError:
                    call["function"]["arguments"] = {}
        if m.get("reasoning") is not None:
            out["reasoning"] = out["reasoning_content"] = m["reasoning"]
    if role == "tool":
        if "tool_call_id" in m:
            out["tool_call_id"] = m["tool_call_id"]
        if wrap and all(p["type"] == "text" for p in parts):
            out["content"] = "\n".join(p["text"] for p in parts)
    for name in ("name", "task"):
        if isinstance(m.get(name), str):
            out[name] = m[name]
    if role == "developer":
        out["tools"] = m.get("tools")
    return out


def shape(body, wrap, keep=False):
    global KEEP
    KEEP = keep
    o = json.loads(body)
    for m in o["messages"]:
        reasoning = m.pop("reasoning_content", None)
        if reasoning is not None and m.get("reasoning") is None:
            m["reasoning"] = reasoning
    try:
        messages = [message(plain(m), wrap) for m in Chat.model_validate(o).messages]
        tools = [t.model_dump() for t in TOOLS.validate_python(o["tools"])] if "tools" in o else None
    except Exception as e:
        return {"err": type(e).__name__}
    return {"messages": json.dumps(messages, ensure_ascii=False), "tools": json.dumps(tools, ensure_ascii=False)}


R = random.Random(7)
ARGUMENTS = ["{}", "", '{"b":1,"a":[1.0,2e3,null]}', "nope", "3", '{"a":1,"b":2,"a":3}', ' {"x":"\\u00e9"} ', '{"x":01}', "NaN"]


def text():
    return R.choice(["", "a", "b\n", "  x ", "<t>", "ü"])


def junk():
    return R.choice([None, 5, 1.5, True, "j", [], [1], {"k": 1}])


def some(**fields):
    """An object of fields, each with its probability, in random order."""
    o = {k: (make() if R.random() > 0.01 else junk()) for k, (p, make) in fields.items() if R.random() < p}
    return {k: o[k] for k in R.sample(list(o), len(o))}


def random_part():
    kind = R.choice(["text", "text", "text", "refusal", "thinking", "tool_reference", "input_text", "foo", None])
    if kind is None:
        return text()
    return some(type=(1, lambda: kind), cache_control=(0.1, junk), **{TEXTS.get(kind, "text"): (0.99, text)})


def random_call():
    function = some(name=(1, text), arguments=(1, lambda: R.choice(ARGUMENTS)), x=(0.1, junk))
    return some(id=(1, text), type=(1, lambda: "function"), function=(1, lambda: function), index=(0.2, lambda: 0))


def random_message():
    role = R.choice(["user", "system", "assistant", "assistant", "assistant", "tool", "tool", "developer", "function", "ipython"])
    content = R.choice([text, text, lambda: [random_part() for _ in range(R.randint(0, 3))], lambda: None])
    return some(
        role=(1, lambda: role),
        content=(0.95, content),
        name=(0.2, text),
        reasoning=(0.2, text),
        reasoning_content=(0.1, text),
        task=(0.05, text),
        tool_call_id=(0.8 if role == "tool" else 0.05, text),
        tool_calls=(0.5 if role == "assistant" else 0, lambda: [random_call() for _ in range(R.randint(0, 2))]),
        refusal=(0.1, lambda: None),
        annotations=(0.05, list),
    )


def random_tool():
    schema = {"type": "object", "properties": {"z": {}, "a": {"default": 1.0}}}
    function = some(
        name=(1, text),
        description=(0.7, text),
        parameters=(0.7, lambda: schema),
        strict=(0.2, lambda: R.choice([True, False, "true", 1, None])),
        defer_loading=(0.05, lambda: True),
        **{"return": (0.1, junk)},
    )
    return some(type=(0.9, lambda: "function"), function=(1, lambda: function), x=(0.05, junk), defer_loading=(0.05, lambda: False))


def random_body():
    o = {"messages": [random_message() for _ in range(R.randint(1, 2))]}
    if R.random() < 0.4:
        o["tools"] = [random_tool() for _ in range(R.randint(1, 2))]
    return json.dumps(o, ensure_ascii=R.random() < 0.5)


def continued(template, content):
    """What transformers 4.57 makes of a final message with the content."""
    tag = "CONTINUE_FINAL_MESSAGE_TAG "
    text = template.render(messages=[{"role": "assistant", "content": content + tag}])
    if content.strip() not in text or tag.strip() not in text:
        return None
    at = text.rindex(tag.strip())
    return text[:at] if text[at:].startswith(tag) else text[:at].rstrip()


def main():
    rows = []
    while len(rows) < 250:
        body = random_body()
        row = {"body": body, "string": shape(body, False), "parts": shape(body, True)}
        if "err" in row["string"] and R.random() < 0.8:
            continue
        if '"tools"' in body:
            row["kept"] = shape(body, False, True).get("tools")
        rows.append(row)
    with open("shapes.json", "w") as f:
        json.dump(rows, f, ensure_ascii=False, indent=0)
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    rows = []
    for source in ["<{{ messages[-1].content }}>", "<{{ messages[-1].content | trim }}>", "< {{ messages[-1].content | trim }} >",
                   "{{ messages[-1].content.split('</think>')[-1].lstrip() }}!", "{{ messages[-1].content | upper }}", "x"]:
        for content in ["a", "a ", " a\n", "", "  ", "a\u00a0\u2028\x1c", "a\u200b ", "<think>b</think> c ", "CONTINUE_FINAL_MESSAGE_TAG x"]:
            rows.append({"template": source, "content": content, "out": continued(env.from_string(source), content)})
    with open("final.json", "w") as f:
        json.dump(rows, f, ensure_ascii=False, indent=0)


if __name__ == "__main__":
    main()
