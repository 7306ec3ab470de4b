package main

var tokenizeMutants = table{breaks: "./tokenize", rows: []mutant{
	{"a git LFS pointer is a file like any other", "unzipped", "case string(magic) == lfsPointer:", "case false:", "TestLoadFindsTheFile"},
	{"the default of a pool's texts is the most", "NewPool", "cmp.Or(c.MaxText, DefaultPoolMaxText)", "cmp.Or(c.MaxText, MaxText)", "TestDefaults"},

	{"the shortest added token", "matcher.longest", "best = t\n", "return t\n", "TestCasesAsOfficial"},
	{"a single word looks to its right only", "alone", "if r, n := utf8.DecodeLastRune(s[:begin]); n > 0 && classOf(r)&word != 0 {", "if false {", "TestCasesAsOfficial"},
	{"a word that is not alone hides nothing", "matcher.cut", "!alone(s, begin, end) {\n", "!alone(s, begin, end) {\n\t\t\tat = begin + 1\n", "TestCasesAsOfficial"},
	{"lstrip is ignored", "matcher.cut", "if token.lstrip {", "if false {", "TestCasesAsOfficial"},
	{"rstrip is ignored", "matcher.cut", "if token.rstrip {", "if false {", "TestCasesAsOfficial"},
	{"two added tokens with one id", "addedSet.put", "taken && (!ok || other != i)", "taken && other < 0", "TestAddedTokensWithOneID"},
	{"normalized tokens are sought as they are written", "addedSet.matchers", "if t.content = string(text); t.content == \"\" {", "if len(text) == 0 {", "TestFamiliesAsOfficial"},
	{"the ids of added tokens are the file's", "addedSet.add", "if t.id = s.place(t.content); t.id != id {", "if t.id = id; false {", "TestRefusals/added_token_with_another_id"},
	{"a token of the vocabulary takes an id", "addedSet.put", "if _, ok := s.vocab.id([]byte(t.content)); !ok {", "if true {", "TestFamiliesAsOfficial"},

	{"a prefix within a text", "prepend.apply", "if !start || len(s) == 0 {", "if len(s) == 0 {", "TestNormalizeContinued"},

	{"marks of a class change places", "composer.sort", "p.marks[i-1]>>21 > m>>21", "p.marks[i-1]>>21 >= m>>21", "TestFormsPlain"},
	{"a mark composes past one of its class", "composer.settle", "if len(kept) == 0 || kept[len(kept)-1]>>21 < m>>21 {", "if true {", "TestFormsPlain"},
	{"marks out of order are normal", "form.normalEnd", "class != 0 && class < last {", "class != 0 && class < last && false {", "TestFormsPlain"},

	{"replacements of any length", "normalizer.apply", "if len(s) > w.left {", "if false {", "TestReplaceTooLong"},
	{"each part has the bound for itself", "normalizer.apply", "w.left = w.limit() - w.made[i]", "w.left = w.limit()", "TestMarksTooLong"},
	{"parts count for ever", "normalizer.apply", "if start {\n", "if false {\n", "TestSegmentsCountApart"},
	{"a part that stays does not count", "normalizer.apply", "w.made[i] += len(s)", "if changed {\n\t\t\tw.made[i] += len(s)\n\t\t}", "TestMarksTooLong"},
	{"a boundary within a match", "replace.boundary", "if bytes.Contains(p.pattern,", "if false && bytes.Contains(p.pattern,", "TestBoundaryWithinAMatch"},

	{"what an accent may follow is settled", "form.beginsAlone", "v&(valueBack|valueForward) == 0", "v&valueBack == 0", "TestBoundaryCases"},

	{"Metaspace first behind a strip", "BPE.checkTextStart", "if t.pre.textStart && (", "if false && (", "TestFamiliesAsOfficial"},

	{"the last match is not removed", "step.next", "if match {\n\t\t\ti = to", "if false {\n\t\t\ti = to", "TestRunsOfMatches"},
	{"merged with the other side", "step.next", "match != (t.behavior == mergedWithNext)", "match != (t.behavior == mergedWithPrevious)", "TestPreTokenizers"},
	{"two matches are merged", "step.next", "if end, other := t.item(s, to); other != match {\n\t\t\tto", "if end, _ := t.item(s, to); true {\n\t\t\tto", "TestPreTokenizers"},
	{"a prefix space within a text", "prefixSpace", "if at != inside && s[0] != ' ' {", "if s[0] != ' ' {", "TestCutsOfProse"},
	{"Metaspace first behind an added token", "metaspace.rewrite", "m.scheme == \"first\" && at == textStart", "m.scheme == \"first\" && at != inside", "TestFamiliesAsOfficial"},
	{"Metaspace never prepends", "metaspace.rewrite", "m.scheme == \"first\" && at == textStart", "m.scheme != \"always\" && at == textStart", "TestPreTokenizers"},
	{"digits of characters behind ByteLevel", "preTokenizerParser.parseDigits", "step{pattern: mappedDigits}", "step{pattern: digits}", "TestPreTokenizers"},
	{"every segment begins the text", "place.of", "if from > 0 {\n\t\treturn pieceStart", "if from < 0 {\n\t\treturn pieceStart", "TestFamiliesAsOfficial"},

	{"a piece is where its text is", "BPE.encodePieces", "depth+1, pieceStart", "depth+1, at", "TestResumeOfFamilies"},

	{"Llama 3's contractions in lower case", "scanCL100k", "contraction(s[i+1:], true)", "contraction(s[i+1:], false)", "TestKnownPieces"},
	{"the long s is no s", "contraction", "if fold && len(s) >= 2 &&", "if false &&", "TestKnownPieces"},
	{"any number of digits", "endOfRest", "n > 0 && digits > 0; digits--", "n > 0; digits--", "TestPieces"},
	{"all symbols take slashes", "endOfRest", "slashes && s[end] == '/'", "s[end] == '/'", "TestKnownPieces"},
	{"a mark is a lead", "cased", "if word > i {\n", "if false {\n", "TestKnownPieces"},

	{"nothing is given back", "alternative.match", "return a.matchGiving(s, start)", "_ = start\n\t\t\t\treturn none", "TestPatternsOfRandomTexts"},

	{"a possessive run gives back", "alternative.prepareGiving", "t.set == nil || t.keeps ||", "t.set == nil ||", "TestPatternsOfRandomTexts"},

	{"the long s is no s of a pattern", "regexReader.ignoreCase", "t.add('\\u017f', '\\u017f')", "t.add('s', 's')", "TestPatternsOfRandomTexts"},

	{"a run within a run", "program.linear", "if runs++; runs > 1 {", "if runs++; runs > 2 {", "TestRefusedPatterns"},

	{"groups of digits from the left", "digitGroups", "count = (count-1)%3 + 1", "count = min(count, 3)", "TestPatternsOfRandomTexts"},

	{"a part of a character falls back", "symbolTable.fallBack", "if t.fallback[b] == noID {", "if t.fallback[b] == noID && false {", "TestUnknownCharacters"},
	{"bytes stay behind an unknown token", "symbolTable.appendAny", "\t\tvar fell bool\n", "\t\tif waiting && !t.fuse {\n\t\t\tdst = append(dst, t.unknown)\n\t\t\twaiting = false\n\t\t}\n\t\tvar fell bool\n", "TestUnknownCharacters"},
	{"unknown tokens are not fused", "symbolTable.appendAny", "if waiting && !t.fuse {", "if waiting {", "TestUnknownCharacters"},
	{"a piece is cut before it is a token", "model.encode", "if t.uncut {\n", "if false {\n", "TestFamiliesAsOfficial"},
	{"merges of bytes have no joints", "newModel", " && !f.merges.haveBytes()", "", "TestParts"},
	{"a piece that is a token is that one", "model.encodePart", "i >= 0 && t.isAlone(i)", "i >= 0", "TestCasesAsOfficial"},

	{"a kept piece by its length and its first byte", "wordCache.find", "if !bytes.Equal(w.text[:w.length], piece) {", "if int(w.length) != len(piece) || !bytes.Equal(w.text[:1], piece[:1]) {", "TestKeptPiecesAsReference"},

	{"the rightmost merge first", "mergeTable.mergeShort", "if r < best {", "if r <= best {", "TestRandomMergesAsReference"},
	{"a batch is not interrupted", "pairLists.step", "last < 0 || len(l.ranks) > 0 && l.ranks[0] < l.batches[last].rank", "last < 0", "TestRandomMergesAsReference"},
	{"a pair that has gone is merged", "pairLists.merge", "if s.rank != rank {", "if false {", "TestRandomMergesAsReference"},
	{"the first of two merges counts", "mergeTable.add", "\tt.ranks.set(a, b, uint32(len(t.result)))", "\tif t.rank(a, b) == noMerge {\n\t\tt.ranks.set(a, b, uint32(len(t.result)))\n\t}", "TestCasesAsOfficial"},

	{"the last of two fields counts", "parseObject", "if _, ok := o.values[string(name)]; ok {", "if false {", "TestFieldsTwice"},

	{"half a surrogate pair in a token", "stream.escape", "ok = ok && isHex && r != utf8.RuneError", "ok = ok && isHex", "TestParseIsStrict"},

	{"more behind the file", "parseFile", "if err := s.end(); err != nil {", "if err := error(nil); err != nil {", "TestParseIsStrict"},

	{"a text between two separators", "parseAround", "if before, err = parseToken(o, \"cls\"); err != nil {", "if before, err = parseToken(o, \"sep\"); err != nil {", "TestPostProcessors"},

	{"add_bos_token is for classes with a template", "config.applyTemplate", "if c.explicit || ", "if ", "TestLoadPretrainedRefusals"},

	{"the first flags of a token count", "addedSet.put", "s.tokens[i] = t\n", "_ = i\n", "TestLoadPretrained"},

	{"a name takes a token's flags", "config.apply", "; ok || t.content == \"\" {", "; false && ok || t.content == \"\" {", "TestNamedTokenKeepsItsFlags"},
	{"tokens in the order of the config", "config.parseAdded", "return int(a.id) - int(b.id)", "return 0", "TestDecoderInAnyOrder"},

	{"resumes behind white space", "BPE.settled", "if classOf(l)&space != 0 {", "if false {", "TestResumeOfFamilies"},
	{"resumes within an added token", "BPE.settled", "return !t.plain.joins(l, r) && ", "return ", "TestResumeOfFamilies"},
	{"resumes where a token begins within another", "BPE.settled", "return !t.plain.joins(l, r)\n", "return true\n", "TestResumeOfFamilies"},
	{"resumes behind what a normalized token begins with", "BPE.settled", "!t.normalized.joins(nl, nr) && ", "", "TestResumeOfFamilies"},
	{"resumes where a single word may begin", "matcher.begins", "if m == nil || m.single {", "if m == nil {", "TestResumeOfFamilies"},
	{"resumes where normalizing joins", "BPE.settled", "if !ok || !t.pre", "if !ok && false || !t.pre", "TestResumeOfFamilies"},

	{"resumes behind what looks ahead", "preTokenizer.restarts", " || classOf(l)&t.looksAhead != 0 {\n\t\t\treturn false", " {\n\t\t\treturn false", "TestCuts"},

	{"a piece parts that may be a token", "model.parts", "t.joints != nil && !t.uncut &&", "t.joints != nil &&", "TestParts"},

	{"resumes within a character", "BPE.settled", "if l == utf8.RuneError && lWidth == 1 || r == utf8.RuneError && rWidth == 1 {", "if false {", "TestResumeIsBetweenCharacters"},

	{"tokens before the text do not count", "BPE.encodePassage", "m.Tokens = len(ids) - len(dst)", "m.Tokens = len(ids) - len(dst)\n\t\tif p.special && p.from == 0 {\n\t\t\tm.Tokens -= len(t.before)\n\t\t}", "TestMarkedTokens"},
	{"tokens before the text again", "BPE.encodePassage", "if p.special && p.from == 0 {", "if p.special {", "TestMarksOfFamilies"},
	{"tokens behind the text in marks", "BPE.encodePassage", "m.Tokens = len(ids) - len(dst)", "m.Tokens = len(ids) - len(dst)\n\t\tif p.special {\n\t\t\tm.Tokens += len(t.after)\n\t\t}", "TestMarkedTokens"},
	{"marks count what was there before", "BPE.encodePassage", "m.Tokens = len(ids) - len(dst)", "m.Tokens = len(ids)", "TestMarkedTokens"},
	{"marks at their own positions", "BPE.encodePassage", "m.Resume = t.resume(p.text[:m.At], max(last, done+1, m.At-far))", "if m.Resume = t.resume(p.text[:m.At], max(last, done+1, m.At-far)); m.Resume > 0 {\n\t\t\tm.Resume = m.At\n\t\t}", "TestMarksOfFamilies"},
	{"a mark resumes where one before it does", "BPE.encodePassage", "max(last, done+1, m.At-far)", "max(done, 1)", "TestMarksThatAreNone"},
	{"a text without places is searched for them", "BPE.encodePassage", ", m.At-far)", ")", "TestMarksLookNotFar"},
	{"the search for places is never shorter", "BPE.encodePassage", "far = max(far/2, minWalk)", "far = max(far, minWalk)", "TestMarksLookNotFar"},
	{"the search for places stays short", "BPE.encodePassage", "far = min(2*far, maxWalk)", "far = min(far, maxWalk)", "TestMarksLookNotFar"},
	{"each part begins the text", "BPE.encodeText", "if from > 0 {", "if false {", "TestMarksOfFamilies"},
	{"marks in any order", "BPE.encodePassage", "m.At < last || ", "", "TestMarksThatAreNone"},
	{"marks outside of the text", "BPE.encodePassage", " || m.At > len(p.text) {", " {", "TestMarksThatAreNone"},
	{"a long text's beginning does not count", "BPE.encode", "if p.from > 0 && len(p.text) > uncounted && ", "if false && ", "TestMarksTooLong"},
	{"the text behind from counts alone", "BPE.encode", "checkLength(p.text)", "checkLength(p.text[p.from:])", "TestMarksTooLong"},
	{"what is not UTF-8 counts as it comes", "checkLength", "n = 0\n", "return nil\n", "TestMarksTooLong"},

	{"identity without the content", "parse", "identityOf(\"tokenizer.json\", content.Sum(nil))", "identityOf(\"tokenizer.json\")", "TestIdentity"},
	{"identity without the config", "parse", ", c.sum[:])", ")", "TestIdentity"},
	{"identity without the loader", "parse", "identityOf(\"pretrained\", content.Sum(nil), c.sum[:])", "identityOf(\"tokenizer.json\", content.Sum(nil))", "TestIdentity"},
	{"identity without lengths", "identityOf", "\t\th.Write(length[:])\n", "", "TestIdentity"},
	{"identity without the ranks", "parseTiktoken", "{content.Sum(nil), []byte(regex)}", "{[]byte(regex)}", "TestIdentity"},
	{"identity without the pattern", "parseTiktoken", "{content.Sum(nil), []byte(regex)}", "{content.Sum(nil)}", "TestIdentity"},
	{"identity without special tokens", "parseTiktoken", "parts = append(parts, []byte(token), ", "parts = append(parts, ", "TestIdentity"},
	{"identity without the ids of special tokens", "parseTiktoken", "binary.LittleEndian.AppendUint32(nil, special[token])", "[]byte{}", "TestIdentity"},
	{"identity in the order of a map", "parseTiktoken", "range slices.Sorted(maps.Keys(special))", "range slices.Collect(maps.Keys(special))", "TestIdentity"},

	{"what is held is looked up again", "held.encode", "return h.bpe.encode(call{ctx, pause}, dst, p)", "for _, f := range *h.pool.named.Load() {\n\t\treturn f.tokenizer.bpe.encode(call{ctx, pause}, dst, p)\n\t}\n\treturn h.bpe.encode(call{ctx, pause}, dst, p)", "TestHold"},
	{"what is held passes no gate", "held.EncodeMarks", "return h.encode(ctx, dst, passage{text, from, special, marks})", "return h.bpe.EncodeMarks(ctx, dst, text, from, special, marks)", "TestHoldVisits"},
	{"all of a text counts at the gate", "passage.size", "max(0, min(p.from, len(p.text)))", "0", "TestHoldVisits"},
	{"what is held has texts of any length", "held.EncodeMarks", "if err := h.pool.check(ctx, text); err != nil {", "if err := error(nil); err != nil {", "TestHoldFails"},
	{"Hold looks not at the text", "pooled.hold", "if err := t.pool.check(ctx, p.text); err != nil {", "if err := ctx.Err(); err != nil {", "TestHoldFails"},
	{"Hold waits however many wait", "pooled.hold", "p.size())", "0)", "TestHoldFails"},
	{"to hold is no use", "Pool.use", "p.touch(f)", "_ = f", "TestHoldIsAUse"},
	{"a use does not tick", "Pool.touch", "f.used.Store(p.clock.Add(1))", "f.used.Store(p.clock.Load())", "TestPoolMemory"},

	{"the highest rank first", "splitsOf", "cmp.Compare(a.id, b.id)", "cmp.Compare(b.id, a.id)", "TestTiktokenAsReference"},
	{"a token of a rank file is merged", "newRankModel", "uncut: true", "uncut: false", "TestTiktokenAsReference"},
	{"text that no piece has", "parseTiktoken", "!ok || !p.total ||", "!ok ||", "TestTiktokenNeedsAllOfTheText"},
	{"special tokens that begin alike", "specialTokens", "if strings.HasPrefix(tokens[i].content, tokens[i-1].content) {", "if false {", "TestTiktokenRefusals/special_tokens_that_begin_alike"},

	{"a name is looked up by each", "Pool.known", "if l := p.pending[model]; l != nil || anew {", "if l := p.pending[model]; anew {", "TestPoolWaitsForALookup"},
	{"a name is looked up by each who waited", "Pool.look", "if l, err = p.known(model, anew); l != nil || err != nil {", "if false {", "TestPoolWaitsForAPlace"},
	{"the most recently used tokenizer goes", "Pool.evict", "f.used.Load() < oldest.used.Load()", "f.used.Load() > oldest.used.Load()", "TestPoolMemory"},
	{"slow failures are tried again soon", "Pool.fail", "min(max(failedFor, 10*took), failedForMost)", "failedFor", "TestPoolFailures"},

	{"no slot is handed on", "gate.pass", "if g.line.Len() == 0 {", "if g.line.Len() >= 0 {", "TestGateAgainstModel"},
	{"who gives up keeps its place", "gate.enter", "if err != nil {\n\t\tg.leave(v)\n", "if err != nil {\n", "TestGateAgainstModel"},
	{"last come, first served", "gate.stand", "v.in, v.at = in, in.PushBack(v)", "v.in, v.at = in, in.PushFront(v)", "TestGateAgainstModel"},
	{"long texts without bound", "gate.serve", "if g.begun > 0 && g.begun+v.size > g.maxBegun {", "if false {", "TestGateAgainstModel"},
	{"long texts take the last room", "gate.admit", "(g.maxWaiting-g.waiting)/waitShare", "g.maxWaiting-g.waiting", "TestGateRefuses"},

	{"a revision leads out of its folder", "Hub.Find", "if !validRepo(repo) || !validRevision(revision) {", "if !validRepo(repo) {", "TestHubFinds"},
	{"a ref leads out of its folder", "findSnapshot", "if !validPart(commit) {", "if false {", "TestHubFinds"},
}}
