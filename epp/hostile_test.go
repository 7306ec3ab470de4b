package epp_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	mode "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/kvindex/kvindex/epp"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/picker"
)

var hostile = flag.Int("hostile", 500, "exchanges of TestHostile; long form: 10000")

const maxBody = 1 << 16

// wrong returns a message that Envoy would not send, or not in that place. body is a valid body.
func wrong(random *rand.Rand, body []byte) *extproc.ProcessingRequest {
	text := func(of ...string) string { return of[random.IntN(len(of))] }
	m := new(extproc.ProcessingRequest)
	piece := func() *extproc.HttpBody {
		b := slices.Clone(body)
		switch random.IntN(6) {
		case 0:
			b[random.IntN(len(b))] = byte(random.IntN(256))
		case 1:
			b = b[:random.IntN(len(b))]
		case 2:
			b = []byte(strings.Repeat(text("[", `{"model":`, "\xff", "data: {\"usage\":{\"prompt_tokens\":1e999}}\n\n"), random.IntN(5000)))
		case 3:
			b = make([]byte, random.IntN(2*maxBody))
		}
		return &extproc.HttpBody{Body: b, EndOfStream: random.IntN(2) == 0}
	}
	fields := func() *core.HeaderMap {
		long := 8
		if random.IntN(50) == 0 {
			long = 1 << 20
		}
		return &core.HeaderMap{Headers: []*core.HeaderValue{
			{Key: ":method", Value: text("POST", "GET", "", "BREW", "POST\r\nHost: x")},
			{Key: ":path", RawValue: []byte(text("/v1/completions", "/v1/chat/completions?x=y", "", "//", "\xff"))},
			{Key: ":path", Value: text("/v1/messages", "/v1/embeddings")},
			{Key: ":status", Value: text("200", "", "500", "99999999999999999999", "abc")},
			{Key: text("content-encoding", "transfer-encoding", "content-length", "x-gateway-destination-endpoint", "x-data-parallel-rank", ""), Value: text("gzip", "chunked", "-1", "10.0.0.9:1", strings.Repeat("x", long))},
			nil,
		}}
	}
	switch random.IntN(8) {
	case 0, 1:
		m.Request = &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{Headers: fields(), EndOfStream: random.IntN(4) == 0}}
	case 2, 3:
		m.Request = &extproc.ProcessingRequest_RequestBody{RequestBody: piece()}
	case 4:
		m.Request = &extproc.ProcessingRequest_RequestTrailers{RequestTrailers: &extproc.HttpTrailers{Trailers: fields()}}
	case 5:
		m.Request = &extproc.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extproc.HttpHeaders{Headers: fields(), EndOfStream: random.IntN(4) == 0}}
	case 6:
		m.Request = &extproc.ProcessingRequest_ResponseBody{ResponseBody: piece()}
	}
	if random.IntN(4) == 0 {
		m.ProtocolConfig = &extproc.ProtocolConfiguration{
			RequestBodyMode: mode.ProcessingMode_BodySendMode(random.IntN(7)), ResponseBodyMode: mode.ProcessingMode_BodySendMode(random.IntN(7)), SendBodyWithoutWaitingForHeaderResponse: random.IntN(2) == 0,
		}
	}
	if random.IntN(4) == 0 {
		value := structpb.NewStringValue(text("10.0.0.1:8000", "10.0.0.1", ",,", "[::", "10.0.0.1:99999"))
		for range random.IntN(40) {
			value = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{value, structpb.NewNullValue()}})
		}
		m.MetadataContext = &core.Metadata{FilterMetadata: map[string]*structpb.Struct{
			text("envoy.lb.subset_hint", "envoy.lb"): {Fields: map[string]*structpb.Value{text("x-gateway-destination-endpoint-subset", "x-gateway-destination-endpoint-served"): value}},
		}}
	}
	return m
}

// raw has bytes of other protocols, and incomplete ones of this protocol.
var raw = []string{
	"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
	"POST /envoy.service.ext_proc.v3.ExternalProcessor/Process HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"\x16\x03\x01\x00\x05hello",
	"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x04\x00\x00\x00\x00\x00",
	"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x05\x01\x05\x00\x00\x00\x01\xff\xff\xff\xff\xff",
	"PRI * HT",
	"",
}

// TestHostile: the answers to wrong messages and wrong orders have documented statuses. They leave
// nothing behind, and do not affect other exchanges.
func TestHostile(t *testing.T) {
	p := newPool(t, picker.Config{Model: "m", Fallbacks: 2}, 4)
	before := runtime.NumGoroutine()
	ends := make(map[string]int)
	t.Run("exchanges", func(t *testing.T) {
		conn := connect(t, epp.Config{Picker: p.picker, MaxBody: maxBody, MaxBuffered: 1 << 18}, grpc.WaitForHandlers(true))
		stub := extproc.NewExternalProcessorClient(conn)
		random := rand.New(rand.NewPCG(7, 8))
		var slow []func() // they end exchanges that have stopped
		for i := range *hostile {
			if i%10 == 0 {
				speak(t, strings.TrimPrefix(conn.Target(), "passthrough:///"), raw[i/10%len(raw)])
				right := call{body: p.body(), cuts: 2}
				v := envoy{stub: stub, request: duplex, back: duplex}
				if got, err := v.do(t.Context(), &right); err != nil || got.refused != nil || got.destination == "" {
					t.Fatalf("a right exchange beside them: %+v, %v", got, err)
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			stream, err := stub.Process(ctx)
			must(t, err)
			for range random.IntN(8) {
				if stream.Send(wrong(random, p.body())) != nil {
					break // Recv returns the reason
				}
			}
			switch random.IntN(10) {
			case 0:
				if slow = append(slow, cancel); len(slow) == 40 {
					for _, end := range slow {
						end()
					}
					slow = nil
				}
				ends["stands still"]++
				continue
			case 1:
				cancel()
			default:
				_ = stream.CloseSend()
			}
			for err == nil {
				var m *extproc.ProcessingResponse
				if m, err = stream.Recv(); err == nil {
					if refused := m.GetImmediateResponse(); refused != nil {
						code := int(refused.GetStatus().GetCode())
						ends[fmt.Sprint(code)]++
						if !slices.Contains([]int{400, 413, 503}, code) || !json.Valid(refused.GetBody()) {
							t.Errorf("exchange %d: %d %s", i, code, refused.GetBody())
						}
					}
				}
			}
			code := status.Code(err)
			if errors.Is(err, io.EOF) {
				code = codes.OK
			}
			ends[code.String()]++
			if code != codes.OK && code != codes.InvalidArgument && (code != codes.Canceled || ctx.Err() == nil) {
				t.Errorf("exchange %d: %v", i, err)
			}
			cancel()
		}
		for _, end := range slow {
			end()
		}
	})
	t.Logf("%d exchanges: %v", *hostile, ends)
	for _, kind := range []string{"400", "413", "503", "OK", "InvalidArgument", "stands still"} {
		if ends[kind] == 0 {
			t.Errorf("no exchange with the end %s", kind)
		}
	}
	p.idle(t) // the server has stopped
	for ctx := zmtptest.Context(t); runtime.NumGoroutine() > before; runtime.Gosched() {
		if ctx.Err() != nil {
			t.Fatalf("goroutines: %d, were %d", runtime.NumGoroutine(), before)
		}
	}
}

// speak sends bytes to an address, and reads until the peer closes the connection.
func speak(t *testing.T, address, text string) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	must(t, err)
	defer c.Close()
	_, _ = io.WriteString(c, text)
	_ = c.(*net.TCPConn).CloseWrite()
	_, _ = io.Copy(io.Discard, c)
}
