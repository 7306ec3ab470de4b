package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/kvindextest"
	"github.com/kvindex/kvindex/picker"
	"github.com/kvindex/kvindex/route"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// The demo simulates engines, and clients that have conversations with them through real gateways.
const (
	demoModel         = "demo"
	demoEngines       = 3
	demoSystems       = 3 // system prompts
	demoTurns         = 5 // turns of a conversation
	demoConversations = 200
	demoClients       = 12
	systemBytes       = 600 // a byte is a token
	userBytes         = 120
	answerTokens      = 16 // a token is a number of at most 5 digits, and a space
	stepTime          = 2 * time.Millisecond
	stepTokens        = 256
	explained         = 3 // number of conversations whose first turns are explained, and of these turns
)

// letters is the tokenizer of the demo.
type letters struct{}

func (letters) Encode(_ context.Context, dst []uint32, text string, _ bool) ([]uint32, error) {
	for _, b := range []byte(text) {
		dst = append(dst, uint32(b))
	}
	return dst, nil
}

// lettersModel returns a model with this tokenizer and a chat template.
func lettersModel() (kvindex.Model, error) {
	c, err := chat.New("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>", nil, chat.Options{})
	return kvindex.Model{Tokenizer: letters{}, Chat: c}, err
}

// message is a message of a chat.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// A scene is one run of the conversations.
type scene struct {
	name, policy  string
	events        bool // the gateways receive the events of the engines; else they estimate
	gateways      int
	restart       bool // the first engine restarts in the middle
	conversations int
	explain       io.Writer // nil: nothing is explained
}

// demo plays the same conversations in all scenes, and prints the results.
func demo(ctx context.Context, out io.Writer, conversations int) error {
	fmt.Fprintf(out, "%d conversations of %d turns with %d system prompts; %d engines, whose caches hold a quarter of it together.\n",
		conversations, demoTurns, demoSystems, demoEngines)
	fmt.Fprintf(out, "The first turns, by events beside the tokens of it that each pod has:\n\n")
	explain := out
	for _, setting := range []struct {
		name string
		scene
	}{
		{"one gateway", scene{gateways: 1}},
		{"two gateways that do not know of each other", scene{gateways: 2}},
		{"one gateway, and pod-0 restarts", scene{gateways: 1, restart: true}},
	} {
		var results []*result
		for _, s := range []scene{{name: "events", policy: "default", events: true}, {name: "no events", policy: "default"}, {name: "round-robin", policy: "round-robin"}} {
			s.gateways, s.restart, s.conversations = setting.gateways, setting.restart, conversations
			s.explain, explain = explain, nil
			r, err := play(ctx, s)
			if err != nil {
				return err
			}
			results = append(results, r)
		}
		fmt.Fprintf(out, "\n%-44s %8s  %23s  %24s  %s\n", setting.name, "hit rate", "prompt tokens computed", "first token: median, 95%", "requests by pod")
		slices.Reverse(results)
		for _, r := range results {
			r.print(out, results[0])
		}
	}
	return nil
}

// result has the figures of a scene, as its clients measure them.
type result struct {
	scene
	mu               sync.Mutex // guards the fields below
	prompt, computed int        // tokens, as the engines report
	firstTokens      []time.Duration
	byPod            map[string]int
	broken           int // answers that broke off; the client repeated the request
}

func (r *result) print(out io.Writer, base *result) {
	var pods []string
	for i := range demoEngines {
		pods = append(pods, fmt.Sprint(r.byPod[podName(i)]))
	}
	slices.Sort(r.firstTokens)
	at := func(share float64) time.Duration {
		return r.firstTokens[int(share*float64(len(r.firstTokens)-1))].Round(time.Millisecond)
	}
	fmt.Fprintf(out, "    %-40s %7.1f%%  %15d (%4.0f%%)  %16v, %6v  %s", r.name, 100*(1-float64(r.computed)/float64(r.prompt)),
		r.computed, 100*float64(r.computed)/float64(base.computed), at(0.5), at(0.95), strings.Join(pods, " "))
	if r.broken > 0 {
		fmt.Fprintf(out, "; broken answers: %d", r.broken)
	}
	fmt.Fprintln(out)
}

func podName(i int) string { return fmt.Sprintf("pod-%d", i) }

// play runs a scene with new engines and gateways, over HTTP.
func play(ctx context.Context, s scene) (*result, error) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	var servers, closers []io.Closer
	defer func() {
		cancel()
		for _, s := range servers {
			_ = s.Close()
		}
		running.Wait()
		for _, c := range closers {
			_ = c.Close()
		}
	}()
	listen := func(server *http.Server) (address string, err error) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err == nil {
			servers = append(servers, server)
			running.Go(func() { _ = server.Serve(l) })
			address = l.Addr().String()
		}
		return address, err
	}

	llm, err := lettersModel()
	if err != nil {
		return nil, err
	}
	each := demoTurns * (userBytes + 6*answerTokens + len("<user><assistant>"))
	blocks := (s.conversations*each + demoSystems*systemBytes) / block / 4 / demoEngines
	var engines []*kvindextest.Engine
	var pods []events.Pod
	for i := range demoEngines {
		ranks, pod, err := kvindextest.NewPod(kvindextest.EngineConfig{
			Pod: podName(i), Model: demoModel, LLM: llm, BlockSize: block, Blocks: blocks, Replay: true, StepTime: stepTime, StepTokens: stepTokens,
		}, 1)
		if err != nil {
			return nil, err
		}
		engines = append(engines, ranks...)
		closers = append(closers, ranks[0])
		address, err := listen(&http.Server{Handler: ranks[0], ErrorLog: log.New(io.Discard, "", 0)})
		if err != nil {
			return nil, err
		}
		_, port, _ := net.SplitHostPort(address)
		pod.Labels = map[string]string{"port": port}
		if !s.events {
			pod.Engine = events.EngineNone
		}
		pods = append(pods, pod)
	}

	var urls []string
	why := new(reasons)
	for range s.gateways {
		if why.policy, err = policyOf(s.policy); err != nil {
			return nil, err
		}
		cfg := settings{
			model: demoModel, policy: why.choose, pause: 100 * time.Millisecond, log: log.New(io.Discard, "", 0),
			limits: limits{body: 1 << 20, bodyTime: time.Minute, requests: 100, firstByte: time.Minute, answer: time.Minute},
		}
		if !s.events {
			cfg.estimated = blocks
		}
		g, err := open(cfg, llm)
		if err != nil {
			return nil, err
		}
		closers = append(closers, g.index)
		if err := g.fleet.Set("demo", pods); err != nil {
			return nil, err
		}
		running.Go(func() { g.run(ctx) })
		address, err := listen(g.server())
		if err != nil {
			return nil, err
		}
		urls = append(urls, "http://"+address+"/v1/chat/completions")
	}
	for _, e := range engines {
		if s.events {
			err = errors.Join(err, e.WaitSubscribers(ctx, s.gateways))
		}
	}
	if err != nil {
		return nil, err
	}
	r := &result{scene: s, byPod: make(map[string]int)}
	var restarts *kvindextest.Engine
	if s.restart {
		restarts = engines[0]
	}
	return r, r.talk(ctx, urls, restarts, why)
}

// reasons is a policy that records why it chose the pod of the last request.
type reasons struct {
	policy route.Policy
	mu     sync.Mutex // guards last
	last   string
}

func (e *reasons) choose(r *route.Request, pods []route.Pod) int {
	chosen := e.policy(r, pods)
	var all []string
	for _, pod := range pods {
		all = append(all, fmt.Sprintf("%s has %d", pod.Name, pod.Cached))
	}
	slices.Sort(all)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last = fmt.Sprintf("of %d tokens %s: to %s", r.Tokens, strings.Join(all, ", "), pods[chosen].Name)
	return chosen
}

// conversation has the messages of a client and the engines. Its turns are played in sequence.
type conversation struct {
	mu       sync.Mutex // guards the fields below
	random   *rand.Rand
	messages []message
	turn     int
}

// newConversations returns n conversations, the same in all scenes.
func newConversations(n int) (all []*conversation) {
	for i := range n {
		system := randomText(rand.New(rand.NewPCG(uint64(i%demoSystems), 0)), systemBytes)
		all = append(all, &conversation{random: rand.New(rand.NewPCG(uint64(i), 1)), messages: []message{{"system", system}}})
	}
	return all
}

// order returns the conversation of each turn. The explained turns come first. Then a fifth of
// the conversations at a time take turns in rotation, so that they nearly fill the caches.
func order(n int) (order []int) {
	together := max(n/5, 1)
	left := make([]int, n)
	for i := range left {
		left[i] = demoTurns
	}
	next := func(i int) {
		if i < n && left[i] > 0 {
			left[i]--
			order = append(order, i)
		}
	}
	for i := range explained * explained {
		next(i / explained)
	}
	for begin := 0; begin < n; begin += together {
		for turn := range demoTurns * together {
			next(begin + turn%together)
		}
	}
	return order
}

// talk plays the conversations of a scene, and restarts the engine in the middle if it is not
// nil.
func (r *result) talk(ctx context.Context, urls []string, restarts *kvindextest.Engine, why *reasons) error {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: demoClients}}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	all, turns := newConversations(r.conversations), order(r.conversations)
	play := func(i int) {
		if i == len(turns)/2 && restarts != nil {
			_ = restarts.Restart() // fails for a closed engine only
		}
		if err := r.turn(ctx, client, urls, all[turns[i]]); err != nil {
			cancel(err)
		}
	}
	begin := 0
	for ; r.explain != nil && begin < min(explained*explained, len(turns)); begin++ {
		play(begin)
		fmt.Fprintf(r.explain, "    conversation %d, turn %d: %s\n", turns[begin]+1, all[turns[begin]].turn, why.last)
	}
	next := make(chan int)
	var clients sync.WaitGroup
	for range demoClients {
		clients.Go(func() {
			for i := range next {
				play(i)
			}
		})
	}
	for i := begin; i < len(turns) && ctx.Err() == nil; i++ {
		next <- i
	}
	close(next)
	clients.Wait()
	return context.Cause(ctx)
}

// turn plays the next turn of a conversation. Each turn goes through the next one of the
// gateways. If the answer breaks off, the client repeats the request.
func (r *result) turn(ctx context.Context, client *http.Client, urls []string, c *conversation) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn++
	c.messages = append(c.messages, message{"user", randomText(c.random, userBytes)})
	body, err := json.Marshal(map[string]any{
		"model": demoModel, "messages": c.messages, "max_tokens": answerTokens,
		"stream": true, "stream_options": map[string]bool{"include_usage": true},
	})
	if err != nil {
		return err
	}
	for {
		said, err := r.ask(ctx, client, urls[c.turn%len(urls)], body)
		if err == nil {
			c.messages = append(c.messages, message{"assistant", said})
			return nil
		}
		if !errors.Is(err, io.ErrUnexpectedEOF) || ctx.Err() != nil {
			return err
		}
		r.mu.Lock()
		r.broken++
		r.mu.Unlock()
	}
}

// ask sends a request, and reads the answer.
func (r *result) ask(ctx context.Context, client *http.Client, url string, body []byte) (said string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	asked := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		all, _ := io.ReadAll(resp.Body)
		return "", fmt.Errorf("%s: %s", resp.Status, all)
	}
	usage := picker.UsageOf(resp.Header, resp.Body)
	var firstToken time.Duration
	lines := bufio.NewScanner(usage)
	for lines.Scan() {
		if firstToken == 0 {
			firstToken = time.Since(asked)
		}
		var chunk struct{ Choices []struct{ Delta message } }
		data, _ := strings.CutPrefix(lines.Text(), "data: ")
		if json.Unmarshal([]byte(data), &chunk) == nil && len(chunk.Choices) > 0 { // not the end mark
			said += chunk.Choices[0].Delta.Content
		}
	}
	if err := lines.Err(); err != nil {
		return "", err
	}
	u, err := usage.Usage()
	if err != nil {
		return "", err
	}
	pod, _, _ := strings.Cut(strings.TrimPrefix(resp.Header.Get("X-Routed"), "pod="), ";")
	r.mu.Lock()
	defer r.mu.Unlock()
	r.prompt += u.PromptTokens
	r.computed += u.PromptTokens - u.CachedTokens
	r.firstTokens = append(r.firstTokens, firstToken)
	r.byPod[pod]++
	return said, nil
}

// randomText returns a text of n bytes.
func randomText(random *rand.Rand, n int) string {
	words := strings.Fields("the a book shelf harbour town archive reading room old map ship captain letter story about where when")
	var text strings.Builder
	for text.Len() < n {
		text.WriteString(words[random.IntN(len(words))] + " ")
	}
	return text.String()[:n]
}
