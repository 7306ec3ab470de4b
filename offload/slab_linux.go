package offload

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// slab is memory outside of Go's heap, a file without a name that another process can map.
type slab struct {
	fd    int
	bytes []byte
}

func newSlab(size int) (slab, error) {
	fd, err := unix.MemfdCreate("kvoffload", unix.MFD_CLOEXEC)
	if err != nil {
		return slab{}, fmt.Errorf("memfd_create: %w", err)
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return slab{}, errors.Join(fmt.Errorf("ftruncate: %w", err), unix.Close(fd))
	}
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return slab{}, errors.Join(fmt.Errorf("mmap: %w", err), unix.Close(fd))
	}
	return slab{fd, b}, nil
}

func (s slab) file() int { return s.fd }

func (s slab) free() error { return errors.Join(unix.Munmap(s.bytes), unix.Close(s.fd)) }
