"""Records mistral.txt: the ids that mistral-common makes of bodies of chats, as vLLM's main calls it.

    go test -run 'TestMistral$' .. -args -record DIR    # the bodies, and a tekken.json for each version
    python3 record_mistral.py DIR > mistral.txt

Python 3.11, pydantic 2.13.4, openai 3.3, mistral-common 1.11.7 (1.11.4 to 1.11.6 give the same).
What vLLM does before is in its renderers/online_renderer.py, renderers/mistral.py and
tokenizers/mistral.py, and what transformers does in its tokenization_mistral_common.py. The types of
messages are those of record.py. Nothing here runs in the tests.
"""

import hashlib
import json
import struct
import sys

import record
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def refuse(when):
    if when:
        raise ValueError


def messages_of(body):
    for m in body["messages"]:
        other = m.pop("reasoning_content", None)
        if other is not None and m.get("reasoning") is None:
            m["reasoning"] = other
    messages = record.types_of("main")[0].model_validate(body).messages
    for m in messages:
        if m["role"] == "assistant":
            m["tool_calls"] = list(m.get("tool_calls") or [])
            for call in m["tool_calls"]:
                call["id"] = call["id"][-9:]
        elif m["role"] == "tool" and "tool_call_id" in m:
            m["tool_call_id"] = m["tool_call_id"][-9:]
    for m in messages:
        record.message(m, False, "main")  # parses the arguments of calls in place
    return messages


def ids_of(body, tokenizer, version):
    adds, goes_on = body.get("add_generation_prompt", True), body.get("continue_final_message", False)
    effort = body.get("reasoning_effort")
    refuse(adds and goes_on)
    refuse(body.get("chat_template") is not None or body.get("chat_template_kwargs") is not None)
    refuse(effort is not None and effort not in EFFORTS or effort and effort not in ("none", "high"))
    messages, tools = messages_of(body), record.tools_of(body, "main")
    answered = messages[-1]["role"] == "assistant"
    refuse(adds and answered or goes_on and not answered)
    for m in messages:
        if m.get("content") and not isinstance(m["content"], str):
            m["content"] = [p for p in m["content"] if p.get("type")]
    request = ChatCompletionRequest.from_openai(
        messages=messages, tools=tools, continue_final_message=goes_on, reasoning_effort=effort if version >= 15 else None
    )
    return tokenizer.encode_chat_completion(request).tokens


def digest(line, tokenizer, version):
    try:
        ids = ids_of(json.loads(line), tokenizer, version)
    except Exception:
        return "-"
    return hashlib.sha256(b"".join(struct.pack("<I", i) for i in ids)).hexdigest()[:12]


if __name__ == "__main__":
    folder = sys.argv[1]
    tokenizers = [(v, MistralTokenizer.from_file(f"{folder}/tekken_{v}.json")) for v in (3, 7, 11, 13, 15)]
    with open(f"{folder}/mistral.txt") as bodies:
        for line in bodies:
            print(*(digest(line, t, v) for v, t in tokenizers))
