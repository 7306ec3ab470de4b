package epp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	mode "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/kvindex/kvindex/epp"
)

// An envoy calls an external processor like Envoy's filter, and fails if the processor breaks a
// rule of the filter.
type envoy struct {
	stub          extproc.ExternalProcessorClient
	request, back mode.ProcessingMode_BodySendMode
	silent        bool // the envoy does not report its modes
}

const (
	duplex   = mode.ProcessingMode_FULL_DUPLEX_STREAMED
	buffered = mode.ProcessingMode_BUFFERED
	partial  = mode.ProcessingMode_BUFFERED_PARTIAL // the envoy's buffer has room for the first piece
	streamed = mode.ProcessingMode_STREAMED
	none     = mode.ProcessingMode_NONE
)

// A call is a request of a client, and the answer of its endpoint.
type call struct {
	method, path string // "": POST, /v1/completions
	headers      map[string]string
	body         []byte
	cuts         int             // number of pieces of the body; 0: no body
	trailers     bool            // trailers follow the body
	subset       *structpb.Value // nil: no subset

	status   string
	answer   []string // the pieces of its body
	kind     string   // its content type
	served   string   // the endpoint that answers; "": the first one; "-": Envoy does not report it
	noAnswer bool     // the exchange ends before the answer
}

// A result has the request and the answer as Envoy forwards them.
type result struct {
	refused              *extproc.ImmediateResponse
	destination          string // the header with the endpoints
	metadata             string
	rank                 string
	body, answer         string
	clearsRoute          bool
	endpointsOverwritten bool
}

func dial(t testing.TB, cfg epp.Config, options ...grpc.ServerOption) extproc.ExternalProcessorClient {
	t.Helper()
	return extproc.NewExternalProcessorClient(connect(t, cfg, options...))
}

func connect(t testing.TB, cfg epp.Config, options ...grpc.ServerOption) *grpc.ClientConn {
	t.Helper()
	server, err := epp.NewServer(cfg, options...)
	must(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///"+listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(1<<30), grpc.MaxCallRecvMsgSize(1<<20)))
	must(t, err)
	t.Cleanup(func() {
		conn.Close()
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return conn
}

// A filter is one exchange of an envoy with the processor.
type filter struct {
	*envoy
	stream extproc.ExternalProcessor_ProcessClient
	first  bool // no message has been sent
	result result
}

func (f *filter) send(m *extproc.ProcessingRequest) error {
	if f.first && !f.silent {
		m.ProtocolConfig = &extproc.ProtocolConfiguration{RequestBodyMode: f.request, ResponseBodyMode: f.back}
	}
	f.first = false
	if err := f.stream.Send(m); err != nil && !errors.Is(err, io.EOF) { // at io.EOF, Recv returns the reason
		return err
	}
	return nil
}

// errRefused ends an exchange in which the processor has answered in place of the endpoint.
var errRefused = errors.New("refused")

func (f *filter) recv() (*extproc.ProcessingResponse, error) {
	m, err := f.stream.Recv()
	if err != nil {
		return nil, err
	}
	if f.result.refused = m.GetImmediateResponse(); f.result.refused != nil {
		return nil, errRefused
	}
	if d := m.GetDynamicMetadata().GetFields()["envoy.lb"].GetStructValue().GetFields()["x-gateway-destination-endpoint"]; d != nil {
		f.result.metadata = d.GetStringValue()
	}
	return m, nil
}

// mutate applies the header mutation of a response to the request.
func (f *filter) mutate(r *extproc.CommonResponse) {
	for _, h := range r.GetHeaderMutation().GetSetHeaders() {
		switch h.GetHeader().GetKey() {
		case "x-gateway-destination-endpoint":
			f.result.destination = string(h.GetHeader().GetRawValue())
			f.result.endpointsOverwritten = h.GetAppendAction() == core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD
		case "x-data-parallel-rank":
			f.result.rank = string(h.GetHeader().GetRawValue())
		}
	}
	f.result.clearsRoute = f.result.clearsRoute || r.GetClearRouteCache()
}

func headerMap(fields map[string]string) *core.HeaderMap {
	m := new(core.HeaderMap)
	for k, v := range fields {
		m.Headers = append(m.Headers, &core.HeaderValue{Key: k, RawValue: []byte(v)})
	}
	return m
}

// pieces cuts b into n pieces.
func pieces(b []byte, n int) (cut [][]byte) {
	for ; n > 1; n-- {
		at := len(b) / n
		cut, b = append(cut, b[:at]), b[at:]
	}
	return append(cut, b)
}

// do makes a call. The error is that of the exchange, or a broken rule.
func (e *envoy) do(ctx context.Context, c *call) (*result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := e.stub.Process(ctx)
	if err != nil {
		return nil, err
	}
	f := &filter{envoy: e, stream: stream, first: true}
	err = f.run(c)
	switch {
	case errors.Is(err, errRefused):
		err = nil
	case err != nil:
		return &f.result, err
	case !c.noAnswer:
		err = f.answer(c)
	}
	if err != nil {
		return &f.result, err
	}
	if err := stream.CloseSend(); err != nil {
		return &f.result, err
	}
	if m, err := stream.Recv(); !errors.Is(err, io.EOF) {
		return &f.result, fmt.Errorf("at the end: %v, %w", m, err)
	}
	return &f.result, nil
}

func (f *filter) run(c *call) error {
	fields := map[string]string{":method": "POST", ":path": "/v1/completions", "content-type": "application/json"}
	for k, v := range c.headers {
		fields[k] = v
	}
	if c.method != "" {
		fields[":method"] = c.method
	}
	if c.path != "" {
		fields[":path"] = c.path
	}
	m := &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{Headers: headerMap(fields), EndOfStream: c.cuts == 0 && !c.trailers}}}
	if c.subset != nil {
		m.MetadataContext = &core.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy.lb.subset_hint": {Fields: map[string]*structpb.Value{"x-gateway-destination-endpoint-subset": c.subset}}}}
	}
	if err := f.send(m); err != nil {
		return err
	}
	body := func(b []byte, end bool) *extproc.ProcessingRequest {
		return &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestBody{RequestBody: &extproc.HttpBody{Body: b, EndOfStream: end}}}
	}
	trailers := &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestTrailers{RequestTrailers: &extproc.HttpTrailers{}}}
	if f.request == duplex {
		for i, b := range pieces(c.body, c.cuts) {
			if c.cuts > 0 {
				if err := f.send(body(b, !c.trailers && i == c.cuts-1)); err != nil {
					return err
				}
			}
		}
		if c.trailers {
			if err := f.send(trailers); err != nil {
				return err
			}
		}
	}
	r, err := f.recv()
	if err != nil {
		return err
	}
	if r.GetRequestHeaders() == nil {
		return fmt.Errorf("the headers were answered by %v", r)
	}
	f.mutate(r.GetRequestHeaders().GetResponse())
	switch {
	case c.cuts == 0 && !c.trailers, f.request == none:
		f.result.body = string(c.body)
	case f.request == duplex:
		var whole bytes.Buffer
		defer func() { f.result.body = whole.String() }()
		for ended := false; !ended; {
			if r, err = f.recv(); err != nil {
				return err
			}
			if r.GetRequestTrailers() != nil && c.trailers {
				return nil
			}
			s := r.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
			if s == nil || len(s.GetBody()) > 64<<10 || r.GetRequestBody().GetResponse().GetHeaderMutation() != nil {
				return fmt.Errorf("the body was answered by %.300v", r)
			}
			whole.Write(s.GetBody())
			if ended = s.GetEndOfStream(); ended && c.trailers {
				return errors.New("the body ended before its trailers")
			}
		}
	default:
		sent := pieces(c.body, c.cuts)
		switch f.request {
		case buffered:
			sent = [][]byte{c.body}
		case partial:
			sent = sent[:1]
		}
		for i, b := range sent {
			if err := f.send(body(b, !c.trailers && i == len(sent)-1 && (f.request != partial || c.cuts == 1))); err != nil {
				return err
			}
			if r, err = f.recv(); err != nil {
				return err
			}
			if r.GetRequestBody() == nil || r.GetRequestBody().GetResponse().GetBodyMutation() != nil {
				return fmt.Errorf("the body was answered by %.300v", r)
			}
			if f.request == buffered || f.request == partial {
				f.mutate(r.GetRequestBody().GetResponse())
			}
			f.result.body += string(b)
			if f.request == partial {
				f.result.body = string(c.body)
			}
		}
		if c.trailers {
			if err := f.send(trailers); err != nil {
				return err
			}
			if r, err = f.recv(); err != nil {
				return err
			}
			if r.GetRequestTrailers() == nil {
				return fmt.Errorf("the trailers were answered by %v", r)
			}
		}
	}
	return nil
}

// answer sends the answer of the endpoint.
func (f *filter) answer(c *call) error {
	status := c.status
	if status == "" {
		status = "200"
	}
	kind := c.kind
	if kind == "" {
		kind = "application/json"
	}
	served := c.served
	if served == "" {
		served, _, _ = strings.Cut(f.result.destination, ",")
	}
	m := &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extproc.HttpHeaders{
		Headers: headerMap(map[string]string{":status": status, "content-type": kind}), EndOfStream: len(c.answer) == 0,
	}}}
	if served != "-" {
		m.MetadataContext = &core.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy.lb": {Fields: map[string]*structpb.Value{
			"x-gateway-destination-endpoint-served": structpb.NewStringValue(served),
		}}}}
	}
	if err := f.send(m); err != nil {
		return err
	}
	r, err := f.recv()
	if err != nil {
		return err
	}
	if r.GetResponseHeaders() == nil {
		return fmt.Errorf("the headers of the answer were answered by %v", r)
	}
	var got bytes.Buffer
	for i, piece := range c.answer {
		if f.back == none {
			got.WriteString(piece)
			continue
		}
		end := i == len(c.answer)-1
		if err := f.send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseBody{ResponseBody: &extproc.HttpBody{Body: []byte(piece), EndOfStream: end}}}); err != nil {
			return err
		}
		for want := len(piece); ; {
			if r, err = f.recv(); err != nil {
				return err
			}
			b := r.GetResponseBody().GetResponse()
			s := b.GetBodyMutation().GetStreamedResponse()
			switch {
			case r.GetResponseBody() == nil, (s != nil) != (f.back == duplex), b.GetHeaderMutation() != nil, len(s.GetBody()) > min(want, 64<<10):
				return fmt.Errorf("the answer was answered by %.300v", r)
			case s == nil:
				got.WriteString(piece)
				want = 0
			default:
				got.Write(s.GetBody())
				want -= len(s.GetBody())
			}
			if want == 0 {
				if s != nil && s.GetEndOfStream() != end {
					return fmt.Errorf("the end of the answer: %v", r)
				}
				break
			}
		}
	}
	f.result.answer = got.String()
	return nil
}
