// Package hubcache has the layout of the local cache of the HuggingFace hub, as
// huggingface_hub 1.28 has it (constants.py, utils/_validators.py, file_download.py): where
// the cache is, which names may become paths in it, and what a ref holds.
package hubcache

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

const (
	maxPart     = 96  // bytes of each part of a model's name, as the hub has it
	maxRevision = 255 // bytes
)

// Folder returns dir, or with "" the folder that the environment names: the first of
// $HF_HUB_CACHE, $HUGGINGFACE_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub and
// ~/.cache/huggingface/hub whose variable is set and not empty.
func Folder(dir string) (string, error) {
	if dir != "" {
		return dir, nil
	}
	for _, variable := range []string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"} {
		if dir := os.Getenv(variable); dir != "" {
			return Expand(dir)
		}
	}
	home, err := Home()
	return filepath.Join(home, "hub"), err
}

// Home returns the folder of all that HuggingFace's programs keep: the cache is in it, and
// the token.
func Home() (string, error) {
	if dir := os.Getenv("HF_HOME"); dir != "" {
		return Expand(dir)
	}
	dir := os.Getenv("XDG_CACHE_HOME")
	if dir == "" {
		dir = "~/.cache"
	}
	dir, err := Expand(dir)
	return filepath.Join(dir, "huggingface"), err
}

// variable is a reference to a variable of the environment, as Python's os.path.expandvars has it.
var variable = regexp.MustCompile(`\$([0-9A-Za-z_]+|\{[^}]*\})`)

// Expand replaces a leading ~ and variables. A variable that is not set stays as it is written.
func Expand(dir string) (string, error) {
	if rest, ok := strings.CutPrefix(dir, "~"); ok && (rest == "" || os.IsPathSeparator(rest[0])) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", err
		}
		dir = home + rest
	}
	return filepath.FromSlash(variable.ReplaceAllStringFunc(dir, func(s string) string {
		value, ok := os.LookupEnv(strings.TrimSuffix(strings.TrimPrefix(s[1:], "{"), "}"))
		if !ok {
			return s
		}
		return value
	})), nil
}

// RepoFolder returns the name of the folder of a repository of a model.
func RepoFolder(repo string) string { return "models--" + strings.ReplaceAll(repo, "/", "--") }

// ReadRef returns the commit that a ref names, or "" if there is no such ref. It does
// not check the commit.
func ReadRef(path string) (string, error) {
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
	b, err := io.ReadAll(io.LimitReader(f, maxPart+2)) // one more than a commit and its newline
	return strings.TrimSpace(string(b)), err
}

// ValidRepo is validate_repo_id.
func ValidRepo(repo string) bool {
	org, name, ok := strings.Cut(repo, "/")
	if !ok {
		org, name = name, org
	}
	return (!ok || ValidPart(org)) && ValidPart(name) &&
		!strings.Contains(repo, "--") && !strings.Contains(repo, "..") && !strings.HasSuffix(repo, ".git")
}

const partBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."

// ValidPart reports whether s is of partBytes, '-' and '.' neither first nor last: so
// that it is one name in a folder.
func ValidPart(s string) bool {
	return s != "" && len(s) <= maxPart &&
		strings.Trim(s, partBytes) == "" && strings.Trim(s, "-.") == s
}

// ValidRevision admits what git admits as the name of a ref, as far as it is the
// path of a file in the folder of refs.
func ValidRevision(s string) bool {
	if len(s) > maxRevision || strings.Contains(s, "..") || path.Clean(s) != s || !filepath.IsLocal(filepath.FromSlash(s)) {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r == 0x7f || strings.ContainsRune(`\:~^?*[`, r)
	})
}
