package tokenize

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/kvindex/kvindex/tokenize/internal/hubcache"
)

// A Hub is a local cache of the HuggingFace hub, laid out as huggingface_hub 1.1
// does:
//
//	models--ORG--NAME/refs/main                     holds a COMMIT
//	models--ORG--NAME/snapshots/COMMIT/tokenizer.json -> ../../blobs/HASH
//
// Nothing is downloaded: package hub does that.
type Hub struct {
	// Dir is the folder of the cache. With "" it is the folder that huggingface_hub
	// (constants.py) uses: the first of $HF_HUB_CACHE, $HUGGINGFACE_HUB_CACHE,
	// $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub and ~/.cache/huggingface/hub whose
	// variable is set and not empty.
	Dir string
}

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
	if !hubcache.ValidRepo(repo) || !hubcache.ValidRevision(revision) {
		return "", fmt.Errorf("%.200q is not the name of a model on the hub: %w", model, fs.ErrInvalid)
	}
	dir, err := hubcache.Folder(h.Dir)
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, hubcache.RepoFolder(repo))
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
	commit, err := hubcache.ReadRef(filepath.Join(dir, "refs", filepath.FromSlash(revision)))
	if err != nil {
		return "", err
	}
	if commit == "" { // no such ref
		commit = revision
	}
	if !hubcache.ValidPart(commit) {
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
	if err != nil && !hasTekken(snapshot) {
		return "", fmt.Errorf("no tokenizer.json in snapshot %s: %w", commit, err)
	}
	return snapshot, nil
}
