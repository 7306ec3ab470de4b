package offload

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// openDirect opens a file past the page cache, and reports an error where the file system
// cannot.
func openDirect(name string, flag int) (*os.File, error) {
	return os.OpenFile(name, flag|unix.O_DIRECT, 0o600)
}

// lockFile takes a file for this process until it is closed.
func lockFile(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errors.New("another process has it")
	} else if err != nil {
		return fmt.Errorf("flock: %w", err)
	}
	return nil
}
