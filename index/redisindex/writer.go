package redisindex

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/redis/go-redis/v9"
)

// One goroutine writes. Applies make buckets and sources dirty, and the goroutine writes the
// dirty ones in one pipeline, while the next changes come in. So there is never more than one
// write at a time, and the cost of each falls with the load.
//
// # What is written
//
// Always the present state: of a bucket the whole section, of a source the whole row. So the
// outcome of a failed attempt does not matter: the same is written again. If the attempt runs
// late, after a newer one, putSections does nothing: sections have the number of their commit.
//
// # What a server may lose
//
// A commit leaves a token in each part of the keys that it writes, before and behind its
// writes, on the same server, and checks the one before. So all of a commit is on one server,
// although a client redirects refused commands to another one, and nothing of an older commit
// comes in between. A server with an older token, or none, has lost writes: a replica was
// behind when it became the master, or all was deleted. Then further losses are unknown, and
// the rest may be too much. So the writer ends its lease, takes another name (beginAnew),
// writes everything under that, and then its rows. Nothing is repaired in place.
//
// # The order
//
// Buckets and rows may come in any order: a number that no row names counts for nothing, and
// one that a row names before its buckets are complete counts for too little while the Apply
// runs. There are two exceptions. A source that is taken over is named when all its buckets
// are written. And a split bucket is written as split when all its parts are there.
//
// # Why so
//
//   - A cut is no reason to begin anew. Writes that may have run are written again, and
//     no name or number changes. Anew is needed only where a server has lost what it had
//     acknowledged, and the token shows that: replication keeps the order, so a server that
//     has the token has all before it. A ClusterClient sends on to a new master what the old
//     one does not take any more, so a commit could be on two servers; the new master does not
//     have the first token then. A command of an earlier commit that comes late finds that
//     token, and does nothing.
//   - Names of writers are random, 64 bits. A counter in Redis would go back with a failover,
//     and give one name to two. The writer counts the numbers of its holders, and they mean
//     something only together with its name.
//   - Many buckets for each call of a script: a call costs a server more than its work for one
//     bucket. So up to maxPut buckets of one part go into one call. Each of them stands alone
//     in it: a bucket that is newer than the write is left, and the others are written.

// A writer is the state of writing. redisIndex.mu guards it, but for the fields of the writing
// goroutine.
type writer struct {
	sources      map[index.Source]*source
	byPod        map[string][]*source
	byFeed       map[uint64]*source
	dirtySources []*source

	drops  map[string][]string // fields of rows to delete, by model
	flying chan struct{}       // moved of the batch that is being written; nil: none is
	busy   time.Time           // since when the goroutine waits for Redis; zero: it does not
	// catching are sources that have caught up, with rows that do not have that yet.
	catching []*source
	written  uint64        // all changes up to this one are written
	moved    chan struct{} // closed when the next batch is settled
	overdue  *delayNotice  // nil: no delay that lasts was reported
	trouble  error         // why the last commit failed; nil: it did not
	since    time.Time     // when trouble began
	late     bool          // it lasts for longer than a lease: readers see old data
	committer
}

// A committer has the fields of the writing goroutine alone.
type committer struct {
	id    uint64   // the writer's name
	old   []string // names that it had before, newest last
	began time.Time
	seq   uint64 // of the last commit: an even number. Its first token has the one before
	parts map[part]*partState
	lost  part            // that has lost writes; "": none is known
	named map[string]bool // models that are in the list of models
	swept int             // of buckets.all, how far the sweep has come
	// sweepRate is how many buckets a second the sweep checks: defaultSweepRate, but for tests.
	sweepRate int
	scanning
}

// partState is the state of a part.
type partState struct {
	notes string // accepted tokens
	fresh bool   // there may be none
}

// Bounds of a commit, and of remembered state.
const (
	maxCommit = 2048 // buckets
	maxPut    = 32   // buckets of a call, during which a server does nothing else
	maxRows   = 512  // sources of a call
	maxNotes  = 64 * 8
	maxOld    = 8
)

func (w *writer) init() {
	w.sources = make(map[index.Source]*source)
	w.byPod = make(map[string][]*source)
	w.byFeed = make(map[uint64]*source)
	w.moved = make(chan struct{})
	w.named = make(map[string]bool)
	w.sweepRate = defaultSweepRate
	w.rename()
}

// rename gives the writer a new name.
func (w *writer) rename() {
	if w.id != 0 {
		w.old = append(w.old, bytesOf(w.id))
		w.old = w.old[max(0, len(w.old)-maxOld):]
	}
	var b [8]byte
	for w.id = 0; w.id == 0; w.id = binary.LittleEndian.Uint64(b[:]) {
		rand.Read(b[:])
	}
	w.parts, w.lost, w.began = make(map[part]*partState), "", time.Now()
}

// write is the goroutine.
func (ix *redisIndex) write(ctx context.Context) {
	beat := time.NewTicker(ix.c.Lease / 3)
	defer beat.Stop()
	pause := time.NewTimer(0)
	defer pause.Stop()
	wake := ix.wake
	for {
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
			ix.beat(ctx)
		case <-wake:
		case <-pause.C:
			wake = ix.wake
		}
		for ctx.Err() == nil {
			more, err := ix.commit(ctx)
			if err != nil {
				pause.Reset(ix.c.Lease / 20)
				wake = nil // until then
				break
			}
			if !more {
				break
			}
			select {
			case <-beat.C:
				ix.beat(ctx)
			default:
			}
		}
	}
}

// A bucketWrite is a bucket that is being written.
type bucketWrite struct {
	change
	part  part
	key   string
	body  string
	reply *redis.Cmd // nil: it was not sent
}

// A sourceWrite is a source that is being written.
type sourceWrite struct {
	*source
	row, cursor string
	change      uint64
	reply       *redis.Cmd // nil: it was not sent
	at          int        // in reply
}

// A batch is the content of a commit.
type batch struct {
	puts  []bucketWrite
	rows  map[string][]sourceWrite // by model
	drops map[string][]string      // fields, by model
	parts map[part]*redis.Cmd
	upto  uint64        // all changes up to this one are in it
	moved chan struct{} // closed when it is settled
	err   error         // the first
}

// take makes the next batch.
func (ix *redisIndex) take() *batch {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	b := &batch{upto: ix.change, moved: ix.moved, rows: make(map[string][]sourceWrite), parts: make(map[part]*redis.Cmd)}
	ix.moved, ix.flying, ix.busy = make(chan struct{}), b.moved, time.Now()
	n := min(len(ix.dirty), maxCommit)
	taken, left := ix.dirty[:n:n], ix.dirty[n:]
	ix.dirty = nil
	var again []change
	for _, c := range taken {
		if c.at < 0 {
			continue
		}
		c.dirty = false
		body := ix.encode(c.bucket)
		if c.split && c.unwritten > 0 { // behind its parts, or a commit may find only such buckets
			c.dirty = true
			again = append(again, c)
			continue
		}
		if len(body) == 0 && !c.known {
			ix.appear(c.bucket)
			ix.dropEmpty(c.bucket)
			continue
		}
		c.known = true
		b.puts = append(b.puts, bucketWrite{change: c, part: ix.names.partOf(c.name), key: ix.names.bucket(c.level, c.name), body: string(body)})
	}
	ix.dirty = slices.Concat(left, ix.dirty, again) // those between are parts
	for _, c := range ix.dirty {
		b.upto = min(b.upto, c.number-1)
	}
	later := ix.dirtySources[:0]
	for _, src := range ix.dirtySources {
		switch {
		case src.removed:
		case src.ownership == taking && ix.written < src.ready:
			later = append(later, src)
			b.upto = min(b.upto, src.change-1)
			continue
		case src.ownership != other:
			ix.addSource(b, src)
		}
		src.dirty = false
	}
	clear(ix.dirtySources[len(later):])
	ix.dirtySources = later
	b.drops, ix.drops = ix.drops, nil
	return b
}

// addSource adds a source to a batch.
func (ix *redisIndex) addSource(b *batch, src *source) {
	t := sourceWrite{source: src, change: src.change}
	if src.row || src.ownership != owned {
		t.row = string(appendRow(nil, ix.id, src))
	}
	t.cursor = string(appendCursor(nil, ix.seq+2, src.time))
	src.row = false
	b.rows[src.Model] = append(b.rows[src.Model], t)
}

// commit writes the dirty state, as much as a commit takes, and reports whether there is more.
func (ix *redisIndex) commit(ctx context.Context) (more bool, err error) {
	b := ix.take()
	if len(b.puts)+len(b.rows)+len(b.drops) > 0 {
		ix.send(ctx, b)
	}
	more = ix.settle(b)
	ix.lookUp(b.err)
	switch {
	case ix.lost == "":
		return more, b.err
	case time.Since(ix.began) < ix.c.Lease:
		return more, errLost
	}
	ix.beginAnew(ctx)
	return true, nil
}

// send sends a batch, and with it the tokens of all its parts.
func (ix *redisIndex) send(ctx context.Context, b *batch) {
	ix.seq += 2
	if ix.names.parts > 1 {
		slices.SortStableFunc(b.puts, func(a, b bucketWrite) int { return cmp.Compare(a.part, b.part) })
	}
	for i := range b.puts {
		b.parts[b.puts[i].part] = nil
	}
	for model := range b.rows {
		b.parts[registryPart(model)] = nil
	}
	for model := range b.drops {
		b.parts[registryPart(model)] = nil
	}
	if ix.announce(ctx, b); b.err != nil {
		return
	}
	if ix.pipe(ctx, b, false); redis.HasErrorPrefix(b.err, "NOSCRIPT") {
		ix.pipe(ctx, b, true)
	}
	for of, reply := range b.parts {
		if n, err := reply.Int(); err == nil && n == 0 {
			ix.lost = of // until the writer has another name
		}
	}
	if ix.lost != "" && b.err == nil {
		b.err = errLost
	}
}

// leftToken reports whether the writes to a part have a token behind them.
func (b *batch) leftToken(of part) bool { return carriedOut(b.parts[of]) }

// carriedOut reports whether a script that returns a number was sent, and has returned it.
func carriedOut(reply *redis.Cmd) bool {
	if reply == nil {
		return false
	}
	_, err := reply.Int()
	return err == nil
}

// announce leaves tokens in the parts that have none, before any other write: the keys of a
// writer without a token are swept.
func (ix *redisIndex) announce(ctx context.Context, b *batch) {
	first := &batch{parts: make(map[part]*redis.Cmd)}
	for of := range b.parts {
		if st := ix.parts[of]; st == nil || st.fresh {
			first.parts[of] = nil
		}
	}
	if len(first.parts) > 0 {
		ix.pipe(ctx, first, true)
		b.err = first.err
	}
}

// pipe sends a batch once.
func (ix *redisIndex) pipe(ctx context.Context, b *batch, text bool) {
	ctx, cancel := context.WithTimeout(ctx, ix.c.Lease)
	defer cancel()
	p := ix.client.Pipeline()
	me, seq, ttl := bytesOf(ix.id), bytesOf(ix.seq), ix.c.TTL.Milliseconds()
	begin, old := bytesOf(ix.seq-1), strings.Join(ix.old, "")
	leave := func(of part, may string, fresh bool, note string, lease int64) *redis.Cmd {
		keys := []string{ix.names.token(of, ix.id), ix.names.lease(of, ix.id)}
		return leaveToken.in(ctx, p, text, keys, may, flag(fresh), note, ttl, lease)
	}
	for of := range b.parts {
		st := ix.parts[of]
		if st == nil {
			st = &partState{fresh: true}
			ix.parts[of] = st
		}
		leave(of, st.notes+seq, st.fresh, begin, 0)
	}
	for left := b.puts; len(left) > 0; {
		n := 1
		for n < min(len(left), maxPut) && left[n].part == left[0].part {
			n++
		}
		keys, args := make([]string, n), append(make([]any, 0, 4+n), me, seq, ttl, old)
		for i, put := range left[:n] {
			keys[i], args = put.key, append(args, put.body)
		}
		reply := putSections.in(ctx, p, text, keys, args...)
		for i := range left[:n] {
			left[i].reply = reply
		}
		left = left[n:]
	}
	for model, fields := range b.drops {
		args := []any{me, ix.version() + "d", seq}
		for _, f := range fields {
			args = append(args, f)
		}
		dropRows.in(ctx, p, text, ix.rowKeys(model), args...)
	}
	for model, rows := range b.rows {
		if !ix.named[model] { // later it is renewed with each beat
			p.SAdd(ctx, ix.names.models(), model)
			p.PExpire(ctx, ix.names.models(), ix.c.TTL)
		}
		for left := rows; len(left) > 0; {
			n := min(len(left), maxRows)
			args := append(make([]any, 0, 4+5*n), me, ix.version(), seq, ttl)
			for _, t := range left[:n] {
				args = append(args, fieldOf(t.Source), t.row, t.cursor, t.from, t.left)
			}
			reply := writeRows.in(ctx, p, text, ix.rowKeys(model), args...)
			for i := range left[:n] {
				left[i].reply, left[i].at = reply, i
			}
			left = left[n:]
		}
	}
	lease := ix.c.Lease.Milliseconds()
	if ix.late {
		lease = 0
	}
	for of := range b.parts {
		b.parts[of] = leave(of, begin, false, seq, lease)
	}
	b.err = exec(ctx, p)
	for model := range b.rows {
		ix.named[model] = ix.named[model] || b.err == nil
	}
	for of, reply := range b.parts {
		st := ix.parts[of]
		switch n, err := reply.Int(); {
		case err != nil:
			// The first is nearly always the present one. If it is one that was left out,
			// everything is written again.
			if st.notes += begin + seq; len(st.notes) > maxNotes {
				st.notes = st.notes[:8] + st.notes[24:]
			}
		case n == 1:
			st.notes, st.fresh = seq, false
		}
	}
}

// rowKeys returns the keys of the scripts that write rows.
func (ix *redisIndex) rowKeys(model string) []string {
	return []string{ix.names.registry(model), ix.names.cursors(model), ix.names.token(registryPart(model), ix.id)}
}

// version returns the beginning of a registry's version: the script adds its time, because it
// may run twice.
func (ix *redisIndex) version() string { return ix.mark + bytesOf(ix.id) + bytesOf(ix.seq) }

// settle records the result of a batch, and reports whether there is more to do.
func (ix *redisIndex) settle(b *batch) (more bool) {
	now := time.Now()
	ix.mu.Lock()
	defer ix.mu.Unlock()
	var failed []change
	twice := make(map[*bucket]bool) // they have changed since
	for i := range b.puts {
		put := &b.puts[i]
		if !carriedOut(put.reply) || !b.leftToken(put.part) {
			if put.dirty {
				twice[put.bucket] = true
			}
			put.dirty = true
			failed = append(failed, put.change)
			continue
		}
		ix.appear(put.bucket)
		put.written = now.Unix()
		if put.body == "" {
			put.known = false
			ix.dropEmpty(put.bucket)
		}
	}
	if len(twice) > 0 {
		ix.dirty = slices.DeleteFunc(ix.dirty, func(c change) bool { return twice[c.bucket] })
	}
	ix.dirty = append(failed, ix.dirty...)
	for model, rows := range b.rows {
		for _, t := range rows {
			var replies []any // none: no row was written
			if t.reply != nil && b.leftToken(registryPart(model)) {
				replies, _ = t.reply.Slice()
			}
			if t.at >= len(replies) {
				ix.markDirty(t.source, t.row != "")
				b.upto = min(b.upto, t.change-1)
			} else if !ix.sourceWritten(t.source, replies[t.at]) {
				b.upto = min(b.upto, t.change-1)
			}
		}
	}
	if b.err == nil {
		ix.written = max(ix.written, b.upto)
		ix.trouble = nil
		ix.endDelay()
		ix.catchUp()
	} else {
		for model, fields := range b.drops {
			for _, f := range fields {
				if id, ok := sourceOf(model, f); ok && ix.sources[id] == nil { // else its row is written
					ix.dropRow(id)
				}
			}
		}
		if ix.trouble == nil {
			ix.since = ix.busy
		}
		ix.trouble = ix.because(b.err, slices.Collect(maps.Keys(b.parts))...)
	}
	ix.late = ix.trouble != nil && now.Sub(ix.since) > ix.c.Lease
	close(b.moved)
	ix.flying, ix.busy = nil, time.Time{}
	return len(ix.dirty)+len(ix.dirtySources) > 0
}

// markDirty marks a source as dirty again.
func (ix *redisIndex) markDirty(src *source, row bool) {
	src.row = src.row || row
	if !src.dirty {
		src.dirty = true
		ix.dirtySources = append(ix.dirtySources, src)
	}
}

// sourceWritten records the result of writing a source. It returns false if it has to be written
// again.
func (ix *redisIndex) sourceWritten(src *source, reply any) bool {
	switch r := reply.(type) {
	case string: // the row of another writer
		src.ownership, src.written, src.from, src.left = other, false, "", ""
	case int64:
		if r == 0 { // another process has deleted the row
			ix.markDirty(src, true)
			return false
		}
		src.ownership, src.from, src.left = owned, "", ""
	}
	return true
}

// catchUp marks the rows of sources that have caught up with the writer before, as soon as
// that is written.
func (ix *redisIndex) catchUp() {
	ix.catching = slices.DeleteFunc(ix.catching, func(src *source) bool {
		if ix.written < src.caught {
			return src.removed
		}
		if src.caught > 0 && !src.removed {
			src.behind, src.caught = false, 0
			ix.markRow(src)
		}
		return true
	})
}

// errLost is why a commit waits.
var errLost = errors.New("the server loses the latest writes")

// beginAnew writes everything of this process under another name.
func (ix *redisIndex) beginAnew(ctx context.Context) {
	ix.endLeases(ctx)
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.rename()
	was := strings.Join(ix.old, "") // the last one may have missed its rows
	for _, b := range ix.all {
		ix.markBucket(b)
	}
	ready := ix.change
	for _, src := range ix.sources {
		switch src.ownership {
		case owned:
			src.ownership, src.from, src.left = taking, was, "*"
		case taking:
			if src.left == "*" {
				src.from = was
			}
		default:
			continue
		}
		src.ready = ready
		ix.markRow(src)
	}
}

// endLeases ends the leases, so that the writer's sections no longer count.
func (ix *redisIndex) endLeases(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, ix.c.Lease)
	defer cancel()
	p := ix.client.Pipeline()
	for of := range ix.parts {
		p.Unlink(ctx, ix.names.lease(of, ix.id))
	}
	_ = exec(ctx, p) // else they end by themselves
}

// giveBack ends the leases after the last write.
func (ix *redisIndex) giveBack() {
	ctx, cancel := context.WithTimeout(context.Background(), ix.c.Timeout)
	defer cancel()
	ix.endLeases(ctx)
}

func (ix *redisIndex) setBusy(since time.Time) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.busy = since
}

// beat renews the leases, and checks for changes.
func (ix *redisIndex) beat(ctx context.Context) {
	ix.setBusy(time.Now())
	defer ix.setBusy(time.Time{})
	b := &batch{parts: make(map[part]*redis.Cmd)}
	for of := range ix.parts {
		b.parts[of] = nil
	}
	if len(b.parts) > 0 {
		// If a server does not answer, the leases at others are still renewed in time.
		half, cancel := context.WithTimeout(ctx, ix.c.Lease/2)
		ix.send(half, b)
		cancel()
	}
	if b.err == nil || errors.Is(b.err, errLost) { // then the root may be lost, too
		b.err = ix.lookAround(ctx)
	}
	if b.err == nil {
		b.err = ix.sweepAll(ctx) // if it fails it goes on with the next beat
	}
	ix.lookUp(b.err)
	ix.sweepOwn()
	ix.poke()
}
