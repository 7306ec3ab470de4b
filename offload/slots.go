package offload

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
)

// SpreadSlots is Spread by a table of slots, in the JSON of AIBrix's meta service
// (aibrix_kvcache/l2/placement/placement.py, August 2026):
//
//	{"nodes": [{"addr": "10.0.0.1", "port": 18512, "slots": [{"start": 0, "end": 511}]}]}
//
// The Backends are named addr:port, as by [net.JoinHostPort]. Each slot from 0 to the last has one
// node, each node a Backend, and each Backend a node; other fields are ignored. A key is in the
// slot that is its hash modulo the number of slots. The hash is that of this package, not FarmHash:
// clients of AIBrix have other keys, and would not find the blocks anyway.
func SpreadSlots(table []byte, backends map[string]Backend) (Backend, error) {
	s := newSpread(backends)
	slots, err := readSlots(table, s.names)
	if err != nil {
		return nil, fmt.Errorf("offload: table of slots: %w", err)
	}
	total := uint64(slots[len(slots)-1].end) + 1
	s.place = func(key uint64) int {
		i, _ := slices.BinarySearchFunc(slots, int64(mixed(key)%total), func(r slotRange, slot int64) int { return cmp.Compare(r.end, slot) })
		return slots[i].place
	}
	return s, nil
}

// slotRange is slots of one Backend.
type slotRange struct {
	start, end int64 // both are in it
	place      int
}

// maxSlot bounds the number of a slot.
const maxSlot = 1 << 40

// readSlots returns the ranges of a table by their slots. Each of the names, which are sorted, is
// a node.
func readSlots(table []byte, names []string) (ranges []slotRange, err error) {
	var t struct {
		Nodes []struct {
			Addr  string
			Port  uint16
			Slots []struct{ Start, End *int64 }
		}
	}
	if err := json.Unmarshal(table, &t); err != nil {
		return nil, err
	}
	known := make(map[string]bool)
	for i, node := range t.Nodes {
		if node.Addr == "" || node.Port == 0 {
			return nil, fmt.Errorf("node %d has the addr %q and the port %d", i, node.Addr, node.Port)
		}
		name := net.JoinHostPort(node.Addr, strconv.Itoa(int(node.Port)))
		place, ok := slices.BinarySearch(names, name)
		if !ok || known[name] {
			return nil, fmt.Errorf("node %s has no Backend, or is there twice", name)
		}
		known[name] = true
		for _, r := range node.Slots {
			if r.Start == nil || r.End == nil || *r.Start < 0 || *r.Start > *r.End || *r.End > maxSlot {
				return nil, fmt.Errorf("node %s has slots that are not start to end, of 0 to %d", name, int64(maxSlot))
			}
			ranges = append(ranges, slotRange{*r.Start, *r.End, place})
		}
	}
	for _, name := range names {
		if !known[name] {
			return nil, fmt.Errorf("%s is no node", name)
		}
	}
	slices.SortFunc(ranges, func(a, b slotRange) int { return cmp.Compare(a.start, b.start) })
	var next int64
	for _, r := range ranges {
		if r.start < next {
			return nil, fmt.Errorf("slot %d has two nodes, one of them %s", r.start, names[r.place])
		} else if r.start > next {
			return nil, fmt.Errorf("slot %d has no node", next)
		}
		next = r.end + 1
	}
	if next == 0 {
		return nil, errors.New("no slots")
	}
	return ranges, nil
}
