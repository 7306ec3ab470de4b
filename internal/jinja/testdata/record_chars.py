#!/usr/bin/env python3
"""Prints, for the table in unicode_test.go, a hash of what CPython 3.11 makes of every code point."""
import hashlib

classes = "isalnum isalpha isdecimal isdigit islower isnumeric isspace isupper".split()
methods = "capitalize lower split splitlines strip title upper".split()
forms = ["{}", "A{}", "1{}Σ", "A{}Σ", "AΣ{}", "AΣ{}a", "a{}a"]


def record(name, forms, end):
    h = hashlib.sha256()
    for c in range(end):
        for form in forms:
            if not 0xD800 <= c < 0xE000 and (len(forms) == 1 or c < 0x3000 or c % 5 == 0):
                s = form.replace("{}", chr(c))
                v = repr(s) if name == "repr" else getattr(s, name)()
                h.update((v if isinstance(v, str) else repr(v)).encode() + b"\0")
    print(f'\t"{name}": "{h.hexdigest()[:16]}",')


for name in classes:
    record(name, forms[:1], 0x110000)
for name in methods + ["repr"]:
    record(name, forms, 0x20000)
