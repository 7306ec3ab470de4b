package hub

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// fill brings the files of a snapshot into the cache that are not there yet. A file is
// linked when its blob is whole, tokenizer.json and tekken.json when all others are linked, and a ref
// leads to the snapshot after that: so a process that is killed leaves nothing that is taken for
// complete, also by tokenize.Hub, which reads no listing.
func (c *Client) fill(ctx context.Context, s source, commit string, l listing) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var sum budget
	var all sync.WaitGroup
	for _, last := range []bool{false, true} {
		for _, f := range l.files {
			if last != (strings.HasPrefix(f.name, "tokenizer.json") || strings.HasPrefix(f.name, "tekken.json")) {
				continue
			}
			all.Go(func() {
				if err := c.file(ctx, s, commit, f, &sum); err != nil {
					cancel(fmt.Errorf("%s: %w", f.name, err))
				}
			})
		}
		all.Wait()
	}
	return context.Cause(ctx)
}

// A budget has the bytes of a snapshot whose listing has no sizes.
type budget struct {
	mu   sync.Mutex
	used int64
}

func (b *budget) take(n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used += n; b.used > maxSnapshot {
		return fmt.Errorf("the files have more than %d bytes", int64(maxSnapshot))
	}
	return nil
}

// file brings one file into a snapshot.
func (c *Client) file(ctx context.Context, s source, commit string, f file, sum *budget) error {
	path := filepath.Join(s.at(commit), filepath.FromSlash(f.name))
	if f.digest != "" && isWhole(path, f.digest, f.size) {
		return nil
	}
	counted, high := false, int64(0) // bytes that were there once
	return c.retry(ctx, func() (bool, error) {
		m, err := c.head(ctx, s, commit, f)
		if err == nil && !counted {
			counted, err = true, sum.take(m.size)
		}
		if err != nil {
			return false, err
		}
		if isWhole(path, m.etag, m.size) {
			return false, nil
		}
		blob := filepath.Join(s.dir, "blobs", m.etag)
		for _, dir := range []string{filepath.Dir(blob), filepath.Dir(path), filepath.Join(s.dir, "refs")} {
			if err := os.MkdirAll(dir, 0o777); err != nil {
				return false, err
			}
		}
		l, err := c.lock(ctx, s, m.etag)
		if err != nil {
			return false, err
		}
		defer l.unlock()
		if m.digest = m.etag; !isDigest(m.digest) {
			m.digest = f.digest
		}
		if isWhole(blob, m.digest, m.size) {
			return false, c.link(blob, path, false)
		}
		at, err := c.download(ctx, s, m, blob, l)
		if err != nil {
			was := high
			high = max(high, at)
			return high > was, err
		}
		return false, c.link(blob, path, true)
	})
}

// A sum hashes a file as a digest promises: SHA-256, or git's SHA-1 of a blob. Without a
// digest it promises nothing.
type sum struct {
	hash.Hash
	digest string
}

func newSum(digest string, size int64) sum {
	switch len(digest) {
	case sha256.Size * 2:
		return sum{sha256.New(), digest}
	case sha1.Size * 2:
		h := sha1.New()
		fmt.Fprintf(h, "blob %d\x00", size)
		return sum{h, digest}
	}
	return sum{}
}

func (s sum) Write(p []byte) (int, error) {
	if s.Hash != nil {
		return s.Hash.Write(p)
	}
	return len(p), nil
}

func (s sum) check() error {
	if s.Hash == nil {
		return nil
	}
	if got := hex.EncodeToString(s.Sum(nil)); got != s.digest {
		return fmt.Errorf("the bytes have digest %s, not %s", got, s.digest)
	}
	return nil
}

// isWhole reports whether a file has the size, if that is known, and the digest. Without a
// digest it is not.
func isWhole(path, digest string, size int64) bool {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || size >= 0 && info.Size() != size || !isDigest(digest) {
		return false
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	s := newSum(digest, info.Size())
	n, err := io.Copy(s, io.LimitReader(f, maxFile))
	return err == nil && n == info.Size() && s.check() == nil
}

// download makes a blob. A part that came before the connection was cut is kept, and resumed by a
// Range; but without a lock that excludes others the file is this call's alone, and goes
// with it. at is how many bytes of the file were there.
func (c *Client) download(ctx context.Context, s source, m meta, blob string, l lock) (at int64, err error) {
	f, from, err := c.incomplete(blob, m.size, l)
	if err != nil {
		return 0, err
	}
	defer func() {
		var p *passingError
		if err != nil && (!l.excludes || !errors.As(err, &p) && ctx.Err() == nil) {
			_ = os.Remove(f.Name())
		}
		f.Close()
	}()
	p := part{File: f, sum: newSum(m.digest, m.size), from: from}
	if _, err := io.Copy(p.sum, io.LimitReader(f, from)); err != nil {
		return 0, err
	}
	if from < m.size {
		if at, err = c.receive(ctx, s, m, &p); err != nil {
			return at, err
		}
	}
	if err := p.sum.check(); err != nil {
		err = fmt.Errorf("%s: %w", redacted(m.from), err)
		if from > 0 { // the kept part may be the wrong one
			_ = os.Remove(f.Name())
			err = &passingError{err}
		}
		return m.size, err
	}
	if err := c.failing("sync", f.Name(), f.Sync); err != nil {
		return 0, err
	}
	if !isAt(f, f.Name()) {
		return 0, fmt.Errorf("%s is not the file that was written", f.Name())
	}
	if err := f.Close(); err != nil {
		return 0, err
	}
	return m.size, c.failing("rename", blob, func() error { return os.Rename(f.Name(), blob) })
}

// incomplete opens the file that becomes a blob, and returns how much of it is there.
func (c *Client) incomplete(blob string, size int64, l lock) (f *os.File, from int64, err error) {
	err = c.failing("create", blob, func() error {
		if !l.excludes {
			f, err = create(filepath.Dir(blob), filepath.Base(blob)+".")
			return err
		}
		if f, err = os.OpenFile(blob+".kvindex.incomplete", os.O_RDWR|os.O_CREATE, 0o666); err != nil {
			return err
		}
		info, err := f.Stat()
		if err == nil && info.Size() <= size {
			from = info.Size()
			return nil
		}
		if err == nil {
			err = f.Truncate(0)
		}
		if err != nil {
			f.Close()
		}
		return err
	})
	return f, from, err
}

// A part is a file that is being downloaded, and the sum of what it has.
type part struct {
	*os.File
	sum  sum
	from int64 // up to where it has the bytes
}

// receive gets the bytes of a file behind p.from, and returns up to where they are there.
func (c *Client) receive(ctx context.Context, s source, m meta, p *part) (at int64, err error) {
	from := p.from
	header := http.Header{}
	if from > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-", from))
	}
	a, err := c.send(ctx, http.MethodGet, m.from, header)
	if err != nil {
		if e := (*Error)(nil); errors.As(err, &e) && e.Status == http.StatusRequestedRangeNotSatisfiable && from > 0 {
			_ = os.Remove(p.Name())
			err = &passingError{err}
		}
		return from, err
	}
	defer a.Close()
	if from > 0 && a.StatusCode != http.StatusPartialContent {
		from, p.sum = 0, newSum(m.digest, m.size) // all of it again, over what is there
	} else if want := fmt.Sprintf("bytes %d-%d/%d", from, m.size-1, m.size); from > 0 && a.Header.Get("Content-Range") != want {
		return from, fmt.Errorf("%s: Content-Range is %.60q, not %q", redacted(a.Request.URL), a.Header.Get("Content-Range"), want)
	} else if from == 0 && a.StatusCode != http.StatusOK {
		return from, fmt.Errorf("%s: status %d", redacted(a.Request.URL), a.StatusCode)
	}
	at, reported := from, from
	buf := make([]byte, min(256<<10, m.size-from+1))
	for {
		n, err := a.Read(buf)
		if at+int64(n) > m.size {
			return at, fmt.Errorf("%s: more than the %d bytes that were announced", redacted(a.Request.URL), m.size)
		}
		_, _ = p.sum.Write(buf[:n]) // it has no error
		if failed := c.failing("write", p.Name(), func() error { _, err := p.WriteAt(buf[:n], at); return err }); failed != nil {
			return at, failed
		}
		at += int64(n)
		if c.Progress != nil && (at-reported >= 1<<20 || errors.Is(err, io.EOF)) {
			reported = at
			c.Progress(s.repo, m.name, at, m.size)
		}
		if errors.Is(err, io.EOF) && at < m.size {
			err = &passingError{fmt.Errorf("%s: %d bytes of %d", redacted(a.Request.URL), at, m.size)}
		}
		if errors.Is(err, io.EOF) {
			return at, nil
		}
		if err != nil {
			return at, err
		}
	}
}

// link lets a file of a snapshot be a blob. Where links are not supported it is the blob
// itself, if that is new, or a copy.
func (c *Client) link(blob, path string, isNew bool) error {
	back, err := filepath.Rel(filepath.Dir(path), blob)
	if err != nil {
		return err
	}
	// A name of its own first: so there is no moment without a file, and none with half of one.
	f, err := create(filepath.Dir(blob), "link.")
	if err != nil {
		return err
	}
	f.Close()
	defer os.Remove(f.Name())
	err = c.failing("link", path, func() error {
		return errors.Join(os.Remove(f.Name()), os.Symlink(back, f.Name()))
	})
	if err == nil {
		return os.Rename(f.Name(), path)
	}
	if !noLinks(err) {
		return err
	}
	if isNew {
		return os.Rename(blob, path)
	}
	return copyFile(blob, path)
}

func copyFile(blob, path string) error {
	from, err := os.Open(blob)
	if err != nil {
		return err
	}
	defer from.Close()
	return replace(filepath.Dir(blob), path, from)
}

// write makes a small file of the cache, whole or not at all.
func (c *Client) write(s source, path string, text []byte) error {
	return c.failing("write", path, func() error {
		for _, dir := range []string{filepath.Join(s.dir, "blobs"), filepath.Dir(path)} {
			if err := os.MkdirAll(dir, 0o777); err != nil {
				return err
			}
		}
		return replace(filepath.Join(s.dir, "blobs"), path, strings.NewReader(string(text)))
	})
}

// replace makes a file beside blobs and then moves it to its path. Files that are not whole
// are nowhere else: other programs take what is in refs and snapshots for whole.
func replace(blobs, path string, content io.Reader) error {
	f, err := create(blobs, "file.")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = io.Copy(f, content)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// failing does an operation on a file, unless a test has it fail.
func (c *Client) failing(op, path string, do func() error) error {
	if c.fault != nil {
		if err := c.fault(op, path); err != nil {
			return err
		}
	}
	return do()
}

// noLinks reports whether an error means that the file system has no symbolic links.
func noLinks(err error) bool {
	return errors.Is(err, errors.ErrUnsupported) || errors.Is(err, fs.ErrPermission)
}
