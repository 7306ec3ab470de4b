"""Renders templates with Jinja2 itself, for diff_test.go to compare with.

Reads lines of JSON, each a list of {"t": template, "v": variables}, and answers
each with a line: a list of {"o": output}, {"e": exception's class, "m": message}
or {"l": limit hit}. Its first line, before any request, tells the versions and the
names that Jinja2 and Python have, from which the test derives what must occur.

The environment is that of transformers 4.57 (utils/chat_template_utils.py), with a
clock that stands still.
"""

import functools
import json
import resource
import signal
import sys
from datetime import datetime

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.runtime
import markupsafe
from jinja2.sandbox import ImmutableSandboxedEnvironment

SECONDS = 5  # for a program
MEMORY = 2 << 30  # of the process
OUTPUT = 8 << 20  # characters
NOW = datetime(2026, 3, 7, 9, 5, 3, 4567)


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_body")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    @jinja2.pass_eval_context
    def _body(self, context, caller):
        return caller()


class TooLong(BaseException):
    pass


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Generation, jinja2.ext.loopcontrols],
    )

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            x,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: NOW.strftime(format)
    return env


def names(env):
    def public(o):
        return sorted(n for n in dir(o) if not n.startswith("_"))

    def statements():
        for n in dir(jinja2.nodes):
            c = getattr(jinja2.nodes, n)
            if isinstance(c, type) and issubclass(c, jinja2.nodes.Node) and not c.abstract:
                yield n

    return {
        "python": sys.version.split()[0],
        "jinja2": jinja2.__version__,
        "markupsafe": markupsafe.__version__,
        "filters": sorted(env.filters),
        "tests": sorted(env.tests),
        "globals": sorted(env.globals),
        "nodes": sorted(set(statements())),
        "operators": sorted(jinja2.lexer.operators),
        "attributes": {
            "str": public(str),
            "list": public(list),
            "tuple": public(tuple),
            "dict": public(dict),
            "int": public(int),
            "float": public(float),
            "range": public(range),
            "loop": public(jinja2.runtime.LoopContext),
            "macro": ["name", "arguments", "catch_kwargs", "catch_varargs", "caller"],
            "cycler": ["current", "next", "reset"],
        },
    }


@functools.lru_cache(100)
def compiled(env, template):
    return env.from_string(template)


def late(signum, frame):
    raise TooLong


def render(env, program):
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        try:
            out = compiled(env, program["t"]).render(**program["v"])
            if len(out) > OUTPUT:
                return {"l": "output"}
            out.encode()  # a lone surrogate is no text
            return {"o": out}
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except TooLong:
        return {"l": "time"}
    except MemoryError:
        return {"l": "memory"}
    except RecursionError as e:
        return {"e": "RecursionError", "m": str(e)}
    except Exception as e:
        try:
            message = str(e)[:300].encode("utf-8", "replace").decode()
        except Exception:
            message = ""
        return {"e": type(e).__name__, "m": message}


def main():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGALRM, late)
    env = environment()
    answer = sys.stdout.buffer
    answer.write(json.dumps(names(env)).encode() + b"\n")
    answer.flush()
    for line in sys.stdin.buffer:
        answers = [render(env, p) for p in json.loads(line)]
        answer.write(json.dumps(answers).encode() + b"\n")
        answer.flush()


if __name__ == "__main__":
    main()
