#!/usr/bin/env python3
"""Writes ../tables: what CPython's str methods know of each code point; chars.go has the forms.

Run it by the CPython that is to be reproduced: python3.11 unicode_tables.py
"""
import pathlib
import struct
import sys

SPECIAL = 1 << 4


def flags(c):
    s = chr(c)
    sigma = "\u03a3"
    final = "\u03c2"
    after_digit = ("1" + s + sigma).lower().endswith(final)
    return sum(bit << i for i, bit in enumerate([
        s.isdigit(),
        s.isprintable(),
        (s + "a").title().endswith("a"),  # cased
        ("A" + s + sigma).lower().endswith(final) and not after_digit,  # ignored by case
    ]))


runs, kinds, special, last = [], {}, [], None
for c in range(0x110000):
    kind = (0, 0, 0, 0)
    if not 0xD800 <= c < 0xE000:
        s = chr(c)
        forms = s.upper(), s.lower(), s.title()
        kind = flags(c), *(ord(f) - c if len(f) == 1 else 0 for f in forms)
        if any(len(f) != 1 for f in forms):
            kind = kind[0] | SPECIAL, 0, 0, 0
            special.append((c, forms))
    k = kinds.setdefault(kind, len(kinds))
    if k != last:
        runs.append(c << 8 | k)
        last = k
assert len(kinds) <= 256

tables = pathlib.Path(__file__).parent.parent / "tables"
(tables / "unicode_kinds").write_bytes(b"".join(struct.pack("<4i", *kind) for kind in kinds))
(tables / "unicode_runs").write_bytes(struct.pack(f"<{len(runs)}I", *runs))
(tables / "unicode_forms").write_text("".join(" ".join((chr(c), *forms)) + "\n" for c, forms in special), encoding="utf-8")
