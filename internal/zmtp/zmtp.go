// Package zmtp speaks ZeroMQ's wire protocol, ZMTP 3.0 and 3.1 (ZeroMQ RFC 23 and RFC 37) with
// the NULL mechanism, over TCP and Unix sockets: the parts that event streams need, the SUB
// and DEALER sockets of a reader of events and the PUB and ROUTER sockets of an engine.
//
// [Dial] opens a connection, [Listen] and [Handshake] accept one. A [Conn] is
// one connection to one peer: queues, redialling and fan-out are the caller's.
// The package starts no goroutine.
//
// A peer is not trusted. Every wait has a deadline, every size a limit, and the memory of a
// connection follows the received bytes, never the length that a frame claims.
package zmtp

import (
	"cmp"
	"errors"
	"math"
	"sync"
	"time"
)

// Why not go-zeromq/zmq4, which the tests have as an independent peer (v0.17.0): a frame that
// claims 2^60 bytes panics the process before any handshake, and 2^40 exhausts its memory;
// PING is never answered; dialling a silent peer cannot be cancelled; one idle client blocks a
// bound socket; it takes 5 to 8 times libzmq's CPU.

var (
	// ErrProtocol is wrapped by errors about a peer that breaks the protocol,
	// speaks another version or mechanism, or is a socket of the wrong type.
	ErrProtocol = errors.New("protocol error")
	// ErrLimit is wrapped by errors about a peer that exceeds the limits in Config.
	ErrLimit = errors.New("limit exceeded")
	// ErrSkipped is wrapped by errors about a message that was skipped because it is larger
	// than the limits in Config, or has more frames.
	ErrSkipped = errors.New("message skipped")
	// ErrRefused is wrapped by errors about an ERROR command from the peer.
	ErrRefused = errors.New("refused by the peer")
)

// Defaults of a Config.
const (
	defaultMaxFrame   = 32 << 20 // bytes
	defaultMaxMessage = 32 << 20 // bytes

	defaultHandshakeTimeout = 5 * time.Second
	defaultWriteTimeout     = 10 * time.Second
	// DefaultHeartbeat finds a dead peer in 6 seconds. The peers, libzmq's I/O threads, answer
	// at once even if the engine is busy.
	DefaultHeartbeat = 3 * time.Second
)

const (
	maxFrames   = 16      // of one message
	maxCommand  = 8 << 10 // bytes of one command after the handshake
	maxMetadata = 8 << 10 // bytes of the READY command of the handshake
	// overhead is the most that a buffer holds beside the bodies of a message.
	overhead = maxFrames*longHeader + maxCommand + longHeader
	// messageTimeout bounds the time from the first byte of a message to its last. A peer that
	// is silent within a message for two heartbeats is closed before that.
	messageTimeout = 30 * time.Second
)

// SocketType is the ZeroMQ socket of a connection, as it is spelled on the wire.
type SocketType string

// The socket types of a Config.
const (
	SUB    SocketType = "SUB"
	DEALER SocketType = "DEALER"
	PUB    SocketType = "PUB"
	ROUTER SocketType = "ROUTER"
)

// publishes reports whether this end sends the bulk.
func (t SocketType) publishes() bool { return t == PUB || t == ROUTER }

// accepts lists the socket types that a peer may have.
func (t SocketType) accepts() []SocketType {
	switch t {
	case SUB:
		return []SocketType{"PUB", "XPUB"}
	case PUB:
		return []SocketType{"SUB", "XSUB"}
	case DEALER:
		return []SocketType{"ROUTER", "REP", "DEALER"}
	case ROUTER:
		return []SocketType{"DEALER", "REQ", "ROUTER"}
	}
	return nil
}

// Config configures a connection. Only Type is required: a zero field is the default of its
// name.
type Config struct {
	Type SocketType

	MaxFrame   int // bytes of one frame of a message
	MaxMessage int // bytes of all frames of one message
	// Skip makes Receive skip messages that are larger than MaxFrame or MaxMessage, or have
	// more than 16 frames: it returns ErrSkipped for each. Without Skip such a message ends
	// the connection.
	Skip bool

	// HandshakeTimeout bounds the dialling, and then the whole handshake.
	HandshakeTimeout time.Duration
	// WriteTimeout bounds each write to the network; below 0 there is none.
	WriteTimeout time.Duration
	// Heartbeat is the silence after which the peer gets a PING; after a second such silence
	// the connection is closed. Peers that speak 3.0 have no PING: there TCP's keepalive finds
	// a dead host in about the time of DefaultHeartbeat.
	Heartbeat time.Duration

	// OnIdle, if not nil, is called by Receive when it has waited for that time, before the
	// PING.
	OnIdle func()

	// Budget is shared with other connections; nil is no bound.
	Budget *Budget
}

func (c Config) withDefaults() Config {
	c.MaxFrame = cmp.Or(c.MaxFrame, defaultMaxFrame)
	c.MaxMessage = min(cmp.Or(c.MaxMessage, defaultMaxMessage), math.MaxInt-overhead)
	c.HandshakeTimeout = cmp.Or(c.HandshakeTimeout, defaultHandshakeTimeout)
	c.WriteTimeout = cmp.Or(c.WriteTimeout, defaultWriteTimeout)
	c.Heartbeat = cmp.Or(c.Heartbeat, DefaultHeartbeat)
	return c
}

// A Budget bounds the memory that connections hold together for messages that do not fit 32
// KiB. When it is used up, the connection with the largest unfinished message fails with
// ErrLimit, so peers that never finish theirs do not keep others out for long. It is safe for
// concurrent use.
type Budget struct {
	mu   sync.Mutex
	free int64
	held map[*Conn]int // the bytes of each, above 0
}

// NewBudget returns a budget of that many bytes.
func NewBudget(bytes int64) *Budget {
	return &Budget{free: bytes, held: make(map[*Conn]int)}
}

// exchange gives c n bytes in exchange for its bytes; both count for a moment. It reports
// whether there was enough, or others with more could be ended.
func (b *Budget) exchange(c *Conn, n int) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.free < int64(n) {
		largest := c
		for other, has := range b.held {
			if has > b.held[largest] {
				largest = other
			}
		}
		if largest == c || b.held[largest] <= n {
			return false
		}
		largest.overdrawn.Store(true)
		_ = largest.nc.Close()
		b.drop(largest)
	}
	b.free -= int64(n)
	b.drop(c)
	if n > 0 {
		b.held[c] = n
	}
	return true
}

func (b *Budget) drop(c *Conn) {
	b.free += int64(b.held[c])
	delete(b.held, c)
}
