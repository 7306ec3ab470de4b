// Mutants breaks the rules of the project one at a time and checks that for
// each a named test fails. It changes no file: the compiler is shown the broken
// one through an overlay.
//
//	go run ./internal/mutants [name ...]
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// mutant replaces old, which must stand in the file exactly once.
type mutant struct {
	name     string
	file     string
	old, new string
	pkg      string // whose test must fail
	test     string
}

var mutants = []mutant{
	{"set for count", "index/copies.go", "s.copies.at(n).copies++", "s.copies.at(n).copies = 1", "./index", "TestMemory/CopiesExact"},
	{"one copy less", "index/copies.go", "left := copies - 1", "left := copies", "./index", "TestMemory/CopiesExact"},
	{"remaining ignored", "index/copies.go", "case c.Remaining != nil:", "case false:", "./index", "TestMemory/RemainingSetsTheCount"},
	{"sparse repeats counted", "index/copies.go", "case st.report || st.guarded && !full:", "case st.report:", "./index", "TestMemory/CopiesGuardedNeverCountsRepeatsInSparseGroups"},
	{"lower tiers counted", "index/copies.go", "case c.Tier != TierGPU || c.Copies == CopiesSet:", "case c.Copies == CopiesSet:", "./index", "TestMemory/LowerTiersAreSets"},
	{"sets counted", "index/copies.go", "case c.Tier != TierGPU || c.Copies == CopiesSet:", "case c.Tier != TierGPU:", "./index", "TestMemory/CopiesSet"},
	{"an ambiguous removal takes one copy", "index/copies.go", "case ambiguous:", "case false:", "./index", "TestMemory/AmbiguousHashes"},
	{"an ambiguous removal does not matter", "index/copies.go", "s.lossy = s.lossy || copies > 1 || s.copies.at(n).reported", "s.lossy = false", "./index", "TestMemory/AfterAnAmbiguousRemovalNoReportIsCounted"},
	{"no unpark", "index/copies.go", "if copies == 0 {\n\t\t\ts.counts.UnknownRemove++", "if copies == 0 || s.unplaced(h) {\n\t\t\ts.counts.UnknownRemove++", "./index", "TestMemory/ARemovalUnparks"},
	{"a removed orphan has its say", "index/copies.go", "if ln.tier == TierGPU && s.parked > 0 {", "if false {", "./index", "TestMemory/ARemovedOrphanHasNoSayInWhatItsHashIsUsedForNext"},
	{"names die with their blocks", "index/copies.go", "s.unclaim(h, l)\n\t\t\ts.toIdle(h, l)", "s.unclaim(h, l)\n\t\t\ts.delete(h, s.toIdle(h, l))", "./index", "TestMemory/TierAfterEviction"},
	{"a name takes the block of another one", "index/copies.go", "if !s.othersHold(h, l, ln) {", "if true {", "./index", "TestMemory/ABlockOfTwoNames"},
	{"hidden blocks are dropped", "index/copies.go", "if c.reported {\n\t\tln.hidden++", "if false {\n\t\tln.hidden++", "./index", "TestMemory/AChildRestoresWhatAReportHid"},
	{"ancestors stay hidden", "index/copies.go", "s.hiddenAbove(l, ln, g, &left); !ok {", "s.hiddenAbove(l, ln, g, &left); ok || !ok {", "./index", "TestMemory/AChildRestoresWhatAReportHid"},
	{"groups mixed up", "index/copies.go", "ln.group == g && ln.tier == t {", "ln.tier == t {", "./index", "TestMemory/Random"},
	{"tiers mixed up", "index/copies.go", "ln.group == g && ln.tier == t {", "ln.group == g {", "./index", "TestMemory/Random"},

	{"report counted", "index/source.go", "st.report = c.Reused || st.guarded && !c.HasParent &&", "st.report = c.Reused || false &&", "./index", "TestMemory/CopiesGuardedTakesARepeatFromTheRootForAReport"},
	{"mixed store taken for a report", "index/source.go", "s.allSeen(held, st.g))", "true)", "./index", "TestMemory/CopiesGuardedCountsARepeatWithANewBlock"},
	{"reused counted", "index/source.go", "st.report = c.Reused ||", "st.report =", "./index", "TestMemory/ReusedNeverCounts"},
	{"partial taken for whole", "index/source.go", "c.Copies == CopiesPartial ||", "", "./index", "TestMemory/CopiesPartialCountsNoRepeatFromTheRoot"},
	{"nothing restored", "index/source.go", "if st.guarded && full && c.HasParent {", "if false {", "./index", "TestMemory/AChildRestoresWhatAReportHid"},
	{"reports add to sparse groups", "index/source.go", "if st.guarded && !full && !c.HasParent && s.anyHeld(held, st.g) {", "if false {", "./index", "TestMemory/AReportAddsNothingToSparseGroups"},
	{"orphan at the root", "index/source.go", "return s.locOf(place{c.Parent, variant})", "prev, _ := s.locOf(place{c.Parent, variant})\n\treturn prev, true", "./index", "TestMemory/AParkedStoreNeverLandsAtTheWrongDepth"},
	{"a tier's word names", "index/source.go", "if dense && c.Tier == TierGPU {", "if dense {", "./index", "TestMemory/TheWordOfALowerTierNamesNothing"},
	{"a chunk is many blocks", "index/source.go", "by.size *= len(c.Hashes)", "", "./index", "TestMemory/AChunkOfALowerTierIsOneBlock"},
	{"two plain names of one key", "index/source.go", "(mine|plain)&bit != 0 ||", "mine&plain&bit != 0 ||", "./index", "TestMemory/ABlockOfTwoNames"},
	{"the end of a store behind the root", "index/source.go", "prev = last\n", "", "./index", "TestMemory/AChildRestoresALongPrompt"},
	{"a clear keeps blocks", "index/source.go", "\tcase OpClear:\n\t\ts.clear()", "\tcase OpClear:", "./index", "TestMemory/ClearedEmptiesEveryTierAndGroup"},
	{"a tier's clear is ignored", "index/source.go", "s.clearTier(c.Tier)", "", "./index", "TestMemory/ClearTierEmptiesOneTier"},
	{"a tier's clear is a clear", "index/source.go", "s.clearTier(c.Tier)", "s.clear()", "./index", "TestMemory/ClearTierEmptiesOneTier"},
	{"cursor ignored", "index/source.go", "ok && !old.Before(cur)", "ok && false", "./index", "TestMemory/CursorsMakeRepeatsANoOp"},

	{"an ambiguous hash keeps one key", "index/naming.go", "same > 1 {", "same > 0 {", "./index", "TestMemory/AmbiguousHashes"},
	{"a clear of doubts that stay", "index/lanes.go", "s.lossy = false\n", "", "./index", "TestMemory/AClearEndsTheDoubts"},
	{"a hidden block of another lane is forgotten", "index/copies.go", "if i != n && c.copies == 0 {", "if false {", "./index", "TestMemory/TwoGroupsHideABlock"},
	{"a child restores in any variant", "index/copies.go", "s.f.variants[s.f.variantOf(l)] == g.cutOf(ln).variant", "true || l == 0", "./index", "TestMemory/AChildRestoresInItsVariant"},
	{"the second key of a name is not claimed", "index/copies.go", "if s.shared == nil && slices.ContainsFunc(s.keysOf(h, v, &buf), s.holdsAt) {", "if false {", "./index", "TestMemory/ASecondNameOfOneOfTwoKeys"},
	{"pods may not change while keys are made", "index/memory.go", "if md.gen.Load() != r.gen {", "if false {", "./index", "TestMemory/PodsMayChangeWhileKeysAreMade"},
	{"an ordinal is not given back", "index/memory.go", "md.forest.ords.leaving.add(md.forest.epochs, ln.ord)", "_ = ln", "./index", "TestOrdinals"},
	{"readers never leave", "index/memory.go", "defer reader.Add(-1)", "defer reader.Add(0)", "./index", "TestMemoryIsUsedAgain"},
	{"a doubt is taken for certainty", "index/source.go", "|| s.lossy || s.allSeen", "|| s.allSeen", "./index", "TestMemory/AfterAnAmbiguousRemovalNoReportIsCounted"},
	{"child of an ambiguous hash placed", "index/naming.go", "return 0, false // ambiguous", "return found, true", "./index", "TestMemory/AmbiguousHashes"},
	{"a hash used anew keeps its old key", "index/naming.go", "n.loc = l\n\t\t\treturn v", "return v", "./index", "TestMemory/AHashUsedAnewAfterItsBlockHasGone"},
	{"a forgotten copy does not matter", "index/naming.go", "s.lossy = s.lossy || r.first != 0", "", "./index", "TestMemory/ForgottenThenReported"},
	{"names without bound", "index/naming.go", "s.idle.len() > most;", "false;", "./index", "TestMemory/NamesBound"},
	{"the newest name is forgotten", "index/naming.go", "h := s.idle.at(s.idleFirst).hash", "h := s.idle.at(s.idleLast).hash", "./index", "TestMemory/NamesBound"},
	{"idle names outnumber the held", "index/naming.go", "s.forget(min(max(minIdle, held/4), s.cfg.IdleNames), 2)", "", "./index", "TestIdleNames"},
	{"a name of many holders", "index/naming.go", "len(at.more) >= maxNames-1", "false", "./index", "TestNamesOfOneKey"},

	{"parked without bound", "index/pending.go", "for s.pendingBytes > s.cfg.PendingBytes {", "for false {", "./index", "TestMemory/PendingBound"},
	{"orphans never join", "index/pending.go", "for len(s.waiting[at]) > 0 {", "for false && len(s.waiting[at]) > 0 {", "./index", "TestMemory/AnUnknownParentParks"},
	{"orphans of orphans never join", "index/pending.go", "work = append(work, place{h, at.variant})", "_ = h", "./index", "TestMemory/AnUnknownParentParks"},
	{"a store given up keeps its blocks", "index/pending.go", "s.lose(h, v, ln, n)", "_, _ = v, ln", "./index", "TestMemory/PendingBound"},

	{"a tier's clear leaves a group", "index/lanes.go", "old = append(old, g.lanes[t]...)", "if g.ID > 0 {\n\t\t\tcontinue\n\t\t}\n\t\told = append(old, g.lanes[t]...)", "./index", "TestMemory/ClearTierEmptiesOneTier"},
	{"a clear leaves what reports hid", "index/lanes.go", "s.drop(r, i)\n", "", "./index", "TestMemory/Random"},
	{"a clear leaves the slabs' holders", "index/lanes.go", "s.f.setMask(l.slab(), ln.ord, 0)", "_, _ = l, ln", "./index", "TestMemory/ClearTierEmptiesOneTier"},
	{"a clear keeps orphans", "index/lanes.go", "s.waiting = make(map[place][]*pending)\n", "", "./index", "TestMemory/Random"},
	{"block sizes mixed", "index/lanes.go", "v.Group.ID == g.ID && v.cut == by", "v.Group.ID == g.ID", "./index", "TestMemory/AChunkOfALowerTierIsOneBlock"},
	{"groups mixed", "index/lanes.go", "v.Group.ID == g.ID && v.cut == by", "v.cut == by", "./index", "TestMemory/GroupsShareNames"},
	{"views never renewed", "index/lanes.go", "s.model.gen.Add(1)", "", "./index", "TestMemory/CandidatesFollowThePods"},
	{"block sizes without bound", "index/lanes.go", "len(cuts) <= maxCuts", "len(cuts) <= 100*maxCuts", "./index", "TestCutsBound"},
	{"lanes without bound", "index/lanes.go", "lanes < maxLanes", "lanes < 100*maxLanes", "./index", "TestLanesBound"},
	{"lanes with hidden blocks make room", "index/lanes.go", "ln.blocks == 0 && ln.hidden == 0 {", "ln.blocks == 0 {", "./index", "TestLanesBound"},
	{"a group is told anew", "index/lanes.go", "if c.Tier == TierGPU && !g.told {", "if c.Tier == TierGPU {", "./index", "TestMemory/AGroupIsWhatItsFirstStoreInTheGPUSays"},
	{"what is known by hash alone grows", "index/lanes.go", "ln.cut = g.cut\n", "", "./index", "TestMemory/WhatIsKnownByHashKeepsItsSize"},
	{"a tier's clear leaves orphans their say", "index/lanes.go", "if t == TierGPU {", "if false {", "./index", "TestMemory/ARemovedOrphanHasNoSayInWhatItsHashIsUsedForNext"},
	{"the kind of a group is what a tier says", "index/lanes.go", "if c.Tier == TierGPU && !g.told {", "if !g.told {", "./index", "TestMemory/AGroupIsWhatItsFirstStoreInTheGPUSays"},

	{"a key in two places", "index/forest.go", "id = f.heads.find(f, keys[0])", "id = 0", "./index", "TestMemory/PodsRestrictTheAnswer"},
	{"a slot for another key", "index/forest.go", "if n == len(keys) || slot+n < h.written() ||", "if n == len(keys) ||", "./index", "TestMemory/ForksNeverMix"},
	{"slots that were never written", "index/forest.go", "n < len(keys) && slot+n < h.written() &&", "n < len(keys) && slot+n < slabSlots &&", "./index", "TestMemory/LeadingRun"},
	{"a slab goes while a child is behind it", "index/forest.go", "if parent != 0 {\n\t\tf.ref(parent)", "if false {\n\t\tf.ref(parent)", "./index", "TestBurnedSlots"},
	{"a slab's parent stays for ever", "index/forest.go", "l = m.parent\n\t}\n}\n\n// up", "l = 0\n\t}\n}\n\n// up", "./index", "TestMemoryIsUsedAgain"},
	{"a slab that has gone is found", "index/forest.go", "f.heads.remove(Key(f.keys(id)[0]), id)", "", "./index", "TestMemory/Random"},
	{"a slab at once anew", "index/forest.go", "id, ok := f.leaving.next(f.epochs)", "late := &epochs{}\n\t\tlate.now.Store(1 << 40)\n\t\tid, ok := f.leaving.next(late)", "./index", "TestForestAgainstTrie"},
	{"an ordinal at once anew", "index/forest.go", "ord, ok := o.leaving.next(e)", "late := &epochs{}\n\t\tlate.now.Store(1 << 40)\n\t\tord, ok := o.leaving.next(late)", "./index", "TestOrdinals"},
	{"variants without bound", "index/forest.go", "len(f.variants) == maxVariants", "false", "./index", "TestVariantsBound"},
	{"one block up for each", "index/forest.go", "n -= l.slot() + 1", "n -= l.slot()", "./index", "TestMemory/AChildRestoresALongPrompt"},

	{"a holder stays in its row", "index/records.go", "if row >= 0 {", "if row >= len(r) {", "./index", "TestMemory/AllHolders"},
	{"a holder stays in its entry", "index/records.go", "if entry >= 0 {", "if entry >= len(r) {", "./index", "TestMemory/TheBestTierCounts"},
	{"a holder lost at a regrouping", "index/records.go", "if o != ord {", "if o < ord {", "./index", "TestRecordsAgainstMap"},
	{"holders of rows are lost", "index/records.go", "-first] |= 1 <<", "-first] = 1 <<", "./index", "TestMemory/AllHolders"},
	{"a record at once anew", "index/records.go", "a.classes[class].leaving.add(e, addr)", "a.classes[class].free = append(a.classes[class].free, addr)", "./index", "TestRecordsAgainstMap"},

	{"a split puts all in one half", "index/heads.go", "half = halves[1]", "half = halves[0]", "./index", "TestHeadsAgainstMap"},
	{"heads by half a key", "index/heads.go", "atomic.LoadUint64(&f.keys(id)[0]) == uint64(k) {", "id != 0 {", "./index", "TestHeadsAgainstMap"},
	{"no trace of a removed head", "index/heads.go", "atomic.StoreUint64(&s.slots[i], headTomb)", "atomic.StoreUint64(&s.slots[i], 0)", "./index", "TestHeadsAgainstMap"},
	{"a cleaned segment in half its places", "index/heads.go", "fresh := &headSegment{depth: s.depth}", "fresh := &headSegment{depth: s.depth + 1}", "./index", "TestHeadsAgainstMap"},

	{"a name behind a full line is lost", "index/names.go", "s.lines[home].fill += passedOne", "", "./index", "TestNamesAgainstMap"},
	{"a removed name leaves a mark", "index/names.go", "s.lines[home].fill -= passedOne", "", "./index", "TestNamesAgainstMap"},
	{"a split of names by another bit", "index/names.go", "bit := 63 - s.depth", "bit := 62 - s.depth", "./index", "TestNamesAgainstMap"},
	{"a pool emptied with one thing in it", "index/names.go", "len(p.free) == int(p.next)", "len(p.free) >= int(p.next)-1", "./index", "TestMemory/AChildRestoresALongPrompt"},

	{"used again an epoch too early", "index/epoch.go", ".epoch+2 >", ".epoch+1 >", "./index", "TestEpochOrders"},
	{"an epoch ends before its readers", "index/epoch.go", "e.stripes[i].readers[(now+1)&1].Load() != 0", "e.stripes[i].readers[(now+1)&1].Load() < 0", "./index", "TestEpochOrders"},
	{"the wrong readers", "index/epoch.go", "readers[(now+1)&1]", "readers[now&1]", "./index", "TestEpochsGoOn"},

	{"invalid change applied", "index/memory.go", "err := changes[i].Validate(); err != nil", "err := changes[i].Validate(); err != nil && i > len(changes)", "./index", "TestMemory/AnInvalidChangeAppliesNothing"},
	{"blocks of any number of units", "index/change.go", "case c.BlockSize/unit > MaxBlockUnits:", "case false:", "./index", "TestMemory/AnInvalidChangeAppliesNothing"},
	{"a group of any number", "index/change.go", "c.Group.ID >= MaxGroups", "false", "./index", "TestMemory/AnInvalidChangeAppliesNothing"},
	{"a pod's end is not heard", "index/memory.go", "md.podsGen.Add(1)\n\t\tmd.gen.Add(1)\n\t\tif md.n--", "if md.n--", "./index", "TestMemory/TheEndOfALargePodIsSeenAtOnce"},
	{"a new source is not heard", "index/memory.go", "md.podsGen.Add(1)\n\tmd.gen.Add(1)", "md.gen.Add(1)", "./index", "TestMemory/CandidatesFollowThePods"},
	{"a removed pod is a ghost", "index/memory.go", "g.s.f.setMask(at.slab(), ln.ord, 0)", "_ = ln", "./index", "TestMemoryIsUsedAgain"},
	{"a removed pod leaves its keys", "index/memory.go", "g.s.f.unref(at)", "", "./index", "TestMemoryIsUsedAgain"},

	{"one hole skipped", "index/match.go", "if missing := end &^ mask; missing == 0 {", "if missing := end &^ mask; missing&(missing-1) == 0 {", "./index", "TestMemory/HolesAreExact"},
	{"one hole of many holders skipped", "index/match.go", "if missing == 0 {\n\t\t\t\t\ta.next |= set", "if missing&(missing-1) == 0 {\n\t\t\t\t\ta.next |= set", "./index", "TestMemory/AllHolders"},
	{"one hole in all tiers skipped", "index/match.go", "if missing := end &^ any; missing != 0 {", "if missing := end &^ any; missing&(missing-1) != 0 {", "./index", "TestMemory/TiersExtendKnownBlocks"},
	{"views resolved once and for all", "index/match.go", "case r.gen == gen:", "case true:", "./index", "TestMemory/CandidatesFollowThePods"},
	{"resolved in another model", "index/match.go", "r.of != md.id ||", "", "./index", "TestMemory/CandidatesOfAModelThatCameBack"},
	{"pods resolved once and for all", "index/match.go", "|| r.pods != pods:", ":", "./index", "TestMemory/CandidatesFollowThePods"},
	{"views that have gone stay resolved", "index/match.go", "fresh.drop(*s.was)", "", "./index", "TestMemory/CandidatesAreNoOthers"},
	{"rows are all of the first candidate", "index/match.go", "r.addPod(p.(*podSources), int32(i))", "r.addPod(p.(*podSources), int32(i-i))", "./index", "TestMemory/RowsSayWhichCandidate"},
	{"rows of lower tiers are of the first candidate", "index/match.go", "Row{View: &v.View, Pod: v.pod, Run: v.run,", "Row{View: &v.View, Run: v.run,", "./index", "TestMemory/Random"},
	{"cuts mixed", "index/match.go", "return rc.cut == c })", "return true })", "./index", "TestMemory/KeysOncePerVariant"},
	{"blocks end at the first unit", "index/match.go", "slot := units - 1 - at%units", "slot := 0", "./index", "TestMemory/BlockSizesOfOneModel"},
	{"blocks end by slabs", "index/match.go", "slot := units - 1 - at%units", "slot := units - 1", "./index", "TestMemory/Random"},
	{"the neighbour is taken unseen", "index/match.go", "h.kind() == kindNone || atomic", "h.kind() == kindNone || p.end < 0 && atomic", "./index", "TestMemory/Random"},
	{"reads of slots that were never written", "index/match.go", "min(len(p.keys), p.end+h.written())", "min(len(p.keys), p.end+slabSlots)", "./index", "TestMemory/LeadingRun"},
	{"a lower tier does not go on", "index/match.go", "if s != nil && len(l.lanes) > 1 {", "if s != nil && len(l.lanes) > 9 {", "./index", "TestMemory/TiersExtendKnownBlocks"},
	{"a view in two rows", "index/match.go", "w.seen[l.first] != w.round &&", "", "./index", "TestMemory/ClearTierEmptiesOneTier"},
	{"a view of the gpu in two rows", "index/match.go", "(!l.oneGPU || !w.runs(rc, l.first)) {", "true {", "./index", "TestMemory/TheWordOfALowerTierNamesNothing"},
	{"a view without its gpu block in no row", "index/match.go", "(!l.oneGPU || !w.runs(rc, l.first)) {", "!l.oneGPU {", "./index", "TestMemory/TierBeforeName"},
	{"the worst tier counts", "index/match.go", "left &^= best\n", "", "./index", "TestMemory/TheBestTierCounts"},
	{"keys for each size", "index/match.go", "if !slices.ContainsFunc(w.paths, func(p path) bool { return p.variant == v }) {\n\t\t\tn", "if true {\n\t\t\tn", "./index", "TestMemory/KeysOncePerVariant"},

	{"no length-1 cap", "scorer.go", "(promptTokens - 1) / size * size", "promptTokens / size * size", ".", "TestCachedTokens"},
	{"window group stands for the full one", "scorer.go", "case row.Group.Kind == index.GroupFull || row.FullGroups == 0:", "default:", ".", "TestHybridIsAnUpperBound"},
	{"one full group is enough", "scorer.go", "case row.FullGroups > 1:", "case false:", ".", "TestSeveralFullGroups"},
	{"a group that holds nothing does not count", "scorer.go", "if l.groups == sc.matches.Rows[l.row-1].FullGroups {", "if l.groups > 0 {", ".", "TestSeveralFullGroups"},
	{"the group that holds the most counts", "scorer.go", "sc.better(l.bestRow, b)", "sc.better(b, l.bestRow)", ".", "TestSeveralFullGroups"},
	{"ranks in any order", "scorer.go", "b.row == 0 || sc.better(t, *b)", "true", ".", "TestRanks"},
	{"ties by no name", "scorer.go", "sc.best[b].cached-sc.best[a].cached, int(a-b)", "sc.best[b].cached-sc.best[a].cached, int(b-a)", ".", "TestScorePods"},
	{"top ignored", "scorer.go", "if top == 0 || top >= len(sc.best) {", "if true {", ".", "TestTop"},
	{"top takes the last of equals", "scorer.go", "cached <= sc.best[sc.order[at-1]].cached {", "cached < sc.best[sc.order[at-1]].cached {", ".", "TestTop"},
	{"top in reverse", "scorer.go", "for at > 0 && cached > sc.best", "for at > 0 && cached >= sc.best", ".", "TestTop"},
	{"one pod twice", "candidates.go", "c.pods = slices.Compact(c.pods)", "", ".", "TestScorePods"},
	{"candidates in no order", "candidates.go", "slices.Sort(c.pods)\n", "", ".", "TestScorePods"},
	{"candidates never renewed", "candidates.go", "set != nil && set.heard == c.x.heard.Load()", "set != nil", ".", "TestCandidates"},
	{"an adapter of two models is of one", "candidates.go", "if set.adapter != \"\" {", "if false {", ".", "TestScopes"},
	{"a new pod is not heard", "pods.go", "md.pods[p.name] = pm\n\tx.heard.Add(1)", "md.pods[p.name] = pm", ".", "TestCandidates"},
	{"a pod that leaves is not heard", "pods.go", "delete(x.pods, name)\n\tx.heard.Add(1)", "delete(x.pods, name)", ".", "TestCandidates"},
	{"a new adapter is not heard", "pods.go", "x.heard.Add(1)\n\t\tx.mu.Unlock()", "x.mu.Unlock()", ".", "TestCandidates"},
	{"the best rank speaks for the pod", "pods.go", "if r.state == StatePartial {\n\t\t\tstate", "if r.state > StateLive {\n\t\t\tstate", ".", "TestLossByStream"},
	{"the first rank counts", "scorer.go", "b.row == 0 || sc.better(t, *b)", "b.row == 0", ".", "TestRanks"},
	{"the higher of equal ranks", "scorer.go", "sc.rankOf(b)-sc.rankOf(a)", "sc.rankOf(a)-sc.rankOf(b)", ".", "TestRanks"},
	{"an adapter of other pods", "candidates.go", "c.pods != nil && !slices.ContainsFunc(c.pods, func(pod string) bool { return told[pod] })", "false", ".", "TestScopes"},

	{"model ignored", "ingest.go", "src := index.Source{Pod: podID, Model: model, Rank: b.Rank}", "src := index.Source{Pod: podID, Model: \"m\", Rank: b.Rank}", ".", "TestScopes"},
	{"rank ignored", "ingest.go", "src := index.Source{Pod: podID, Model: model, Rank: b.Rank}", "src := index.Source{Pod: podID, Model: model}", ".", "TestScopes"},
	{"salt ignored", "hashing.go", "{s.model, s.adapter, s.salt}", "{s.model, s.adapter}", ".", "TestScopes"},
	{"seed ignored", "hashing.go", "xxh3.HashSeed(full, h.localSeed)", "xxh3.Hash(full)", ".", "TestScopesSeparate"},
	{"root of its own for each block", "convert.go", "HasParent: e.HasParent,", "HasParent: false,", ".", "TestScopes"},
	{"blocks of odd units", "convert.go", "|| e.BlockSize/index.UnitOf(e.BlockSize) > index.MaxBlockUnits", "", ".", "TestOddBlockSizes"},
	{"media ignored", "convert.go", "c.extras = append(c.extras, mediaAt(", "_ = append(c.extras, mediaAt(", ".", "TestMedia"},
	{"embeddings ignored", "convert.go", "extra{first, embeds, id, 0}", "extra{-1, embeds, id, 0}", ".", "TestMedia"},
	{"copies of others counted", "convert.go", "if foreign(e) {", "if false {", ".", "TestForeignCopies"},
	{"an unknown medium is the gpu", "convert.go", "	return TierOther\n", "	return TierGPU\n", ".", "TestTiers"},
	{"gap forgiven", "ingest.go", "lost := v.Gap.Lost || v.Restarted", "lost := v.Restarted", ".", "TestMessages"},
	{"restart forgiven", "ingest.go", "lost := v.Gap.Lost || v.Restarted", "lost := v.Gap.Lost", ".", "TestMessages"},
	{"malformed forgiven", "ingest.go", "if err := x.forget(m, pm, st, -1, cur, v, bad, in); err != nil {", "if err := error(nil); err != nil || cur.Next < 0 {", ".", "TestMessages"},
	{"other ranks of a stream keep their view", "ingest.go", "		if n == but {", "		if n >= 0 {", ".", "TestLossByStream"},
	{"reports counted in a partial view", "ingest.go", "if partial && copies == CopiesGuarded {", "if false {", ".", "TestPartialViewCountsNoReport"},
	{"a stored cursor ignored", "ingest.go", "if done.Cursor.Next == 0 {", "if true {", ".", "TestMessagesAfterARestartOfTheHost"},
	{"a moved rank keeps its blocks", "ingest.go", "moved = r.state != StateUnknown", "moved = false", ".", "TestARankMovesToAnotherStream"},
	{"adapter not in the units", "hashing.go", "if adapter != \"\" {", "if false {", ".", "TestASaltNamedLikeAnAdapter"},
	{"a clear leaves the view partial", "ingest.go", "	if clears(&in.batch) {\n		r.state = StateLive", "	if clears(&in.batch) {\n		r.state = r.state", ".", "TestMessages"},
	{"late attachment is live", "events/sequencer.go", "		v.Missed = a.Seq > 0\n	case a.Seq < s.next", "		v.Missed = false\n	case a.Seq < s.next", "./events", "TestSequencer"},
	{"behind a stored cursor all is trusted", "events/sequencer.go", "s.other || !s.timed ||", "s.other ||", "./events", "TestSequencerResumeBehindARestart"},
	{"an engine that catches up is the old one", "events/sequencer.go", "	case s.other:", "	case false:", "./events", "TestSequencer"},
	{"hashes fold to their first bytes", "events/msgpack.go", "binary.BigEndian.Uint64(b[n-8:])", "binary.BigEndian.Uint64(b[:8])", "./events", "TestGolden"},
	{"duplicates applied", "events/sequencer.go", "if s.seen(a.Digest) {\n		return\n	}\n	newer", "newer", "./events", "TestSequencer"},
	{"a new clock ignored", "events/sequencer.go", "newer := a.Decoded && s.timed && a.Time > s.time", "newer := false", "./events", "TestSequencer"},
	{"16 in a row ignored", "events/sequencer.go", "s.back+1 >= backLimit", "false", "./events", "TestSequencerRestartWithoutClock"},
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// atOnce is how many mutants are tried at a time.
const atOnce = 2

func run(names []string) error {
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var chosen []mutant
	for _, m := range mutants {
		if len(names) == 0 || slices.Contains(names, m.name) {
			chosen = append(chosen, m)
		}
	}
	var next, killed atomic.Int64
	var wg sync.WaitGroup
	for worker := range atOnce {
		wg.Go(func() {
			dir := filepath.Join(dir, fmt.Sprint(worker))
			for i := next.Add(1); int(i) <= len(chosen); i = next.Add(1) {
				m := chosen[i-1]
				switch dead, err := m.kill(dir); {
				case err != nil:
					fmt.Printf("%s (%s): %v\n", m.name, m.file, err)
				case dead:
					killed.Add(1)
				default:
					fmt.Printf("ALIVE: %s (%s): %s passes\n", m.name, m.file, m.test)
				}
			}
		})
	}
	wg.Wait()
	n := int(killed.Load())
	fmt.Printf("%d of %d mutants killed\n", n, len(chosen))
	if n < len(chosen) || n == 0 {
		return fmt.Errorf("%d mutants were not killed", len(chosen)-n)
	}
	return nil
}

// kill reports whether the mutant's test fails on it. It works in dir.
func (m mutant) kill(dir string) (bool, error) {
	src, err := os.ReadFile(m.file)
	if err != nil {
		return false, err
	}
	if n := strings.Count(string(src), m.old); n != 1 {
		return false, fmt.Errorf("%q stands there %d times", m.old, n)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, err
	}
	broken := filepath.Join(dir, "broken.go")
	if err := os.WriteFile(broken, []byte(strings.Replace(string(src), m.old, m.new, 1)), 0o600); err != nil {
		return false, err
	}
	abs, err := filepath.Abs(m.file)
	if err != nil {
		return false, err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{abs: broken}})
	if err != nil {
		return false, err
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		return false, err
	}
	// Each part of a test's name is matched whole, so that no other dies for it.
	exact := "^" + strings.ReplaceAll(m.test, "/", "$/^") + "$"
	out, err := exec.Command("go", "test", "-count=1", "-failfast", "-vet=off", "-overlay", list, "-run", exact, "-timeout", "60s", m.pkg).CombinedOutput()
	switch text := string(out); {
	case err == nil && strings.Contains(text, "no tests to run"):
		return false, fmt.Errorf("there is no test %s", m.test)
	case err == nil:
		return false, nil
	case strings.Contains(text, "[build failed]") || strings.Contains(text, "[setup failed]"):
		return false, fmt.Errorf("does not build:\n%s", text)
	case !strings.Contains(text, "--- FAIL: "+strings.SplitN(m.test, "/", 2)[0]) && !strings.Contains(text, "panic: "):
		return false, fmt.Errorf("%s did not run:\n%s", m.test, text)
	}
	return true, nil
}
