package server_test

import (
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/cmd/kvindexd/internal/server"
)

// The page is small, its headers forbid other sources of scripts and frames, and its script never
// turns text into markup.
func TestPage(t *testing.T) {
	f := start(t, server.Config{Model: "m"})
	size := 0
	for path, kind := range map[string]string{"/": "text/html", "/page.css": "text/css", "/page.js": "text/javascript"} {
		code, got, h := exchange(t, "GET", f.admin.URL+path, "")
		if size += len(got); code != 200 || got == "" || !strings.HasPrefix(h.Get("Content-Type"), kind) || h.Get("X-Content-Type-Options") != "nosniff" ||
			h.Get("Content-Security-Policy") != "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'" {
			t.Errorf("%s: %d, %d bytes, %v", path, code, len(got), h)
		}
		for _, wrong := range []string{"innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "new Function", "http://", "https://", "style=", "onclick"} {
			if strings.Contains(got, wrong) && !strings.Contains(got, "http://www.w3.org/2000/svg") {
				t.Errorf("%s has %s", path, wrong)
			}
		}
		if code, _, _ := exchange(t, "GET", f.public.URL+path, ""); code != 404 {
			t.Errorf("%s on the public address: %d", path, code)
		}
	}
	for path, want := range map[string]int{"/": 200, "/page.js": 403, "/v1/pods": 403} { // a link on another site
		if code := send(t, http.MethodGet, f.admin.URL+path, func(r *http.Request) {
			r.Header.Set("Sec-Fetch-Site", "cross-site")
			r.Header.Set("Sec-Fetch-Mode", "navigate")
		}); code != want {
			t.Errorf("a link to %s: %d", path, code)
		}
	}
	if size > 80<<10 {
		t.Errorf("the page has %d bytes", size)
	}
	err := fs.WalkDir(server.PageFiles, ".", func(path string, d fs.DirEntry, err error) error {
		if !d.IsDir() && path != "page/index.html" && path != "page/page.css" && path != "page/page.js" {
			t.Errorf("%s is in the binary and not served", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	public := start(t, server.Config{Model: "m", PublicPage: true})
	for _, path := range []string{"/", "/page.css", "/page.js"} {
		if code, _, _ := exchange(t, "GET", public.public.URL+path, ""); code != 200 {
			t.Errorf("%s on the public address that has it: %d", path, code)
		}
	}
	if code, _, _ := exchange(t, "HEAD", public.public.URL+"/v1/watch", ""); code != 200 {
		t.Errorf("/v1/watch on the public address that has it: %d", code)
	}
	if code, _, _ := exchange(t, "GET", public.public.URL+"/v1/explain", ""); code != 404 {
		t.Errorf("/v1/explain on the public address: %d", code)
	}
}

// Only the token is exchanged for a cookie. The cookie is valid for the server's own page, and
// until it expires.
func TestLogin(t *testing.T) {
	f := start(t, server.Config{Model: "m", Token: "secret"})
	login := func(body string, change func(*http.Request)) (int, string, []*http.Cookie) {
		r := httptest.NewRequest(http.MethodPost, "http://kvindexd.example.com/login", strings.NewReader(body))
		if change != nil {
			change(r)
		}
		w := httptest.NewRecorder()
		f.server.Admin().ServeHTTP(w, r)
		return w.Code, strings.TrimSpace(w.Body.String()), w.Result().Cookies()
	}
	for body, want := range map[string]string{
		`{"token": "wrong"}`:                `401 {"error":"token: it is not the token of this address"}`,
		`{"token": ""}`:                     `401 {"error":"token: it is not the token of this address"}`,
		`{"token": 1}`:                      `400 {"error":"token: a JSON number, want string"}`,
		`{"token": "secret", "x": 1}`:       `400 {"error":"body: unknown field \"x\""}`,
		``:                                  `400 {"error":"body: it is empty, want a JSON object"}`,
		strings.Repeat(" ", 17<<20) + "{}":  `413 {"error":"body: longer than 16777216 bytes"}`,
		`{"token": "secret"}{"token": "x"}`: `400`,
	} {
		if code, got, cookies := login(body, nil); !strings.HasPrefix(fmt.Sprint(code, " ", got), want) || len(cookies) > 0 {
			t.Errorf("%.50q: %d %s %v", body, code, got, cookies)
		}
	}
	for name, change := range map[string]func(*http.Request){
		"cross-site": func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") },
		"same-site":  func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") },
		"origin":     func(r *http.Request) { r.Header.Set("Origin", "http://evil.example.com") },
	} {
		if code, got, cookies := login(`{"token": "secret"}`, change); code != 403 || len(cookies) > 0 {
			t.Errorf("%s: %d %s %v", name, code, got, cookies)
		}
	}
	code, _, cookies := login(`{"token": "secret"}`, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-origin") })
	if code != 204 || len(cookies) != 1 || !cookies[0].HttpOnly || cookies[0].SameSite != http.SameSiteStrictMode || cookies[0].Path != "/" || strings.Contains(cookies[0].Value, "secret") {
		t.Fatalf("%d %+v", code, cookies)
	}
	other := start(t, server.Config{Model: "m", Token: "other"})
	good := cookies[0].Value
	for _, c := range []struct {
		name, value, site string
		want              int
	}{
		{"good", good, "", 200},
		{"good, of the page", good, "same-origin", 200},
		{"good, typed into the browser", good, "none", 200},
		{"another origin of this machine", good, "same-site", 403},
		{"another site", good, "cross-site", 403},
		{"damaged", good[:len(good)-1], "", 401},
		{"longer", good + "A", "", 401},
		{"of another service", loggedIn(t, other.server.Admin(), "other"), "", 401},
		{"empty", "", "", 401},
	} {
		for _, path := range []string{"/v1/pods", "/healthz"} {
			if code := send(t, "GET", f.admin.URL+path, func(r *http.Request) {
				r.AddCookie(&http.Cookie{Name: "kvindexd", Value: c.value})
				if c.site != "" {
					r.Header.Set("Sec-Fetch-Site", c.site)
				}
			}); code != c.want {
				t.Errorf("%s of a cookie that is %s: %d", path, c.name, code)
			}
		}
	}
	for _, origin := range []string{"http://evil.example.com", "null"} {
		if code := send(t, "DELETE", f.admin.URL+"/v1/pods/a", func(r *http.Request) {
			r.AddCookie(&http.Cookie{Name: "kvindexd", Value: good})
			r.Header.Set("Origin", origin)
		}); code != 403 {
			t.Errorf("a write from %s: %d", origin, code)
		}
	}
	// The answer to a log-out deletes the cookie. The cookie alone identifies the session.
	out := func(change func(*http.Request)) *http.Response {
		r := httptest.NewRequest(http.MethodDelete, "http://kvindexd.example.com/login", nil)
		change(r)
		w := httptest.NewRecorder()
		f.server.Admin().ServeHTTP(w, r)
		return w.Result()
	}
	a := out(func(r *http.Request) { r.AddCookie(&http.Cookie{Name: "kvindexd", Value: good}) })
	if c := a.Cookies(); a.StatusCode != http.StatusNoContent || a.Header.Get("Kvindexd-Login") == "" || len(c) != 1 || c[0].Name != cookies[0].Name || c[0].Path != "/" || c[0].MaxAge >= 0 || c[0].Value != "" {
		t.Errorf("a log-out: %d %+v", a.StatusCode, a.Cookies())
	}
	for name, c := range map[string]struct {
		change func(*http.Request)
		code   int
	}{
		"nobody":           {func(*http.Request) {}, 401},
		"the token itself": {func(r *http.Request) { r.Header.Set("Authorization", "Bearer secret") }, 204},
		"another site": {func(r *http.Request) {
			r.AddCookie(&http.Cookie{Name: "kvindexd", Value: good})
			r.Header.Set("Sec-Fetch-Site", "cross-site")
		}, 403},
	} {
		if a := out(c.change); a.StatusCode != c.code || a.Header.Get("Kvindexd-Login") != "" {
			t.Errorf("a log-out of %s: %d %v", name, a.StatusCode, a.Header)
		}
	}
	open := start(t, server.Config{})
	if code, got, _ := exchange(t, "POST", open.admin.URL+"/login", `{"token": "x"}`); code != 409 {
		t.Errorf("without a token: %d %s", code, got)
	}
}

// loggedIn logs in and returns the cookie.
func loggedIn(t *testing.T, h http.Handler, token string) string {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "http://localhost/login", strings.NewReader(fmt.Sprintf(`{"token": %q}`, token))))
	cookies := w.Result().Cookies()
	if len(cookies) != 1 {
		t.Fatalf("a login: %d %s", w.Code, w.Body)
	}
	return cookies[0].Value
}

// A session ends with a log-out, with its time, when there are too many later ones, and with the
// service. Then a copy of its cookie is refused, and its viewers are disconnected. Other
// sessions continue.
func TestSessions(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, s *server.Server, admin http.Handler, cookie string){
		"log-out": func(t *testing.T, _ *server.Server, admin http.Handler, cookie string) {
			for range server.MaxSessions { // sessions that have ended do not count
				r := httptest.NewRequest(http.MethodDelete, "http://localhost/login", nil)
				r.AddCookie(&http.Cookie{Name: "kvindexd", Value: cookie})
				w := httptest.NewRecorder()
				if admin.ServeHTTP(w, r); w.Code != http.StatusNoContent {
					t.Errorf("a log-out: %d", w.Code)
				}
				cookie = loggedIn(t, admin, "secret")
			}
		},
		"time": func(*testing.T, *server.Server, http.Handler, string) { time.Sleep(server.SessionTime - time.Second) },
		"others": func(t *testing.T, _ *server.Server, admin http.Handler, _ string) {
			for range server.MaxSessions - 1 { // one place is for the session that continues
				loggedIn(t, admin, "secret")
			}
		},
		"service": func(_ *testing.T, s *server.Server, _ http.Handler, _ string) { s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ix, err := kvindex.New()
				must(t, err)
				defer ix.Close()
				s := server.New(server.Config{Token: "secret"})
				defer s.Close()
				s.Open(ix, nil)
				s.Every(time.Minute)
				admin := s.Admin()
				code := func(cookie string) int {
					r := httptest.NewRequest(http.MethodHead, "http://localhost/v1/watch", nil)
					r.AddCookie(&http.Cookie{Name: "kvindexd", Value: cookie})
					w := httptest.NewRecorder()
					admin.ServeHTTP(w, r)
					return w.Code
				}
				cookie := loggedIn(t, admin, "secret")
				watched := make(chan struct{})
				go func() {
					defer close(watched)
					r := httptest.NewRequest(http.MethodGet, "http://localhost/v1/watch", nil)
					r.AddCookie(&http.Cookie{Name: "kvindexd", Value: cookie})
					admin.ServeHTTP(httptest.NewRecorder(), r)
				}()
				time.Sleep(time.Minute)
				other := loggedIn(t, admin, "secret")
				if code(cookie) != 200 || code(other) != 200 || s.Viewers() != 1 {
					t.Fatalf("before the end: %d, %d, %d viewers", code(cookie), code(other), s.Viewers())
				}
				end(t, s, admin, cookie)
				synctest.Wait()
				select {
				case <-watched:
				default:
					t.Error("who watches is not cut off")
				}
				if got := code(cookie); got != 401 {
					t.Errorf("a copy of the cookie: %d", got)
				}
				if got := code(other); (got == 200) != (name != "service") {
					t.Errorf("another session: %d", got)
				}
			})
		})
	}
}

// No id and no cookie makes the service panic, and a forged cookie is refused.
func FuzzViewer(f *testing.F) {
	ix, err := kvindex.New()
	must(f, err)
	s := server.New(server.Config{Model: "m", Token: "secret"})
	s.Open(ix, nil)
	f.Add("AAAAAAAA.1", "1.x")
	f.Add("", "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
	f.Add("\u0000.18446744073709551616", "9999999999.")
	admin := s.Admin()
	f.Fuzz(func(t *testing.T, id, cookie string) {
		r := httptest.NewRequest(http.MethodHead, "http://localhost/v1/watch", nil)
		r.Header["Last-Event-Id"] = []string{id}
		r.Header["Cookie"] = []string{"kvindexd=" + cookie}
		w := httptest.NewRecorder()
		if admin.ServeHTTP(w, r); w.Code != 401 {
			t.Errorf("%q: %d", cookie, w.Code)
		}
		r.Header["Authorization"] = []string{"Bearer secret"}
		w = httptest.NewRecorder()
		if admin.ServeHTTP(w, r); w.Code != 200 && w.Code != 400 {
			t.Errorf("%q: %d", id, w.Code)
		}
	})
}
