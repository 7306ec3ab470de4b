#!/usr/bin/env python3
"""Records what CPython 3.11 and Jinja2 3.1.6 make of operations on values.

Writes lines of JSON [operation, arguments..., result]: record_values.py COUNT SEED. The
table values.jsonl.gz has those that the package does not refuse.

A value is null, a bool, a str, a list, or one of {"i": int}, {"f": float}, {"t": tuple}, {"d": pairs of a dict},
{"r": range}, {"m": Markup}, {"v": [view, dict]}, {"n": namespace}, {"u": name}: an Undefined. A result that is an error is {"e": class}.
"""
import json
import math
import random
import struct
import sys

from jinja2.runtime import Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, missing
from markupsafe import Markup

count, seed = int(sys.argv[1]), int(sys.argv[2])
rnd = random.Random(seed)
env = ImmutableSandboxedEnvironment()
views = {type({}.keys()): "keys", type({}.values()): "values", type({}.items()): "items"}


class Skip(Exception):
    pass


def encode(v):
    if v is None or type(v) in (bool, str):
        if isinstance(v, str) and any(0xD800 <= ord(c) < 0xE000 for c in v):
            raise Skip
        return v
    if type(v) is int:
        return {"i": hex(v)}
    if type(v) is float:
        return {"f": repr(v)}
    if type(v) is list:
        return [encode(x) for x in v]
    if type(v) is tuple:
        return {"t": [encode(x) for x in v]}
    if type(v) is dict:
        return {"d": [[encode(k), encode(x)] for k, x in v.items()]}
    if type(v) is range:
        return {"r": [encode(v.start), encode(v.stop), encode(v.step)]}
    if type(v) is Markup:
        return {"m": str(v)}
    if type(v) in views:
        return {"v": [views[type(v)], encode(dict(v.mapping))]}
    if type(v) is Namespace:
        return {"n": encode(object.__getattribute__(v, "_Namespace__attrs"))}
    if type(v) is Undefined:
        return {"u": v._undefined_name if v._undefined_obj is missing else ""}
    raise Skip


big = [2**31 - 1, 2**31, -2**31, 2**32, 2**53, 2**53 + 1, -2**53 - 1, 2**62, 2**63 - 1, 2**63, 2**63 + 1, -2**63,
       -2**63 - 1, 2**64, 10**18, 10**19, 10**30, -10**30, 3**120, 10**310, 2**1024 - 1, 2**1023]
small = [0, 1, -1, 2, 3, -3, 4, 5, 7, -7, 8, 10, 16, 100, 255, 256, -128, 1000, 12345]
floats = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 0.1, 3.14159, 1e15, 1e16, 123456789012345680.0, 1e-4, 9.999e-5, 1e-5, 1e-7,
          9999999999999998.0, 1e22, 1e23, 1.7976931348623157e308, 5e-324, 2.2250738585072014e-308, math.inf, -math.inf,
          math.nan, 9007199254740993.0, 1e100, 100.0, 1000000.0, 123456.789, 0.000123, 2.0, 3.0, -7.0, 1e300, 9.5, 99.95, 0.05]
words = ["", "a", "b", "ab", "abc", "Abc", "ABC", "hello world", " x ", "\t\n x\r\n", "a,b,,c", "a b  c ", "  lead", "x=1",
         "it's", 'say "hi"', "both ' and \"", "back\\slash", "tab\t", "line\nline\r\nline\rend", "nul\x00", "\x1f\x7f\x80\xa0\xad",
         "é", "e\u0301", "ß", "Straße", "ﬁ", "İ", "ı", "ΑΣ", "ΑΣΑ", "Σ", "ὈΔΥΣΣΕΎΣ", "ǅ", "ǆ", "Ǆ", "ŉ", "ΐ", "日本語", "😀", "👩‍👩‍👧",
         "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1ei", "\u3000wide\u3000", "\u200bzero", "٣٤", "²", "½", "Ⅷ", "Title Case", "not_title",
         "word-word's", "12", "-12", "+5", "007", "1_000", "\u1e9e", "\U00010400", "\U0001d7d8", "ʰ", "aʰΣ", "\u0345", "&<>'\"", "a &amp; <b x='>'>c</b>", "&#65;&lt;&notit;&#x110000; &amp", "<!-- c --> x  <",
         "x" * 50, "ab" * 20, "aaa", "\ufffe\uffff", "\U000e0001", "\u0378", "%s", "{}", "key", "items", "<b>", "mañana", "ﬀ", "ꭓ"]
runes = "aAbB zZ\t\n\r'\"\\-_.,:09éßΣσςİıǅﬁ日😀\u0301\u00ad\u2028\x85\x1c\u00b2٣½Ⅷªʰΐŉⅷⓐ\U00010428\u1f88"


def text():
    if rnd.random() < 0.7:
        return rnd.choice(words)
    return "".join(rnd.choice(runes) for _ in range(rnd.randrange(9)))


def integer():
    x = rnd.random()
    if x < 0.6:
        return rnd.choice(small)
    if x < 0.9:
        return rnd.choice(big)
    return rnd.randrange(-2**rnd.randrange(1, 200), 2**rnd.randrange(1, 200))


def number():
    x = rnd.random()
    if x < 0.5:
        return integer()
    if x < 0.55:
        return rnd.random() < 0.5
    if x < 0.85:
        return rnd.choice(floats)
    if x < 0.92:
        return round(rnd.uniform(-1000, 1000), rnd.randrange(6))
    return struct.unpack("d", struct.pack("Q", rnd.getrandbits(64)))[0]


def hashable():
    return rnd.choice([text, lambda: rnd.choice(small), lambda: None, lambda: True])()


def view(d):
    return rnd.choice([d.keys, d.values, d.items])()


def mapping(depth):
    d = {}
    for _ in range(rnd.choice([0, 1, 2, 3, 12])):
        d[rnd.choice([text, text, hashable])()] = value(depth - 1)
    return d


def value(depth=2):
    x = rnd.random()
    if x < 0.3 or depth <= 0:
        return rnd.choice([text, number, lambda: None, lambda: True, lambda: env.undefined(name="u")])()
    if x < 0.45:
        return text()
    if x < 0.6:
        return number()
    kind = rnd.randrange(9)
    if kind < 2:
        return [value(depth - 1) for _ in range(rnd.randrange(4))]
    if kind == 2:
        return tuple(value(depth - 1) for _ in range(rnd.randrange(4)))
    if kind < 5:
        return mapping(depth)
    if kind == 5:
        return rnd.choice([range(rnd.randrange(12)), range(rnd.randrange(-9, 9), rnd.randrange(-9, 9), rnd.choice([1, 2, 3, -1, -2]))])
    if kind == 6:
        return Markup(text())
    if kind == 7:
        return view(mapping(depth))
    return Namespace(a=value(depth - 1))


def like(v):
    """A value that is often of the type of v, or equal to it."""
    x = rnd.random()
    if x < 0.2:
        return v
    if x < 0.6:
        for _ in range(30):
            w = value()
            if type(w) is type(v):
                return w
    if x < 0.7 and isinstance(v, (list, tuple)) and v:
        return type(v)(list(v)[: rnd.randrange(len(v))] + [value(1)])
    return value()


def bound(n=12):
    return rnd.choice([None, rnd.randrange(-n, n), rnd.randrange(-n, n), rnd.randrange(4), True, rnd.choice(big), 1.5 if rnd.random() < 0.2 else 0])


binops = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
          "//": lambda a, b: a // b, "%": lambda a, b: a % b}
compares = {"==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
            ">": lambda a, b: a > b, ">=": lambda a, b: a >= b, "in": lambda a, b: a in b}


def isint(v):
    return isinstance(v, int)


def binary():
    op = rnd.choice(list(binops))
    if rnd.random() < 0.6:
        a, b = number(), number()
    else:
        a = value()
        b = like(a)
    if op == "%" and isinstance(a, str):
        return percent()
    if op == "*" and any(isint(x) and abs(x) > 99 and not isinstance(y, (int, float)) for x, y in ((a, b), (b, a))):
        raise Skip
    return ["bin", op, a, b], lambda: binops[op](a, b)


def element(v):
    """Something that may be in v."""
    if isinstance(v, str):
        i = rnd.randrange(len(v) + 1)
        return v[i : i + rnd.randrange(3)]
    try:
        items = list(v)
    except Exception:
        items = []
    return rnd.choice(items) if items and rnd.random() < 0.6 else value(1)


def skip_identity(v):
    """Skips what is compared by identity, which is not recorded."""
    if any(kind in json.dumps(encode(v)) for kind in ('"n":', '"values"')):
        raise Skip


def compare():
    op = rnd.choice(list(compares))
    if op == "in":
        b = value()
        a = element(b)
    elif rnd.random() < 0.3:
        a, b = number(), number()
        if rnd.random() < 0.2 and isint(a):
            b = rnd.choice([a, a + 1, a - 1])
            try:
                b = float(b)
            except OverflowError:
                pass
    else:
        a = value()
        b = like(a)
    skip_identity(a)
    return ["cmp", op, a, b], lambda: compares[op](a, b)


def unary():
    op, f = rnd.choice([("+", lambda v: +v), ("-", lambda v: -v), ("truth", bool), ("len", len), ("str", str), ("repr", repr),
                        ("str", str), ("repr", repr), ("list", list), ("hash", lambda v: {v: 1})])
    a = number() if op in "+-" else value()
    return ["un", op, a], lambda: f(a)


def item():
    op, f = rnd.choice([("getitem", env.getitem), ("index", lambda a, b: a[b])])
    a = value()
    b = rnd.choice([lambda: rnd.randrange(-5, 6), lambda: element(a), lambda: value(1), lambda: rnd.choice(big), lambda: "items",
                    lambda: "upper", lambda: rnd.choice(list(a) or [0]) if isinstance(a, dict) else 0])()
    if '"n":' in json.dumps(encode(b)):
        raise Skip
    return [op, a, b], lambda: f(a, b)


names = ["foo", "a", "_x", "key", "items", "upper"]


def attribute():
    a, name = value(), rnd.choice(names)
    return ["getattr", a, name], lambda: env.getattr(a, name)


def slicing():
    a, b, c, d = value(), bound(), bound(), rnd.choice([None, None, 1, 2, -1, -2, 3, 0, True, 5, -9, rnd.choice(big)])
    while rnd.random() < 0.8 and not isinstance(a, (str, list, tuple)):
        a = value()
    return ["slice", a, b, c, d], lambda: a[b:c:d]


def dicts():
    pairs = [(hashable(), rnd.randrange(9)) for _ in range(rnd.randrange(14))]
    keys = [k for k, _ in pairs]
    for k in keys[:]:
        if isinstance(k, int):
            pairs.append((rnd.choice([int, bool])(k), 10))
    return ["dict", [list(p) for p in pairs]], lambda: dict(pairs)


def percent():
    code = rnd.choice("sd")
    a = rnd.choice([number, number, value, text])()
    f = rnd.choice(["%", "a%", "%%%", "<%"]) + code + rnd.choice(["", "|", " é"])
    v = rnd.choice([a, a, (a,)])
    if rnd.random() < 0.1:
        f, v = rnd.choice([("%s %s", (a, a)), ("%s", ()), ("none", a), ("none", ()), ("%s", {"a": a}), ("%s%s", [1, 2]), ("x", [1])])
    return ["bin", "%", f, v], lambda: f % v


def strformat():
    a = rnd.choice([number, number, number, text, value])()
    if rnd.random() < 0.2 and isinstance(a, (int, float)):
        a = rnd.choice([0, 0.0, -0.0, 1234567, 1234567.891, -1234567, 12, 0.00001234, 1e16, 1e15, -0.04, True])
    f = rnd.choice(["{} {}", "{a} {b}", "{b:d}", "{", "}", "{{}}", "{{{}}}", "{ }", "x{}y{", "{a:}", "{}}", "{zz}"])
    args = [a, rnd.choice([3, 10, "x"]), 1]
    if rnd.random() < 0.3:
        args = args[: rnd.randrange(3)]
    kw = {"a": a, "b": 2}
    return ["call", f, "format", args, kw], lambda: env.getattr(f, "format")(*args, **kw)


chars = [" ", "a", "ab", "abc\t\n", "é", "", None, "x", "😀", "\u3000 ", "'\""]
strargs = {}
for n in "capitalize isdigit lower title upper".split():
    strargs[n] = lambda s: []
for n in "strip lstrip rstrip".split():
    strargs[n] = lambda s: rnd.choice([[], [rnd.choice(chars)], [s[:1]], [s[-1:]], [text()]])
for n in "find rfind count startswith endswith".split():
    strargs[n] = lambda s: [element(s) if rnd.random() < 0.7 else text()]
for n in "split rsplit".split():
    strargs[n] = lambda s: [rnd.choice([None, ",", " ", element(s), "a", "ab", "aa", ""]), rnd.choice([-1, 0, 1, 2, 3, 9, -5])][: rnd.randrange(3)]
for n in "removeprefix removesuffix".split():
    strargs[n] = lambda s: [rnd.choice([",", " ", element(s), s[:1], s[-2:], ""])]
strargs["splitlines"] = lambda s: rnd.choice([[], [True], [0], [False], [2]])
strargs["join"] = lambda s: [rnd.choice([[text() for _ in range(rnd.randrange(4))], tuple(text() for _ in range(2)), text(), value(), {"a": 1, "b": 2}, [Markup("<"), "<"], [text(), 1]])]
strargs["replace"] = lambda s: [element(s), rnd.choice(["", "x", "<&>", text()]), rnd.choice([-1, 0, 1, 2, 5, -3])][: rnd.randrange(2, 4)]
strmethods = list(strargs)
kwnames = {"split": ["sep", "maxsplit"], "rsplit": ["sep", "maxsplit"], "splitlines": ["keepends"], "removesuffix": ["suffix"]}


def strcall():
    a = text() if rnd.random() < 0.7 else text() + text()
    if rnd.random() < 0.15:
        a += rnd.choice(["\t", "x\ty", " tail  "])
    name = rnd.choice(strmethods)
    args = strargs[name](a)
    if rnd.random() < 0.04:
        args = [value(1) for _ in range(rnd.randrange(4))]
    kw = {}
    if args and name in kwnames and rnd.random() < 0.3:
        i = rnd.randrange(len(args))
        kw = dict(zip(kwnames[name][i:], args[i:]))
        args = args[:i]
    return ["call", a, name, args, kw], lambda: env.getattr(a, name)(*args, **kw)


othermethods = {dict: ["get", "get", "items", "keys", "values"]}


def othercall():
    a = value()
    if type(a) not in othermethods:
        raise Skip
    name = rnd.choice(othermethods[type(a)])
    args = {"get": lambda: [element(a), value(1)][: rnd.randrange(1, 3)]}.get(name, list)()
    if rnd.random() < 0.03:
        args = [value(1) for _ in range(rnd.randrange(4))]
    return ["call", a, name, args, {}], lambda: env.getattr(a, name)(*args)


kinds = [binary, binary, binary, compare, compare, compare, unary, unary, unary, item, attribute, slicing, dicts, percent, percent, strformat, strformat,
         strcall, strcall, strcall, strcall, othercall]
if len(sys.argv) > 3:
    kinds = [globals()[n] for n in sys.argv[3].split(",")]
done = 0
while done < count:
    try:
        line, run = rnd.choice(kinds)()
        line = [encode(x) for x in line]
        try:
            result = run()
        except Exception as e:
            result = {"e": type(e).__name__}
        else:
            result = encode(result)
    except Skip:
        continue
    print(json.dumps(line + [result], ensure_ascii=False, separators=(",", ":")))
    done += 1
