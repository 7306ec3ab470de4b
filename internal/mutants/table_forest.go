package main

var forestMutants = table{breaks: "./index/internal/forest", rows: []mutant{
	{"a slab goes while a child is behind it", "Forest.newSlab", "if parent != 0 {\n\t\tf.Ref(parent)", "if false {\n\t\tf.Ref(parent)", "TestBurnedSlots"},
	{"a slab at once anew", "Forest.Reclaim", "id, ok := f.leaving.next(f.epochs)", "late := &epochs{}\n\t\tlate.now.Store(1 << 40)\n\t\tid, ok := f.leaving.next(late)", "TestForestAgainstTrie"},
	{"a holder lost at a regrouping", "Forest.repack", "if o != ord {", "if o < ord {", "TestRecordsAgainstMap"},
	{"slots behind are before", "Forest.Between", "return n, above.Slot() < l.Slot() && n <= most", "return n, n <= most", "TestForestAgainstTrie"},
	{"slots further than asked for", "Forest.Between", "\treturn n, n <= most\n}", "\treturn n, true\n}", "TestForestAgainstTrie"},
	{"a record at once anew", "arena.give", "a.classes[class].leaving.add(e, addr)", "a.classes[class].free = append(a.classes[class].free, addr)", "TestRecordsAgainstMap"},
	{"a split puts all in one half", "heads.split", "half = halves[1]", "half = halves[0]", "TestHeadsAgainstMap"},
	{"heads by half a key", "heads.find", "atomic.LoadUint64(&f.keys(id)[0]) == uint64(k) {", "id != 0 {", "TestHeadsAgainstMap"},
	{"no trace of a removed head", "heads.remove", "atomic.StoreUint64(&s.slots[i], headTomb)", "atomic.StoreUint64(&s.slots[i], 0)", "TestHeadsAgainstMap"},
	{"a cleaned segment in half its places", "heads.clean", "fresh := &headSegment{depth: s.depth}", "fresh := &headSegment{depth: s.depth + 1}", "TestHeadsAgainstMap"},
	{"used again an epoch too early", "limbo.next", ".epoch+2 >", ".epoch+1 >", "TestEpochOrders"},
	{"an epoch ends before its readers", "epochs.step", "e.stripes[i].readers[(now+1)&1].Load() != 0", "e.stripes[i].readers[(now+1)&1].Load() < 0", "TestEpochOrders"},
	{"the wrong readers", "epochs.step", "readers[(now+1)&1]", "readers[now&1]", "TestEpochsGoOn"},
}}

// The index finds these.
var forestMutantsOfIndex = table{breaks: "./index/internal/forest", tests: "./index", rows: []mutant{
	{"a key in two places", "Forest.Place", "id = f.heads.find(f, keys[0])", "id = 0", "TestMemory/PodsRestrictTheAnswer"},
	{"a slot for another key", "Forest.follow", "if n == len(keys) || slot+n < h.written() ||", "if n == len(keys) ||", "TestMemory/ForksNeverMix"},
	{"slots that were never written", "Forest.follow", "n < len(keys) && slot+n < h.written() &&", "n < len(keys) && slot+n < slabSlots &&", "TestMemory/LeadingRun"},
	{"a slab's parent stays for ever", "Forest.Unref", "l = m.parent", "l = 0", "TestMemoryIsUsedAgain"},
	{"a slab that has gone is found", "Forest.Unref", "f.heads.remove(Key(f.keys(id)[0]), id)", "", "TestMemory/Random"},
	{"an ordinal at once anew", "ordinals.reclaim", "ord, ok := o.leaving.next(e)", "late := &epochs{}\n\t\tlate.now.Store(1 << 40)\n\t\tord, ok := o.leaving.next(late)", "TestOrdinals"},
	{"one block up for each", "Forest.Up", "n -= l.Slot() + 1", "n -= l.Slot()", "TestMemory/AChildRestoresALongPrompt"},
	{"a holder stays in its row", "Forest.setRecord", "if row >= 0 {", "if row >= len(r) {", "TestMemory/AllHolders"},
	{"a holder stays in its entry", "Forest.setRecord", "if entry >= 0 {", "if entry >= len(r) {", "TestMemory/TheBestTierCounts"},
	{"holders of rows are lost", "Forest.pack", "-first] |= 1 <<", "-first] = 1 <<", "TestMemory/AllHolders"},
	{"blocks end at the first unit", "Span.Ends", "slot := n - 1 - s.At%n", "slot := 0", "TestMemory/BlockSizesOfOneModel"},
	{"blocks end by slabs", "Span.Ends", "slot := n - 1 - s.At%n", "slot := n - 1", "TestMemory/Random"},
	{"the neighbour is taken unseen", "Path.extend", "h.kind() == kindNone || atomic", "h.kind() == kindNone || p.end < 0 && atomic", "TestMemory/Random"},
	{"reads of slots that were never written", "Path.extend", "min(len(p.keys), p.end+h.written())", "min(len(p.keys), p.end+slabSlots)", "TestMemory/LeadingRun"},
}}
