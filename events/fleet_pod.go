// UID: a new pod with the same ID and address looks like the old one, and between two
// connections the restart does not show if the engine sends exactly the number that is due. So
// a source that has a UID gives it, and another UID is another engine.

package events

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"
)

// defaultPort is a zero Pod.Port.
const defaultPort = 5557

// EngineNone is the Pod.Engine of a pod whose events do not come by the Fleet: the engine
// publishes none, it connects to a Subscriber that listens, or the host has a transport of its
// own. The Fleet only forgets the pod when it is removed.
const EngineNone = "none"

const engineZMQ = "zmq"

// Bounds on the fields of a Pod. maxName is that of an Indexer.
const (
	maxRanks = 1024
	maxName  = 1024
	maxZone  = 64 // bytes of an IPv6 zone, the name of a network interface
)

// A Pod describes a running engine for a Fleet. ID, Model and, but for EngineNone,
// Host are required.
type Pod struct {
	// ID is the name of the pod, in the sink and in its answers.
	ID string `json:"id"`
	// Model is the model's name, as clients name it in requests.
	Model string `json:"model"`
	// Host is an IP address or a host name, without a port. A host name is resolved at
	// every attempt to connect. With EngineNone it is for the host program alone, and may be
	// empty.
	Host string `json:"host,omitempty"`
	// Port is where rank 0 publishes, and rank r at Port+r. 0 is 5557,
	// where vLLM and SGLang publish by default.
	Port int `json:"port,omitempty"`
	// ReplayPort is the replay socket of rank 0, and that of rank r is at ReplayPort+r. 0:
	// there is none.
	ReplayPort int `json:"replayPort,omitempty"`
	// TiersPort is where an offload daemon beside the engine publishes, at Host, whatever the
	// topic: see SubscriberConfig.Tiers. There are no replays of it. 0: there is no daemon.
	TiersPort int `json:"tiersPort,omitempty"`
	// Ranks is the number of data-parallel ranks that have a port. 0 is 1.
	Ranks int `json:"ranks,omitempty"`
	// Topic is the beginning of the topics of the pod's messages. "" accepts all.
	Topic string `json:"topic,omitempty"`
	// Engine is how the pod's events come: "zmq", or "", if the Fleet connects to each rank,
	// and EngineNone. A Fleet shows "zmq" as "".
	Engine string `json:"engine,omitempty"`
	// UID distinguishes pods that have the same ID one after the other, such as the uid of a
	// Kubernetes pod. Another UID is another pod: the blocks of the one before are forgotten.
	UID string `json:"uid,omitempty"`
	// Labels are for the host. A Fleet does not read them.
	Labels map[string]string `json:"labels,omitempty"`
}

// A PodSource lists pods for Fleet.Run. The packages events/discovery and events/k8s have
// sources.
type PodSource struct {
	// Name identifies the source.
	Name string
	// Run calls set with all pods of the source at each change, until ctx ends. Before the
	// first call of set the source counts as not ready, which differs from no pods. The error
	// of set names each refused pod; the others are applied. If Run returns before ctx ends,
	// FleetConfig.OnError gets its error, the pods stay, and Run is called again after a
	// while.
	Run func(ctx context.Context, set func([]Pod) error) error
}

// normal returns the description with its defaults, and one spelling of each host, or an error
// that names each wrong field.
func (p Pod) normal() (Pod, error) {
	p.Labels = maps.Clone(p.Labels)
	p.Ranks = cmp.Or(p.Ranks, 1)
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, f := range []struct {
		name, value string
		needed      bool
	}{{"ID", p.ID, true}, {"Model", p.Model, true}, {"UID", p.UID, false}, {"Topic", p.Topic, false}} {
		switch {
		case f.value == "" && f.needed:
			bad("%s is empty", f.name)
		case len(f.value) > maxName:
			bad("%s has %d bytes, more than %d", f.name, len(f.value), maxName)
		}
	}
	switch p.Engine {
	case "", engineZMQ:
		p.Engine = ""
		p.Port = cmp.Or(p.Port, defaultPort)
		host, err := normalHost(p.Host)
		if err != nil {
			errs = append(errs, err)
		}
		p.Host = host
		if p.Ranks < 0 || p.Ranks > maxRanks {
			bad("Ranks is %d, not in 1..%d", p.Ranks, maxRanks)
			break
		}
		for _, f := range []struct {
			name string
			port int
		}{{"Port", p.Port}, {"ReplayPort", p.ReplayPort}} {
			if f.port < 0 || f.port > 65536-p.Ranks {
				bad("%s %d with %d ranks is not in 1..65535", f.name, f.port, p.Ranks)
			}
		}
		if p.TiersPort < 0 || p.TiersPort > 65535 {
			bad("TiersPort %d is not in 1..65535", p.TiersPort)
		}
		if in := func(first int) bool { return p.TiersPort >= first && p.TiersPort < first+p.Ranks }; p.TiersPort > 0 && (in(p.Port) || p.ReplayPort > 0 && in(p.ReplayPort)) {
			bad("TiersPort %d is a port of the engine: it has %d from Port %d and from ReplayPort %d", p.TiersPort, p.Ranks, p.Port, p.ReplayPort)
		}
		if d := p.Port - p.ReplayPort; p.ReplayPort > 0 && max(d, -d) < p.Ranks {
			bad("the ports of %d ranks from Port %d and from ReplayPort %d overlap", p.Ranks, p.Port, p.ReplayPort)
		}
	case EngineNone:
		p.Port, p.ReplayPort, p.TiersPort, p.Ranks, p.Topic = 0, 0, 0, 0, ""
		if p.Host == "" {
			break
		}
		host, err := normalHost(p.Host)
		if err != nil {
			errs = append(errs, err)
		}
		p.Host = host
	default:
		bad("Engine %.100q is neither %s nor %s", p.Engine, engineZMQ, EngineNone)
	}
	if len(errs) > 0 {
		return Pod{}, fmt.Errorf("pod %.100q: %w", p.ID, errors.Join(errs...))
	}
	return p, nil
}

// normalHost returns one spelling of a host that a Subscriber can connect to.
func normalHost(host string) (string, error) {
	if host == "" {
		return "", errors.New("no Host")
	}
	name := strings.TrimSuffix(host, ".")
	if strings.HasPrefix(name, "[") && strings.HasSuffix(name, "]") {
		name = name[1 : len(name)-1]
	}
	if a, err := netip.ParseAddr(name); err == nil {
		zone := a.Zone()
		if a = a.Unmap(); a.IsUnspecified() || a.IsMulticast() || len(zone) > maxZone || strings.ContainsFunc(zone, notInAName) {
			return "", fmt.Errorf("host %.100s is not the address of a pod", host)
		}
		return a.String(), nil
	}
	if i := strings.IndexFunc(host, notInAName); i >= 0 {
		r, _ := utf8.DecodeRuneInString(host[i:])
		return "", fmt.Errorf("host %.100q has %q: it is an IP address or a name, without scheme, port and path", host, r)
	}
	if name == "" || len(name) > 253 {
		return "", fmt.Errorf("the host has %d bytes, more than a name can have", len(name))
	}
	if strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".") || strings.Contains(name, "..") {
		return "", fmt.Errorf("host %.100q has a dot without a name before it", host)
	}
	return strings.ToLower(name), nil
}

func notInAName(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '.' && r != '_'
}

// sameFeed reports whether two descriptions have the same engine at the same addresses, for
// the ranks that both have.
func (p *Pod) sameFeed(o *Pod) bool {
	return p.Model == o.Model && p.Host == o.Host && p.Port == o.Port && p.ReplayPort == o.ReplayPort &&
		p.TiersPort == o.TiersPort && p.Topic == o.Topic && p.Engine == o.Engine && p.UID == o.UID
}

// same reports whether two descriptions are equal.
func (p *Pod) same(o *Pod) bool {
	return p.ID == o.ID && p.Ranks == o.Ranks && p.sameFeed(o) && maps.Equal(p.Labels, o.Labels)
}

func endpoint(host string, port int) string {
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(port))
}
