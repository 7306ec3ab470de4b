// Gateway is a reverse proxy for engines with OpenAI's API, and an example of how a gateway embeds
// kvindex. main.go puts the parts together, gateway.go has the path of a request, health.go the
// health checks and the loads of pods, policies.go the policies, and demo.go the demo.
//
//	go run ./examples/gateway -demo # with simulated engines
//	go run ./examples/gateway -model llama-3 -folder /models/llama-3 -pods a=10.0.0.7:8000,b=10.0.0.8:8000
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/events/discovery"
	"github.com/kvindex/kvindex/picker"
	"github.com/kvindex/kvindex/route"
)

// settings are the flags of the command line.
type settings struct {
	model, folder   string
	pods, file, dns string
	port            string     // of the API of a pod whose address has no port
	all             events.Pod // the fields that all pods of the flags pods and dns have in common
	estimated       int        // blocks of a pod's cache that is estimated; 0: pods publish events
	policy          route.Policy
	pause, loads    time.Duration
	limits          limits
	log             *log.Logger
}

// block is the number of tokens of a block for pods that publish no events: engines' usual size.
const block = 16

func main() {
	s := settings{log: log.Default()}
	playing := flag.Bool("demo", false, "play engines and clients, and compare policies")
	listen := flag.String("listen", ":8080", "`address` for clients")
	flag.StringVar(&s.model, "model", "", "`name` of the model, as clients send it")
	flag.StringVar(&s.folder, "folder", "", "`folder` of the model, as the engines have it, without the weights")
	flag.StringVar(&s.pods, "pods", "", "pods, as `name=host:port,...`")
	flag.StringVar(&s.file, "file", "", "`file` of pods, which is followed: see package discovery; the label port has the port of the API")
	flag.StringVar(&s.dns, "dns", "", "`name` whose addresses are the pods, which is followed")
	flag.StringVar(&s.port, "port", "8000", "`port` of the API of pods that name no other")
	flag.IntVar(&s.all.Port, "events", 5557, "`port` at which pods publish events")
	flag.IntVar(&s.all.ReplayPort, "replay", 5657, "`port` at which pods repeat events; 0: none")
	flag.IntVar(&s.all.Ranks, "ranks", 1, "data-parallel `ranks` of a pod")
	flag.IntVar(&s.estimated, "estimated", 0, "pods publish no events: estimate caches of so many `blocks`")
	policy := flag.String("policy", "default", "`name` of the policy: "+policyNames())
	flag.DurationVar(&s.pause, "pause", time.Second, "`time` for which a pod that failed is left alone at first")
	flag.DurationVar(&s.loads, "loads", 0, "`time` between two readings of the load in the metrics of pods that others use too; 0: they are not read")
	flag.Int64Var(&s.limits.body, "max-body", 16<<20, "longest request, in `bytes`")
	flag.DurationVar(&s.limits.bodyTime, "body-time", 30*time.Second, "`time` for a request to come")
	flag.Int64Var(&s.limits.requests, "max-requests", 1024, "most `requests` at once")
	flag.DurationVar(&s.limits.firstByte, "first-byte", 2*time.Minute, "`time` for a pod to begin an answer; one that is not streamed begins at its end")
	flag.DurationVar(&s.limits.answer, "answer-time", 10*time.Minute, "`time` for a whole answer")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	var err error
	switch s.policy, err = policyOf(*policy); {
	case err != nil:
	case flag.NArg() > 0:
		err = fmt.Errorf("%q is no flag", flag.Arg(0))
	case *playing:
		err = demo(ctx, os.Stdout, demoConversations)
	case s.model == "" || s.folder == "":
		err = errors.New("-model or -folder is missing; -demo needs neither")
	default:
		var listener net.Listener
		if listener, err = net.Listen("tcp", *listen); err == nil {
			err = serve(ctx, listener, s)
		}
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

// serve runs a gateway until ctx ends, and then until the answers that have begun are complete.
func serve(ctx context.Context, listener net.Listener, s settings) error {
	llm, err := kvindex.LoadModel(s.folder)
	if err = errors.Join(err, llm.ChatErr); err != nil {
		return err
	}
	g, err := open(s, llm)
	if err != nil {
		return err
	}
	defer g.index.Close()
	if len(g.sources) == 0 {
		return errors.New("there are no pods: -pods, -file and -dns name them")
	}
	server := g.server()
	ctx, end := context.WithCancel(ctx)
	defer end()
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	var parts sync.WaitGroup
	parts.Go(func() { g.run(running) })
	parts.Go(func() {
		<-ctx.Done()
		over, cancel := context.WithTimeout(running, s.limits.answer)
		defer cancel()
		_ = server.Shutdown(over) // waits for the answers that have begun
		stop()
	})
	err = server.Serve(listener)
	end()
	parts.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// open puts the parts of kvindex together: the Fleet receives the events of its pods, the Indexer
// applies them, and the Picker picks among the pods of the Fleet.
func open(s settings, llm kvindex.Model) (*gateway, error) {
	g := &gateway{limits: s.limits, loads: s.loads, log: s.log, transport: http.DefaultTransport.(*http.Transport).Clone()}
	g.transport.Proxy, g.transport.DialContext = nil, (&net.Dialer{Timeout: 5 * time.Second}).DialContext
	g.transport.MaxIdleConns, g.transport.MaxIdleConnsPerHost = 0, 256
	g.transport.ReadBufferSize, g.transport.WriteBufferSize = 2<<10, 2<<10
	g.transport.DisableCompression = true // the answer of the engine, byte by byte
	g.health = health{pause: s.pause, client: &http.Client{Transport: g.transport, Timeout: checkTimeout}, failed: make(map[string]*failure)}
	g.proxy = httputil.ReverseProxy{
		Rewrite:       rewrite,
		FlushInterval: -1, // flush each write
		BufferPool:    new(buffers),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			status := picker.Status(err)
			if errors.Is(err, context.Canceled) { // a client that has only closed its half of the connection reads this status
				g.count(func(c *counts) { c.Gone++ })
				w.WriteHeader(status)
				return
			}
			if !errors.Is(err, picker.ErrNoPod) {
				err = errNoAnswer // clients must not see the names and addresses of pods
			}
			g.refuse(w, status, err)
		},
		ErrorLog: log.New(io.Discard, "", 0), // it would have a line for each client that goes and each answer that breaks off
	}
	profile := kvindex.Profile{}
	if s.estimated > 0 {
		profile.Approximate = &kvindex.Approximate{BlockTokens: block, Blocks: s.estimated}
		s.all.Engine = events.EngineNone
	}
	if s.pause < time.Millisecond {
		return nil, fmt.Errorf("-pause is %v, 1ms at least", s.pause)
	}
	var err error
	if g.sources, err = s.sources(); err != nil {
		return nil, err
	}
	g.index, err = kvindex.New(kvindex.WithModel(s.model, llm), kvindex.WithProfile(func(string, string) kvindex.Profile { return profile }))
	if err != nil {
		return nil, err
	}
	g.fleet, err = events.NewFleet(g.index.Sink(), events.FleetConfig{OnError: func(err error) { s.log.Print(err) }})
	if err != nil {
		return nil, err
	}
	g.picker, err = picker.New(g.index, picker.Config{
		Fleet: g.fleet, Model: s.model, Policy: g.health.around(s.policy), Affinity: affinity, OnEnd: g.onEnd,
		Host: func(pod events.Pod) string {
			if port := pod.Labels["port"]; port != "" {
				return net.JoinHostPort(pod.Host, port)
			}
			return net.JoinHostPort(pod.Host, s.port)
		},
	})
	return g, err
}

// rewrite makes the request to a pod, still without a host.
func rewrite(r *httputil.ProxyRequest) {
	r.SetXForwarded()
	r.Out.Host = ""
	r.Out.Header.Del("Accept-Encoding")      // the usage in a compressed answer cannot be read
	r.Out.Header.Del("Expect")               // the body is here already
	r.Out.Header.Del("X-Data-Parallel-Rank") // the gateway chooses the rank
	// With one of these headers, a Transport would repeat a request to the same pod.
	r.Out.Header.Del("Idempotency-Key")
	r.Out.Header.Del("X-Idempotency-Key")
}

// sources returns the sources of pods. A source of events/k8s could be one of them.
func (s settings) sources() (sources []events.PodSource, err error) {
	s.all.Model = s.model
	if s.pods != "" {
		var pods []events.Pod
		for _, text := range strings.Split(s.pods, ",") {
			name, address, _ := strings.Cut(text, "=")
			pod := s.all
			host, port, err := net.SplitHostPort(address)
			if name == "" || err != nil {
				return nil, fmt.Errorf("-pods: %q is not name=host:port (%w)", text, err)
			}
			pod.ID, pod.Host, pod.Labels = name, host, map[string]string{"port": port}
			pods = append(pods, pod)
		}
		sources = append(sources, events.PodSource{Name: "-pods", Run: func(ctx context.Context, set func([]events.Pod) error) error {
			err := set(pods)
			<-ctx.Done()
			return errors.Join(err, ctx.Err())
		}})
	}
	if s.file != "" {
		sources = append(sources, discovery.File(s.file))
	}
	if s.dns != "" {
		source, err := discovery.DNS(discovery.DNSConfig{Name: s.dns, Pod: s.all})
		if err != nil {
			return nil, err
		}
		sources = append(sources, source)
	}
	return sources, nil
}

// run follows the pods until ctx ends.
func (g *gateway) run(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { _ = g.fleet.Run(ctx, g.sources...) })
	parts.Go(func() {
		watch(ctx, g.health.pause/4, func() []picker.Pod { return g.health.due(g.picker.Pods()) }, g.health.check)
	})
	if g.loads > 0 {
		parts.Go(func() { watch(ctx, g.loads, g.picker.Pods, g.readLoad) })
	}
	parts.Wait()
	g.transport.CloseIdleConnections()
}

// server returns a server with limits for the header of a request and for idle connections.
func (g *gateway) server() *http.Server {
	return &http.Server{
		Handler:           g,
		ReadHeaderTimeout: 10 * time.Second,
		WriteTimeout:      g.bodyTime + g.answer,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
}

// buffers is a httputil.BufferPool.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, 4<<10)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }
