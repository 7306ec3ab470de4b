package hub_test

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvindex/kvindex/tokenize/hub"
)

var schedules = flag.Int("hub.n", 100, "random schedules of TestSchedules, and 20 times the kills of TestKilled; long form: 2000, from which on each fault must come 50 times")

// faultsOf are the faults of each kind of answer.
var faultsOf = map[string][]string{
	"list": {"gated", "401", "403", "no repo", "no revision", "429", "500", "503", "html", "no json", "gzip", "cut", "shorter", "longer", "slow", "other bytes"},
	"head": {"gated", "401", "403", "no entry", "429", "500", "503", "bad etag", "other commit", "moves"},
	"get":  {"403", "416", "429", "500", "503", "cut", "slow", "longer", "shorter", "other bytes", "gzip", "no range", "moves"},
	"cdn":  {"403", "416", "429", "500", "503", "cut", "slow", "longer", "shorter", "other bytes", "gzip", "no range", "moves"},
	"disk": {"create", "write", "sync", "rename", "link", "lock", "no link", "no lock"},
}

// A schedule is a hub with three commits, a cache and a client. Each step may fail.
type schedule struct {
	t       *testing.T
	r       *rand.Rand // of the test's own goroutine
	faults  *rand.Rand // of requests, some of which outlive their step
	hub     *fakeHub
	client  *hub.Client
	dir     string
	repo    string
	commits map[string]files
	now     time.Time
	p       float64        // probability of a fault
	counts  map[string]int // of faults
	found   string         // by the last Find
	mu      sync.Mutex     // guards faults, p and counts
}

// TestSchedules: a found snapshot has all files of one commit, and a failure changes nothing. In
// the end, without faults, everything is found.
func TestSchedules(t *testing.T) {
	counts := map[string]int{}
	fake := newFake(t)
	fake.token = "hf_secret"
	found, failed := 0, 0
	n := *schedules
	if testing.Short() {
		n /= 4
	}
	for seed := range n {
		s := &schedule{t: t, r: rand.New(rand.NewPCG(uint64(seed), 1)), faults: rand.New(rand.NewPCG(uint64(seed), 2)), hub: fake, dir: t.TempDir(), commits: map[string]files{}, now: time.Now(), counts: counts}
		s.begin(seed)
		for range 1 + s.r.IntN(9) {
			if s.step() {
				found++
			} else {
				failed++
			}
		}
		s.end()
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if found == 0 || failed == 0 {
		t.Errorf("%d steps found something, %d failed", found, failed)
	}
	least := 0 // few schedules have few faults
	if *schedules >= 2000 {
		least = *schedules / 100
	}
	for kind, faults := range faultsOf {
		for _, f := range faults {
			if n := counts[kind+" "+f]; n < least {
				t.Errorf("%s %s: %d times in %d schedules, want %d", kind, f, n, *schedules, least)
			}
		}
	}
	if len(fake.leaked) > 0 {
		t.Errorf("the second host saw a token: %q", fake.leaked[0])
	}
	t.Logf("%d steps found a snapshot, %d failed", found, failed)
}

// chance is true with probability p.
func (s *schedule) chance(p float64) bool { return s.r.Float64() < p }

func (s *schedule) begin(seed int) {
	h := s.hub
	repo := fmt.Sprintf("org/m%d", seed)
	s.repo = repo
	for _, version := range []string{"1", "2", "3"} {
		f := files{"tokenizer.json": strings.Repeat(fmt.Sprint(version, seed), s.r.IntN(200)), "weights.safetensors": "weights"}
		for name, content := range whole(version) {
			if s.chance(0.4) {
				f[name] = content
			}
		}
		s.commits[h.commit(repo, "main", f)] = f
	}
	h.mu.Lock()
	h.plain = s.chance(0.2)
	clear(h.moved)
	name := repo
	if s.chance(0.2) {
		name = fmt.Sprintf("org/old%d", seed)
		h.moved[name] = repo
	}
	h.fault = func(kind string) string { return s.fault(kind, repo) }
	h.mu.Unlock()
	s.client = h.client(s.dir)
	s.client.Repo = func(string) (string, string, bool) { return name, "main", true }
	s.client.SetStall(10 * time.Millisecond)
	s.client.SetNow(func() time.Time { return s.now })
	noLinks, noLocks := s.chance(0.1), s.chance(0.1)
	s.client.SetFault(func(op, path string) error {
		switch {
		case op == "link" && noLinks, op == "lock" && noLocks:
			s.count("disk no " + op)
			return syscall.ENOTSUP
		case s.fault("disk", op) == op:
			return syscall.ENOSPC
		}
		return nil
	})
}

func (s *schedule) count(fault string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[fault]++
}

// fault chooses the fault of an answer or of a disk operation. For an answer the fake is locked.
func (s *schedule) fault(kind, what string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Early faults hide later ones.
	if s.faults.Float64() >= s.p*map[string]float64{"list": 0.6, "head": 0.45, "get": 1.2, "cdn": 1.8, "disk": 0.15}[kind] {
		return ""
	}
	f := what
	if kind != "disk" {
		all := faultsOf[kind]
		f = all[s.faults.IntN(len(all))]
	}
	s.counts[kind+" "+f]++
	if f == "moves" {
		s.move(what, s.faults)
	}
	return f
}

// move sets the revision to a random commit. The fake must be locked.
func (s *schedule) move(repo string, r *rand.Rand) {
	all := slices.Sorted(maps.Keys(s.commits))
	s.hub.refs[repo+"@main"] = all[r.IntN(len(all))]
}

func (s *schedule) setP(p float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.p = p
}

// step finds or updates, and reports success.
func (s *schedule) step() bool {
	s.now = s.now.Add(2 * time.Hour) // cached errors have expired
	s.setP([]float64{0.02, 0.1, 0.3, 0.7}[s.r.IntN(4)])
	update := s.chance(0.6)
	s.hub.mu.Lock()
	s.move(s.repo, s.r)
	s.hub.mu.Unlock()
	var err error
	if update {
		_, err = s.client.Update(s.t.Context(), "m")
		s.setP(0)
	}
	dir := ""
	if err == nil {
		dir, err = s.client.Find(s.t.Context(), "m")
	}
	s.setP(0)
	if err == nil {
		s.right(dir)
		if s.found != "" && !update && dir != s.found {
			s.t.Errorf("Find moved from %s to %s", s.found, dir)
		}
		s.found = dir
	}
	// An offline process finds the same.
	off := &hub.Client{Repo: s.client.Repo, Dir: s.dir, Offline: true}
	switch got, failed := off.Find(s.t.Context(), "m"); {
	case s.found != "" && (failed != nil || got != s.found):
		s.t.Errorf("%v, and then offline %q, %v, want %q", err, got, failed, s.found)
	case s.found == "" && failed == nil:
		s.right(got)
		s.found = got
	}
	return err == nil
}

// right checks that a folder has all needed files of its commit.
func (s *schedule) right(dir string) {
	f, ok := s.commits[filepath.Base(dir)]
	if !ok {
		s.t.Errorf("a snapshot %s of no commit", dir)
	}
	if err := check(dir, f); err != nil {
		s.t.Errorf("%s: %v", dir, err)
	}
}

func (s *schedule) end() {
	s.now = s.now.Add(2 * time.Hour)
	s.client.SetStall(0)
	_, err := s.client.Update(s.t.Context(), "m")
	dir, err2 := s.client.Find(s.t.Context(), "m")
	if err := errors.Join(err, err2); err != nil {
		s.t.Error(err)
		return
	}
	s.right(dir)
	if s.found != "" {
		s.right(s.found)
	}
}
