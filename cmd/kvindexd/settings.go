package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/cmd/kvindexd/internal/config"
	"github.com/kvindex/kvindex/cmd/kvindexd/internal/server"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/events/discovery"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/index/redisindex"
	"github.com/kvindex/kvindex/route"
	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/chat"
	"github.com/kvindex/kvindex/tokenize/hub"
)

// settingsOf converts a Config to the arguments of serve.
func settingsOf(c *config.Config, log *slog.Logger) (settings, error) {
	s := settings{
		listen: c.Listen, admin: c.Admin, token: c.AdminToken, cert: c.AdminCert, key: c.AdminKey, clientCA: c.AdminClientCA,
		server: server.Config{
			Model: c.Model, BlockTokens: c.BlockTokens, Deadline: c.Deadline, MaxBody: c.MaxBody, MaxBodies: c.MaxBodies,
			MaxRequests: c.MaxRequests, MaxReservations: c.MaxReservations, Lease: c.Lease, ReadyShare: c.ReadyShare, Policy: policyOf(c.Policy),
			PublicPage: c.PublicPage,
		},
		memory: c.Memory, redis: c.Redis, redisConfig: redisindex.Config{Prefix: c.RedisPrefix, Memory: index.MemoryConfig{Bytes: c.Memory}},
		pool: c.Concurrency, maxPods: c.MaxPods, quiet: !c.Metrics,
		snapshot: c.Snapshot, every: c.SnapshotInterval, bootstrap: c.Bootstrap, bootstrapToken: c.BootstrapToken, grace: c.Grace, log: log,
	}
	if c.PromptCache > 0 {
		s.options = append(s.options, kvindex.WithPromptCache(c.PromptCache))
	}
	s.find = find(c)
	var err error
	if s.models, err = kvindex.NewModels(kvindex.ModelsConfig{
		PoolConfig: tokenize.PoolConfig{Find: s.find, Encodings: c.TokenizerWorkers, Memory: c.TokenizerMemory},
		Options:    func(string) chat.Options { return chat.Options{Engine: c.Engine} },
	}); err != nil {
		return s, err
	}
	s.preload = slices.Sorted(maps.Keys(c.Models))
	for _, e := range c.Endpoints {
		sub := subscription{SubscriberConfig: events.SubscriberConfig{Endpoint: e.Address, Bind: e.Listen, Topic: c.Topic}, named: e.Named}
		if e.Listen {
			sub.MaxConns = max(c.MaxPods, 256)
			if c.ReplayPort > 0 {
				sub.ReplayOf = replayAt(c.ReplayPort)
			}
		} else {
			sub.Pod, sub.Model, sub.Replay = e.Pod, c.Model, e.Replay
		}
		s.subscribers = append(s.subscribers, sub)
	}
	if len(c.Pods) > 0 {
		s.sources = append(s.sources, fixedPods(c.Pods))
	}
	if c.PodsFile != "" {
		s.sources = append(s.sources, discovery.File(c.PodsFile))
	}
	pod := events.Pod{Model: c.Model, Port: c.EnginePort, ReplayPort: c.ReplayPort, TiersPort: c.TiersPort, Ranks: c.Ranks}
	if c.DNS != "" {
		of := pod
		if c.DNSSRV { // the records have the ports
			of.Port = 0
		}
		source, err := discovery.DNS(discovery.DNSConfig{Name: c.DNS, SRV: c.DNSSRV, Pod: of})
		if err != nil {
			return s, err
		}
		s.sources = append(s.sources, source)
	}
	if c.Kubernetes != "" {
		source, err := kubernetes(c, pod)
		if err != nil {
			return s, err
		}
		s.sources = append(s.sources, source)
	}
	return s, nil
}

// policyOf returns the policy of a name in config.Policies.
func policyOf(name string) route.Policy {
	switch name {
	case "least-requests":
		return route.LeastRequests
	case "least-tokens":
		return route.LeastTokens
	case "random":
		return route.Random(rand.Uint64())
	case "round-robin":
		return route.RoundRobin()
	}
	return route.Default
}

// fixedPods returns a source of pods that do not change.
func fixedPods(pods []events.Pod) events.PodSource {
	return events.PodSource{Name: "settings", Run: func(ctx context.Context, set func([]events.Pod) error) error {
		if err := set(pods); err != nil {
			events.Report(ctx, err)
		}
		<-ctx.Done()
		return ctx.Err()
	}}
}

// replayAt returns a function that returns the replay endpoint of an engine that has connected:
// the port at the address of its peer.
func replayAt(port int) func(pod, peer string) string {
	return func(_, peer string) string {
		host, _, err := net.SplitHostPort(strings.TrimPrefix(peer, "tcp://"))
		if err != nil { // a path of this machine
			return ""
		}
		return "tcp://" + net.JoinHostPort(host, fmt.Sprint(port))
	}
}

// find returns the function that finds the files of a model: at the place in the settings, in
// the folder of models, or in the local cache. Only models of the settings are downloaded.
func find(c *config.Config) func(ctx context.Context, name string) (string, error) {
	client := &hub.Client{
		Repo: func(name string) (repo, revision string, ok bool) {
			repo, ok = c.Models[name]
			repo, revision, _ = strings.Cut(repo, "@")
			return repo, revision, ok
		},
		Dir: c.HubDir, Endpoint: c.HubEndpoint, Token: c.HubToken, Offline: !c.Download,
	}
	return func(ctx context.Context, name string) (string, error) {
		at, served := c.Models[name]
		switch {
		case served && isPath(at):
			return at, nil
		case served && at != name: // the settings name its repository
			return client.Find(ctx, name)
		}
		if c.ModelsDir != "" && filepath.IsLocal(name) {
			dir := filepath.Join(c.ModelsDir, name)
			if _, err := os.Stat(dir); err == nil {
				return dir, nil
			}
		}
		if served {
			return client.Find(ctx, name)
		}
		if name == "" || strings.Count(name, "/") > 1 {
			return "", fmt.Errorf("model %.100q: %w", name, fs.ErrNotExist)
		}
		return tokenize.Hub{Dir: c.HubDir}.Find(ctx, name)
	}
}

// isPath reports whether the place of a model is a path, and not a repository of the hub.
func isPath(at string) bool {
	if filepath.IsAbs(at) || strings.HasPrefix(at, "./") || strings.HasPrefix(at, "../") {
		return true
	}
	_, err := os.Stat(at)
	return err == nil
}

// loadSettings loads the settings, and logs their notes.
func loadSettings(args []string, stderr io.Writer) (settings, error) {
	c, err := config.Load(args, os.Environ(), os.ReadFile)
	if err != nil {
		return settings{}, err
	}
	log := logger(stderr, c.Log)
	for _, note := range c.Notes {
		log.Warn("settings", "note", note)
	}
	return settingsOf(c, log)
}
