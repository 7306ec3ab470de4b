package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/kvindex/kvindex/offload"
)

type result struct {
	hits  int   // blocks of prefixes that were in memory
	wrong int64 // bytes
}

// replay has each request take what is there of its prompt, and store the rest. With
// segments, blocks that the memory lacks are read from there, and all are written there before the
// next request.
func (tr *trace) replay(cfg offload.Config, segments *offload.Segments) (r result, err error) {
	if segments != nil {
		blocks := int(cfg.MemoryBytes / int64(cfg.Space.BlockBytes))
		cfg.Disk = offload.Disk{Backend: segments, Ingest: offload.All, MaxInFlight: blocks, MinMissing: 1, MinMissingPart: 1e-9}
	}
	s, err := offload.Open(cfg)
	if err != nil {
		return r, err
	}
	defer s.Close()
	ctx, size := context.Background(), cfg.Space.BlockBytes
	var blocks []uint32
	var keys []offload.Key
	var src [][]byte
	var bytes []byte
	for _, q := range tr.requests {
		blocks, keys = list(blocks[:0], q), keys[:0]
		for _, b := range blocks {
			keys = append(keys, key(b))
		}
		l, err := s.Acquire(ctx, keys)
		n := l.Len()
		for i := range n {
			r.wrong += differ(l.Block(i), blocks[i])
		}
		l.Release()
		if err != nil && !errors.Is(err, offload.ErrNoMemory) { // a prompt may be longer than the memory
			return r, err
		}
		src = src[:0]
		if need := (len(blocks) - n) * size; cap(bytes) < need {
			bytes = make([]byte, need)
		}
		for i, b := range blocks[n:] {
			src = append(src, bytes[:cap(bytes)][i*size:][:size])
			fill(src[i], b)
		}
		if _, err := s.Write(ctx, keys[:n], keys[n:], src); err != nil && !errors.Is(err, offload.ErrNoMemory) {
			return r, err
		}
		if err := s.Flush(ctx); err != nil {
			return r, err
		}
	}
	r.hits = int(s.Stats().Hits)
	if n := s.Stats().Disk.Unwritten; n > 0 {
		return r, fmt.Errorf("%d blocks could not be written", n)
	}
	return r, nil
}

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func key(block uint32) (k offload.Key) {
	for i := range len(k) / 8 {
		binary.LittleEndian.PutUint64(k[8*i:], mix(uint64(block)<<8|uint64(i)))
	}
	return k
}

func fill(b []byte, block uint32) {
	seed := mix(uint64(block) + 1)
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], seed+uint64(i))
	}
}

// differ returns how many bytes are not those of a block.
func differ(b []byte, block uint32) (n int64) {
	seed := mix(uint64(block) + 1)
	for i := 0; i < len(b); i += 8 {
		if x := binary.LittleEndian.Uint64(b[i:]) ^ (seed + uint64(i)); x != 0 {
			for ; x != 0; x >>= 8 {
				if x&255 != 0 {
					n++
				}
			}
		}
	}
	return n
}
