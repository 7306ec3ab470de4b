package hub

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// A lock is held while a blob is made: that of huggingface_hub, .locks/REPO/ETAG.lock. It
// keeps others from downloading the same, and nothing more: a file taken for a blob was
// checked and renamed. So after softWait without progress a soft lock, which the process
// that made it may have left, is not waited for any more.
type lock struct {
	excludes bool // no other process has it
	unlock   func()
}

const (
	lockPoll = 50 * time.Millisecond
	softWait = time.Minute
)

// lock is WeakFileLock of utils/_fixes.py: flock, and where that is not supported the
// file's existence (SoftFileLock of filelock).
func (c *Client) lock(ctx context.Context, s source, etag string) (lock, error) {
	path := filepath.Join(s.cache, ".locks", filepath.Base(s.dir), etag+".lock")
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return lock{}, err
	}
	for waited := time.Duration(0); ; waited += lockPoll {
		l, soft, err := c.tryLock(path)
		if err != nil || l.unlock != nil {
			return l, err
		}
		if soft && waited >= softWait {
			return lock{unlock: func() {}}, nil
		}
		if err := c.sleep(ctx, lockPoll); err != nil {
			return lock{}, err
		}
	}
}

// tryLock returns the lock, or one without unlock if another has it. soft reports that the
// file is the lock.
func (c *Client) tryLock(path string) (l lock, soft bool, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o664)
	made := err == nil
	if errors.Is(err, fs.ErrExist) {
		f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o664)
	}
	if err != nil {
		return lock{}, false, err
	}
	busy := false
	err = c.failing("lock", path, func() (err error) { busy, err = flock(f); return err })
	switch {
	case err == nil && !busy && isAt(f, path):
		return lock{true, func() { f.Close() }}, false, nil
	case err == nil: // another has it, or has removed it meanwhile
		f.Close()
		return lock{}, false, nil
	case !errors.Is(err, errors.ErrUnsupported):
		f.Close()
		return lock{}, false, err
	}
	f.Close()
	if !made {
		return lock{}, true, nil
	}
	return lock{unlock: func() { _ = os.Remove(path) }}, true, nil
}

func isAt(f *os.File, path string) bool {
	mine, err := f.Stat()
	now, err2 := os.Stat(path)
	return err == nil && err2 == nil && os.SameFile(mine, now)
}

// create makes a file of its own, with the permissions of a new file: those of
// os.CreateTemp are the owner's alone.
func create(dir, prefix string) (*os.File, error) {
	return os.OpenFile(filepath.Join(dir, prefix+rand.Text()[:10]+".incomplete"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
}
