package tokenize

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
)

// A Hub is a local cache of the HuggingFace hub, laid out as huggingface_hub 1.1
// does:
//
//	models--ORG--NAME/refs/main                     holds a COMMIT
//	models--ORG--NAME/snapshots/COMMIT/tokenizer.json -> ../../blobs/HASH
//
// Nothing is downloaded.
type Hub struct {
	// Dir is the folder of the cache. With "" it is the folder that huggingface_hub
	// (constants.py) uses: the first of $HF_HUB_CACHE, $HUGGINGFACE_HUB_CACHE,
	// $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub and ~/.cache/huggingface/hub whose
	// variable is set and not empty.
	Dir string
}

const (
	maxRepoName = 96  // bytes of each part of a model's name, as the hub has it
	maxRevision = 255 // bytes
)

// Find returns the folder of a model in the cache, for PoolConfig.Find and for
// LoadPretrained. model is "name" or "org/name", and may end with "@" and a revision: a
// branch, a tag or a whole commit hash. Without one the revision is main.
//
// A model that is not in the cache is an error that wraps fs.ErrNotExist. A name or
// revision that the hub does not allow is an error that wraps fs.ErrInvalid; no name
// leads out of the folder.
func (h Hub) Find(ctx context.Context, model string) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	repo, revision, ok := strings.Cut(model, "@")
	if !ok {
		revision = "main"
	}
	if !validRepo(repo) || !validRevision(revision) {
		return "", fmt.Errorf("%.200q is not the name of a model on the hub: %w", model, fs.ErrInvalid)
	}
	dir, err := h.dir()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, "models--"+strings.ReplaceAll(repo, "/", "--"))
	snapshot, err := findSnapshot(dir, revision)
	if err != nil {
		err = fmt.Errorf("revision %q in %s: %w", revision, dir, err)
	}
	if errors.Is(err, fs.ErrNotExist) {
		how := "hf download " + repo
		if ok {
			how += " --revision " + revision
		}
		err = fmt.Errorf("%w: %q fetches it, if that is its name on the hub", err, how)
	}
	return snapshot, err
}

// findSnapshot does what try_to_load_from_cache does in huggingface_hub 1.1,
// file_download.py.
func findSnapshot(dir, revision string) (string, error) {
	commit, err := readRef(filepath.Join(dir, "refs", filepath.FromSlash(revision)))
	if err != nil {
		return "", err
	}
	if commit == "" { // no such ref
		commit = revision
	}
	if !validPart(commit) {
		return "", fmt.Errorf("no ref, and no commit either: %w", fs.ErrNotExist)
	}
	snapshot := filepath.Join(dir, "snapshots", commit)
	if _, err := os.Stat(snapshot); err != nil {
		return "", fmt.Errorf("no snapshot %s: %w", commit, err)
	}
	info, err := os.Stat(filepath.Join(snapshot, "tokenizer.json"))
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return "", fmt.Errorf("no tokenizer.json in snapshot %s: %w", commit, err)
	}
	return snapshot, nil
}

// readRef returns the commit that a ref names, "" if there is no such ref.
func readRef(path string) (string, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return "", nil
	case err != nil:
		return "", err
	case !info.Mode().IsRegular(): // such as the folder of refs/pr/1
		return "", nil
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxRepoName+2)) // one more than a commit and its newline
	return strings.TrimSpace(string(b)), err
}

func (h Hub) dir() (string, error) {
	if h.Dir != "" {
		return h.Dir, nil
	}
	for _, of := range []struct{ variable, under string }{
		{"HF_HUB_CACHE", ""},
		{"HUGGINGFACE_HUB_CACHE", ""},
		{"HF_HOME", "hub"},
		{"XDG_CACHE_HOME", "huggingface/hub"},
	} {
		if dir := os.Getenv(of.variable); dir != "" {
			dir, err := expand(dir)
			return filepath.Join(dir, filepath.FromSlash(of.under)), err
		}
	}
	return expand("~/.cache/huggingface/hub")
}

// expand replaces a leading ~ and variables, which huggingface_hub does too.
func expand(dir string) (string, error) {
	if rest, ok := strings.CutPrefix(dir, "~"); ok && (rest == "" || os.IsPathSeparator(rest[0])) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", err
		}
		dir = home + rest
	}
	return filepath.FromSlash(os.ExpandEnv(dir)), nil
}

// validRepo is validate_repo_id of huggingface_hub 1.1, utils/_validators.py.
func validRepo(repo string) bool {
	org, name, ok := strings.Cut(repo, "/")
	if !ok {
		org, name = name, org
	}
	return (!ok || validPart(org)) && validPart(name) &&
		!strings.Contains(repo, "--") && !strings.Contains(repo, "..") && !strings.HasSuffix(repo, ".git")
}

const partBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."

// validPart reports whether s is of partBytes, '-' and '.' neither first nor last: so
// that it is one name in a folder.
func validPart(s string) bool {
	return s != "" && len(s) <= maxRepoName &&
		strings.Trim(s, partBytes) == "" && strings.Trim(s, "-.") == s
}

// validRevision admits what git admits as the name of a ref, as far as it is the
// path of a file in the folder of refs.
func validRevision(s string) bool {
	if len(s) > maxRevision || strings.Contains(s, "..") || path.Clean(s) != s || !filepath.IsLocal(filepath.FromSlash(s)) {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r == 0x7f || strings.ContainsRune(`\:~^?*[`, r)
	})
}
