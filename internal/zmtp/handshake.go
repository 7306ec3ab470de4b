package zmtp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

// The greeting, 64 bytes: signature (10: ff, 8 of padding, 7f), version (2), mechanism (20),
// as-server (1), filler (31). Of older versions only the first bytes have this form, so they
// are checked as they come.
const (
	greetingSize   = 64
	signatureSize  = 10
	mechanismStart = 12
	mechanismEnd   = 32

	majorVersion = 3
	minorVersion = 1
)

// Handshake makes a Conn of an open connection, dialled or accepted: with the NULL mechanism
// both ends do the same. name is the peer in errors. Handshake closes nc if it fails, and
// fails when ctx ends.
func Handshake(ctx context.Context, nc net.Conn, name string, cfg Config) (*Conn, error) {
	cfg = cfg.withDefaults()
	c := newConn(nc, name, cfg)
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	err := c.handshake()
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = c.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("zmtp: handshake with %s: %w", name, err)
	}
	return c, nil
}

func (c *Conn) handshake() error {
	accepts := c.cfg.Type.accepts()
	if accepts == nil {
		return fmt.Errorf("socket type %q is not supported", c.cfg.Type)
	}
	c.deadline = time.Now().Add(c.cfg.HandshakeTimeout)
	if err := c.greet(); err != nil {
		return err
	}
	if err := c.sendCommand("READY", c.metadata()); err != nil {
		return err
	}
	peer, err := c.readReady()
	if err != nil {
		return err
	}
	if !slices.Contains(accepts, peer) {
		return fmt.Errorf("%w: a %s socket cannot talk to %.20q: is it the port of another socket?", ErrProtocol, c.cfg.Type, peer)
	}
	c.out.timeout = c.cfg.WriteTimeout
	c.patience = 2 * c.cfg.Heartbeat
	return nil
}

func (c *Conn) greet() error {
	var g [greetingSize]byte
	g[0], g[signatureSize-1] = 0xff, 0x7f
	g[signatureSize], g[signatureSize+1] = majorVersion, minorVersion
	copy(g[mechanismStart:mechanismEnd], "NULL")
	if _, err := c.out.Write(g[:]); err != nil {
		return err
	}
	if err := c.need(1); err != nil {
		return c.silent(err)
	}
	if c.window()[0] != 0xff {
		return c.stranger()
	}
	if err := c.need(signatureSize + 1); err != nil {
		return midway(err)
	}
	if b := c.window()[signatureSize-1]; b != 0x7f {
		return fmt.Errorf("%w: a signature ends with 7f, not %02x", ErrProtocol, b)
	}
	if v := c.window()[signatureSize]; v < majorVersion {
		return fmt.Errorf("%w: the peer speaks version %d, older than 3.0", ErrProtocol, v)
	}
	if err := c.need(greetingSize); err != nil {
		return midway(err)
	}
	w := c.window()
	if m := string(bytes.TrimRight(w[mechanismStart:mechanismEnd], "\x00")); m != "NULL" {
		return fmt.Errorf("%w: the peer wants the mechanism %q, not NULL", ErrProtocol, m)
	}
	// A later major version falls back to ours, 3.1.
	c.is31 = w[signatureSize] > majorVersion || w[signatureSize+1] >= 1
	c.start += greetingSize
	return nil
}

// silent explains the error of a peer that sent nothing, if it can.
func (c *Conn) silent(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w: the peer accepts connections and sent nothing in %v, so it is no ZeroMQ socket: %w", ErrProtocol, c.cfg.HandshakeTimeout, os.ErrDeadlineExceeded)
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return fmt.Errorf("%w: the peer hung up without a word, so it may be no ZeroMQ socket: %w", ErrProtocol, midway(err))
	}
	return err
}

// stranger guesses the protocol of a peer that is no ZeroMQ socket.
func (c *Conn) stranger() error {
	_ = c.need(len("HTTP/")) // fewer bytes can show it too
	w := c.window()
	switch {
	case bytes.HasPrefix(w, []byte("HTTP/")):
		return fmt.Errorf("%w: the peer answers in HTTP: it is no ZeroMQ socket, but perhaps the engine's API", ErrProtocol)
	case w[0] == 0x15 || w[0] == 0x16:
		return fmt.Errorf("%w: the peer answers in TLS: it is no ZeroMQ socket", ErrProtocol)
	}
	return fmt.Errorf("%w: a greeting begins with ff, not %02x: the peer is no ZeroMQ socket", ErrProtocol, w[0])
}

// metadata returns the READY metadata of this end.
func (c *Conn) metadata() []byte {
	b := appendProperty(nil, "Socket-Type", string(c.cfg.Type))
	if c.cfg.Type == DEALER || c.cfg.Type == ROUTER {
		b = appendProperty(b, "Identity", "")
	}
	return b
}

func appendProperty(b []byte, name, value string) []byte {
	b = append(b, byte(len(name)))
	b = append(b, name...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(value)))
	return append(b, value...)
}

// readReady reads the peer's READY, and returns its socket type.
func (c *Conn) readReady() (SocketType, error) {
	f, err := c.frame(0, maxMetadata, maxMetadata)
	if err != nil {
		return "", midway(err)
	}
	if f.flags&flagCommand == 0 {
		return "", fmt.Errorf("%w: a message before READY", ErrProtocol)
	}
	cmd, err := parseCommand(c.body(f))
	if err != nil {
		return "", err
	}
	c.start += f.end
	switch string(cmd.name) {
	case "READY":
		return parseMetadata(cmd.data)
	case "ERROR":
		return "", cmd.refusal()
	}
	return "", fmt.Errorf("%w: %.20q where READY must be", ErrProtocol, cmd.name)
}

// parseMetadata reads a READY's metadata, of which only the socket type matters.
func parseMetadata(data []byte) (peer SocketType, err error) {
	typed := false
	for len(data) > 0 {
		name, value, rest, err := nextProperty(data)
		if err != nil {
			return "", err
		}
		if strings.EqualFold(string(name), "Socket-Type") {
			if typed {
				return "", fmt.Errorf("%w: two socket types", ErrProtocol)
			}
			peer, typed = SocketType(value), true
		}
		data = rest
	}
	if !typed {
		return "", fmt.Errorf("%w: no socket type", ErrProtocol)
	}
	return peer, nil
}

// nextProperty splits the first property off metadata: the length of the name
// (1 byte), the name, the length of the value (4 bytes), the value.
func nextProperty(data []byte) (name, value, rest []byte, err error) {
	n := int(data[0])
	data = data[1:]
	if n == 0 || len(data) < n+4 {
		return nil, nil, nil, fmt.Errorf("%w: metadata with a broken name", ErrProtocol)
	}
	name, data = data[:n], data[n:]
	size := binary.BigEndian.Uint32(data)
	data = data[4:]
	if uint64(size) > uint64(len(data)) {
		return nil, nil, nil, fmt.Errorf("%w: metadata with a broken value", ErrProtocol)
	}
	return name, data[:size], data[size:], nil
}

// midway turns the end of a connection in the middle into an error that reports it.
func midway(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
