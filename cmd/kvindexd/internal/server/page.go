package server

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// The page shows the fleet, the totals, one pod and the score of a prompt. Its files contain no
// data, so they are served without the credential of the address. The data come from
// /v1/watch, /v1/score and /v1/explain. The page asks its user for the token, and POST /login
// exchanges the token for a cookie that scripts cannot read and other sites cannot send.

//go:embed page
var pageFiles embed.FS

// pageTypes has the file and the media type of each path of the page.
var pageTypes = map[string]struct{ file, kind string }{
	"/":         {"page/index.html", "text/html; charset=utf-8"},
	"/page.css": {"page/page.css", "text/css; charset=utf-8"},
	"/page.js":  {"page/page.js", "text/javascript; charset=utf-8"},
}

const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

func (s *Server) page(w http.ResponseWriter, r *http.Request) {
	p := pageTypes[r.URL.Path]
	b, err := pageFiles.ReadFile(p.file)
	if err != nil {
		panic(err) // it is embedded
	}
	h := w.Header()
	h.Set("Content-Type", p.kind)
	h.Set("Content-Length", strconv.Itoa(len(b)))
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache")
	if r.Method != http.MethodHead {
		_, _ = w.Write(b)
	}
}

const (
	cookieName = "kvindexd"
	// loginHeader is set in answers to requests with a valid cookie: the page then offers to
	// log out.
	loginHeader = "Kvindexd-Login"
	sessionTime = 12 * time.Hour
	maxSessions = 64
)

// A session is a browser that has sent the token. It ends with its time, with a log-out, or
// with the process.
type session struct {
	id  string // its cookie
	ctx context.Context
	end context.CancelFunc
}

// login exchanges the token of the address for a cookie.
func (s *Server) login(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Token string `json:"token"`
	}
	b, err := s.read(w, r)
	defer s.release(b)
	if err == nil {
		err = decode(b.bytes, &q, true)
	}
	switch {
	case err != nil:
	case s.cfg.Token == "":
		err = status(http.StatusConflict, "token: this address needs none")
	case subtle.ConstantTimeCompare([]byte(q.Token), []byte(s.cfg.Token)) != 1:
		err = status(http.StatusUnauthorized, "token: it is not the token of this address")
	}
	if err != nil {
		write(w, statusOf(err, false), fail("%v", err))
		return
	}
	ctx, end := context.WithTimeout(context.Background(), sessionTime)
	begun := session{rand.Text(), ctx, end}
	s.mu.Lock()
	s.sessions = slices.DeleteFunc(s.sessions, func(of session) bool { return of.ctx.Err() != nil })
	if len(s.sessions) == maxSessions {
		s.sessions[0].end() // the oldest
		s.sessions = s.sessions[1:]
	}
	s.sessions = append(s.sessions, begun)
	s.mu.Unlock()
	setCookie(w, r, begun.id, 0)
}

// logout ends the session of a request, and makes the browser delete the cookie: scripts cannot
// delete it.
func (s *Server) logout(w http.ResponseWriter, r *http.Request) {
	if of, ok := s.sessionOf(r); ok {
		of.end()
	}
	setCookie(w, r, "", -1)
}

// setCookie sets the cookie of the page in the answer. age is http.Cookie.MaxAge.
func setCookie(w http.ResponseWriter, r *http.Request, value string, age int) {
	http.SetCookie(w, &http.Cookie{
		Name: cookieName, Value: value, Path: "/", MaxAge: age,
		HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil,
	})
	w.WriteHeader(http.StatusNoContent)
}

// sessionOf returns the session of a request that this server's own page has sent.
func (s *Server) sessionOf(r *http.Request) (of session, ok bool) {
	c, err := r.Cookie(cookieName)
	if err != nil || foreign(r) {
		return session{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.sessions {
		if subtle.ConstantTimeCompare([]byte(c.Value), []byte(of.id)) == 1 {
			return of, of.ctx.Err() == nil
		}
	}
	return session{}, false
}

// foreign reports whether the headers of a browser show that another site's page sent the
// request.
func foreign(r *http.Request) bool {
	at := r.Header.Get("Sec-Fetch-Site")
	return at == "cross-site" || at == "same-site"
}
