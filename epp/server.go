// Package epp is an endpoint picker for Envoy: a server of Envoy's external processing
// (envoy.service.ext_proc.v3) that keeps the Endpoint Picker Protocol 1.0.0 of the Gateway API
// inference extension (docs/proposals/004-endpoint-picker-protocol in its repository). Every
// gateway that speaks the protocol can ask it: Envoy AI Gateway, kgateway, Istio, GKE.
//
//	p, err := picker.New(ix, picker.Config{Fleet: fleet, Model: "llama-3", Host: endpoint, Timeout: 5 * time.Millisecond, Fallbacks: 2})
//	...
//	server, err := epp.NewServer(epp.Config{Picker: p})
//	...
//	err = server.Serve(listener)
//
// The program in cmd/kvindex-epp is this, with flags.
//
// # What it does
//
// For each request it reads the body, lets the Picker choose, and answers with the endpoint of
// the pod, the address in picker.Pod.Host, and those of Pick.Fallbacks behind it. A request
// that cannot be scored is picked by load. It reads the token usage of the answer for
// Indexer.Observe, and changes no byte of a body.
//
// # Modes
//
// The mode of request bodies is that which Envoy reports on the stream (ProtocolConfiguration);
// without a report it is FULL_DUPLEX_STREAMED, which the protocol specifies.
//
//   - FULL_DUPLEX_STREAMED: the choice answers the headers when the body is complete, then the
//     body goes back in chunks of at most 62,000 bytes. Beyond Config.MaxBuffered it answers them
//     at once, by load, and the rest of the body goes back as it comes.
//   - BUFFERED, BUFFERED_PARTIAL: the choice answers the body. A body that is not whole is
//     not scored, but picked by load. Trailers without a body have no message that the headers can
//     be set in: then the choice is in the metadata alone.
//   - NONE, STREAMED: the choice answers the headers, by load: there is no body yet.
package epp

import (
	"context"
	"errors"
	"fmt"
	"math"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/picker"
)

// Config configures NewServer. Picker is required.
type Config struct {
	// Picker chooses. Each of its pods has the address and port at which the gateway reaches it
	// in picker.Pod.Host; a pod without them gets no requests. Its Config.Timeout bounds what a
	// request waits for its score: 5 ms is plenty. Its Config.Fallbacks are the further
	// endpoints in an answer.
	Picker *picker.Picker
	// MaxBody bounds the body of a request in bytes; a longer one is answered with status 413.
	// 0: 64 MiB.
	MaxBody int
	// MaxBuffered bounds the bodies of all requests that are in memory at one time, in bytes:
	// those that are not complete, and those of requests whose answer has not begun. A request
	// beyond it is picked by load. 0: 1 GiB.
	MaxBuffered int
	// MaxRequests bounds the requests in flight at each pod. When all pods that a request may
	// go to have so many, it is answered with status 429. 0: no bound.
	MaxRequests int
	// Ready reports whether the server may get requests; nil: when the Picker has a pod that is not
	// down. It decides about the health of all services but "liveness".
	Ready func() bool
	// OnEnd, if not nil, is called at the end of each request that was picked: with the usage
	// that the answer reports, or with the error for which there is none. It must not block.
	OnEnd func(pick *picker.Pick, u kvindex.Usage, err error)
}

const (
	defaultMaxBody     = 64 << 20
	defaultMaxBuffered = 1 << 30
)

// NewServer returns a gRPC server of the ext_proc service and of gRPC's health service. The
// options are added to its own, and are for TLS, keepalive and the like.
func NewServer(cfg Config, options ...grpc.ServerOption) (*grpc.Server, error) {
	switch {
	case cfg.Picker == nil:
		return nil, errors.New("epp: the Picker is nil")
	case cfg.MaxBody < 0:
		return nil, fmt.Errorf("epp: MaxBody is %d", cfg.MaxBody)
	case cfg.MaxBuffered < 0:
		return nil, fmt.Errorf("epp: MaxBuffered is %d", cfg.MaxBuffered)
	case cfg.MaxRequests < 0:
		return nil, fmt.Errorf("epp: MaxRequests is %d", cfg.MaxRequests)
	}
	if cfg.MaxBody == 0 {
		cfg.MaxBody = defaultMaxBody
	}
	if cfg.MaxBuffered == 0 {
		cfg.MaxBuffered = defaultMaxBuffered
	}
	if cfg.Ready == nil {
		cfg.Ready = func() bool { return cfg.Picker.Ready().Pods > 0 }
	}
	// A buffered body comes in one message, with its headers' metadata.
	s := grpc.NewServer(append([]grpc.ServerOption{grpc.MaxRecvMsgSize(min(cfg.MaxBody, math.MaxInt-1<<20) + 1<<20)}, options...)...)
	extproc.RegisterExternalProcessorServer(s, &processor{Config: cfg})
	health.RegisterHealthServer(s, checker{ready: cfg.Ready})
	return s, nil
}

// checker answers health checks. A watch is refused, as gRPC allows: probes use Check.
type checker struct {
	health.UnimplementedHealthServer
	ready func() bool
}

func (c checker) Check(_ context.Context, r *health.HealthCheckRequest) (*health.HealthCheckResponse, error) {
	state := health.HealthCheckResponse_SERVING
	switch r.GetService() {
	case "liveness":
	case "", "readiness", extproc.ExternalProcessor_ServiceDesc.ServiceName:
		if !c.ready() {
			state = health.HealthCheckResponse_NOT_SERVING
		}
	default:
		return nil, status.Errorf(codes.NotFound, "epp: no service %.100q", r.GetService())
	}
	return &health.HealthCheckResponse{Status: state}, nil
}
