"""Records what filters, tests and globals of Jinja2 3.1.6 make of random values.

    python3 record_filters.py COUNT SEED

The table filters.jsonl.gz has those that the package does not refuse.

Each line is [kind, name, value, args, kwargs, result]; kind is f, t, g (a global, of
which value is None) or s (strftime_now, whose value is the time). The environment is that of transformers' chat templates. A
value is what JSON has for it, or {"tag": ...} as encode() below writes it; a result
is its type and repr, "Undefined" and its message, or "!" and the exception's class.
"""
import datetime
import json
import math
import random
import sys
from collections.abc import Iterator

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from markupsafe import Markup


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception
context = env.from_string("").new_context()
undefined = env.undefined


class Generator:
    """A generator that a value is to be, made anew where it is used."""

    def __init__(self, items):
        self.items = items


class View:
    def __init__(self, kind, of):
        self.kind, self.of = kind, of


def encode(v):
    if v is None or isinstance(v, bool):
        return v
    if isinstance(v, Markup):
        return {"m": str(v)}
    if isinstance(v, str):
        return v
    if isinstance(v, int):
        return {"i": str(v)}
    if isinstance(v, float):
        return {"f": repr(v)}
    if isinstance(v, list):
        return [encode(x) for x in v]
    if isinstance(v, tuple):
        return {"t": [encode(x) for x in v]}
    if isinstance(v, dict):
        return {"d": [[encode(k), encode(x)] for k, x in v.items()]}
    if isinstance(v, undefined):
        return {"u": v._undefined_name}
    if isinstance(v, range):
        return {"r": [encode(v.start), encode(v.stop), encode(v.step)]}
    if isinstance(v, Generator):
        return {"g": [encode(x) for x in v.items]}
    if isinstance(v, View):
        return {"v": [v.kind, encode(v.of)]}
    if isinstance(v, Namespace):
        return {"n": encode(v._Namespace__attrs)}
    raise TypeError(type(v))


def real(v):
    """v with generators and views in place."""
    if isinstance(v, Generator):
        return (x for x in [real(x) for x in v.items])
    if isinstance(v, View):
        return getattr(real(v.of), v.kind)()
    if isinstance(v, list):
        return [real(x) for x in v]
    if isinstance(v, tuple):
        return tuple(real(x) for x in v)
    if isinstance(v, dict):
        return {k: real(x) for k, x in v.items()}
    if isinstance(v, Namespace):
        return Namespace(real(v._Namespace__attrs))
    return v


def show(v):
    if isinstance(v, undefined):
        return "Undefined"
    if isinstance(v, Iterator):
        return "iterator " + show(list(v))
    if isinstance(v, (type({}.keys()), type({}.values()), type({}.items()))):
        return type(v).__name__ + " " + show(list(v))
    if isinstance(v, Markup):
        return "Markup " + v
    if isinstance(v, range):
        return f"range {v.start} {v.stop} {v.step}"
    return type(v).__name__ + " " + repr(v)


rnd = random.Random()


def pick(*pool):
    v = rnd.choice(pool)
    return v() if callable(v) and not isinstance(v, (undefined, Markup)) else v


WORDS = ["foo", "bar", "Baz", "FOO", "a", "B", "hello world", "über", "ß", "ΑΣ", "Σ", "İx", "ǆa", "x-y", "1", "-2", "3.5", "", " ", "日本", "é", "😀", "key", "name", "value"]
TEXTS = WORDS + [
    "Hello, World!", "foo bar baz qux", "a\nb\r\nc\n\nd", "\n", "\n\n", "  lead and trail \t", "it's \"quoted\" <b>&amp; & more</b>",
    "one two-three four--five six -- seven --eight nine-ten-eleven", "A <!-- c <b> --> B <br/> C &lt;ok&gt; &#39;x&#x41; &notit; &nbsp;y", "x" * 300, "lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore et dolore magna aliqua. ut enim ad minim veniam, quis nostrud exercitation",
    "tab\tsep\x0bvt\x0cff\x1cfs\x85nel\u2028ls\u2029ps\xa0nb", "e\u0301 combining", "(paren [brack {brace <lt", "under_score word2vec don't", "٣٤", "²", "1_000", "0x1f", "0b11", "0o17", "١٢٣", "1e3", "inf", "-Infinity", "nan", " 42 ", "\xa07\u3000", "12abc", "+5", "1__0", "_1", "007", "9" * 25, "a,b;c", "%s and %d%%", "%(a)s-%(b)r", "http://x.y/z?a=b&c=d", "a/b c+d~e", "-----", "a-b-c-d-e", "long-hyphenated-word-that-goes-on", "aaa--bbb", "\\back\x00\x07\x1b\x7f\u200b\ufeff", "ǅungla ŉ ﬁ", "ΟΔΥΣΣΕΥΣ ΣΑΣ.", "\U0001f468\u200d\U0001f469", "&#0;&#13;&#128;&#129;&#xD800;&#x110000;&#1;&#xfdd0;&CounterClockwiseContourIntegral;&amp&ltx&;&#;&#x;",
]


def chars():
    alphabet = pick("ab -\n", "aB1 _-.,\t", "<>&!-ab\"'", "éßΣİ日😀 \u2028x", "abc ", "-a b!", "&#x3;l1ampt")
    return "".join(rnd.choice(alphabet) for _ in range(rnd.randrange(0, 40)))


def text():
    return pick(*TEXTS, chars, chars, chars)


def integer():
    return pick(0, 1, 2, 3, 4, 5, 7, 10, -1, -2, -7, 42, 255, 256, 257, 1000, 10**6, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 10**25, -(10**30), lambda: rnd.randrange(-20, 100))


def small():
    return pick(0, 1, 2, 3, 4, 5, 7, 10, 12, 20, 40, -1, -3, True, False)


def number():
    return pick(integer, integer, 0.0, -0.0, 0.5, 1.5, 2.5, -2.5, 42.55, 0.1, 1e16, 1e-7, 123456.789, 2.675, 1e300, -1e300, 1e22, math.inf, -math.inf, math.nan, True, False, lambda: round(rnd.uniform(-1000, 1000), rnd.randrange(4)), lambda: rnd.uniform(-1, 1) * 10 ** rnd.randrange(-5, 20))


def finite():
    while True:
        v = number()
        if isinstance(v, int) or math.isfinite(v):
            return v


def scalar():
    return pick(None, True, False, number, number, text, text, text, lambda: Markup(text()), lambda: env.undefined(name="missing"))


def hashable():
    return pick(text, text, text, small, None, True, lambda: Markup(text()))


def record():
    d = {"name": pick(*WORDS), "n": integer()}
    if rnd.random() < 0.5:
        d["a"] = pick({"b": integer(), "c": [1, 2]}, {"b": None}, integer, text, None)
    if rnd.random() < 0.2:
        del d[pick("name", "n")]
    if rnd.random() < 0.3:
        d[pick("x", "items", "keys", "upper", "0")] = scalar()
    if rnd.random() < 0.3:
        d["t"] = pick(True, False, None, "", "yes")
    return d


def records():
    return [record() for _ in range(rnd.randrange(0, 7))]


def sequence():
    """A sequence of things of one kind, mostly."""
    n = rnd.randrange(0, 8)
    kind = pick(lambda: integer, lambda: text, lambda: finite, lambda: number, lambda: (lambda: pick(*WORDS)), lambda: scalar, lambda: (lambda: (pick(*WORDS), small())), lambda: record, lambda: (lambda: [small(), pick(*WORDS)]), lambda: (lambda: pick(0.1, 0.2, 0.3, 1.5, 2, True)), lambda: (lambda: pick("a", "A", "b", "B", Markup("a"))))
    items = [kind() for _ in range(n)]
    return pick(items, items, items, tuple(items), Generator(items), range(rnd.randrange(0, 12)), range(5, -5, -3), lambda: [View("items", mapping())])


def mapping():
    key = pick(lambda: text, lambda: (lambda: pick(*WORDS)), lambda: (lambda: pick(*WORDS)), lambda: hashable, lambda: integer)
    return {key(): pick(scalar, text, integer, lambda: [small(), None], lambda: {"z": 1, "a": text()}) for _ in range(rnd.randrange(0, 7))}


def nested(depth=3):
    if depth == 0 or rnd.random() < 0.3:
        v = scalar()
        return v if not isinstance(v, undefined) or rnd.random() < 0.2 else "u"
    return pick(
        lambda: [nested(depth - 1) for _ in range(rnd.randrange(0, 5))],
        lambda: tuple(nested(depth - 1) for _ in range(rnd.randrange(0, 3))),
        lambda: {pick(*WORDS, 1, None, True): nested(depth - 1) for _ in range(rnd.randrange(0, 5))},
        lambda: {text(): nested(depth - 1) for _ in range(rnd.randrange(0, 5))},
    )


def anything():
    return pick(scalar, scalar, text, sequence, mapping, nested, lambda: View(pick("keys", "values", "items"), mapping()), lambda: Namespace(a=1, b=text()), lambda: env.undefined(name="x"), (), [], {}, "", Markup(""))


def boolean():
    return pick(True, False, True, False, 0, 1, "", "x", None, lambda: env.undefined(name="u"))


def attribute():
    return pick("name", "n", "a", "a.b", 0, 1, "t", "x", "upper", "items", "a.b.c", "", ".", None, -1)


def attributes():
    return pick(attribute, "name,n", "n,name", "a.b,n", "name,", ",")


FILTER_CALLS = [("upper",), ("lower",), ("length",), ("default", "d"), ("replace", "a", "b"), ("int",), ("string",), ("nosuch",), ("trim",), ("join", "-"), ("first",), ("tojson",)]
TEST_CALLS = [("odd",), ("even",), ("defined",), ("string",), ("number",), ("none",), ("equalto", 1), ("==", "a"), (">", 2), ("in", [1, 2, "a", None]), ("divisibleby", 3), ("nosuch",), ("mapping",), ("true",), ("sequence",), ("ne", None)]


def separators():
    return pick(None, (",", ":"), (", ", ": "), ("", ""), ("é\n", '"'))


def strchars():
    return pick(None, " ", "ab", "", "é", "x", "\n ", "-", 5, Markup("a"))


OPTIONAL = object()

# The parameters: (name, values), a name with "?" for those that may be left out. "=":
# keyword only, "*": more than one positional.
FILTERS = {
    "capitalize": (text, []),
    "count": (anything, []),
    "d": (anything, [("default_value?", scalar), ("boolean?", boolean)]),
    "default": (anything, [("default_value?", scalar), ("boolean?", boolean)]),
    "dictsort": (mapping, [("case_sensitive?", boolean), ("by?", lambda: pick("key", "value", "key", "value", "x", 1)), ("reverse?", lambda: pick(True, False, 1, 0))]),
    "first": (anything, []),
    "float": (lambda: pick(number, text, text, chars, anything), [("default?", scalar)]),
    "format": (lambda: pick("%s", "%s and %s", "%d", "plain", "%%", text), [("*", scalar), ("*", scalar)]),
    "indent": (text, [("width?", lambda: pick(small, small, "> ", "", "\t", None, 2.5)), ("first?", boolean), ("blank?", boolean)]),
    "int": (lambda: pick(number, text, text, chars, anything, lambda: pick("1f", "0x1F", "0X_1f", "0b101", "0o17", "17", "zz", "0_1", "0", "00", "01", "-0x10", "+ 1", "1" * 4300, "1" * 4301, "0" * 4301, "f" * 5000)), [("default?", scalar)]),
    "items": (lambda: pick(mapping, mapping, anything), []),
    "join": (lambda: pick(sequence, sequence, records, anything), [("d?", lambda: pick(", ", "", "-", 5, None, Markup("&"), "é")), ("attribute?", attribute)]),
    "last": (anything, []),
    "length": (anything, []),
    "list": (anything, []),
    "lower": (lambda: pick(text, anything), []),
    "map": (lambda: pick(sequence, records, anything), None),
    "reject": (lambda: pick(sequence, anything), None),
    "rejectattr": (lambda: pick(records, sequence, anything), None),
    "replace": (lambda: pick(text, text, anything), [("old", lambda: pick("a", "", "b ", "foo", " ", 1, "é", Markup("<"))), ("new", lambda: pick("X", "", "aa", 2, None, "日")), ("count?", lambda: pick(None, 0, 1, 2, -1, 5, True, 2.5, "x"))]),
    "reverse": (anything, []),
    "safe": (anything, []),
    "select": (lambda: pick(sequence, anything), None),
    "selectattr": (lambda: pick(records, sequence, anything), None),
    "sort": (lambda: pick(sequence, records), [("reverse?", lambda: pick(True, False, 1, 0)), ("case_sensitive?", boolean), ("attribute?", attributes)]),
    "string": (anything, []),
    "title": (lambda: pick(text, text, anything), []),
    "tojson": (lambda: pick(nested, nested, anything), [("ensure_ascii?", boolean), ("indent?", lambda: pick(None, None, 0, 1, 2, 4, True, False, -1)), ("separators?", separators), ("sort_keys?", boolean)]),
    "trim": (lambda: pick(text, chars, anything), [("chars?", strchars)]),
    "upper": (lambda: pick(text, anything), []),
}


TESTS = {
    name: (anything, [])
    for name in "boolean defined false float integer iterable mapping none number sequence string true undefined".split()
}
TESTS.update({name: (lambda: pick(number, number, anything), []) for name in ("odd", "even")})
TESTS["divisibleby"] = (lambda: pick(number, anything), [("num", lambda: pick(small, number, scalar))])
TESTS["sameas"] = (lambda: pick(None, True, False, 1, 0, 256, -5, "", (), lambda: scalar()), [("other", lambda: pick(None, True, False, 1, 0, 1.0, 256, "", (), lambda: env.undefined(name="u"), "a", []))])
TESTS["in"] = (lambda: pick(small, text, scalar), [("seq", lambda: pick(sequence, text, mapping, anything))])


def pair():
    return pick((number, number), (text, text), (sequence, sequence), (anything, anything), (scalar, scalar))


GLOBALS = {
    "range": [("*", lambda: pick(integer, small, small, scalar)), ("*", small), ("*", lambda: pick(1, 2, -1, 0, 100000, small))],
    "dict": [("*", mapping), ("a=", scalar), ("b=", scalar)],
    "namespace": [("*", mapping), ("a=", scalar), ("b=", scalar)],
    "raise_exception": [("message", text)],
}


def moment():
    return [pick(2024, 2025, 2026, 2027, 1999, 1000, 9999, lambda: rnd.randrange(1000, 10000)), rnd.randrange(1, 13), rnd.randrange(1, 29), rnd.randrange(24), rnd.randrange(60), rnd.randrange(60), pick(0, 999999, lambda: rnd.randrange(10**6))]


def timeFormat():
    parts = []
    for _ in range(rnd.randrange(1, 5)):
        parts.append(pick("", "", " ", "-", "é", "x") + "%" + pick("%", *"aAbBdHIjmMpSyY", "-d", "-H", "-I", "-m", "-M", "-S"))
    return pick("%Y-%m-%d", "%d %b %Y", "%B %d, %Y", "%H:%M:%S", "%A, %-d %B %Y", lambda: "".join(parts), lambda: "".join(parts), lambda: "".join(parts))


def arguments(params):
    args, kwargs, positional = [], {}, True
    for name, values in params:
        if name == "*":
            if positional and rnd.random() < 0.6:
                args.append(pick(values))
            else:
                positional = False
        elif name.endswith("="):
            if rnd.random() < 0.25:
                kwargs[name[:-1]] = pick(values)
        elif name.endswith("?") and rnd.random() < 0.5:
            positional = False
        elif positional and rnd.random() < 0.7:
            args.append(pick(values))
        elif rnd.random() < 0.97:
            positional = False
            kwargs[name.rstrip("?")] = pick(values)
    if rnd.random() < 0.01:
        args.append(scalar())
    if rnd.random() < 0.01:
        kwargs[pick("value", "bogus", "s", "environment", "x")] = scalar()
    return args, kwargs


def lateArguments(name):
    """Those of map, select and the like."""
    args, kwargs = [], {}
    if name == "map":
        if rnd.random() < 0.5:
            kwargs["attribute"] = attribute()
            if rnd.random() < 0.4:
                kwargs["default"] = scalar()
        else:
            args = list(pick(*FILTER_CALLS))
            if args[0] == "default" and rnd.random() < 0.5:
                kwargs["boolean"] = True
    else:
        if name.endswith("attr"):
            args = [attribute()]
        if rnd.random() < 0.7:
            args += pick(*TEST_CALLS)
    if rnd.random() < 0.02:
        kwargs[pick("bogus", "value", "context", "default")] = 1
    if rnd.random() < 0.02:
        args = []
    return args, kwargs


def call(kind, name, value, args, kwargs):
    args, kwargs = [real(a) for a in args], {k: real(v) for k, v in kwargs.items()}
    try:
        if kind == "f":
            result = env.call_filter(name, real(value), args, kwargs, context=context)
        elif kind == "s":
            result = datetime.datetime(*value).strftime(*args)
        elif kind == "t":
            result = env.call_test(name, real(value), args, kwargs, context=context)
        else:
            result = env.globals[name](*args, **kwargs)
        return show(result)
    except Exception as e:
        return "!" + type(e).__name__


def one(kind, name):
    value = None
    if kind == "s":
        value, args, kwargs = moment(), [timeFormat()], {}
    elif kind == "f":
        values, params = FILTERS[name]
        value = pick(values if rnd.random() < 0.9 else anything)
        args, kwargs = lateArguments(name) if params is None else arguments(params)
    elif kind == "t":
        if name in TESTS:
            values, params = TESTS[name]
            value = pick(values if rnd.random() < 0.9 else anything)
            args, kwargs = arguments(params)
        else:
            a, b = pair()
            value = a()
            args, kwargs = arguments([("*", b)])
            if rnd.random() < 0.2:
                args = [value]
    else:
        args, kwargs = arguments(GLOBALS[name])
    return [kind, name, encode(value), [encode(a) for a in args], {k: encode(v) for k, v in kwargs.items()}, call(kind, name, value, args, kwargs)]


def main():
    count, seed = int(sys.argv[1]), int(sys.argv[2])
    only = sys.argv[3:]
    rnd.seed(seed)
    names = [("f", n) for n in sorted(FILTERS)] + [("t", n) for n in sorted(set(env.tests) - {"callable", "escaped", "filter", "lower", "test", "upper"})] + [("g", n) for n in sorted(GLOBALS)] + [("s", "strftime_now")] * 3
    names = [n for n in names if not only or n[1] in only]
    for i in range(count):
        kind, name = names[i % len(names)]
        line = one(kind, name)
        if " at 0x" in line[-1]:
            continue
        print(json.dumps(line, ensure_ascii=False, separators=(",", ":")))


if __name__ == "__main__":
    main()
