package hub_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/kvindex/kvindex/tokenize/hub"
)

// files are the files of a commit.
type files map[string]string

// A fakeHub answers like huggingface.co, and like its CDN from a second host.
type fakeHub struct {
	tb     testing.TB
	server *httptest.Server
	cdn    *httptest.Server
	token  string // required of requests, if not ""

	mu       sync.Mutex
	plain    bool              // the listing has names only, like a mirror's
	commits  map[string]files  // by hash
	refs     map[string]string // commits by "repo@revision"
	moved    map[string]string // repositories by their old names
	requests []string
	leaked   []string // requests to the CDN with a token
	// fault chooses the fault of an answer to "list", "head", "get" (of a small file) or "cdn".
	fault func(kind string) string
	gone  chan bool // gets a value when a slow answer is abandoned
}

// sums caches the digests of contents.
var sums sync.Map

func summed(kind, content string, sum func() string) string {
	type key struct{ kind, content string }
	if len(content) < 1<<20 { // the cache is slower than the sum
		return sum()
	}
	k := key{kind, content[:64]}
	v, ok := sums.Load(k)
	if !ok {
		v, _ = sums.LoadOrStore(k, sum())
	}
	return v.(string)
}

func newFake(tb testing.TB) *fakeHub {
	h := &fakeHub{tb: tb, commits: map[string]files{}, refs: map[string]string{}, moved: map[string]string{}, gone: make(chan bool, 1)}
	h.server = httptest.NewServer(http.HandlerFunc(h.serve))
	h.cdn = httptest.NewServer(http.HandlerFunc(h.serveCDN))
	tb.Cleanup(h.server.Close)
	tb.Cleanup(h.cdn.Close)
	return h
}

// commit sets the files of a revision and returns their commit.
func (h *fakeHub) commit(repo, revision string, f files) string {
	sum := sha1.New()
	fmt.Fprint(sum, repo)
	for _, name := range slices.Sorted(maps.Keys(f)) {
		fmt.Fprintf(sum, "%q %q ", name, f[name])
	}
	hash := fmt.Sprintf("%x", sum.Sum(nil))
	h.mu.Lock()
	defer h.mu.Unlock()
	h.commits[hash] = f
	h.refs[repo+"@"+revision] = hash
	h.refs[repo+"@"+hash] = hash
	return hash
}

// client returns a client with its own cache, whose models are repositories of the fake.
func (h *fakeHub) client(dir string) *hub.Client {
	c := &hub.Client{Repo: byName, Dir: dir, Endpoint: h.server.URL, Token: h.token}
	c.SetPause(nil)
	return c
}

// byName parses a name into a repository and, after @, a revision.
func byName(name string) (string, string, bool) {
	repo, revision, _ := strings.Cut(name, "@")
	return repo, revision, true
}

func (h *fakeHub) setFault(f func(kind string) string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fault = f
}

// asked returns the requests since the last call, like "HEAD tokenizer.json".
func (h *fakeHub) asked() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.requests
	h.requests = nil
	return r
}

func (h *fakeHub) note(kind, what string) (fault string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests = append(h.requests, kind+" "+what)
	if h.fault != nil {
		fault = h.fault(kind)
	}
	return fault
}

// refusals are answers without a usable body.
var refusals = map[string]struct {
	status int
	code   string
}{
	"gated": {403, "GatedRepo"}, "401": {401, ""}, "403": {403, ""}, "no repo": {404, "RepoNotFound"},
	"no revision": {404, "RevisionNotFound"}, "no entry": {404, "EntryNotFound"}, "416": {416, ""},
	"429": {429, ""}, "500": {500, ""}, "503": {503, ""},
}

// refuse sends one of refusals, if the fault is one.
func refuse(w http.ResponseWriter, fault string) bool {
	r, ok := refusals[fault]
	if !ok {
		return false
	}
	if r.code != "" {
		w.Header().Set("X-Error-Code", r.code)
		w.Header().Set("X-Error-Message", "the hub says why")
	}
	if r.status == 429 {
		w.Header().Set("Retry-After", "2")
	}
	w.WriteHeader(r.status)
	return true
}

func (h *fakeHub) serve(w http.ResponseWriter, r *http.Request) {
	if h.token != "" && r.Header.Get("Authorization") != "Bearer "+h.token {
		refuse(w, "401")
		return
	}
	path := r.URL.EscapedPath()
	h.mu.Lock()
	moved := maps.Clone(h.moved)
	h.mu.Unlock()
	for old, repo := range moved {
		if strings.Contains(path, "/"+old+"/") {
			w.Header().Set("Location", strings.Replace(path, "/"+old+"/", "/"+repo+"/", 1)+"?"+r.URL.RawQuery)
			w.WriteHeader(http.StatusTemporaryRedirect)
			return
		}
	}
	if rest, ok := strings.CutPrefix(path, "/api/models/"); ok {
		h.serveAPI(w, r, rest)
		return
	}
	repo, rest, ok := strings.Cut(path[1:], "/resolve/")
	revision, name, ok2 := strings.Cut(rest, "/")
	revision, _ = url.PathUnescape(revision)
	name, _ = url.PathUnescape(name)
	kind := map[string]string{"HEAD": "head", "GET": "get"}[r.Method]
	fault := h.note(kind, name)
	h.mu.Lock()
	commit := h.refs[repo+"@"+revision]
	content, there := h.commits[commit][name]
	h.mu.Unlock()
	switch {
	case refuse(w, fault):
		return
	case !ok || !ok2 || commit == "":
		refuse(w, "no repo")
		return
	case !there:
		refuse(w, "no entry")
		return
	}
	if fault == "other commit" {
		commit = strings.Repeat("0", 40)
	}
	w.Header().Set("X-Repo-Commit", commit)
	w.Header().Set("X-Xet-Hash", strings.Repeat("a", 64))
	w.Header().Set("Link", `<https://xet.example/>; rel="xet-auth"`)
	if isLarge(name) {
		w.Header().Set("X-Linked-Etag", `"`+digestOf(name, content)+`"`)
		w.Header().Set("X-Linked-Size", strconv.Itoa(len(content)))
		if fault == "bad etag" {
			w.Header().Set("X-Linked-Etag", `"../../../out"`)
		}
		h.cdnContent(content, w)
		w.WriteHeader(http.StatusFound)
		return
	}
	w.Header().Set("ETag", []string{"", "W/"}[len(content)%2]+`"`+digestOf(name, content)+`"`)
	if fault == "bad etag" {
		w.Header().Set("ETag", `"../out"`)
	}
	if r.Method == http.MethodHead {
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		return
	}
	body(w, r, content, fault, h.gone)
}

// Contents of the CDN are found by their SHA-256.
func (h *fakeHub) cdnContent(content string, w http.ResponseWriter) {
	sum := digestOf("tokenizer.", content)
	h.mu.Lock()
	h.commits["cdn "+sum] = files{"": content}
	h.mu.Unlock()
	w.Header().Set("Location", h.cdn.URL+"/"+sum+"?signature=secret")
}

func (h *fakeHub) serveCDN(w http.ResponseWriter, r *http.Request) {
	fault := h.note("cdn", r.URL.Path[1:7])
	h.mu.Lock()
	if r.Header.Get("Authorization") != "" {
		h.leaked = append(h.leaked, r.URL.Path)
	}
	content := h.commits["cdn "+r.URL.Path[1:]][""]
	h.mu.Unlock()
	if !refuse(w, fault) {
		w.Header().Set("ETag", `"of the CDN's own"`)
		body(w, r, content, fault, h.gone)
	}
}

func body(w http.ResponseWriter, r *http.Request, content, fault string, gone chan<- bool) {
	whole, status := content, http.StatusOK
	if spec, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes="); ok && fault != "no range" {
		a, b, _ := strings.Cut(spec, "-")
		from, _ := strconv.Atoi(a)
		to := len(content) - 1
		if b != "" {
			n, _ := strconv.Atoi(b)
			to = min(to, n)
		}
		if from >= len(content) {
			refuse(w, "416")
			return
		}
		content, status = content[from:to+1], http.StatusPartialContent
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, len(whole)))
	}
	switch fault {
	case "other bytes":
		content = strings.Map(func(r rune) rune { return r ^ 1 }, content)
	case "longer":
		content += "more"
	case "shorter":
		content = content[:len(content)/2]
	case "gzip":
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		io.WriteString(z, content)
		z.Close()
		w.Header().Set("Content-Encoding", "gzip")
		content = b.String()
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(content)))
	w.WriteHeader(status)
	switch fault {
	case "cut":
		io.WriteString(w, content[:len(content)*2/3])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	case "slow":
		io.WriteString(w, content[:len(content)/2])
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		select {
		case gone <- true:
		default:
		}
	default:
		io.WriteString(w, content)
	}
}

// isLarge reports whether a file is in Git LFS.
func isLarge(name string) bool {
	return strings.Contains(name, "tokenizer.") || strings.Contains(name, "model")
}

func digestOf(name, content string) string {
	if isLarge(name) {
		return summed("sha256", content, func() string { return fmt.Sprintf("%x", sha256.Sum256([]byte(content))) })
	}
	return gitSum(content)
}

func gitSum(content string) string {
	return summed("git", content, func() string {
		return fmt.Sprintf("%x", sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(content), content)))
	})
}

func (h *fakeHub) serveAPI(w http.ResponseWriter, r *http.Request, path string) {
	for _, kind := range []string{"/revision/", "/tree/", "/paths-info/"} {
		repo, revision, ok := strings.Cut(path, kind)
		if !ok {
			continue
		}
		revision, _ = url.PathUnescape(revision)
		fault := h.note("list", revision)
		h.mu.Lock()
		commit := h.refs[repo+"@"+revision]
		f, plain := h.commits[commit], h.plain
		h.mu.Unlock()
		switch {
		case refuse(w, fault):
		case commit == "":
			refuse(w, "no revision")
		case fault == "html":
			w.Header().Set("Content-Type", "text/html")
			io.WriteString(w, "<html>sign in")
		case fault == "no json":
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"sha":"`+commit)
		case kind == "/revision/":
			h.list(w, r, commit, f, plain, fault)
		default: // for @huggingface/hub
			w.Header().Set("Content-Type", "application/json")
			var asked struct{ Paths []string }
			json.NewDecoder(r.Body).Decode(&asked)
			var all []any
			for name, content := range f {
				if kind == "/tree/" || slices.Contains(asked.Paths, name) {
					e := map[string]any{"type": "file", "path": name, "size": len(content), "oid": gitSum(content)}
					if isLarge(name) {
						e["lfs"] = map[string]any{"oid": digestOf(name, content), "size": len(content), "pointerSize": 130}
					}
					all = append(all, e)
				}
			}
			json.NewEncoder(w).Encode(all)
		}
		return
	}
	refuse(w, "no repo")
}

func (h *fakeHub) list(w http.ResponseWriter, r *http.Request, commit string, f files, plain bool, fault string) {
	var all []any
	for name, content := range f {
		e := map[string]any{"rfilename": name}
		if !plain && r.URL.Query().Get("blobs") == "true" {
			e["size"], e["blobId"] = len(content), gitSum(content)
			if isLarge(name) {
				e["lfs"] = map[string]any{"sha256": digestOf(name, content), "size": len(content), "pointerSize": 130}
			}
		}
		all = append(all, e)
	}
	text, _ := json.Marshal(map[string]any{"_id": "1", "id": "org/m", "sha": commit, "siblings": all})
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	body(w, r, string(text), fault, h.gone)
}
