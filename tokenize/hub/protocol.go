package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/kvindex/kvindex/tokenize/internal/hubcache"
)

// An Error is an answer of the hub to a request that it does not serve. It wraps
// fs.ErrNotExist if there is no such repository, revision or file, and fs.ErrPermission if
// the token must not read it. The hub answers 401 without a code for a repository that does
// not exist, too.
type Error struct {
	// Status is the status of HTTP.
	Status int
	// Code is X-Error-Code: RepoNotFound, RevisionNotFound, EntryNotFound, GatedRepo, or "".
	Code string
	// Message is X-Error-Message, the advice of the hub.
	Message string

	url   string        // without its query, which may have a signature
	after time.Duration // Retry-After
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s: status %d", e.url, e.Status)
	if e.Code != "" {
		s += " " + e.Code
	}
	if e.Message != "" {
		s += fmt.Sprintf(" (%.300q)", e.Message)
	}
	return s
}

// Unwrap returns fs.ErrNotExist, fs.ErrPermission or nil.
func (e *Error) Unwrap() error {
	switch {
	case e.Code == "RepoNotFound", e.Code == "RevisionNotFound", e.Code == "EntryNotFound":
		return fs.ErrNotExist
	case e.Code == "GatedRepo", e.Status == http.StatusUnauthorized, e.Status == http.StatusForbidden:
		return fs.ErrPermission
	case e.Status == http.StatusNotFound, e.Status == http.StatusGone:
		return fs.ErrNotExist
	}
	return nil
}

// refused returns the Error of an answer.
func refused(r *http.Response) error {
	e := &Error{Status: r.StatusCode, url: redacted(r.Request.URL)}
	if code := r.Header.Get("X-Error-Code"); hubcache.ValidPart(code) {
		e.Code = code
	}
	e.Message = r.Header.Get("X-Error-Message")
	e.Message = e.Message[:min(len(e.Message), 300)]
	switch r.StatusCode {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		// http_backoff has seconds only, too.
		if n, err := strconv.Atoi(strings.TrimSpace(r.Header.Get("Retry-After"))); err == nil && n > 0 {
			e.after = time.Duration(min(n, 3600)) * time.Second
		}
		return &passingError{e}
	}
	return e
}

// A passingError may be gone at the next attempt.
type passingError struct{ error }

func (p *passingError) Unwrap() error { return p.error }

// retry does something until it has no passing error, or maxRetries attempts in a row made
// no progress. The pauses are those of http_backoff: 1 s, doubled up to 8 s, or what the
// server wants.
func (c *Client) retry(ctx context.Context, do func() (progress bool, err error)) error {
	wait := time.Second
	for tries := 0; ; tries++ {
		progress, err := do()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var p *passingError
		if !errors.As(err, &p) {
			return err
		}
		if progress {
			tries, wait = 0, time.Second
		}
		pause := wait/2 + rand.N(wait/2)
		if e := (*Error)(nil); errors.As(err, &e) && e.after > 0 {
			pause = e.after
		}
		if tries >= maxRetries || pause > maxWait {
			return err
		}
		if err := c.sleep(ctx, pause); err != nil {
			return err
		}
		wait = min(2*wait, 8*time.Second)
	}
}

func (c *Client) sleep(ctx context.Context, d time.Duration) error {
	if c.pause != nil {
		return c.pause(ctx, d)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// An answer is a response whose body is read within the time for it. It must be closed.
type answer struct {
	*http.Response
	give func() // gives the place of the request back
	wake *time.Timer
	stop context.CancelCauseFunc
	time time.Duration
	ctx  context.Context // of the request
}

var errStalled = errors.New("the server sends nothing")

func (a *answer) Read(p []byte) (int, error) {
	n, err := a.Body.Read(p)
	if n > 0 {
		a.wake.Reset(a.time)
	}
	if err != nil && err != io.EOF {
		err = &passingError{fmt.Errorf("%s: %w", redacted(a.Request.URL), because(a.ctx, err))}
	}
	return n, err
}

func (a *answer) Close() {
	a.stop(nil)
	a.wake.Stop()
	a.Body.Close()
	a.give()
}

// because returns the cause of an error of HTTP, without the address: its query may have a
// signature.
func because(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errStalled) {
		return errStalled
	}
	if u := (*url.Error)(nil); errors.As(err, &u) {
		return u.Err
	}
	return err
}

func redacted(u *url.URL) string { return u.Scheme + "://" + u.Host + u.EscapedPath() }

// send makes a request to the hub and follows its redirects: for a HEAD only those that stay
// on its host, as the metadata of a file is in the answer that leads away.
func (c *Client) send(ctx context.Context, method string, to *url.URL, header http.Header) (*answer, error) {
	hub, err := c.endpoint()
	if err != nil {
		return nil, err
	}
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	for range maxJumps + 1 {
		own := "" // the token, for no other host
		if sameOrigin(to, hub) {
			own = token
		}
		a, err := c.ask(ctx, method, to, header, own)
		if err != nil {
			return nil, err
		}
		place := a.Header.Get("Location")
		if a.StatusCode < 300 || a.StatusCode > 399 || place == "" {
			if a.StatusCode >= 300 {
				defer a.Close()
				return nil, refused(a.Response)
			}
			return a, nil
		}
		next, err := url.Parse(place)
		if err == nil && method == http.MethodHead && next.Host != "" {
			return a, nil
		}
		a.Close()
		if err != nil || next.Opaque != "" {
			return nil, fmt.Errorf("%s: a redirect to no address", redacted(to))
		}
		next = to.ResolveReference(next)
		if next.Scheme != "https" && (next.Scheme != "http" || to.Scheme == "https") {
			return nil, fmt.Errorf("%s: a redirect from %s to %.20q", redacted(to), to.Scheme, next.Scheme)
		}
		to = next
	}
	return nil, fmt.Errorf("%s: more than %d redirects", redacted(to), maxJumps)
}

// ask makes one request, with a token if that is not empty.
func (c *Client) ask(ctx context.Context, method string, to *url.URL, header http.Header, token string) (*answer, error) {
	a := &answer{time: c.stall, give: func() { <-c.places }}
	if a.time == 0 {
		a.time = maxStall
	}
	select {
	case c.places <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	a.ctx, a.stop = context.WithCancelCause(ctx)
	a.wake = time.AfterFunc(a.time, func() { a.stop(errStalled) })
	r, err := http.NewRequestWithContext(a.ctx, method, to.String(), nil)
	if err == nil {
		r.Header = header.Clone()
		// Else the transport unpacks what it did not ask for, and lengths are not the file's.
		r.Header.Set("Accept-Encoding", "identity")
		r.Header.Set("User-Agent", "kvindex")
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		host := http.Client{}
		if c.HTTP != nil {
			host = *c.HTTP
		}
		host.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		a.Response, err = host.Do(r)
	}
	if err != nil {
		err = &passingError{fmt.Errorf("%s: %w", redacted(to), because(a.ctx, err))}
		a.wake.Stop()
		a.stop(nil)
		a.give()
		return nil, err
	}
	if e := a.Header.Get("Content-Encoding"); e != "" && e != "identity" && a.StatusCode < 300 {
		a.Close()
		return nil, fmt.Errorf("%s: an answer in %.20q, which was not requested", redacted(to), e)
	}
	return a, nil
}

// sameOrigin reports whether scheme, host and port are the same.
func sameOrigin(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b)
}

func port(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	return map[string]string{"http": "80", "https": "443"}[u.Scheme]
}

// address returns the address of a path below the endpoint, which is escaped.
func (c *Client) address(path string) (*url.URL, error) {
	hub, err := c.endpoint()
	if err != nil {
		return nil, err
	}
	return url.Parse(hub.String() + path)
}

// meta describes a file before it is downloaded.
type meta struct {
	etag   string // checked
	digest string // of the bytes; "": the length alone is checked
	size   int64
	from   *url.URL // where the bytes are
	name   string
}

// head is get_hf_file_metadata.
func (c *Client) head(ctx context.Context, s source, commit string, f file) (meta, error) {
	to, err := c.address("/" + s.repo + "/resolve/" + commit + "/" + (&url.URL{Path: f.name}).EscapedPath())
	if err != nil {
		return meta{}, err
	}
	a, err := c.send(ctx, http.MethodHead, to, http.Header{})
	if err != nil {
		return meta{}, err
	}
	defer a.Close()
	bad := func(format string, args ...any) (meta, error) {
		return meta{}, fmt.Errorf("%s: %s", redacted(a.Request.URL), fmt.Sprintf(format, args...))
	}
	m := meta{from: a.Request.URL, name: f.name}
	length := a.Header.Get("X-Linked-Size")
	if place, err := a.Location(); err == nil {
		m.from = place
	} else if length == "" {
		length = a.Header.Get("Content-Length")
	}
	if m.from.Scheme != "https" && (m.from.Scheme != "http" || a.Request.URL.Scheme == "https") {
		return bad("a redirect from %s to %.20q", a.Request.URL.Scheme, m.from.Scheme)
	}
	if at := a.Header.Get("X-Repo-Commit"); at != commit {
		return bad("X-Repo-Commit is %.60q, not %s: a proxy, or not a hub", at, commit)
	}
	etag := a.Header.Get("X-Linked-Etag")
	if etag == "" {
		etag = a.Header.Get("ETag")
	}
	m.etag = strings.Trim(strings.TrimPrefix(etag, "W/"), `"`)
	if !hubcache.ValidPart(m.etag) {
		return bad("the ETag %.120q is not the name of a blob", etag)
	}
	if len(m.etag) == len(f.digest) && isDigest(m.etag) && m.etag != f.digest {
		return bad("the ETag is %s, and the listing has %s", m.etag, f.digest)
	}
	m.size, err = strconv.ParseInt(length, 10, 64)
	switch {
	case err != nil || m.size < 0:
		return bad("no length")
	case m.size > maxFile:
		return bad("%d bytes are more than %d", m.size, int64(maxFile))
	case f.size >= 0 && f.size != m.size:
		return bad("%d bytes, and the listing has %d", m.size, f.size)
	}
	return m, nil
}
