package offload_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvindex/kvindex/offload"
)

// mapped maps a file and copies n bytes out of it.
func mapped(f *os.File, offset int64, n int) (b []byte, err error) {
	skip := int(offset % int64(os.Getpagesize()))
	m, err := unix.Mmap(int(f.Fd()), offset-int64(skip), skip+n, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return bytes.Clone(m[skip:][:n]), unix.Munmap(m)
}

// TestMappedChild is the process of TestMapped: it prints a block of the file it inherits.
func TestMappedChild(t *testing.T) {
	var offset int64
	var n int
	if _, err := fmt.Sscan(os.Getenv("KVOFFLOAD_MAPPED"), &offset, &n); err != nil {
		return // TestMapped runs it
	}
	b, err := mapped(os.NewFile(3, "blocks"), offset, n)
	must(t, err)
	fmt.Printf("block %x\n", b)
	os.Exit(0)
}

// TestMapped maps the files of a lease's blocks again, also in another process: the mappings have
// the bytes of the blocks, and of later writes.
func TestMapped(t *testing.T) {
	sp := space(3000)
	s := opened(t, offload.Config{Space: sp, MemoryBytes: 3000 * 20, SlabBytes: 3000 * 7})
	defer closed(t, s)
	c := chain(1, 20)
	fresh, err := s.Alloc(ctx, 20)
	must(t, err)
	files := make(map[int]bool)
	check := func(l *offload.Lease, i int) {
		fd, offset := l.File(i)
		files[fd] = true
		f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_RDWR, 0)
		must(t, err)
		if b, err := mapped(f, offset, 3000); err != nil || !bytes.Equal(b, content(sp, c[i])) {
			t.Errorf("block %d: %v", i, err)
		}
		if i == 9 {
			cmd := exec.Command(os.Args[0], "-test.run", "^TestMappedChild$")
			cmd.Env = append(os.Environ(), fmt.Sprintf("KVOFFLOAD_MAPPED=%d 3000", offset))
			cmd.ExtraFiles = []*os.File{f}
			if out, err := cmd.Output(); err != nil || string(out) != fmt.Sprintf("block %x\n", content(sp, c[i])) {
				t.Errorf("another process: %.200s, %v", out, err)
			}
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	for i, k := range c {
		fill(fresh.Block(i), sp.ID(), k)
		check(fresh, i)
	}
	if _, err := s.Commit(ctx, nil, c, fresh); err != nil {
		t.Fatal(err)
	}
	l, err := s.Acquire(ctx, c)
	if l.Len() != 20 || err != nil {
		t.Fatal(l.Len(), err)
	}
	for i := range l.Len() {
		check(l, i)
	}
	if len(files) != 3 {
		t.Errorf("%d files of memory, want 3", len(files))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	check(l, 5) // the lease outlives its store
	l.Release()
	for fd := range files {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); !errors.Is(err, unix.EBADF) && st.Size > 0 && st.Size%3000 == 0 {
			t.Errorf("the descriptor %d is open: %v", fd, err)
		}
	}
}
