// Kvindex-epp is an endpoint picker for an InferencePool. It follows the KV events of the pool's
// pods, and chooses for Envoy the pod that has the prompt of a request cached. docs/epp.md
// describes it.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/epp"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/events/discovery"
	"github.com/kvindex/kvindex/events/k8s"
	"github.com/kvindex/kvindex/picker"
	"github.com/kvindex/kvindex/tokenize/chat"
)

type options struct {
	listen, model, dir           string
	pods, namespace, selector    string
	targetPort, eventPort        int
	replayPort, tiersPort        int
	fallbacks, maxRequests       int
	maxBody, maxBuffered         int
	memory                       int64
	timeout, sync, linger, drain time.Duration
	insecure, verbose            bool
	cert, key                    string
	ranksLabel, engineVersion    string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := program(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "kvindex-epp:", err)
		os.Exit(1)
	}
}

// program runs the command that the arguments name.
func program(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == "healthcheck" {
		return healthcheck(ctx, args[1:])
	}
	o, err := parse(args)
	if err != nil {
		return err
	}
	return run(ctx, o, func(net.Addr) {})
}

// healthcheck requests the health of a picker on this machine. Probes of Kubernetes cannot do so:
// they do not support TLS.
func healthcheck(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("kvindex-epp healthcheck", flag.ContinueOnError)
	address := f.String("address", "127.0.0.1:9002", "address of the picker")
	service := f.String("service", "readiness", "readiness or liveness")
	plain := f.Bool("insecure", false, "no TLS")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("%q is no flag", f.Args())
	}
	// The certificate is not verified: a picker without -tls-cert signs its own.
	security := credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})
	if *plain {
		security = insecure.NewCredentials()
	}
	conn, err := grpc.NewClient("passthrough:///"+*address, grpc.WithTransportCredentials(security))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	r, err := health.NewHealthClient(conn).Check(ctx, &health.HealthCheckRequest{Service: *service})
	if err == nil && r.GetStatus() != health.HealthCheckResponse_SERVING {
		err = fmt.Errorf("%s: %v", *service, r.GetStatus())
	}
	return err
}

// ofSelector are the flags that have a meaning with -selector alone.
var ofSelector = []string{"namespace", "event-port", "replay-port", "tiers-port", "ranks-label"}

func parse(args []string) (*options, error) {
	o := new(options)
	f := flag.NewFlagSet("kvindex-epp", flag.ContinueOnError)
	f.StringVar(&o.listen, "listen", ":9002", "address for Envoy, and for health checks")
	f.StringVar(&o.model, "model", "", "the base model of the pool, as clients name it")
	f.StringVar(&o.dir, "model-dir", "", "folder with the model's tokenizer and chat template; without it prompts are not scored, and requests are picked by load")
	f.StringVar(&o.engineVersion, "vllm", "", "version of vLLM, such as 0.31; empty: the newest known")
	f.StringVar(&o.pods, "pods", "", "file of pods (docs/fleet.md), in place of -selector")
	f.StringVar(&o.namespace, "namespace", "", "namespace of the pods; empty: all")
	f.StringVar(&o.selector, "selector", "", "label selector of the pods, as in the InferencePool")
	f.IntVar(&o.targetPort, "target-port", 8000, "port at which the pods answer requests")
	f.IntVar(&o.eventPort, "event-port", 5557, "port of the pods' KV events, for -selector")
	f.IntVar(&o.replayPort, "replay-port", 0, "port at which the pods repeat KV events, for -selector; 0: none")
	f.IntVar(&o.tiersPort, "tiers-port", 0, "port of the KV events of an offload daemon beside each engine, for -selector; 0: none")
	f.StringVar(&o.ranksLabel, "ranks-label", "", "label with a pod's number of data-parallel ranks, for -selector")
	f.DurationVar(&o.timeout, "timeout", 5*time.Millisecond, "how long a request waits for its score; then it is picked by load")
	f.IntVar(&o.fallbacks, "fallbacks", 2, "further endpoints in an answer")
	f.IntVar(&o.maxRequests, "max-requests", 0, "requests in flight at a pod, beyond which requests get status 429; 0: no bound")
	f.IntVar(&o.maxBody, "max-body", 64<<20, "bytes of a request's body, beyond which it gets status 413")
	f.IntVar(&o.maxBuffered, "max-buffered", 1<<30, "bytes of all bodies in memory, beyond which requests are picked by load")
	f.Int64Var(&o.memory, "memory", 0, "bytes of the index, beyond which it forgets the blocks used longest ago; 0: 4 GiB")
	f.StringVar(&o.cert, "tls-cert", "", "certificate file (PEM); without it a certificate is made, which Envoy must not verify")
	f.StringVar(&o.key, "tls-key", "", "key file (PEM)")
	f.BoolVar(&o.insecure, "insecure", false, "no TLS")
	f.DurationVar(&o.sync, "sync", 30*time.Second, "how long the picker is not ready while it waits for the pods' events; it answers all the same")
	f.DurationVar(&o.linger, "linger", 5*time.Second, "how long it goes on after SIGTERM, not ready, so that Envoy stops asking it")
	f.DurationVar(&o.drain, "drain", 30*time.Second, "how long requests may take to end after SIGTERM")
	f.BoolVar(&o.verbose, "v", false, "log each request: pod, tokens and errors, never a prompt")
	f.Usage = func() {
		fmt.Fprint(f.Output(), "kvindex-epp [flags]               runs the endpoint picker: docs/epp.md\n"+
			"kvindex-epp healthcheck [flags]   asks the picker on this machine for its health\n\n")
		f.PrintDefaults()
	}
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	var errs []error
	refuse := func(when bool, format string, args ...any) {
		if when {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(f.NArg() > 0, "%q is no flag", f.Args())
	refuse(o.model == "", "-model is missing")
	refuse((o.pods == "") == (o.selector == ""), "either -pods or -selector is needed")
	refuse(o.dir == "" && o.engineVersion != "", "-vllm needs -model-dir")
	f.Visit(func(given *flag.Flag) {
		refuse(o.pods != "" && slices.Contains(ofSelector, given.Name), "-%s has no meaning without -selector", given.Name)
	})
	refuse(o.targetPort < 1 || o.targetPort > 65535, "-target-port is %d", o.targetPort)
	refuse((o.cert == "") != (o.key == ""), "-tls-cert and -tls-key need each other")
	refuse(o.insecure && o.cert != "", "-insecure and -tls-cert exclude each other")
	refuse(o.timeout <= 0, "-timeout is %v", o.timeout)
	refuse(o.sync < 0, "-sync is %v", o.sync)
	refuse(o.linger < 0, "-linger is %v", o.linger)
	refuse(o.drain <= 0, "-drain is %v", o.drain)
	return o, errors.Join(errs...)
}

// run serves until ctx ends, and then until the requests in flight have ended. It calls listening
// with its address.
func run(ctx context.Context, o *options, listening func(net.Addr)) error {
	level := slog.LevelInfo
	if o.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	var opts []kvindex.Option
	if o.dir != "" {
		model, err := kvindex.LoadModel(o.dir, chat.Options{Engine: o.engineVersion})
		if err != nil {
			return err
		}
		if model.ChatErr != nil {
			log.Warn("chats are picked by load", "err", model.ChatErr)
		}
		opts = append(opts, kvindex.WithModel(o.model, model))
	}
	if o.memory != 0 {
		opts = append(opts, kvindex.WithMemory(o.memory))
	}
	ix, err := kvindex.New(opts...)
	if err != nil {
		return err
	}
	defer ix.Close()
	source, err := o.source()
	if err != nil {
		return err
	}
	fleet, err := events.NewFleet(ix.Sink(), events.FleetConfig{OnError: func(err error) { log.Warn("fleet", "err", err) }})
	if err != nil {
		return err
	}
	p, err := picker.New(ix, picker.Config{
		Fleet: fleet, Model: o.model, Timeout: o.timeout, Fallbacks: o.fallbacks,
		Host: func(pod events.Pod) string { return net.JoinHostPort(pod.Host, strconv.Itoa(o.targetPort)) },
	})
	if err != nil {
		return err
	}
	var security grpc.ServerOption = grpc.EmptyServerOption{}
	if !o.insecure {
		certificate, err := o.certificate()
		if err != nil {
			return err
		}
		security = grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}))
	}
	began := time.Now()
	server, err := epp.NewServer(epp.Config{
		Picker: p, MaxBody: o.maxBody, MaxBuffered: o.maxBuffered, MaxRequests: o.maxRequests,
		Ready: func() bool {
			r := p.Ready()
			return ctx.Err() == nil && r.Pods > 0 && (r.OK() || time.Since(began) > o.sync)
		},
		OnEnd: func(k *picker.Pick, u kvindex.Usage, err error) {
			log.Debug("request", "pod", k.Pod.Name, "prompt", k.PromptTokens, "predicted", k.PredictedTokens, "cached", u.CachedTokens, "picked_by_load", k.Err, "err", err)
		},
	}, security)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", o.listen)
	if err != nil {
		return err
	}
	listening(listener.Addr())
	log.Info("listening", "address", listener.Addr().String(), "model", o.model)

	following, forget := context.WithCancel(context.WithoutCancel(ctx))
	defer forget()
	failed := make(chan error, 2)
	go func() { failed <- fleet.Run(following, source) }()
	go func() { failed <- server.Serve(listener) }()
	ended := 0
	select {
	case <-ctx.Done():
		select {
		case <-time.After(o.linger):
		case err = <-failed:
			ended++
		}
		timer := time.AfterFunc(o.drain, server.Stop)
		server.GracefulStop()
		timer.Stop()
	case err = <-failed:
		ended++
		server.Stop()
	}
	forget()
	for ; ended < cap(failed); ended++ {
		<-failed
	}
	return err
}

// source returns the source of pods.
func (o *options) source() (events.PodSource, error) {
	if o.pods != "" {
		return discovery.File(o.pods), nil
	}
	cfg, err := rest.InClusterConfig()
	if err != nil {
		return events.PodSource{}, fmt.Errorf("-selector: %w", err)
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return events.PodSource{}, fmt.Errorf("-selector: %w", err)
	}
	return k8s.Source(client, k8s.Config{
		Namespace: o.namespace, LabelSelector: o.selector,
		Model: k8s.From[string]{Default: o.model}, Port: k8s.From[int]{Default: o.eventPort}, ReplayPort: k8s.From[int]{Default: o.replayPort},
		TiersPort: k8s.From[int]{Default: o.tiersPort}, Ranks: k8s.From[int]{Key: o.ranksLabel, Default: 1},
	})
}

// certificate returns the certificate of the flags, or makes one that is valid for ten years.
func (o *options) certificate() (tls.Certificate, error) {
	if o.cert != "" {
		return tls.LoadX509KeyPair(o.cert, o.key)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(10, 0, 0),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, DNSNames: []string{"kvindex-epp"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
