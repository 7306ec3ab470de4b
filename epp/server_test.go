package epp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	mode "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/epp"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/picker"
	"github.com/kvindex/kvindex/route"
)

// A pool is a server with some pods. Pod i has the address 10.0.0.i:8000, and has cached the first 8-2*i
// blocks of prompt. The timeout of a score is an hour.
type pool struct {
	ix     *kvindex.Indexer
	picker *picker.Picker
	prompt fakeengine.Prompt
}

func newPool(t testing.TB, cfg picker.Config, n int) *pool {
	t.Helper()
	ix, err := kvindex.New()
	must(t, err)
	t.Cleanup(func() { ix.Close() })
	p := &pool{ix: ix, prompt: fakeengine.NewPrompt(1, 16, 9)}
	cfg.Timeout = time.Hour
	if p.picker, err = picker.New(ix, cfg); err != nil {
		t.Fatal(err)
	}
	var pods []picker.Pod
	for i := range n {
		pods = append(pods, picker.Pod{Name: fmt.Sprint("pod-", i), Host: fmt.Sprintf("10.0.0.%d:8000", i)})
		if i < 4 {
			must(t, ix.Ingest(pods[i].Name, "m", fakeengine.Payload(1, 0, p.prompt.Stored(0, 8-2*i))))
		}
	}
	must(t, p.picker.Set(pods))
	return p
}

// body returns the body of a request for the prompt.
func (p *pool) body() []byte {
	b, err := json.Marshal(map[string]any{"model": "m", "prompt": p.prompt.Tokens, "max_tokens": 1})
	if err != nil {
		panic(err)
	}
	return b
}

// inFlight returns the load of all pods.
func (p *pool) inFlight() (all route.Load) {
	for _, pod := range p.picker.Pods() {
		at := []route.Pod{{Name: pod.Name}}
		p.picker.Loads().Fill(at)
		all.Requests += at[0].Load.Requests
		all.Prefill += at[0].Load.Prefill
	}
	return all
}

// idle fails the test if a request still counts as load.
func (p *pool) idle(t *testing.T) {
	t.Helper()
	if l := p.inFlight(); l != (route.Load{}) {
		t.Errorf("at the end the load is %+v", l)
	}
}

func list(endpoints ...any) *structpb.Value {
	v, err := structpb.NewValue(endpoints)
	if err != nil {
		panic(err)
	}
	return v
}

// TestSequences runs the sequences in the tests of the Gateway API inference extension
// (pkg/lwepp/handlers, version 1.6.0, and those of test/integration/epp/hermetic_test.go, version
// 1.5.0, that concern the protocol), in each mode that reads bodies. Where the protocol and these
// tests differ, the protocol counts: the status without a pod is 503. Two parts are left out: their
// picker rewrites names of models in bodies, and has headers for tests of gateways.
func TestSequences(t *testing.T) {
	const json = "application/json"
	p := newPool(t, picker.Config{Model: "m", Fallbacks: 2}, 4)
	empty := newPool(t, picker.Config{Model: "m"}, 0)
	whole := p.body()
	for _, c := range []struct {
		name string
		pool *pool
		call call
		want string // the endpoints, or the status of a refusal and a part of its message
	}{
		{"DeferredHeaderMutationOnStreamingBody", p, call{body: whole, cuts: 1}, "10.0.0.0:8000,10.0.0.1:8000,10.0.0.2:8000"},
		{"NoPods", empty, call{body: whole, cuts: 1}, "503 no pod"},
		{"no backend pods available", empty, call{headers: map[string]string{"content-type": json}}, "503 no pod"},
		{"FilteringViaFilterMetadata", p, call{body: whole, cuts: 1, subset: list("10.0.0.2:8000", "10.0.0.1:8000")}, "10.0.0.1:8000,10.0.0.2:8000"},
		{"FilteringViaFilterMetadata_StringValue", p, call{body: whole, cuts: 1, subset: structpb.NewStringValue("10.0.0.2:8000,10.0.0.3:8000")}, "10.0.0.2:8000,10.0.0.3:8000"},
		{"StringMetadataMalformedWhitespaceTrimming", p, call{body: whole, cuts: 1, subset: structpb.NewStringValue(" 10.0.0.2:8000 , ,,10.0.0.3:8000,")}, "10.0.0.2:8000,10.0.0.3:8000"},
		{"MixedArrayAndCommaStringElements", p, call{body: whole, cuts: 1, subset: list("10.0.0.3:8000, 10.0.0.2:8000", "10.0.0.1:8000")}, "10.0.0.1:8000,10.0.0.2:8000,10.0.0.3:8000"},
		{"StringMetadataNoMatchesReturnsNoPods", p, call{body: whole, cuts: 1, subset: structpb.NewStringValue("192.0.2.1:8000")}, "503 of the 1 endpoints"},
		{"SubsetFilterEmptyReturnsNoPods", p, call{body: whole, cuts: 1, subset: list()}, "503 of the 0 endpoints"},
		{"an empty string as the subset", p, call{body: whole, cuts: 1, subset: structpb.NewStringValue("")}, "503 of the 0 endpoints"},
		{"a number as the subset", p, call{body: whole, cuts: 1, subset: structpb.NewNumberValue(8000)}, "503 of the 0 endpoints"},
		{"PortAwareFiltering: another port", p, call{body: whole, cuts: 1, subset: list("10.0.0.1:8001")}, "503 of the 1 endpoints"},
		{"PortAwareFiltering: no port", p, call{body: whole, cuts: 1, subset: list("10.0.0.3")}, "10.0.0.3:8000"},
		{"PortAwareFiltering: both", p, call{body: whole, cuts: 1, subset: list("10.0.0.3", "10.0.0.2:8000", "10.0.0.1:1")}, "10.0.0.2:8000,10.0.0.3:8000"},
		{"NoSubsetMetadataReturnsAllPods", p, call{body: whole, cuts: 1, served: "-"}, "10.0.0.0:8000,10.0.0.1:8000,10.0.0.2:8000"},
		{"a client sends the header of the choice", p, call{headers: map[string]string{"x-gateway-destination-endpoint": "192.0.2.9:1"}, body: whole, cuts: 1}, "10.0.0.0:8000,10.0.0.1:8000,10.0.0.2:8000"},
		{"subsetting: a header is no metadata", p, call{headers: map[string]string{"x-gateway-destination-endpoint-subset": "10.0.0.3:8000"}, body: whole, cuts: 1}, "10.0.0.0:8000,10.0.0.1:8000,10.0.0.2:8000"},
		{"split body across chunks", p, call{body: whole, cuts: 7}, "10.0.0.0:8000,10.0.0.1:8000,10.0.0.2:8000"},
		{"trailers behind the body", p, call{body: whole, cuts: 3, trailers: true}, "10.0.0.0:8000,10.0.0.1:8000,10.0.0.2:8000"},
		{"invalid json body", p, call{body: []byte("no healthy upstream"), cuts: 1}, "400 body"},
		{"request missing model field", p, call{body: bytes.Replace(whole, []byte(`"model":"m",`), nil, 1), cuts: 1}, "10.0.0.0:8000,10.0.0.1:8000,10.0.0.2:8000"},
		{"protocol: simple GET (header only)", p, call{method: "GET", path: "/v1/models"}, "any"},
		{"a body of another path", p, call{path: "/v1/audio/transcriptions", body: []byte("RIFF"), cuts: 2}, "any"},
		{"MissingDestinationEndpointServedKey", p, call{body: whole, cuts: 1, served: "-", answer: []string{`{"usage":{"prompt_tokens":144,"prompt_tokens_details":{"cached_tokens":128}}}`}}, "10.0.0.0:8000,10.0.0.1:8000,10.0.0.2:8000"},
		{"response buffering: multi-chunk JSON", p, call{body: whole, cuts: 1, answer: []string{`{"max_tokens":100,"model":"sql-lo`, `ra-sheddable","prompt":"test6","temperature":0}`}}, "10.0.0.0:8000,10.0.0.1:8000,10.0.0.2:8000"},
		{"response buffering: invalid JSON", p, call{body: whole, cuts: 1, answer: []string{"no healthy upstream"}}, "10.0.0.0:8000,10.0.0.1:8000,10.0.0.2:8000"},
		{"response buffering: empty EOS chunk (JSON)", p, call{body: whole, cuts: 1, answer: []string{`{"model":"m"}`, ""}}, "10.0.0.0:8000,10.0.0.1:8000,10.0.0.2:8000"},
		{"response streaming: SSE token counting", p, call{body: whole, cuts: 1, kind: "text/event-stream", answer: []string{"data: {}\n\n", "data: {\"usage\":{\"prompt_tokens\":7,\"total_tokens\":17}}\n\ndata: [DONE]\n\n", ""}}, "10.0.0.0:8000,10.0.0.1:8000,10.0.0.2:8000"},
	} {
		for _, m := range []struct {
			name  string
			envoy envoy
		}{
			{"full duplex", envoy{request: duplex, back: duplex}},
			{"full duplex, not reported", envoy{request: duplex, back: duplex, silent: true}},
			{"buffered", envoy{request: buffered, back: buffered}},
			{"buffered, streamed back", envoy{request: buffered, back: streamed}},
			{"buffered, nothing back", envoy{request: buffered, back: none}},
			{"buffered partly", envoy{request: partial, back: duplex}},
		} {
			t.Run(c.name+"/"+m.name, func(t *testing.T) {
				m.envoy.stub = dial(t, epp.Config{Picker: c.pool.picker})
				if m.envoy.back == buffered {
					c.call.answer = join(c.call.answer)
				}
				got, err := m.envoy.do(t.Context(), &c.call)
				must(t, err)
				want := c.want
				if m.envoy.request == partial && c.call.cuts > 1 && c.call.subset == nil {
					want = "any" // picked by load
				}
				check(t, got, &c.call, want)
				c.pool.idle(t)
			})
		}
	}
}

func join(pieces []string) []string {
	if len(pieces) == 0 {
		return nil
	}
	return []string{strings.Join(pieces, "")}
}

// check compares a result with want: the endpoints, or the status and a part of the message of a
// refusal.
func check(t *testing.T, got *result, c *call, want string) {
	t.Helper()
	if code, message, refused := strings.Cut(want, " "); refused {
		var body struct {
			Error struct {
				Message, Type string
				Code          int
			}
		}
		if got.refused == nil {
			t.Fatalf("%+v, want %s", got, want)
		}
		must(t, json.Unmarshal(got.refused.GetBody(), &body))
		if fmt.Sprint(int(got.refused.GetStatus().GetCode())) != code || fmt.Sprint(body.Error.Code) != code || body.Error.Type == "" || !strings.Contains(body.Error.Message, message) {
			t.Errorf("%v, want %s", got.refused, want)
		}
		return
	}
	if got.refused != nil {
		t.Fatalf("refused: %v", got.refused)
	}
	if want != "any" && got.destination != want || got.destination == "" || got.metadata != got.destination || !got.clearsRoute || !got.endpointsOverwritten {
		t.Errorf("the header has %q, the metadata %q, want %q; %+v", got.destination, got.metadata, want, got)
	}
	if got.body != string(c.body) || got.answer != strings.Join(c.answer, "") {
		t.Errorf("the body is %.100q, the answer %.100q", got.body, got.answer)
	}
}

// TestBodies: a body comes back unchanged, and the choice does not depend on the pieces of the body.
func TestBodies(t *testing.T) {
	p := newPool(t, picker.Config{Model: "m"}, 4)
	stub := dial(t, epp.Config{Picker: p.picker})
	r := rand.New(rand.NewPCG(1, 1))
	small := p.body()
	for range 60 {
		body := append(bytes.Repeat([]byte(" "), r.IntN(1<<r.IntN(20))), small...)
		c := call{body: body, cuts: 1 + r.IntN(40), trailers: r.IntN(3) == 0}
		for range r.IntN(4) {
			c.answer = append(c.answer, strings.Repeat("x", r.IntN(1<<r.IntN(19))))
		}
		for _, e := range []envoy{{stub: stub, request: duplex, back: duplex}, {stub: stub, request: buffered, back: streamed}} {
			got, err := e.do(t.Context(), &c)
			if err != nil {
				t.Fatalf("%d bytes in %d pieces, trailers=%v: %v", len(body), c.cuts, c.trailers, err)
			}
			check(t, got, &c, "10.0.0.0:8000")
		}
	}
	// The body is cut at each place, and each piece is empty once.
	for i := range len(small) + 1 {
		piece := func(b []byte, end bool) *extproc.ProcessingRequest {
			return &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestBody{RequestBody: &extproc.HttpBody{Body: bytes.Clone(b), EndOfStream: end}}}
		}
		out, err := p.play(t, headersMessage(map[string]string{":method": "POST", ":path": "/v1/completions"}, false), piece(small[:i], false), piece(small[i:], true))
		if err != nil || len(out) != 2 {
			t.Fatalf("cut at %d: %v, %v", i, out, err)
		}
		var got filter
		got.mutate(out[0].GetRequestHeaders().GetResponse())
		back := out[1].GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if got.result.destination != "10.0.0.0:8000" || !bytes.Equal(back.GetBody(), small) || !back.GetEndOfStream() {
			t.Fatalf("cut at %d: %+v, %v", i, got.result, back)
		}
	}
	large := append(bytes.Repeat([]byte(" "), 31<<20), small...)
	for _, e := range []envoy{{stub: stub, request: duplex, back: duplex}, {stub: stub, request: buffered, back: buffered}} {
		c := call{body: large, cuts: 500}
		got, err := e.do(t.Context(), &c)
		must(t, err)
		check(t, got, &c, "10.0.0.0:8000")
	}
	p.idle(t)
}

// TestModesWithoutBodies: in modes without a body before the choice, pods are picked by load, and no
// request fails.
func TestModesWithoutBodies(t *testing.T) {
	p := newPool(t, picker.Config{Model: "m", Fallbacks: 1}, 4)
	stub := dial(t, epp.Config{Picker: p.picker})
	for _, m := range []mode.ProcessingMode_BodySendMode{none, streamed, partial} {
		e := envoy{stub: stub, request: m, back: m}
		c := call{body: p.body(), cuts: 3, answer: []string{"a", "b"}}
		got, err := e.do(t.Context(), &c)
		if err != nil {
			t.Fatal(m, err)
		}
		check(t, got, &c, "any")
	}
	p.idle(t)
}

// ends records the calls of OnEnd.
type ends struct {
	mu  sync.Mutex
	all []string
}

func (e *ends) add(k *picker.Pick, u kvindex.Usage, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case err == nil, errors.Is(err, picker.ErrNoUsage):
		e.all = append(e.all, fmt.Sprint(k.Pod.Name, " ", u.PromptTokens, " ", u.CachedTokens))
	default:
		e.all = append(e.all, fmt.Sprint(k.Pod.Name, ": ", err))
	}
}

// TestEnds: each end of a request has its load until then, its call of OnEnd, and its observation in the
// Indexer.
func TestEnds(t *testing.T) {
	const usage = `{"usage":{"prompt_tokens":144,"prompt_tokens_details":{"cached_tokens":128}}}`
	for name, c := range map[string]struct {
		call call
		back mode.ProcessingMode_BodySendMode
		want []string
	}{
		"usage":                {call{answer: []string{usage[:20], usage[20:]}}, duplex, []string{"pod-0 144 128"}},
		"usage of a stream":    {call{kind: "text/event-stream", answer: []string{"data: {}\n\n", "data: " + usage + "\n\ndata: [DONE]\n\n"}}, streamed, []string{"pod-0 144 128"}},
		"no usage":             {call{answer: []string{"{}"}}, buffered, []string{"pod-0 -1 -1"}},
		"no body":              {call{}, duplex, []string{"pod-0 -1 -1"}},
		"a body is not seen":   {call{answer: []string{usage}}, none, []string{"pod-0 -1 -1"}},
		"a status":             {call{status: "500", answer: []string{usage}}, duplex, []string{"pod-0: epp: the answer has status 500"}},
		"the second one":       {call{served: "10.0.0.1:8000", answer: []string{usage}}, duplex, []string{"pod-0: epp: 10.0.0.1:8000 has served the request", "pod-1 144 128"}},
		"another one":          {call{served: "192.0.2.1:1", answer: []string{usage}}, duplex, []string{"pod-0: epp: 192.0.2.1:1 has served the request"}},
		"nothing comes":        {call{noAnswer: true}, duplex, []string{"pod-0: epp: the exchange ended before the answer"}},
		"served, and a status": {call{served: "10.0.0.1:8000", status: "503", answer: []string{"x"}}, duplex, []string{"pod-0: epp: 10.0.0.1:8000 has served the request", "pod-1: epp: the answer has status 503"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPool(t, picker.Config{Model: "m", Fallbacks: 2}, 4)
			var e ends
			v := envoy{stub: dial(t, epp.Config{Picker: p.picker, OnEnd: e.add}), request: duplex, back: c.back}
			c.call.body, c.call.cuts = p.body(), 1
			if _, err := v.do(t.Context(), &c.call); err != nil {
				t.Fatal(err)
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			if fmt.Sprint(e.all) != fmt.Sprint(c.want) {
				t.Errorf("%q, want %q", e.all, c.want)
			}
			p.idle(t)
			if s := p.ix.Stats().Tickets; s.Live != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestServedForms: the endpoint that has served is recognized in each form of its address.
func TestServedForms(t *testing.T) {
	p := newPool(t, picker.Config{Model: "m"}, 1)
	must(t, p.picker.Set([]picker.Pod{{Name: "pod-0", Host: "[FD00:0::1]:8000"}}))
	var e ends
	v := envoy{stub: dial(t, epp.Config{Picker: p.picker, OnEnd: e.add}), request: duplex, back: duplex}
	c := call{body: p.body(), cuts: 1, served: "[fd00::1]:8000", answer: []string{`{"usage":{"prompt_tokens":144,"prompt_tokens_details":{"cached_tokens":128}}}`}}
	_, err := v.do(t.Context(), &c)
	must(t, err)
	if p.idle(t); fmt.Sprint(e.all) != "[pod-0 144 128]" {
		t.Error(e.all)
	}
}

// TestServedCounts: while an answer comes, its request counts as load of the pod that sends it.
func TestServedCounts(t *testing.T) {
	p := newPool(t, picker.Config{Model: "m", Fallbacks: 2}, 4)
	stub := dial(t, epp.Config{Picker: p.picker})
	for _, body := range [][]byte{p.body(), nil} {
		stream, err := stub.Process(t.Context())
		must(t, err)
		f := &filter{envoy: &envoy{request: duplex, back: duplex}, stream: stream, first: true}
		c := call{body: body}
		if body != nil {
			c.cuts = 1
		}
		must(t, f.run(&c))
		endpoints := strings.Split(f.result.destination, ",")
		c.served, c.answer = endpoints[1], []string{"{"}
		if err := f.answer(&c); err == nil {
			t.Log("the answer goes on")
		}
		at := []route.Pod{{Name: "pod-" + strings.TrimSuffix(strings.TrimPrefix(endpoints[1], "10.0.0."), ":8000")}}
		if p.picker.Loads().Fill(at); body != nil && p.inFlight().Requests > 1 {
			t.Errorf("%+v", p.inFlight())
		}
		must(t, stream.CloseSend())
		for err == nil {
			_, err = stream.Recv()
		}
	}
	p.idle(t)
}

// TestRefusals: each refusal has its status and its message.
func TestRefusals(t *testing.T) {
	p := newPool(t, picker.Config{Model: "m"}, 2)
	v := envoy{stub: dial(t, epp.Config{Picker: p.picker, MaxBody: 4000, MaxRequests: 1}), request: duplex, back: duplex}
	for _, c := range []struct {
		call call
		want string
	}{
		{call{body: bytes.Repeat([]byte(" "), 4001), cuts: 3}, "413 longer than 4000 bytes"},
		{call{body: []byte(`{"model":"m"`), cuts: 1}, "400 body"},
		{call{body: []byte(`{"model":7,"prompt":"x"}`), cuts: 1}, "400 model"},
		{call{body: []byte{}, cuts: 1}, "400 body"},
	} {
		got, err := v.do(t.Context(), &c.call)
		must(t, err)
		check(t, got, &c.call, c.want)
	}
	var waiting []*picker.Pick
	for range 2 {
		pick, err := p.picker.Pick(t.Context(), nil)
		must(t, err)
		waiting = append(waiting, pick)
	}
	busy := call{body: p.body(), cuts: 1}
	got, err := v.do(t.Context(), &busy)
	must(t, err)
	check(t, got, &busy, "429 all pods have 1 requests")
	waiting[0].Failed()
	if got, err = v.do(t.Context(), &busy); err != nil || got.destination != waiting[0].Pod.Host {
		t.Errorf("%+v, %v", got, err)
	}
	waiting[1].Failed()
	must(t, p.picker.Set([]picker.Pod{{Name: "a", Host: "10.0.0.1"}, {Name: "b"}}))
	for _, limit := range []int{0, 1} {
		v.stub = dial(t, epp.Config{Picker: p.picker, MaxBody: math.MaxInt, MaxRequests: limit})
		if got, err = v.do(t.Context(), &busy); err != nil {
			t.Fatal(err)
		}
		check(t, got, &busy, "503 no pod is up that has an address and a port")
	}
	p.idle(t)

	for want, cfg := range map[string]epp.Config{
		"the Picker is nil": {}, "MaxBody is -1": {Picker: p.picker, MaxBody: -1},
		"MaxBuffered is -1": {Picker: p.picker, MaxBuffered: -1}, "MaxRequests is -1": {Picker: p.picker, MaxRequests: -1},
	} {
		if _, err := epp.NewServer(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestMaxBuffered: a request whose body exceeds the bound is not scored, its bytes count as load, and
// the body comes back. The memory of a body is free when its answer begins or its request ends.
func TestMaxBuffered(t *testing.T) {
	p := newPool(t, picker.Config{Model: "m"}, 4)
	body := p.body()
	for _, request := range []mode.ProcessingMode_BodySendMode{duplex, buffered} {
		var mu sync.Mutex
		scored := 0
		count := func() int {
			mu.Lock()
			defer mu.Unlock()
			return scored
		}
		stub := dial(t, epp.Config{Picker: p.picker, MaxBuffered: len(body) + 10, OnEnd: func(k *picker.Pick, _ kvindex.Usage, _ error) {
			mu.Lock()
			defer mu.Unlock()
			if k.CachedTokens > 0 {
				scored++
			} else if k.Err == nil || k.PromptTokens < len(body)/40 {
				t.Errorf("picked by load for %d bytes: %d tokens, %v", len(body), k.PromptTokens, k.Err)
			}
		}})
		v := envoy{stub: stub, request: request, back: duplex}
		// pass sends a request, and reports whether it was scored.
		pass := func(c *call) bool {
			t.Helper()
			before := count()
			got, err := v.do(t.Context(), c)
			must(t, err)
			check(t, got, c, "any")
			return count() > before
		}
		fits := call{body: body, cuts: 5, answer: []string{"{}"}}
		large := call{body: append(bytes.Repeat([]byte(" "), 11), body...), cuts: 5, trailers: true, answer: []string{"{}"}}
		for range 3 {
			if !pass(&fits) || pass(&large) {
				t.Fatalf("%v: a body that fits must be scored, another one not", request)
			}
		}
		// A request that waits for its answer keeps its body in memory.
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := stub.Process(ctx)
		must(t, err)
		f := &filter{envoy: &v, stream: stream, first: true}
		must(t, f.run(&fits))
		if pass(&fits) {
			t.Errorf("%v: two bodies were scored, one fits", request)
		}
		must(t, f.answer(&fits))
		if !pass(&fits) {
			t.Errorf("%v: an answer that has begun holds its body", request)
		}
		cancel()
		for err == nil {
			_, err = stream.Recv()
		}
	}
}

// TestRanks: a request for a pod with several ranks has the header with the rank.
func TestRanks(t *testing.T) {
	p := newPool(t, picker.Config{Model: "m"}, 1)
	must(t, p.picker.Set([]picker.Pod{{Name: "pod-0", Host: "10.0.0.1:8000", Ranks: 2}}))
	v := envoy{stub: dial(t, epp.Config{Picker: p.picker}), request: duplex, back: duplex}
	c := call{body: p.body(), cuts: 1, answer: []string{"{}"}}
	got, err := v.do(t.Context(), &c)
	if err != nil || got.rank != "0" {
		t.Fatalf("%+v, %v", got, err)
	}
}

// TestFallbacksOfARank: the rank in the events of a pod without further ranks is in no header, so it
// excludes no fallback.
func TestFallbacksOfARank(t *testing.T) {
	p := newPool(t, picker.Config{Model: "m", Fallbacks: 1}, 0)
	must(t, p.ix.Ingest("a", "m", fakeengine.Payload(1, 3, p.prompt.Stored(0, 8))))
	must(t, p.picker.Set([]picker.Pod{{Name: "a", Host: "10.0.0.1:8000"}, {Name: "b", Host: "10.0.0.2:8000"}}))
	v := envoy{stub: dial(t, epp.Config{Picker: p.picker}), request: duplex, back: duplex}
	c := call{body: p.body(), cuts: 1, answer: []string{"{}"}}
	got, err := v.do(t.Context(), &c)
	must(t, err)
	check(t, got, &c, "10.0.0.1:8000,10.0.0.2:8000")
}

// play returns the answers to messages.
func (p *pool) play(t *testing.T, in ...*extproc.ProcessingRequest) ([]*extproc.ProcessingResponse, error) {
	t.Helper()
	s := &script{ctx: t.Context(), in: in}
	err := epp.Process(epp.Config{Picker: p.picker, MaxBody: 1 << 20, MaxBuffered: 1 << 20}, s)
	p.idle(t)
	return s.out, err
}

func headersMessage(fields map[string]string, end bool) *extproc.ProcessingRequest {
	return &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{Headers: headerMap(fields), EndOfStream: end}}}
}

// TestOrders: messages in orders that are rare.
func TestOrders(t *testing.T) {
	p := newPool(t, picker.Config{Model: "m"}, 2)
	post := map[string]string{":method": "POST", ":path": "/v1/completions", "x-data-parallel-rank": "7"}
	piece := func(end bool) *extproc.ProcessingRequest {
		return &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestBody{RequestBody: &extproc.HttpBody{Body: []byte("x"), EndOfStream: end}}}
	}
	early := headersMessage(post, false)
	early.ProtocolConfig = &extproc.ProtocolConfiguration{RequestBodyMode: streamed}
	answer := &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extproc.HttpHeaders{Headers: headerMap(map[string]string{":status": "500"}), EndOfStream: true}}}
	// Trailers without a body: only the answer to the headers can set headers.
	for _, early := range []bool{false, true} {
		begin := headersMessage(post, false)
		begin.ProtocolConfig = &extproc.ProtocolConfiguration{RequestBodyMode: buffered, SendBodyWithoutWaitingForHeaderResponse: early}
		out, err := p.play(t, begin, &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestTrailers{}})
		if err != nil || len(out) != 2 || out[0].GetRequestHeaders() == nil || out[1].GetRequestTrailers() == nil {
			t.Fatalf("trailers without a body: %v, %v", out, err)
		}
		with, without := out[1], out[0]
		if early {
			with, without = out[0], out[1]
		}
		if with.GetDynamicMetadata().GetFields()["envoy.lb"] == nil || without.GetDynamicMetadata() != nil ||
			early != (with.GetRequestHeaders().GetResponse().GetHeaderMutation() != nil) {
			t.Errorf("trailers without a body, early=%v: %v", early, out)
		}
	}
	// The answer comes before the end of the request.
	out, err := p.play(t, early, piece(false), answer, piece(false), piece(true))
	if err != nil || len(out) != 5 || out[4].GetRequestBody() == nil || out[4].GetRequestBody().GetResponse().GetHeaderMutation() != nil {
		t.Errorf("%v, %v", out, err)
	}
	if out, err = p.play(t, headersMessage(post, true), headersMessage(post, true)); status.Code(err) != codes.InvalidArgument || len(out) != 1 {
		t.Fatalf("headers twice: %v, %v", out, err)
	}
	if removed := out[0].GetRequestHeaders().GetResponse().GetHeaderMutation().GetRemoveHeaders(); len(removed) != 1 || removed[0] != "x-data-parallel-rank" {
		t.Errorf("a client's rank: %v", removed)
	}
}

// TestIPv6: an address is compared as an address.
func TestIPv6(t *testing.T) {
	p := newPool(t, picker.Config{Model: "m"}, 0)
	must(t, p.picker.Set([]picker.Pod{{Name: "a", Host: "[fd00::1]:8000"}}))
	for subset, want := range map[string]bool{
		"[fd00::1]:8000": true, "fd00::1": true, "[fd00::1]": true, "[FD00:0::1]:8000": true, "fd00:0:0::1": true,
		"[fd00::1]:8001": false, "fd00::2": false, "": false, "::1": false,
	} {
		m := headersMessage(map[string]string{":method": "GET"}, true)
		m.MetadataContext = &core.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy.lb.subset_hint": {Fields: map[string]*structpb.Value{"x-gateway-destination-endpoint-subset": structpb.NewStringValue(subset)}}}}
		if out, err := p.play(t, m); err != nil || (out[0].GetImmediateResponse() == nil) != want {
			t.Errorf("%q: %v, %v", subset, out, err)
		}
	}
}

// TestHealth: the services of the protocol.
func TestHealth(t *testing.T) {
	empty := newPool(t, picker.Config{Model: "m"}, 0)
	client := health.NewHealthClient(connect(t, epp.Config{Picker: empty.picker}))
	check := func(service string, want health.HealthCheckResponse_ServingStatus) {
		t.Helper()
		if got, err := client.Check(t.Context(), &health.HealthCheckRequest{Service: service}); err != nil || got.GetStatus() != want {
			t.Errorf("%q: %v, %v", service, got, err)
		}
	}
	dependent := []string{"", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"}
	for _, service := range dependent {
		check(service, health.HealthCheckResponse_NOT_SERVING)
	}
	check("liveness", health.HealthCheckResponse_SERVING)
	must(t, empty.picker.Set([]picker.Pod{{Name: "a", Host: "10.0.0.1:1"}}))
	for _, service := range append(dependent, "liveness") {
		check(service, health.HealthCheckResponse_SERVING)
	}
	if _, err := client.Check(t.Context(), &health.HealthCheckRequest{Service: "other"}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
}

// TestMany: 1,000 exchanges at once, of which some end at any point. No load and no goroutine is
// left.
func TestMany(t *testing.T) {
	p := newPool(t, picker.Config{Model: "m", Fallbacks: 2}, 8)
	before := runtime.NumGoroutine()
	t.Run("exchanges", func(t *testing.T) {
		stub := dial(t, epp.Config{Picker: p.picker}, grpc.WaitForHandlers(true))
		var all sync.WaitGroup
		for i := range 1000 {
			all.Go(func() {
				r := rand.New(rand.NewPCG(uint64(i), 1))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				v := envoy{stub: stub, request: []mode.ProcessingMode_BodySendMode{duplex, buffered, none, streamed}[r.IntN(4)], back: []mode.ProcessingMode_BodySendMode{duplex, buffered, none, streamed}[r.IntN(4)]}
				c := call{body: p.body(), cuts: 1 + r.IntN(3), trailers: r.IntN(4) == 0, answer: []string{"{}"}, noAnswer: r.IntN(4) == 0}
				cancelled := r.IntN(3) == 0
				if cancelled {
					go func() {
						for range r.IntN(50) {
							runtime.Gosched()
						}
						cancel()
					}()
				}
				if _, err := v.do(ctx, &c); err != nil && !cancelled {
					t.Error(err)
				}
			})
		}
		all.Wait()
	})
	p.idle(t) // the server has stopped
	for ctx := zmtptest.Context(t); runtime.NumGoroutine() > before; {
		if ctx.Err() != nil {
			buf := make([]byte, 1<<16)
			t.Fatalf("goroutines: %d, were %d\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
		}
		runtime.Gosched()
	}
}

// FuzzProcess: messages in any order and of any content cause no panic, and leave no load behind.
func FuzzProcess(f *testing.F) {
	p := newPool(f, picker.Config{Model: "m", Fallbacks: 2}, 4)
	add := func(all ...*extproc.ProcessingRequest) {
		var b []byte
		for _, m := range all {
			raw, err := proto.Marshal(m)
			must(f, err)
			b = append(append(b, byte(len(raw)>>8), byte(len(raw))), raw...)
		}
		f.Add(b)
	}
	headers := &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{Headers: headerMap(map[string]string{":path": "/v1/completions"})}}}
	body := &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestBody{RequestBody: &extproc.HttpBody{Body: p.body(), EndOfStream: true}}}
	back := &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseHeaders{}}
	answer := &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseBody{ResponseBody: &extproc.HttpBody{Body: []byte("{}"), EndOfStream: true}}}
	trailers := &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestTrailers{}}
	hint := &extproc.ProcessingRequest{MetadataContext: &core.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy.lb.subset_hint": nil, "envoy.lb": {Fields: map[string]*structpb.Value{"x-gateway-destination-endpoint-served": nil}}}}, Request: headers.Request}
	add(headers, body, back, answer)
	add(body, headers, answer, back, trailers)
	whole := &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{EndOfStream: true}}}
	add(body, whole)
	add(trailers, whole, back)
	add(hint, trailers, trailers, body, body, back, back)
	add(back, answer, &extproc.ProcessingRequest{})
	add(headers, body, headers, body)
	piece := &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestBody{RequestBody: &extproc.HttpBody{Body: make([]byte, 700)}}}
	add(headers, piece, piece, piece, trailers, back, answer)
	add(&extproc.ProcessingRequest{ProtocolConfig: &extproc.ProtocolConfiguration{RequestBodyMode: mode.ProcessingMode_BUFFERED_PARTIAL, ResponseBodyMode: 99}, Request: headers.Request}, body, body, answer, back)
	f.Fuzz(func(t *testing.T, b []byte) {
		stream := &script{ctx: t.Context()}
		for len(b) > 2 {
			n := min(int(b[0])<<8|int(b[1]), len(b)-2)
			m := new(extproc.ProcessingRequest)
			if proto.Unmarshal(b[2:2+n], m) == nil {
				stream.in = append(stream.in, m)
			}
			b = b[2+n:]
		}
		err := epp.Process(epp.Config{Picker: p.picker, MaxBody: 1 << 16, MaxBuffered: 1 << 10, MaxRequests: 3}, stream)
		if code := status.Code(err); code != codes.OK && code != codes.InvalidArgument {
			t.Error(err)
		}
		p.idle(t)
	})
}

// A script is a stream that receives the given messages.
type script struct {
	extproc.ExternalProcessor_ProcessServer
	ctx context.Context
	in  []*extproc.ProcessingRequest
	out []*extproc.ProcessingResponse
}

func (s *script) Context() context.Context { return s.ctx }
func (s *script) Send(m *extproc.ProcessingResponse) error {
	s.out = append(s.out, m)
	return nil
}
func (s *script) Recv() (*extproc.ProcessingRequest, error) {
	if len(s.in) == 0 {
		return nil, io.EOF
	}
	m := s.in[0]
	s.in = s.in[1:]
	return m, nil
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
