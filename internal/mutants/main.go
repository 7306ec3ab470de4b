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
	{"set for count", "index/source.go", "b.copies++", "b.copies = 1", "./index", "TestMemory/CopiesExact"},
	{"one copy less", "index/source.go", "left := b.copies - 1", "left := b.copies", "./index", "TestMemory/CopiesExact"},
	{"report counted", "index/source.go", "report := c.Reused || guarded && !c.HasParent &&", "report := c.Reused || false &&", "./index", "TestMemory/CopiesGuardedTakesARepeatFromTheRootForAReport"},
	{"mixed store taken for a report", "index/source.go", "s.allSeen(hashes, g))", "true)", "./index", "TestMemory/CopiesGuardedCountsARepeatWithANewBlock"},
	{"reused counted", "index/source.go", "report := c.Reused ||", "report :=", "./index", "TestMemory/ReusedNeverCounts"},
	{"remaining ignored", "index/source.go", "case c.Remaining != nil:", "case false:", "./index", "TestMemory/RemainingSetsTheCount"},
	{"sparse repeats counted", "index/source.go", "case report || guarded && !full:", "case report:", "./index", "TestMemory/CopiesGuardedNeverCountsRepeatsInSparseGroups"},
	{"nothing restored", "index/source.go", "if guarded && full && c.HasParent {", "if false {", "./index", "TestMemory/AChildRestoresWhatAReportHid"},
	{"lower tiers counted", "index/source.go", "case c.Tier != TierGPU || c.Copies == CopiesSet:", "case c.Copies == CopiesSet:", "./index", "TestMemory/LowerTiersAreSets"},
	{"orphan at the root", "index/source.go", "			return false\n		}\n	}\n	s.nameRange(", "			prev = c.Root\n		}\n	}\n	s.nameRange(", "./index", "TestMemory/AParkedStoreNeverLandsAtTheWrongDepth"},
	{"no unpark", "index/source.go", "if b == nil || b.copies == 0 {\n			s.counts.UnknownRemove++", "if b == nil || b.copies == 0 || len(n.keys) == 0 {\n			s.counts.UnknownRemove++", "./index", "TestMemory/ARemovalUnparks"},
	{"orphans never join", "index/source.go", "for ok && len(s.waiting[at]) > 0 {", "for false && ok {", "./index", "TestMemory/AnUnknownParentParks"},
	{"a clear keeps blocks", "index/source.go", "	case OpClear:\n		s.clear()", "	case OpClear:", "./index", "TestMemory/ClearedEmptiesEveryTierAndGroup"},
	{"parked without bound", "index/source.go", "for s.pendingBytes > s.cfg.PendingBytes {", "for false {", "./index", "TestMemory/PendingBound"},
	{"names without bound", "index/source.go", "for s.idle.Len() > s.cfg.IdleNames {", "for false {", "./index", "TestMemory/NamesBound"},
	{"names die with their blocks", "index/source.go", "case len(n.keys) == 0:", "case true:", "./index", "TestMemory/TierAfterEviction"},
	{"ambiguous hash keeps one", "index/source.go", "case ambiguous:", "case false:", "./index", "TestMemory/AmbiguousHashes"},
	{"child of an ambiguous hash placed", "index/source.go", "			return 0, false // ambiguous", "			return key, true", "./index", "TestMemory/AmbiguousHashes"},
	{"a tier's word names", "index/source.go", "parked := dense && c.Tier == TierGPU && !s.place(c, sh)", "parked := dense && !s.place(c, sh)", "./index", "TestMemory/TheWordOfALowerTierNamesNothing"},
	{"a forgotten copy does not matter", "index/source.go", "s.lossy = s.lossy || len(n.held) > 0", "s.lossy = false", "./index", "TestMemory/ForgottenThenReported"},
	{"an ambiguous removal does not matter", "index/source.go", "s.lossy = s.lossy || b.copies > 1 || b.reported", "s.lossy = false", "./index", "TestMemory/AfterAnAmbiguousRemovalNoReportIsCounted"},
	{"reports add to sparse groups", "index/source.go", "if guarded && !full && !c.HasParent && s.anyHeld(hashes, g) {", "if false {", "./index", "TestMemory/AReportAddsNothingToSparseGroups"},
	{"hole skipped", "index/match.go", "any = any && tiers != 0", "any = tiers != 0 || i > 0", "./index", "TestMemory/HolesAreExact"},
	{"block sizes mixed", "index/match.go", "(b.shape == sh || b.shape == (shape{}) && sh == g.shape)", "true", "./index", "TestMemory/Random"},
	{"groups mixed", "index/match.go", "b.group == g && b.copies > 0", "b.copies > 0", "./index", "TestMemory/GroupsShareNames"},
	{"cursor ignored", "index/source.go", "ok && !old.Before(cur)", "ok && false", "./index", "TestMemory/CursorsMakeRepeatsANoOp"},
	{"invalid change applied", "index/memory.go", "err := changes[i].Validate(); err != nil", "err := changes[i].Validate(); err != nil && i > len(changes)", "./index", "TestMemory/AnInvalidChangeAppliesNothing"},

	{"no length-1 cap", "scorer.go", "(promptTokens-1)/size", "promptTokens/size", ".", "TestCachedTokens"},
	{"window group stands for the full one", "scorer.go", "|| row.Group.Kind != index.GroupFull && row.FullGroups > 0", "", ".", "TestHybridIsAnUpperBound"},
	{"one full group is enough", "scorer.go", "if row.FullGroups > 1 &&", "if false &&", ".", "TestSeveralFullGroups"},
	{"model ignored", "ingest.go", "src := index.Source{Pod: podID, Model: model, Rank: b.Rank}", "src := index.Source{Pod: podID, Model: \"m\", Rank: b.Rank}", ".", "TestScopes"},
	{"rank ignored", "ingest.go", "src := index.Source{Pod: podID, Model: model, Rank: b.Rank}", "src := index.Source{Pod: podID, Model: model}", ".", "TestScopes"},
	{"salt ignored", "hashing.go", "{s.model, s.adapter, s.salt}", "{s.model, s.adapter}", ".", "TestScopes"},
	{"seed ignored", "hashing.go", "xxh3.HashSeed(full, h.localSeed)", "xxh3.Hash(full)", ".", "TestScopesSeparate"},
	{"root of its own for each block", "convert.go", "HasParent: e.HasParent,", "HasParent: false,", ".", "TestScopes"},
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

func run(names []string) error {
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	killed, alive := 0, 0
	for _, m := range mutants {
		if len(names) > 0 && !slices.Contains(names, m.name) {
			continue
		}
		dead, err := m.kill(dir)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		if dead {
			killed++
			continue
		}
		alive++
		fmt.Printf("ALIVE: %s (%s): %s passes\n", m.name, m.file, m.test)
	}
	fmt.Printf("%d of %d mutants killed\n", killed, killed+alive)
	if alive > 0 || killed == 0 {
		return fmt.Errorf("%d mutants live", alive)
	}
	return nil
}

// kill reports whether the mutant's test fails on it.
func (m mutant) kill(dir string) (bool, error) {
	src, err := os.ReadFile(m.file)
	if err != nil {
		return false, err
	}
	if n := strings.Count(string(src), m.old); n != 1 {
		return false, fmt.Errorf("%q stands %d times in %s", m.old, n, m.file)
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
	out, err := exec.Command("go", "test", "-count=1", "-vet=off", "-overlay", list, "-run", exact, "-timeout", "120s", m.pkg).CombinedOutput()
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
