// Package hub downloads what tokenizers and chat templates are made of from the
// HuggingFace hub, into the local cache that all programs of HuggingFace share:
//
//	client := &hub.Client{Repo: func(name string) (repo, revision string, ok bool) {
//		repo, ok = served[name] // such as "Qwen/Qwen3-8B"
//		return repo, "main", ok
//	}}
//	models, err := kvindex.NewModels(kvindex.ModelsConfig{
//		PoolConfig: tokenize.PoolConfig{Find: client.Find},
//	})
//
// The protocol and the cache are those of huggingface_hub 1.28 (file_download.py,
// _snapshot_download.py, _tree_cache.py, constants.py, utils/_http.py) and of the page
// local-cache.md of hub-docs. Package tokenize reads that cache without net/http
// (tokenize.Hub).
package hub

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/kvindex/kvindex/tokenize/internal/hubcache"
)

// A Client finds models in the local cache of the hub, and downloads those that are not
// there. Only Repo must be set. The fields must not change after the first call. All methods
// are safe for concurrent use.
//
// A Client has no goroutine and no lock while none of its methods runs. Connections without a
// request belong to HTTP.
type Client struct {
	// Repo returns the repository that has the files of a served model, as "org/name", and
	// the revision: a branch, a tag or a whole commit hash; "" is main. Names come from
	// whoever sends a request. For a name without a repository Repo returns false: nothing is
	// looked up for this name, here or at the hub. It must be safe for concurrent use.
	Repo func(name string) (repo, revision string, ok bool)

	// Dir is the folder of the cache. "" is the folder of huggingface_hub, as for
	// tokenize.Hub.
	Dir string

	// Endpoint is the hub. "" is $HF_ENDPOINT, else https://huggingface.co.
	Endpoint string

	// Token is sent to Endpoint: to no other host or port that it redirects to, and never
	// without TLS if Endpoint has it. "" is the first of $HF_TOKEN, $HUGGING_FACE_HUB_TOKEN and
	// the token file, which is $HF_TOKEN_PATH or the file token in $HF_HOME; none of them if
	// $HF_HUB_DISABLE_IMPLICIT_TOKEN is set. They are read for each request.
	Token string

	// Offline makes no requests. It is also set by $HF_HUB_OFFLINE and
	// $TRANSFORMERS_OFFLINE.
	Offline bool

	// HTTP makes the requests, with a proxy or a CA of your own. Its CheckRedirect is not
	// called. nil is http.DefaultClient.
	HTTP *http.Client

	// Progress is called while a file is downloaded, after each MiB and at the end, with the
	// bytes that are there and those of the whole file. Calls for several files overlap.
	Progress func(repo, file string, done, size int64)

	// For tests.
	fault func(op, path string) error                      // fails an operation on a file; nil: none
	pause func(ctx context.Context, d time.Duration) error // nil: sleep
	now   func() time.Time                                 // nil: time.Now
	stall time.Duration                                    // 0: maxStall

	mu       sync.Mutex // guards all below
	calls    map[string]*call
	failed   map[string]failure
	listings map[string]listing // by the path of the file that keeps it
	refs     map[string]ref     // by path
	places   chan struct{}      // one for each request that runs
}

// Bounds of a Client.
const (
	maxFile     = 128 << 20 // bytes; tokenize reads no longer ones
	maxSnapshot = 512 << 20 // bytes of the files that are wanted
	maxListing  = 8 << 20   // bytes
	maxEntries  = 100_000   // files of a repository
	maxFiles    = 256       // of them wanted
	maxJumps    = 5         // redirects of a request
	maxRequests = 8         // at a time
	maxRetries  = 5         // without a new byte
	maxRemember = 256       // failures, and listings in memory
	maxStall    = 30 * time.Second
	maxWait     = time.Minute      // between two attempts
	maxTime     = 20 * time.Minute // of one download of a snapshot

	failedFor = time.Minute // how long an answer that will stay stands
)

// A call finds or updates one model, for all that wait for it.
type call struct {
	done    chan struct{} // closed when the rest is there
	cancel  context.CancelFunc
	waiting int // guarded by Client.mu
	dir     string
	moved   bool
	err     error
}

// A ref is the commit that a file held when it had this info.
type ref struct {
	info   os.FileInfo
	commit string
}

type failure struct {
	err   error
	until time.Time
}

// Find returns the folder of a model in the cache, for tokenize.PoolConfig.Find and
// kvindex.ModelsConfig. A snapshot that has all its files is found without a request, even if
// the hub has a newer one: see Update. Otherwise Find downloads the files that are missing.
// Several calls for one model make one download, which goes on until the last of them has
// given up.
//
// A snapshot has all its files if it has those that its repository lists at this commit and
// that package tokenize and tokenize/chat may read; weights are never among them. The listing
// is kept in the cache. A snapshot of another program without a kept listing costs one
// request, and Offline it is taken as it is.
//
// A name that Repo does not resolve is an error that wraps fs.ErrNotExist. A refusal of the hub
// is an *Error. It stands for a minute, or for the time in Retry-After, and no
// request is made for the model until then.
func (c *Client) Find(ctx context.Context, model string) (string, error) {
	dir, _, err := c.run(ctx, model, false)
	return dir, err
}

// Update checks whether the revision of a model has moved, downloads the new snapshot
// if so, and reports whether Find returns another folder now. The old snapshot stays. A tokenizer
// that a tokenize.Pool has loaded stays, too, until its Preload. After an error Find returns what it
// returned before.
func (c *Client) Update(ctx context.Context, model string) (moved bool, err error) {
	_, moved, err = c.run(ctx, model, true)
	return moved, err
}

func (c *Client) run(ctx context.Context, model string, update bool) (string, bool, error) {
	if err := ctx.Err(); err != nil {
		return "", false, err
	}
	s, err := c.resolve(model)
	if err != nil {
		return "", false, err
	}
	if !update {
		commit, dir, err := c.local(s)
		if err == nil && dir != "" {
			return dir, false, nil
		}
		if c.offline() {
			dir, err = c.asFound(s, commit, err)
			return dir, false, err
		}
	} else if c.offline() {
		return "", false, fmt.Errorf("hub: %s is not updated: offline", s)
	}
	dir, moved, err := c.share(ctx, s, update)
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("hub: %s: %w", s, err)
	}
	return dir, moved, err
}

// A source is a revision of a repository, and its folder in the cache.
type source struct {
	repo, revision string // checked
	cache          string // the folder of the cache
	dir            string // that of the repository in it
}

func (s source) String() string          { return s.repo + "@" + s.revision }
func (s source) ref() string             { return filepath.Join(s.dir, "refs", filepath.FromSlash(s.revision)) }
func (s source) pinned() bool            { return isCommit(s.revision) }
func (s source) at(commit string) string { return filepath.Join(s.dir, "snapshots", commit) }

// resolve returns what a model's name stands for.
func (c *Client) resolve(model string) (source, error) {
	if c.Repo == nil {
		return source{}, fmt.Errorf("hub: Client.Repo is nil: %w", fs.ErrInvalid)
	}
	repo, revision, ok := c.Repo(model)
	if !ok {
		return source{}, fmt.Errorf("hub: no repository is known for model %.200q: %w", model, fs.ErrNotExist)
	}
	if revision == "" {
		revision = "main"
	}
	if !hubcache.ValidRepo(repo) || !hubcache.ValidRevision(revision) {
		return source{}, fmt.Errorf("hub: model %.200q: repository %.200q at %.300q is no name of the hub: %w", model, repo, revision, fs.ErrInvalid)
	}
	cache, err := hubcache.Folder(c.Dir)
	if err != nil {
		return source{}, fmt.Errorf("hub: the folder of the cache: %w", err)
	}
	return source{repo, revision, cache, filepath.Join(cache, hubcache.RepoFolder(repo))}, nil
}

// local returns the commit that the cache has for a revision, "" if none, and the folder of
// its snapshot, "" if that is not known to have all its files.
func (c *Client) local(s source) (commit, dir string, err error) {
	commit = s.revision
	if !s.pinned() {
		if commit, err = c.readRef(s.ref()); err != nil || !isCommit(commit) {
			return "", "", err
		}
	}
	l, ok := c.kept(s, commit)
	if !ok || l.missing(s.at(commit)) != "" {
		return commit, "", nil
	}
	return commit, s.at(commit), nil
}

// readRef is hubcache.ReadRef, without opening a file that has not changed: that takes longer
// than all the rest.
func (c *Client) readRef(path string) (string, error) {
	info, err := os.Stat(path)
	c.mu.Lock()
	r, ok := c.refs[path]
	c.mu.Unlock()
	if err == nil && ok && os.SameFile(r.info, info) && r.info.ModTime().Equal(info.ModTime()) && r.info.Size() == info.Size() {
		return r.commit, nil
	}
	commit, err2 := hubcache.ReadRef(path)
	if err != nil || err2 != nil {
		return commit, err2
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refs == nil {
		c.refs = make(map[string]ref)
	}
	makeRoom(c.refs)
	c.refs[path] = ref{info, commit}
	return commit, nil
}

// missing returns a file of a listing that a snapshot does not have, or "".
func (l listing) missing(snapshot string) string {
	for _, f := range l.files {
		info, err := os.Stat(snapshot + string(filepath.Separator) + filepath.FromSlash(f.name))
		if err != nil || !info.Mode().IsRegular() || f.size >= 0 && info.Size() != f.size {
			return f.name
		}
	}
	return ""
}

// asFound returns the snapshot of a commit that nothing is listed of, for Offline.
func (c *Client) asFound(s source, commit string, err error) (string, error) {
	if err == nil && commit == "" {
		err = fmt.Errorf("no ref %s: %w", s.ref(), fs.ErrNotExist)
	}
	if err == nil {
		if l, ok := c.kept(s, commit); ok {
			err = fmt.Errorf("commit %s has %s, which is missing: %w", commit, l.missing(s.at(commit)), fs.ErrNotExist)
		} else {
			_, err = os.Stat(filepath.Join(s.at(commit), "tokenizer.json"))
			if _, tekken := os.Stat(filepath.Join(s.at(commit), "tekken.json")); tekken == nil {
				err = nil
			}
		}
	}
	if err != nil {
		return "", fmt.Errorf("hub: %s is not in the cache, and offline: %w", s, err)
	}
	return s.at(commit), nil
}

// share runs one fetch for all that request the same, until the last of them gives up.
func (c *Client) share(ctx context.Context, s source, update bool) (string, bool, error) {
	key := s.String()
	if update {
		key += " update"
	}
	c.mu.Lock()
	if f, ok := c.failed[s.String()]; ok && !update && c.clock().Before(f.until) {
		c.mu.Unlock()
		return "", false, f.err
	}
	t := c.calls[key]
	if t == nil {
		var do context.Context
		t = &call{done: make(chan struct{})}
		do, t.cancel = context.WithTimeoutCause(context.WithoutCancel(ctx), maxTime, errTooLong)
		if c.calls == nil {
			c.calls, c.places = make(map[string]*call), make(chan struct{}, maxRequests)
		}
		c.calls[key] = t
		go func() {
			defer t.cancel()
			t.dir, t.moved, t.err = c.fetch(do, s, update)
			c.end(key, s, t)
		}()
	}
	t.waiting++
	c.mu.Unlock()
	select {
	case <-t.done:
		return t.dir, t.moved, t.err
	case <-ctx.Done():
	}
	c.mu.Lock()
	t.waiting--
	last := t.waiting == 0
	if last && c.calls[key] == t {
		delete(c.calls, key) // a later caller needs another one
	}
	c.mu.Unlock()
	if last {
		t.cancel()
		<-t.done
	}
	return "", false, ctx.Err()
}

var errTooLong = fmt.Errorf("not done within %v", maxTime)

// end takes a call that is done from the others, and remembers what will not change soon.
func (c *Client) end(key string, s source, t *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls[key] == t {
		delete(c.calls, key)
	}
	if c.failed == nil {
		c.failed = make(map[string]failure)
	}
	delete(c.failed, s.String())
	var p *passingError
	if e := (*Error)(nil); errors.As(t.err, &e) && (e.after > 0 || !errors.As(t.err, &p)) {
		makeRoom(c.failed)
		c.failed[s.String()] = failure{t.err, c.clock().Add(max(e.after, failedFor))}
	}
	close(t.done)
}

// makeRoom takes any entry from a map that is full.
func makeRoom[V any](m map[string]V) {
	for k := range m {
		if len(m) < maxRemember {
			return
		}
		delete(m, k)
	}
}

func (c *Client) clock() time.Time {
	if c.now != nil {
		return c.now()
	}
	return time.Now()
}

// fetch brings the snapshot of a revision into the cache. With update it is the one that the
// hub has now, else the one of the ref in the cache, if there is one.
func (c *Client) fetch(ctx context.Context, s source, update bool) (dir string, moved bool, err error) {
	had, dir, err := c.local(s)
	if err != nil || dir != "" && !update {
		return dir, false, err
	}
	was, commit := dir, had
	var l listing
	known := false
	if commit != "" && !update {
		l, known = c.kept(s, commit)
	}
	if !known {
		revision := s.revision
		if commit != "" && !update {
			revision = commit
		}
		if commit, l, err = c.list(ctx, s, revision); err != nil {
			return "", false, err
		}
	}
	if was != "" && commit == had {
		return was, false, nil
	}
	// The listing comes first: with it a snapshot that was not completed is known to lack
	// something, also offline.
	if err := c.keep(s, commit, l); err != nil && l.missing(s.at(commit)) != "" {
		return "", false, err
	}
	if err := c.fill(ctx, s, commit, l); err != nil {
		return "", false, err
	}
	if err := c.writeRef(s, commit, had); err != nil {
		return "", false, err
	}
	return s.at(commit), s.at(commit) != was, nil
}

// writeRef lets a revision lead to a commit, whose snapshot is there. A cache that cannot be
// written has to be right already.
func (c *Client) writeRef(s source, commit, had string) error {
	if s.pinned() || commit == had {
		return nil
	}
	return c.write(s, s.ref(), []byte(commit))
}
