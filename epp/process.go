package epp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	mode "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	status "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/picker"
	"github.com/kvindex/kvindex/route"
)

// Names of the protocol (pkg/lwepp/metadata/consts.go of version 1.6.0).
const (
	subsetNamespace = "envoy.lb.subset_hint"
	subsetKey       = "x-gateway-destination-endpoint-subset"
	lbNamespace     = "envoy.lb"
	destinationKey  = "x-gateway-destination-endpoint"
	servedKey       = "x-gateway-destination-endpoint-served"
)

// rankHeader is the header with the data-parallel rank, for engines with several ranks.
const rankHeader = "x-data-parallel-rank"

// maxChunk bounds the bytes of a body in one message: Envoy accepts at most 64 KiB.
const maxChunk = 62_000

type processor struct {
	extproc.UnimplementedExternalProcessorServer
	Config
	inMemory atomic.Int64 // bytes of the bodies of all exchanges
}

// Process implements the service, for one HTTP request.
func (p *processor) Process(srv extproc.ExternalProcessor_ProcessServer) error {
	x := &exchange{processor: p, srv: srv}
	defer x.close()
	for {
		m, err := srv.Recv()
		switch {
		case errors.Is(err, io.EOF), grpcstatus.Code(err) == codes.Canceled:
			return nil
		case err != nil:
			return err
		}
		x.metadata(m)
		err = x.process(m)
		var refused *refusal
		if errors.As(err, &refused) {
			return srv.Send(refused.response())
		} else if err != nil {
			return err
		}
	}
}

// An exchange is a request and its answer.
type exchange struct {
	*processor
	srv extproc.ExternalProcessor_ProcessServer

	modes        modes
	method, path string
	subset       []string // endpoints that the choice is limited to
	limited      bool     // there is a subset
	body         []byte
	buffered     int  // its part of inMemory
	through      bool // the rest of the body is sent back as it comes
	partial      bool
	begun        bool // the headers of the request have come
	headersWait  bool // the headers have no answer yet
	chosen       bool // the choice was sent; the pick may have ended
	request      kvindex.Request
	pick         *picker.Pick
	answer       answer
	served       string // the endpoint that has answered
}

// modes are the ways in which Envoy sends bodies.
type modes struct {
	reported          bool // by Envoy; else all bodies are streamed both ways
	request, response mode.ProcessingMode_BodySendMode
	earlyBody         bool // the body comes before Envoy has an answer to the headers
}

// metadata records the modes, the subset and the endpoint in a message, which accompany its content.
func (x *exchange) metadata(m *extproc.ProcessingRequest) {
	if c := m.GetProtocolConfig(); c != nil && !x.modes.reported {
		x.modes.reported = true
		x.modes.request, x.modes.response = c.GetRequestBodyMode(), c.GetResponseBodyMode()
		x.modes.earlyBody = c.GetSendBodyWithoutWaitingForHeaderResponse()
	} else if !x.modes.reported {
		x.modes.request, x.modes.response = mode.ProcessingMode_FULL_DUPLEX_STREAMED, mode.ProcessingMode_FULL_DUPLEX_STREAMED
	}
	fields := m.GetMetadataContext().GetFilterMetadata()
	if v, ok := fields[subsetNamespace].GetFields()[subsetKey]; ok && !x.limited {
		x.limited, x.subset = true, endpoints(v)
	}
	if v, ok := fields[lbNamespace].GetFields()[servedKey].GetKind().(*structpb.Value_StringValue); ok {
		x.served = strings.TrimSpace(v.StringValue)
	}
}

// endpoints reads a list of endpoints, or one string of them with commas.
func endpoints(v *structpb.Value) (list []string) {
	switch k := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		for e := range strings.SplitSeq(k.StringValue, ",") {
			if e = strings.TrimSpace(e); e != "" {
				list = append(list, e)
			}
		}
	case *structpb.Value_ListValue:
		for _, e := range k.ListValue.GetValues() {
			list = append(list, endpoints(e)...)
		}
	}
	return list
}

// process answers one message.
func (x *exchange) process(m *extproc.ProcessingRequest) error {
	switch v := m.GetRequest().(type) {
	case *extproc.ProcessingRequest_RequestHeaders:
		return x.requestHeaders(v.RequestHeaders)
	case *extproc.ProcessingRequest_RequestBody:
		return x.requestBody(v.RequestBody)
	case *extproc.ProcessingRequest_RequestTrailers:
		return x.requestTrailers()
	case *extproc.ProcessingRequest_ResponseHeaders:
		return x.responseHeaders(v.ResponseHeaders)
	case *extproc.ProcessingRequest_ResponseBody:
		return x.responseBody(v.ResponseBody)
	case *extproc.ProcessingRequest_ResponseTrailers:
		x.finish()
		return x.srv.Send(&extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extproc.TrailersResponse{}}})
	}
	return grpcstatus.Errorf(codes.InvalidArgument, "epp: a message of kind %T", m.GetRequest())
}

func (x *exchange) requestHeaders(h *extproc.HttpHeaders) error {
	if x.begun || x.chosen {
		return grpcstatus.Error(codes.InvalidArgument, "epp: the headers of the request came twice, or behind its body")
	}
	x.begun = true
	for _, field := range h.GetHeaders().GetHeaders() {
		switch field.GetKey() {
		case ":method":
			x.method = value(field)
		case ":path":
			x.path, _, _ = strings.Cut(value(field), "?")
		}
	}
	switch {
	case h.GetEndOfStream(), x.modes.request == mode.ProcessingMode_NONE, x.modes.request == mode.ProcessingMode_STREAMED:
		chosen, err := x.choose(nil)
		if err != nil {
			return err
		}
		return x.srv.Send(headersResponse(chosen))
	case x.isBuffered() && !x.modes.earlyBody: // Envoy waits for an answer
		return x.srv.Send(headersResponse(nil))
	}
	x.headersWait = true
	return nil
}

func (x *exchange) isBuffered() bool {
	return x.modes.request == mode.ProcessingMode_BUFFERED || x.modes.request == mode.ProcessingMode_BUFFERED_PARTIAL
}

// value returns the value of a header, which newer versions of Envoy send in RawValue.
func value(h *core.HeaderValue) string { return cmp.Or(string(h.GetRawValue()), h.GetValue()) }

func (x *exchange) requestBody(b *extproc.HttpBody) error {
	if x.through {
		return x.sendChunks(b.GetBody(), b.GetEndOfStream(), requestChunk)
	}
	if x.chosen { // the headers alone decided the choice
		return x.srv.Send(bodyResponse(nil))
	}
	if len(x.body)+len(b.GetBody()) > x.MaxBody {
		return &refusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is longer than %d bytes", x.MaxBody)}
	}
	if len(x.body) == 0 && len(b.GetBody()) > 0 {
		x.body = b.GetBody()
	} else {
		x.body = append(x.body, b.GetBody()...)
	}
	if x.body == nil {
		x.body = []byte{} // not nil: engines refuse an empty body
	}
	x.buffered += len(b.GetBody())
	over := x.inMemory.Add(int64(len(b.GetBody()))) > int64(x.MaxBuffered)
	// The last message of a partial body is marked as the end only if the body is complete.
	x.partial = over || x.modes.request == mode.ProcessingMode_BUFFERED_PARTIAL && !b.GetEndOfStream()
	if !b.GetEndOfStream() && !x.isBuffered() {
		if !over {
			return nil
		}
		x.through = true
	}
	err := x.complete(b.GetEndOfStream())
	if x.partial {
		x.release()
	}
	return err
}

// release drops the body, and its part of inMemory.
func (x *exchange) release() {
	x.request.Body = nil
	x.inMemory.Add(-int64(x.buffered))
	x.buffered = 0
}

// complete answers the body, which is complete, and the headers if they wait. end means that no
// trailers follow.
func (x *exchange) complete(end bool) error {
	chosen, err := x.choose(x.body)
	if err != nil {
		return err
	}
	defer func() { x.body = nil }() // the request of the pick keeps the body
	if x.isBuffered() {
		if x.headersWait {
			if err := x.srv.Send(headersResponse(nil)); err != nil {
				return err
			}
		}
		return x.srv.Send(bodyResponse(chosen))
	}
	if err := x.srv.Send(headersResponse(chosen)); err != nil {
		return err
	}
	return x.sendChunks(x.body, end, requestChunk)
}

func requestChunk(b *extproc.BodyResponse) *extproc.ProcessingResponse {
	return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestBody{RequestBody: b}}
}

// requestTrailers ends a body whose last message did not.
func (x *exchange) requestTrailers() error {
	var late *choice
	switch {
	case x.chosen:
	case x.isBuffered(): // no body has come
		chosen, err := x.choose(nil)
		if err != nil {
			return err
		}
		if !x.headersWait {
			late = chosen
		} else if err := x.srv.Send(headersResponse(chosen)); err != nil {
			return err
		}
	default:
		if err := x.complete(false); err != nil {
			return err
		}
	}
	return x.srv.Send(&extproc.ProcessingResponse{
		Response:        &extproc.ProcessingResponse_RequestTrailers{RequestTrailers: &extproc.TrailersResponse{}},
		DynamicMetadata: late.metadata(),
	})
}

// sendChunks sends a body back in pieces. With end, the last piece is marked as the end.
func (x *exchange) sendChunks(body []byte, end bool, wrap func(*extproc.BodyResponse) *extproc.ProcessingResponse) error {
	for {
		n := min(len(body), maxChunk)
		chunk := &extproc.StreamedBodyResponse{Body: body[:n], EndOfStream: end && n == len(body)}
		mutation := &extproc.BodyMutation{Mutation: &extproc.BodyMutation_StreamedResponse{StreamedResponse: chunk}}
		if err := x.srv.Send(wrap(&extproc.BodyResponse{Response: &extproc.CommonResponse{BodyMutation: mutation}})); err != nil {
			return err
		}
		if body = body[n:]; len(body) == 0 {
			return nil
		}
	}
}

// choose picks an endpoint for the request with the body; a nil body means to pick by load.
func (x *exchange) choose(body []byte) (*choice, error) {
	if x.method == "" || x.method == http.MethodPost {
		x.request.Body, x.request.Path = body, x.path
	}
	if x.limited || x.MaxRequests > 0 {
		if err := x.limit(); err != nil {
			return nil, err
		}
	}
	ctx := x.srv.Context()
	if x.partial {
		ctx = partialBody{ctx}
	}
	k, err := x.Picker.Pick(ctx, &x.request)
	if err == nil && !reachable(k.Pod) { // a pod may have no host yet
		k.Failed()
		if err := x.limit(); err != nil {
			return nil, err
		}
		k, err = x.Picker.Pick(ctx, &x.request)
	}
	if err != nil {
		return nil, &refusal{picker.Status(err), err.Error()}
	}
	if !reachable(k.Pod) { // the pod has lost its host since
		k.Failed()
		return nil, &refusal{http.StatusServiceUnavailable, "no pod is up that has an address and a port"}
	}
	x.pick, x.chosen = k, true
	c := &choice{endpoints: k.Pod.Host, rank: -1}
	if k.Pod.Ranks > 1 {
		c.rank = k.Rank
	}
	for _, pod := range k.Fallbacks {
		if reachable(pod) && c.rank < max(pod.Ranks, 1) { // all endpoints get the same header with the rank
			c.endpoints += "," + pod.Host
		}
	}
	return c, nil
}

// partialBody is the context of a request whose body is not whole. The Picker then picks by load, and
// estimates the prompt by the bytes that have come.
type partialBody struct{ context.Context }

var errPartial = fmt.Errorf("epp: the body is not whole: %w", context.Canceled)

func (partialBody) Err() error { return errPartial }

// reachable reports whether the pod has an address for the gateway.
func reachable(pod picker.Pod) bool {
	host, port, err := net.SplitHostPort(pod.Host)
	return err == nil && host != "" && port != ""
}

// limit limits the request to the pods that are up, in the subset, and below MaxRequests.
func (x *exchange) limit() error {
	x.request.Pods = []string{}
	busy := false
	for _, pod := range x.Picker.Pods() {
		if pod.Down || !reachable(pod) || x.limited && !x.within(pod) {
			continue
		}
		if x.MaxRequests > 0 && x.requestsAt(pod) >= x.MaxRequests {
			busy = true
			continue
		}
		x.request.Pods = append(x.request.Pods, pod.Name)
	}
	switch {
	case len(x.request.Pods) > 0:
		return nil
	case busy:
		return &refusal{http.StatusTooManyRequests, fmt.Sprintf("all pods have %d requests", x.MaxRequests)}
	case x.limited:
		return &refusal{http.StatusServiceUnavailable, fmt.Sprintf("of the %d endpoints in %s, none is that of a pod that is up", len(x.subset), subsetKey)}
	}
	return &refusal{http.StatusServiceUnavailable, "no pod is up that has an address and a port"}
}

// within reports whether a pod is in the subset.
func (x *exchange) within(pod picker.Pod) bool {
	return slices.ContainsFunc(x.subset, func(endpoint string) bool { return isAt(pod, endpoint) })
}

// isAt reports whether an endpoint is that of a pod, in any form of its address. An endpoint without a
// port stands for all ports.
func isAt(pod picker.Pod, endpoint string) bool {
	host, _, _ := net.SplitHostPort(pod.Host)
	if endpoint == pod.Host || endpoint == host {
		return true
	}
	at, err := netip.ParseAddrPort(pod.Host)
	if err != nil {
		return false
	}
	if other, err := netip.ParseAddrPort(endpoint); err == nil {
		return other == at
	}
	other, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(endpoint, "["), "]"))
	return err == nil && other == at.Addr()
}

func (x *exchange) requestsAt(pod picker.Pod) (n int) {
	for rank := range max(pod.Ranks, 1) {
		at := []route.Pod{{Name: pod.Name, Rank: rank}}
		x.Picker.Loads().Fill(at)
		n += at[0].Load.Requests
	}
	return n
}

// A choice has the destination of a request.
type choice struct {
	endpoints string // separated by commas
	rank      int    // -1: the engine has one rank
}

func (c *choice) headers() *extproc.HeaderMutation {
	m := new(extproc.HeaderMutation)
	set := func(key, value string) {
		m.SetHeaders = append(m.SetHeaders, &core.HeaderValueOption{
			Header:       &core.HeaderValue{Key: key, RawValue: []byte(value)},
			AppendAction: core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD, // a client may have sent such a header
		})
	}
	set(destinationKey, c.endpoints)
	if c.rank >= 0 {
		set(rankHeader, strconv.Itoa(c.rank))
	} else {
		m.RemoveHeaders = []string{rankHeader} // a client may have sent such a header
	}
	return m
}

// common returns the common part of answers. A nil c is the part without a choice.
func (c *choice) common() *extproc.CommonResponse {
	if c == nil {
		return &extproc.CommonResponse{}
	}
	return &extproc.CommonResponse{ClearRouteCache: true, HeaderMutation: c.headers()}
}

func (c *choice) metadata() *structpb.Struct {
	if c == nil {
		return nil
	}
	destination := &structpb.Struct{Fields: map[string]*structpb.Value{destinationKey: structpb.NewStringValue(c.endpoints)}}
	return &structpb.Struct{Fields: map[string]*structpb.Value{lbNamespace: structpb.NewStructValue(destination)}}
}

func headersResponse(c *choice) *extproc.ProcessingResponse {
	return &extproc.ProcessingResponse{
		Response:        &extproc.ProcessingResponse_RequestHeaders{RequestHeaders: &extproc.HeadersResponse{Response: c.common()}},
		DynamicMetadata: c.metadata(),
	}
}

func bodyResponse(c *choice) *extproc.ProcessingResponse {
	return &extproc.ProcessingResponse{
		Response:        &extproc.ProcessingResponse_RequestBody{RequestBody: &extproc.BodyResponse{Response: c.common()}},
		DynamicMetadata: c.metadata(),
	}
}

func (x *exchange) responseHeaders(h *extproc.HttpHeaders) error {
	x.followMove()
	x.release() // the pick does not need the body, because Next is never called
	header := make(http.Header)
	code := ""
	for _, field := range h.GetHeaders().GetHeaders() {
		switch key := field.GetKey(); key {
		case ":status", "status":
			code = value(field)
		case "content-type", "content-encoding":
			header.Add(key, value(field))
		}
	}
	if x.pick != nil && code != "" && code[0] != '2' {
		x.end(unknown, fmt.Errorf("epp: the answer has status %.20s", code))
	}
	x.answer.reader = picker.UsageOf(header, &x.answer)
	if h.GetEndOfStream() {
		x.finish()
	} else if x.modes.response == mode.ProcessingMode_NONE && x.pick != nil {
		x.pick.FirstToken() // Envoy does not send the body of the answer
	}
	return x.srv.Send(&extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extproc.HeadersResponse{Response: &extproc.CommonResponse{}}}})
}

func (x *exchange) responseBody(b *extproc.HttpBody) error {
	if x.pick != nil && len(b.GetBody()) > 0 {
		x.pick.FirstToken()
		if x.answer.reader != nil {
			x.answer.write(b.GetBody())
		}
	}
	if b.GetEndOfStream() {
		x.finish()
	}
	wrap := func(b *extproc.BodyResponse) *extproc.ProcessingResponse {
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseBody{ResponseBody: b}}
	}
	if x.modes.response != mode.ProcessingMode_FULL_DUPLEX_STREAMED {
		return x.srv.Send(wrap(&extproc.BodyResponse{Response: &extproc.CommonResponse{}}))
	}
	return x.sendChunks(b.GetBody(), b.GetEndOfStream(), wrap)
}

// followMove moves the load of a request that a fallback endpoint has served: it ends the pick and
// begins another one at that endpoint.
func (x *exchange) followMove() {
	if x.pick == nil || x.served == "" || isAt(x.pick.Pod, x.served) {
		return
	}
	x.end(unknown, fmt.Errorf("epp: %.100s has served the request", x.served))
	for _, pod := range x.Picker.Pods() {
		if isAt(pod, x.served) {
			x.request.Pods = []string{pod.Name}
			// The pod has the request already: after an error, the request only does not count as load.
			x.pick, _ = x.Picker.Pick(context.WithoutCancel(x.srv.Context()), &x.request)
			return
		}
	}
}

var unknown = kvindex.Usage{PromptTokens: -1, CachedTokens: -1}

// finish ends the pick of a complete answer.
func (x *exchange) finish() {
	if x.pick == nil {
		return
	}
	usage, err := x.answer.usage()
	x.end(usage, err)
}

// close ends the pick of an exchange that is over.
func (x *exchange) close() {
	x.release()
	if x.pick == nil {
		return
	}
	if x.answer.reader != nil && x.modes.response == mode.ProcessingMode_NONE {
		x.end(unknown, nil)
		return
	}
	x.end(unknown, errors.New("epp: the exchange ended before the answer"))
}

// end ends the pick. err is the reason why there is no answer or no usage.
func (x *exchange) end(u kvindex.Usage, err error) {
	if err == nil || errors.Is(err, picker.ErrNoUsage) {
		x.pick.Done(u)
	} else {
		x.pick.Failed()
	}
	if x.OnEnd != nil {
		x.OnEnd(x.pick, u, err)
	}
	x.pick = nil
}

// An answer reads the usage in a body that comes in pieces.
type answer struct {
	reader *picker.UsageReader // reads from this answer
	rest   []byte
	ended  bool
}

// Read is called by reader.
func (a *answer) Read(p []byte) (int, error) {
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	if n == 0 && a.ended {
		return 0, io.EOF
	}
	return n, nil
}

// write lets reader read b. There is no copy: reader reads into b itself, and Read finds the bytes
// in their place.
func (a *answer) write(b []byte) {
	a.rest = b
	_, _ = a.reader.Read(b)
}

func (a *answer) usage() (kvindex.Usage, error) {
	if a.reader == nil {
		return unknown, errors.New("epp: the answer has no headers")
	}
	a.ended = true
	_, _ = a.reader.Read(nil)
	return a.reader.Usage()
}

// A refusal is an error for the client, in the form of OpenAI's errors.
type refusal struct {
	code    int
	message string
}

func (r *refusal) Error() string { return r.message }

func (r *refusal) response() *extproc.ProcessingResponse {
	kind := "server_error"
	switch {
	case r.code == http.StatusTooManyRequests:
		kind = "rate_limit_error"
	case r.code < http.StatusInternalServerError:
		kind = "invalid_request_error"
	}
	type body struct {
		Message string `json:"message"`
		Type    string `json:"type"`
		Code    int    `json:"code"`
	}
	text, err := json.Marshal(map[string]body{"error": {r.message, kind, r.code}})
	if err != nil {
		text = nil
	}
	return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extproc.ImmediateResponse{
		Status: &status.HttpStatus{Code: status.StatusCode(r.code)},
		Headers: &extproc.HeaderMutation{SetHeaders: []*core.HeaderValueOption{{
			Header: &core.HeaderValue{Key: "content-type", RawValue: []byte("application/json")},
		}}},
		Body: text,
	}}}
}
