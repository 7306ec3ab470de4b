package offload

import "context"

// Backend is a tier of blocks below the memory. Its answers have the positions of its
// arguments. Its methods may be called at the same time, and keep none of their arguments.
// The suite of package backendtest tests what can be seen from outside.
type Backend interface {
	// Has sets hit[i] if the block keys[i] of the space is there, and else clears it. There are as
	// many hits as keys. With an error it can leave hits as they were; those that it sets are right.
	Has(ctx context.Context, space SpaceID, keys []Key, hit []bool) error
	// Get copies blocks into dst, from keys[0] on, until one is not there, and returns how
	// many. That a block is not there is no error; that one is corrupt, one behind the end too,
	// is ErrCorrupt, and it is absent from then on. Whatever the error, the first n blocks are
	// right, and the bytes of the others in dst are undefined.
	Get(ctx context.Context, space SpaceID, keys []Key, dst [][]byte) (n int, err error)
	// Put stores blocks, from keys[0] on, and returns how many it has stored or had. It may drop
	// other blocks for them. A block that is there already keeps its bytes. Stored blocks
	// survive the end of the process, if the Backend is one that outlives it.
	Put(ctx context.Context, space SpaceID, keys []Key, src [][]byte) (n int, err error)
	// Delete removes blocks. That one is not there is no error.
	Delete(ctx context.Context, space SpaceID, keys []Key) error
	// Close ends the use of the Backend: all else returns ErrClosed. It can be called again.
	Close() error
}
