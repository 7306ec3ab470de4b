package epp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"testing"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/epp"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/picker"
)

// bareProcessor is an external processor that answers each request with the same endpoint, and
// sends the body back.
type bareProcessor struct {
	extproc.UnimplementedExternalProcessorServer
}

func (bareProcessor) Process(srv extproc.ExternalProcessor_ProcessServer) error {
	const key, endpoint = "x-gateway-destination-endpoint", "10.0.0.1:8000"
	for {
		m, err := srv.Recv()
		if err != nil {
			return nil
		}
		b := m.GetRequestBody()
		if b == nil {
			continue
		}
		destination := &structpb.Struct{Fields: map[string]*structpb.Value{key: structpb.NewStringValue(endpoint)}}
		headers := &extproc.HeaderMutation{SetHeaders: []*core.HeaderValueOption{{Header: &core.HeaderValue{Key: key, RawValue: []byte(endpoint)}}}}
		if err := srv.Send(&extproc.ProcessingResponse{
			DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{"envoy.lb": structpb.NewStructValue(destination)}},
			Response:        &extproc.ProcessingResponse_RequestHeaders{RequestHeaders: &extproc.HeadersResponse{Response: &extproc.CommonResponse{ClearRouteCache: true, HeaderMutation: headers}}},
		}); err != nil {
			return err
		}
		mutation := &extproc.BodyMutation{Mutation: &extproc.BodyMutation_StreamedResponse{StreamedResponse: &extproc.StreamedBodyResponse{Body: b.GetBody(), EndOfStream: true}}}
		if err := srv.Send(&extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestBody{RequestBody: &extproc.BodyResponse{Response: &extproc.CommonResponse{BodyMutation: mutation}}}}); err != nil {
			return err
		}
	}
}

// BenchmarkProcess measures a request of 4,096 token ids for one of 16 pods: with a bare external
// processor, with the picker, and the score of the same body alone.
func BenchmarkProcess(b *testing.B) {
	ix, err := kvindex.New()
	must(b, err)
	defer ix.Close()
	prompt := fakeengine.NewPrompt(1, 16, 256)
	p, err := picker.New(ix, picker.Config{Model: "m", Fallbacks: 2})
	must(b, err)
	var pods []picker.Pod
	for i := range 16 {
		pods = append(pods, picker.Pod{Name: string(rune('a' + i)), Host: "10.0.0.1:8000"})
		if err := ix.Ingest(pods[i].Name, "m", fakeengine.Payload(1, 0, prompt.Stored(0, 16*i))); err != nil && i > 0 {
			b.Fatal(err)
		}
	}
	must(b, p.Set(pods))
	body, err := json.Marshal(map[string]any{"model": "m", "prompt": prompt.Tokens})
	must(b, err)
	b.Run("score", func(b *testing.B) {
		var answer kvindex.Answer
		for b.Loop() {
			must(b, ix.ScoreRequest(b.Context(), &kvindex.Request{Body: bytes.Clone(body), Path: "/v1/completions"}, &answer))
		}
	})
	b.Run("bare", func(b *testing.B) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		must(b, err)
		server := grpc.NewServer()
		defer server.Stop()
		extproc.RegisterExternalProcessorServer(server, bareProcessor{})
		go server.Serve(listener)
		conn, err := grpc.NewClient("passthrough:///"+listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		must(b, err)
		defer conn.Close()
		exchanges(b, extproc.NewExternalProcessorClient(conn), body)
	})
	b.Run("picker", func(b *testing.B) { exchanges(b, dial(b, epp.Config{Picker: p}), body) })
}

func exchanges(b *testing.B, stub extproc.ExternalProcessorClient, body []byte) {
	b.ReportAllocs()
	for b.Loop() {
		ctx, cancel := context.WithCancel(b.Context())
		stream, err := stub.Process(ctx)
		must(b, err)
		f := &filter{envoy: &envoy{request: duplex, back: duplex}, stream: stream, first: true}
		must(b, f.run(&call{body: body, cuts: 1}))
		must(b, stream.CloseSend())
		if _, err := stream.Recv(); err == nil {
			b.Fatal("the stream goes on")
		}
		cancel()
	}
}
