package prometheus_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/kvindextest"
	"github.com/kvindex/kvindex/metrics/prometheus"
	"github.com/kvindex/kvindex/tokenize"
)

// TestRules: promtool accepts the alerts, and each alert fires for its cause only.
func TestRules(t *testing.T) {
	promtool := needs(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "testdata/alerts.yaml"}} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	tests, err := os.ReadFile("testdata/alerts.yaml")
	must(t, err)
	for name := range alerts(t) {
		for _, row := range []string{" fires\n", " is quiet\n"} {
			if !strings.Contains(string(tests), "name: "+name+row) {
				t.Errorf("there is no row %q", name+row)
			}
		}
	}
}

// alerts returns the expressions of alerts.yaml by the names of the alerts.
func alerts(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("alerts.yaml")
	must(t, err)
	exprs := make(map[string]string)
	for _, m := range regexp.MustCompile(`(?s)- alert: (\w+)\n    expr: (?:>-)?(.*?)\n    (?:for|labels):`).FindAllStringSubmatch(string(text), -1) {
		exprs[m[1]] = strings.Join(strings.Fields(m[2]), " ")
	}
	if n := strings.Count(string(text), "- alert: "); n != len(exprs) || n == 0 {
		t.Fatalf("%d of %d alerts were read", len(exprs), n)
	}
	return exprs
}

type dashboard struct {
	Panels []struct {
		ID         int
		Type       string
		Title      string
		Datasource *struct{ Type, UID string }
		Targets    []struct {
			Expr       string
			Datasource *struct{ Type, UID string }
		}
	}
	Templating struct {
		List []struct{ Name, Type string }
	}
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	text, err := os.ReadFile("../grafana/kvindex.json")
	must(t, err)
	must(t, json.Unmarshal(text, &d))
	return d
}

// TestDashboard: the ids and titles of panels are unique, and the data source is a variable.
func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	ids, titles := make(map[int]bool), make(map[string]bool)
	for _, p := range d.Panels {
		if ids[p.ID] || titles[p.Title] || p.ID == 0 {
			t.Errorf("panel %d, %q, is there twice", p.ID, p.Title)
		}
		ids[p.ID], titles[p.Title] = true, true
		if p.Type == "row" {
			continue
		}
		if len(p.Targets) == 0 {
			t.Errorf("panel %q asks nothing", p.Title)
		}
		for _, target := range p.Targets {
			if p.Datasource == nil || target.Datasource == nil || p.Datasource.UID != "${datasource}" || target.Datasource.UID != "${datasource}" {
				t.Errorf("panel %q has another data source", p.Title)
			}
		}
	}
	if len(d.Templating.List) == 0 || d.Templating.List[0].Name != "datasource" || d.Templating.List[0].Type != "datasource" {
		t.Error("the data source is no variable")
	}
}

// empty has the panels and alerts whose series do not exist for a gateway without faults.
var empty = map[string]bool{
	"Pods that are not live or partial": true, // there is no such pod
}

// TestPrometheus: a real Prometheus scrapes a gateway with two engines, and evaluates each expression
// of the dashboard and of the alerts. No alert fires.
func TestPrometheus(t *testing.T) {
	server := needs(t, "prometheus")
	c := prometheus.New(prometheus.WithPods(10), prometheus.WithReferenceNames())
	serve := gateway(t, c)
	serve(20)
	target := httptest.NewServer(promhttp.HandlerFor(registry(t, c), promhttp.HandlerOpts{}))
	defer target.Close()
	api := startPrometheus(t, server, target.Listener.Addr().String())

	// Rates need two scrapes with growing counters.
	wait(t, func() bool { return count(t, api, `kvindex_scores_total{outcome="scored"} >= 20`) > 0 })
	serve(20)
	wait(t, func() bool { return count(t, api, `kvindex_scores_total{outcome="scored"} >= 40`) > 0 })

	if count(t, api, "kvcache_zmq_replay_success_total >= 2 and kvcache_zmq_replay_success_total == kvcache_zmq_replay_requests_total") == 0 {
		t.Error("the replays at the first connections did not bring all")
	}

	named := regexp.MustCompile(`\bkv(?:index|cache)_\w+`)
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			expr := strings.NewReplacer("$job", ".*", "$__rate_interval", "1m").Replace(target.Expr)
			if n := count(t, api, expr); (n == 0) != empty[p.Title] && !strings.HasSuffix(expr, "> 0") {
				t.Errorf("panel %q: %s has %d series", p.Title, expr, n)
			}
			for _, name := range named.FindAllString(expr, -1) {
				if count(t, api, name) == 0 {
					t.Errorf("panel %q: there is no %s", p.Title, name)
				}
			}
		}
	}
	for alert, expr := range alerts(t) {
		if n := count(t, api, expr); n != 0 {
			t.Errorf("%s: %s has %d series", alert, expr, n)
		}
		for _, name := range named.FindAllString(expr, -1) {
			if count(t, api, name) == 0 {
				t.Errorf("%s: there is no %s", alert, name)
			}
		}
	}
}

// gateway starts two engines, and a gateway that follows one with a Fleet and one with a Subscriber.
// It returns a function that serves requests.
func gateway(t *testing.T, c *prometheus.Collector) (serve func(requests int)) {
	ctx, cancel := context.WithCancel(zmtptest.Context(t))
	done := make(chan struct{}, 2)
	t.Cleanup(func() { cancel(); <-done; <-done })
	ix := open(t, c)
	engines, pod, err := kvindextest.NewPod(kvindextest.EngineConfig{Pod: "pod-a", Model: "m", Replay: true}, 1)
	must(t, err)
	engine, err := kvindextest.NewEngine(kvindextest.EngineConfig{Pod: "pod-b", Model: "m", Replay: true})
	must(t, err)
	engines = append(engines, engine)
	const patience = time.Minute // for a replay: a slow machine must not cause a loss
	fleet, err := events.NewFleet(ix.Sink(), events.FleetConfig{Subscriber: events.SubscriberConfig{ReplayTimeout: patience}})
	must(t, err)
	sub, err := events.NewSubscriber(ix.Sink(), events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: engine.ReplayEndpoint(), Pod: "pod-b", Model: "m", ReplayTimeout: patience})
	must(t, err)
	pool, err := events.NewPool(ix.Sink(), events.PoolConfig{})
	must(t, err)
	texts, err := tokenize.NewPool(tokenize.PoolConfig{})
	must(t, err)
	t.Cleanup(func() { texts.Close(); pool.Close(ctx) })
	c.WatchFleet(fleet)
	c.WatchSubscriber(sub)
	c.WatchPool(pool)
	c.WatchTokenizers(texts)
	go func() { _ = fleet.Run(ctx); done <- struct{}{} }()
	go func() { _ = sub.Run(ctx); done <- struct{}{} }()
	must(t, fleet.Set("test", []events.Pod{pod}))
	for _, e := range engines {
		t.Cleanup(func() { e.Close() })
		must(t, e.WaitSubscribers(ctx, 1))
	}
	served := 0
	return func(requests int) {
		t.Helper()
		for range requests {
			prompt := make([]uint32, 200)
			for i := range prompt {
				prompt[i] = uint32(served%4*1000 + i)
			}
			e, name := engines[served%2], []string{"pod-a", "pod-b"}[served%2]
			served++
			var a kvindex.Answer
			must(t, ix.ScoreRequest(ctx, &kvindex.Request{Model: "m", Tokens: prompt, Pods: []string{"pod-a", "pod-b"}}, &a))
			ticket, err := ix.Routed(&a, name, 0)
			if err != nil && served > 2 {
				t.Fatal(err)
			}
			cached, err := e.Serve(ctx, kvindextest.Request{Tokens: prompt})
			must(t, err)
			must(t, e.WaitApplied(ctx, ix))
			if ticket != (kvindex.Ticket{}) {
				ix.Observe(ticket, kvindex.Usage{PromptTokens: len(prompt), CachedTokens: cached})
			}
		}
	}
}

// startPrometheus starts a server that scrapes a target every second, with the alerts, and
// returns the address of its API.
func startPrometheus(t *testing.T, server, target string) (api string) {
	t.Helper()
	dir := t.TempDir()
	rules, err := filepath.Abs("alerts.yaml")
	must(t, err)
	config := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%q]\nscrape_configs:\n- job_name: gateway\n  static_configs: [{targets: [%q]}]\n", rules, target)
	must(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600))
	address := net.JoinHostPort("127.0.0.1", zmtptest.FreePort(t))
	var said strings.Builder
	cmd := exec.Command(server, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	cmd.Stderr = &said
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(said.String())
		}
	})
	api = "http://" + address
	wait(t, func() bool {
		resp, err := http.Get(api + "/-/ready")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return api
}

// count returns the present number of series of an expression.
func count(t *testing.T, api, expr string) int {
	t.Helper()
	resp, err := http.Get(api + "/api/v1/query?query=" + url.QueryEscape(expr))
	must(t, err)
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct{ Result []json.RawMessage }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Status != "success" {
		t.Fatalf("%s: %v, %s", expr, err, answer.Error)
	}
	return len(answer.Data.Result)
}

// wait polls until is returns true.
func wait(t *testing.T, is func() bool) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for ctx := zmtptest.Context(t); !is(); <-tick.C {
		if ctx.Err() != nil {
			t.Fatal("it does not happen")
		}
	}
}
