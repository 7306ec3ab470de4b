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

// A pipe is an error and is not opened.
func TestPoolPipe(t *testing.T) {
	dir := t.TempDir()
	must(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	if err := encodeErr(t.Context(), openPool(t, tokenize.PoolConfig{Find: finds(dir)}), "pipe"); !errors.Is(err, fs.ErrInvalid) {
		t.Error(err)
	}
}
