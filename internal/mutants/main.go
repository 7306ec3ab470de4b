// Mutants breaks the rules of the project one at a time and checks that for
// each a named test fails. It changes no file: the compiler is shown the broken
// ones through an overlay, those of a package all in one test binary.
//
//	go run ./internal/mutants [name ...]
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
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
	{"the best rank speaks for the pod", "pods.go", "state, heard = min(state, pm.stateOf(r)), true", "state, heard = max(state, pm.stateOf(r)), true", ".", "TestLossByStream"},
	{"the first rank counts", "scorer.go", "b.row == 0 || sc.better(t, *b)", "b.row == 0", ".", "TestRanks"},
	{"the higher of equal ranks", "scorer.go", "sc.rankOf(b)-sc.rankOf(a)", "sc.rankOf(a)-sc.rankOf(b)", ".", "TestRanks"},
	{"an adapter of other pods", "candidates.go", "c.pods != nil && !slices.ContainsFunc(c.pods, func(pod string) bool { return told[pod] })", "false", ".", "TestScopes"},

	{"model ignored", "ingest.go", "src := index.Source{Pod: podID, Model: model, Rank: b.Rank}", "src := index.Source{Pod: podID, Model: \"m\", Rank: b.Rank}", ".", "TestScopes"},
	{"rank ignored", "ingest.go", "src := index.Source{Pod: podID, Model: model, Rank: b.Rank}", "src := index.Source{Pod: podID, Model: model}", ".", "TestScopes"},
	{"salt ignored", "hashing.go", "{s.model, s.adapter, s.salt}", "{s.model, s.adapter}", ".", "TestScopes"},
	{"seed ignored", "hashing.go", "xxh3.HashSeed(full, h.localSeed)", "xxh3.Hash(full)", ".", "TestScopesSeparate"},
	{"root of its own for each block", "convert.go", "HasParent: e.HasParent,", "HasParent: false,", ".", "TestScopes"},
	{"blocks of odd units", "convert.go", "return v, size/v.Unit <= index.MaxBlockUnits", "return v, true", ".", "TestOddBlockSizes"},
	{"media ignored", "convert.go", "c.extras = append(c.extras, mediaAt(", "_ = append(c.extras, mediaAt(", ".", "TestMedia"},
	{"embeddings ignored", "convert.go", "extra{first, embeds, id, 0}", "extra{-1, embeds, id, 0}", ".", "TestMedia"},
	{"copies of others counted", "convert.go", "if foreign(e) {", "if false {", ".", "TestForeignCopies"},
	{"an unknown medium is the gpu", "convert.go", "	return TierOther\n", "	return TierGPU\n", ".", "TestTiers"},
	{"gap forgiven", "ingest.go", "lost := v.Gap.Lost || v.Restarted", "lost := v.Restarted", ".", "TestMessages"},
	{"restart forgiven", "ingest.go", "lost := v.Gap.Lost || v.Restarted", "lost := v.Gap.Lost", ".", "TestMessages"},
	{"malformed forgiven", "ingest.go", "if err := x.lose(m, pm, st, -1, st.cursor(m, v, 0), v, bad, in); err != nil {", "if err := error(nil); err != nil {", ".", "TestMessages"},
	{"other ranks of a stream keep their view", "ingest.go", "		if n == but {", "		if n >= 0 {", ".", "TestLossByStream"},
	{"reports counted in a partial view", "ingest.go", "if partial && profile.Copies == CopiesGuarded {", "if false {", ".", "TestPartialViewCountsNoReport"},
	{"a stored cursor ignored", "ingest.go", "if done.Cursor.Next == 0 {", "if true {", ".", "TestMessagesAfterARestartOfTheHost"},
	{"a moved rank keeps its blocks", "ingest.go", "moved = r.state != StateUnknown", "moved = false", ".", "TestARankMovesToAnotherStream"},
	{"adapter not in the units", "hashing.go", "if adapter != \"\" {", "if false {", ".", "TestASaltNamedLikeAnAdapter"},
	{"a clear leaves the view partial", "ingest.go", "	case clears(&in.batch):", "	case false:", ".", "TestMessages"},
	{"late attachment is live", "events/sequencer.go", "		v.Missed = a.Seq > 0\n	case a.Seq < s.next", "		v.Missed = false\n	case a.Seq < s.next", "./events", "TestSequencer"},
	{"behind a stored cursor all is trusted", "events/sequencer.go", "s.other || !s.timed ||", "s.other ||", "./events", "TestSequencerResumeBehindARestart"},
	{"an engine that catches up is the old one", "events/sequencer.go", "	case s.other:", "	case false:", "./events", "TestSequencer"},
	{"hashes fold to their first bytes", "events/msgpack.go", "binary.BigEndian.Uint64(b[n-8:])", "binary.BigEndian.Uint64(b[:8])", "./events", "TestGolden"},
	{"duplicates applied", "events/sequencer.go", "if s.seen(a.Digest) {\n		return\n	}\n	newer", "newer", "./events", "TestSequencer"},
	{"a new clock ignored", "events/sequencer.go", "newer := a.Decoded && s.timed && a.Time > s.time", "newer := false", "./events", "TestSequencer"},
	{"16 in a row ignored", "events/sequencer.go", "s.back+1 >= backLimit", "false", "./events", "TestSequencerRestartWithoutClock"},
	{"what comes again contradicts", "events/sequencer.go", "s.contradicts(a) && s.back+1", "s.back+1", "./events", "TestSequencerContradictions"},
	{"what does not contradict counts", "events/sequencer.go", "	if s.contradicts(a) {\n		s.back++", "	if true {\n		s.back++", "./events", "TestSequencerContradictions"},
	{"the time of a later number says nothing", "events/sequencer.go", "return a.Decoded && later >= 0 && a.Time > s.marks[later].time", "return false && later >= 0", "./events", "TestSequencerRestartAfterALongLife"},
	{"a replay proves nothing", "events/sequencer.go", "a.Replayed && s.differs(a) ||", "", "./events", "TestSequencerReplayed"},
	{"behind a stored cursor clocks say nothing", "events/sequencer.go", "|| s.blind && s.timed && a.Time < s.time", "", "./events", "TestSequencerResumeWithATime"},
	{"an earlier life is news", "events/sequencer.go", "return a.Seq < s.oldNext && a.Time <= s.oldTime ||", "return", "./events", "TestSequencerRedeliveryOfALife"},
	{"marks without bound", "events/sequencer.go", "for len(s.marks) >= maxMarks &&", "if len(s.marks) == maxMarks &&", "./events", "TestSequencerIsBounded"},
	{"one odd repeat is for ever", "events/sequencer.go", "s.back, s.other = 0, false", "s.back = 0", "./events", "TestSequencerOddRepeat"},
	{"the time of a cursor is not stored", "ingest.go", "Next: v.Next, Time: time}", "Next: v.Next}", ".", "TestMessagesAfterARestartOfTheHost"},
	{"a first message is never held", "ingest.go", "if m.Hold && (v.Gap.Lost || v.Missed || v.Restarted) {", "if m.Hold && v.Gap.Lost {", ".", "TestStreamRestarted"},
	{"a pod that waits for a replay is live", "pods.go", "	case st.held:\n		return min(state, StateReplaying)", "	case false:\n		return min(state, StateReplaying)", ".", "TestReplayedGap"},
	{"a lost connection is nothing", "pods.go", "	case st.interrupted:", "	case false:", ".", "TestStreamInterrupted"},
	{"any message ends the wait", "ingest.go", "next > st.heldSeq || m.Seq >= st.heldSeq {", "next > 0 {", ".", "TestAHoleStaysOpen"},
	{"a message that a replay brought is waited for", "ingest.go", "next > st.heldSeq || m.Seq >= st.heldSeq {", "m.Seq > st.heldSeq && next > 0 {", ".", "TestReplayBringsTheHeldMessage"},
	{"a held message outlives its connection", "ingest.go", "st.interrupted, st.held = true, false", "st.interrupted = true", ".", "TestStreamInterrupted"},
	{"what others left is claimed beside", "ingest.go", "r.stream == \"\" && !x.ownsIndex {", "r.stream == \"\" && false {", ".", "TestStreamRestartedOutlivesTheHost"},
	{"a rank that comes back is deaf", "ingest.go", "	st.seq.Resume(done.Cursor.Epoch, done.Cursor.Next, done.Cursor.Time)\n", "	if moved {\n		return true, nil\n	}\n	st.seq.Resume(done.Cursor.Epoch, done.Cursor.Next, done.Cursor.Time)\n", ".", "TestARankComesBack"},
	{"partial for ever", "ingest.go", "r.state == StateUnknown && st.partial ||", "st.partial ||", ".", "TestAClearEndsThePartialView"},
	{"slow calls find a removed pod", "ingest.go", "if p.removed || pm == nil || pm.streams[name] == nil {", "if pm == nil || pm.streams[name] == nil {", ".", "TestThePodOfASlowCall"},
	{"invented streams shut out", "ingest.go", "if len(pm.streams) >= MaxStreams && !pm.dropStream() {", "if len(pm.streams) >= MaxStreams {", ".", "TestWhatAPodMayInvent"},
	{"models without bound", "pods.go", "if len(p.models) >= MaxModels {", "if false {", ".", "TestWhatAPodMayInvent"},
	{"a budget ends nobody", "internal/zmtp/zmtp.go", "if largest == c || b.held[largest] <= n {", "if true {", "./internal/zmtp", "TestBudgetGoesToTheSmall"},
	{"the first connection is trusted", "events/replay.go", "if err == nil && first && r.due > 0 {", "if false && first {", "./events", "TestReplayFirstContact"},
	{"restarted engines are kept", "ingest.go", "return x.keep && !v.Restarted", "return x.keep", ".", "TestLossKeep"},
	{"all losses forget", "ingest.go", "return x.keep && !v.Restarted", "return false", ".", "TestLossKeep"},
	{"reports counted in an uncertain view", "pods.go", "return r.state == StatePartial || r.state == StateUncertain", "return r.state == StatePartial", ".", "TestLossKeep"},
	{"a stream that began anew goes on", "ingest.go", "	st.seq.Restart()\n", "", ".", "TestStreamRestarted"},
	{"a pod may fill the pool", "events/pool.go", "return q.stats.Messages+1 <= p.cfg.MaxMessages-p.stats.Messages &&", "return 1 <= p.cfg.MaxMessages-p.stats.Messages &&", "./events", "TestPoolShares"},
	{"a pod may have all bytes", "events/pool.go", "q.stats.Bytes+int64(n) <= p.cfg.MaxBytes-p.stats.Bytes", "int64(n) <= p.cfg.MaxBytes-p.stats.Bytes", "./events", "TestPoolShares"},
	{"a pool without bound", "events/pool.go", "return q.stats.Messages+1 <= p.cfg.MaxMessages-p.stats.Messages &&", "return true &&", "./events", "TestPoolAgainstModel"},
	{"the newest is dropped", "events/pool.go", "\t\tif q.first[spare] == nil {\n\t\t\treturn p.replace(s, n)\n\t\t}\n\t\tp.drop(q.first[spare])", "\t\tif q.first[waiting] == nil {\n\t\t\treturn false\n\t\t}\n\t\tp.drop(q.first[waiting])", "./events", "TestPoolKeepsTheNewest"},
	{"a queued restart is dropped", "events/pool.go", "old != nil && !old.restart {", "old != nil {", "./events", "TestPoolRestartIsNotDropped"},
	{"a hole before first contact shows", "events/pool.go", "return !heard || d.drop.From < next ||", "return !heard && false || d.drop.From < next ||", "./events", "TestPoolDropBeforeFirstContact"},
	{"a hidden drop is not told", "events/pool.go", "d.restart = d.restart || p.hides(d)", "", "./events", "TestPoolDropsAreTold"},
	{"a restart that the sink did not take is forgotten", "events/pool.go", "s.owed = d.restart", "s.owed = false", "./events", "TestPoolOwesRestarts"},
	{"pods have no turns", "events/pool.go", "(i < poolTurn || p.line.first == nil)", "true", "./events", "TestPoolTurns"},
	{"places without bound", "events/pool.go", "if p.workers < p.cfg.Concurrency {", "if true {", "./events", "TestPoolDefaults"},
	{"payloads are not copied", "events/pool.go", "copy(e.buf, m.Payload)", "e.buf = m.Payload[:n:n]", "./events", "TestPoolAgainstModel"},
	{"offers overtake", "events/pool.go", "if len(q.waiters) == 0 && p.room(s, n) {", "if p.room(s, n) {", "./events", "TestPoolCancel"},
	{"Close drops in silence", "events/pool.go", "\t\tp.cfg.OnDrop(d)\n", "\t\t_ = d\n", "./events", "TestPoolCloseInTime"},
	{"poison is any error", "events/pool.go", "case errors.Is(err, ErrMalformed):", "case false:", "./events", "TestPoolPoison"},
	{"Hold in a pool", "events/pool.go", "case m.Hold:", "case false:", "./events", "TestPoolRefuses"},
	{"media form not in the root", "hashing.go", "b = append(b, byte(v.Media))", "_ = v.Media", ".", "TestVariantKeys"},
	{"block size not in the root", "hashing.go", "b = binary.AppendUvarint(b, uint64(v.Block))", "", ".", "TestVariantKeys"},
	{"pairs not in the root", "hashing.go", "b = strconv.AppendBool(b, v.Pairs)", "strconv.AppendBool(b, v.Pairs)", ".", "TestVariantKeys"},
	{"pads not shifted", "hashing.go", "of[j] = padShift + hash", "of[j] = hash", ".", "TestScopesAgainstModel"},
	{"pads of the first token", "hashing.go", "for j := range min(m.Length, len(of)) {", "for j := range min(m.Length, len(of), 1) {", ".", "TestScopesAgainstModel"},
	{"a negative hash like its opposite", "hashing.go", "	if negative {", "	if negative && n == 0 {", ".", "TestScopesAgainstModel"},
	{"any hash is an integer", "hashing.go", "return 0, false", "continue", ".", "TestMediaHashes"},
	{"an item is in its first block only", "hashing.go", "			if end > to {\n				break", "			if end > to && end < to {\n				break", ".", "TestScopesAgainstModel"},
	{"salt of bare media in the root too", "scorer.go", "	if v.Media == MediaBare {", "	if false {", ".", "TestScopesAgainstModel"},
	{"salt not among bare media", "hashing.go", "if from == 0 && salt != \"\" {", "if false {", ".", "TestScopesAgainstModel"},
	{"bare media are salts", "convert.go", "if v.Media != MediaBare && k.Block == 0", "if k.Block == 0", ".", "TestScopesAgainstModel"},
	{"SGLang's salt ignored", "convert.go", "	salt = e.Salt\n", "", ".", "TestASaltedChainKeepsItsRoot"},
	{"pairs are tokens", "convert.go", "Media: media, Pairs: e.Pairs}", "Media: media}", ".", "TestScopesAgainstModel"},
	{"pairs as long as tokens", "scorer.go", "	if row.Pairs {\n		length--", "	if false {\n		length--", ".", "TestScopesAgainstModel"},
	{"all rows of pairs", "scorer.go", "	if row.Pairs {\n		length--", "	if true {\n		length--", ".", "TestScopesAgainstModel"},
	{"rows without pairs", "index/lanes.go", "Pairs: by.variant.Pairs, ", "", ".", "TestScopesAgainstModel"},
	{"locals of another unit", "scorer.go", "plain == sc.plain {", "sc.plain != (index.Variant{}) {", ".", "TestVariantKeys"},
	{"locals with a salt are plain", "scorer.go", "if len(sc.media) > 0 || len(sc.extras) > 0 {", "if len(sc.media) > 0 {", ".", "TestVariantKeys"},
	{"an error of one prompt for all", "scorer.go", "index.Variant{}, nil\n", "index.Variant{}, sc.err\n", ".", "TestMediaHashes"},
	{"an SGLang is guarded", "profile.go", "	case p.Media == MediaPad:", "	case false:", ".", "TestSGLangCounts"},
	{"any bare block size", "convert.go", "return v, !e.Pairs && size <= maxBareBlock && size&(size-1) == 0", "return v, !e.Pairs", ".", "TestVariantsAreFew"},
	{"bare pairs", "convert.go", "return v, !e.Pairs && size", "return v, size", ".", "TestVariantsAreFew"},
	{"media of another form unnoticed", "convert.go", "unscored = unscored || v.Media != MediaOffsets", "", ".", "TestMediaOfAnotherForm"},
	{"bare media of another form unnoticed", "convert.go", "unscored = unscored || v.Media != MediaBare", "", ".", "TestMediaOfAnotherForm"},
	{"tiers by case", "convert.go", "switch strings.ToUpper(medium) {", "switch medium {", ".", "TestTierNames"},
	{"model per pod exact", "pods.go", "profile:  profile.complete(),", "profile:  Profile{}.complete(),", ".", "TestScopesAgainstModel"},
	{"items that are over go on", "hashing.go", "			if end > from {", "			if end > 0 {", ".", "TestNestedItems"},
	{"media without a length", "hashing.go", "min(max(m.Length, 1), tokens-m.Offset)", "min(m.Length, tokens-m.Offset)", ".", "TestNestedItems"},
	{"locals of the prompt before", "scorer.go", "sc.keys, sc.plain, sc.err = sc.keys[:0], index.Variant{}, nil", "sc.keys, sc.err = sc.keys[:0], nil", ".", "TestCachedTokens"},
	{"an adapter's number is media", "convert.go", "if strconv.FormatInt(k.Int, 10) != e.Adapter {", "if strconv.FormatInt(k.Int, 10) != e.Adapter+\"x\" {", ".", "TestScopesAgainstModel"},
	{"an adapter's name is media", "convert.go", "if opens && k.Text == e.Adapter && e.Adapter != \"\" {", "if opens && k.Text == e.Adapter && e.Adapter == \"\" {", ".", "TestScopesAgainstModel"},
	{"components taken for the whole", "events/sglang.go", "if name != \"\" && name != \"full\" {", "if name == \"mamba\" {", "./events", "TestSGLang"},
	{"a list of components is no matter", "events/sglang.go", "\td.aside = true\n\treturn nil", "\treturn nil", "./events", "TestSGLang"},
	{"SGLang's salt in a map ignored", "events/vllm.go", "e.Salt, err = d.text()", "_, err = d.text()", "./events", "TestSGLang"},
	{"events set aside are kept", "events/vllm.go", "\t\td.b.dropEvent()\n", "", "./events", "TestSGLang"},
	{"endings repeat other entries", "events/vllm.go", "e.HasExtra, d.entries = like.HasExtra, last.entries", "e.HasExtra, d.entries = like.HasExtra, len(e.Hashes)", "./events", "TestEndingsChecked"},
	{"endings of other fields", "events/vllm.go", "if *seen == l.varying && d.repeats", "if *seen&l.varying == l.varying && d.repeats", "./events", "TestEndings"},
	{"endings with counts", "events/vllm.go", " || d.e.Remaining != nil {", " {", "./events", "TestEndings"},
	{"endings of other kinds", "events/vllm.go", "last.start == 0 || last.fields != here.fields ||", "last.start == 0 ||", "./events", "TestEndings"},
	{"events grow by a claim", "events/vllm.go", "min(d.rest, 1+d.left()/minEventBytes)", "d.rest", "./events", "TestBoundedMemory"},
	{"extra keys without bound", "events/vllm.go", "min(maxExtra, len(d.data)/minExtraBytes)", "maxExtra", "./events", "TestBoundedMemory"},
	{"keys repeat", "events/vllm.go", "if f != unknown && seen[f] {", "if false {", "./events", "TestRefused"},
	{"hashes may be nil", "events/vllm.go", "if f != fieldHashes && d.isNil()", "if d.isNil()", "./events", "TestRefused"},
	{"one reason for all", "events/reason.go", "return f.reason", "return ReasonType", "./events", "TestReasonOf"},
	{"a connection keeps the buffer of a burst", "internal/zmtp/conn.go", "\t\tc.resize(firstBuffer)\n", "", "./internal/zmtp", "TestMemoryOfConnections"},
	{"old frames keep the buffer before", "internal/zmtp/conn.go", "\tclear(c.frames[:cap(c.frames)]) // they would keep the buffer before alive\n", "", "./internal/zmtp", "TestMemoryOfConnections"},
	{"an idle 3.0 peer has no time to rest", "internal/zmtp/conn.go", "if c.is31 || !idle {", "if c.is31 {", "./internal/zmtp", "TestMemoryOfConnections"},
	{"a connection begins with a large buffer", "internal/zmtp/conn.go", "c.buf = make([]byte, firstBuffer)", "c.buf = make([]byte, bulkBuffer)", "./internal/zmtp", "TestMemoryOfConnections"},
	{"buffers do not grow with the traffic", "internal/zmtp/conn.go", "if c.filled && len(c.buf) < bulkBuffer {", "if false {", "./internal/zmtp", "TestFaultWorkForEachFrame"},
	{"a deadline for each read", "internal/zmtp/conn.go", "if !until.IsZero() && (c.armed.IsZero() || until.Before(c.armed)) {", "if true {", "./internal/zmtp", "TestFaultWorkForEachFrame"},
	{"a deadline that was due early is the end", "internal/zmtp/conn.go", "if !errors.Is(err, os.ErrDeadlineExceeded) || c.armed.Equal(until) {", "if true {", "./internal/zmtp", "TestHeartbeat"},
	{"silence within a message is not dead", "internal/zmtp/handshake.go", "\tc.patience = 2 * c.cfg.Heartbeat\n", "", "./internal/zmtp", "TestFaultHalfOpenConnection"},
	{"a message has all the time in the world", "internal/zmtp/conn.go", "\t\tuntil := c.deadline\n", "\t\tuntil := now.Add(time.Hour)\n", "./internal/zmtp", "TestDripsHaveAnEnd"},
	{"silence is never told", "internal/zmtp/conn.go", "if !idle && c.cfg.OnIdle != nil {", "if false {", "./internal/zmtp", "TestOnIdle"},
	{"silence is told again and again", "internal/zmtp/conn.go", "\t\tidle = true\n", "", "./internal/zmtp", "TestOnIdle"},
	{"no PING", "internal/zmtp/conn.go", "if err := c.sendCommand(\"PING\", []byte{0, 0}); err != nil {", "if err := error(nil); err != nil {", "./internal/zmtp", "TestHeartbeat"},
	{"no PONG", "internal/zmtp/conn.go", "return true, c.sendCommand(\"PONG\", cmd.data[2:])", "return true, nil", "./internal/zmtp", "TestFaultPingUnanswered"},
	{"PONG without the context", "internal/zmtp/conn.go", "c.sendCommand(\"PONG\", cmd.data[2:])", "c.sendCommand(\"PONG\", nil)", "./internal/zmtp", "TestFaultPingUnanswered"},
	{"a second silence is borne", "internal/zmtp/conn.go", "\t\tpinged = true\n", "", "./internal/zmtp", "TestHeartbeat"},
	{"metadata has the limit of commands", "internal/zmtp/handshake.go", "c.frame(0, c.cfg.MaxMetadata, c.cfg.MaxMetadata)", "c.frame(0, c.cfg.MaxMetadata, c.cfg.MaxCommand)", "./internal/zmtp", "TestMaxMetadata"},
	{"identities of any length", "internal/zmtp/handshake.go", "len(value) > MaxIdentity", "false", "./internal/zmtp", "TestHandshakeRefuses"},
	{"the last identity counts", "internal/zmtp/handshake.go", "if err = once(&identified,", "identified = false\n\t\t\tif err = once(&identified,", "./internal/zmtp", "TestHandshakeRefuses"},
	{"dead hosts are asked late", "internal/zmtp/endpoint.go", "Idle:     3 * time.Second,", "Idle:     15 * time.Second,", "./internal/zmtp", "TestKeepAliveFindsDeadHostsInSeconds"},
	{"no keepalive for guests", "internal/zmtp/endpoint.go", "lc := net.ListenConfig{KeepAliveConfig: keepAlive}", "lc := net.ListenConfig{}", "./internal/zmtp", "TestKeepAliveFindsDeadHostsInSeconds"},
	{"a frame's length is believed", "internal/zmtp/conn.go", "if size > uint64(limit) {", "if false {", "./internal/zmtp", "TestFaultFrameOf2To60Bytes"},
	{"a cancelled Dial goes on", "internal/zmtp/handshake.go", "stop := context.AfterFunc(ctx, func() { _ = c.Close() })", "stop := context.AfterFunc(ctx, func() {})", "./internal/zmtp", "TestFaultDialToASilentPeer"},
	{"a grown buffer takes from nobody", "internal/zmtp/conn.go", "\tif err := c.charge(size); err != nil {\n\t\treturn err\n\t}\n", "", "./internal/zmtp", "TestBudgetIsShared"},
	{"large buffers are kept", "internal/zmtp/conn.go", "if len(c.buf) > keepBuffer && c.end-c.start <= bulkBuffer/2 {", "if false {", "./internal/zmtp", "TestBudgetComesBack"},
	{"a heartbeat within a message is part of it", "internal/zmtp/conn.go", "\t\tc.end = c.start + at + copy(c.buf[c.start+at:], c.buf[c.start+f.end:c.end])\n", "\t\tc.start += 0\n", "./internal/zmtp", "TestPingIsAnswered"},
	{"a held message of the engine before is applied", "events/replay.go", "if known && answered && !from.doubted {", "if known && answered && !from.doubted && false {", "./events", "TestHeldOfAnOtherLife"},
	{"an engine that does not keep all is left for ever", "events/replay.go", "if known && answered && !from.doubted {", "if known && answered {", "./events", "TestEngineThatDoesNotKeep"},
	{"an answer may begin before what was asked for", "events/replay.go", "case seq < start: // not what was asked for", "case false: // not what was asked for", "./events", "TestAnswerBeginsTooEarly"},
	{"the confirmation is applied", "events/replay.go", "Payload: payload, Hold: true})", "Payload: payload})", "./events", "TestRestartBetweenRequests"},
	{"what is behind a held message is waited for", "events/replay.go", "			if until != nil && r.due > *until {\n\t\t\t\treturn false, nil\n\t\t\t}\n", "", "./events", "TestRepairEnds"},
	{"an idle connection asks again and again", "events/subscriber.go", "if !i.asked && i.err == nil {", "if i.err == nil {", "./events", "TestIdle"},
	{"an idle connection asks nothing", "events/subscriber.go", "i.asked, i.err = true, i.ask()", "i.asked = true", "./events", "TestIdle"},
	{"a lost connection is not told", "events/subscriber.go", "	s.interrupted(&s.only)\n", "", "./events", "TestInterrupted"},
	{"a link to the engine before has a say", "events/subscriber.go", "	if l.id < t.floor {\n\t\treturn errOtherLife\n\t}\n", "", "./events", "TestBoundOldLink"},
	{"an older link may have its say", "events/topic.go", "if id < t.owner {", "if false {", "./events", "TestSubscriberNewestConnectionWins"},
	{"topics without bound", "events/subscriber.go", "len(l.sources) == s.cfg.MaxTopics || ", "", "./events", "TestSubscriberBoundsTopics"},
	{"an engine that keeps nothing has started anew", "events/replay.go", "if seq != r.due-1 && r.from.spoke == r.due {", "if false {", "./events", "TestReplayNothingKept"},
	{"a replay without end", "events/replay.go", "if time.Now().After(r.end) {", "if false {", "./events", "TestReplayWithoutEnd"},
	{"what a pool owes is swept", "events/pool.go", "if s.offers == 0 && !s.owed && s.lost.Messages == 0 {", "if s.offers == 0 {", "./events", "TestPoolRemembersWhatItOwes"},
	{"holes in an answer are passed over", "events/replay.go", "case seq > r.due && !first:", "case false && first:", "./events", "TestReplayAnswers"},
	{"an engine that forgot the last message goes on", "events/replay.go", "if seq != r.due-1 {", "if false {", "./events", "TestReplayFillsGaps"},
	{"another's last message goes on", "events/replay.go", "if err == nil && !receipt.Duplicate {", "if err == nil && false && !receipt.Duplicate {", "./events", "TestReplayFillsGaps"},
	{"a gap is filled by any engine", "events/replay.go", "known := start == 0", "known := start == 0 || r.done.Attempts > 0", "./events", "TestReplayConfirmsLater"},
	{"an early end is the end", "events/replay.go", "case until != nil && r.due > *until, until == nil && ended:", "case until != nil && r.due > *until, ended:", "./events", "TestReplayAnswers"},
	{"what the sink did not take is gone", "events/replay.go", "	if errors.Is(err, ErrMalformed) {\n", "	if err != nil {\n", "./events", "TestReplaySinkErrors"},

	{"the shortest added token", "tokenize/added.go", "best = t\n", "return t\n", "./tokenize", "TestCasesAsOfficial"},
	{"a single word looks to its right only", "tokenize/added.go", "if r, n := utf8.DecodeLastRune(s[:begin]); n > 0 && classOf(r)&word != 0 {", "if false {", "./tokenize", "TestCasesAsOfficial"},
	{"a word that is not alone hides nothing", "tokenize/added.go", "!alone(s, begin, end) {\n", "!alone(s, begin, end) {\n\t\t\tat = begin + 1\n", "./tokenize", "TestCasesAsOfficial"},
	{"lstrip is ignored", "tokenize/added.go", "if token.lstrip {", "if false {", "./tokenize", "TestCasesAsOfficial"},
	{"rstrip is ignored", "tokenize/added.go", "if token.rstrip {", "if false {", "./tokenize", "TestCasesAsOfficial"},
	{"two added tokens with one id", "tokenize/added.go", "taken && (!ok || other != i)", "taken && other < 0", "./tokenize", "TestAddedTokensWithOneID"},
	{"normalized tokens are sought as they are written", "tokenize/added.go", "if t.content = string(text); t.content == \"\" {", "if len(text) == 0 {", "./tokenize", "TestFamiliesAsOfficial"},
	{"the ids of added tokens are the file's", "tokenize/added.go", "if t.id = s.place(t.content); t.id != id {", "if t.id = id; false {", "./tokenize", "TestRefusals/added_token_with_another_id"},
	{"a token of the vocabulary takes an id", "tokenize/added.go", "if _, ok := s.vocab.id([]byte(t.content)); !ok {", "if true {", "./tokenize", "TestFamiliesAsOfficial"},

	{"a prefix within a text", "tokenize/normalize.go", "if !start || len(s) == 0 {", "if len(s) == 0 {", "./tokenize", "TestNormalizeContinued"},

	{"marks of a class change places", "tokenize/forms.go", "p.marks[i-1]>>21 > m>>21", "p.marks[i-1]>>21 >= m>>21", "./tokenize", "TestFormsPlain"},
	{"a mark composes past one of its class", "tokenize/forms.go", "if len(kept) == 0 || kept[len(kept)-1]>>21 < m>>21 {", "if true {", "./tokenize", "TestFormsPlain"},
	{"marks out of order are normal", "tokenize/forms.go", "class != 0 && class < last {", "class != 0 && class < last && false {", "./tokenize", "TestFormsPlain"},

	{"replacements of any length", "tokenize/normalize.go", "if len(dst)+len(s) > w.limit() {", "if false {", "./tokenize", "TestReplaceTooLong"},
	{"a boundary within a match", "tokenize/normalize.go", "if bytes.Contains(p.pattern,", "if false && bytes.Contains(p.pattern,", "./tokenize", "TestBoundaryWithinAMatch"},

	{"what an accent may follow is settled", "tokenize/forms.go", "v&(valueBack|valueForward) == 0", "v&valueBack == 0", "./tokenize", "TestBoundaryCases"},

	{"Metaspace first behind a strip", "tokenize/load.go", "if t.pre.textStart && (", "if false && (", "./tokenize", "TestFamiliesAsOfficial"},

	{"the last match is not removed", "tokenize/pretokenize.go", "if match {\n\t\t\ti = to", "if false {\n\t\t\ti = to", "./tokenize", "TestRunsOfMatches"},
	{"merged with the other side", "tokenize/pretokenize.go", "match != (t.behavior == mergedWithNext)", "match != (t.behavior == mergedWithPrevious)", "./tokenize", "TestPreTokenizers"},
	{"two matches are merged", "tokenize/pretokenize.go", "if end, other := t.item(s, to); other != match {\n\t\t\tto", "if end, _ := t.item(s, to); true {\n\t\t\tto", "./tokenize", "TestPreTokenizers"},
	{"a prefix space within a text", "tokenize/pretokenize.go", "if at != inside && s[0] != ' ' {", "if s[0] != ' ' {", "./tokenize", "TestCutsOfProse"},
	{"Metaspace first behind an added token", "tokenize/pretokenize.go", "m.scheme == \"first\" && at == textStart", "m.scheme == \"first\" && at != inside", "./tokenize", "TestFamiliesAsOfficial"},
	{"Metaspace never prepends", "tokenize/pretokenize.go", "m.scheme == \"first\" && at == textStart", "m.scheme != \"always\" && at == textStart", "./tokenize", "TestPreTokenizers"},
	{"digits of characters behind ByteLevel", "tokenize/pretokenize.go", "step{pattern: mappedDigits}", "step{pattern: digits}", "./tokenize", "TestPreTokenizers"},
	{"every segment begins the text", "tokenize/pretokenize.go", "if from > 0 {\n\t\treturn pieceStart", "if from < 0 {\n\t\treturn pieceStart", "./tokenize", "TestFamiliesAsOfficial"},

	{"a piece is where its text is", "tokenize/bpe.go", "depth+1, pieceStart", "depth+1, at", "./tokenize", "TestResumeOfFamilies"},

	{"Llama 3's contractions in lower case", "tokenize/scan_known.go", "contraction(s[i+1:], true)", "contraction(s[i+1:], false)", "./tokenize", "TestKnownPieces"},
	{"the long s is no s", "tokenize/scan_known.go", "if fold && len(s) >= 2 &&", "if false &&", "./tokenize", "TestKnownPieces"},
	{"any number of digits", "tokenize/scan_known.go", "n > 0 && digits > 0; digits--", "n > 0; digits--", "./tokenize", "TestPieces"},
	{"all symbols take slashes", "tokenize/scan_known.go", "slashes && s[end] == '/'", "s[end] == '/'", "./tokenize", "TestKnownPieces"},
	{"a mark is a lead", "tokenize/scan_known.go", "if word > i {\n", "if false {\n", "./tokenize", "TestKnownPieces"},

	{"nothing is given back", "tokenize/scan.go", "return a.matchGiving(s, start)", "_ = start\n\t\t\t\treturn none", "./tokenize", "TestPatternsOfRandomTexts"},

	{"a possessive run gives back", "tokenize/scan_program.go", "t.set == nil || t.keeps ||", "t.set == nil ||", "./tokenize", "TestPatternsOfRandomTexts"},

	{"the long s is no s of a pattern", "tokenize/scan_regex.go", "t.add('\\u017f', '\\u017f')", "t.add('s', 's')", "./tokenize", "TestPatternsOfRandomTexts"},

	{"a run within a run", "tokenize/scan_program.go", "if runs++; runs > 1 {", "if runs++; runs > 2 {", "./tokenize", "TestRefusedPatterns"},

	{"groups of digits from the left", "tokenize/scan_custom.go", "count = (count-1)%3 + 1", "count = min(count, 3)", "./tokenize", "TestPatternsOfRandomTexts"},

	{"a part of a character falls back", "tokenize/model.go", "if t.fallback[b] == noID {", "if t.fallback[b] == noID && false {", "./tokenize", "TestUnknownCharacters"},
	{"bytes stay behind an unknown token", "tokenize/model.go", "\t\tvar fell bool\n", "\t\tif waiting && !t.fuse {\n\t\t\tdst = append(dst, t.unknown)\n\t\t\twaiting = false\n\t\t}\n\t\tvar fell bool\n", "./tokenize", "TestUnknownCharacters"},
	{"unknown tokens are not fused", "tokenize/model.go", "if waiting && !t.fuse {", "if waiting {", "./tokenize", "TestUnknownCharacters"},
	{"a piece is cut before it is a token", "tokenize/model.go", "if t.uncut {\n", "if false {\n", "./tokenize", "TestFamiliesAsOfficial"},
	{"merges of bytes have no joints", "tokenize/model.go", " && !f.merges.haveBytes()", "", "./tokenize", "TestParts"},
	{"a piece that is a token is that one", "tokenize/model.go", "i >= 0 && t.isAlone(i)", "i >= 0", "./tokenize", "TestCasesAsOfficial"},

	{"a kept piece by its length and its first byte", "tokenize/words.go", "if !bytes.Equal(w.text[:w.length], piece) {", "if int(w.length) != len(piece) || !bytes.Equal(w.text[:1], piece[:1]) {", "./tokenize", "TestKeptPiecesAsReference"},

	{"the rightmost merge first", "tokenize/merge.go", "if r < best {", "if r <= best {", "./tokenize", "TestRandomMergesAsReference"},
	{"a batch is not interrupted", "tokenize/merge.go", "last < 0 || len(l.ranks) > 0 && l.ranks[0] < l.batches[last].rank", "last < 0", "./tokenize", "TestRandomMergesAsReference"},
	{"a pair that has gone is merged", "tokenize/merge.go", "if s.rank != rank {", "if false {", "./tokenize", "TestRandomMergesAsReference"},
	{"the first of two merges counts", "tokenize/merge.go", "\tt.ranks.set(a, b, uint32(len(t.result)))", "\tif t.rank(a, b) == noMerge {\n\t\tt.ranks.set(a, b, uint32(len(t.result)))\n\t}", "./tokenize", "TestCasesAsOfficial"},

	{"the last of two fields counts", "tokenize/json.go", "if _, ok := o.values[string(name)]; ok {", "if false {", "./tokenize", "TestFieldsTwice"},

	{"half a surrogate pair in a token", "tokenize/stream.go", "ok = ok && isHex && r != utf8.RuneError", "ok = ok && isHex", "./tokenize", "TestParseIsStrict"},

	{"more behind the file", "tokenize/load.go", "if err := s.end(); err != nil {", "if err := error(nil); err != nil {", "./tokenize", "TestParseIsStrict"},

	{"a text between two separators", "tokenize/template.go", "if before, err = parseToken(o, \"cls\"); err != nil {", "if before, err = parseToken(o, \"sep\"); err != nil {", "./tokenize", "TestPostProcessors"},

	{"add_bos_token is for classes with a template", "tokenize/pretrained.go", "if c.explicit || ", "if ", "./tokenize", "TestLoadPretrainedRefusals"},

	{"the first flags of a token count", "tokenize/added.go", "s.tokens[i] = t\n", "_ = i\n", "./tokenize", "TestLoadPretrained"},

	{"a name takes a token's flags", "tokenize/pretrained.go", "; ok || t.content == \"\" {", "; false && ok || t.content == \"\" {", "./tokenize", "TestNamedTokenKeepsItsFlags"},
	{"tokens in the order of the config", "tokenize/pretrained.go", "return int(a.id) - int(b.id)", "return 0", "./tokenize", "TestDecoderInAnyOrder"},

	{"resumes behind white space", "tokenize/resume.go", "if classOf(l)&space != 0 || t.plain", "if t.plain", "./tokenize", "TestResumeOfFamilies"},
	{"resumes within an added token", "tokenize/resume.go", " || t.plain.joins(l, r) {", " {", "./tokenize", "TestResumeOfFamilies"},
	{"resumes where a single word may begin", "tokenize/resume.go", "if m == nil || m.single {", "if m == nil {", "./tokenize", "TestResumeOfFamilies"},
	{"resumes where normalizing joins", "tokenize/resume.go", "if !ok || t.normalized", "if !ok && false || t.normalized", "./tokenize", "TestResumeOfFamilies"},

	{"resumes behind what looks ahead", "tokenize/pretokenize.go", " || classOf(l)&t.looksAhead != 0 {\n\t\t\treturn false", " {\n\t\t\treturn false", "./tokenize", "TestCuts"},

	{"a piece parts that may be a token", "tokenize/model.go", "t.joints != nil && !t.uncut &&", "t.joints != nil &&", "./tokenize", "TestParts"},

	{"resumes within a character", "tokenize/resume.go", "if l == utf8.RuneError && lWidth == 1 || r == utf8.RuneError && rWidth == 1 {", "if false {", "./tokenize", "TestResumeIsBetweenCharacters"},

	{"the highest rank first", "tokenize/tiktoken.go", "cmp.Compare(a.id, b.id)", "cmp.Compare(b.id, a.id)", "./tokenize", "TestTiktokenAsReference"},
	{"a token of a rank file is merged", "tokenize/tiktoken.go", "uncut: true", "uncut: false", "./tokenize", "TestTiktokenAsReference"},
	{"text that no piece has", "tokenize/tiktoken.go", "!ok || !p.total ||", "!ok ||", "./tokenize", "TestTiktokenNeedsAllOfTheText"},
	{"special tokens that begin alike", "tokenize/tiktoken.go", "if strings.HasPrefix(tokens[i].content, tokens[i-1].content) {", "if false {", "./tokenize", "TestTiktokenRefusals/special_tokens_that_begin_alike"},

	{"a name is looked up by each", "tokenize/pool.go", "if l := p.pending[model]; l != nil || anew {", "if l := p.pending[model]; anew {", "./tokenize", "TestPoolWaitsForALookup"},
	{"a name is looked up by each who waited", "tokenize/pool.go", "if l, err = p.known(model, anew); l != nil || err != nil {", "if false {", "./tokenize", "TestPoolWaitsForAPlace"},
	{"the most recently used tokenizer goes", "tokenize/pool.go", "f.used < oldest.used", "f.used > oldest.used", "./tokenize", "TestPoolMemory"},
	{"slow failures are tried again soon", "tokenize/pool.go", "min(max(failedFor, 10*took), failedForMost)", "failedFor", "./tokenize", "TestPoolFailures"},

	{"no slot is handed on", "tokenize/gate.go", "if g.line.Len() == 0 {", "if g.line.Len() >= 0 {", "./tokenize", "TestGateAgainstModel"},
	{"who gives up keeps its place", "tokenize/gate.go", "if err != nil {\n\t\tg.leave(v)\n", "if err != nil {\n", "./tokenize", "TestGateAgainstModel"},
	{"last come, first served", "tokenize/gate.go", "v.in, v.at = in, in.PushBack(v)", "v.in, v.at = in, in.PushFront(v)", "./tokenize", "TestGateAgainstModel"},
	{"long texts without bound", "tokenize/gate.go", "if g.begun > 0 && g.begun+v.size > g.maxBegun {", "if false {", "./tokenize", "TestGateAgainstModel"},
	{"long texts take the last room", "tokenize/gate.go", "(g.maxWaiting-g.waiting)/waitShare", "g.maxWaiting-g.waiting", "./tokenize", "TestGateRefuses"},

	{"a revision leads out of its folder", "tokenize/hub.go", "if !validRepo(repo) || !validRevision(revision) {", "if !validRepo(repo) {", "./tokenize", "TestHubFinds"},
	{"a ref leads out of its folder", "tokenize/hub.go", "if !validPart(commit) {", "if false {", "./tokenize", "TestHubFinds"},

	{"a body's model goes before the caller's", "body.go", "if r.Model == \"\" && r.Candidates == nil {", "if r.Candidates == nil {", ".", "TestBodiesOfOnePrompt"},
	{"a body's salt goes before the caller's", "body.go", "if r.Salt == \"\" {", "if true {", ".", "TestBodyScopes"},
	{"a body's salt is not heard", "body.go", "filled.Salt = body.Salt", "filled.Salt = \"\"", ".", "TestBodyScopes"},
	{"a chat gets a second BOS", "body.go", "text.Text, !asked.AddSpecial, base)", "text.Text, asked.AddSpecial, base)", ".", "TestBodiesOfOnePrompt"},
	{"a completion gets no BOS", "body.go", "body.Prompt, body.Tokens, !body.AddSpecial", "body.Prompt, body.Tokens, true", ".", "TestBodiesOfOnePrompt"},
	{"what cannot be scored is a bad request", "body.go", "if errors.Is(err, chat.ErrMalformed) || errors.Is(err, chat.ErrTemplate) {", "if true {", ".", "TestBodyErrors"},
	{"a chat's media stay where they are", "body.go", "sc.prompt = sc.expanded\n", "", ".", "TestBodyMedia"},
	{"rendered text gets a BOS", "scorer.go", "text, !rendered)", "text, true)", ".", "TestBodiesOfOnePrompt"},
	{"media of a chat without a length", "scorer.go", "case asked != nil && m.Length == 0:", "case false:", ".", "TestBodyMedia"},
	{"of equal keys the first counts", "tokenize/chat/json.go", "o.Set(key, v)\n", "if _, ok := o.Lookup(key); !ok {\n\t\t\to.Set(key, v)\n\t\t}\n", "./tokenize/chat", "TestJSON"},
	{"floats are read as integers", "tokenize/chat/json.go", "if d.at > whole {", "if d.at > whole && text[len(text)-1] != '0' {", "./tokenize/chat", "TestJSON"},
	{"bodies of any depth", "tokenize/chat/json.go", "d.depth > maxDepth {", "d.depth > 100*maxDepth {", "./tokenize/chat", "TestParseErrors"},
	{"values without bound", "tokenize/chat/json.go", "d.values > maxValues {", "false {", "./tokenize/chat", "TestParseCountsAllOfARequest"},
	{"long integers without bound", "tokenize/chat/json.go", "d.long > maxLong {", "false {", "./tokenize/chat", "TestParseCountsAllOfARequest"},
	{"arguments of calls count for themselves", "tokenize/chat/message.go", "args, err := n.decode(raw)", "args, err := decode(raw)", "./tokenize/chat", "TestParseCountsAllOfARequest"},
	{"tools of any length", "tokenize/chat/json.go", "d.at-from > maxTools {", "d.at < from {", "./tokenize/chat", "TestHostileTools"},
	{"arguments of calls stay strings", "tokenize/chat/message.go", "called.Set(\"arguments\", args)", "_ = args\n\tcalled.Set(\"arguments\", raw)", "./tokenize/chat", "TestShapes"},
	{"reasoning by its old name alone", "tokenize/chat/message.go", "[]string{\"reasoning\", \"reasoning_content\"}", "[]string{\"reasoning_content\"}", "./tokenize/chat", "TestShapes"},
	{"tools in the order of the client", "tokenize/chat/tools.go", "function.Set(\"name\", t.name)\n\tfunction.Set(\"description\", t.description)", "function.Set(\"description\", t.description)\n\tfunction.Set(\"name\", t.name)", "./tokenize/chat", "TestShapes"},
	{"the space behind the final message stays", "tokenize/chat/final.go", "return strings.TrimRightFunc(text[:at], isSpace), nil", "return text[:at], nil", "./tokenize/chat", "TestContinueFinal"},
	{"an odd role's parts are malformed", "tokenize/chat/message.go", "slices.Contains(roles, m.role) ||", "slices.Contains(roles, m.role) || true ||", "./tokenize/chat", "TestParseErrors"},
	{"the tools' template is not chosen", "tokenize/chat/template.go", "ok && tools && !m.single {", "ok && false {", "./tokenize/chat", "TestChoice"},
	{"a request's template is not its own", "tokenize/chat/template.go", "if c.template != \"\" {", "if false {", "./tokenize/chat", "TestOwnTemplate"},
	{"a request's template of any length", "tokenize/chat/template.go", "if len(source) > maxRequestTemplate {", "if false {", "./tokenize/chat", "TestStepsGrowWithMessages"},
	{"harmony is rendered", "tokenize/chat/template.go", "strings.Contains(source, \"<|channel|>\")", "false", "./tokenize/chat", "TestRefusals"},
	{"harmony is not recognised", "tokenize/chat/engine.go", "\"gpt_oss\":      \"harmony's (gpt-oss)\",", "", "./tokenize/chat", "TestOtherRenderers"},
	{"steps do not grow with messages", "tokenize/chat/template.go", "base+len(messages)*messageSteps+", "base+len(messages)*0+", "./tokenize/chat", "TestStepsGrowWithMessages"},
	{"a request's template has a model's steps", "tokenize/chat/template.go", "t.foreign = true", "", "./tokenize/chat", "TestStepsGrowWithMessages"},
	{"a failed check is forgotten", "tokenize/chat/chat.go", "m.refused.CompareAndSwap(nil, &err)", "_ = err", "./tokenize/chat", "TestRefuse"},
	{"a difference has no consequence", "tokenize/chat/chatcheck/chatcheck.go", "m.Refuse(fmt.Errorf(\"checking %s: %w\", c.name, difference))", "_ = difference", "./tokenize/chat/chatcheck", "TestCheck"},
	{"tokens are not compared", "tokenize/chat/chatcheck/chatcheck.go", "slices.Equal(got, want)", "slices.Equal(got, got)", "./tokenize/chat/chatcheck", "TestCheck"},
	{"an engine without chats is a verdict", "tokenize/chat/chatcheck/chatcheck.go", "if i == 0 && refused != \"\" {", "if i < 0 && refused != \"\" {", "./tokenize/chat/chatcheck", "TestCheckAgainstAnotherEngine"},
	{"media in any number", "tokenize/chat/media.go", "if len(media) < len(x.media) {", "if false {", "./tokenize/chat", "TestMedia"},
	{"media of models that place them otherwise", "tokenize/chat/media.go", "case !ok:", "case !ok && id > 0:", "./tokenize/chat", "TestMedia"},
	{"a turn earlier has the answer in it", "tokenize/chat/chat.go", "c.messages[:at], false, vars)", "c.messages[:at+1], false, vars)", "./tokenize/chat", "TestShared"},
	{"names without end", "tokenize/chat/models.go", "len(s.loads) >= maxModels {", "false {", "./tokenize/chat", "TestModelsBounds"},
	{"an error is for ever", "tokenize/chat/models.go", "now.Sub(l.ended) < retry", "true", "./tokenize/chat", "TestModelsBounds"},
	{"another's context ends a wait", "tokenize/chat/models.go", "if !ended(l.err) {", "if true {", "./tokenize/chat", "TestModelsWaitWithinContext"},

	{"a tag keeps the newline behind it", "internal/jinja/lex.go", "case strings.HasPrefix(rest, \"%}\\n\"):\n\t\treturn i + 3", "case false:\n\t\treturn i + 3", "./internal/jinja", "TestParse"},
	{"a comment keeps the newline behind it", "internal/jinja/lex.go", "case sign != '+' && strings.HasPrefix(l.source[l.pos:], \"\\n\"):", "case false:", "./internal/jinja", "TestParse"},
	{"a tag keeps the space before it in its line", "internal/jinja/lex.go", "case sign == 0 && lstrip:", "case false:", "./internal/jinja", "TestParse"},
	{"a plus strips a tag's line", "internal/jinja/lex.go", "case sign == 0 && lstrip:", "case lstrip:", "./internal/jinja", "TestParse"},
	{"a variable strips its line", "internal/jinja/lex.go", "sign, l.state != inVar)", "sign, true)", "./internal/jinja", "TestParse"},
	{"a tag behind a tag is first in its line", "internal/jinja/lex.go", "if line > 0 || start == 0 || l.source[start-1] == '\\n' {", "if true {", "./internal/jinja", "TestParse"},
	{"a minus strips spaces only", "internal/jinja/lex.go", "return strings.TrimRightFunc(text, isSpace)", "return strings.TrimRight(text, \" \")", "./internal/jinja", "TestParse"},
	{"a lone carriage return is no newline", "internal/jinja/lex.go", "\"\\r\\n\", \"\\n\", \"\\r\", \"\\n\")", "\"\\r\\n\", \"\\n\")", "./internal/jinja", "TestParse"},
	{"the last newline stays", "internal/jinja/parse.go", "strings.TrimSuffix(normalizeNewlines(source), \"\\n\")", "normalizeNewlines(source)", "./internal/jinja", "TestParse"},
	{"brackets do not hide the end of a tag", "internal/jinja/lex.go", "if len(l.brackets) > 0 {", "if false {", "./internal/jinja", "TestParse"},
	{"a raw block strips as a variable does", "internal/jinja/lex.go", "if text := l.strip(start, i, sign, true); text != \"\" {", "if text := l.strip(start, i, sign, false); text != \"\" {", "./internal/jinja", "TestParse"},
	{"a number behind a point is a float", "internal/jinja/lex.go", "if l.pos > 0 && l.source[l.pos-1] == '.' {", "if false {", "./internal/jinja", "TestParse"},
	{"an unknown escape loses its backslash", "internal/jinja/lex.go", "b.WriteByte('\\\\')\n\t\t\t\tb.WriteByte(c)", "b.WriteByte(c)", "./internal/jinja", "TestParse"},
	{"a backslash before a character beyond ASCII", "internal/jinja/lex.go", "b.WriteString(backslashReplace(r))", "b.WriteRune(r)", "./internal/jinja", "TestParse"},
	{"an escape of a surrogate is taken", "internal/jinja/lex.go", "case 0xd800 <= r && r < 0xe000:", "case false:", "./internal/jinja", "TestParseRefuses"},
	{"a name in another form is taken", "internal/jinja/lex.go", "if unicode.In(r, unicode.L, unicode.M, unicode.N) {", "if false {", "./internal/jinja", "TestParseRefuses"},
	{"an infinite number is taken", "internal/jinja/lex.go", "if err != nil || math.IsInf(f, 0) {", "if err != nil && !math.IsInf(f, 0) {", "./internal/jinja", "TestParseRefuses"},

	{"filters apply to what has a sign", "internal/jinja/parse.go", "on: p.unary(false)}", "on: p.unary(true)}", "./internal/jinja", "TestParse"},
	{"not binds before comparisons", "internal/jinja/parse.go", "return &notExpr{pos: p.next().at, on: p.not()}", "return &notExpr{pos: p.next().at, on: p.sum()}", "./internal/jinja", "TestParse"},
	{"a tilde binds as a plus", "internal/jinja/parse.go", "p.binary(p.concat, \"+\", \"-\")", "p.binary(p.product, \"+\", \"-\")", "./internal/jinja", "TestParse"},
	{"an inline if is no alternative", "internal/jinja/parse.go", "cond.els = p.expression()", "cond.els = p.or()", "./internal/jinja", "TestParse"},
	{"the condition of a for is an inline if", "internal/jinja/parse.go", "s.iter = p.tuple(tupleForm{noCond: true})", "s.iter = p.tuple(anyExpr)", "./internal/jinja", "TestParse"},
	{"the argument of a test takes filters", "internal/jinja/parse.go", "p.postfix(p.primary(false))}", "p.unary(true)}", "./internal/jinja", "TestParse"},
	{"a break in a macro within a loop", "internal/jinja/parse.go", "p.loops = 0\n\tbody, _ := p.block(end)", "body, _ := p.block(end)", "./internal/jinja", "TestParse"},
	{"a break outside of a loop", "internal/jinja/parse.go", "if t := p.next(); p.loops == 0 {", "if t := p.next(); p.loops < 0 {", "./internal/jinja", "TestParse"},
	{"an include is any unknown tag", "internal/jinja/parse.go", "case \"block\", \"extends\", \"include\",", "case \"block\", \"extends\",", "./internal/jinja", "TestParseRefuses"},
	{"arguments of Jinja2's own are passed", "internal/jinja/parse.go", "if slices.Contains(reservedArgs, arg.name) {", "if false {", "./internal/jinja", "TestParseRefuses"},
	{"templates nest without bound", "internal/jinja/parse.go", "if p.nesting++; p.nesting > maxNesting {", "if p.nesting++; p.nesting > 9*maxNesting {", "./internal/jinja", "TestParseLimits"},
	{"chains without bound", "internal/jinja/parse.go", "if *c++; *c > maxChain {", "if *c++; *c > 9*maxChain {", "./internal/jinja", "TestParseLimits"},
	{"an error has the place of what is around", "internal/jinja/eval.go", "if !errors.As(err, &e) || e.Line > 0 {", "if !errors.As(err, &e) {", "./internal/jinja", "TestErrorPlaces"},

	{"a store hides the value from around", "internal/jinja/symbols.go", "s.define(name, symbolLoad{kind: loadAlias, from: outer})", "s.define(name, symbolLoad{kind: loadMissing})", "./internal/jinja", "TestScopes"},
	{"what one branch stores the host has not", "internal/jinja/symbols.go", "l := symbolLoad{kind: loadContext, name: name}", "l := symbolLoad{kind: loadMissing}", "./internal/jinja", "TestScopes"},
	{"what one branch stores is not around", "internal/jinja/symbols.go", "\t\t\tl = symbolLoad{kind: loadAlias, from: outer}\n", "\t\t\t_ = outer\n", "./internal/jinja", "TestRules"},
	{"branches see each other's stores", "internal/jinja/symbols.go", "b.refs, b.loads, b.stores = maps.Clone(s.refs), maps.Clone(s.loads), maps.Clone(s.stores)", "b.refs, b.loads, b.stores = s.refs, s.loads, s.stores", "./internal/jinja", "TestScopes"},
	{"a variable outlives its scope", "internal/jinja/scope.go", "for _, slot := range s.clear {\n\t\tf.slots[slot] = missing", "for _, slot := range s.clear {\n\t\t_ = slot", "./internal/jinja", "TestScopes"},
	{"a scope begins with what it last held", "internal/jinja/scope.go", "case loadMissing:\n\t\t\tf.slots[l.slot] = missing", "case loadMissing:", "./internal/jinja", "TestRules"},
	{"a macro keeps the values of its time", "internal/jinja/macro.go", "return &macro{s, f}, m.alloc(32)", "return &macro{s, &frame{slices.Clone(f.slots), f.up}}, m.alloc(32)", "./internal/jinja", "TestScopes"},
	{"the values of a with see its variables", "internal/jinja/resolve.go", "r.expr(&st.values[i], s)", "r.expr(&st.values[i], inner)", "./internal/jinja", "TestScopes"},
	{"a default sees the parameters behind it", "internal/jinja/resolve.go", "r.unset[v] = l.kind == loadParam", "_, _ = v, l", "./internal/jinja", "TestRules"},
	{"a macro drops arguments", "internal/jinja/macro.go", "case len(list) > 0:", "case false:", "./internal/jinja", "TestScopes"},
	{"caller by position is none", "internal/jinja/macro.go", "foundCaller := c.isParam && given == len(c.params)", "foundCaller := false", "./internal/jinja", "TestScopes"},
	{"a break leaves no else", "internal/jinja/loop.go", "if err != nil || end == flowBreak {\n\t\t\treturn empty, err", "if err != nil || end == flowBreak {\n\t\t\treturn false, err", "./internal/jinja", "TestScopes"},
	{"a continued turn is a turn", "internal/jinja/loop.go", "if end == flowNext {\n\t\t\tempty = false", "if true {\n\t\t\tempty = false", "./internal/jinja", "TestScopes"},
	{"a recursive loop stays at its depth", "internal/jinja/loop.go", "m.recurse(up, st, v, depth+1)", "m.recurse(up, st, v, depth)", "./internal/jinja", "TestScopes"},
	{"changed compares with the first", "internal/jinja/loop.go", "\tl.changed = value\n", "\tif l.changed == missing {\n\t\tl.changed = value\n\t}\n", "./internal/jinja", "TestScopes"},
	{"the previous item is the current one", "internal/jinja/loop.go", "return l.before, true, nil", "return l.current, true, nil", "./internal/jinja", "TestScopes"},
	{"the first item has a previous one", "internal/jinja/loop.go", "if l.index0 == 0 {\n\t\t\treturn &Undefined", "if l.index0 < 0 {\n\t\t\treturn &Undefined", "./internal/jinja", "TestRules"},
	{"what was looked at is lost", "internal/jinja/loop.go", "v, ok, err := l.after, true, error(nil)\n\tif isMissing(v) {", "v, ok, err := l.after, true, error(nil)\n\tif true {", "./internal/jinja", "TestScopes"},
	{"the length is of what is left", "internal/jinja/loop.go", "l.length = len(rest) + l.index0 + 1", "l.length = len(rest)", "./internal/jinja", "TestScopes"},
	{"revindex counts from 0", "internal/jinja/loop.go", "n -= l.index0\n", "n -= l.index0 + 1\n", "./internal/jinja", "TestScopes"},
	{"cycle begins with the second", "internal/jinja/loop.go", "args.list[l.index0%len(args.list)]", "args.list[(l.index0+1)%len(args.list)]", "./internal/jinja", "TestScopes"},
	{"too many to unpack", "internal/jinja/exec.go", "case len(items) > n:", "case false:", "./internal/jinja", "TestScopes"},
	{"a chain compares with the first", "internal/jinja/eval.go", "\t\tleft = right\n", "\t\t_ = right\n", "./internal/jinja", "TestRules"},
	{"what is undefined equals nothing", "internal/jinja/eval.go", "return undefined || isMissing(x), nil", "return undefined && false, nil", "./internal/jinja", "TestScopes"},
	{"a loop over text is passed over", "internal/jinja/resolve.go", "return ok && on.name == name && constant", "return ok && on.name == name && (constant || true)", "./internal/jinja", "TestScopes"},
	{"what keys a dict is not compared exactly", "internal/jinja/dict.go", "case f != math.Trunc(f) || math.IsInf(f, 0):", "case true:", "./internal/jinja", "TestDictKeys"},
	{"a variable of a block that has ended", "internal/jinja/eval.go", "if e.ref.sure {", "if false {", "./internal/jinja", "TestUnsupportedAtRender"},
	{"a template changes a dict", "internal/jinja/exec.go", "return unsupported(\"a change of a dict\")", "return of.set(m, name, v)", "./internal/jinja", "TestUnsupportedAtRender"},
	{"attributes of what is no namespace are set late", "internal/jinja/exec.go", "if _, ok := (*f.variable(t.ref)).(*Namespace); !ok {", "if false {", "./internal/jinja", "TestErrorPlaces"},
	{"self is a variable", "internal/jinja/compile.go", "if r.undeclared(t.root.body, \"self\")[\"self\"] {", "if false {", "./internal/jinja", "TestUnsupportedAtCompile"},
	{"random is found when it is used", "internal/jinja/resolve_expr.go", "if refusedFilters[e.name] {", "if false {", "./internal/jinja", "TestUnsupportedAtCompile"},
	{"an unknown filter of a branch is found at once", "internal/jinja/resolve.go", "s.soft = true\n\t\tr.branch(st, s)", "r.branch(st, s)", "./internal/jinja", "TestErrorPlaces"},

	{"items go before a dict's methods", "internal/jinja/attr.go", "ok && !isDictAttr(name) && !strings.HasPrefix(name, \"_\") {", "ok && !strings.HasPrefix(name, \"_\") {", "./internal/jinja", "TestRecordedValues"},
	{"a dict's methods go before keys in brackets", "internal/jinja/attr.go", "if v, ok := obj.Lookup(name); ok {\n\t\t\treturn v, nil\n\t\t}\n\tcase *Undefined:\n\t\treturn nil, obj.fail()\n\t}\n\tv, ok, err", "if v, ok := obj.Lookup(name); ok && !isDictAttr(name) {\n\t\t\treturn v, nil\n\t\t}\n\tcase *Undefined:\n\t\treturn nil, obj.fail()\n\t}\n\tv, ok, err", "./internal/jinja", "TestRules"},
	{"a method that changes a list is not there", "internal/jinja/attr.go", "case listed(unsafeAttrs[class], name):", "case false:", "./internal/jinja", "TestUndefinedMessages"},
	{"a private attribute is not there", "internal/jinja/attr.go", "\tif has {\n", "\tif false {\n", "./internal/jinja", "TestUndefinedMessages"},
	{"a method that is not here is not there", "internal/jinja/attr.go", "case listed(unsupportedAttrs[class], name):", "case false:", "./internal/jinja", "TestUnsupportedAtRender"},
	{"a refused method gives None", "internal/jinja/strmethods.go", "return nil, unsupported(\"str.%s\", name)", "return nil, nil", "./internal/jinja", "TestUnsupportedAtRender"},
	{"a range of any length", "internal/jinja/globals.go", "if rangeLength(r) > maxRange {", "if false {", "./internal/jinja", "TestRules"},

	{"default replaces what is false", "internal/jinja/filters_seq.go", "if err != nil || !boolean {", "if err != nil || boolean {", "./internal/jinja", "TestRecordedFilters"},
	{"default without a default is undefined", "internal/jinja/filters_seq.go", "if isUndefined(v) {\n\t\treturn or(b[1], \"\"), nil", "if isUndefined(v) {\n\t\treturn or(b[1], v), nil", "./internal/jinja", "TestRecordedFilters"},
	{"join by a comma", "internal/jinja/filters_seq.go", "m.str(or(b[1], \"\"))", "m.str(or(b[1], \",\"))", "./internal/jinja", "TestRecordedFilters"},
	{"sort by case", "internal/jinja/filters_seq.go", "newGetter(attribute, def, !sensitive)", "newGetter(attribute, def, sensitive)", "./internal/jinja", "TestRecordedFilters"},
	{"equal elements lose their order", "internal/jinja/filters_seq.go", "slices.SortStableFunc(", "slices.SortFunc(", "./internal/jinja", "TestRules"},
	{"reverse turns equal elements round", "internal/jinja/filters_seq.go", "\t\tif reverse {\n\t\t\ta, b = b, a\n\t\t}\n\t\treturn m.less(\"<\", a, b)", "\t\tok, err := m.less(\"<\", a, b)\n\t\treturn ok != reverse, err", "./internal/jinja", "TestRules"},
	{"nan is sorted somehow", "internal/jinja/filters_seq.go", "} else if nan {", "} else if nan && err != nil {", "./internal/jinja", "TestUnsupportedAtRender"},
	{"a group has its name in lower case", "internal/jinja/filters_seq.go", "\tget.ignoreCase = false\n", "", "./internal/jinja", "TestRecordedFilters"},
	{"what is undefined has no default", "internal/jinja/filters.go", "if g.def != nil && isUndefined(v) {", "if false {", "./internal/jinja", "TestRecordedFilters"},
	{"digits of a path are names", "internal/jinja/filters.go", "if !isDigits(part) {", "if true {", "./internal/jinja", "TestRecordedFilters"},
	{"reject selects", "internal/jinja/filters_seq.go", "return item, ok == want, err", "return item, ok, err", "./internal/jinja", "TestRecordedFilters"},
	{"every slice is filled", "internal/jinja/filters_seq.go", "if fill != nil && !extra {", "if fill != nil {", "./internal/jinja", "TestRecordedFilters"},
	{"truncate has no leeway", "internal/jinja/filters_text.go", "\t\tmore = leeway\n", "\t\tmore = int64(0)\n", "./internal/jinja", "TestRecordedFilters"},
	{"truncate cuts words", "internal/jinja/filters_text.go", "if !killWords {", "if killWords {", "./internal/jinja", "TestRecordedFilters"},
	{"indent of empty lines", "internal/jinja/filters_text.go", "(blank || line != \"\") {", "(true || line != \"\") {", "./internal/jinja", "TestRules"},
	{"a hyphen begins no word", "internal/jinja/filters_text.go", "return c == '-' || c == '(' ||", "return c == '(' ||", "./internal/jinja", "TestRecordedFilters"},
	{"floats are rounded up from the middle", "internal/jinja/filters_number.go", "v = math.RoundToEven(f)", "v = math.Round(f)", "./internal/jinja", "TestRules"},

	{"items of JSON without spaces", "internal/jinja/tojson.go", "item: \", \", key: \": \"}", "item: \",\", key: \": \"}", "./internal/jinja", "TestRecordedFilters"},
	{"lines of JSON end in spaces", "internal/jinja/tojson.go", "\t\tw.item = \",\"\n", "", "./internal/jinja", "TestRecordedFilters"},
	{"JSON is ASCII unasked", "internal/jinja/tojson.go", "(c < 0x7f || !w.ascii) {", "c < 0x7f {", "./internal/jinja", "TestRecordedFilters"},
	{"JSON is never ASCII", "internal/jinja/tojson.go", "(c < 0x7f || !w.ascii) {", "true {", "./internal/jinja", "TestRecordedFilters"},
	{"half of a pair of surrogates", "internal/jinja/tojson.go", "r = 0xdc00 + r&0x3ff", "r = 0xdc00 + r&0x1ff", "./internal/jinja", "TestRules"},
	{"a form feed by its number", "internal/jinja/tojson.go", "\tcase '\\f':\n\t\treturn append(dst, '\\\\', 'f')\n", "", "./internal/jinja", "TestRecordedFilters"},
	{"keys of JSON unsorted", "internal/jinja/tojson.go", "\tif w.sorted {\n", "\tif false {\n", "./internal/jinja", "TestRecordedFilters"},
	{"an empty list of JSON takes two lines", "internal/jinja/tojson.go", "if len(items) == 0 {", "if false {", "./internal/jinja", "TestRecordedFilters"},
	{"indentation in half", "internal/jinja/tojson.go", "if err := w.value(values[i], level+1); err != nil {", "if err := w.value(values[i], level); err != nil {", "./internal/jinja", "TestRules"},
	{"what is undefined is no sequence", "internal/jinja/tests.go", "*Dict, *Range, *Undefined:\n\t\treturn true", "*Dict, *Range:\n\t\treturn true", "./internal/jinja", "TestRecordedFilters"},
	{"equal texts are one", "internal/jinja/tests.go", "return sure(v == other, v == \"\")", "return v == other, nil", "./internal/jinja", "TestUnsupportedAtRender"},

	{"white space behind the last piece", "internal/jinja/strmethods.go", "return s[:i], rest, rest != \"\"", "return s[:i], rest, true", "./internal/jinja", "TestRecordedValues"},
	{"chars are a prefix", "internal/jinja/strmethods.go", "is = newRuneSet(cut).has", "is = func(r rune) bool { return strings.HasPrefix(cut, string(r)) }", "./internal/jinja", "TestRules"},
	{"title of letters behind an apostrophe", "internal/jinja/strmethods.go", "within = charOf(r).is(charCased)", "within = r == '\\'' || charOf(r).is(charCased)", "./internal/jinja", "TestRecordedValues"},
	{"CRLF ends two lines", "internal/jinja/strmethods.go", "if strings.HasPrefix(s[i:], \"\\r\\n\") {", "if false {", "./internal/jinja", "TestRecordedValues"},
	{"a vertical tab ends no line", "internal/jinja/unicode.go", "case '\\n', '\\v', '\\f',", "case '\\n', '\\f',", "./internal/jinja", "TestRules"},
	{"center leans to the left", "internal/jinja/strmethods.go", "left = n/2 + n&width&1", "left = n / 2", "./internal/jinja", "TestRecordedValues"},
	{"zeros before a plus", "internal/jinja/strmethods.go", "(s[0] == '+' || s[0] == '-')", "s[0] == '-'", "./internal/jinja", "TestRules"},
	{"places in bytes", "internal/jinja/strmethods.go", "n, err := m.runes(s[:f.from+at])\n\t\t\treturn int64(n), err", "_, err := m.runes(s[:f.from+at])\n\t\t\treturn int64(f.from + at), err", "./internal/jinja", "TestRecordedValues"},
	{"the empty text behind the end", "internal/jinja/strmethods.go", "from == len(s) && i > utf8.RuneCountInString(s)}", "from == len(s) && i < 0}", "./internal/jinja", "TestRecordedValues"},
	{"rpartition puts the rest first", "internal/jinja/strmethods.go", "parts = []Value{\"\", \"\", s}", "parts = []Value{s, \"\", \"\"}", "./internal/jinja", "TestRecordedValues"},
	{"a sigma never ends a word", "internal/jinja/strmethods.go", "if r == capitalSigma && finalSigma(", "if false && finalSigma(", "./internal/jinja", "TestCodePoints/lower"},

	{"slices backwards end at the second", "internal/jinja/item.go", "lowest, highest = -1, n-1", "lowest, highest = 0, n-1", "./internal/jinja", "TestRecordedValues"},
	{"slices backwards count one more", "internal/jinja/item.go", "count = (from-to-1)/-by + 1", "count = (from-to)/-by + 1", "./internal/jinja", "TestRecordedValues"},
	{"items from the end are of bytes", "internal/jinja/item.go", "return \"\", raise(\"IndexError\", \"string index out of range\")", "return \"\", nil", "./internal/jinja", "TestRecordedValues"},
	{"steps of bytes", "internal/jinja/item.go", "if !isASCII(s) {\n\t\treturn m.sliceRunes", "if false {\n\t\treturn m.sliceRunes", "./internal/jinja", "TestRecordedValues"},

	{"a repr never has single quotes around double", "internal/jinja/repr.go", "strings.IndexByte(s, '\\'') >= 0 && strings.IndexByte(s, '\"') < 0 {", "strings.IndexByte(s, '\\'') >= 0 {", "./internal/jinja", "TestRecordedValues"},
	{"a tuple of one has no comma", "internal/jinja/repr.go", "\",)\")", "\")\")", "./internal/jinja", "TestRecordedValues"},
	{"floats have exponents from 1e15 on", "internal/jinja/repr.go", "abs >= 1e16", "abs >= 1e15", "./internal/jinja", "TestRecordedValues"},
	{"floats have exponents below 1e-5", "internal/jinja/repr.go", "abs < 1e-4", "abs < 1e-5", "./internal/jinja", "TestRecordedValues"},
	{"whole floats look like ints", "internal/jinja/repr.go", "return append(dst, \".0\"...)", "return dst", "./internal/jinja", "TestRecordedValues"},
	{"a repr escapes nothing beyond ASCII", "internal/jinja/repr.go", "if !charOf(r).is(charPrintable) {", "if false {", "./internal/jinja", "TestRecordedValues"},
	{"an int of any number of digits is printed", "internal/jinja/repr.go", "if len(strings.TrimPrefix(s, \"-\")) > maxDigits {", "if false {", "./internal/jinja", "TestRules"},

	{"division rounds to zero", "internal/jinja/arith.go", "if r != 0 && (r < 0) != (y < 0) {", "if false {", "./internal/jinja", "TestRecordedValues"},
	{"division of large ints rounds to zero", "internal/jinja/arith.go", "if r.Sign() != 0 && r.Sign() != y.Sign() {", "if false {", "./internal/jinja", "TestRecordedValues"},
	{"sums wrap around", "internal/jinja/arith.go", "return n, (n > x) == (y > 0)", "return n, true", "./internal/jinja", "TestRecordedValues"},
	{"a rest has the sign of the dividend", "internal/jinja/arith.go", "case (mod < 0) != (y < 0):", "case false:", "./internal/jinja", "TestRecordedValues"},
	{"Markup is not escaped", "internal/jinja/arith.go", "t, err = m.escape(b)", "_ = b", "./internal/jinja", "TestRules"},
	{"a power that may be rounded otherwise", "internal/jinja/power.go", "if g, _ := moved.Float64(); g != f {", "if g, _ := moved.Float64(); g != g {", "./internal/jinja", "TestUnsupportedAtRender"},
	{"nan is equal to nan", "internal/jinja/compare.go", "return compare(f, g), f == f && g == g, nil", "return compare(f, g), true, nil", "./internal/jinja", "TestRecordedValues"},
	{"ints are compared as floats", "internal/jinja/compare.go", "ok && i > -1<<53 && i < 1<<53 {", "ok {", "./internal/jinja", "TestRules"},
	{"the longer list is equal", "internal/jinja/compare.go", "return holds(op, compare(len(a), len(b))), nil", "return holds(op, 0), nil", "./internal/jinja", "TestRecordedValues"},
	{"nan of two containers is compared", "internal/jinja/compare.go", "if b, ok := b.(float64); ok && b != b {", "if b, ok := b.(float64); ok && b == a {", "./internal/jinja", "TestUnsupportedAtRender"},

	{"a negative width is none", "internal/jinja/percent.go", "if d.width = width; width < 0 {", "if d.width = width; false {", "./internal/jinja", "TestRecordedValues"},
	{"values are left", "internal/jinja/percent.go", "if len(p.args) > 0 && p.mapping == missing {", "if false {", "./internal/jinja", "TestRules"},
	{"zeros before the sign", "internal/jinja/percent.go", "s, err = p.m.padded(s, \"0\", n, 0)", "head, err = p.m.padded(head, \"0\", 0, n)\n\t\thead = strings.Repeat(\"0\", n) + head[:len(head)-n]", "./internal/jinja", "TestRecordedValues"},
	{"ints have no precision", "internal/jinja/percent.go", "if zeros := d.precision - len(digits); zeros > 0 {", "if zeros := d.precision - len(digits); zeros < 0 && false {", "./internal/jinja", "TestRecordedValues"},
	{"fields with and without numbers", "internal/jinja/format.go", "if f.manual {", "if false {", "./internal/jinja", "TestRecordedValues"},
	{"fields within fields without end", "internal/jinja/format.go", "f.format(nil, spec, depth-1)", "f.format(nil, spec, depth)", "./internal/jinja", "TestRecordedValues"},
	{"hexadecimal digits in groups of three", "internal/jinja/number.go", "\t\t\tf.group = 4\n", "", "./internal/jinja", "TestRecordedValues"},

	{"noon is 0 o'clock", "internal/jinja/strftime.go", "hour12 := (t.Hour()+11)%12 + 1", "hour12 := t.Hour() % 12", "./internal/jinja", "TestRules"},
	{"a day without its space", "internal/jinja/strftime.go", "return t.Day(), 2, '_', true", "return t.Day(), 2, '-', true", "./internal/jinja", "TestRecordedFilters"},
	{"the first week has no Monday", "internal/jinja/strftime.go", "return (t.YearDay() + 6 - monday) / 7, 2, '0', true", "return (t.YearDay() + 7 - monday) / 7, 2, '0', true", "./internal/jinja", "TestRules"},
	{"an unknown conversion is nothing", "internal/jinja/strftime.go", "\tdefault:\n\t\treturn \"\", false\n", "\tdefault:\n\t\treturn \"\", true\n", "./internal/jinja", "TestUnsupportedAtRender"},
	{"the host's clock is not read", "internal/jinja/globals.go", "if m.env.Now != nil {", "if false {", "./internal/jinja", "TestRecordedFilters"},

	{"steps without bound", "internal/jinja/machine.go", "return m.spend(stepParts * int64(n))", "return nil", "./internal/jinja", "TestOwnLimits"},
	{"to go through a text is no step", "internal/jinja/machine.go", "return m.spend(int64(n))", "return nil", "./internal/jinja", "TestHostilePrograms"},
	{"kinds of characters are bytes", "internal/jinja/machine.go", "return m.spend(64 * int64(n))", "return m.spend(int64(n))", "./internal/jinja", "TestOwnLimits"},
	{"to make a text is no step", "internal/jinja/machine.go", "\tm.work -= stepParts/2 + 2*int64(n)\n", "", "./internal/jinja", "TestOwnLimits"},
	{"turns of a loop are no steps", "internal/jinja/loop.go", "if err := m.step(1); err != nil {\n\t\treturn nil, false, err\n\t}\n\tswitch {", "switch {", "./internal/jinja", "TestLimits"},
	{"memory without bound", "internal/jinja/machine.go", "if m.work|m.memory|int64(n) < 0 {", "if m.work|int64(n) < 0 {", "./internal/jinja", "TestOwnLimits"},
	{"calls without bound", "internal/jinja/machine.go", "if m.depth == m.limits.Depth {", "if false {", "./internal/jinja", "TestOwnLimits"},
	{"output without bound", "internal/jinja/machine.go", "if len(m.out)+len(s) > m.limits.Output {", "if false {", "./internal/jinja", "TestOwnLimits"},
	{"printed values are no output", "internal/jinja/exec.go", "return m.write(\"\")", "return nil", "./internal/jinja", "TestOwnLimits"},
	{"a repr of any depth", "internal/jinja/repr.go", "if err := p.m.enter(); err != nil {\n\t\treturn err\n\t}\n\tdefer p.m.leave()\n", "", "./internal/jinja", "TestValueLimits"},
	{"JSON of any depth", "internal/jinja/tojson.go", "return w.write(\"[]\")\n\t}\n\tif err := w.m.enter(); err != nil {\n\t\treturn err\n\t}\n\tdefer w.m.leave()\n", "return w.write(\"[]\")\n\t}\n", "./internal/jinja", "TestFilterLimits"},
	{"generators of any depth", "internal/jinja/filters.go", "if err := m.enter(); err != nil {\n\t\t\treturn nil, false, err\n\t\t}\n\t\tdefer m.leave()\n", "", "./internal/jinja", "TestNestedGenerators"},
	{"escapes are free", "internal/jinja/markup.go", "if err := m.alloc(5 * len(s)); err != nil {", "if err := m.alloc(0); err != nil {", "./internal/jinja", "TestOwnLimits"},
	{"an error comes with half a text", "internal/jinja/compile.go", "if err != nil {\n\t\treturn dst, err\n\t}", "if err != nil {\n\t\treturn append(dst, m.out...), err\n\t}", "./internal/jinja", "TestRenderAppends"},

	{"every loop over content is of messages", "internal/jinja/contentformat.go", "return ok && f.messages[name]", "return ok && name != \"\"", "./internal/jinja", "TestWantsParts"},
	{"only the loop over messages counts", "internal/jinja/contentformat.go", "if !lists[to.name] {", "if false {", "./internal/jinja", "TestWantsParts"},
	{"a macro is given no content", "internal/jinja/contentformat.go", "if g.places[i] || g.names[p.name] {", "if g.places[i] && g.names[p.name] {", "./internal/jinja", "TestWantsParts"},

	{"half a pair of surrogates is a character", "tokenize/chat/json.go", "return 0, badField(\"\", \"a lone surrogate in a string, which no tokenizer takes\")", "return utf8.RuneError, nil", "./tokenize/chat", "TestJSON"},
	{"numbers without bound", "tokenize/chat/json.go", "if d.tokens++; d.tokens > maxTokens {", "if d.tokens++; false {", "./tokenize/chat", "TestJSON"},
	{"numbers of a schema are token ids", "tokenize/chat/json.go", "if d.depth > tokenDepth {", "if false {", "./tokenize/chat", "TestJSON"},
	{"an int of any length", "tokenize/chat/json.go", "if digits > maxDigits {", "if false {", "./tokenize/chat", "TestJSON"},
	{"leading zeros", "tokenize/chat/json.go", "if d.s[d.at] == '0' {", "if false {", "./tokenize/chat", "TestJSON"},
	{"more behind a request", "tokenize/chat/json.go", "if d.space(); d.at < len(s) {", "if d.space(); false {", "./tokenize/chat", "TestJSON"},

	{"special tokens around a chat", "tokenize/chat/request.go", "flag(o, \"add_special_tokens\", completion)", "flag(o, \"add_special_tokens\", true)", "./tokenize/chat", "TestParse"},
	{"no special tokens around a prompt", "tokenize/chat/request.go", "flag(o, \"add_special_tokens\", completion)", "flag(o, \"add_special_tokens\", false)", "./tokenize/chat", "TestParse"},
	{"a number is no boolean", "tokenize/chat/field.go", "\tcase float64:\n\t\tif v == 0 || v == 1 {", "\tcase float64:\n\t\tif false {", "./tokenize/chat", "TestParse"},
	{"an empty salt is none", "tokenize/chat/request.go", "if optional(o, \"cache_salt\") != nil && r.Salt == \"\" {", "if false {", "./tokenize/chat", "TestParseErrors"},
	{"a generation prompt behind the final message", "tokenize/chat/request.go", "if c.continueFinal && c.addGenerationPrompt {", "if false {", "./tokenize/chat", "TestParseErrors"},
	{"a chat with a prompt", "tokenize/chat/request.go", "case chat && completion:", "case false:", "./tokenize/chat", "TestParseErrors"},
	{"a truncated prompt is whole", "tokenize/chat/request.go", "[]string{\"truncate_prompt_tokens\", \"prompt_embeds\"}", "[]string{\"prompt_embeds\"}", "./tokenize/chat", "TestParseErrors"},
	{"a developer's tools are dropped", "tokenize/chat/message.go", "if optional(o, \"tools\") != nil {", "if false {", "./tokenize/chat", "TestParseErrors"},

	{"empty parts leave a line", "tokenize/chat/message.go", "if p.text == \"\" && !empties {", "if false {", "./tokenize/chat", "TestMessages"},
	{"parts are joined by a space", "tokenize/chat/message.go", "b.WriteByte('\\n')", "b.WriteByte(' ')", "./tokenize/chat", "TestMessages"},
	{"a tool's answer is in parts", "tokenize/chat/message.go", "if parts && (m.role != \"tool\" || !m.plain()) {", "if parts {", "./tokenize/chat", "TestShapes"},
	{"reasoning_content goes first", "tokenize/chat/message.go", "[]string{\"reasoning\", \"reasoning_content\"}", "[]string{\"reasoning_content\", \"reasoning\"}", "./tokenize/chat", "TestShapes"},
	{"reasoning by one name", "tokenize/chat/message.go", "d.Set(\"reasoning_content\", m.reasoning)", "", "./tokenize/chat", "TestShapes"},
	{"broken arguments are refused", "tokenize/chat/message.go", "if !errors.As(err, &syntax) {", "if true || !errors.As(err, &syntax) {", "./tokenize/chat", "TestMessages"},
	{"a tool call in the client's order", "tokenize/chat/message.go", "call := new(jinja.Dict)\n", "call := new(jinja.Dict)\n\tothers(call, o)\n", "./tokenize/chat", "TestShapes"},
	{"a tool call without its other fields", "tokenize/chat/message.go", "\tothers(call, o)\n", "", "./tokenize/chat", "TestShapes"},
	{"any name of a tool's answer is one", "tokenize/chat/message.go", "!ok || m.role == \"tool\" && id {", "!ok || id && false {", "./tokenize/chat", "TestMessages"},
	{"strict unset is there", "tokenize/chat/tools.go", "\tif t.strict != nil {\n", "\tif true {\n", "./tokenize/chat", "TestShapes"},
	{"a tool without its other fields", "tokenize/chat/tools.go", "\t\to.Set(f.name, f.value)\n", "\t\t_ = f\n", "./tokenize/chat", "TestShapes"},
	{"strict among other fields", "tokenize/chat/tools.go", "case t.nullStrict, t.strict != nil && t.strictAt > 0:", "case false:", "./tokenize/chat", "TestRefusals"},
	{"tools not chosen are taken away", "tokenize/chat/kwargs.go", "c.noTools && m.options.ExcludeTools {", "c.noTools {", "./tokenize/chat", "TestVariables"},
	{"tools not chosen stay", "tokenize/chat/kwargs.go", "c.noTools && m.options.ExcludeTools {", "false {", "./tokenize/chat", "TestVariables"},

	{"null takes the engine's kwargs away", "tokenize/chat/kwargs.go", "case !unset && (v == nil || v == \"auto\"):", "case !unset && v == \"auto\":", "./tokenize/chat", "TestVariables"},
	{"auto is a value", "tokenize/chat/kwargs.go", "case !unset && (v == nil || v == \"auto\"):", "case !unset && v == nil:", "./tokenize/chat", "TestVariables"},
	{"kwargs that are no variables", "tokenize/chat/kwargs.go", "case slices.Contains(refusedKwargs, name):", "case false:", "./tokenize/chat", "TestRefusals"},
	{"kwargs take the place of functions", "tokenize/chat/kwargs.go", "case slices.Contains(droppedKwargs, name), ", "case ", "./tokenize/chat", "TestVariables"},
	{"effort goes before thinking", "tokenize/chat/kwargs.go", "if _, ok := lookup(c.kwargs, \"enable_thinking\"); !ok {", "if true {", "./tokenize/chat", "TestVariables"},
	{"kwargs go before the generation prompt", "tokenize/chat/kwargs.go", "\tvars.Set(\"add_generation_prompt\", c.addGenerationPrompt)\n", "\tif _, ok := vars.Lookup(\"add_generation_prompt\"); !ok {\n\t\tvars.Set(\"add_generation_prompt\", c.addGenerationPrompt)\n\t}\n", "./tokenize/chat", "TestVariables"},
	{"kwargs go before documents", "tokenize/chat/kwargs.go", "if c.documents != nil {", "if _, ok := vars.Lookup(\"documents\"); !ok && c.documents != nil {", "./tokenize/chat", "TestVariables"},
	{"tools of kwargs may be anything", "tokenize/chat/kwargs.go", "if _, ok := item.(*jinja.Dict); !ok {", "if _, ok := item.(*jinja.Dict); !ok && item == nil {", "./tokenize/chat", "TestRefusals"},

	{"a final message of which the text has no more", "tokenize/chat/final.go", "at < 0 || !strings.Contains(text, strings.TrimFunc(final, isSpace)) {", "at < 0 {", "./tokenize/chat", "TestContinueFinal"},
	{"the first tag is the end", "tokenize/chat/final.go", "strings.LastIndex(text, tag)", "strings.Index(text, tag)", "./tokenize/chat", "TestContinueFinal"},
	{"space before the end is cut", "tokenize/chat/final.go", "if strings.HasPrefix(text[at:], finalTag) {", "if false {", "./tokenize/chat", "TestContinueFinal"},
	{"separators are no space", "tokenize/chat/final.go", "return unicode.IsSpace(r) || 0x1c <= r && r <= 0x1f", "return unicode.IsSpace(r)", "./tokenize/chat", "TestContinueFinal"},
	{"the first part is continued", "tokenize/chat/final.go", "for i := len(parts) - 1; i >= 0; i-- {", "for i := range parts {", "./tokenize/chat", "TestContinueParts"},
	{"system messages are always made one", "tokenize/chat/final.go", "misplaced = misplaced || i > 0", "misplaced = true", "./tokenize/chat", "TestMessages"},
	{"system messages are lines", "tokenize/chat/final.go", "strings.Join(system, \"\\n\\n\")", "strings.Join(system, \"\\n\")", "./tokenize/chat", "TestMessages"},
	{"a developer is always a system", "tokenize/chat/chat.go", "if developer && !t.developer {", "if developer {", "./tokenize/chat", "TestMessages"},

	{"the engine's template goes before a request's", "tokenize/chat/template.go", "if c.template != \"\" {", "if c.template != \"\" && m.given == nil {", "./tokenize/chat", "TestOwnTemplate"},
	{"the model's template goes before the engine's", "tokenize/chat/template.go", "if m.given != nil {", "if m.given != nil && len(m.named) == 0 {", "./tokenize/chat", "TestOwnTemplate"},
	{"a single template has a name", "tokenize/chat/template.go", "ok && !m.single {\n\t\t\treturn t, nil\n\t\t}\n\t\tt, err", "ok {\n\t\t\treturn t, nil\n\t\t}\n\t\tt, err", "./tokenize/chat", "TestOwnTemplate"},
	{"templates of requests are taken", "tokenize/chat/template.go", "if m.options.RefuseTemplates {", "if false {", "./tokenize/chat", "TestRefusals"},
	{"the processor's template for tools", "tokenize/chat/template.go", "if !tools && m.processor != nil {", "if m.processor != nil {", "./tokenize/chat", "TestChoice"},
	{"the template for tools without tools", "tokenize/chat/template.go", "m.named[toolTemplate]; ok && tools &&", "m.named[toolTemplate]; ok &&", "./tokenize/chat", "TestChoice"},
	{"files beside the config's templates", "tokenize/chat/load.go", "if len(sources) > 0 {", "if false {", "./tokenize/chat", "TestChoice"},
	{"templates of requests without bound", "tokenize/chat/template.go", "if len(c.oldest) == maxCached {", "if false {", "./tokenize/chat", "TestOwnTemplate"},
	{"the content format of the options is not heard", "tokenize/chat/template.go", "\tcase \"string\":\n\t\tt.parts = false\n", "", "./tokenize/chat", "TestMessages"},

	{"harmony is switched off", "tokenize/chat/engine.go", "(!usesTemplate || kind == \"gpt_oss\")", "!usesTemplate", "./tokenize/chat", "TestOtherRenderers"},
	{"architectures by their whole names", "tokenize/chat/engine.go", "strings.HasPrefix(a, o.architecture)", "strings.HasPrefix(o.architecture, a)", "./tokenize/chat", "TestOtherRenderers"},
	{"mistral-common is a template", "tokenize/chat/engine.go", "len(files) > 0 {", "len(files) < 0 {", "./tokenize/chat", "TestOtherRenderers"},
	{"code of the repository is not run", "tokenize/chat/load.go", "if optional(tokenizer, \"auto_map\") != nil {", "if false {", "./tokenize/chat", "TestSpecialTokens"},
	{"a special token that is not told is none", "tokenize/chat/load.go", "if !ok && !slices.Contains(plainTokenizers, class) && strings.Contains(templates, name) {", "if !ok && !slices.Contains(plainTokenizers, class) && name == \"\" {", "./tokenize/chat", "TestSpecialTokens"},
	{"special tokens of another file", "tokenize/chat/load.go", "older && strings.Contains(templates, \"_token\") {", "older && false {", "./tokenize/chat", "TestSpecialTokens"},

	{"any llava places its images so", "tokenize/chat/media.go", "case \"clip_vision_model\", \"siglip_vision_model\":", "default:", "./tokenize/chat", "TestMedia"},
	{"media of a text", "tokenize/chat/media.go", "\t\t\tcase !t.parts:\n", "\t\t\tcase false:\n", "./tokenize/chat", "TestMedia"},
	{"media with options", "tokenize/chat/media.go", "case c.mediaOptions != \"\":", "case false:", "./tokenize/chat", "TestMedia"},
	{"media more than parts", "tokenize/chat/media.go", "if len(x.media) != len(x.expands) {", "if len(x.media) < len(x.expands) {", "./tokenize/chat", "TestMedia"},
	{"media begin behind what was there", "tokenize/chat/media.go", "m.Offset = len(dst) - from", "m.Offset = len(dst)", "./tokenize/chat", "TestMedia"},
	{"a placeholder of nobody", "tokenize/chat/media.go", "if n == len(x.media) || x.expands[n] != token {", "if n == len(x.media) {\n\t\t\tdst = append(dst, token)\n\t\t\tcontinue\n\t\t}\n\t\tif x.expands[n] != token {", "./tokenize/chat", "TestMedia"},

	{"what is not scorable differs", "tokenize/chat/chatcheck/chatcheck.go", "case errors.Is(err, chat.ErrNotScorable):\n\t\treturn nil, nil", "case errors.Is(err, chat.ErrNotScorable):\n\t\treturn err, nil", "./tokenize/chat/chatcheck", "TestCheck"},
	{"what both refuse differs", "tokenize/chat/chatcheck/chatcheck.go", "case err != nil && refused != \"\":", "case false:", "./tokenize/chat/chatcheck", "TestCheck"},
	{"what the engine refuses is no difference", "tokenize/chat/chatcheck/chatcheck.go", "\tcase refused != \"\":\n", "\tcase refused != \"\":\n\t\treturn nil, nil\n\tcase false:\n", "./tokenize/chat/chatcheck", "TestCheck"},
	{"no tokens are a difference", "tokenize/chat/chatcheck/chatcheck.go", "if len(answer.Tokens) == 0 {", "if false {", "./tokenize/chat/chatcheck", "TestCheckUnreachable"},

	{"any message ends a turn", "tokenize/chat/chat.go", "c.messages[at].role != \"assistant\" {", "false {", "./tokenize/chat", "TestShared"},
	{"the final message ends the turn before", "tokenize/chat/chat.go", "at := len(c.messages) - 2", "at := len(c.messages) - 1", "./tokenize/chat", "TestShared"},
	{"the turn before had no generation prompt", "tokenize/chat/chat.go", "\tearlier.addGenerationPrompt = true\n", "", "./tokenize/chat", "TestShared"},
	{"texts part within a character", "tokenize/chat/chat.go", "for n > 0 && n < len(b) && b[n]&0xc0 == 0x80 {", "for n > 0 && n < len(b) && false {", "./tokenize/chat", "TestShared"},
	{"a limit is the template's refusal", "tokenize/chat/chat.go", "errors.Is(err, jinja.ErrUnsupported), errors.Is(err, jinja.ErrLimit):", "errors.Is(err, jinja.ErrUnsupported):", "./tokenize/chat", "TestRefusals"},

	{"errors are not remembered", "tokenize/chat/models.go", "now.Sub(l.ended) < retry)", "false)", "./tokenize/chat", "TestModelsBounds"},
	{"an error stands for a model's place", "tokenize/chat/models.go", "failed && worst.ended.IsZero() || failed == !worst.ended.IsZero() && l.used.Before(worst.used)", "failed && false || l.used.Before(worst.used)", "./tokenize/chat", "TestModelsKeepModels"},

	{"the body's model goes before candidates", "body.go", "if r.Model == \"\" && r.Candidates == nil {", "if r.Model == \"\" {", ".", "TestBodiesOfOnePrompt"},
	{"a completion is never rendered", "body.go", "body.Prompt, body.Tokens, !body.AddSpecial", "body.Prompt, body.Tokens, false", ".", "TestBodiesOfOnePrompt"},
	{"a body beside tokens", "body.go", "if r.Prompt != \"\" || len(r.Tokens) > 0 || r.Rendered {", "if r.Prompt != \"\" || r.Rendered {", ".", "TestBodyErrors"},
	{"a body that is rendered", "body.go", "if r.Prompt != \"\" || len(r.Tokens) > 0 || r.Rendered {", "if r.Prompt != \"\" || len(r.Tokens) > 0 {", ".", "TestBodyErrors"},
	{"what a template refuses is the host's fault", "body.go", "errors.Is(err, chat.ErrMalformed) || errors.Is(err, chat.ErrTemplate) {", "errors.Is(err, chat.ErrMalformed) {", ".", "TestBodyErrors"},
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
	var chosen []*trial
	for i, m := range mutants {
		if len(names) == 0 || slices.Contains(names, m.name) {
			chosen = append(chosen, &trial{mutant: m, n: i + 1, patience: time.Minute})
		}
	}
	if err := weaveAll(dir, chosen); err != nil {
		return err
	}
	var next, killed atomic.Int64
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for i := next.Add(1); int(i) <= len(chosen); i = next.Add(1) {
				t := chosen[i-1]
				switch dead, err := t.kill(dir); {
				case err != nil:
					fmt.Printf("%s (%s): %v\n", t.name, t.file, err)
				case dead:
					killed.Add(1)
				default:
					fmt.Printf("ALIVE: %s (%s): %s passes\n", t.name, t.file, t.test)
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

// trial is a mutant under its number, which tells it from the others.
type trial struct {
	mutant
	n        int
	woven    string        // the test binary that has it among others, if one has
	patience time.Duration // until a test that has not ended has failed: more than all those of its package take
}

// kill reports whether the mutant's test fails on it. It works in dir.
func (t *trial) kill(dir string) (bool, error) {
	bin := t.woven
	if bin == "" { // it is built alone
		src, err := t.apply()
		if err != nil {
			return false, err
		}
		bin = filepath.Join(dir, fmt.Sprintf("%d.test", t.n))
		defer os.Remove(bin)
		if err := build(bin, t.pkg, map[string][]byte{t.file: src}); err != nil {
			return false, err
		}
	}
	out, err := test(bin, t.pkg, t.n, t.pattern(), t.patience)
	if err == nil { // what must not happen for a while may come later on a busy machine
		out, err = test(bin, t.pkg, t.n, t.pattern(), t.patience)
	}
	switch text := string(out); {
	case err == nil && strings.Contains(text, "no tests to run"):
		return false, fmt.Errorf("there is no test %s", t.test)
	case err == nil:
		return false, nil
	case !strings.Contains(text, "--- FAIL: "+strings.SplitN(t.test, "/", 2)[0]) && !strings.Contains(text, "panic: "):
		return false, fmt.Errorf("%s did not run: %w\n%s", t.test, err, text)
	}
	return true, nil
}

// apply returns the broken file.
func (t *trial) apply() ([]byte, error) {
	src, err := os.ReadFile(t.file)
	if err != nil {
		return nil, err
	}
	if n := strings.Count(string(src), t.old); n != 1 {
		return nil, fmt.Errorf("%q stands there %d times", t.old, n)
	}
	return []byte(strings.Replace(string(src), t.old, t.new, 1)), nil
}

// pattern matches each part of the test's name whole, so that the mutant does
// not die for another.
func (t *trial) pattern() string {
	return "^" + strings.ReplaceAll(t.test, "/", "$/^") + "$"
}

// build makes the test binary of a package in which files, some perhaps new, are
// other ones.
func build(bin, pkg string, files map[string][]byte) error {
	overlay := struct{ Replace map[string]string }{make(map[string]string)}
	for file, src := range files {
		abs, err := filepath.Abs(file)
		if err != nil {
			return err
		}
		shown := fmt.Sprintf("%s.%d.go", bin, len(overlay.Replace))
		defer os.Remove(shown)
		if err := os.WriteFile(shown, src, 0o600); err != nil {
			return err
		}
		overlay.Replace[abs] = shown
	}
	list, err := json.Marshal(overlay)
	if err != nil {
		return err
	}
	if err := os.WriteFile(bin+".json", list, 0o600); err != nil {
		return err
	}
	defer os.Remove(bin + ".json")
	out, err := exec.Command("go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", bin+".json", "-o", bin, pkg).CombinedOutput()
	if err != nil {
		return fmt.Errorf("does not build: %w\n%s", err, out)
	}
	return nil
}

// test runs tests of a binary on mutant n, or with none if n is 0.
func test(bin, pkg string, n int, pattern string, timeout time.Duration) ([]byte, error) {
	// Behind the binary's own timeout, which says where it hung.
	ctx, cancel := context.WithTimeout(context.Background(), timeout+10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, "-test.failfast", "-test.paniconexit0", "-test.timeout", timeout.String(), "-test.run", pattern)
	if pkg == "./events" {
		cmd.Args = append(cmd.Args, "-test.short") // its tests then wait less for what will not come
	}
	cmd.Dir = pkg
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", chosenEnv, n))
	cmd.WaitDelay = 10 * time.Second // for what it started
	return cmd.CombinedOutput()
}
