package pagetest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"encoding/json"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/cmd/kvindexd/internal/server"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/faultproxy"
	"github.com/kvindex/kvindex/kvindextest"
)

const story = "Once upon a time there was a fleet of engines, and each of them remembered other prompts."

// stateOf returns an expression for the state of a pod in the view of the fleet.
func stateOf(pod string) string {
	return fmt.Sprintf(`[...document.querySelectorAll("#pods tbody tr")].filter((r) => r.cells[0].textContent === %s).map((r) => r.cells[2].textContent)[0]`, quote(pod))
}

// threeEngines starts engines that have cached the whole story, a part of it and none of it.
func threeEngines(s *service) (all []*kvindextest.Engine, pods []events.Pod) {
	for i := range 3 {
		e, p := s.engine(fmt.Sprintf("pod-%d", i))
		s.computes(e, story[:len(story)*(i+1)/3])
		all, pods = append(all, e), append(pods, p)
	}
	return all, pods
}

// The page shows a pod that loses messages as uncertain, and as live after its replay.
func TestLoss(t *testing.T) {
	s := serve(t, server.Config{Model: "m"})
	threeEngines(s)
	e, err := kvindextest.NewEngine(kvindextest.EngineConfig{Pod: "lossy", Model: "m", Replay: true})
	must(t, err)
	t.Cleanup(func() { _ = e.Close() })
	portOf := func(endpoint string) (p *faultproxy.Proxy, port int) {
		p, err := faultproxy.Listen(strings.TrimPrefix(endpoint, "tcp://"))
		must(t, err)
		t.Cleanup(func() { _ = p.Close() })
		_, _ = fmt.Sscanf(p.Addr(), "127.0.0.1:%d", &port)
		return p, port
	}
	between, port := portOf(e.Endpoint())
	_, replay := portOf(e.ReplayEndpoint())
	s.follow(events.Pod{ID: "lossy", Model: "m", Host: "127.0.0.1", Port: port, ReplayPort: replay})
	must(t, e.WaitSubscribers(t.Context(), 1))
	s.computes(e, story)
	b := open(t)
	b.open(s.url())
	b.until("it is live", stateOf("lossy")+` === "live"`)
	between.Refuse(true)
	between.Cut()
	began := time.Now()
	b.until("it is uncertain", stateOf("lossy")+` === "uncertain"`)
	t.Logf("uncertain after %v", time.Since(began))
	if why := value[string](b, `[...document.querySelectorAll("#pods tbody tr")].filter((r) => r.cells[0].textContent === "lossy").map((r) => r.cells[3].textContent)[0]`); !strings.Contains(why, "backoff") && !strings.Contains(why, "connecting") {
		t.Errorf("why: %q", why)
	}
	tokens, _ := letters{}.Encode(t.Context(), nil, "another prompt, that nobody hears of at first", true)
	if _, err := e.Serve(t.Context(), kvindextest.Request{Tokens: tokens}); err != nil {
		t.Fatal(err)
	}
	between.Refuse(false)
	b.until("it is live again", stateOf("lossy")+` === "live"`)
	if err := e.WaitApplied(t.Context(), s.ix); err != nil {
		t.Error(err)
	}
	b.clean(s.url())
}

// When the service is killed, the page says so and keeps the last picture. It reconnects when the
// service is back.
func TestKilled(t *testing.T) {
	s := serve(t, server.Config{Model: "m"})
	engines, pods := threeEngines(s)
	b := open(t)
	b.refusal = true
	b.open(s.url() + "#pod?pod=pod-1&model=m")
	b.until("the pod is there", `document.querySelector("#p-ranks").textContent.includes("gpu 3")`)
	b.do(`location.hash = "#fleet"`)
	b.until("the fleet is there", stateOf("pod-2")+` === "live"`)
	for range 2 {
		s.stop()
		b.until("it is missed", `document.body.className === "gone" && /^No answer since .*: it cannot be reached$/.test(document.getElementById("link").textContent)`)
		if !value[bool](b, stateOf("pod-2")+` === "live"`) {
			t.Error("the last picture has gone")
		}
		s.start()
		for i, p := range pods[:2] { // pod-2 does not come back
			s.follow(p)
			must(t, engines[i].WaitApplied(t.Context(), s.ix))
		}
		b.until("it is back", `document.body.className === "" && document.getElementById("link").textContent === "live" && document.querySelectorAll("#pods tbody tr").length === 2`)
		s.follow(pods[2])
		b.until("all are back", stateOf("pod-2")+` === "live"`)
	}
	b.clean(s.url())
}

// The bars of a prompt are equal to the answer of /v1/score, and their holes to the blocks that
// the pods have removed.
func TestBars(t *testing.T) {
	s := serve(t, server.Config{Model: "m"})
	random := rand.New(rand.NewPCG(3, 4))
	b := open(t)
	b.open(s.url() + "#score")
	b.do(`document.querySelector("input[value=tokens]").click()`)
	pods := []string{"a", "b", "c"}
	holes, lowers := 0, 0
	const prompts = 100
	for n := range prompts {
		blocks := 3 + random.IntN(20)
		p := fakeengine.NewPrompt(uint64(n), 16, blocks)
		tokens := p.Tokens
		if random.IntN(2) == 0 {
			tokens = append(slices.Clone(tokens), 1, 2, 3) // part of a block
		}
		cached := make(map[string][]string) // by pod: the tier of each block
		for i, pod := range pods {
			tiers := make([]string, blocks)
			from := 1 + random.IntN(blocks)
			for k := range from {
				tiers[k] = "gpu"
			}
			evs := []fakeengine.Event{p.Stored(0, from)}
			if i == 0 && n%10 < 3 || random.IntN(4) == 0 { // lower tiers
				lower := p.Stored(0, from)
				lower.Tokens, lower.BlockSize, lower.Parent, lower.Medium = nil, 0, nil, "disk"
				at := random.IntN(from)
				evs = append(evs, lower, p.Removed(at))
				tiers[at] = "disk"
				lowers++
				for k := range from {
					if k != at && random.IntN(3) == 0 {
						evs = append(evs, p.Removed(k))
						tiers[k] = "disk"
					}
				}
			} else if i == 0 && n%10 >= 7 || random.IntN(3) == 0 { // holes
				if from > 2 {
					at := random.IntN(from - 1)
					evs = append(evs, p.Removed(at))
					tiers[at] = ""
				}
				if slices.Index(tiers, "") < from {
					holes++
				}
			}
			must(t, s.ix.Ingest(pod, "m", fakeengine.Payload(float64(n+1), 0, evs...)))
			cached[pod] = tiers
		}
		if random.IntN(2) == 0 {
			var a kvindex.Answer
			must(t, s.ix.ScoreRequest(t.Context(), &kvindex.Request{Model: "m", Tokens: tokens}, &a))
			if _, err := s.ix.Routed(&a, pods[random.IntN(3)], 0); err != nil {
				t.Fatal(err)
			}
		}
		answer, err := http.Post(s.url()+"v1/score", "application/json", strings.NewReader(quote(map[string]any{"model": "m", "tokens": tokens})))
		must(t, err)
		var want struct {
			PromptTokens int `json:"prompt_tokens"`
			Pods         []struct {
				Pod             string
				PredictedTokens int `json:"predicted_tokens"`
				CachedTokens    int `json:"cached_tokens"`
				LoadedTokens    int `json:"loaded_tokens"`
				FetchedTokens   int `json:"fetched_tokens"`
				MatchedBlocks   int `json:"matched_blocks"`
				Tiers           map[string]int
			}
		}
		err = json.NewDecoder(answer.Body).Decode(&want)
		answer.Body.Close()
		if err != nil || len(want.Pods) != 3 {
			t.Fatal(err, want)
		}
		b.do(fmt.Sprintf(`document.getElementById("text").value = %s; document.querySelector("#ask button").click()`, quote(strings.Trim(fmt.Sprint(tokens), "[]"))))
		b.until("the bars are drawn", `document.querySelectorAll("#scores li[data-done]").length === 3`)
		type part struct {
			Tier           string
			Blocks, Tokens int
			Share          float64
		}
		got := value[[]struct {
			Pod          string
			Held, Tracks []part
		}](b, `[...document.querySelectorAll("#scores li")].map((li) => {
			const parts = (at) => [...li.querySelectorAll(at)].map((n) => ({Tier: n.dataset.tier, Blocks: Number(n.dataset.blocks), Tokens: Number(n.dataset.tokens), Share: n.getBoundingClientRect().width / n.parentNode.getBoundingClientRect().width})
			).map((p) => ({...p, Blocks: p.Blocks || 0, Tokens: p.Tokens || 0}));
			return {Pod: li.dataset.pod, Held: parts(".held > span"), Tracks: parts(".track > span")};
		})`)
		for i, p := range want.Pods {
			g := got[i]
			var tiers []string
			for _, h := range g.Held {
				for range h.Blocks {
					tiers = append(tiers, strings.NewReplacer("hole", "", "none", "").Replace(h.Tier))
				}
				if width := float64(h.Blocks*16) / float64(len(tokens)); h.Share < width-0.01 || h.Share > width+0.01 {
					t.Errorf("prompt %d, %s: %d blocks have a width of %v, want %v", n, p.Pod, h.Blocks, h.Share, width)
				}
			}
			run := make(map[string]int)
			matched := 0
			for matched < len(tiers) && tiers[matched] != "" {
				run[tiers[matched]]++
				matched++
			}
			tracks := make(map[string]int)
			for _, part := range g.Tracks {
				tracks[part.Tier] = part.Tokens
			}
			wantTracks := map[string]int{"reuse": p.CachedTokens, "load": p.LoadedTokens + p.FetchedTokens, "predict": p.PredictedTokens}
			maps.DeleteFunc(wantTracks, func(_ string, n int) bool { return n == 0 })
			if g.Pod != p.Pod || matched != p.MatchedBlocks || !maps.Equal(run, p.Tiers) || !maps.Equal(tracks, wantTracks) || !slices.Equal(tiers, cached[p.Pod]) {
				t.Errorf("prompt %d, pod %s: %+v\n%v\n%v\nwant %+v", n, p.Pod, g, tiers, cached[p.Pod], p)
			}
		}
	}
	t.Logf("%d holes, %d lower tiers", holes, lowers)
	if holes < 30 || lowers < 30 {
		t.Error("too few")
	}
	b.clean(s.url())
}

// Tab, Enter and the arrow keys reach every control of the page.
func TestKeyboard(t *testing.T) {
	s := serve(t, server.Config{Model: "m"})
	threeEngines(s)
	b := open(t)
	b.open(s.url())
	b.until("the rows are there", `document.querySelectorAll("#pods tbody tr").length === 3`)
	focus := func() string {
		return value[string](b, `(() => { const e = document.activeElement; return e.id || (e.closest("tr") && e.closest("tbody") ? "row " : "") + e.tagName + " " + e.textContent.trim().slice(0, 20); })()`)
	}
	// tab presses Tab until something has the focus.
	tab := func(to string) {
		t.Helper()
		var passed []string
		for range 40 {
			b.run(chromedp.KeyEvent(kb.Tab))
			at := focus()
			if at == to {
				return
			}
			passed = append(passed, at)
		}
		t.Fatalf("%s is not reached: %q", to, passed)
	}
	tab("A Skip to the content")
	b.run(chromedp.KeyEvent(kb.Enter))
	if at := focus(); at != "fleet-title" {
		t.Errorf("skipped to %s", at)
	}
	tab("find")
	b.run(chromedp.KeyEvent("pod"))
	tab("state")
	tab("BUTTON Pod")
	b.run(chromedp.KeyEvent(kb.Enter)) // descending
	b.until("the last pod is first", `document.querySelector("#pods tbody tr").textContent.startsWith("pod-2")`)
	for _, head := range []string{"Model", "State", "Why", "Ranks", "Lag", "GPU blocks", "Lower tiers", "Lost"} {
		tab("BUTTON " + head)
	}
	tab("row A pod-2")
	b.run(chromedp.KeyEvent(kb.ArrowDown))
	if at := focus(); at != "row A pod-1" {
		t.Errorf("ArrowDown: %s", at)
	}
	for key, want := range map[string]string{kb.End: "row A pod-0", kb.Home: "row A pod-2", kb.PageDown: "row A pod-0", kb.PageUp: "row A pod-2"} {
		if b.run(chromedp.KeyEvent(key)); focus() != want {
			t.Errorf("%q: %s, want %s", key, focus(), want)
		}
	}
	b.run(chromedp.KeyEvent(kb.Home), chromedp.KeyEvent(kb.ArrowDown), chromedp.KeyEvent(kb.Enter))
	b.until("the pod is shown", `document.getElementById("p-name").textContent === "pod-1" && document.activeElement.id === "pod-title" && document.getElementById("p-streams").textContent.includes("live")`)
	tab("DIV " + value[string](b, `document.querySelector(".scroll").textContent.trim().slice(0, 20)`))
	b.do(`history.back()`)
	b.until("the fleet is back", `!document.getElementById("view-fleet").hidden`)
	tab("A Score")
	b.run(chromedp.KeyEvent(kb.Enter))
	b.until("the box is shown", `document.activeElement.id === "score-title"`)
	tab("model")
	tab("adapter")
	tab("INPUT ")
	b.run(chromedp.KeyEvent(kb.ArrowDown))
	if kind := value[string](b, `document.querySelector("input[name=kind]:checked").value`); kind != "chat" {
		t.Errorf("ArrowDown chose %s", kind)
	}
	tab("text")
	b.run(chromedp.KeyEvent(`[{"role": "user", "content": "Hello"}]`))
	tab("BUTTON Score")
	b.run(chromedp.KeyEvent(kb.Enter))
	b.until("the score is there", `document.querySelectorAll("#scores li[data-done]").length === 3`)
	b.clean(s.url())
}

var hostileNames = []string{
	`<img src=x onerror=alert(1)>`, `"><script>alert(1)</script>`, `' or "1"="1`, "a/b?c#d&e=f", "\u202eright to left\u202c\u200f", "\u0000\u0001", "a\nb\r\n\ndata: x", "&lt;b&gt;", "../x", "%2e%00",
	strings.Repeat("<b>", 341), "\u2028", "__proto__", "constructor",
}

// Names of markup, quotes and combining marks are shown as text. The error for a name that is too
// long names the mistake.
func TestHostileNames(t *testing.T) {
	s := serve(t, server.Config{Model: "m"})
	p := fakeengine.NewPrompt(1, 16, 4)
	for _, name := range hostileNames {
		for _, m := range []string{"m", name} {
			must(t, s.ix.Ingest(name, m, fakeengine.Payload(1, 0, p.Stored(0, 3))))
		}
		s.server.Lost(kvindex.Loss{Pod: name, Model: "m", Stream: name, Cause: "malformed", Err: fmt.Errorf("%s", name)})
	}
	b := open(t)
	b.open(s.url())
	b.until("all are there", fmt.Sprintf(`document.querySelectorAll("#pods tbody tr").length === %d`, 2*len(hostileNames)))
	marked := `[...document.querySelectorAll("main *")].filter((e) => ["IMG", "SCRIPT", "B", "IFRAME"].includes(e.tagName)).length`
	names := value[[]string](b, `[...document.querySelectorAll("#pods tbody th a")].map((a) => a.textContent)`)
	for _, name := range hostileNames {
		if shown := strings.ReplaceAll(name, "\r\n", "\r\n"); !slices.Contains(names, shown) {
			t.Errorf("%.40q is not shown", name)
		}
		b.do(fmt.Sprintf(`location.hash = "#pod?" + new URLSearchParams({pod: %s, model: "m"})`, quote(name)))
		b.until(fmt.Sprintf("pod %.40q", name), fmt.Sprintf(`document.getElementById("p-name").textContent === %s && document.getElementById("p-ranks").textContent.includes("gpu 3") && document.getElementById("p-losses").textContent.includes("malformed")`, quote(name)))
		if n := value[int](b, marked); n != 0 {
			t.Errorf("%.40q has made %d elements", name, n)
		}
	}
	b.do(`location.hash = "#score"`)
	b.do(fmt.Sprintf(`document.querySelector("input[value=tokens]").click(); document.getElementById("text").value = %s; document.querySelector("#ask button").click()`, quote(fmt.Sprint(p.Tokens))))
	b.until("the bars are drawn", fmt.Sprintf(`document.querySelectorAll("#scores li[data-done]").length === %d && [...document.querySelectorAll("#scores .held")].every((h) => h.firstChild.dataset.tier === "gpu")`, len(hostileNames)))
	if n := value[int](b, marked); n != 0 {
		t.Errorf("the scores have made %d elements", n)
	}
	b.do(`document.getElementById("state").value = ""; location.hash = "#fleet"`)
	b.clean(s.url())

	// The page shows the error.
	b.refusal = true
	b.do(`location.hash = "#score"`)
	for _, c := range []struct{ kind, model, text, want string }{
		{"prompt", strings.Repeat("<b>", 3334), "x", "model"},
		{"prompt", "nobody", "x", "tokenizer"},
		{"prompt", "m", "", "text: it is empty"},
		{"chat", "m", "{", "text: not JSON"},
		{"chat", "m", "{}", "text: it has no messages"},
		{"chat", "m", `[{"content": "x"}]`, "role"},
		{"tokens", "m", "1 2 x", `text: "x" is no token id`},
		{"tokens", "m", " , ", "text: it has no token id"},
		{"tokens", "m", "4294967296", `text: "4294967296" is no token id`},
	} {
		b.do(fmt.Sprintf(`document.querySelector("input[value=%s]").click(); document.getElementById("model").value = %s; document.getElementById("text").value = %s; document.querySelector("#ask button").click()`, c.kind, quote(c.model), quote(c.text)))
		b.until(fmt.Sprintf("%s %.20q %q says %q", c.kind, c.model, c.text, c.want), fmt.Sprintf(`document.getElementById("ask-error").textContent.includes(%s)`, quote(c.want)))
	}
	b.do(`location.hash = "#nothing"`)
	b.until("an unknown view is named", `document.getElementById("problem").textContent.includes("There is no view \"nothing\"")`)
	none := serve(t, server.Config{})
	b = open(t)
	b.refusal = true
	b.open(none.url() + "#score")
	b.do(`document.getElementById("text").value = "x"; document.querySelector("#ask button").click()`)
	b.until("a query without a model is refused", `document.getElementById("ask-error").textContent.includes("model: it is missing")`)
	b.do(`lastID = "x"; connection.abort()`)
	b.until("a damaged id is named", `document.getElementById("link").textContent.includes("last-event-id: ")`)
	b.until("and it goes on", `document.getElementById("link").textContent === "live"`)
}

// A token guards the page, and a page of another origin can neither read nor write.
func TestOtherOrigins(t *testing.T) {
	s := serve(t, server.Config{Model: "m", Token: "secret"})
	must(t, s.ix.Ingest("a", "m", fakeengine.Payload(1, 0, fakeengine.NewPrompt(1, 16, 4).Stored(0, 3))))
	b := open(t)
	b.refusal = true
	b.run(chromedp.Navigate(s.url()))
	b.until("it asks for the token", `!document.getElementById("view-login").hidden && document.activeElement.id === "token"`)
	b.run(chromedp.KeyEvent("wrong"), chromedp.KeyEvent(kb.Enter))
	b.until("a wrong token is refused", `document.getElementById("login-error").textContent === "token: it is not the token of this address"`)
	b.do(`document.getElementById("token").value = ""`)
	b.run(chromedp.KeyEvent("secret"), chromedp.KeyEvent(kb.Enter))
	b.until("the pod is there", stateOf("a")+` !== undefined`)
	if cookie := value[string](b, `document.cookie`); cookie != "" {
		t.Errorf("a script reads the cookie %q", cookie)
	}
	b.open(s.url()) // with the cookie
	b.clean(s.url())
	b.until("a log-out is possible", `!document.getElementById("logout").hidden`)
	b.do(`document.getElementById("logout").focus()`)
	if _, err := chromedp.RunResponse(b.ctx, chromedp.KeyEvent(kb.Enter)); err != nil { // the login reloads the page
		t.Fatal(err)
	}
	b.until("it asks for the token again, and shows nothing", `!document.getElementById("view-login").hidden && document.getElementById("logout").hidden && `+stateOf("a")+` === undefined`)
	b.run(chromedp.KeyEvent("secret"), chromedp.KeyEvent(kb.Enter))
	b.until("the pod is there again", stateOf("a")+` !== undefined`)
	open := serve(t, server.Config{Model: "m"})
	must(t, open.ix.Ingest("a", "m", fakeengine.Payload(1, 0, fakeengine.NewPrompt(1, 16, 4).Stored(0, 3))))
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<!DOCTYPE html><title>evil</title>")
	}))
	defer evil.Close()
	for _, site := range []string{evil.URL, strings.Replace(evil.URL, "127.0.0.1", "localhost", 1)} {
		b.run(chromedp.Navigate(site))
		for _, at := range []string{s.url(), open.url()} {
			for _, c := range []struct{ method, path, body string }{
				{"GET", "v1/pods", ""}, {"GET", "v1/watch", ""}, {"GET", "healthz", ""}, {"POST", "v1/score", `{"tokens":[1]}`}, {"POST", "login", `{"token":"secret"}`},
				{"DELETE", "v1/pods/a", ""}, {"PUT", "v1/pods/b", `{"model":"m","host":"h"}`}, {"POST", "v1/events/a?model=m", "x"},
			} {
				for _, mode := range []string{"cors", "no-cors"} {
					if mode == "no-cors" && c.method != "GET" && c.method != "POST" {
						continue
					}
					got := value[string](b, fmt.Sprintf(`fetch(%s, {method: %s, mode: %s, credentials: "include", body: %s || undefined}).then(async (r) => r.type === "opaque" ? "opaque" : "read " + r.status + await r.text()).catch(() => "refused")`,
						quote(at+c.path), quote(c.method), quote(mode), quote(c.body)))
					if got != "refused" && got != "opaque" {
						t.Errorf("%s %s %s from %s: %s", mode, c.method, c.path, site, got)
					}
				}
			}
			framed := value[string](b, fmt.Sprintf(`new Promise((done) => { const f = document.createElement("iframe"); f.src = %s; f.onload = () => { let at = "other"; try { at = f.contentDocument ? "read" : "other"; } catch { } done(at); }; document.body.append(f); })`, quote(at)))
			if framed != "other" {
				t.Errorf("the page in a frame of %s: %s", site, framed)
			}
		}
	}
	for _, of := range []*service{s, open} {
		if pods := of.ix.Pods(nil); len(pods) != 1 || pods[0].Ranks[0].Messages != 1 || len(of.fleet.Pods(nil)) != 0 {
			t.Errorf("another site has changed something: %+v", pods)
		}
	}
}

// axe-core finds no serious violation, in the light and the dark scheme.
func TestAxe(t *testing.T) {
	var script []byte
	for _, dir := range filepath.SplitList(os.Getenv("NODE_PATH")) {
		if b, err := os.ReadFile(filepath.Join(dir, "axe-core", "axe.min.js")); err == nil {
			script = b
		}
	}
	if script == nil {
		if os.Getenv("KVINDEX_REQUIRE_CHROMIUM") == "1" {
			t.Fatal("NODE_PATH has no axe-core")
		}
		t.Skip("NODE_PATH has no axe-core")
	}
	s := serve(t, server.Config{Model: "m"})
	threeEngines(s)
	b := open(t)
	looks(t, s, b, func(name string) {
		b.do(string(script))
		found := value[[]struct {
			ID, Impact, Help string
			Nodes            []struct{ HTML, FailureSummary string }
		}](b, `axe.run().then((r) => r.violations.map((v) => ({ID: v.id, Impact: v.impact, Help: v.help, Nodes: v.nodes.map((n) => ({HTML: n.html, FailureSummary: n.failureSummary}))})))`)
		for _, v := range found {
			t.Errorf("%s: %s (%s): %s\n%+v", name, v.ID, v.Impact, v.Help, v.Nodes)
		}
	})
	b.clean(s.url())
}

func TestScreenshots(t *testing.T) {
	shots := os.Getenv("KVINDEX_SHOTS")
	if shots == "" {
		t.Skip("no screenshots without KVINDEX_SHOTS")
	}
	s := serve(t, server.Config{Model: "m"})
	threeEngines(s)
	s.follow(events.Pod{ID: "pod-away", Model: "m", Host: "127.0.0.1", Port: 1})
	p := fakeengine.NewPrompt(1, 16, 4)
	for i, name := range hostileNames[:6] {
		must(t, s.ix.Ingest(name, "llama-3-70b-instruct", fakeengine.Payload(1, 0, p.Stored(0, i%4+1))))
	}
	b := open(t)
	looks(t, s, b, func(name string) {
		png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(shots, name+".png"), png, 0o644))
	})
}

// looks calls look for each view, in both schemes and two widths.
func looks(t *testing.T, s *service, b *tab, look func(name string)) {
	story := fakeengine.NewPrompt(77, 16, 12)
	disk := story.Stored(0, 12)
	disk.Tokens, disk.BlockSize, disk.Parent, disk.Medium = nil, 0, nil, "disk"
	must(t, s.ix.Ingest("holed", "m", fakeengine.Payload(1, 0, story.Stored(0, 9), story.Removed(4))))
	must(t, s.ix.Ingest("lower", "m", fakeengine.Payload(1, 0, story.Stored(0, 12), disk, story.Removed(6, 7, 8, 9, 10, 11))))
	s.server.Lost(kvindex.Loss{Pod: "pod-1", Model: "m", Cause: "gap", Seq: 9, Gap: kvindex.Gap{From: 7, To: 8, Lost: true}})
	b.open(s.url())
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{1280, 360} {
			call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
			call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: 800, DeviceScaleFactor: 1})
			views := []struct{ name, hash, ready string }{
				{"fleet", "#fleet", `document.querySelectorAll("#pods tbody tr").length > 4 && document.getElementById("w-events").textContent !== "–"`},
				{"pod", "#pod?pod=pod-1&model=m", `document.getElementById("p-streams").textContent.includes("live")`},
				{"score", "#score", `!document.getElementById("view-score").hidden`},
			}
			for _, v := range views {
				b.do(fmt.Sprintf("location.hash = %q", v.hash))
				b.until(v.name, v.ready)
				if v.name == "score" {
					b.do(fmt.Sprintf(`document.querySelector("input[value=tokens]").click(); document.getElementById("text").value = %q; document.querySelector("#ask button").click()`, strings.Trim(fmt.Sprint(story.Tokens), "[]")))
					b.until("the bars", `document.querySelectorAll("#scores li").length > 3 && document.querySelectorAll("#scores li:not([data-done])").length === 0`)
				}
				if over := value[int](b, `document.documentElement.scrollWidth - innerWidth`); over > 0 {
					t.Errorf("%s is %d pixels too wide for %d", v.name, over, width)
				}
				look(fmt.Sprintf("%s-%s-%d", v.name, scheme, width))
			}
		}
	}
	guarded := serve(t, server.Config{Token: "secret"})
	b.refusal = true
	b.run(chromedp.Navigate(guarded.url()))
	b.until("the login", `!document.getElementById("view-login").hidden`)
	look("login")
	b.mu.Lock()
	b.urls = nil // they were requests to another service
	b.mu.Unlock()
}

// With 1,000 pods, 100 of which change each second, the page stays usable and its memory does not
// grow.
func TestManyPods(t *testing.T) {
	s := serve(t, server.Config{Model: "m"})
	const pods = 1000
	at := 0
	change := func(n int) {
		for range n {
			p := fakeengine.NewPrompt(uint64(at), 16, 2)
			must(t, s.ix.Ingest(fmt.Sprintf("vllm-llama-3-70b-%d", at%pods), "m", fakeengine.Payload(float64(at+1), 0, p.Stored(0, 2))))
			at++
		}
	}
	change(pods)
	b := open(t)
	call(b, performance.Enable, performance.EnableParams{TimeDomain: performance.EnableTimeDomainThreadTicks})
	b.run(chromedp.Navigate(s.url()))
	b.until("all are there", fmt.Sprintf(`document.querySelectorAll("#pods tbody tr").length === %d`, pods))
	t.Logf("the first picture is there %.0f ms after the request for the page, and took %v of a processor", value[float64](b, "performance.now()"), taskTime(b))
	if first := taskTime(b); first > 2*time.Second {
		t.Errorf("the first picture takes the page %v of a processor", first)
	}
	// heap returns the bytes that the page uses.
	heap := func() int {
		return value[int](b, `(gc(), gc(), performance.memory.usedJSHeapSize)`)
	}
	// watch changes pods and waits until the page shows the change, so many times.
	watch := func(times int) {
		for range times {
			change(100)
			want := fmt.Sprintf(`sum(whole.blocks) === %d`, 2*at)
			b.until("the change is shown", want)
		}
	}
	times := 6
	if *long {
		times = 30
	}
	watch(times)
	before, took := heap(), taskTime(b)
	watch(times)
	took = taskTime(b) - took
	after := heap()
	t.Logf("%d bytes of heap, then %d; %v of a processor for each picture", before, after, took/time.Duration(times))
	if after > before+before/10+512<<10 {
		t.Errorf("the page has grown from %d to %d bytes", before, after)
	}
	b.do(`document.getElementById("find").value = "70B-99"; document.getElementById("find").dispatchEvent(new Event("input"))`)
	b.until("the filter holds", `document.querySelectorAll("#pods tbody tr").length === 11 && document.getElementById("shown").textContent === "11 of 1,000 pods"`)
	b.clean(s.url())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
