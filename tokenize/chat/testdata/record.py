"""Records shapes.json and final.json: what versions of vLLM make of the messages and
the tools of random chat requests, by pydantic itself, and what becomes of final
messages that are to be continued, by Jinja2 itself.

    python3 record.py                    # the two files, in this folder
    python3 record.py 20000 /tmp/shapes  # so many bodies for each of two versions, for
                                         # KVINDEX_SHAPES=/tmp/shapes go test -run TestShapes

Python 3.11, pydantic 2.13.4, openai 3.3, Jinja2 3.1.6. The types of messages are
those of the package openai and of vLLM's entrypoints/chat_utils.py (in main
renderers/chat_utils), the types of tools those of its
entrypoints/generate/base/protocol.py. What changed when is in ../versions.go. Nothing
here runs in the tests.
"""

import json
import os
import random
import sys
from functools import lru_cache
from typing import Any, Literal, Union

import jinja2.sandbox
from openai.types.chat.chat_completion_content_part_input_audio_param import ChatCompletionContentPartInputAudioParam
from openai.types.chat.chat_completion_content_part_param import ChatCompletionContentPartParam
from openai.types.chat.chat_completion_content_part_refusal_param import ChatCompletionContentPartRefusalParam
from openai.types.chat.chat_completion_function_tool_param import ChatCompletionFunctionToolParam
from openai.types.chat.chat_completion_message_param import ChatCompletionMessageParam
from openai.types.chat.chat_completion_message_tool_call_param import ChatCompletionMessageToolCallParam
from pydantic import BaseModel, ConfigDict, TypeAdapter, create_model
from typing_extensions import Required, TypedDict


def typed(title, /, **fields):
    return TypedDict(title, fields, total=False)


def number(engine):
    """The version, such that later ones are greater."""
    return (99,) if engine == "main" else tuple(int(n) for n in engine.split("."))


Text = str | None
URL = typed("URL", url=Required[str])


def part_types(v):
    simple = Text if v >= (0, 11) else Required[str]
    uuid = {"uuid": Text} if v >= (0, 10, 2) else {}
    embeds = str | dict[str, str] | None if v >= (0, 11) else Required[str | dict[str, str]]
    types = [
        ChatCompletionContentPartParam,
        typed("Audio", audio_url=Required[URL], type=Required[Literal["audio_url"]]),
        ChatCompletionContentPartInputAudioParam,
        typed("Video", video_url=Required[URL], type=Required[Literal["video_url"]]),
        ChatCompletionContentPartRefusalParam,
        typed("Image", image_url=simple, **uuid),
        typed("ImageEmbeds", image_embeds=embeds, type=Required[Literal["image_embeds"]], **uuid),
        typed("SimpleAudio", audio_url=simple),
        typed("SimpleVideo", video_url=simple, **uuid),
        str,
    ]
    if v >= (0, 9, 2):
        types.append(typed("Picture", image_pil=Any if v >= (0, 11) else Required[Any], **uuid))
    if v >= (0, 10):
        types.append(typed("Thinking", thinking=Required[str], closed=bool, type=Required[Literal["thinking"]]))
    if v >= (0, 12):
        types.append(typed("AudioEmbeds", audio_embeds=str | dict[str, str] | None, type=Required[Literal["audio_embeds"]], uuid=Text))
    if v >= (0, 21):
        types.append(typed("PromptEmbeds", data=Required[str], type=Required[Literal["prompt_embeds"]]))
        types.append(typed("ToolReference", name=str, type=Literal["tool_reference"]))
    return Union[tuple(types)]


@lru_cache
def types_of(engine):
    """The types of a request's messages and of its tools, and the fields that are known of parts."""
    v = number(engine)
    part = part_types(v)
    fields = {
        "role": Required[str], "content": str | list[part], "name": str, "tool_call_id": Text,
        "tool_calls": list[ChatCompletionMessageToolCallParam] | None,
    }
    if v >= (0, 11, 1):
        fields["reasoning"] = Text
    if v >= (0, 13):
        fields["tools"] = list[ChatCompletionFunctionToolParam] | None
    if v >= (0, 20):
        fields["task"] = Text
    any_field = ConfigDict(extra="allow")
    chat = create_model("Chat", __config__=any_field, messages=list[Union[ChatCompletionMessageParam, typed("Custom", **fields)]])
    optional = {}
    if v >= (0, 24):
        optional["strict"] = (bool | None, None)
    if v >= (0, 21):
        optional["defer_loading"] = (bool | None, None)
    function = create_model("Function", __config__=any_field, name=str, description=(Text, None), parameters=(dict[str, Any] | None, None), **optional)
    optional.pop("strict", None)
    tool = create_model("Tool", __config__=any_field, type=(Literal["function"], "function"), function=function, **optional)
    known = set()
    for t in part.__args__:
        for u in getattr(t, "__args__", (t,)):
            known |= set(getattr(u, "__annotations__", {}))
    return chat, TypeAdapter(list[tool]), known


TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking", "tool_reference": "name"}
SINCE = {"thinking": (0, 10), "input_text": (0, 10), "output_text": (0, 12), "tool_reference": (0, 21)}


def plain(x):
    """Makes lists of pydantic's iterators."""
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    if x is None or isinstance(x, (str, int, float)):
        return x
    return [plain(y) for y in x]


def part(p, wrap, engine):
    v = number(engine)
    if isinstance(p, str):
        return {"type": "text", "text": p} if wrap and v >= (0, 18) else p
    kind = p.get("type")
    if kind not in TEXTS or v < SINCE.get(kind, ()) or p.get("uuid") is not None and v >= (0, 11):
        raise ValueError(kind)
    text = p.get(TEXTS[kind])
    if text is None and kind in ("text", "refusal"):
        return None
    if not wrap:
        return text
    if kind == "tool_reference":
        return {"type": kind, "name": text}
    more = {k: x for k, x in p.items() if k not in types_of(engine)[2]} if v >= (0, 26) else {}
    return {"type": "text", "text": text, **more}


def without_billing(content):
    for p in content:
        text = p if isinstance(p, str) else p.get("text") if p.get("type") == "text" else None
        if not isinstance(text, str) or not text.startswith("x-anthropic-billing-header"):
            yield p
        elif rest := text.partition("\n")[2]:
            yield rest if isinstance(p, str) else {**p, "text": rest}


def arguments(text, v):
    if not text and v >= (0, 11):
        return {}
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError:
        if v < (99,):
            raise
        parsed = None
    return {} if parsed is None and v >= (0, 23) or not isinstance(parsed, dict) and v >= (99,) else parsed


def reasoning(m, v):
    if v >= (0, 16):
        return m.get("reasoning")
    return (m.get("reasoning") or m.get("reasoning_content")) if v >= (0, 11, 1) else None


def message(m, wrap, engine):
    v = number(engine)
    role, content = m["role"], m.get("content")
    content = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    if role == "system" and v >= (99,):
        content = list(without_billing(content))
    parts = [s for s in (part(p, wrap, engine) for p in content) if s]
    out = {"role": role, "content": parts if wrap else "\n".join(parts)}
    if role == "assistant":
        calls = m.get("tool_calls")
        if calls or calls is not None and v < (0, 13):
            out["tool_calls"] = calls
            for call in calls:
                call["function"]["arguments"] = arguments(call["function"]["arguments"], v)
        if reasoning(m, v) is not None:
            out["reasoning"] = out["reasoning_content"] = reasoning(m, v)
    if role == "tool":
        if "tool_call_id" in m:
            out["tool_call_id"] = m["tool_call_id"]
        if wrap and v >= (0, 20) and all(p["type"] == "text" for p in parts):
            out["content"] = "\n".join(p["text"] for p in parts)
    for name in ("name", "task"):
        if isinstance(m.get(name), str) and (name == "name" or v >= (0, 20)):
            out[name] = m[name]
    if role == "developer" and v >= (0, 13):
        out["tools"] = m.get("tools")
    return out


def dump(model, v):
    """A tool, or its function, as the template gets it."""
    known = type(model).model_fields
    o = {k: (dump(x, v) if isinstance(x, BaseModel) else x) for k, x in model}
    o = {k: x for k, x in o.items() if k in known or v < (0, 27)}
    return {k: x for k, x in o.items() if not (x is None and k in known and k in ("strict", "defer_loading"))}


def tools_of(o, engine):
    v = number(engine)
    if o.get("tools") is None:
        return None
    if o["tools"] == [] and v >= (0, 20):
        raise ValueError("tools")
    tools = types_of(engine)[1].validate_python(o["tools"])
    for t in tools:
        if v >= (0, 21) and t.function.defer_loading is None:
            t.function.defer_loading = t.defer_loading
    return [dump(t, v) for t in tools]


def shape(body, wrap, engine):
    o = json.loads(body)
    if number(engine) >= (0, 22):
        for m in o["messages"]:
            other = m.pop("reasoning_content", None)
            if other is not None and m.get("reasoning") is None:
                m["reasoning"] = other
    try:
        messages = [message(plain(m), wrap, engine) for m in types_of(engine)[0].model_validate(o).messages]
        tools = tools_of(o, engine)
    except Exception as e:
        return {"err": type(e).__name__}
    return {"messages": json.dumps(messages, ensure_ascii=False), "tools": json.dumps(tools, ensure_ascii=False)}


R = random.Random(7)
ARGUMENTS = ["{}", "", '{"b":1,"a":[1.0,2e3,null]}', "nope", "3", "null", "[{}]", '"{}"', '{"a":1,"b":2,"a":3}', ' {"x":"\\u00e9"} ', '{"x":01}', "NaN"]


def text():
    return R.choice(["", "a", "b\n", "  x ", "<t>", "ü"])


def system_text():
    return R.choice([text(), text(), "x-anthropic-billing-header: cc_version=2; cch=" + R.choice(["1", "2\n", "3\n\nb\n"]) + text()])


def junk():
    return R.choice([None, 5, 1.5, True, "j", [], [1], {"k": 1}])


def some(**fields):
    """An object of fields, each with its probability, in random order."""
    o = {k: (make() if R.random() > 0.01 else junk()) for k, (p, make) in fields.items() if R.random() < p}
    return {k: o[k] for k in R.sample(list(o), len(o))}


def random_part(text):
    kind = R.choice(["text", "text", "text", "refusal", "thinking", "tool_reference", "input_text", "output_text", "foo", None])
    if kind is None:
        return text()
    more = {k: (0.05, junk) for k in ("cache_control", "x", "detail", "closed", "image_url", "k")}
    return some(type=(1, lambda: kind), uuid=(0.02, lambda: R.choice([None, "u"])), **more, **{TEXTS.get(kind, "text"): (0.97, text)})


def random_call():
    function = some(name=(1, text), arguments=(1, lambda: R.choice(ARGUMENTS)), x=(0.1, junk))
    return some(id=(1, text), type=(1, lambda: "function"), function=(1, lambda: function), index=(0.2, lambda: 0))


def random_message():
    role = R.choice(["user", "system", "system", "assistant", "assistant", "assistant", "tool", "tool", "developer", "function", "ipython"])
    say = system_text if role == "system" else text
    content = R.choice([say, say, lambda: [random_part(say) for _ in range(R.randint(0, 3))], lambda: None])
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
        defer_loading=(0.1, lambda: R.choice([True, False, None])),
        **{"return": (0.1, junk)},
    )
    return some(type=(0.9, lambda: "function"), function=(1, lambda: function), x=(0.05, junk), defer_loading=(0.1, lambda: R.choice([True, None])))


def random_body():
    o = {"messages": [random_message() for _ in range(R.randint(1, 2))]}
    if R.random() < 0.4:
        o["tools"] = [random_tool() for _ in range(R.choice([0, 1, 1, 1, 2, 2]))]
    return json.dumps(o, ensure_ascii=R.random() < 0.5)


def rows(count, engines, keep):
    """Rows, of each of engines in turn. Of what is refused a part is kept."""
    made = 0
    while made < count:
        engine = engines[made % len(engines)]
        body = random_body()
        row = {"engine": engine, "body": body, "string": shape(body, False, engine), "parts": shape(body, True, engine)}
        if "err" in row["string"] and R.random() > keep:
            continue
        made += 1
        yield row


def continued(template, content):
    """What transformers 4.57 makes of a final message with the content."""
    tag = "CONTINUE_FINAL_MESSAGE_TAG "
    text = template.render(messages=[{"role": "assistant", "content": content + tag}])
    if content.strip() not in text or tag.strip() not in text:
        return None
    at = text.rindex(tag.strip())
    return text[:at] if text[at:].startswith(tag) else text[:at].rstrip()


def record():
    engines = ["0.28", "main", "0.28", "main", "0.9", "0.10.2", "0.15", "0.17", "0.20", "0.22", "0.24", "0.26"]
    with open("shapes.json", "w") as f:
        json.dump(list(rows(360, engines, 0.2)), f, ensure_ascii=False, indent=0)
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    made = []
    for source in ["<{{ messages[-1].content }}>", "<{{ messages[-1].content | trim }}>", "< {{ messages[-1].content | trim }} >",
                   "{{ messages[-1].content.split('</think>')[-1].lstrip() }}!", "{{ messages[-1].content | upper }}", "x"]:
        for content in ["a", "a ", " a\n", "", "  ", "a\u00a0\u2028\x1c", "a\u200b ", "<think>b</think> c ", "CONTINUE_FINAL_MESSAGE_TAG x"]:
            made.append({"template": source, "content": content, "out": continued(env.from_string(source), content)})
    with open("final.json", "w") as f:
        json.dump(made, f, ensure_ascii=False, indent=0)


def record_many(count, folder, engines):
    os.makedirs(folder, exist_ok=True)
    for engine in engines:
        with open(os.path.join(folder, engine + ".jsonl"), "w") as f:
            for row in rows(count, [engine], 1):
                f.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        record_many(int(sys.argv[1]), sys.argv[2], sys.argv[3:] or ["0.28", "main"])
    else:
        record()
