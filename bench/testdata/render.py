"""Renders the chats of a JSON file by Jinja2, set up as transformers 4.57 does.

usage: render.py TEMPLATE.jinja CHATS.json
prints {"version":, "ns": nanoseconds a chat, "texts": [...]}
"""

import json
import sys
import time

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
environment.filters["tojson"] = tojson
environment.globals["strftime_now"] = lambda form: "26 Jul 2024"
with open(sys.argv[1], newline="") as f:
    template = environment.from_string(f.read())
with open(sys.argv[2]) as f:
    bodies = [json.dumps(chat) for chat in json.load(f)]
best, texts = float("inf"), []
for _ in range(5):
    start = time.perf_counter_ns()
    texts = [template.render(**json.loads(body)) for body in bodies]
    best = min(best, time.perf_counter_ns() - start)
json.dump({"version": jinja2.__version__, "ns": best / len(bodies), "texts": texts}, sys.stdout)
