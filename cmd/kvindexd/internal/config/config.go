// Package config reads the settings of kvindexd: flags over environment over file over
// defaults. It accepts the files and variables of llm-d's online service and of AIBrix.
package config

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/kvindex/kvindex/events"
)

// Config has the effective settings. Load has checked the range of every one. Sizes are in
// bytes.
type Config struct {
	// Listen is the public address. Admin is the admin address, "" for none: a loopback
	// address, or one that AdminToken or AdminClientCA guards.
	Listen, Admin string
	// AdminToken is the bearer token of requests to Admin. "": none.
	AdminToken string
	// AdminCert and AdminKey are the files of the TLS certificate and key of Admin, both or
	// neither. AdminClientCA is the file of the authorities that sign client certificates; it
	// needs AdminCert.
	AdminCert, AdminKey, AdminClientCA string

	Grace           time.Duration // from SIGTERM until the listeners close: 10 s at most
	Deadline        time.Duration // of a score
	MaxBody         int64
	MaxBodies       int64 // of all bodies at a time
	MaxRequests     int   // at a time
	MaxReservations int
	Lease           time.Duration
	ReadyShare      float64 // of the ranks that must be live before /readyz, 0 to 1
	Policy          string  // one of policies

	// BlockTokens is the number of tokens of a block in scores of the reference endpoints.
	BlockTokens int
	// Memory bounds the index in memory, or a writer's part of an index on Redis. PromptCache
	// bounds the cache of tokenized prompts. 0: the library's default.
	Memory, PromptCache int64

	// Model is the model of requests and of pods that name none. "": none.
	Model string
	// Models has, by the name of a model, the path of its folder or of its tokenizer.json, or
	// the repository of its files, "org/name" or "org/name@revision". Model has an entry, too,
	// if its name is such a repository or a path: one that begins with /, ./ or ../.
	Models map[string]string
	// ModelsDir has folders of models, by the name of the model. "": none.
	ModelsDir string
	// HubDir is the folder of cached models; "" is that of huggingface_hub. Download allows
	// requests to HubEndpoint, "" for the hub's own, with HubToken.
	HubDir      string
	Download    bool
	HubEndpoint string
	HubToken    string
	// Engine is the version of vLLM that serves the models, as in chat.Options. "": vLLM's main
	// branch.
	Engine string
	// TokenizerWorkers is the number of texts that are encoded at a time. 0: one for each CPU.
	// TokenizerMemory bounds loaded tokenizers.
	TokenizerWorkers int
	TokenizerMemory  int64

	// Endpoints are dialled, or listened at.
	Endpoints []Endpoint
	// Topic is the prefix of the topics to subscribe to at Endpoints. "": all topics.
	Topic string
	// ReplayPort is the port of the engines' replay sockets. 0: engines do not replay, and after
	// a start of the service the pods are partial.
	ReplayPort int
	// EnginePort is the port where pods of DNS and Kubernetes publish. TiersPort is that of the
	// offload daemons beside them, 0 for none. Ranks is the number of ranks of each pod.
	EnginePort, TiersPort, Ranks int
	// Concurrency is the number of pods whose events are applied at a time.
	Concurrency int
	// MaxPods bounds the pods that connect to the service, and their models.
	MaxPods int
	// Pods do not change. PodsFile is the path of a list of pods that may change. "": none.
	Pods     []events.Pod
	PodsFile string
	// DNS is the name whose records are the pods' addresses: SRV records if DNSSRV is set. "":
	// none.
	DNS    string
	DNSSRV bool
	// Kubernetes is "llm-d" or "aibrix", the system whose labels the pods have, or "" for no pods
	// of Kubernetes. A Selector that is not "" replaces the selector of llm-d or AIBrix.
	Kubernetes, Namespace, Selector string

	// Redis is the URL of a shared index, redis:// or rediss://. "": the index is in memory.
	Redis string
	// RedisPrefix begins the keys in Redis.
	RedisPrefix string

	Snapshot         string        // file; "": none
	SnapshotInterval time.Duration // 0: only at the end
	Bootstrap        string        // URL of another service's snapshot; "": none
	BootstrapToken   string        // for its admin address

	Log     slog.Level
	Metrics bool // /metrics is served

	PublicPage bool // the public address has the page, too

	// Notes are lines for the log at the start, without duplicates: names that are accepted and
	// have no effect, and consequences of the settings.
	Notes []string
	// Settings has all settings in the order of the documentation.
	Settings []Setting
}

// An Endpoint is a socket of engines' events: the service dials it, or engines connect to it.
type Endpoint struct {
	// Address is tcp://host:port or ipc://path.
	Address string
	// Listen: engines connect to Address, and their topics name pod and model. Other topics
	// are refused.
	Listen bool
	// Pod is the name of the pod that is dialled, and Config.Model its model. Unless Named is
	// set, the names in a topic of the form kv@POD@MODEL replace both.
	Pod   string
	Named bool
	// Replay is the replay socket of the pod that is dialled. "": none. An engine that connects
	// replays at Config.ReplayPort of its address.
	Replay string
}

// A Setting is an effective value and its origin.
type Setting struct {
	// Name is the flag without its dash.
	Name string
	// Value has the form of a flag's value. Secrets are hidden.
	Value string
	// Origin is "default", "flag -NAME", "environment NAME" or "file: PATH".
	Origin string
}

// Print writes a line for each setting, and the notes.
func (c *Config) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range c.Settings {
		text := s.Value
		if text == "" || strings.ContainsFunc(text, unicode.IsControl) {
			text = strconv.Quote(text)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", s.Name, text, s.Origin)
	}
	err := t.Flush()
	for _, n := range c.Notes {
		_, e := fmt.Fprintf(w, "note: %s\n", n)
		err = errors.Join(err, e)
	}
	return err
}

// check refuses combinations of settings.
func (c *Config) check(l *loader) {
	if c.Listen == "" {
		l.bad("listen", "must be host:port or :port")
	}
	if c.Policy == "" {
		l.bad("policy", "must be one of %s", strings.Join(policies, ", "))
	}
	host, _, err := net.SplitHostPort(c.Admin)
	ip := net.ParseIP(host)
	if c.Admin != "" && err == nil && host != "localhost" && (ip == nil || !ip.IsLoopback()) && c.AdminToken == "" && c.AdminClientCA == "" {
		l.bad("admin", "%s is no loopback address: set admin-token or admin-client-ca, or listen at 127.0.0.1", c.Admin)
	}
	if (c.AdminCert == "") != (c.AdminKey == "") {
		l.bad("admin-cert", "admin-cert and admin-key belong together: one is missing")
	}
	if c.AdminClientCA != "" && c.AdminCert == "" {
		l.bad("admin-client-ca", "certificates of clients need TLS: set admin-cert and admin-key")
	}
	if c.MaxBody > c.MaxBodies {
		l.bad("max-body", "%d bytes are more than max-bodies, %d", c.MaxBody, c.MaxBodies)
	}
	if c.Redis != "" && c.Bootstrap != "" {
		l.bad("bootstrap", "an index in Redis needs no bootstrap: remove redis or bootstrap")
	}
	if c.Model == "" {
		if c.DNS != "" {
			l.bad("dns", "records name no model: set model")
		}
		if c.Kubernetes == "llm-d" {
			l.bad("kubernetes", "labels of llm-d name no model: set model")
		}
	}
	if _, has := c.Models[c.Model]; !has && (strings.Count(c.Model, "/") == 1 || isPath(c.Model)) {
		if c.Models == nil {
			c.Models = make(map[string]string)
		}
		c.Models[c.Model] = c.Model
	}
	c.endpoints(l)
	if c.ReadyShare > 0 && len(c.Endpoints) > 0 {
		l.note("ready-share: the engines of zmq-endpoint do not count, and without other pods /readyz fails")
	}
	if c.Redis != "" && c.Snapshot != "" {
		l.note("snapshot: not used, because the index is in Redis")
	}
	for _, u := range []struct {
		unused bool
		names  []string
		why    string
	}{
		{c.DNS == "" && c.Kubernetes == "", []string{"engine-port", "tiers-port", "ranks"}, "neither dns nor kubernetes is set"},
		{c.DNS != "" && c.DNSSRV && c.Kubernetes == "", []string{"engine-port"}, "the SRV records have the ports"},
		{c.DNS == "", []string{"dns-srv"}, "dns is not set"},
		{c.Kubernetes == "", []string{"namespace", "selector"}, "kubernetes is not set"},
	} {
		for _, name := range u.names {
			if u.unused && l.explicit(name) != "" {
				l.note("%s: not used, because %s", name, u.why)
			}
		}
	}
}

func isPath(s string) bool {
	return strings.HasPrefix(s, "/") || strings.HasPrefix(s, "./") || strings.HasPrefix(s, "../")
}

// endpoints completes c.Endpoints from other settings.
func (c *Config) endpoints(l *loader) {
	if l.explicit("zmq-endpoint") == "" && (len(c.Pods) > 0 || c.PodsFile != "" || c.DNS != "" || c.Kubernetes != "") {
		c.Endpoints = nil // the default is for those who name no pods
		l.origins["zmq-endpoint"] = value{text: "none", origin: "default: other settings name pods"}
	}
	names := make(map[string]bool)
	for i := range c.Endpoints {
		e := &c.Endpoints[i]
		if e.Listen {
			l.note("zmq-endpoint: whoever reaches %s can name pods and blocks; at most %d pods and models are heard", e.Address, c.MaxPods)
			if c.ReplayPort == 0 {
				l.note("zmq-endpoint: engines that connect to %s are partial after a start, theirs or ours: set replay-port to where they replay", e.Address)
			}
			continue
		}
		host := strings.TrimPrefix(e.Address, "ipc://")
		if at, found := strings.CutPrefix(e.Address, "tcp://"); found {
			host, _, _ = net.SplitHostPort(at)
			if c.ReplayPort != 0 {
				e.Replay = fmt.Sprintf("tcp://%s", net.JoinHostPort(host, fmt.Sprint(c.ReplayPort)))
			}
		}
		if e.Named = e.Pod != ""; !e.Named {
			e.Pod = host
		}
		if names[e.Pod] {
			l.bad("zmq-endpoint", "two pods are named %s: write NAME=%s", e.Pod, e.Address)
		}
		names[e.Pod] = true
		if e.Named && c.Model == "" {
			l.bad("zmq-endpoint", "the model of %s is not known: set model", e.Pod)
		}
		l.note("zmq-endpoint: %s is dialled: of several engines behind this name one is heard, so use dns or kubernetes for them", e.Address)
	}
}
