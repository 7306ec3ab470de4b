package main

import (
	"fmt"
	"io"
	"time"

	"github.com/kvindex/kvindex/offload"
)

// writeMetrics writes what a store and its segments count, in Prometheus's text format.
func writeMetrics(w io.Writer, blockBytes int, st offload.Stats, disk *offload.Segments) {
	figures := func(name, kind, help string, memory, onDisk any) {
		fmt.Fprintf(w, "# HELP kvoffload_%s %s\n# TYPE kvoffload_%[1]s %[3]s\n", name, help, kind)
		if memory != nil {
			fmt.Fprintf(w, "kvoffload_%s{tier=\"memory\"} %d\n", name, memory)
		}
		if disk != nil && onDisk != nil {
			fmt.Fprintf(w, "kvoffload_%s{tier=\"disk\"} %d\n", name, onDisk)
		}
	}
	var on offload.SegmentStats
	if disk != nil {
		on = disk.Stats()
	}
	block, d := uint64(blockBytes), st.Disk
	figures("hit_pages_total", "counter", "Pages that were requested and found.", st.Hits, d.Hits)
	figures("missed_pages_total", "counter", "Pages that were requested and not found.", st.Misses, d.Misses)
	figures("read_bytes_total", "counter", "Bytes of the pages that were found.", st.Hits*block, d.Hits*block)
	figures("stored_pages_total", "counter", "Pages that came into the tier.", st.Stored, d.Written)
	figures("written_bytes_total", "counter", "Bytes of the pages that came into the tier.", st.Stored*block, d.Written*block)
	figures("evicted_pages_total", "counter", "Pages that left the tier to make room.", st.Evicted, on.Freed)
	figures("refused_pages_total", "counter", "Pages that the tier had no room for, or that waited beyond the quota.", st.Refused, d.OverQuota)
	figures("failed_writes_pages_total", "counter", "Pages that could not be written.", nil, d.Unwritten)
	figures("failed_reads_total", "counter", "Reads that ended with an error.", nil, d.Failed)
	figures("late_reads_total", "counter", "Reads that ended when nobody waited any more.", nil, d.Late)
	figures("corrupt_records_total", "counter", "Records that were found to have other bytes.", nil, on.Corrupt)
	figures("in_flight_pages", "gauge", "Pages that wait to be written.", nil, d.InFlight)
	figures("reads_in_flight", "gauge", "Reads that have not ended.", nil, d.Reading)
	figures("pages", "gauge", "Pages in the tier.", st.Blocks, on.Blocks)
	figures("used_bytes", "gauge", "Bytes of the tier that are in use.", int64(st.Blocks)*int64(blockBytes), on.Bytes)

	fmt.Fprintf(w, "# HELP kvoffload_operation_seconds Time of operations of a tier.\n# TYPE kvoffload_operation_seconds histogram\n")
	times := func(tier, op string, t offload.Times) {
		labels, below := fmt.Sprintf("tier=%q,op=%q", tier, op), uint64(0)
		for i, n := range t.Below[:len(t.Below)-1] {
			below += n
			fmt.Fprintf(w, "kvoffload_operation_seconds_bucket{%s,le=\"%g\"} %d\n", labels, (time.Microsecond << (2 * i)).Seconds(), below)
		}
		fmt.Fprintf(w, "kvoffload_operation_seconds_bucket{%s,le=\"+Inf\"} %d\n", labels, t.N)
		fmt.Fprintf(w, "kvoffload_operation_seconds_sum{%s} %g\nkvoffload_operation_seconds_count{%[1]s} %[3]d\n", labels, t.Sum.Seconds(), t.N)
	}
	times("memory", "acquire", st.Acquires)
	if disk != nil {
		times("disk", "read", d.Reads)
		times("disk", "write", d.Writes)
	}
}
