"""Writes scopes.jsonl: programs about scopes and what Jinja2 3.1.6 on CPython 3.11
makes of them, in the environment that transformers sets up. Usage:

    python3 record_scopes.py                      the committed table, but what the package refuses
    python3 record_scopes.py SEED COUNT           COUNT programs from a seed

The first line has the variables; each other line a template t and its out, or the
class err of what it raises, at compiling if compile is true.
"""
import json, random, signal, sys, warnings
import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

VARS = {
    "a": 1, "b": "B", "x": [1, 2, 3], "d": {"k": [4, 5], "j": 7}, "t": [[1, 2], [3, 4]],
    "tree": [{"n": 1, "c": [{"n": 2, "c": []}, {"n": 3, "c": [{"n": 4, "c": []}]}]}, {"n": 5, "c": []}],
}


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("support"), [], [], body).set_lineno(line)

    @jinja2.pass_eval_context
    def support(self, context, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
env.globals["raise_exception"] = raise_exception

NAMES = ["a", "b", "c", "x", "y"]
LOOP = ["index", "index0", "first", "last", "length", "revindex", "revindex0", "previtem", "nextitem", "nope"]


class Programs:
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.wild = self.r.choice([0, 0, 0, 0, 0.02, 0.1])
        self.left = self.r.choice([4, 8, 12, 20, 30])

    def pick(self, *of):
        return self.r.choice(of)

    def name(self):
        if self.r.random() < 0.75:
            return self.r.choice(NAMES)
        return self.pick("d", "t", "ns", "caller", "m", "k", "nobody", "q")

    def expr(self, depth=0):
        """Most are safe: few raise."""
        return self.wilder(depth) if self.r.random() < self.wild else self.safe(depth)

    def safe(self, depth=0):
        p = self.r.random()
        if depth > 2 or p < 0.45:
            return self.name()
        if p < 0.6:
            return self.pick("1", "2", "0", '"s"', "'zz'", "[1,2]", "[]", "(1,2)", "none", "true", "false", '{"k":1}', "-1", "1.5", '""', "[3,[4]]")
        e = lambda: self.safe(depth + 1)
        match self.r.randrange(16):
            case 0: return f"({e()} ~ {e()})"
            case 1: return f"({e()} {self.pick('==', '!=')} {e()})"
            case 2: return f"({e()} {self.pick('and', 'or')} {e()})"
            case 3: return f"(not {e()})"
            case 4: return f"({e()} if {e()} else {e()})"
            case 5: return f"({e()} if {e()})"
            case 6: return f"({e()}|default({e()}))"
            case 7: return f"({self.name()} is {self.pick('defined', 'undefined', 'none', 'mapping', 'string')})"
            case 8 | 9: return self.safe_call()
            case 10 | 11: return f"(loop.{self.r.choice(LOOP)} if loop is defined)"
            case 12 | 13: return f"[{e()}, {e()}]"
            case 14: return "ns." + self.pick("p", "q", "r")
        return f"({self.name()}|list|length if {self.name()} is iterable)"

    def safe_call(self):
        f = self.pick("m", "k", "q", "caller", "a", "b")
        args = ", ".join(self.safe(2) for _ in range(self.pick(0, 0, 1, 1, 2)))
        return f"({f}({args}) if {f} is defined)"

    def wilder(self, depth):
        e = lambda: self.expr(depth + 1)
        if depth > 3:
            return self.name()
        match self.r.randrange(17):
            case 0: return f"({e()} + {e()})"
            case 1: return f"({e()} {self.pick('<', '>=', 'in', 'not in', '<=', '>')} {e()})"
            case 2: return f"{self.atom()}|{self.filter()}"
            case 3: return f"({e()} is {self.pick('', 'not ')}{self.test()})"
            case 4 | 5: return self.call()
            case 6: return f"loop.{self.r.choice(LOOP)}"
            case 7: return f"({e()})"
            case 8: return f"{self.atom()}.{self.pick('k', 'j', 'n', 'c', 'name', 'upper', 'items')}"
            case 9: return f"{self.atom()}[{self.pick('0', '1', '-1', repr('k'), '0:1', '::2', '5', 'a')}]"
            case 10: return f"({e()}, {e()})"
            case 11: return f"({self.atom()} // {self.pick('2', 'a')})"
            case 12: return f"{e()} + {self.pick('1', repr('s'), 'b')} + {e()} + {self.atom()}"
            case 13: return f"({e()} {self.pick('==', '<', 'in')} {e()} {self.pick('==', '<', '!=')} {e()})"
            case 14: return f"({e()} {self.pick('-', '*', '/', '//', '%')} {e()})"
            case 15: return "{" + self.pick("1", "'k'", self.name()) + f": {e()}, 'z': {e()}" + "}"
        return self.pick("(false and (1 is zork))", "(1 if true else (1|zork))")

    def atom(self):
        return self.pick(self.name(), self.name(), '"str"', "[1,2,3]", "(-2)", "(1-3)", "d", "t", self.safe_call())

    def filter(self):
        return self.pick("length", "upper", "list", "first", 'join(",")', f"default({self.name()})", "string", "last", "zork", f"zork({self.name()})", "reverse|list")

    def test(self):
        return self.pick("defined", "undefined", "none", "string", "zork", "number", "odd", f"eq({self.name()})", "iterable")

    def call(self):
        args = [self.expr(2) for _ in range(self.pick(0, 0, 1, 1, 2, 3))]
        if self.r.random() < 0.25:
            args += [f"{k}={self.expr(2)}" for k in self.r.sample(["a", "b", "x", "caller", "zz"], self.pick(1, 2))]
        return f"{self.pick('m', 'k', 'q', 'caller', 'ns.f', self.name(), 'range')}({', '.join(args)})"

    def body(self, depth):
        return "".join(self.stmt(depth) for _ in range(self.pick(1, 1, 2, 2, 3) if depth else self.pick(2, 3, 4, 5)))

    def assignment(self):
        if self.r.random() < 0.07:
            return "a, b = (1, %s)" % self.expr()
        return f"{self.r.choice(NAMES)} = {self.expr()}"

    def stmt(self, depth):
        r = self.r
        self.left -= 1
        if depth > 3 or self.left < 0:
            return "{{ %s }}" % self.expr() if r.random() < 0.7 else "{%% set %s %%}" % self.assignment()
        k = r.randrange(29)
        if k < 7: return "{{ %s }}" % self.expr()
        if k < 11: return "{%% set %s %%}" % self.assignment()
        if k == 11: return "{%% set ns.%s = %s %%}" % (self.pick("p", "q", "r", "f", "m"), self.pick("m", "k", "caller", "x", self.expr()))
        if k == 12: return self.set_block(depth)
        if k < 16: return self.condition(depth)
        if k < 20: return self.loop(depth)
        if k < 23: return self.macro(depth)
        if k < 25: return self.call_block(depth)
        if k < 28: return "{% generation %}" + self.body(depth + 1) + "{% endgeneration %}"
        return self.pick("-", "|", "")

    def set_block(self, depth):
        return "{%% set %s %%}%s{%% endset %%}" % (self.r.choice(NAMES), self.body(depth + 1))

    def condition(self, depth):
        t = "{% if " + self.expr() + " %}" + self.body(depth + 1)
        for _ in range(self.pick(0, 0, 1, 2)):
            t += "{% elif " + self.expr() + " %}" + self.body(depth + 1)
        if self.r.random() < 0.4:
            t += "{% else %}" + self.body(depth + 1)
        return t + "{% endif %}"

    def loop(self, depth):
        r = self.r
        over = self.pick("[1,2]", "[1,2,3]", "(x if x is iterable else [8])", "range(3)", "t", "d", "d.items()", "tree", '""', '"ab"', "[]", "nobody", '[7,8]|map("string")', "[1,1,2]", self.expr(2) if r.random() < 3 * self.wild else "range(2)")
        target = "i, j" if over in ("t", "d.items()") and r.random() < 0.5 else "a, (b, c)" if r.random() < self.wild else r.choice(NAMES)
        t = "{%% for %s in %s" % (target, over)
        if r.random() < 0.3: t += " if " + self.pick(self.expr(2), self.name() + " is defined", "x != 2", "a")
        t += " %}" + self.body(depth + 1)
        if r.random() < 0.3:
            t += "{%% if %s %%}{%% %s %%}{%% endif %%}" % (self.pick("loop.index == 2", "loop.last", self.expr(2), "a == 2", "x == 2"), self.pick("break", "continue")) + self.body(depth + 1)
        if r.random() < 0.3: t += "{% else %}" + self.body(depth + 1)
        return t + "{% endfor %}"

    def macro(self, depth):
        r, n = self.r, self.pick("m", "m", "k", "q", *NAMES)
        params = r.sample(NAMES, self.pick(0, 1, 1, 2))
        defaults = self.pick(0, 0, len(params), r.randrange(len(params) + 1))
        params = [p if i < len(params) - defaults else f"{p}={self.expr(2)}" for i, p in enumerate(params)]
        b = self.body(depth + 1)
        if r.random() < 0.3: b += "{{ caller(%s) if caller is defined }}" % self.pick("", "1", self.name())
        t = "{%% macro %s(%s) %%}%s{%% endmacro %%}" % (n, ", ".join(params), b)
        if r.random() < 0.6: t += "{{ %s(%s) }}" % (n, ", ".join(self.expr(2) for _ in params))
        return t

    def call_block(self, depth):
        params = self.r.sample(NAMES, self.pick(0, 0, 1, 2))
        if params: params[-1] += self.pick("", "=" + self.expr(2))
        call = self.pick("m", "k", "q") + "(%s)" % self.pick("", self.safe(2)) if self.r.random() < 0.7 else self.call()
        return "{%% call%s %s %%}%s{%% endcall %%}" % ("(%s)" % ", ".join(params) if params else "", call, self.body(depth + 1))

    def program(self):
        r, t = self.r, ""
        if r.random() < 0.97: t += '{% set ns = namespace(p=1, q="n") %}'
        if self.left < 8: return t + self.body(1) + self.body(1)
        if r.random() < 0.5: t += "{% macro m(a, b=2) %}" + self.body(3) + self.pick("{{ caller() if caller }}", "{{ caller is defined }}") + "{% endmacro %}"
        if r.random() < 0.8: t += "{% macro k(c=1) %}" + self.body(3) + "[{{ caller() if caller is defined }}]{% endmacro %}"
        if r.random() < 0.8: t += "{% macro q() %}" + self.body(3) + "<{{ caller(1, 2)|upper if caller is defined }}>{% endmacro %}"
        return t + self.body(0)


# What the random ones hardly ever hit.
BY_HAND = r"""
{% for i in [1] %}{% break %}{% else %}E{% endfor %}
{% for i in [1, 2] %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% else %}E{% endfor %}
{% for i in [1, 2] %}{% continue %}{% else %}E{% endfor %}
{% for i in [1, 2] %}{% for j in [] %}{% else %}{% break %}{% endfor %}{{ i }}{% else %}E{% endfor %}
{% if false %}{{ 1e308 * 10 > a }}{% endif %}ok
{{ false and (1 is zork) }}{{ 1 if true else (1|zork) }}{{ 2 == 3 == (1|zork) }}
{{ a and (1 is zork) }}
{{ 1 if a else (1|zork) }}
{{ 1 if not a else (1|zork) }}
{% if a %}{{ 1 if a else (1|zork) }}{% else %}{{ 1|zork }}{% endif %}
{% if not a %}{% for i in x %}{{ i|zork }}{% endfor %}{% endif %}
{% if not a %}{% set y %}{{ 1|zork }}{% endset %}{% endif %}
{% if not a %}{% macro f(p=1|zork) %}{% endmacro %}{% endif %}
{% if not a %}{{ f(1|zork) }}{% endif %}
{% if a is zork %}{% endif %}
{% macro f(p, p) %}{% endmacro %}
{% macro f() %}{{ caller }}{% endmacro %}{{ f() }}{{ f(caller=none) }}{{ f(caller=1) }}
{% macro f() %}x{% endmacro %}{% call f() %}{% endcall %}
{% macro f(p) %}{{ p }}{% endmacro %}{{ f(1, p=2) }}
{% macro f(p) %}{{ p }}{% endmacro %}{{ f(1, 2) }}
{% macro f(p) %}{{ p }}{% endmacro %}{{ f(q=2) }}
{% macro f(p) %}{{ p is defined }}{{ p.y }}{% endmacro %}{{ f() }}
{% macro f(p=q, q=1) %}{{ p }}|{{ q }}{% endmacro %}{{ f() }} {{ f(q=2) }}
{% macro f(p, q=p) %}{{ p }}{{ q }}{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f() }}
{% macro f() %}{% set caller = 1 %}{{ caller }}{% endmacro %}{{ f() }}{{ f(caller=2) }}
{% macro f() %}{{ u }}{% endmacro %}{% set u = 1 %}{{ f() }}{% set u = 2 %}{{ f() }}
{{ f is defined }}{% macro f() %}{{ f is defined }}{% endmacro %}{{ f() }}
{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}
{% for y in x %}{% macro f() %}{{ y }}{{ loop.index }}{% endmacro %}{{ f() }}{% endfor %}{{ f }}
{% set ns = namespace() %}{% for y in x %}{% macro f() %}{{ y }}{% endmacro %}{% if loop.first %}{% set ns.f = f %}{% endif %}{{ ns.f() }}{% endfor %}
{% set ns = namespace() %}{% for y in [1] %}{% set z = y %}{% macro f() %}{{ z }}{% endmacro %}{% set ns.f = f %}{% endfor %}{{ ns.f() }}|{% for y in [5] %}{% set z = y %}{{ ns.f() }}{% endfor %}
{% set y = 1 %}{% for i in x %}{{ y }}{% set y = i %}{{ y }}{% endfor %}{{ y }}
{% if a %}{% set y = 1 %}{% endif %}{{ y }}
{% if not a %}{% set b = 1 %}{% endif %}{{ b }}
{% for i in x %}{% if i == 2 %}{% set b = i %}{% endif %}{{ b }}{% endfor %}
{% set ns = {} %}{% set ns.y = 1 %}
{% set nobody.y = 1 %}
{% set ns = namespace() %}{% set ns.y, ns.z = 1, 2 %}{{ ns.y }}{{ ns.z }}
{% set ns = namespace(y=1) %}{% for i in x %}{% set ns.y = ns.y + i %}{% endfor %}{{ ns.y }}
{% set ns = namespace() %}{% set ns.y %}q{% endset %}{{ ns.y }}
{% set a.y %}q{% endset %}
{% set ns = namespace() %}{% set ns, ns.y = x, 1 %}
{% set ns = namespace() %}{% set (ns.y, z), ns.w = ((1, 2), 3) %}{{ ns.y }}{{ z }}{{ ns.w }}
{% set y, z %}ab{% endset %}{{ y }}{{ z }}
{% for i in x %}{{ loop.index }}{% macro loop() %}m{% endmacro %}{{ loop() }}{% endfor %}
{% for i in x %}{% call(loop) k(loop) %}{% endcall %}{% endfor %}
{% macro k(l) %}{{ caller(l.index) }}{% endmacro %}{% for i in x %}{% call(loop) k(loop) %}{{ loop }}{% endcall %}{% endfor %}
{% macro k() %}{{ caller() }}{% endmacro %}{% for i in x %}{% call k() %}{{ loop.index }}{% set i = 7 %}{{ i }}{% endcall %}{{ i }}{% endfor %}
{% for i in x %}{% if loop.first %}{% set f %}{{ i }}{% endset %}{% endif %}{{ f }}{% endfor %}{{ f }}
{% for i in x %}{% for i in [i, i] %}{{ i }}{% set i = 9 %}{{ i }}{% endfor %}{{ i }}{% endfor %}{{ i }}
{% for i in x if i != u %}{{ i }}{% set u = 2 %}{% endfor %}{% set u = 3 %}
{% set u = 3 %}{% for i in x if i != u %}{{ i }}{% set u = 2 %}{{ u }}{% endfor %}{{ u }}
{% macro f() %}{% for i in x %}{% set a = a ~ i %}{{ a }}{% endfor %}{{ a }}{% set a = 5 %}{{ a }}{% endmacro %}{{ f() }}{{ a }}
{% macro f() %}{% if a == 1 %}{% set b = 2 %}{% endif %}{{ b }}{% endmacro %}{{ f() }}{% set b = 3 %}{{ f() }}
{% if a == 2 %}{% macro f() %}1{% endmacro %}{% else %}{% macro f() %}2{% endmacro %}{% endif %}{{ f() }}
{% if a == 2 %}{% macro f() %}1{% endmacro %}{% endif %}{{ f() }}
{% set y %}{% set a = 'q' %}{% set z %}{{ a }}{% set a = 'r' %}{{ a }}{% endset %}{{ z }}{{ a }}{% endset %}{{ y }}{{ a }}
{% set y, z = [1, 2] %}{{ y }}{{ z }}
{% set y, z = 'ab' %}{{ y }}{{ z }}
{% set y, z = {'k': 1, 'l': 2} %}{{ y }}{{ z }}
{% set y, z = 1 %}
{% set y, z = [1] %}
{% set y, z = [1, 2, 3] %}
{% set y, z = none %}
{% set y, (z, w) = 1, (2, 3) %}{{ y }}{{ z }}{{ w }}
{% set y, = [1] %}{{ y }}
{% set a, b = b, a %}{{ a }}{{ b }}
{% for y, z in d.items() %}{{ y }}{{ z }}{% endfor %}
{% for y, z in t if z > 2 %}{{ y }}{{ z }}{{ loop.length }}{% endfor %}
{% for y, z in t if true %}{{ loop.nextitem }}{{ loop.previtem }}{% endfor %}
{% for y, z in [[1, 2], [3]] %}{{ y }}{% endfor %}
{% for y, (z, w) in [[1, [2, 3]]] if w %}{{ z }}{{ loop.last }}{% endfor %}
{% for i in x if loop is defined %}{{ i }}{% endfor %}
{% for i in x if loop.first %}{{ i }}{% endfor %}
{% for i in x %}{% for j in x if loop.first %}{{ j }}{{ loop.length }}{% endfor %}{% endfor %}
{% for i in x %}{% for j in loop.index * [i] %}{{ j }}{% endfor %}{% endfor %}
{{ loop }}
{{ loop.index }}
{% for i in x %}{% else %}{{ loop is defined }}{% endfor %}
{% set ns = namespace(n=0) %}{% for i in [1, 2, 3, 4] if i > ns.n %}{% set ns.n = ns.n + 2 %}{{ i }}{% endfor %}
{% set ns = namespace(n=0) %}{% for i in [1, 2, 3, 4] if i > ns.n %}{{ loop.last }}{% set ns.n = ns.n + 2 %}{{ i }}{% endfor %}
{% for i in 'añ日' %}{{ i }}{{ loop.revindex }}{% endfor %}
{% for i in x %}{{ loop(x) }}{% endfor %}
{% for i in [7, 8]|map('string') %}{{ loop.index }}/{{ loop.length }}{{ i }}{{ loop.last }}{% endfor %}
{% for i in [7, 8, 9]|map('string') %}{{ loop.nextitem }}{{ loop.revindex0 }}{{ i }}{% endfor %}
{% set g = [7, 8, 9]|map('string') %}{% for i in g %}{{ i }}{% break %}{% endfor %}{% for i in g %}{{ i }}{% endfor %}{% for i in g %}{{ i }}{% endfor %}
{% for loop in x %}{% endfor %}
{% for i in x %}{% set loop = 1 %}{% endfor %}
{% for i in x %}{% macro f(loop) %}{{ loop }}{% endmacro %}{{ f(1) }}{{ loop is defined }}{% endfor %}
{% for i in x %}{% macro f() %}{{ loop.index }}{% endmacro %}{{ f() }}{% endfor %}
{% for i in x %}{% set y %}{{ loop.index }}{% endset %}{{ y }}{% endfor %}
{% break %}
{% for i in x %}{% macro f() %}{% break %}{% endmacro %}{% endfor %}
{% for i in x %}a{% set y %}b{% break %}{% endset %}{% endfor %}{{ y }}
{% generation %}{{ a }}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}
{% call range(2) %}{% endcall %}
{% call dict() %}{% endcall %}
{% call nobody() %}{% endcall %}
{% macro f() %}{{ caller(1) }}{% endmacro %}{% call(p, q=p) f() %}{{ p }}{{ q }}{% endcall %}
{% macro f() %}{{ caller(1, 2) }}{% endmacro %}{% call f() %}{% endcall %}
{% set y = 5 %}{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}{{ y }}{% set y = 6 %}{{ y }}{% endcall %}{{ y }}
{{ nobody }}{{ nobody.y }}
{{ nobody() }}
{{ nobody(raise_exception('first')) }}
{{ nobody.y(raise_exception('first')) }}
{{ 'a'.zork(raise_exception('first')) }}
{{ a() }}
{{ a.b }}{{ a.b.c }}
{{ 1 < 2 < 3 }}{{ 1 < 2 > 5 }}{{ 3 < 2 < nobody.y }}
{{ nobody == zork }}{{ nobody == none }}{{ nobody != d.zz }}{{ nobody in [zork] }}
{{ a if nobody }}{{ (a if nobody) is defined }}
{{ (a if nobody) + 1 }}
{{ none or 0 or '' or [] }}{{ 1 and 'x' }}{{ not nobody }}
{{ a ~ none ~ b ~ [1] ~ nobody }}
{{ 'a' + 'b' + b + 1 }}
{{ [1] + [2] + [3] }}{{ 1 + 2 + 3 }}{{ '' + '' + b }}
{% set y = b + '1' + '2' + '3' %}{{ y }}
{{ true + true + 1.5 }}
{% set y = b %}{% set y = y ~ y %}{{ y + '-' + (y if y else 'n') + y }}
{{ f(class=1) }}
{{ dict(class=1) }}
{{ d.k.j.z }}
{{ (x|map('zork'))|list }}
{{ x|map('upper')|list }}
{% for c in 'ab' %}{% if c['type'] == 'image' %}1{% elif c['text'] == 2 %}2{% endif %}{% endfor %}ok
{% for c in 'ab' %}{% if c['upper'] == 'image' %}1{% endif %}{% endfor %}ok
{% for c in 'ab' %}{% if c['type'] == zork %}1{% endif %}{% endfor %}ok
{% for c in 'ab' %}{% if c['type'] == 'x' %}{% endif %}{% else %}E{% endfor %}ok
""".strip().split("\n")


def record(template):
    def late(*_):
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 1)
    row, compiling = {"t": template}, True
    try:
        t = env.from_string(template)
        compiling = False
        row["out"] = t.render(**json.loads(json.dumps(VARS)))
    except (TimeoutError, RecursionError, MemoryError):
        return None
    except Exception as e:
        row["err"] = type(e).__name__
        if compiling:
            row["compile"] = True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None if " object at 0x" in row.get("out", "") else row


def main():
    warnings.simplefilter("ignore")
    print(json.dumps({"vars": VARS}))
    seed, count, longest = 1, 650, 500
    if len(sys.argv) > 1:
        seed, count, longest = int(sys.argv[1]), int(sys.argv[2]), 1 << 20
    else:
        for t in BY_HAND:
            print(json.dumps(record(t), ensure_ascii=False))
    raising = 0
    for i in range(count):
        row = record(Programs(seed * 1_000_003 + i).program())
        if row is None or len(row["t"]) + len(row.get("out", "")) > longest:
            continue
        raising += "err" in row
        if "out" in row or raising < 60 or longest > 500:
            print(json.dumps(row, ensure_ascii=False))


main()
