package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvindex/kvindex/tokenize/internal/hubcache"
)

// names are the files that packages tokenize and chat read or look for, as they are or with
// .gz; TestNames compares with their sources. The templates in the folder templates and the
// files tokenizer.model.v* of Mistral are the rest.
var names = map[string]bool{
	"config.json": true, "tokenizer.json": true, "tokenizer_config.json": true,
	"special_tokens_map.json": true, "added_tokens.json": true,
	"chat_template.jinja": true, "chat_template.json": true,
	"processor_config.json": true, "preprocessor_config.json": true,
	"tekken.json": true, "tiktoken.model": true, "tokenizer.model": true,
}

const templates = "additional_chat_templates/"

// wanted reports whether a file of a repository belongs to a snapshot. A name that must not
// be a path is an error, as a snapshot without the file would be another model.
func wanted(name string) (bool, error) {
	plain := strings.TrimSuffix(name, ".gz")
	if names[plain] {
		return true, nil
	}
	base, inTemplates := strings.CutPrefix(name, templates)
	ok := strings.HasPrefix(name, "tokenizer.model.v") || inTemplates && strings.HasSuffix(plain, ".jinja")
	if !ok || strings.Contains(base, "/") { // a folder within one is not looked into
		return false, nil
	}
	if !hubcache.ValidPart(base) {
		return false, fmt.Errorf("a listing with the file %.200q: %w", name, fs.ErrInvalid)
	}
	return true, nil
}

// A listing has the files of a commit that are wanted, and the text that keeps it.
type listing struct {
	files []file
	text  []byte // nil: it was read from where it is kept
}

type file struct {
	name   string
	size   int64  // -1: not listed
	digest string // SHA-256 or git's SHA-1, as isDigest has it; "": not listed
}

// list requests the files of a revision and for its commit.
func (c *Client) list(ctx context.Context, s source, revision string) (commit string, l listing, err error) {
	to, err := c.address("/api/models/" + s.repo + "/revision/" + url.PathEscape(revision) + "?blobs=true")
	if err != nil {
		return "", l, err
	}
	err = c.retry(ctx, func() (bool, error) {
		a, err := c.send(ctx, http.MethodGet, to, http.Header{"Accept": {"application/json"}})
		if err != nil {
			return false, err
		}
		defer a.Close()
		if kind, _, _ := mime.ParseMediaType(a.Header.Get("Content-Type")); kind != "application/json" {
			return false, fmt.Errorf("%s: %.60q is not JSON: a proxy, or not a hub", redacted(a.Request.URL), kind)
		}
		text, err := io.ReadAll(io.LimitReader(a, maxListing+1))
		if err != nil {
			return false, err
		}
		if len(text) > maxListing {
			return false, fmt.Errorf("%s: a listing of more than %d bytes", redacted(a.Request.URL), maxListing)
		}
		if commit, l, err = parseInfo(text); err != nil {
			return false, fmt.Errorf("%s: %w", redacted(a.Request.URL), err)
		}
		return false, nil
	})
	if err == nil && isCommit(revision) && commit != revision {
		err = fmt.Errorf("the hub answers commit %s to %s", commit, revision)
	}
	if err == nil && len(l.files) == 0 {
		err = fmt.Errorf("commit %s has no file of a tokenizer or a chat: %w", commit, fs.ErrNotExist)
	}
	return commit, l, err
}

// parseInfo reads an answer of /api/models.
func parseInfo(text []byte) (commit string, l listing, err error) {
	var info struct {
		SHA      string `json:"sha"`
		Siblings *[]struct {
			Name string `json:"rfilename"`
			Size *int64 `json:"size"`
			Blob string `json:"blobId"`
			LFS  *struct {
				SHA256 string `json:"sha256"`
				Size   int64  `json:"size"`
			} `json:"lfs"`
		} `json:"siblings"`
	}
	if err := json.Unmarshal(text, &info); err != nil {
		return "", l, fmt.Errorf("a listing: %w", err)
	}
	if !isCommit(info.SHA) || info.Siblings == nil {
		return "", l, fmt.Errorf("no listing: commit %.60q, or no files", info.SHA)
	}
	t := tree{Version: treeVersion, Files: make(map[string]treeFile)}
	for _, f := range *info.Siblings {
		e := treeFile{Size: f.Size, Blob: f.Blob}
		if f.LFS != nil {
			e.SHA256, e.LFSSize = f.LFS.SHA256, f.LFS.Size
		}
		if f.Size == nil || f.Blob == "" {
			t.Version = 0 // a mirror that lists names only
		}
		if _, twice := t.Files[f.Name]; twice {
			return "", l, fmt.Errorf("a listing with %.200q twice", f.Name)
		}
		t.Files[f.Name] = e
	}
	if l.files, err = t.wanted(); err != nil {
		return "", l, err
	}
	l.text, err = json.MarshalIndent(t, "", " ")
	return info.SHA, l, err
}

// A tree is the file trees/COMMIT.json of huggingface_hub (_tree_cache.py), whose version
// is 1. Version 0, which that does not read, is ours: some sizes or blobs are not known.
type tree struct {
	Version int                 `json:"format_version"`
	Files   map[string]treeFile `json:"files"`
}

const treeVersion = 1

type treeFile struct {
	Size    *int64 `json:"size,omitempty"`
	Blob    string `json:"blob_id,omitempty"`
	SHA256  string `json:"lfs_sha256,omitempty"`
	LFSSize int64  `json:"lfs_size,omitempty"`
	Xet     string `json:"xet_hash,omitempty"`
}

// wanted returns the files of a tree that are wanted.
func (t tree) wanted() ([]file, error) {
	if len(t.Files) > maxEntries {
		return nil, fmt.Errorf("a listing of %d files, more than %d", len(t.Files), maxEntries)
	}
	var files []file
	sum := int64(0)
	for _, name := range slices.Sorted(maps.Keys(t.Files)) {
		ok, err := wanted(name)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		e := t.Files[name]
		f := file{name: name, size: -1, digest: e.Blob}
		if e.Size != nil {
			f.size = *e.Size
		}
		if e.SHA256 != "" {
			f.digest, f.size = e.SHA256, e.LFSSize
		}
		if f.digest != "" && !isDigest(f.digest) || f.size > maxFile || f.size < 0 && (e.Size != nil || e.SHA256 != "") {
			return nil, fmt.Errorf("a listing with %q of %d bytes and digest %.80q", name, f.size, f.digest)
		}
		sum += max(f.size, 0)
		files = append(files, f)
	}
	if sum > maxSnapshot || len(files) > maxFiles {
		return nil, fmt.Errorf("%d files of %d bytes, more than %d or %d", len(files), sum, maxFiles, int64(maxSnapshot))
	}
	return files, nil
}

func treePath(s source, commit string) string {
	return filepath.Join(s.dir, "trees", commit+".json")
}

// kept returns the listing of a commit that is in memory or in the cache.
func (c *Client) kept(s source, commit string) (listing, bool) {
	path := treePath(s, commit)
	c.mu.Lock()
	l, ok := c.listings[path]
	c.mu.Unlock()
	if ok {
		return l, true
	}
	f, err := os.Open(path)
	if err != nil {
		return listing{}, false
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 2*maxListing))
	if err == nil {
		l.files, err = parseTree(text)
	}
	if err != nil || len(l.files) == 0 {
		return listing{}, false // it is requested again
	}
	c.remember(path, l)
	return l, true
}

func parseTree(text []byte) ([]file, error) {
	var t tree
	if err := json.Unmarshal(text, &t); err != nil {
		return nil, err
	}
	if t.Version != 0 && t.Version != treeVersion || t.Files == nil {
		return nil, errors.New("a tree of another version")
	}
	return t.wanted()
}

func (c *Client) remember(path string, l listing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.listings == nil {
		c.listings = make(map[string]listing)
	}
	makeRoom(c.listings)
	l.text = nil
	c.listings[path] = l
}

// keep keeps the listing of a commit. After an error it is in memory only.
func (c *Client) keep(s source, commit string, l listing) error {
	path := treePath(s, commit)
	c.remember(path, l)
	if l.text == nil {
		return nil
	}
	err := c.write(s, path, l.text)
	if err == nil {
		markMissing(s, commit, l)
	}
	return err
}

// markMissing records, for other programs, the files that they look for and that are not in the
// repository: each has an empty file in .no_exist.
func markMissing(s source, commit string, l listing) {
	dir := filepath.Join(s.dir, ".no_exist", commit)
	_ = os.MkdirAll(dir, 0o777)
	for name := range names {
		if !slices.ContainsFunc(l.files, func(f file) bool { return f.name == name }) {
			_ = os.WriteFile(filepath.Join(dir, name), nil, 0o666)
		}
	}
}

// isCommit reports whether s is a whole hash of a commit.
func isCommit(s string) bool { return len(s) == 40 && isHex(s) }

// isDigest reports whether s is a SHA-256 or a SHA-1 of git.
func isDigest(s string) bool { return (len(s) == 64 || len(s) == 40) && isHex(s) }

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }
