package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/vllmversion"
)

// ownPrefix is the prefix of kvindexd's own environment variables.
const ownPrefix = "KVINDEXD_"

// policies are the names of the policies of package route for /v1/select.
var policies = []string{"default", "least-requests", "least-tokens", "random", "round-robin"}

// A setting has one name in three forms: the flag -block-size, the variable
// KVINDEXD_BLOCK_SIZE, and the key blockSize of a file.
type setting struct {
	name, def string
	what      string                      // its line in the documentation
	set       func(*Config, string) error // from the text of a flag
	hide      func(string) string         // masks a secret; nil: the setting is none
	boolean   bool                        // the flag needs no value
	nested    bool                        // its value in a file may be an object or a list
}

// An alias is a name of a setting, or a name that is accepted and has no effect.
type alias struct {
	name    string
	to      string                       // the setting; "": none
	convert func(string) (string, error) // to the text of the setting, "" to leave it unset; nil: unchanged
	why     string                       // reason why the name has no effect
	check   func(string) error           // checks the value of a name without effect
	nested  bool
}

// settings has every setting. Defaults are written as in a flag.
var settings = []setting{
	{name: "config", what: "a JSON file with these settings, or of llm-d", set: func(*Config, string) error { return nil }},
	text("listen", ":8080", "the public address", func(c *Config) *string { return &c.Listen }, address),
	text("admin", "127.0.0.1:8081", "the admin address, or `none`", func(c *Config) *string { return &c.Admin }, address),
	secret(text("admin-token", "", "what requests to the admin address must bear", func(c *Config) *string { return &c.AdminToken }, header)),
	text("admin-cert", "", "file of the certificate of the admin address", func(c *Config) *string { return &c.AdminCert }, nil),
	text("admin-key", "", "file of its key", func(c *Config) *string { return &c.AdminKey }, nil),
	text("admin-client-ca", "", "file of the authorities of client certificates, which it then demands", func(c *Config) *string { return &c.AdminClientCA }, nil),
	duration("grace", "5s", "from SIGTERM until no more connections are taken", bounds[time.Duration]{0, 10 * time.Second}, func(c *Config) *time.Duration { return &c.Grace }),
	duration("deadline", "10s", "the longest time of a score", bounds[time.Duration]{time.Millisecond, time.Minute}, func(c *Config) *time.Duration { return &c.Deadline }),
	size("max-body", "16MiB", "the largest body of a request", bounds[int64]{1 << 10, 1 << 30}, func(c *Config) *int64 { return &c.MaxBody }),
	size("max-bodies", "256MiB", "all bodies at a time", bounds[int64]{1 << 10, 1 << 40}, func(c *Config) *int64 { return &c.MaxBodies }),
	number("max-requests", "256", "requests at a time; more get 503", bounds[int]{1, 1 << 20}, func(c *Config) *int { return &c.MaxRequests }),
	number("max-reservations", "65536", "reservations of `/v1/select` at a time", bounds[int]{1, 1 << 24}, func(c *Config) *int { return &c.MaxReservations }),
	duration("lease", "10m", "the longest time of a reservation that nobody ends", bounds[time.Duration]{time.Second, 24 * time.Hour}, func(c *Config) *time.Duration { return &c.Lease }),
	{name: "ready-share", def: "0", what: "share of ranks, one at least, that must be live for `/readyz`", set: func(c *Config, s string) (err error) {
		c.ReadyShare, err = fraction(s)
		return err
	}},
	text("policy", "default", "how `/v1/select` chooses: `default`, `least-requests`, `least-tokens`, `random` or `round-robin`", func(c *Config) *string { return &c.Policy }, oneOf(policies...)),
	number("block-size", "16", "tokens of a block in the scores of the reference endpoints", bounds[int]{1, 1 << 16}, func(c *Config) *int { return &c.BlockTokens }),
	size("memory", "", "bound of the index; not set: 4 GiB", bounds[int64]{1 << 20, 1 << 50}, func(c *Config) *int64 { return &c.Memory }),
	size("prompt-cache", "", "bound of the cache of tokenized prompts; not set: 64 MiB", bounds[int64]{1 << 20, 1 << 40}, func(c *Config) *int64 { return &c.PromptCache }),
	text("model", "", "the model of requests and of pods that name none", func(c *Config) *string { return &c.Model }, nil),
	{name: "models", def: "", what: "where models have their files: `NAME=WHERE,...`, or an object", set: setModels, nested: true},
	text("models-dir", "", "folder with a folder for each model, by its name", func(c *Config) *string { return &c.ModelsDir }, nil),
	text("hub-dir", "", "cache of the HuggingFace hub; not set: that of huggingface_hub", func(c *Config) *string { return &c.HubDir }, nil),
	boolean("download", "true", "models that are not in the cache are downloaded", func(c *Config) *bool { return &c.Download }),
	text("hub-endpoint", "", "the hub; not set: https://huggingface.co", func(c *Config) *string { return &c.HubEndpoint }, web),
	secret(text("hub-token", "", "token of the hub", func(c *Config) *string { return &c.HubToken }, header)),
	text("engine", "", "version of vLLM that serves the models, such as 0.31", func(c *Config) *string { return &c.Engine }, isVersion),
	number("tokenizer-workers", "0", "texts that are tokenized at a time; 0: one for each CPU", bounds[int]{0, 1 << 12}, func(c *Config) *int { return &c.TokenizerWorkers }),
	size("tokenizer-memory", "1GiB", "bound of the tokenizers that are loaded", bounds[int64]{1 << 20, 1 << 40}, func(c *Config) *int64 { return &c.TokenizerMemory }),
	{name: "zmq-endpoint", def: "tcp://*:5557", what: "where engines connect (`*`, `0.0.0.0`, `[::]`), or a host to dial; a list with commas; `none`", set: setEndpoints},
	text("zmq-topic", "kv@", "beginning of the topics there; `none` takes all", func(c *Config) *string { return &c.Topic }, nil),
	number("replay-port", "0", "where engines replay; 0: nowhere", bounds[int]{0, math.MaxUint16}, func(c *Config) *int { return &c.ReplayPort }),
	number("concurrency", "4", "pods whose events are applied at a time", bounds[int]{1, 1 << 12}, func(c *Config) *int { return &c.Concurrency }),
	number("max-pods", "1000", "pods, and models, that may connect", bounds[int]{1, 1 << 14}, func(c *Config) *int { return &c.MaxPods }),
	{name: "pods", def: "", what: "pods to dial: a list as in a file of pods, in JSON", set: setPods, nested: true},
	text("pods-file", "", "file with such a list, which is read again when it changes", func(c *Config) *string { return &c.PodsFile }, nil),
	text("dns", "", "name whose addresses are the pods", func(c *Config) *string { return &c.DNS }, nil),
	boolean("dns-srv", "false", "the name has SRV records", func(c *Config) *bool { return &c.DNSSRV }),
	number("engine-port", "5557", "where pods of DNS and Kubernetes publish", bounds[int]{1, math.MaxUint16}, func(c *Config) *int { return &c.EnginePort }),
	number("tiers-port", "0", "where the offload daemons of these pods publish; 0: nowhere", bounds[int]{0, math.MaxUint16}, func(c *Config) *int { return &c.TiersPort }),
	number("ranks", "1", "data-parallel ranks of each of them", bounds[int]{1, 1024}, func(c *Config) *int { return &c.Ranks }),
	text("kubernetes", "none", "pods with the labels of `llm-d` or `aibrix` are dialled", func(c *Config) *string { return &c.Kubernetes }, oneOf("llm-d", "aibrix")),
	text("namespace", "", "namespace of these pods; not set: all", func(c *Config) *string { return &c.Namespace }, nil),
	text("selector", "", "label selector of these pods; not set: that of llm-d or AIBrix", func(c *Config) *string { return &c.Selector }, nil),
	{name: "redis", def: "", what: "URL of an index that several services write", set: setRedis, hide: hidePassword},
	text("redis-prefix", "kvindex:", "beginning of the keys in Redis", func(c *Config) *string { return &c.RedisPrefix }, nil),
	text("snapshot", "", "file from which a start goes on", func(c *Config) *string { return &c.Snapshot }, nil),
	duration("snapshot-interval", "1m", "time between two snapshots; 0: only at the end", bounds[time.Duration]{0, 24 * time.Hour}, func(c *Config) *time.Duration { return &c.SnapshotInterval }),
	{name: "bootstrap", def: "", what: "URL of another service's `/v1/snapshot`", hide: hidePassword, set: func(c *Config, s string) error {
		c.Bootstrap = s
		return web(s)
	}},
	secret(text("bootstrap-token", "", "token for its admin address", func(c *Config) *string { return &c.BootstrapToken }, header)),
	{name: "log-level", def: "info", what: "`debug`, `info`, `warn` or `error`", set: func(c *Config, s string) error {
		if err := oneOf("debug", "info", "warn", "error")(strings.ToLower(s)); err != nil {
			return err
		}
		return c.Log.UnmarshalText([]byte(s))
	}},
	boolean("public-page", "false", "the public address has the page, too", func(c *Config) *bool { return &c.PublicPage }),
	boolean("metrics", "true", "`/metrics` is served", func(c *Config) *bool { return &c.Metrics }),
}

func settingOf(name string) *setting {
	for i := range settings {
		if settings[i].name == name {
			return &settings[i]
		}
	}
	return nil
}

// variable and key convert a setting's name to its environment variable and its key in a file.
func variable(name string) string {
	return ownPrefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

func key(name string) string {
	parts := strings.Split(name, "-")
	for i := 1; i < len(parts); i++ {
		parts[i] = strings.ToUpper(parts[i][:1]) + parts[i][1:]
	}
	return strings.Join(parts, "")
}

// Forms of settings.

func text(name, def, what string, at func(*Config) *string, check func(string) error) setting {
	return setting{name: name, def: def, what: what, set: func(c *Config, s string) error {
		if s == "none" {
			s = ""
		}
		*at(c) = s
		if s == "" || check == nil {
			return nil
		}
		return check(s)
	}}
}

func secret(s setting) setting {
	s.hide = func(text string) string {
		if text == "" {
			return ""
		}
		return "(hidden)"
	}
	return s
}

func boolean(name, def, what string, at func(*Config) *bool) setting {
	return setting{name: name, def: def, what: what, boolean: true, set: func(c *Config, s string) (err error) {
		*at(c), err = truth(s)
		return err
	}}
}

// bounds are the least and the most value of a setting.
type bounds[T int | int64 | time.Duration] struct{ least, most T }

func number(name, def, what string, in bounds[int], at func(*Config) *int) setting {
	return setting{name: name, def: def, what: what, set: func(c *Config, s string) (err error) {
		*at(c), err = whole(s, in.least, in.most)
		return err
	}}
}

func duration(name, def, what string, in bounds[time.Duration], at func(*Config) *time.Duration) setting {
	return setting{name: name, def: def, what: what, set: func(c *Config, s string) error {
		d, err := time.ParseDuration(s)
		if err != nil {
			return errors.New("must be a time such as 30s or 1m30s")
		}
		if d < in.least || d > in.most {
			return fmt.Errorf("must be %v to %v", in.least, in.most)
		}
		*at(c) = d
		return nil
	}}
}

func size(name, def, what string, in bounds[int64], at func(*Config) *int64) setting {
	return setting{name: name, def: def, what: what, set: func(c *Config, s string) error {
		if s == "" {
			return nil
		}
		n, err := bytesOf(s)
		if err == nil && (n < in.least || n > in.most) {
			err = fmt.Errorf("must be %d to %d bytes", in.least, in.most)
		}
		*at(c) = n
		return err
	}}
}

// Values.

func truth(s string) (bool, error) {
	b, err := strconv.ParseBool(s)
	if err != nil {
		return false, errors.New("must be true or false")
	}
	return b, nil
}

func whole(s string, least, most int) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("must be a whole number, %d to %d", least, most)
	}
	return n, nil
}

func fraction(s string) (float64, error) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(f >= 0 && f <= 1) {
		return 0, errors.New("must be a number, 0 to 1")
	}
	return f, nil
}

// units are those of dustin/go-humanize: llm-d reads costAwareMemoryConfig.size with it.
var units = []struct {
	name  string
	bytes float64
}{
	{"kib", 1 << 10}, {"mib", 1 << 20}, {"gib", 1 << 30}, {"tib", 1 << 40},
	{"ki", 1 << 10}, {"mi", 1 << 20}, {"gi", 1 << 30}, {"ti", 1 << 40},
	{"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"tb", 1e12},
	{"k", 1e3}, {"m", 1e6}, {"g", 1e9}, {"t", 1e12}, {"b", 1},
}

func bytesOf(s string) (int64, error) {
	number, unit := strings.ToLower(s), 1.0
	for _, u := range units {
		if rest, found := strings.CutSuffix(number, u.name); found {
			number, unit = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	f, err := strconv.ParseFloat(number, 64)
	if f *= unit; err != nil || !(f >= 0 && f < 1<<62) {
		return 0, errors.New("must be a number of bytes, such as 500MiB or 8GiB")
	}
	return int64(f), nil
}

func oneOf(names ...string) func(string) error {
	return func(s string) error {
		if slices.Contains(names, s) {
			return nil
		}
		return fmt.Errorf("must be one of %s", strings.Join(names, ", "))
	}
}

func address(s string) error {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return errors.New("must be host:port or :port")
	}
	_, err = whole(port, 0, math.MaxUint16)
	return err
}

func web(s string) error {
	if s == "" {
		return nil
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return errors.New("must be a URL that begins with http:// or https://")
	}
	return nil
}

func isVersion(s string) error {
	_, err := vllmversion.Parse(s)
	return err
}

// header checks a secret that goes into a header of HTTP.
func header(s string) error {
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("has a character that a header of HTTP cannot have")
	}
	return nil
}

func setModels(c *Config, s string) error {
	if s == "" {
		return nil
	}
	c.Models = make(map[string]string)
	if s[0] == '{' {
		if err := json.Unmarshal([]byte(s), &c.Models); err != nil {
			return errors.New("must be an object of texts")
		}
	} else {
		for _, part := range strings.Split(s, ",") {
			name, where, _ := strings.Cut(part, "=")
			if _, twice := c.Models[name]; twice {
				return fmt.Errorf("%.100q is there twice", name)
			}
			c.Models[name] = where
		}
	}
	for name, where := range c.Models {
		if name == "" || where == "" {
			return errors.New("must be NAME=WHERE, with commas between them")
		}
	}
	return nil
}

func setPods(c *Config, s string) error {
	if s == "" {
		return nil
	}
	d := json.NewDecoder(strings.NewReader(s))
	d.DisallowUnknownFields()
	if err := d.Decode(&c.Pods); err != nil {
		return fmt.Errorf("must be a list of pods: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more behind the list")
	}
	names := make(map[string]bool)
	for i, p := range c.Pods {
		switch {
		case p.ID == "" || p.Model == "" || p.Host == "" && p.Engine != events.EngineNone:
			return fmt.Errorf("[%d]: id, model and host are needed", i)
		case p.Port < 0 || p.Port > math.MaxUint16 || p.ReplayPort < 0 || p.ReplayPort > math.MaxUint16 || p.TiersPort < 0 || p.TiersPort > math.MaxUint16 || p.Ranks < 0 || p.Ranks > 1024:
			return fmt.Errorf("[%d]: a port is out of 0 to 65535, or ranks out of 0 to 1024", i)
		case names[p.ID]:
			return fmt.Errorf("[%d]: the id %.100q is there twice", i, p.ID)
		}
		names[p.ID] = true
	}
	return nil
}

// setEndpoints reads a list of endpoints. The hosts *, 0.0.0.0 and [::] mean to listen, as in
// llm-d's deployment; any other host is dialled.
func setEndpoints(c *Config, s string) error {
	if s == "none" {
		return nil
	}
	for _, part := range strings.Split(s, ",") {
		e := Endpoint{Address: strings.TrimSpace(part)}
		if name, at, named := strings.Cut(e.Address, "="); named {
			e.Pod, e.Address = name, at
		}
		switch at, tcp := strings.CutPrefix(e.Address, "tcp://"); {
		case tcp:
			host, port, err := net.SplitHostPort(at)
			least := 1
			if e.Listen = host == "*" || host == "0.0.0.0" || host == "::"; e.Listen {
				least = 0
			}
			if err != nil || host == "" {
				return errors.New("must be tcp://HOST:PORT; an IPv6 address is in brackets")
			}
			if _, err := whole(port, least, math.MaxUint16); err != nil {
				return fmt.Errorf("port: %w", err)
			}
		case strings.HasPrefix(e.Address, "ipc://") && len(e.Address) > len("ipc://"):
		default:
			return errors.New("must be tcp://HOST:PORT or ipc://PATH")
		}
		if e.Listen && e.Pod != "" {
			return errors.New("engines that connect have names of their own")
		}
		c.Endpoints = append(c.Endpoints, e)
	}
	return nil
}

// setRedis reads a URL of Redis or Valkey, or host:port, as llm-d does.
func setRedis(c *Config, s string) error {
	if s == "" {
		return nil
	}
	if !strings.Contains(s, "://") {
		s = "redis://" + s
	}
	scheme, rest, _ := strings.Cut(s, "://")
	switch scheme {
	case "redis", "rediss", "unix":
	case "valkey":
		scheme = "redis"
	case "valkeys":
		scheme = "rediss"
	default:
		return errors.New("must be a URL that begins with redis://, rediss://, valkey:// or valkeys://")
	}
	c.Redis = scheme + "://" + rest
	if u, err := url.Parse(c.Redis); err != nil || u.Host == "" && u.Path == "" || u.Fragment != "" {
		return errors.New("must be a URL with a host, and %23 in place of # in a password") // err would show the password
	}
	return nil
}

// hidePassword masks the user information, the query and the fragment of a URL.
func hidePassword(s string) string {
	if s == "" {
		return ""
	}
	if !strings.Contains(s, "://") {
		s = "redis://" + s
	}
	u, err := url.Parse(s)
	if err != nil {
		return "(hidden)"
	}
	secret := u.User != nil || u.RawQuery != "" || u.Fragment != ""
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	if secret {
		return u.String() + " (the rest is hidden)"
	}
	return u.String()
}

// level converts klog's -v=N: llm-d's DEBUG is 4 and its TRACE is 5.
func level(s string) (string, error) {
	n, err := whole(s, 0, 10)
	if err != nil {
		return "", err
	}
	if n >= 4 {
		return "debug", nil
	}
	return "info", nil
}

func port(s string) (string, error) {
	n, err := whole(s, 1, math.MaxUint16)
	return ":" + strconv.Itoa(n), err
}

// discover returns a conversion of a switch to the value system of the setting kubernetes.
func discover(system string) func(string) (string, error) {
	return func(s string) (string, error) {
		on, err := truth(s)
		if err != nil || !on {
			return "", err
		}
		return system, nil
	}
}

// Checks of values without effect.

func anything(string) error { return nil }

func count(s string) error {
	_, err := whole(s, 0, math.MaxInt)
	return err
}

func share(s string) error {
	_, err := fraction(s)
	return err
}

func yes(s string) error {
	_, err := truth(s)
	return err
}

// interval accepts a duration, or nanoseconds: the form of a time.Duration in JSON.
func interval(s string) error {
	if _, err := strconv.ParseInt(s, 10, 64); err == nil {
		return nil
	}
	if _, err := time.ParseDuration(s); err != nil {
		return errors.New("must be a time such as 30s")
	}
	return nil
}

// weights checks llm-d's list of tiers.
func weights(s string) error {
	var list []struct {
		Name   string  `json:"name"`
		Weight float64 `json:"weight"`
	}
	d := json.NewDecoder(bytes.NewReader([]byte(s)))
	d.DisallowUnknownFields()
	if err := d.Decode(&list); err != nil {
		return errors.New("must be a list of name and weight")
	}
	return nil
}
