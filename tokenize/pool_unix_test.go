//go:build unix

package tokenize_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/kvindex/kvindex/tokenize"
)

// A pipe that nobody writes to is refused, not opened.
func TestPoolPipe(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := encodeErr(t.Context(), openPool(t, tokenize.PoolConfig{Find: finds(dir)}), "pipe"); !errors.Is(err, fs.ErrInvalid) {
		t.Error(err)
	}
}
