package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	health "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/kvindextest"
)

// child is the environment variable of a child process that is the program.
const child = "TEST_OF_KVINDEX_EPP"

func TestMain(m *testing.M) {
	if os.Getenv(child) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestSecondSignal: the program ends at once at the second SIGTERM.
func TestSecondSignal(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pods.json")
	must(t, os.WriteFile(file, []byte("[]"), 0o600))
	cmd := exec.CommandContext(zmtptest.Context(t), os.Args[0], "-listen", "127.0.0.1:0", "-model", "m", "-pods", file, "-insecure", "-linger", "1h")
	cmd.Env = append(os.Environ(), child+"=1")
	log, err := cmd.StderrPipe()
	must(t, err)
	must(t, cmd.Start())
	if line, err := bufio.NewReader(log).ReadString('\n'); !strings.Contains(line, "listening") {
		t.Fatal(line, err)
	}
	if err := zmtptest.Terminate(cmd); fmt.Sprint(err) != "signal: terminated" {
		t.Error(err)
	}
}

// TestRun: the program follows two engines from a file of pods, sends each prompt to the engine
// that has it cached, and ends without an error when its context ends.
func TestRun(t *testing.T) {
	zmtptest.NoLeaks(t)
	waiting := zmtptest.Context(t)
	var pods []events.Pod
	var engines []*kvindextest.Engine
	prompt := func(n uint32) (ids []uint32) {
		for i := range uint32(64) {
			ids = append(ids, 1000*n+i)
		}
		return ids
	}
	for i := range 2 {
		e, pod, err := kvindextest.NewPod(kvindextest.EngineConfig{Pod: fmt.Sprint("pod-", i), Model: "m", Replay: true}, 1)
		must(t, err)
		defer e[0].Close()
		engines, pods = append(engines, e[0]), append(pods, pod)
	}
	list, err := json.Marshal([]map[string]any{
		{"id": "pod-0", "model": "m", "host": pods[0].Host, "port": pods[0].Port, "replayPort": pods[0].ReplayPort},
		{"id": "pod-1", "model": "m", "host": "localhost", "port": pods[1].Port, "replayPort": pods[1].ReplayPort},
	})
	must(t, err)
	file := filepath.Join(t.TempDir(), "pods.json")
	must(t, os.WriteFile(file, list, 0o600))
	o, err := parse([]string{"-listen", "127.0.0.1:0", "-model", "m", "-pods", file, "-timeout", "1m", "-linger", "1ms"})
	must(t, err)
	ctx, stop := context.WithCancel(waiting)
	defer stop()
	address, ended := make(chan net.Addr, 1), make(chan error, 1)
	go func() { ended <- run(ctx, o, func(a net.Addr) { address <- a }) }()
	var at net.Addr
	select {
	case at = <-address:
	case err := <-ended:
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+at.String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})))
	must(t, err)
	defer conn.Close()
	for i, e := range engines {
		must(t, e.WaitSubscribers(waiting, 1))
		if _, err := e.Serve(waiting, kvindextest.Request{Tokens: prompt(uint32(i))}); err != nil {
			t.Fatal(err)
		}
	}
	for client, ready := health.NewHealthClient(conn), false; !ready; { // until no engine is replaying
		r, err := client.Check(waiting, &health.HealthCheckRequest{Service: "readiness"})
		must(t, err)
		ready = r.GetStatus() == health.HealthCheckResponse_SERVING
	}
	for args, want := range map[string]string{
		"": "", "-service liveness": "", "-service nonsense": "NotFound", "-insecure": "Unavailable", "-address 127.0.0.1:1": "Unavailable", "extra": "is no flag", "-nonsense": "-nonsense",
	} {
		err := program(waiting, append([]string{"healthcheck", "-address=" + at.String()}, strings.Fields(args)...))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("healthcheck %s: %v, want %q", args, err, want)
		}
	}
	hosts := []string{net.JoinHostPort(pods[0].Host, "8000"), "localhost:8000"}
	// Each prompt goes to the engine that has it cached, as soon as the engine's events have come.
	for i := range engines {
		first := ""
		for first != hosts[i] {
			if first, err = ask(waiting, conn, prompt(uint32(i))); err != nil {
				t.Fatal(err)
			}
			first, _, _ = strings.Cut(first, ",")
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// ask returns the endpoints for a prompt.
func ask(ctx context.Context, conn *grpc.ClientConn, ids []uint32) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := extproc.NewExternalProcessorClient(conn).Process(ctx)
	if err != nil {
		return "", err
	}
	body, err := json.Marshal(map[string]any{"model": "m", "prompt": ids})
	if err != nil {
		return "", err
	}
	for _, m := range []*extproc.ProcessingRequest{
		{Request: &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{Headers: &core.HeaderMap{Headers: []*core.HeaderValue{{Key: ":path", RawValue: []byte("/v1/completions")}}}}}},
		{Request: &extproc.ProcessingRequest_RequestBody{RequestBody: &extproc.HttpBody{Body: body, EndOfStream: true}}},
	} {
		if err := stream.Send(m); err != nil {
			return "", err
		}
	}
	r, err := stream.Recv()
	if err != nil {
		return "", err
	}
	set := r.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders()
	if len(set) == 0 {
		return "", fmt.Errorf("the answer is %v", r)
	}
	return string(set[0].GetHeader().GetRawValue()), nil
}

// TestMistakes: one error names all mistakes.
func TestMistakes(t *testing.T) {
	for _, c := range []struct {
		args string
		want []string
	}{
		{"", []string{"-model is missing", "either -pods or -selector"}},
		{"-model m -pods a -selector b", []string{"either -pods or -selector"}},
		{"-model m -pods a extra", []string{`["extra"] is no flag`}},
		{"-model m -pods a -target-port 0 -timeout 0s -drain -1s", []string{"-target-port is 0", "-timeout is 0s", "-drain is -1s"}},
		{"-model m -pods a -tls-cert c", []string{"-tls-cert and -tls-key"}},
		{"-model m -pods a -tls-cert c -tls-key k -insecure", []string{"-insecure and -tls-cert exclude"}},
		{"-model m -pods a -nonsense", []string{"-nonsense"}},
		{"-model m -pods a -vllm 0.31 -event-port 6000 -namespace n", []string{"-vllm needs -model-dir", "-event-port has no meaning", "-namespace has no meaning"}},
	} {
		_, err := parse(strings.Fields(c.args))
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want %q", c.args, err, want)
			}
		}
	}
	for args, want := range map[string]string{
		"-model m -selector app=vllm":                        "-selector: ",
		"-model m -pods a -model-dir /nonexistent":           "/nonexistent",
		"-model m -pods a -tls-cert /nonexistent -tls-key k": "/nonexistent",
		"-model m -pods a -listen 192.0.2.1:1":               "192.0.2.1:1",
		"-model m -pods a -max-body -1":                      "MaxBody is -1",
		"-model m -pods a -memory 1000":                      "1000",
		"-model m -pods a -fallbacks -1":                     "Fallbacks is -1",
	} {
		o, err := parse(strings.Fields(args))
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := run(ctx, o, func(net.Addr) { cancel() }); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
		cancel()
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
