package config

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvindex/kvindex/events"
)

// load calls Load with a file of this text, "" for no file.
func load(args, environ []string, file string) (*Config, error) {
	if file != "" {
		environ = append(slices.Clone(environ), "KVINDEXD_CONFIG=f.json")
	}
	return Load(args, environ, func(path string) ([]byte, error) {
		if path != "f.json" {
			return nil, fs.ErrNotExist
		}
		return []byte(file), nil
	})
}

func mustLoad(t *testing.T, args, environ []string, file string) *Config {
	t.Helper()
	c, err := load(args, environ, file)
	if err != nil {
		t.Fatalf("%q %q %s: %v", args, environ, file, err)
	}
	return c
}

// effects has a value for each setting, and its effect on a Config.
var effects = map[string]struct {
	text string
	get  func(*Config) any
	want any
}{
	"listen":            {"127.0.0.1:9090", func(c *Config) any { return c.Listen }, "127.0.0.1:9090"},
	"admin":             {"none", func(c *Config) any { return c.Admin }, ""},
	"admin-token":       {"secret-t", func(c *Config) any { return c.AdminToken }, "secret-t"},
	"admin-cert":        {"cert.pem", func(c *Config) any { return c.AdminCert }, "cert.pem"},
	"admin-key":         {"key.pem", func(c *Config) any { return c.AdminKey }, "key.pem"},
	"admin-client-ca":   {"ca.pem", func(c *Config) any { return c.AdminClientCA }, "ca.pem"},
	"grace":             {"2s", func(c *Config) any { return c.Grace }, 2 * time.Second},
	"deadline":          {"300ms", func(c *Config) any { return c.Deadline }, 300 * time.Millisecond},
	"max-body":          {"1MiB", func(c *Config) any { return c.MaxBody }, int64(1 << 20)},
	"max-bodies":        {"1GB", func(c *Config) any { return c.MaxBodies }, int64(1e9)},
	"max-requests":      {"7", func(c *Config) any { return c.MaxRequests }, 7},
	"max-reservations":  {"8", func(c *Config) any { return c.MaxReservations }, 8},
	"lease":             {"1m30s", func(c *Config) any { return c.Lease }, 90 * time.Second},
	"ready-share":       {"0.5", func(c *Config) any { return c.ReadyShare }, 0.5},
	"policy":            {"least-tokens", func(c *Config) any { return c.Policy }, "least-tokens"},
	"block-size":        {"32", func(c *Config) any { return c.BlockTokens }, 32},
	"memory":            {"2GiB", func(c *Config) any { return c.Memory }, int64(2 << 30)},
	"prompt-cache":      {"128Mi", func(c *Config) any { return c.PromptCache }, int64(128 << 20)},
	"model":             {"org/m", func(c *Config) any { return c.Model }, "org/m"},
	"models":            {"a=/models/a,b=org/b@main", func(c *Config) any { return c.Models }, map[string]string{"a": "/models/a", "b": "org/b@main"}},
	"models-dir":        {"/models", func(c *Config) any { return c.ModelsDir }, "/models"},
	"hub-dir":           {"/hub", func(c *Config) any { return c.HubDir }, "/hub"},
	"download":          {"false", func(c *Config) any { return c.Download }, false},
	"hub-endpoint":      {"https://hub.example", func(c *Config) any { return c.HubEndpoint }, "https://hub.example"},
	"hub-token":         {"secret-h", func(c *Config) any { return c.HubToken }, "secret-h"},
	"engine":            {"0.31", func(c *Config) any { return c.Engine }, "0.31"},
	"tokenizer-workers": {"3", func(c *Config) any { return c.TokenizerWorkers }, 3},
	"tokenizer-memory":  {"2147483648", func(c *Config) any { return c.TokenizerMemory }, int64(2 << 30)},
	"zmq-endpoint": {"tcp://[::]:6000,pod=tcp://h:1", func(c *Config) any { return c.Endpoints }, []Endpoint{
		{Address: "tcp://[::]:6000", Listen: true}, {Address: "tcp://h:1", Pod: "pod", Named: true},
	}},
	"zmq-topic":         {"none", func(c *Config) any { return c.Topic }, ""},
	"replay-port":       {"5657", func(c *Config) any { return c.ReplayPort }, 5657},
	"concurrency":       {"16", func(c *Config) any { return c.Concurrency }, 16},
	"max-pods":          {"20", func(c *Config) any { return c.MaxPods }, 20},
	"pods":              {`[{"id":"p","model":"m","host":"h","port":6000}]`, func(c *Config) any { return c.Pods }, []events.Pod{{ID: "p", Model: "m", Host: "h", Port: 6000}}},
	"pods-file":         {"pods.json", func(c *Config) any { return c.PodsFile }, "pods.json"},
	"dns":               {"vllm.default.svc", func(c *Config) any { return c.DNS }, "vllm.default.svc"},
	"dns-srv":           {"true", func(c *Config) any { return c.DNSSRV }, true},
	"engine-port":       {"5558", func(c *Config) any { return c.EnginePort }, 5558},
	"tiers-port":        {"5600", func(c *Config) any { return c.TiersPort }, 5600},
	"ranks":             {"2", func(c *Config) any { return c.Ranks }, 2},
	"kubernetes":        {"aibrix", func(c *Config) any { return c.Kubernetes }, "aibrix"},
	"namespace":         {"inference", func(c *Config) any { return c.Namespace }, "inference"},
	"selector":          {"app=vllm", func(c *Config) any { return c.Selector }, "app=vllm"},
	"redis":             {"redis://user:secret-r@redis:6379/0", func(c *Config) any { return c.Redis }, "redis://user:secret-r@redis:6379/0"},
	"redis-prefix":      {"fleet-a:", func(c *Config) any { return c.RedisPrefix }, "fleet-a:"},
	"snapshot":          {"/data/s", func(c *Config) any { return c.Snapshot }, "/data/s"},
	"snapshot-interval": {"5s", func(c *Config) any { return c.SnapshotInterval }, 5 * time.Second},
	"bootstrap":         {"http://10.0.0.2:8081/v1/snapshot#secret", func(c *Config) any { return c.Bootstrap }, "http://10.0.0.2:8081/v1/snapshot#secret"},
	"bootstrap-token":   {"secret-b", func(c *Config) any { return c.BootstrapToken }, "secret-b"},
	"log-level":         {"debug", func(c *Config) any { return c.Log }, slog.LevelDebug},
	"public-page":       {"true", func(c *Config) any { return c.PublicPage }, true},
	"metrics":           {"false", func(c *Config) any { return c.Metrics }, false},
}

// needs has, for a setting, the arguments without which it is refused.
var needs = map[string][]string{
	"admin-cert": {"-admin-key=k"}, "admin-key": {"-admin-cert=c"}, "admin-client-ca": {"-admin-cert=c", "-admin-key=k"},
	"dns": {"-model=m"}, "zmq-endpoint": {"-model=m"},
}

// conversions has the names whose values differ from those of the flag: a value, and the value
// in the Config.
var conversions = map[string]struct {
	text string
	want any
}{
	"v":         {"5", slog.LevelDebug},
	"HTTP_PORT": {"9090", ":9090"},
	"AIBRIX_PREFIX_CACHE_KV_EVENT_SYNC_ENABLED":    {"true", "aibrix"},
	"kvEventsConfig.discoverPods":                  {"true", "llm-d"},
	"tokenizersPoolConfig.local.modelTokenizerMap": {`{"a":"/models/a","b":"org/b@main"}`, nil},
	"tokenizersPoolConfig.uds.modelTokenizerMap":   {`{"a":"/models/a","b":"org/b@main"}`, nil},
	"kvBlockIndexConfig.valkeyConfig.address":      {"valkeys://v:6379", "rediss://v:6379"},
}

// noEffect has a valid value for each name without effect that does not accept "1".
var noEffect = map[string]string{
	"AIBRIX_PREFIX_CACHE_USE_REMOTE_TOKENIZER":     "true",
	"kvBlockIndexConfig.redisConfig.backendType":   "redis",
	"kvBlockIndexConfig.redisConfig.enableRDMA":    "true",
	"kvBlockIndexConfig.valkeyConfig.backendType":  "valkey",
	"kvBlockIndexConfig.valkeyConfig.enableRDMA":   "true",
	"kvBlockIndexConfig.metricsLoggingInterval":    "1m0s",
	"tokenizersPoolConfig.uds.useTCP":              "true",
	"kvEventsConfig.engineType":                    "vllm",
	"kvEventsConfig.podDiscoveryConfig.engineType": "sglang",
	"speculativeTTL":                     "2s",
	"kvBlockScorerConfig.backendConfigs": `[{"name":"gpu","weight":1.0}]`,
	"kvCacheBackendConfigs":              `[{"name":"cpu","weight":0.8}]`,
}

// inFile returns a JSON file with a value at a path.
func inFile(path, text string) string {
	value := text
	if !json.Valid([]byte(text)) {
		b, _ := json.Marshal(text)
		value = string(b)
	}
	parts := strings.Split(path, ".")
	slices.Reverse(parts)
	for _, p := range parts {
		value = fmt.Sprintf("{%q: %s}", p, value)
	}
	return value
}

// Every name has the effect of its setting or causes a note, and the origin is that name.
func TestNames(t *testing.T) {
	for _, form := range []struct {
		list   []alias
		load   func(name, text string, more []string) (*Config, error)
		origin string
	}{
		{flagNames, func(name, text string, more []string) (*Config, error) {
			return load(append(more, "-"+name+"="+text), nil, "")
		}, "flag -"},
		{variables, func(name, text string, more []string) (*Config, error) {
			return load(more, []string{"OTHER=1", name + "=" + text}, "")
		}, "environment "},
		{keys, func(name, text string, more []string) (*Config, error) {
			return load(more, nil, inFile(name, text))
		}, "file: "},
	} {
		for _, a := range form.list {
			text := "1"
			if s, found := noEffect[a.name]; found {
				text = s
			}
			e, known := effects[a.to]
			if a.to != "" && a.to != "config" {
				if !known {
					t.Errorf("%s: no effect is listed", a.to)
					continue
				}
				text = e.text
				if conv, found := conversions[a.name]; found {
					text = conv.text
					if conv.want != nil {
						e.want = conv.want
					}
				}
			}
			more := slices.Clone(needs[a.to])
			if e.want == "llm-d" {
				more = append(more, "-model=m")
			}
			if a.to == "config" {
				if _, err := form.load(a.name, "missing", more); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s: %v", a.name, err)
				}
				continue
			}
			c, err := form.load(a.name, text, more)
			if err != nil {
				t.Errorf("%s: %v", a.name, err)
				continue
			}
			origin := form.origin + a.name
			if a.to == "" {
				n := 0
				for _, note := range c.Notes {
					if strings.HasPrefix(note, origin+": ") && strings.HasSuffix(note, a.why) {
						n++
					}
				}
				if n != 1 {
					t.Errorf("%s: %d notes in %q", a.name, n, c.Notes)
				}
				continue
			}
			if got := e.get(c); !reflect.DeepEqual(got, e.want) {
				t.Errorf("%s: got %v, want %v", a.name, got, e.want)
			}
			plain := mustLoad(t, nil, nil, "")
			if reflect.DeepEqual(e.get(plain), e.want) {
				t.Errorf("%s: it has no effect: %v is the default", a.name, e.want)
			}
			if i := slices.IndexFunc(c.Settings, func(s Setting) bool { return s.Name == a.to }); c.Settings[i].Origin != origin {
				t.Errorf("%s: the origin is %q", a.name, c.Settings[i].Origin)
			}
			var b strings.Builder
			if err := c.Print(&b); err != nil || strings.Contains(b.String(), "secret") {
				t.Errorf("%s: printed with a secret: %s, %v", a.name, b.String(), err)
			}
		}
	}
}

// A flag overrides the environment, which overrides the file, which overrides the defaults.
func TestOrder(t *testing.T) {
	file, environ, args := `{"tokenProcessorConfig": {"blockSize": 4}}`, []string{"BLOCK_SIZE=8"}, []string{"--block-size", "32"}
	for i, want := range []int{16, 4, 8, 32} {
		var f string
		var e, a []string
		if i > 0 {
			f = file
		}
		if i > 1 {
			e = environ
		}
		if i > 2 {
			a = args
		}
		if c := mustLoad(t, a, e, f); c.BlockTokens != want {
			t.Errorf("with %d layers: %d, want %d", i, c.BlockTokens, want)
		}
	}
	// A boolean flag needs no value, and an empty variable is ignored.
	c := mustLoad(t, []string{"-dns-srv", "-v", "4", "-log-level=debug"}, []string{"BLOCK_SIZE="}, "")
	if !c.DNSSRV || c.Log != slog.LevelDebug || c.BlockTokens != 16 {
		t.Error(c.DNSSRV, c.Log, c.BlockTokens)
	}
	if _, err := load([]string{"-h"}, nil, ""); !errors.Is(err, flag.ErrHelp) {
		t.Error(err)
	}
	// A variable with the value none overrides a file.
	if c := mustLoad(t, nil, []string{"KVINDEXD_SNAPSHOT=none"}, `{"snapshot": "s"}`); c.Snapshot != "" {
		t.Error(c.Snapshot)
	}
}

// The model's name is the place of its files, unless the settings have another place.
func TestModel(t *testing.T) {
	for model, want := range map[string]map[string]string{
		"org/m": {"org/m": "org/m", "x": "y"}, "/models/m": {"/models/m": "/models/m", "x": "y"}, "./m": {"./m": "./m", "x": "y"},
		"m": {"x": "y"}, "a/b/c": {"x": "y"}, "x": {"x": "y"},
	} {
		if c := mustLoad(t, []string{"-model=" + model, "-models=x=y"}, nil, ""); !reflect.DeepEqual(c.Models, want) {
			t.Errorf("%s: %v", model, c.Models)
		}
	}
	if c := mustLoad(t, nil, nil, ""); c.Models != nil {
		t.Error(c.Models)
	}
}

func TestEndpoints(t *testing.T) {
	for _, tt := range []struct {
		environ string
		want    []Endpoint
	}{
		{"", []Endpoint{{Address: "tcp://*:5557", Listen: true}}},
		{"ZMQ_ENDPOINT=tcp://*:6000", []Endpoint{{Address: "tcp://*:6000", Listen: true}}},
		{"ZMQ_ENDPOINT=tcp://0.0.0.0:6000", []Endpoint{{Address: "tcp://0.0.0.0:6000", Listen: true}}},
		{"ZMQ_ENDPOINT=tcp://[::]:6000", []Endpoint{{Address: "tcp://[::]:6000", Listen: true}}},
		{"ZMQ_ENDPOINT=tcp://vllm-service:5557", []Endpoint{{Address: "tcp://vllm-service:5557", Pod: "vllm-service"}}},
		{"ZMQ_ENDPOINT=tcp://[fd00::1]:5557 KVINDEXD_REPLAY_PORT=5657", []Endpoint{{Address: "tcp://[fd00::1]:5557", Pod: "fd00::1", Replay: "tcp://[fd00::1]:5657"}}},
		{"ZMQ_ENDPOINT=a=ipc:///tmp/a MODEL_NAME=m", []Endpoint{{Address: "ipc:///tmp/a", Pod: "a", Named: true}}},
		{"ZMQ_ENDPOINT=none", nil},
		{"KVINDEXD_PODS_FILE=pods.json", nil}, // the default endpoint is for settings that name no pods
		{"KVINDEXD_PODS_FILE=pods.json ZMQ_ENDPOINT=tcp://*:1", []Endpoint{{Address: "tcp://*:1", Listen: true}}},
	} {
		if c := mustLoad(t, nil, strings.Fields(tt.environ), ""); !reflect.DeepEqual(c.Endpoints, tt.want) {
			t.Errorf("%s: %+v", tt.environ, c.Endpoints)
		}
	}
	// The notes have the consequences of listening.
	for _, want := range []string{"can name pods and blocks; at most 1000 pods", "partial after a start"} {
		if notes := strings.Join(mustLoad(t, nil, nil, "").Notes, "\n"); !strings.Contains(notes, want) {
			t.Errorf("no note has %q:\n%s", want, notes)
		}
	}
	if notes := mustLoad(t, []string{"-replay-port=5657"}, nil, "").Notes; len(notes) != 1 {
		t.Errorf("%q", notes)
	}
	// Settings that have no effect beside the others.
	for args, want := range map[string]string{
		"-model=m -dns=n -dns-srv -engine-port=6000 -ranks=2":          "engine-port: not used, because the SRV records have the ports",
		"-model=m -dns=n -dns-srv -engine-port=6000 -kubernetes=llm-d": "",
		"-model=m -dns=n -engine-port=6000 -tiers-port=6001":           "",
		"-zmq-endpoint=tcp://h:1 -dns-srv":                             "dns-srv: not used, because dns is not set",
		"-model=m -dns=n -namespace=x":                                 "namespace: not used, because kubernetes is not set",
		"-pods-file=f -ranks=2":                                        "ranks: not used, because neither dns nor kubernetes is set",
	} {
		notes := mustLoad(t, strings.Fields(args), nil, "").Notes
		notes = slices.DeleteFunc(notes, func(n string) bool { return !strings.Contains(n, "not used") })
		if strings.Join(notes, "\n") != want {
			t.Errorf("%s: %q, want %q", args, notes, want)
		}
	}
	for args, want := range map[string]bool{"-ready-share=1": true, "-ready-share=0": false, "-ready-share=1 -pods-file=pods.json": false} {
		notes := mustLoad(t, strings.Fields(args), nil, "").Notes
		if got := slices.ContainsFunc(notes, func(n string) bool { return strings.HasPrefix(n, "ready-share: ") }); got != want {
			t.Errorf("%s: %q", args, notes)
		}
	}
}

// The variables that Kubernetes sets for Services are ignored; a misspelt setting is not.
func TestServiceLinks(t *testing.T) {
	for _, service := range []string{"KVINDEXD", "KVINDEXD_PEERS", "KVINDEXD_2_API"} {
		for _, of := range []string{"10.0.0.1", "fd00::1"} {
			at := net.JoinHostPort(of, "8081")
			mustLoad(t, nil, []string{
				service + "_SERVICE_HOST=" + of, service + "_SERVICE_PORT=8081", service + "_SERVICE_PORT_HTTP_ADMIN=8081",
				service + "_PORT=tcp://" + at, service + "_PORT_8081_TCP=tcp://" + at, service + "_PORT_8081_TCP_PROTO=tcp",
				service + "_PORT_8081_TCP_PORT=8081", service + "_PORT_8081_TCP_ADDR=" + of,
				service + "_PORT_53_UDP=udp://" + at, service + "_PORT_53_UDP_PROTO=udp",
			}, "")
		}
	}
	for _, e := range []string{
		"KVINDEXD_PORT=8080", "KVINDEXD_ENGINES_PORT=5557", "KVINDEXD_REPLAY_PORTS=tcp://10.0.0.1:80", "KVINDEXD_SERVICE_HOST=name",
		"KVINDEXD_HOST=10.0.0.1", "KVINDEXD_PORT_TCP=tcp://10.0.0.1:80", "KVINDEXD_PORT_80_TCP_ADDRESS=10.0.0.1", "KVINDEXD_SERVICEPORT=80",
		"KVINDEXD_ENGINE_PORT=tcp://10.0.0.1:80", // a Service with the name of a setting
	} {
		if name, _, _ := strings.Cut(e, "="); !fails(e, "environment "+name+": ") {
			t.Errorf("%s was passed over", e)
		}
	}
}

func fails(environ, want string) bool {
	_, err := load(nil, []string{environ}, "")
	return err != nil && strings.HasPrefix(err.Error(), want)
}

// One error lists all mistakes, each with its place and the accepted values.
func TestMistakes(t *testing.T) {
	args := []string{"-nope=1", "-blocksize=16", "-max-requests=0", "-replay-port"}
	environ := []string{"HTTP_PORT=99999", "KVINDEXD_SNAPSHOTS=/s", "ZMQ_ENDPOINT=vllm-service:5557", "REDIS_ADDR=http://:secret@h", "KVINDEXD_ADMIN=0.0.0.0:8081"}
	file := `{
		"kvBlockIndexConfig": {"inMemoryConfig": {"sise": 1, "podCacheSize": -1}, "redisConfig": {"address": "redis://r:6379"}, "metricsLoggingInterval": "often"},
		"tokenProcessorConfig": {"blockSize": "sixteen", "blockSizeTokens": 16},
		"tokenizersPoolConfig": {"minPrefixOverlapRatio": 1.5, "workersCount": {}},
		"prefixStoreConfig": 5,
		"deadline": "10m", "lease": 3, "lease": 4,
		"kvEventsConfig": {"topicFilter": "kv@"}, "topicFilter": "x@"
	}`
	_, err := load(args, environ, file)
	if err == nil {
		t.Fatal("nothing was refused")
	}
	got := strings.Split(err.Error(), "\n")
	want := []string{
		`flag -blocksize=16: unknown: do you mean block-size?`,
		`flag -nope=1: unknown`,
		`flag -replay-port: a value is missing`,
		`environment HTTP_PORT: "99999": must be a whole number, 1 to 65535`,
		`environment KVINDEXD_SNAPSHOTS: unknown: do you mean KVINDEXD_SNAPSHOT?`,
		`file: kvBlockIndexConfig.inMemoryConfig.sise: unknown key: do you mean kvBlockIndexConfig.inMemoryConfig.size?`,
		`file: kvBlockIndexConfig.inMemoryConfig.podCacheSize: "-1": must be a whole number, 0 to 9223372036854775807`,
		`file: kvBlockIndexConfig.metricsLoggingInterval: "often": must be a time such as 30s`,
		`file: tokenProcessorConfig.blockSizeTokens: file: tokenProcessorConfig.blockSize sets the same, to another value: remove one`,
		`file: tokenizersPoolConfig.minPrefixOverlapRatio: "1.5": must be a number, 0 to 1`,
		`file: tokenizersPoolConfig.workersCount: must be one value`,
		`file: prefixStoreConfig: must be an object`,
		`file: lease: this key is there twice`,
		`file: lease: file: lease sets the same, to another value: remove one`,
		`file: topicFilter: file: kvEventsConfig.topicFilter sets the same, to another value: remove one`,
		`file: kvBlockIndexConfig: more than one index: inMemoryConfig, redisConfig: keep one`,
		`file: deadline: "10m": must be 1ms to 1m0s`,
		`flag -max-requests: "0": must be a whole number, 1 to 1048576`,
		`file: lease: "3": must be a time such as 30s or 1m30s`,
		`file: tokenProcessorConfig.blockSize: "sixteen": must be a whole number, 1 to 65536`,
		`environment ZMQ_ENDPOINT: "vllm-service:5557": must be tcp://HOST:PORT or ipc://PATH`,
		`environment REDIS_ADDR: must be a URL that begins with redis://, rediss://, valkey:// or valkeys://`,
		`environment KVINDEXD_ADMIN: 0.0.0.0:8081 is no loopback address: set admin-token or admin-client-ca, or listen at 127.0.0.1`,
	}
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("not reported: %s", w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d mistakes, want %d:\n%v", len(got), len(want), err)
	}
	for _, tt := range []struct{ args, file, want string }{
		{"start", "", `"start" is neither a flag nor a command: -h lists them`},
		{"-lissen=:1", "", "flag -lissen=:1: unknown: do you mean listen?"},
		{"-config=missing.json", "", "flag -config: file does not exist"},
		{"", "[]", "file f.json: no JSON object"},
		{"", "{} {}", "file f.json: byte 4: there is more behind the object"},
		{"", `{"model": }`, "file f.json: byte "},
		{"", strings.Repeat(" ", maxFile+1), "environment KVINDEXD_CONFIG: f.json has more than 1048576 bytes"},
		{"", `{"config": "other.json"}`, "file: config: unknown key"},
		{"-listen=none", "", "flag -listen: must be host:port or :port"},
		{"", `{"policy": "none"}`, "file: policy: must be one of default, least-requests, least-tokens, random, round-robin"},
		{"-admin-cert=c", "", "flag -admin-cert: admin-cert and admin-key belong together: one is missing"},
		{"-admin-client-ca=c", "", "flag -admin-client-ca: certificates of clients need TLS: set admin-cert and admin-key"},
		{"-redis=r:6379 -bootstrap=http://b/", "", "flag -bootstrap: an index in Redis needs no bootstrap: remove redis or bootstrap"},
		{"-redis=redis://:12#34@h", "", "flag -redis: must be a URL with a host, and %23 in place of # in a password"},
		{"-dns=d", "", "flag -dns: records name no model: set model"},
		{"-kubernetes=llm-d", "", "flag -kubernetes: labels of llm-d name no model: set model"},
		{"-kubernetes=k3s", "", `flag -kubernetes: "k3s": must be one of llm-d, aibrix`},
		{"-zmq-endpoint=tcp://h:0", "", `flag -zmq-endpoint: "tcp://h:0": port: must be a whole number, 1 to 65535`},
		{"-zmq-endpoint=p=tcp://*:1", "", `flag -zmq-endpoint: "p=tcp://*:1": engines that connect have names of their own`},
		{"-zmq-endpoint=p=tcp://h:1", "", "flag -zmq-endpoint: the model of p is not known: set model"},
		{"-zmq-endpoint=tcp://h:1,tcp://h:2", "", "flag -zmq-endpoint: two pods are named h: write NAME=tcp://h:2"},
		{"-max-body=1GiB", "", "flag -max-body: 1073741824 bytes are more than max-bodies, 268435456"},
		{"-memory=8EiB", "", `flag -memory: "8EiB": must be a number of bytes, such as 500MiB or 8GiB`},
		{"-ready-share=NaN", "", `flag -ready-share: "NaN": must be a number, 0 to 1`},
		{"-models=a=,b=c", "", `flag -models: "a=,b=c": must be NAME=WHERE, with commas between them`},
		{"", `{"pods": [{"id": "p", "model": "m", "host": "h", "prot": 1}]}`, `file: pods: "[{\"id\": \"p\", \"model\": \"m\", \"host\": \"h\", \"prot\": 1}]": must be a list of pods: json: unknown field "prot"`},
		{"", `{"pods": [{"id": "p", "model": "m"}]}`, `file: pods: "[{\"id\": \"p\", \"model\": \"m\"}]": [0]: id, model and host are needed`},
		{"-engine=0.99", "", `flag -engine: "0.99": an Engine of "0.99" is newer than 0.31`},
		{"-admin-token=a\nb", "", "flag -admin-token: has a character that a header of HTTP cannot have"},
	} {
		var args []string
		if tt.args != "" {
			args = strings.Split(tt.args, " ")
		}
		if _, err := load(args, nil, tt.file); err == nil || !strings.HasPrefix(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s %.50s: %v", tt.args, tt.file, err)
		}
	}
}

// Load accepts the environment of llm-d's chart.
func TestChart(t *testing.T) {
	c := mustLoad(t, nil, []string{
		"ZMQ_ENDPOINT=tcp://*:5557", "ZMQ_TOPIC=kv@", "POOL_CONCURRENCY=8", "PYTHONHASHSEED=42", "BLOCK_SIZE=64",
		"MODEL_NAME=org/model", "HF_TOKEN=hf_secret", "HF_HOME=/tmp/hf", "PYTHONPATH=/app", "PATH=/bin",
	}, "")
	if c.Concurrency != 8 || c.BlockTokens != 64 || c.Model != "org/model" || c.HubToken != "hf_secret" || len(c.Endpoints) != 1 || !c.Endpoints[0].Listen {
		t.Errorf("%+v", c)
	}
}

// The files of llm-d's documents are accepted as they are.
func TestReferenceFiles(t *testing.T) {
	dir := os.Getenv("KVINDEX_TESTDATA")
	if dir == "" {
		t.Skip("KVINDEX_TESTDATA is not set: the documents of llm-d are not there; TestNames has their names")
	}
	text, err := os.ReadFile(filepath.Join(dir, "reference", "llm-d-architecture.zh.md"))
	if err != nil {
		t.Fatal(err)
	}
	var all, last []*Config // last: the files for development, production and high load
	for _, m := range regexp.MustCompile("(?s)```json\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		if json.Valid([]byte(m[1])) {
			all = append(all, mustLoad(t, nil, nil, m[1]))
			if strings.Contains(m[1], "prefixStoreConfig") {
				last = append(last, all[len(all)-1])
			}
		}
	}
	if len(all) < 7 || len(last) != 4 {
		t.Fatalf("%d files, %d of them whole", len(all), len(last))
	}
	last = last[1:]
	if c := last[0]; c.TokenizerWorkers != 2 || !c.Metrics || c.Memory != 0 || c.Redis != "" {
		t.Errorf("%+v", c)
	}
	if c := last[1]; c.TokenizerWorkers != 8 || c.Redis != "redis://redis:6379" || c.HubDir != "/data/tokenizers" {
		t.Errorf("%+v", c)
	}
	if c := last[2]; c.TokenizerWorkers != 16 || c.Memory != 8<<30 {
		t.Errorf("%+v", c)
	}
	for _, c := range last {
		if notes := strings.Join(c.Notes, "\n"); strings.Count(notes, "hashSeed") != 1 || strings.Count(notes, "minPrefixOverlapRatio") != 1 {
			t.Errorf("%s", notes)
		}
	}
}

// The page of the documentation has each name, with its default and its effect.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/kvindexd-config.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := func(s string) string {
		if s == "" {
			return " "
		}
		return " `" + s + "` "
	}
	var want []string
	for _, s := range settings {
		want = append(want, fmt.Sprintf("| `%s` |%s| %s |", s.name, shown(s.def), s.what))
	}
	for _, list := range [][]alias{flagNames, variables, keys} {
		for _, a := range list {
			own := a.name == a.to || a.name == variable(a.to) || a.name == key(a.to)
			if a.to != "" && own {
				continue
			}
			name := a.name
			if &list[0] == &flagNames[0] {
				name = "-" + name
			}
			if a.to == "" {
				want = append(want, fmt.Sprintf("| `%s` | | nothing: %s |", name, a.why))
			} else {
				want = append(want, fmt.Sprintf("| `%s` |%s| `%s` |", name, shown(settingOf(a.to).def), a.to))
			}
		}
	}
	var got []string
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "| `") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("not there: %s", w)
		}
	}
	for _, g := range got {
		if !slices.Contains(want, g) {
			t.Errorf("not of the code: %s", g)
		}
	}
}

func FuzzFile(f *testing.F) {
	f.Add([]byte(`{"kvBlockIndexConfig": {"inMemoryConfig": {"size": 1, "podCacheSize": 10}}, "pods": [{"id": "p"}], "models": {"a": "b"}}`))
	f.Add([]byte(`{"indexerConfig": {"kvCacheBackendConfigs": [{}], "tokenizersPoolConfig": {"hf": null}}, "zmqEndpoint": "tcp://*:1,a=ipc://x"}`))
	f.Add([]byte(`{"redis": "valkey://u:p@h", "ready-share": 1e999, "prefixStoreConfig": [[[]]]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := load(nil, nil, string(text))
		if err != nil || len(text) == 0 {
			return
		}
		// The accepted settings, as flags, make the same Config.
		var args []string
		for _, s := range c.Settings {
			if v := s.Value; s.Origin != "default" && s.Name != "config" && !strings.Contains(v, "hidden") && v != "" && !strings.HasPrefix(s.Origin, "default") {
				args = append(args, "-"+s.Name+"="+v)
			}
		}
		again, err := load(args, nil, "")
		if err != nil && !strings.Contains(err.Error(), "admin") {
			t.Fatalf("%q: %v", args, err)
		}
		if err == nil && (again.BlockTokens != c.BlockTokens || !reflect.DeepEqual(again.Pods, c.Pods) || !reflect.DeepEqual(again.Models, c.Models)) {
			t.Fatalf("%+v\n%+v", c, again)
		}
	})
}
