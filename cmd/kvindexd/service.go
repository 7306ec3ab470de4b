package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/cmd/kvindexd/internal/server"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index/redisindex"
	"github.com/kvindex/kvindex/internal/topic"
	"github.com/kvindex/kvindex/internal/zmtp"
	metrics "github.com/kvindex/kvindex/metrics/prometheus"
	prometheus "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
)

// settings has the arguments of serve.
type settings struct {
	listen string // of the public address
	admin  string // of the admin address; "": none
	token  string // for the admin address
	// cert and key are the files for TLS at the admin address, "" for no TLS. clientCA is the
	// file of the authorities that sign its clients' certificates.
	cert, key, clientCA string

	server      server.Config
	options     []kvindex.Option
	models      *kvindex.Models                                         // may be nil
	find        func(ctx context.Context, model string) (string, error) // the files of models
	preload     []string                                                // models
	redis       string                                                  // URL; "": the index is in memory
	redisConfig redisindex.Config
	memory      int64 // bytes of the index; 0: the library's default

	sources     []events.PodSource
	subscribers []subscription // beside the Fleet
	pool        int            // pods whose events are applied at a time; 0: no pool
	maxPods     int            // bounds the pods that connect to the service, and their models; 0: 1,000

	snapshot       string        // file; "": none
	every          time.Duration // between two snapshots
	bootstrap      string        // URL of another service's snapshot
	bootstrapToken string
	grace          time.Duration // from the failure of /readyz until the listeners close

	quiet bool // no /metrics
	log   *slog.Logger
	// listening gets the addresses, if it is not nil.
	listening func(public, admin string)
	// listeningEvents gets each endpoint where engines can connect, if it is not nil.
	listeningEvents func(endpoint string)
}

// A subscription is a Subscriber beside the Fleet. If it dials and is not named, an engine's
// topic kv@POD@MODEL names pod and model.
type subscription struct {
	events.SubscriberConfig
	named bool
}

// Bounds for the steps of a shutdown: together less than 30 s.
const (
	maxGrace    = 10 * time.Second
	drainTime   = 8 * time.Second
	closeTime   = 3 * time.Second
	saveTime    = 8 * time.Second
	restoreTime = 5 * time.Minute
)

// A service is a process that runs.
type service struct {
	settings
	ix        *kvindex.Indexer
	fleet     *events.Fleet
	server    *server.Server
	collector *metrics.Collector
	gate      *gate
	closers   []io.Closer
}

// serve runs a service until ctx ends. Then it answers the requests that it has accepted, and
// saves a snapshot.
func serve(ctx context.Context, s settings) error {
	v := &service{settings: s}
	registry := prometheus.NewRegistry()
	v.collector = metrics.New(metrics.WithPods(1000), metrics.WithReferenceNames())
	registry.MustRegister(v.collector, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if !s.quiet {
		v.settings.server.Metrics = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	}
	v.settings.server.Log, v.settings.server.Token, v.settings.server.ClientCerts = s.log, s.token, s.clientCA != ""
	v.server = server.New(v.settings.server)

	public, err := net.Listen("tcp", s.listen)
	if err != nil {
		return fmt.Errorf("setting listen: %w", err)
	}
	defer public.Close()
	admin, err := v.listenAdmin()
	if err != nil {
		return err
	}
	servers := map[*http.Server]net.Listener{v.server.HTTP(v.server.Public()): public}
	if admin != nil {
		defer admin.Close()
		servers[v.server.HTTP(v.server.Admin())] = admin
	}
	ctx, failed := context.WithCancelCause(ctx)
	defer failed(nil)
	var running sync.WaitGroup
	for h, l := range servers {
		running.Go(func() {
			if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				failed(err)
			}
		})
	}
	if s.listening != nil {
		at := ""
		if admin != nil {
			at = admin.Addr().String()
		}
		s.listening(public.Addr().String(), at)
	}
	err = v.follow(ctx, func() { v.drain(servers) })
	for h := range servers {
		_ = h.Close()
	}
	running.Wait()
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return err
}

// listenAdmin listens on the admin address. It refuses an address that is neither a loopback
// address nor guarded.
func (s *settings) listenAdmin() (net.Listener, error) {
	if s.admin == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", s.admin)
	if err != nil {
		return nil, fmt.Errorf("setting admin: %w", err)
	}
	if at := l.Addr().(*net.TCPAddr); s.token == "" && s.clientCA == "" && !at.IP.IsLoopback() {
		_ = l.Close()
		return nil, fmt.Errorf("the admin address %s is no loopback address: it needs a token, or the certificates of its clients", at)
	}
	if s.cert == "" {
		return l, nil
	}
	cert, err := tls.LoadX509KeyPair(s.cert, s.key)
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	c := &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}}
	if s.clientCA != "" {
		pem, err := os.ReadFile(s.clientCA)
		if c.ClientCAs, c.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert; err == nil && !c.ClientCAs.AppendCertsFromPEM(pem) {
			err = fmt.Errorf("%s has no certificate", s.clientCA)
		}
		if err != nil {
			_ = l.Close()
			return nil, err
		}
	}
	return tls.NewListener(l, c), nil
}

// follow opens the index and follows the engines until ctx ends. Then it calls drain, and saves
// a snapshot.
func (v *service) follow(ctx context.Context, drain func()) (err error) {
	began := time.Now()
	if err := v.open(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer func() {
		for _, c := range v.closers {
			err = errors.Join(err, c.Close())
		}
	}()
	sink := v.ix.Sink()
	settle := func() error { return nil } // applies the messages that wait
	if v.pool > 0 {
		p, err := events.NewPool(sink, events.PoolConfig{Concurrency: v.pool, OnError: func(m events.Message, err error) {
			v.log.Warn("a message was not applied", "pod", m.Pod, "model", m.Model, "error", err)
		}})
		if err != nil {
			return err
		}
		settle = func() error {
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
			defer cancel()
			return p.Close(closing)
		}
		defer func() { _ = settle() }()
		v.collector.WatchPool(p)
		sink = p.Sink()
	}
	connected, disconnect := context.WithCancel(context.WithoutCancel(ctx)) // engines are followed until the last answer
	defer disconnect()
	var running sync.WaitGroup
	if err := v.startFleet(connected, sink, &running); err != nil {
		return err
	}
	if v.models != nil && len(v.preload) > 0 {
		v.server.Check("tokenizers", "they are being read")
		running.Go(func() { v.load(ctx) })
	}
	v.server.Open(v.ix, v.fleet)
	v.log.Info("listening for requests", "ready_after", time.Since(began))
	v.keep(ctx)
	drain()
	disconnect()
	running.Wait()
	v.server.Close()
	err = settle() // before the snapshot, which would lack them
	if v.snapshot != "" && v.redis == "" {
		saving, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTime)
		defer cancel()
		err = errors.Join(err, v.save(saving))
	}
	return err
}

// open makes the index: on Redis, from another service, from the snapshot, or a new one.
func (v *service) open(ctx context.Context) error {
	options := append([]kvindex.Option{kvindex.WithHooks(v.collector.Hooks(kvindex.Hooks{
		Lost: func(l kvindex.Loss) {
			v.log.Warn("messages were lost", "loss", l)
			v.server.Lost(l)
		},
		State: func(pod, model string, from, to kvindex.State) {
			v.log.Info("a pod", "pod", pod, "model", model, "was", from, "is", to)
		},
	}))}, v.options...)
	if v.models != nil {
		options = append(options, kvindex.WithModels(v.models.Model))
		v.collector.WatchTokenizers(v.models.Pool)
		v.closers = append(v.closers, v.models)
	}
	if v.memory > 0 && v.redis == "" {
		options = append(options, kvindex.WithMemory(v.memory))
	}
	var err error
	switch {
	case v.redis != "":
		err = v.openRedis(ctx, options)
	case v.bootstrap != "":
		if v.ix, err = fetch(ctx, v.bootstrap, v.bootstrapToken, options); err == nil {
			v.log.Info("restored from another service", "pods", len(v.ix.Pods(nil)))
			break
		}
		v.log.Error("nothing was restored from the other service", "error", err)
		fallthrough
	default:
		err = v.restore(ctx, options)
	}
	if err != nil {
		return err
	}
	v.closers = append([]io.Closer{v.ix}, v.closers...)
	v.collector.Watch(v.ix)
	return nil
}

// restore reads the snapshot. A damaged snapshot is ignored, and the next one replaces it.
func (v *service) restore(ctx context.Context, options []kvindex.Option) (err error) {
	if v.snapshot != "" {
		if v.ix, err = kvindex.LoadFile(ctx, v.snapshot, options...); err == nil {
			v.log.Info("restored", "file", v.snapshot, "pods", len(v.ix.Pods(nil)))
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		v.log.Error("the snapshot was passed over", "error", err)
	}
	v.ix, err = kvindex.New(options...)
	return err
}

// openRedis waits for Redis until ctx ends. It returns an error that waiting cannot mend at once.
func (v *service) openRedis(ctx context.Context, options []kvindex.Option) error {
	o, err := redis.ParseURL(v.redis)
	if err != nil {
		return errors.New("the URL of Redis cannot be read") // err may show a password
	}
	o.ContextTimeoutEnabled = true
	client := redis.NewClient(o)
	shared, err := redisindex.New(client, v.redisConfig)
	for wait := 250 * time.Millisecond; err != nil; wait = min(2*wait, 10*time.Second) {
		if !passes(err) {
			return errors.Join(err, client.Close())
		}
		v.log.Error("the service waits for Redis", "error", err)
		v.server.Check("restored", "Redis does not answer: "+err.Error())
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return errors.Join(ctx.Err(), client.Close())
		}
		shared, err = redisindex.New(client, v.redisConfig)
	}
	v.closers = append(v.closers, shared, client)
	v.ix, err = kvindex.New(append(options, kvindex.WithIndex(shared))...)
	return err
}

// redisLog writes the messages of Redis' client, which by itself writes them as plain text.
type redisLog struct{ *slog.Logger }

func (l redisLog) Printf(_ context.Context, format string, args ...any) {
	l.Warn("redis", "message", fmt.Sprintf(format, args...))
}

// passes reports whether an error of Redis can end by itself: there is no answer, or the server
// is starting, fails over or has too many clients.
func passes(err error) bool {
	for _, prefix := range []string{"LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "BUSY", "max number of clients"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	var of net.Error
	return errors.As(err, &of) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// fetch returns an Indexer that is restored from another service's snapshot. Its errors do not
// show the URL, which may have secrets.
func fetch(ctx context.Context, from, token string, options []kvindex.Option) (*kvindex.Indexer, error) {
	ctx, cancel := context.WithTimeout(ctx, restoreTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, err
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.URL.Host, errors.Unwrap(err))
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s", r.URL.Host, a.Status)
	}
	return kvindex.Restore(ctx, a.Body, options...)
}

// startFleet starts a Fleet for the sources of pods, and the subscriptions.
func (v *service) startFleet(ctx context.Context, sink events.Sink, running *sync.WaitGroup) error {
	problem := func(err error) { v.log.Warn("events", "error", err) }
	v.gate = &gate{most: cmp.Or(v.maxPods, defaultPods), ix: v.ix, log: v.log, pods: make(map[string]time.Time), models: make(map[string]time.Time)}
	var names []string
	for _, p := range v.ix.Pods(nil) {
		names = append(names, p.Pod)
		if len(v.sources) == 0 && v.redis == "" { // it has connected before the snapshot
			v.gate.pods[p.Pod], v.gate.models[p.Model] = p.LastMessage, p.LastMessage
		}
	}
	var err error
	if v.fleet, err = events.NewFleet(sink, events.FleetConfig{
		OnError: problem, Restored: v.unconfirmed(names),
		OnChange: func(c events.FleetChange) {
			v.log.Info("fleet", "change", c)
			if c.Kind == "removed" || c.Kind == "replaced" {
				v.server.Forget(c.Pod.ID)
			}
		},
	}); err != nil {
		return err
	}
	v.collector.WatchFleet(v.fleet)
	running.Go(func() { _ = v.fleet.Run(ctx, v.sources...) })
	for _, c := range v.subscribers {
		sink := sink
		c.OnError = problem
		if c.Bind {
			c.ParseTopic, sink = v.gate.parse, gatedSink{sink, v.gate}
			c.OnListen = func(endpoint string) {
				v.log.Info("listening for engines", "endpoint", endpoint)
				if v.listeningEvents != nil {
					v.listeningEvents(endpoint)
				}
			}
		}
		running.Go(func() {
			var first events.Message
			if !c.Bind && !c.named {
				first = firstMessage(ctx, c.SubscriberConfig)
				c.Pod, c.Model = first.Pod, first.Model
			}
			sub, err := events.NewSubscriber(sink, c.SubscriberConfig)
			if err == nil && first.Payload != nil {
				if _, err := sink.IngestMessage(first); err != nil {
					problem(err)
				}
			}
			if err == nil {
				v.collector.WatchSubscriber(sub)
				err = sub.Run(ctx)
			}
			if ctx.Err() == nil {
				v.log.Error("no engine is heard", "endpoint", c.Endpoint, "error", err)
				v.server.Check("events", err.Error())
			}
		})
	}
	return nil
}

// firstMessage waits for the first message of an engine. The pod and the model are those that its
// topic names, or else those of c. Without a Payload it is no message of an engine.
func firstMessage(ctx context.Context, c events.SubscriberConfig) events.Message {
	for ctx.Err() == nil {
		if m, err := receiveFirst(ctx, c); err == nil {
			return m
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
	return events.Message{Pod: c.Pod, Model: c.Model}
}

func receiveFirst(ctx context.Context, c events.SubscriberConfig) (m events.Message, err error) {
	const most = 32 << 20
	conn, err := zmtp.Dial(ctx, c.Endpoint, zmtp.Config{Type: zmtp.SUB, MaxFrame: most, MaxMessage: most, HandshakeTimeout: 5 * time.Second, Heartbeat: 3 * time.Second})
	if err != nil {
		return m, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err := conn.Subscribe(c.Topic); err != nil {
		return m, err
	}
	frames, err := conn.Receive()
	if err != nil || len(frames) == 0 {
		return m, errors.Join(err, io.ErrUnexpectedEOF)
	}
	m = events.Message{Pod: c.Pod, Model: c.Model, Stream: c.Endpoint}
	if pod, model, err := topic.Parse(string(frames[0])); err == nil {
		m.Pod, m.Model = pod, model
	}
	if len(frames) == 3 && len(frames[1]) == 8 {
		m.Seq, m.Payload = binary.BigEndian.Uint64(frames[1]), bytes.Clone(frames[2])
	}
	return m, nil
}

// unconfirmed returns the restored pods that the Fleet removes unless a source names them again:
// all of names if sources alone bring pods, else none.
func (v *service) unconfirmed(names []string) []string {
	if len(v.sources) == 0 || len(v.subscribers) > 0 {
		return nil
	}
	return names
}

// load loads the tokenizers of the models that are served. It retries until ctx ends.
func (v *service) load(ctx context.Context) {
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		err := v.models.Preload(ctx, v.preload...)
		if err == nil {
			v.server.Check("tokenizers", "")
			return
		}
		if ctx.Err() != nil {
			return
		}
		v.log.Error("tokenizers", "error", err)
		v.server.Check("tokenizers", err.Error())
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// keep saves a snapshot at intervals until ctx ends.
func (v *service) keep(ctx context.Context) {
	if v.snapshot == "" || v.redis != "" || v.every <= 0 {
		<-ctx.Done()
		return
	}
	tick := time.NewTicker(v.every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			_ = v.save(ctx)
		case <-ctx.Done():
			return
		}
	}
}

func (v *service) save(ctx context.Context) error {
	began := time.Now()
	err := v.ix.SaveFile(ctx, v.snapshot)
	if err != nil {
		v.log.Error("no snapshot was saved", "error", err)
	} else {
		v.log.Debug("saved", "file", v.snapshot, "took", time.Since(began))
	}
	return err
}

// drain waits until load balancers have noticed that the service is not ready, closes the
// listeners, and waits for the answers.
func (v *service) drain(servers map[*http.Server]net.Listener) {
	v.log.Info("draining", "grace", v.grace)
	v.server.Drain()
	time.Sleep(min(v.grace, maxGrace))
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	var all sync.WaitGroup
	for h := range servers {
		all.Go(func() {
			if err := h.Shutdown(ctx); err != nil {
				v.log.Warn("some requests were cut off", "error", err)
			}
		})
	}
	all.Wait()
}

const defaultPods = 1000

// A gate bounds the pods that connect to the service, and their models: every client that can
// reach the port can name new ones.
type gate struct {
	most int
	ix   *kvindex.Indexer
	log  *slog.Logger

	mu           sync.Mutex           // guards the fields below
	pods, models map[string]time.Time // when a topic has named them last
	reported     bool                 // the log has the refusal since there was room last
	tidied       time.Time
}

// goneAfter is the time after which a pod that has connected and is away makes room for another.
const goneAfter = 10 * time.Minute

// tidy removes the pods that have been away for goneAfter with all their models, and the models
// that no pod has. The caller holds mu.
func (g *gate) tidy() {
	here, served := make(map[string]bool), make(map[string]bool)
	for _, p := range g.ix.Pods(nil) {
		here[p.Pod] = here[p.Pod] || !p.Connected.IsZero() || time.Since(p.LastMessage) <= goneAfter
	}
	maps.DeleteFunc(g.pods, func(pod string, named time.Time) bool {
		return !here[pod] && time.Since(named) > goneAfter && g.ix.RemovePod(pod) == nil
	})
	for _, p := range g.ix.Pods(nil) {
		served[p.Model] = true
	}
	maps.DeleteFunc(g.models, func(model string, named time.Time) bool {
		return !served[model] && time.Since(named) > goneAfter
	})
}

// full reports whether there is no room for a pod and a model. The caller holds mu.
func (g *gate) full(pod, model string) bool {
	return g.pods[pod].IsZero() && len(g.pods) >= g.most || g.models[model].IsZero() && len(g.models) >= g.most
}

var errGate = errors.New("too many pods or models have connected")

func (g *gate) parse(text string) (pod, model string, err error) {
	if pod, model, err = topic.Parse(text); err == nil {
		err = g.admit(pod, model)
	}
	if err != nil {
		return "", "", err
	}
	return pod, model, nil
}

// gatedSink refuses the messages of a pod that has lost its place while its connection stayed, unless
// there is room again.
type gatedSink struct {
	events.Sink
	gate *gate
}

func (s gatedSink) IngestMessage(m events.Message) (events.Receipt, error) {
	if !s.gate.has(m.Pod, m.Model) {
		if err := s.gate.admit(m.Pod, m.Model); err != nil {
			return events.Receipt{}, err
		}
	}
	return s.Sink.IngestMessage(m)
}

func (g *gate) has(pod, model string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.pods[pod].IsZero() && !g.models[model].IsZero()
}

// admit gives a pod and a model a place.
func (g *gate) admit(pod, model string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.full(pod, model) && time.Since(g.tidied) > goneAfter/10 {
		g.tidied = time.Now()
		g.tidy()
		g.reported = g.reported && g.full(pod, model)
	}
	if g.full(pod, model) {
		if !g.reported {
			g.log.Error("no further pods are heard: whoever reaches the port of events can name them", "most", g.most, "pod", pod, "model", model)
			g.reported = true
		}
		return errGate
	}
	g.pods[pod], g.models[model] = time.Now(), time.Now()
	return nil
}
