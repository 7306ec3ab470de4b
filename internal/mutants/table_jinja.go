package main

var jinjaMutants = table{breaks: "./internal/jinja", rows: []mutant{
	{"a tag keeps the newline behind it", "lexer.tagEnd", "case strings.HasPrefix(rest, \"%}\\n\"):\n\t\treturn i + 3", "case false:\n\t\treturn i + 3", "TestParse"},
	{"a comment keeps the newline behind it", "lexer.skipComment", "case sign != '+' && strings.HasPrefix(l.source[l.pos:], \"\\n\"):", "case false:", "TestParse"},
	{"a tag keeps the space before it in its line", "lexer.strip", "case sign == 0 && lstrip:", "case false:", "TestParse"},
	{"a plus strips a tag's line", "lexer.strip", "case sign == 0 && lstrip:", "case lstrip:", "TestParse"},
	{"a variable strips its line", "lexer.lexText", "sign, l.state != inVar)", "sign, true)", "TestParse"},
	{"a tag behind a tag is first in its line", "lexer.strip", "if line > 0 || start == 0 || l.source[start-1] == '\\n' {", "if true {", "TestParse"},
	{"a minus strips spaces only", "lexer.strip", "return strings.TrimRightFunc(text, isSpace)", "return strings.TrimRight(text, \" \")", "TestParse"},
	{"a lone carriage return is no newline", "normalizeNewlines", "\"\\r\\n\", \"\\n\", \"\\r\", \"\\n\")", "\"\\r\\n\", \"\\n\")", "TestParse"},

	{"the last newline stays", "parse", "strings.TrimSuffix(normalizeNewlines(source), \"\\n\")", "normalizeNewlines(source)", "TestParse"},

	{"brackets do not hide the end of a tag", "lexer.lexEnd", "if len(l.brackets) > 0 {", "if false {", "TestParse"},
	{"a raw block strips as a variable does", "lexer.lexRaw", "if text := l.strip(start, i, sign, true); text != \"\" {", "if text := l.strip(start, i, sign, false); text != \"\" {", "TestParse"},
	{"a number behind a point is a float", "lexer.float", "if l.pos > 0 && l.source[l.pos-1] == '.' {", "if false {", "TestParse"},
	{"an unknown escape loses its backslash", "unescapeLiteral", "b.WriteByte('\\\\')\n\t\t\t\tb.WriteByte(c)", "b.WriteByte(c)", "TestParse"},
	{"a backslash before a character beyond ASCII", "unescapeLiteral", "b.WriteString(backslashReplace(r))", "b.WriteRune(r)", "TestParse"},
	{"an escape of a surrogate is taken", "hexEscape", "case 0xd800 <= r && r < 0xe000:", "case false:", "TestParseRefuses"},
	{"a name in another form is taken", "lexer.lexName", "if unicode.In(r, unicode.L, unicode.M, unicode.N) {", "if false {", "TestParseRefuses"},
	{"an infinite number is taken", "lexer.lexNumber", "if err != nil || math.IsInf(f, 0) {", "if err != nil && !math.IsInf(f, 0) {", "TestParseRefuses"},

	{"filters apply to what has a sign", "parser.unary", "on: p.unary(false)}", "on: p.unary(true)}", "TestParse"},
	{"not binds before comparisons", "parser.not", "return &notExpr{pos: p.next().at, on: p.not()}", "return &notExpr{pos: p.next().at, on: p.sum()}", "TestParse"},
	{"a tilde binds as a plus", "parser.sum", "p.binary(p.concat, \"+\", \"-\")", "p.binary(p.product, \"+\", \"-\")", "TestParse"},
	{"an inline if is no alternative", "parser.expression", "cond.els = p.expression()", "cond.els = p.or()", "TestParse"},
	{"the condition of a for is an inline if", "parser.forLoop", "s.iter = p.tuple(tupleForm{noCond: true})", "s.iter = p.tuple(anyExpr)", "TestParse"},
	{"the argument of a test takes filters", "parser.test", "p.postfix(p.primary(false))}", "p.unary(true)}", "TestParse"},
	{"a break in a macro within a loop", "parser.function", "p.loops = 0\n\tbody, _ := p.block(end)", "body, _ := p.block(end)", "TestParse"},
	{"a break outside of a loop", "parser.inLoop", "if t := p.next(); p.loops == 0 {", "if t := p.next(); p.loops < 0 {", "TestParse"},
	{"an include is any unknown tag", "parser.statement", "case \"block\", \"extends\", \"include\",", "case \"block\", \"extends\",", "TestParseRefuses"},
	{"arguments of Jinja2's own are passed", "parser.call", "if slices.Contains(reservedArgs, arg.name) {", "if false {", "TestParseRefuses"},
	{"templates nest without bound", "parser.enter", "if p.nesting++; p.nesting > maxNesting {", "if p.nesting++; p.nesting > 9*maxNesting {", "TestParseLimits"},
	{"chains without bound", "chain.link", "if *c++; *c > maxChain {", "if *c++; *c > 9*maxChain {", "TestParseLimits"},

	{"an error has the place of what is around", "locate", "if !errors.As(err, &e) || e.Line > 0 {", "if !errors.As(err, &e) {", "TestErrorPlaces"},

	{"a store hides the value from around", "symbols.store", "s.define(name, symbolLoad{kind: loadAlias, from: outer})", "s.define(name, symbolLoad{kind: loadMissing})", "TestScopes"},
	{"what one branch stores the host has not", "symbols.merge", "l := symbolLoad{kind: loadContext, name: name}", "l := symbolLoad{kind: loadMissing}", "TestScopes"},
	{"what one branch stores is not around", "symbols.merge", "\t\t\tl = symbolLoad{kind: loadAlias, from: outer}\n", "\t\t\t_ = outer\n", "TestRules"},
	{"branches see each other's stores", "symbols.branch", "b.refs, b.loads, b.stores = maps.Clone(s.refs), maps.Clone(s.loads), maps.Clone(s.stores)", "b.refs, b.loads, b.stores = s.refs, s.loads, s.stores", "TestScopes"},

	{"a variable outlives its scope", "machine.leaveScope", "for _, slot := range s.clear {\n\t\tf.slots[slot] = missing", "for _, slot := range s.clear {\n\t\t_ = slot", "TestScopes"},
	{"a scope begins with what it last held", "machine.enterScope", "case loadMissing:\n\t\t\tf.slots[l.slot] = missing", "case loadMissing:", "TestRules"},

	{"a macro keeps the values of its time", "machine.newMacro", "return &macro{s, f}, m.alloc(32)", "return &macro{s, &frame{slices.Clone(f.slots), f.up}}, m.alloc(32)", "TestScopes"},

	{"the values of a with see its variables", "resolver.with", "r.expr(&st.values[i], s)", "r.expr(&st.values[i], inner)", "TestScopes"},
	{"a default sees the parameters behind it", "resolver.params", "r.unset[v] = l.kind == loadParam", "_, _ = v, l", "TestRules"},

	{"a macro drops arguments", "macro.bindRest", "case len(list) > 0:", "case false:", "TestScopes"},
	{"caller by position is none", "macro.bind", "foundCaller := c.isParam && given == len(c.params)", "foundCaller := false", "TestScopes"},

	{"a break leaves no else", "machine.turns", "if err != nil || end == flowBreak {\n\t\t\treturn empty, err", "if err != nil || end == flowBreak {\n\t\t\treturn false, err", "TestScopes"},
	{"a continued turn is a turn", "machine.turns", "if end == flowNext {\n\t\t\tempty = false", "if true {\n\t\t\tempty = false", "TestScopes"},
	{"a recursive loop stays at its depth", "machine.loop", "m.recurse(up, st, v, depth+1)", "m.recurse(up, st, v, depth)", "TestScopes"},
	{"changed compares with the first", "loopContext.hasChanged", "\tl.changed = value\n", "\tif l.changed == missing {\n\t\tl.changed = value\n\t}\n", "TestScopes"},
	{"the previous item is the current one", "loopContext.attr", "return l.before, true, nil", "return l.current, true, nil", "TestScopes"},
	{"the first item has a previous one", "loopContext.attr", "if l.index0 == 0 {\n\t\t\treturn &Undefined", "if l.index0 < 0 {\n\t\t\treturn &Undefined", "TestRules"},
	{"what was looked at is lost", "loopContext.next", "v, ok, err := l.after, true, error(nil)\n\tif isMissing(v) {", "v, ok, err := l.after, true, error(nil)\n\tif true {", "TestScopes"},
	{"the length is of what is left", "loopContext.count", "l.length = len(rest) + l.index0 + 1", "l.length = len(rest)", "TestScopes"},
	{"revindex counts from 0", "loopContext.attr", "n -= l.index0\n", "n -= l.index0 + 1\n", "TestScopes"},
	{"cycle begins with the second", "loopContext.cycle", "args.list[l.index0%len(args.list)]", "args.list[(l.index0+1)%len(args.list)]", "TestScopes"},

	{"too many to unpack", "machine.unpack", "case len(items) > n:", "case false:", "TestScopes"},

	{"a chain compares with the first", "machine.evalCompare", "\t\tleft = right\n", "\t\t_ = right\n", "TestRules"},
	{"what is undefined equals nothing", "machine.evalEqual", "return undefined || isMissing(x), nil", "return undefined && false, nil", "TestScopes"},

	{"a loop over text is passed over", "neverOfText", "return ok && on.name == name && constant", "return ok && on.name == name && (constant || true)", "TestScopes"},

	{"what keys a dict is not compared exactly", "floatHash", "case f != math.Trunc(f) || math.IsInf(f, 0):", "case true:", "TestDictKeys"},

	{"a variable of a block that has ended", "unassigned", "if e.ref.sure {", "if false {", "TestUnsupportedAtRender"},

	{"a template changes a dict", "machine.setAttr", "return unsupported(\"a change of a dict\")", "return of.set(m, name, v)", "TestUnsupportedAtRender"},
	{"attributes of what is no namespace are set late", "namespaces", "if _, ok := (*f.variable(t.ref)).(*Namespace); !ok {", "if false {", "TestErrorPlaces"},

	{"self is a variable", "resolver.template", "if r.undeclared(t.root.body, \"self\")[\"self\"] {", "if false {", "TestUnsupportedAtCompile"},

	{"random is found when it is used", "resolver.filter", "if refusedFilters[e.name] {", "if false {", "TestUnsupportedAtCompile"},

	{"an unknown filter of a branch is found at once", "resolver.stmt", "s.soft = true\n\t\tr.branch(st, s)", "r.branch(st, s)", "TestErrorPlaces"},

	{"items go before a dict's methods", "machine.getattr", "ok && !isDictAttr(name) && !strings.HasPrefix(name, \"_\") {", "ok && !strings.HasPrefix(name, \"_\") {", "TestRecordedValues"},
	{"a dict's methods go before keys in brackets", "machine.getitem", "if v, ok := obj.Lookup(name); ok {\n\t\t\treturn v, nil\n\t\t}\n\tcase *Undefined:\n\t\treturn nil, obj.fail()\n\t}\n\tv, ok, err", "if v, ok := obj.Lookup(name); ok && !isDictAttr(name) {\n\t\t\treturn v, nil\n\t\t}\n\tcase *Undefined:\n\t\treturn nil, obj.fail()\n\t}\n\tv, ok, err", "TestRules"},
	{"a method that changes a list is not there", "machine.attr", "case listed(unsafeAttrs[class], name):", "case false:", "TestUndefinedMessages"},
	{"a private attribute is not there", "machine.privateAttr", "\tif has {\n", "\tif false {\n", "TestUndefinedMessages"},
	{"a method that is not here is not there", "machine.attr", "case listed(unsupportedAttrs[class], name):", "case false:", "TestUnsupportedAtRender"},

	{"a refused method gives None", "refuse", "return nil, unsupported(\"str.%s\", name)", "return nil, nil", "TestUnsupportedAtRender"},

	{"a range of any length", "safeRange", "if rangeLength(r) > maxRange {", "if false {", "TestRules"},

	{"default replaces what is false", "defaultFilter", "if err != nil || !boolean {", "if err != nil || boolean {", "TestRecordedFilters"},
	{"default without a default is undefined", "defaultFilter", "if isUndefined(v) {\n\t\treturn or(b[1], \"\"), nil", "if isUndefined(v) {\n\t\treturn or(b[1], v), nil", "TestRecordedFilters"},
	{"join by a comma", "joinFilter", "m.str(or(b[1], \"\"))", "m.str(or(b[1], \",\"))", "TestRecordedFilters"},
	{"sort by case", "machine.caseGetter", "newGetter(attribute, def, !sensitive)", "newGetter(attribute, def, sensitive)", "TestRecordedFilters"},
	{"equal elements lose their order", "machine.sortBy", "slices.SortStableFunc(", "slices.SortFunc(", "TestRules"},
	{"reverse turns equal elements round", "machine.sort", "\t\tif reverse {\n\t\t\ta, b = b, a\n\t\t}\n\t\treturn m.less(\"<\", a, b)", "\t\tok, err := m.less(\"<\", a, b)\n\t\treturn ok != reverse, err", "TestRules"},
	{"nan is sorted somehow", "machine.sortBy", "} else if nan {", "} else if nan && err != nil {", "TestUnsupportedAtRender"},
	{"a group has its name in lower case", "groupbyFilter", "\tget.ignoreCase = false\n", "", "TestRecordedFilters"},

	{"what is undefined has no default", "getter.get", "if g.def != nil && isUndefined(v) {", "if false {", "TestRecordedFilters"},
	{"digits of a path are names", "machine.pathParts", "if !isDigits(part) {", "if true {", "TestRecordedFilters"},

	{"reject selects", "selectFilter", "return item, ok == want, err", "return item, ok, err", "TestRecordedFilters"},
	{"every slice is filled", "machine.slices", "if fill != nil && !extra {", "if fill != nil {", "TestRecordedFilters"},

	{"truncate has no leeway", "truncateFilter", "\t\tmore = leeway\n", "\t\tmore = int64(0)\n", "TestRecordedFilters"},
	{"truncate cuts words", "truncateFilter", "if !killWords {", "if killWords {", "TestRecordedFilters"},
	{"indent of empty lines", "machine.indent", "(blank || line != \"\") {", "(true || line != \"\") {", "TestRules"},
	{"a hyphen begins no word", "beginsWords", "return c == '-' || c == '(' ||", "return c == '(' ||", "TestRecordedFilters"},

	{"floats are rounded up from the middle", "machine.round", "v = math.RoundToEven(f)", "v = math.Round(f)", "TestRules"},

	{"items of JSON without spaces", "tojsonFilter", "item: \", \", key: \": \"}", "item: \",\", key: \": \"}", "TestRecordedFilters"},
	{"lines of JSON end in spaces", "jsonWriter.configure", "\t\tw.item = \",\"\n", "", "TestRecordedFilters"},
	{"JSON is ASCII unasked", "jsonWriter.text", "(c < 0x7f || !w.ascii) {", "c < 0x7f {", "TestRecordedFilters"},
	{"JSON is never ASCII", "jsonWriter.text", "(c < 0x7f || !w.ascii) {", "true {", "TestRecordedFilters"},
	{"half of a pair of surrogates", "appendJSONEscape", "r = 0xdc00 + r&0x3ff", "r = 0xdc00 + r&0x1ff", "TestRules"},
	{"a form feed by its number", "appendJSONEscape", "\tcase '\\f':\n\t\treturn append(dst, '\\\\', 'f')\n", "", "TestRecordedFilters"},
	{"keys of JSON unsorted", "jsonWriter.dict", "\tif w.sorted {\n", "\tif false {\n", "TestRecordedFilters"},
	{"an empty list of JSON takes two lines", "jsonWriter.list", "if len(items) == 0 {", "if false {", "TestRecordedFilters"},
	{"indentation in half", "jsonWriter.dict", "if err := w.value(values[i], level+1); err != nil {", "if err := w.value(values[i], level); err != nil {", "TestRules"},

	{"what is undefined is no sequence", "isIndexable", "*Dict, *Range, *Undefined:\n\t\treturn true", "*Dict, *Range:\n\t\treturn true", "TestRecordedFilters"},
	{"equal texts are one", "sameasTest", "return sure(v == other, v == \"\")", "return v == other, nil", "TestUnsupportedAtRender"},

	{"white space behind the last piece", "cutSpace", "return s[:i], rest, rest != \"\"", "return s[:i], rest, true", "TestRecordedValues"},
	{"chars are a prefix", "strip", "is = newRuneSet(cut).has", "is = func(r rune) bool { return strings.HasPrefix(cut, string(r)) }", "TestRules"},
	{"title of letters behind an apostrophe", "machine.title", "within = charOf(r).is(charCased)", "within = r == '\\'' || charOf(r).is(charCased)", "TestRecordedValues"},
	{"CRLF ends two lines", "machine.splitLines", "if strings.HasPrefix(s[i:], \"\\r\\n\") {", "if false {", "TestRecordedValues"},

	{"a vertical tab ends no line", "isLineEnd", "case '\\n', '\\v', '\\f',", "case '\\n', '\\f',", "TestRules"},

	{"center leans to the left", "pad", "left = n/2 + n&width&1", "left = n / 2", "TestRecordedValues"},
	{"zeros before a plus", "machine.zeroFill", "(s[0] == '+' || s[0] == '-')", "s[0] == '-'", "TestRules"},
	{"places in bytes", "find", "n, err := m.runes(s[:f.from+at])\n\t\t\treturn int64(n), err", "_, err := m.runes(s[:f.from+at])\n\t\t\treturn int64(f.from + at), err", "TestRecordedValues"},
	{"the empty text behind the end", "machine.field", "from == len(s) && i > utf8.RuneCountInString(s)}", "from == len(s) && i < 0}", "TestRecordedValues"},
	{"rpartition puts the rest first", "partition", "parts = []Value{\"\", \"\", s}", "parts = []Value{s, \"\", \"\"}", "TestRecordedValues"},
	{"a sigma never ends a word", "appendLower", "if r == capitalSigma && finalSigma(", "if false && finalSigma(", "TestCodePoints/lower"},

	{"slices backwards end at the second", "sliceSpan", "lowest, highest = -1, n-1", "lowest, highest = 0, n-1", "TestRecordedValues"},
	{"slices backwards count one more", "sliceSpan", "count = (from-to-1)/-by + 1", "count = (from-to)/-by + 1", "TestRecordedValues"},
	{"items from the end are of bytes", "machine.indexText", "return \"\", raise(\"IndexError\", \"string index out of range\")", "return \"\", nil", "TestRecordedValues"},
	{"steps of bytes", "machine.sliceText", "if !isASCII(s) {\n\t\treturn m.sliceRunes", "if false {\n\t\treturn m.sliceRunes", "TestRecordedValues"},

	{"a repr never has single quotes around double", "appendReprString", "strings.IndexByte(s, '\\'') >= 0 && strings.IndexByte(s, '\"') < 0 {", "strings.IndexByte(s, '\\'') >= 0 {", "TestRecordedValues"},
	{"a tuple of one has no comma", "printer.reprContainer", "\",)\")", "\")\")", "TestRecordedValues"},
	{"floats have exponents from 1e15 on", "appendFloat", "abs >= 1e16", "abs >= 1e15", "TestRecordedValues"},
	{"floats have exponents below 1e-5", "appendFloat", "abs < 1e-4", "abs < 1e-5", "TestRecordedValues"},
	{"whole floats look like ints", "appendFloat", "return append(dst, \".0\"...)", "return dst", "TestRecordedValues"},
	{"a repr escapes nothing beyond ASCII", "appendReprString", "if !charOf(r).is(charPrintable) {", "if false {", "TestRecordedValues"},
	{"an int of any number of digits is printed", "machine.decimal", "if len(strings.TrimPrefix(s, \"-\")) > maxDigits {", "if false {", "TestRules"},

	{"division rounds to zero", "smallInts", "if r != 0 && (r < 0) != (y < 0) {", "if false {", "TestRecordedValues"},
	{"division of large ints rounds to zero", "machine.ints", "if r.Sign() != 0 && r.Sign() != y.Sign() {", "if false {", "TestRecordedValues"},
	{"sums wrap around", "smallInts", "return n, (n > x) == (y > 0)", "return n, true", "TestRecordedValues"},
	{"a rest has the sign of the dividend", "machine.floats", "case (mod < 0) != (y < 0):", "case false:", "TestRecordedValues"},
	{"Markup is not escaped", "machine.add", "t, err = m.escape(b)", "_ = b", "TestRules"},

	{"a power that may be rounded otherwise", "machine.positivePower", "if g, _ := moved.Float64(); g != f {", "if g, _ := moved.Float64(); g != g {", "TestUnsupportedAtRender"},

	{"nan is equal to nan", "machine.compareNumbers", "return compare(f, g), f == f && g == g, nil", "return compare(f, g), true, nil", "TestRecordedValues"},
	{"ints are compared as floats", "machine.compareFloat", "ok && i > -1<<53 && i < 1<<53 {", "ok {", "TestRules"},
	{"the longer list is equal", "machine.lessItems", "return holds(op, compare(len(a), len(b))), nil", "return holds(op, 0), nil", "TestRecordedValues"},
	{"nan of two containers is compared", "machine.same", "if b, ok := b.(float64); ok && b != b {", "if b, ok := b.(float64); ok && b == a {", "TestUnsupportedAtRender"},

	{"a negative width is none", "directive.parse", "if d.width = width; width < 0 {", "if d.width = width; false {", "TestRecordedValues"},
	{"values are left", "percentFormatter.format", "if len(p.args) > 0 && p.mapping == missing {", "if false {", "TestRules"},
	{"zeros before the sign", "percentFormatter.pad", "s, err = p.m.padded(s, \"0\", n, 0)", "head, err = p.m.padded(head, \"0\", 0, n)\n\t\thead = strings.Repeat(\"0\", n) + head[:len(head)-n]", "TestRecordedValues"},
	{"ints have no precision", "percentFormatter.integer", "if zeros := d.precision - len(digits); zeros > 0 {", "if zeros := d.precision - len(digits); zeros < 0 && false {", "TestRecordedValues"},

	{"fields with and without numbers", "fieldFormatter.lookup", "if f.manual {", "if false {", "TestRecordedValues"},
	{"fields within fields without end", "fieldFormatter.field", "f.format(nil, spec, depth-1)", "f.format(nil, spec, depth)", "TestRecordedValues"},

	{"hexadecimal digits in groups of three", "formatSpec.checkGrouping", "\t\t\tf.group = 4\n", "", "TestRecordedValues"},

	{"noon is 0 o'clock", "timeNumber", "hour12 := (t.Hour()+11)%12 + 1", "hour12 := t.Hour() % 12", "TestRules"},
	{"a day without its space", "timeNumber", "return t.Day(), 2, '_', true", "return t.Day(), 2, '-', true", "TestRecordedFilters"},
	{"the first week has no Monday", "timeNumber", "return (t.YearDay() + 6 - monday) / 7, 2, '0', true", "return (t.YearDay() + 7 - monday) / 7, 2, '0', true", "TestRules"},
	{"an unknown conversion is nothing", "timeDirective.format", "\tdefault:\n\t\treturn \"\", false\n", "\tdefault:\n\t\treturn \"\", true\n", "TestUnsupportedAtRender"},

	{"the host's clock is not read", "strftimeNow", "if m.env.Now != nil {", "if false {", "TestRecordedFilters"},

	{"steps without bound", "machine.step", "return m.spend(stepParts * int64(n))", "return nil", "TestOwnLimits"},
	{"to go through a text is no step", "machine.scan", "return m.spend(int64(n))", "return nil", "TestHostilePrograms"},
	{"kinds of characters are bytes", "machine.kinds", "return m.spend(64 * int64(n))", "return m.spend(int64(n))", "TestOwnLimits"},
	{"to make a text is no step", "machine.alloc", "\tm.work -= stepParts/2 + 2*int64(n)\n", "", "TestOwnLimits"},

	{"turns of a loop are no steps", "source.next", "if err := m.step(1); err != nil {\n\t\treturn nil, false, err\n\t}\n\tswitch {", "switch {", "TestLimits"},

	{"memory without bound", "machine.alloc", "if m.work|m.memory|int64(n) < 0 {", "if m.work|int64(n) < 0 {", "TestOwnLimits"},
	{"calls without bound", "machine.enter", "if m.depth == m.limits.Depth {", "if false {", "TestOwnLimits"},
	{"output without bound", "machine.write", "if len(m.out)+len(s) > m.limits.Output {", "if false {", "TestOwnLimits"},

	{"printed values are no output", "machine.printValue", "return m.write(\"\")", "return nil", "TestOwnLimits"},

	{"a repr of any depth", "printer.reprContainer", "if err := p.m.enter(); err != nil {\n\t\treturn err\n\t}\n\tdefer p.m.leave()\n", "", "TestValueLimits"},

	{"JSON of any depth", "jsonWriter.list", "return w.write(\"[]\")\n\t}\n\tif err := w.m.enter(); err != nil {\n\t\treturn err\n\t}\n\tdefer w.m.leave()\n", "return w.write(\"[]\")\n\t}\n", "TestFilterLimits"},

	{"generators of any depth", "machine.iterator", "if err := m.enter(); err != nil {\n\t\t\treturn nil, false, err\n\t\t}\n\t\tdefer m.leave()\n", "", "TestNestedGenerators"},

	{"escapes are free", "machine.escape", "if err := m.alloc(5 * len(s)); err != nil {", "if err := m.alloc(0); err != nil {", "TestOwnLimits"},

	{"an error comes with half a text", "Template.Render", "if err != nil {\n\t\treturn dst, err\n\t}", "if err != nil {\n\t\treturn append(dst, m.out...), err\n\t}", "TestRenderAppends"},

	{"every loop over content is of messages", "contentFinder.isContent", "return ok && f.messages[name]", "return ok && name != \"\"", "TestWantsParts"},
	{"only the loop over messages counts", "contentFinder.findMessages", "if !lists[to.name] {", "if false {", "TestWantsParts"},
	{"a macro is given no content", "contentFinder.feed", "if g.places[i] || g.names[p.name] {", "if g.places[i] && g.names[p.name] {", "TestWantsParts"},
}}
