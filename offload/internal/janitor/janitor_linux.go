package janitor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvindex/kvindex/offload/internal/queues"
)

// Settings are those of a Janitor. One bound at least has to be set, unless Unbounded.
type Settings struct {
	Root      string
	Unbounded bool // without a bound and Temporary: it reports, and deletes nothing

	Bytes    int64         // sum of the sizes of all files; the janitor keeps it below 19/20 of that; 0: no bound
	DiskHigh float64       // share of the file system that is in use, from 0 to 1, at which deletion begins; 0: no bound
	DiskLow  float64       // and ends
	MaxAge   time.Duration // since the last use, in the order FIFO since the last write; 0: no bound
	MinAge   time.Duration // since the last write: no younger file is deleted; 0: a minute
	Order    Order         // empty: LRU

	Temporary time.Duration // since the last write, of files that a writer left; 0: they stay
	NoInotify bool          // as on a network file system: only scans find changes
	Rescan    time.Duration // between scans where inotify cannot see; 0: a minute. Ten times as long where it can
	Tick      time.Duration // between looks at the disk and at ages; 0: a second

	Sink func(changes []Change) // gets the blocks in order, from one goroutine; nil: nobody does
	Log  *slog.Logger           // nil: slog.Default
	Now  func() time.Time       // nil: time.Now
}

// Change reports that a block is stored or removed.
type Change struct {
	Stored bool
	Space  *Space // valid during the call
	Group  int
	Hash   []byte
}

func (s *Settings) validate() error {
	if s.MinAge == 0 {
		s.MinAge = time.Minute
	}
	if s.Order == "" {
		s.Order = LRU
	}
	if s.Rescan == 0 {
		s.Rescan = time.Minute
	}
	if s.Tick == 0 {
		s.Tick = time.Second
	}
	if s.Log == nil {
		s.Log = slog.Default()
	}
	if s.Now == nil {
		s.Now = time.Now
	}
	var errs []error
	if s.Root == "" {
		errs = append(errs, errors.New("no root"))
	}
	if s.Bytes < 0 || s.MaxAge < 0 || s.MinAge < 0 || s.Temporary < 0 || s.Rescan < 0 || s.Tick < 0 {
		errs = append(errs, errors.New("a bound or a time is below zero"))
	}
	if !(0 <= s.DiskLow && s.DiskLow <= s.DiskHigh && s.DiskHigh <= 1) || s.DiskHigh > 0 && s.DiskLow == 0 { // NaN neither
		errs = append(errs, fmt.Errorf("the marks of the disk are %g and %g, not 0 < low <= high <= 1", s.DiskLow, s.DiskHigh))
	}
	if s.MaxAge > 0 && s.MaxAge < s.MinAge {
		errs = append(errs, fmt.Errorf("the oldest age is %s, below the youngest of %s", s.MaxAge, s.MinAge))
	}
	if s.Order != LRU && s.Order != FIFO && s.Order != S3FIFO {
		errs = append(errs, fmt.Errorf("the order is %q, not %q, %q or %q", s.Order, LRU, FIFO, S3FIFO))
	}
	switch bounded := s.Bytes != 0 || s.DiskHigh != 0 || s.MaxAge != 0; {
	case !bounded && !s.Unbounded:
		errs = append(errs, errors.New("no bound: set -bytes, -disk-high or -max-age, or -watch to delete nothing"))
	case s.Unbounded && (bounded || s.Temporary != 0):
		errs = append(errs, errors.New("-watch deletes nothing: it goes with none of -bytes, -disk-high, -max-age and -temporary"))
	}
	return errors.Join(errs...)
}

// Stats has the figures and counters of a Janitor.
type Stats struct {
	Bytes        int64 // of all files
	Blocks       int64 // that are complete
	Incomplete   int64 // that lack the file of a rank
	Left         int64 // folders that are left alone
	Deleted      int64 // blocks that the janitor deleted
	DeletedBytes int64
	Temporary    int64 // files of writers that it deleted
	Gone         int64 // blocks that others deleted
	Spared       int64 // blocks that were first to go, and had been read or written since
	Errors       int64 // files and folders that could not be read or deleted
	Scans        int64
	Overflows    int64 // of inotify
	ScanSeconds  float64
	DiskUsed     float64 // share of the file system
	Over         bool    // a bound is not kept, and no block is old enough to go
	Ready        bool    // the first scan has ended
	Waiting      bool    // another janitor has the root
	Blind        string  // why inotify does not see all; empty: it does
	Unread       string  // why reads are not noticed; empty: they are
}

type counts struct {
	deleted, deletedBytes, temporary, gone, spared, errors, scans, overflows int64
}

// Janitor keeps one root. Run has one goroutine; Stats may be called by any.
type Janitor struct {
	cfg  Settings
	log  *slog.Logger
	root int // file

	table  *table
	spaces map[string]*Space
	list   []*Space // by number

	watches   *watches
	unwatched error // why there are none
	unread    error // why reads are not noticed
	looking   bool  // by Look: nothing is changed

	scanning *scan
	scans    scans

	complete int64 // blocks that were reported as stored
	changes  []Change
	count    counts
	disk     disk
	wanting  bool // nothing is old enough to go
	logged   map[string]time.Time

	mu    sync.Mutex // guards stats
	stats Stats
}

// disk is the file system of a root.
type disk struct {
	used float64 // share
	over int64   // bytes that have to go for it
}

// scans has the times of scans, and whether one is due.
type scans struct {
	begun  time.Time
	during map[event]struct{} // what changed since begun, while a scan runs
	last   time.Time          // that a scan ended
	took   time.Duration
	again  bool // a scan is due
}

// Open opens a root. It changes nothing there.
func Open(cfg Settings) (*Janitor, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("janitor: %w", err)
	}
	root, err := unix.Open(cfg.Root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("janitor: %s: %w", cfg.Root, err)
	}
	return &Janitor{
		cfg: cfg, log: cfg.Log.With("root", cfg.Root), root: root, table: newTable(cfg.Order, cfg.MinAge), spaces: map[string]*Space{},
		unwatched: errors.New("inotify is off"), logged: map[string]time.Time{},
	}, nil
}

// Close ends a Janitor that does not run.
func (j *Janitor) Close() error { return unix.Close(j.root) }

// lock takes the root, for which it waits while another janitor has it. The kernel gives a
// lock back when its process ends.
func (j *Janitor) lock(ctx context.Context) (unlock func(), err error) {
	fd, err := unix.Openat(j.root, lockName, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("janitor: %s/%s: %w", j.cfg.Root, lockName, err)
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for waits := false; ; waits = true {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { unix.Close(fd) }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			unix.Close(fd)
			return nil, fmt.Errorf("janitor: flock of %s/%s: %w", j.cfg.Root, lockName, err)
		}
		if !waits {
			j.log.Info("another janitor has the root: waiting")
			j.publish(func(s *Stats) { s.Waiting = true })
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			unix.Close(fd)
			return nil, ctx.Err()
		}
	}
}

const lockName = ".kvoffload-lock"

// Run keeps the root until ctx ends, and returns the error of ctx, or one that keeps it from
// doing so.
func (j *Janitor) Run(ctx context.Context) error {
	unlock, err := j.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	j.publish(func(s *Stats) { s.Waiting = false })
	j.probe()
	network, err := isNetwork(j.root)
	if err != nil {
		return fmt.Errorf("janitor: statfs of %s: %w", j.cfg.Root, err)
	}
	var events chan []event
	switch {
	case network:
		j.unwatched = errors.New("a network file system")
	case !j.cfg.NoInotify:
		if j.watches, err = newWatches(); err != nil {
			j.unwatched = err
			break
		}
		events = j.watches.events
		go j.watches.run()
		defer func() {
			j.watches.file.Close()
			for range events { // until run has ended
			}
		}()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		if j.scanning != nil {
			for range j.scanning.files { // until its goroutines have ended
			}
		}
	}()
	if err := j.beginScan(ctx.Done()); err != nil {
		return err
	}
	tick := time.NewTicker(j.cfg.Tick)
	defer tick.Stop()
	ready := make(chan struct{})
	close(ready)
	for more := false; ; {
		var at chan struct{}
		if more {
			at = ready
		}
		var files chan []foundFile
		if j.scanning != nil {
			files = j.scanning.files
		}
		select {
		case found, ok := <-files:
			if ok {
				j.apply(found)
			} else {
				j.endScan()
			}
		case happened, ok := <-events:
			if !ok {
				return errors.New("janitor: inotify has ended")
			}
			for _, e := range happened {
				j.note(e)
			}
		case <-tick.C:
			j.lookAtDisk()
		case <-at:
		case <-ctx.Done():
			return ctx.Err()
		}
		if j.scanning == nil && j.due() {
			if err := j.beginScan(ctx.Done()); err != nil {
				j.failed("a scan", j.cfg.Root, err)
				j.scans.last, j.scans.again = j.cfg.Now(), false
			}
		}
		more = j.keep()
		j.flush()
	}
}

// Look scans a root once, without a lock and without a change to it, and returns its folders.
func (j *Janitor) Look(ctx context.Context) ([]Folder, error) {
	j.looking = true
	if err := j.beginScan(ctx.Done()); err != nil {
		return nil, err
	}
	for files := range j.scanning.files {
		j.apply(files)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	err := j.scanning.err
	j.endScan()
	return j.folders(), err
}

func (j *Janitor) now() int64 { return j.cfg.Now().UnixNano() }

// failed counts an error, and logs one of its kind a minute: on a file system that has become
// read-only each file has one.
func (j *Janitor) failed(what, name string, err error) {
	j.count.errors++
	now := j.cfg.Now()
	if last, ok := j.logged[what]; !ok || now.Sub(last) >= time.Minute {
		j.logged[what] = now
		j.log.Warn(what, "name", name, "error", err, "errors so far", j.count.errors)
	}
}

// --- scans

func (j *Janitor) beginScan(stop <-chan struct{}) error {
	if errors.Is(j.unread, unix.ENOSPC) || errors.Is(j.unread, unix.EDQUOT) {
		j.probe() // there can be room now
	}
	j.scans.again = false
	j.scans.begun = j.cfg.Now()
	j.table.unsee()
	s, err := j.newScan(stop)
	if err != nil {
		return fmt.Errorf("janitor: %w", err)
	}
	j.scanning = s
	return nil
}

// due reports whether a scan has to begin. One that events require waits as long as ten of
// its kind take, so that scans are a tenth of all work at most.
func (j *Janitor) due() bool {
	age, wait := j.cfg.Now().Sub(j.scans.last), j.cfg.Rescan
	if j.blind() == nil {
		wait *= 10
	}
	return age >= max(wait, 10*j.scans.took) || j.scans.again && age >= 10*j.scans.took
}

// apply applies the files that a scan has found, but for those that have changed since.
func (j *Janitor) apply(files []foundFile) {
	now := j.now()
	for i := range files {
		f := &files[i]
		if f.kind == temporary {
			j.sweep(f, now)
			continue
		}
		if len(j.scans.during) > 0 {
			if _, ok := j.scans.during[event{place: f.place, name: f.hex() + ".bin"}]; ok {
				continue
			}
		}
		k := key{hashOf: f.hashOf, space: f.space, group: f.group}
		if len(j.scans.during) == maxDuring { // it can have changed
			j.look(&k, int(f.rank))
		} else {
			j.put(&k, int(f.rank), f.state, now)
		}
	}
}

// endScan forgets the files that the scan did not find, and checks again the files that have changed meanwhile.
func (j *Janitor) endScan() {
	if err := j.scanning.err; err != nil {
		j.failed("a scan", j.cfg.Root, err)
	}
	if err := j.scanning.unread; err != nil {
		j.unnoticed(err)
	}
	j.scanning = nil
	for slot := range j.table.all() {
		if unseen := j.table.at(slot).unseen(); unseen != 0 {
			j.drop(slot, unseen, true)
		}
	}
	for e := range j.scans.during {
		j.scans.again = j.happened(e) || j.scans.again
	}
	j.scans.during = nil
	j.scans.last = j.cfg.Now()
	j.scans.took = j.scans.last.Sub(j.scans.begun)
	j.count.scans++
}

// note takes in an event. During a scan it comes again at the end, because the scan may have
// looked before it.
func (j *Janitor) note(e event) {
	if e.level >= atRank && j.list[e.space].Left != "" {
		return
	}
	j.scans.again = j.happened(e) || j.scans.again
	if j.scanning != nil && !e.lost {
		j.remember(e)
	}
}

// maxDuring bounds the changes during a scan that are remembered.
const maxDuring = 1 << 16

func (j *Janitor) remember(e event) {
	if j.scans.during == nil {
		j.scans.during = make(map[event]struct{})
	}
	if len(j.scans.during) < maxDuring {
		j.scans.during[e] = struct{}{}
	} else {
		j.scans.again = true
	}
}

// --- blocks

// put records a rank's file.
func (j *Janitor) put(k *key, rank int, st fileState, now int64) {
	slot := j.table.add(k)
	b := j.table.at(slot)
	written := st.written
	if written > now { // by another clock
		written = now
		if b.have()&(1<<rank) != 0 {
			written = b.written
		}
	}
	used := written
	if j.unread == nil && st.read() {
		used = min(st.access, now)
	}
	j.table.put(slot, rank, st.bytes, written, used)
	j.check(slot)
}

// look brings one file up to date.
func (j *Janitor) look(k *key, rank int) {
	p, name := of(k, rank)
	var st fileState
	err := j.in(p, func(fd int) (err error) {
		st, err = stat(fd, name)
		return err
	})
	switch {
	case err == nil:
		j.put(k, rank, st, j.now())
		return
	case !isAbsent(err):
		j.failed("a file", j.path(p)+"/"+name, err)
	}
	if slot, ok := j.table.find(k); ok && j.table.at(slot).have()&(1<<rank) != 0 {
		j.drop(slot, 1<<rank, true)
	}
}

// drop records that files of a block are gone.
func (j *Janitor) drop(slot uint32, ranks uint64, gone bool) {
	b := j.table.at(slot)
	left := b.have() &^ ranks
	if b.reported && left&j.list[b.space].complete() != j.list[b.space].complete() {
		j.report(b, false)
		if gone {
			j.count.gone++
		}
	}
	ranksOf(b.have()&ranks, func(rank int) { j.table.drop(slot, rank) })
}

// check reports a block if it has become complete, or incomplete.
func (j *Janitor) check(slot uint32) {
	b := j.table.at(slot)
	all := j.list[b.space].complete()
	if is := b.have()&all == all; is != b.reported {
		j.report(b, is)
	}
}

// recheck checks all blocks of a folder.
func (j *Janitor) recheck(s *Space) {
	for slot := range j.table.all() {
		if j.table.at(slot).space == s.number {
			j.check(slot)
		}
	}
}

func (j *Janitor) report(b *block, stored bool) {
	b.reported = stored
	if stored {
		j.complete++
	} else {
		j.complete--
	}
	if j.cfg.Sink != nil {
		j.changes = append(j.changes, Change{Stored: stored, Space: j.list[b.space], Group: int(b.group), Hash: append([]byte(nil), b.hash()...)})
	}
}

// --- bounds

// lookAtDisk finds how many bytes have to go for the share of the disk.
func (j *Janitor) lookAtDisk() {
	var st unix.Statfs_t
	if err := unix.Fstatfs(j.root, &st); err != nil {
		j.failed("the disk", j.cfg.Root, err)
		return
	}
	j.measure(&st)
}

func (j *Janitor) measure(st *unix.Statfs_t) {
	size := float64(st.Frsize) // Bsize is the best size of a write, which can be another over FUSE
	used := float64(st.Blocks-st.Bfree) * size
	total := used + float64(st.Bavail)*size // as df has it
	if total == 0 {
		return
	}
	j.disk.used = used / total
	switch {
	case j.cfg.DiskHigh == 0:
	case j.disk.over > 0 || j.disk.used > j.cfg.DiskHigh:
		j.disk.over = max(int64(used-j.cfg.DiskLow*total), 0)
	}
}

// limit is what the janitor keeps the sum of all files below: a part of the bound is left
// for writers, who do not wait for it.
func (j *Janitor) limit() int64 { return j.cfg.Bytes - j.cfg.Bytes/20 }

// exceeds reports whether a block has to go, and that would be this one.
func (j *Janitor) exceeds(b *block, now int64) bool {
	return j.cfg.Bytes > 0 && j.table.size > j.limit() || j.disk.over > 0 || j.aged(b, now)
}

func (j *Janitor) aged(b *block, now int64) bool {
	last := b.written
	if j.table.order != FIFO {
		last = max(b.used, b.written)
	}
	return j.cfg.MaxAge > 0 && last < now-int64(j.cfg.MaxAge)
}

// goes reports whether the block whose time is first has to go, and may. Otherwise none does.
func (j *Janitor) goes(slot uint32, now int64) bool {
	b := j.table.at(slot)
	if j.cfg.Unbounded || !j.exceeds(b, now) {
		return false
	}
	j.wanting = now-b.written < int64(j.cfg.MinAge)
	return !j.wanting
}

const maxPass = 256 // blocks that are looked at before events are

// keep deletes blocks until all bounds are kept, or some were looked at: then more is true.
func (j *Janitor) keep() (more bool) {
	j.wanting = false
	if j.count.scans == 0 {
		return false // the first block is not known yet
	}
	now := j.now()
	for w := (&walk{}); w.looks < maxPass; w.looks++ {
		slot, ok := j.next(w, now)
		if !ok {
			return false
		}
		j.evict(w, slot, now)
	}
	return true
}

// walk is a search for blocks that have to go.
type walk struct {
	queues.Walk
	looks  int
	queued bool // the last block is that of the queues
}

// next returns the block that goes first, if one has to and may.
func (j *Janitor) next(w *walk, now int64) (uint32, bool) {
	slot, ok := j.table.first()
	if !ok || !j.goes(slot, now) {
		return 0, false
	}
	if w.queued = j.table.queues != nil && !j.aged(j.table.at(slot), now); !w.queued {
		return slot, true
	}
	return j.table.candidate(&w.Walk, now)
}

// evict deletes all files of the block that goes first. A block that was read or written
// since the janitor looked last gets another place in the order instead.
func (j *Janitor) evict(w *walk, slot uint32, now int64) {
	b := j.table.at(slot)
	k, before := b.key, j.table.time(b)
	for rank := range maxRanks {
		if b.have()&(1<<rank) == 0 {
			continue
		}
		p, name := of(&k, rank)
		err := j.in(p, func(fd int) error {
			st, err := stat(fd, name)
			if err == nil && j.notices() && st.disarmed() {
				if err := rearm(fd, name, st); err != nil && !isAbsent(err) {
					j.unnoticed(err)
				}
			}
			if err == nil {
				j.put(&k, rank, st, now)
			}
			return err
		})
		if isAbsent(err) {
			j.drop(slot, 1<<rank, true)
		} else if err != nil {
			j.failed("a file that has to go", j.path(p)+"/"+name, err)
			j.table.postpone(slot, now)
			return
		}
		if _, ok := j.table.find(&k); !ok {
			return
		}
	}
	if w.queued && j.table.stays(&w.Walk, slot, now) || !w.queued && j.table.time(b) != before {
		j.count.spared++
		return
	}
	if b.reported {
		j.report(b, false) // before the first file goes
	}
	j.flush()
	whole := true
	for rank := range maxRanks {
		if b.have()&(1<<rank) == 0 {
			continue
		}
		p, name := of(&k, rank)
		err := j.in(p, func(fd int) error { return unix.Unlinkat(fd, name, 0) })
		if err != nil && !isAbsent(err) {
			j.failed("a file that has to go", j.path(p)+"/"+name, err)
			whole = false
			continue
		}
		if j.scanning != nil {
			j.remember(event{place: p, name: name})
		}
		size, last := j.table.size, b.have() == 1<<rank
		j.table.drop(slot, rank)
		size -= j.table.size
		j.count.deletedBytes += size
		j.disk.over = max(j.disk.over-size, 0)
		if last {
			break
		}
	}
	if whole {
		j.count.deleted++
		return
	}
	j.table.postpone(slot, now)
	j.check(slot)
}

// sweep deletes a file that a writer has left behind, if Settings.Temporary allows it.
func (j *Janitor) sweep(f *foundFile, now int64) {
	least := int64(max(j.cfg.Temporary, j.cfg.MinAge))
	if j.cfg.Temporary == 0 || j.looking || now-f.state.written < least {
		return
	}
	err := j.in(f.place, func(fd int) error {
		if st, err := stat(fd, f.name); err != nil || now-st.written < least {
			return err
		}
		return unix.Unlinkat(fd, f.name, 0)
	})
	if err == nil {
		j.count.temporary++
	} else if !isAbsent(err) {
		j.failed("a temporary file", j.path(f.place)+"/"+f.name, err)
	}
}

// in calls f with the open folder of a place.
func (j *Janitor) in(p place, f func(fd int) error) error {
	fd, err := j.open(p)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return f(fd)
}

// unnoticed gives access times up.
func (j *Janitor) unnoticed(err error) {
	if j.unread == nil {
		j.unread = fmt.Errorf("setting an access time: %w", err)
		j.log.Warn("reads are not noticed: blocks go by the time of their last write", "because", j.unread)
	}
}

// probe tries whether reads are noticed.
func (j *Janitor) probe() {
	if j.unread = probeReads(j.root, j.now()); j.unread != nil {
		j.log.Warn("reads are not noticed: blocks go by the time of their last write", "because", j.unread)
	}
}

// notices reports whether access times are looked at, and made to move again.
func (j *Janitor) notices() bool { return j.unread == nil && !j.looking && j.table.order != FIFO }

// --- what others see

// flush reports the changes to the Sink.
func (j *Janitor) flush() {
	if len(j.changes) > 0 {
		j.cfg.Sink(j.changes)
		clear(j.changes)
		j.changes = j.changes[:0]
	}
	blind := ""
	if err := j.blind(); err != nil {
		blind = err.Error()
	}
	unread := ""
	if j.unread != nil {
		unread = j.unread.Error()
	}
	var left int64
	for _, s := range j.list {
		if s.Left != "" {
			left++
		}
	}
	j.publish(func(s *Stats) {
		*s = Stats{
			Bytes: j.table.size, Blocks: j.complete, Incomplete: int64(j.table.len()) - j.complete, Left: left,
			Deleted: j.count.deleted, DeletedBytes: j.count.deletedBytes, Temporary: j.count.temporary, Gone: j.count.gone,
			Spared: j.count.spared, Errors: j.count.errors, Scans: j.count.scans, Overflows: j.count.overflows,
			ScanSeconds: j.scans.took.Seconds(), DiskUsed: j.disk.used, Over: j.wanting, Ready: j.count.scans > 0, Blind: blind, Unread: unread,
		}
	})
}

func (j *Janitor) publish(f func(*Stats)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f(&j.stats)
}

// Stats returns the figures and counters of the Janitor.
func (j *Janitor) Stats() Stats {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.stats
}

// Held calls f for each block that was reported as stored. Only the Sink may call it, during its own call.
func (j *Janitor) Held(f func(Change)) {
	for slot := range j.table.all() {
		if b := j.table.at(slot); b.reported {
			f(Change{Stored: true, Space: j.list[b.space], Group: int(b.group), Hash: b.hash()})
		}
	}
}

// Check tries what Run needs of the root: a read of a file of its own. Network is true where
// inotify cannot see all changes.
func (j *Janitor) Check() (network bool, unread, err error) {
	network, err = isNetwork(j.root)
	return network, probeReads(j.root, j.now()), err
}

// Folder is a folder of vLLM's, and what is in it.
type Folder struct {
	Space
	Blocks, Incomplete, Bytes int64
	Oldest, Newest            time.Time // write
	Used                      time.Time // last use of any block
}

func (j *Janitor) folders() []Folder {
	folders := make([]Folder, len(j.list))
	for i, s := range j.list {
		folders[i].Space = *s
	}
	for slot := range j.table.all() {
		b := j.table.at(slot)
		f := &folders[b.space]
		if b.reported {
			f.Blocks++
		} else {
			f.Incomplete++
		}
		f.Bytes += b.size
		if written := time.Unix(0, b.written); f.Oldest.IsZero() || written.Before(f.Oldest) {
			f.Oldest = written
		}
		if written := time.Unix(0, b.written); written.After(f.Newest) {
			f.Newest = written
		}
		if used := time.Unix(0, b.used); used.After(f.Used) {
			f.Used = used
		}
	}
	slices.SortFunc(folders, func(a, b Folder) int { return strings.Compare(a.Folder, b.Folder) })
	return folders
}

// Victim is a block that would go.
type Victim struct {
	Folder string
	Group  int
	Hash   string
	Bytes  int64
	Used   time.Time // what the order goes by
}

// DryRun calls f for each block that would go now, after Look.
func (j *Janitor) DryRun(f func(Victim)) {
	j.lookAtDisk()
	now := j.now()
	for w := (&walk{}); ; {
		slot, ok := j.next(w, now)
		if !ok {
			return
		}
		b := j.table.at(slot)
		if w.queued && j.table.stays(&w.Walk, slot, now) {
			continue
		}
		f(Victim{Folder: j.list[b.space].Folder, Group: int(b.group), Hash: b.hex(), Bytes: b.size, Used: time.Unix(0, max(b.used, b.written))})
		j.disk.over = max(j.disk.over-b.size, 0)
		j.table.remove(slot)
	}
}
