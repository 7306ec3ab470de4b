package resp

import (
	"container/list"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvindex/kvindex/offload"
)

var ctx = context.Background() // nothing that is begun is given up

// values are what the server has, in a Store whose blocks are the pages of values. Their
// methods may be called at the same time.
//
// Locks: a stripe is taken before mu, and mu before that of names.
type values struct {
	cfg   Config
	store *offload.Store
	epoch atomic.Uint64 // is in all keys: FLUSHALL adds 1
	now   func() time.Time

	// A stripe is held for reading while the pages of a value are found, and for writing
	// while they are stored, replaced or deleted. A name has one of them.
	stripes [256]sync.RWMutex

	mu       sync.Mutex // guards the fields below
	incoming int64      // bytes of pages in drafts; at most cfg.Incoming
	halves   map[ref]*list.Element
	halfAges list.List // of *half, the oldest first
	promises map[ref]*list.Element
	kept     list.List // of *promise, the one that ends first in front
	promised int64     // bytes of pages in promises; at most cfg.Promised
	count    counts
	logged   time.Time // when an error of the disk was

	names names
}

// counts has the counters of INFO, since the start.
type counts struct {
	hits, misses   uint64 // of GET and MGET
	stored         uint64
	lost           uint64 // values that were not stored: no room, or too many bytes in flight
	halvesDropped  uint64 // halves of pairs that were too old, or too many
	promiseRefused uint64 // values that were there, and could not be promised
}

func newValues(cfg Config) (*values, error) {
	v := &values{cfg: cfg, now: time.Now, halves: make(map[ref]*list.Element), promises: make(map[ref]*list.Element)}
	disk := offload.Disk{Ingest: cfg.Ingest, MinMissing: 1, MinMissingPart: 1e-9, OnError: v.diskFailed}
	if cfg.Segments != nil {
		disk.Backend = cfg.Segments
	}
	if cfg.EpochFile != "" {
		epoch, err := readEpoch(cfg.EpochFile)
		if err != nil {
			return nil, err
		}
		v.epoch.Store(epoch)
	}
	var err error
	v.store, err = offload.Open(offload.Config{
		Space:       offload.Space{Model: "resp", Layout: "pages 1", BlockTokens: 1, BlockBytes: cfg.PageBytes, Ranks: 1},
		MemoryBytes: cfg.MemoryBytes, Policy: cfg.Policy, Disk: disk,
	})
	return v, err
}

// diskFailed logs an error of the disk, one a minute: a full disk has many.
func (v *values) diskFailed(err error) {
	v.mu.Lock()
	now := v.now()
	late := now.Sub(v.logged) >= time.Minute
	if late {
		v.logged = now
	}
	v.mu.Unlock()
	if late {
		v.cfg.Logf("%v; no other error of the disk is logged for a minute", err)
	}
}

func readEpoch(name string) (uint64, error) {
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	if len(b) != 8 {
		return 0, fmt.Errorf("%s has %d bytes, not 8", name, len(b))
	}
	return binary.LittleEndian.Uint64(b), nil
}

// close ends all use of the values. Entries that are out stay readable until they are
// released.
func (v *values) close() error {
	v.mu.Lock()
	v.forgetAll()
	v.mu.Unlock()
	return v.store.Close()
}

// forgetAll drops all promises and halves.
func (v *values) forgetAll() {
	for e := v.kept.Front(); e != nil; e = v.kept.Front() {
		v.endPromise(e)
	}
	for e := v.halfAges.Front(); e != nil; e = v.halfAges.Front() {
		v.dropHalf(e)
	}
}

// entry is a value whose pages stay until it is released.
type entry struct {
	header
	leases [2]*offload.Lease // the first page; the others
	bytes  int64             // of the pages
	refs   int               // guarded by values.mu
}

// buffers appends the bytes of the value.
func (e *entry) buffers(to net.Buffers) net.Buffers {
	left := e.size
	add := func(b []byte) {
		b = b[:min(int64(len(b)), left)]
		left -= int64(len(b))
		if len(b) > 0 {
			to = append(to, b)
		}
	}
	add(e.leases[0].Block(0)[dataAt:])
	for i := range e.leases[1].Len() {
		add(e.leases[1].Block(i))
	}
	return to
}

func (v *values) release(e *entry) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.unref(e)
}

func (v *values) unref(e *entry) {
	if e.refs--; e.refs == 0 {
		e.leases[0].Release()
		e.leases[1].Release()
	}
}

func (v *values) over(ends int64) bool { return ends != 0 && ends <= v.now().UnixMilli() }

// promise keeps the pages of a value for a while.
type promise struct {
	*entry
	until time.Time
	stale bool // the pair has been replaced
}

// get returns a value, or nil if it is not there. A promised value stays for Config.Promise:
// one that cannot be promised is not there.
//
// A promise is kept whatever happens but DEL, FLUSHALL and a SET of a value that is no pair.
// The bytes of a pair that is replaced stay until its promise ends, for a client that has read its
// metadata. Until then no client gets metadata: bytes that were read after the end would not
// belong to it.
func (v *values) get(id ref, hold bool) *entry {
	hold = hold && v.cfg.Promise > 0
	v.mu.Lock()
	if el := v.promises[id]; el != nil {
		if p := el.Value.(*promise); p.until.After(v.now()) {
			defer v.mu.Unlock()
			if hold && (p.stale || v.over(p.ends)) {
				return nil
			}
			if hold {
				p.until = v.now().Add(v.cfg.Promise)
				v.kept.MoveToBack(el)
			}
			p.refs++
			return p.entry
		}
	}
	v.mu.Unlock()

	epoch := v.epoch.Load()
	first := id.firstKey(epoch)
	stripe := &v.stripes[first[0]]
	stripe.RLock()
	e := v.load(id, first)
	gone := e != nil && v.over(e.ends)
	if e != nil && (gone || hold && !v.promise(e, epoch)) {
		v.release(e)
		e = nil
	}
	stripe.RUnlock()
	if gone {
		_, _ = v.remove(id, true) // it is not there in any case
	}
	return e
}

// load finds the pages of a value.
func (v *values) load(id ref, first offload.Key) *entry {
	e := &entry{refs: 1}
	e.leases[0], _ = v.store.Acquire(ctx, []offload.Key{first}) // whatever the error, it is not there
	ok := e.leases[0].Len() == 1
	if ok {
		e.header, ok = parseHeader(e.leases[0].Block(0))
	}
	if !ok || e.ref != id {
		e.leases[0].Release()
		return nil
	}
	n := pages(e.size, v.cfg.PageBytes)
	e.leases[1], _ = v.store.Acquire(ctx, laterKeys(first, e.content, n))
	if e.leases[1].Len() < n-1 {
		e.leases[0].Release()
		e.leases[1].Release()
		return nil
	}
	e.bytes = int64(n) * int64(v.cfg.PageBytes)
	v.names.add(name{e.ref, e.size, e.content, e.ends}, v.holds)
	return e
}

// there reports whether a value is there, and forgets its name if it is not.
func (v *values) there(n name) bool {
	ok := v.holds(n)
	if !ok {
		v.names.lose(n)
	}
	return ok
}

// countGet counts an answer of GET.
func (v *values) countGet(hit bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if hit {
		v.count.hits++
	} else {
		v.count.misses++
	}
}

// holds reports whether all pages of a value are in memory or on disk, and its time is not over.
func (v *values) holds(n name) bool {
	if v.over(n.ends) {
		return false
	}
	first := n.firstKey(v.epoch.Load())
	chain := append([]offload.Key{first}, laterKeys(first, n.content, pages(n.size, v.cfg.PageBytes))...)
	_, all, err := v.store.Lookup(ctx, chain)
	return err == nil && all == len(chain)
}

// promise keeps an entry that was found in an epoch, and reports false if too much is promised,
// or if all was flushed since. The stripe of the entry is held, so that it is not replaced
// meanwhile.
func (v *values) promise(e *entry, epoch uint64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if epoch != v.epoch.Load() {
		return false
	}
	if el := v.promises[e.ref]; el != nil { // it is over, or another has made it meanwhile
		v.endPromise(el)
	}
	v.sweep()
	if v.promised+e.bytes > v.cfg.PromisedBytes {
		v.count.promiseRefused++
		return false
	}
	v.promised += e.bytes
	e.refs++
	v.promises[e.ref] = v.kept.PushBack(&promise{entry: e, until: v.now().Add(v.cfg.Promise)})
	return true
}

func (v *values) endPromise(el *list.Element) {
	p := v.kept.Remove(el).(*promise)
	delete(v.promises, p.ref)
	v.promised -= p.bytes
	v.unref(p.entry)
}

// Sweep ends promises and halves whose time is over.
func (v *values) Sweep() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.sweep()
}

func (v *values) sweep() {
	now := v.now()
	for el := v.kept.Front(); el != nil && !el.Value.(*promise).until.After(now); el = v.kept.Front() {
		v.endPromise(el)
	}
	for el := v.halfAges.Front(); el != nil && !el.Value.(*half).until.After(now); el = v.halfAges.Front() {
		v.loseHalf(el)
	}
}

// draft are the bytes of a value that is on its way. It belongs to one goroutine.
type draft struct {
	v      *values
	size   int64
	at     int64            // bytes that are there
	leases []*offload.Lease // the first has one page
	pages  int              // in leases
	hash   *xxh3.Hasher
	lost   bool // it has no memory, and is not stored
}

func (v *values) draft(size int64) *draft { return &draft{v: v, size: size, hash: xxh3.New()} }

// buffer returns where the next bytes go, at least one: nil if all are there, or if there is
// no memory. Pages are allocated as bytes come.
func (d *draft) buffer() []byte {
	if d.lost || d.at == d.size && d.pages > 0 {
		return nil
	}
	at, page := dataAt+d.at, int64(d.v.cfg.PageBytes)
	for int(at/page) >= d.pages {
		if !d.grow() {
			return nil
		}
		if d.at == d.size { // a value without bytes has a page, too
			return nil
		}
	}
	l := d.leases[len(d.leases)-1]
	i := int(at/page) - (d.pages - l.Len())
	b := l.Block(i)[at%page:]
	return b[:min(int64(len(b)), d.size-d.at)]
}

// fill reads all bytes of the value. It needs no memory before the first of them is there, and
// then at most as much again as is filled.
func (d *draft) fill(in *reader) error {
	if d.size > 0 {
		in.inside()
		if _, err := in.Peek(1); err != nil {
			return err
		}
	}
	for b := d.buffer(); b != nil; b = d.buffer() {
		if err := in.full(b); err != nil {
			return err
		}
		d.wrote(len(b))
	}
	return in.discard(d.size - d.at)
}

// grow allocates pages, at most as many as there are.
func (d *draft) grow() bool {
	n := min(max(d.pages, 1), 64, pages(d.size, d.v.cfg.PageBytes)-d.pages)
	if d.v.admit(int64(n) * int64(d.v.cfg.PageBytes)) {
		l, err := d.v.store.Alloc(ctx, n) // fewer, if there is an error
		d.leases, d.pages = append(d.leases, l), d.pages+n
		if err == nil {
			return true
		}
	}
	d.abandon()
	d.lost = true
	d.v.mu.Lock()
	d.v.count.lost++
	d.v.mu.Unlock()
	return false
}

// admit counts bytes of a draft, and reports false if too many are in flight.
func (v *values) admit(bytes int64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	for el := v.halfAges.Front(); v.incoming+bytes > v.cfg.IncomingBytes; el = el.Next() {
		if el == nil {
			return false
		}
		if h := el.Value.(*half); h.draft != nil {
			h.drop()
			h.lost = true
			v.count.halvesDropped++
		}
	}
	v.incoming += bytes
	return true
}

// wrote records that the first n bytes of buffer are written.
func (d *draft) wrote(n int) {
	_, _ = d.hash.Write(d.buffer()[:n]) // it never fails
	d.at += int64(n)
}

// abandon gives the memory back. It can be called again.
func (d *draft) abandon() {
	d.v.mu.Lock()
	defer d.v.mu.Unlock()
	d.drop()
}

func (d *draft) drop() {
	for _, l := range d.leases {
		l.Release()
	}
	d.v.incoming -= int64(d.pages) * int64(d.v.cfg.PageBytes)
	d.leases, d.pages = nil, 0
}

// put stores a whole draft. Its error is one of the disk; a draft that is lost is none, and
// then the name has no value.
func (v *values) put(h header, d *draft) error {
	if d.lost {
		_, err := v.remove(h.ref, false)
		return err
	}
	defer d.abandon() // of what was committed, too: the store has it
	h.size, h.content = d.size, d.hash.Sum128().Bytes()
	h.put(d.leases[0].Block(0))
	first := h.firstKey(v.epoch.Load())
	stripe := &v.stripes[first[0]]
	stripe.Lock() // else another draft of the name could delete pages that both have
	defer stripe.Unlock()
	keys := laterKeys(first, h.content, d.pages)
	for i := len(d.leases) - 1; i > 0; i-- { // the end of a value goes first
		l := d.leases[i]
		n := l.Len()
		if _, err := v.store.Commit(ctx, nil, keys[len(keys)-n:], l); err != nil {
			return err
		}
		keys = keys[:len(keys)-n]
	}
	keys = laterKeys(first, h.content, d.pages)
	if same, err := v.replace(h, first, keys); same || err != nil {
		return err
	}
	if _, err := v.store.Commit(ctx, nil, []offload.Key{first}, d.leases[0]); err != nil {
		return err
	}
	v.names.add(name{h.ref, h.size, h.content, h.ends}, v.holds)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.count.stored++
	return nil
}

// replace deletes a value that is another one than that of h, whose later pages have keys. It
// reports whether it is the same one. The stripe is held.
func (v *values) replace(h header, first offload.Key, keys []offload.Key) (same bool, err error) {
	if _, n, err := v.store.Lookup(ctx, []offload.Key{first}); n == 0 || err != nil {
		return false, err
	}
	l, _ := v.store.Acquire(ctx, []offload.Key{first})
	defer l.Release()
	gone := []offload.Key{first}
	if l.Len() > 0 {
		old, ok := parseHeader(l.Block(0))
		if ok && old == h {
			again, _ := v.store.Acquire(ctx, keys) // a use of all pages
			again.Release()
			return true, nil
		}
		if ok && old.content != h.content {
			gone = append(gone, laterKeys(first, old.content, pages(old.size, v.cfg.PageBytes))...)
		}
	}
	v.mu.Lock()
	if el := v.promises[h.ref]; el != nil && h.pair {
		el.Value.(*promise).stale = true
	} else if el != nil {
		v.endPromise(el)
	}
	v.mu.Unlock()
	return false, v.store.Delete(ctx, gone...)
}

// half is one of a pair whose other one has not come.
type half struct {
	ref
	part
	draft *draft // the bytes; nil if they are lost
	meta  string
	ends  int64
	lost  bool // it has no memory, or was refused
	until time.Time
}

// maxHalves is how many halves of pairs wait; of the metadata, which counts not as bytes in flight,
// these have 8 MiB.
const maxHalves = 4096

// putHalf stores a pair when both halves are there, whichever comes first, and keeps a half
// until the other one comes. A half that comes again replaces itself. A half that is lost waits,
// too, and takes the other one with it: else that would make a pair with the half that comes next.
func (v *values) putHalf(h *half) error {
	v.mu.Lock()
	v.sweep()
	el := v.halves[h.ref]
	if el == nil || el.Value.(*half).part == h.part {
		if el != nil {
			v.dropHalf(el)
		} else if len(v.halves) == maxHalves {
			v.loseHalf(v.halfAges.Front())
		}
		h.until = v.now().Add(v.cfg.HalfAge)
		v.halves[h.ref] = v.halfAges.PushBack(h)
		v.mu.Unlock()
		return nil
	}
	bytes, meta := v.takeHalf(el), h
	if h.part == kvBytes {
		bytes, meta = h, bytes
	}
	lost := bytes.lost || meta.lost
	if lost {
		bytes.drop()
	}
	v.mu.Unlock()
	if lost {
		return nil
	}
	ends := bytes.ends
	if ends == 0 || meta.ends != 0 && meta.ends < ends {
		ends = meta.ends
	}
	return v.put(header{ref: h.ref, meta: meta.meta, ends: ends}, bytes.draft)
}

func (v *values) takeHalf(el *list.Element) *half {
	h := v.halfAges.Remove(el).(*half)
	delete(v.halves, h.ref)
	return h
}

// loseHalf drops a half that is too old, or of too many. A lost one was counted before, or refused.
func (v *values) loseHalf(el *list.Element) {
	if !el.Value.(*half).lost {
		v.count.halvesDropped++
	}
	v.dropHalf(el)
}

func (v *values) dropHalf(el *list.Element) { v.takeHalf(el).drop() }

// drop gives the memory of the bytes back.
func (h *half) drop() {
	if h.draft != nil {
		h.draft.drop()
		h.draft = nil
	}
}

// remove deletes a value, or only one whose time is over, and reports whether it was there.
func (v *values) remove(id ref, onlyExpired bool) (bool, error) {
	first := id.firstKey(v.epoch.Load())
	stripe := &v.stripes[first[0]]
	stripe.Lock()
	defer stripe.Unlock()
	gone, there := []offload.Key{first}, false
	e := v.load(id, first)
	if e != nil {
		there = !v.over(e.ends)
		gone = append(gone, laterKeys(first, e.content, e.leases[1].Len()+1)...)
		v.release(e)
	}
	if onlyExpired && (there || e == nil) {
		return false, nil
	}
	v.mu.Lock()
	if el := v.promises[id]; el != nil && !onlyExpired {
		v.endPromise(el)
	}
	if el := v.halves[id]; el != nil && !onlyExpired {
		v.dropHalf(el)
	}
	v.mu.Unlock()
	v.names.remove(id)
	return there, v.store.Delete(ctx, gone...)
}

// flush forgets all values. Their pages go as others come.
func (v *values) flush() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	epoch := v.epoch.Load() + 1
	if v.cfg.EpochFile != "" {
		if err := writeEpoch(v.cfg.EpochFile, epoch); err != nil {
			return err
		}
	}
	v.epoch.Store(epoch)
	v.forgetAll()
	v.names.clear()
	return nil
}

// writeEpoch syncs file and directory: after a loss of power an empty file would keep the server
// from starting, and the file before would bring back what was flushed.
func writeEpoch(name string, epoch uint64) error {
	in := filepath.Dir(name)
	next := filepath.Join(in, "."+filepath.Base(name))
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(binary.LittleEndian.AppendUint64(nil, epoch))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(next, name)
	}
	if err != nil || runtime.GOOS == "windows" { // directories cannot be synced there
		return err
	}
	dir, err := os.Open(in)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
