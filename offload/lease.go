package offload

// Lease holds blocks of a Store where they are. It belongs to one goroutine at a time; its
// blocks can be read by several. Each lease must be released: Stats.Leased counts what is
// not. The zero Lease is empty.
type Lease struct {
	s     *Store
	slots []uint32
	fresh bool // of Alloc
}

// Len returns the number of blocks.
func (l *Lease) Len() int { return len(l.slots) }

// Block returns the bytes of block i, which others can read too: only the blocks of Alloc may
// be written, and only before Commit. They may not be used after Release.
func (l *Lease) Block(i int) []byte { return l.s.block(l.slots[i]) }

// File returns the file of memory that block i is in, and where, for another process to map: it
// gets the file by its descriptor. The block has Space.BlockBytes, and begins at no page. The
// descriptor is the Store's, and open as long as the lease holds the block; others may lie in the
// same file. Where memory is on the heap, on other systems than Linux, fd is -1.
func (l *Lease) File(i int) (fd int, offset int64) {
	m, at := l.s.place(l.slots[i])
	return m.file(), int64(at)
}

// Truncate releases all blocks but the first n.
func (l *Lease) Truncate(n int) {
	if n >= len(l.slots) {
		return
	}
	l.s.release(l.slots[n:])
	l.slots = l.slots[:n]
}

// Release gives all blocks back. It can be called again.
func (l *Lease) Release() { l.Truncate(0) }

func (s *Store) release(slots []uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.letGo(slots)
	_ = s.unmap() // nobody gets the error
}
