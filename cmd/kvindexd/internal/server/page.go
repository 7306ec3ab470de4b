package server

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The page shows the fleet, the whole, one pod and the score of a prompt. It is these files,
// which know nothing, and what /v1/watch, /v1/score and /v1/explain answer. So they may be read
// without the credential of the address; the page asks for the token, and POST /login gives a
// cookie for it, which scripts cannot read and other sites cannot send.

//go:embed page
var pageFiles embed.FS

// pageTypes are the files of the page by their paths.
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
	// loginHeader is in answers to requests with a good cookie: then the page can log out.
	loginHeader = "Kvindexd-Login"
	loginTime   = 12 * time.Hour
)

// login answers the token of the address with a cookie.
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
	setCookie(w, r, s.cookie(time.Now().Add(loginTime).Unix()), 0)
}

// logout makes the browser forget the cookie, which scripts cannot.
func (s *Server) logout(w http.ResponseWriter, r *http.Request) { setCookie(w, r, "", -1) }

// setCookie answers with the cookie of the page; age is as in http.Cookie.MaxAge.
func setCookie(w http.ResponseWriter, r *http.Request, value string, age int) {
	http.SetCookie(w, &http.Cookie{
		Name: cookieName, Value: value, Path: "/", MaxAge: age,
		HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil,
	})
	w.WriteHeader(http.StatusNoContent)
}

// cookie returns the value of a cookie that is good until a time. Its key is the token, so it
// outlives the process, and ends with the token.
func (s *Server) cookie(until int64) string {
	at := strconv.FormatInt(until, 10)
	m := hmac.New(sha256.New, []byte(s.cfg.Token))
	m.Write([]byte("kvindexd page until " + at))
	return at + "." + base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

// cookied reports whether a request of our own page has a good cookie.
func (s *Server) cookied(r *http.Request) bool {
	c, err := r.Cookie(cookieName)
	if err != nil || foreign(r) {
		return false
	}
	at, _, _ := strings.Cut(c.Value, ".")
	until, err := strconv.ParseInt(at, 10, 64)
	return err == nil && until > time.Now().Unix() && subtle.ConstantTimeCompare([]byte(c.Value), []byte(s.cookie(until))) == 1
}

// foreign reports whether a browser says that the request is of another site's page.
func foreign(r *http.Request) bool {
	at := r.Header.Get("Sec-Fetch-Site")
	return at == "cross-site" || at == "same-site"
}
