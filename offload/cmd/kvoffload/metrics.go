package main

import (
	"fmt"
	"io"
	"time"

	"github.com/kvindex/kvindex/offload"
)

// writeMetrics writes the counters of a store and its segments, in Prometheus's text format.
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
	figures("torn_records_total", "counter", "Records that were found to be cut off.", nil, on.Torn)
	figures("copied_pages_total", "counter", "Pages that were read since they were written, and so outlived their file.", nil, on.Copied)
	figures("in_flight_pages", "gauge", "Pages that wait to be written.", nil, d.InFlight)
	figures("reads_in_flight", "gauge", "Reads that have not ended.", nil, d.Reading)
	figures("pages", "gauge", "Pages in the tier.", st.Blocks, on.Blocks)
	figures("used_bytes", "gauge", "Bytes of the tier that are in use.", int64(st.Blocks)*int64(blockBytes), on.Bytes)

	fmt.Fprintf(w, "# HELP kvoffload_operation_seconds Time of operations of a tier.\n# TYPE kvoffload_operation_seconds histogram\n")
	times := func(tier, op string, t offload.Times) {
		writeTimes(w, "kvoffload_operation_seconds", fmt.Sprintf("tier=%q,op=%q", tier, op), time.Second, t)
	}
	times("memory", "acquire", st.Acquires)
	if disk != nil {
		times("disk", "read", d.Reads)
		times("disk", "write", d.Writes)
	}
}

// writeTimes writes a histogram in this unit.
func writeTimes(w io.Writer, name, labels string, unit time.Duration, t offload.Times) {
	in := func(d time.Duration) float64 { return float64(d) / float64(unit) }
	below := uint64(0)
	for i, n := range t.Below[:len(t.Below)-1] {
		below += n
		fmt.Fprintf(w, "%s_bucket{%s,le=\"%g\"} %d\n", name, labels, in(time.Microsecond<<(2*i)), below)
	}
	fmt.Fprintf(w, "%s_bucket{%s,le=\"+Inf\"} %d\n", name, labels, t.N)
	fmt.Fprintf(w, "%s_sum{%s} %g\n%[1]s_count{%[2]s} %[4]d\n", name, labels, in(t.Sum), t.N)
}

// writeAIBrix writes those of AIBrix's metrics (python/aibrix_kvcache/aibrix_kvcache/metrics.py of
// commit 70d27a2a) that mean the same here: its L1 is the memory, its L2 the disk. It counts
// tokens in others, which a server of values does not have.
func writeAIBrix(w io.Writer, blockBytes int, st offload.Stats, disk bool) {
	ops := []struct {
		labels string
		times  offload.Times
	}{
		{`cache_type="l1cache",op_type="acquire"`, st.Acquires},
		{`cache_type="l2cache",op_type="get"`, st.Disk.Reads},
		{`cache_type="l2cache",op_type="put"`, st.Disk.Writes},
	}
	if !disk {
		ops = ops[:1]
	}
	fmt.Fprintf(w, "# HELP kv_cache_ol_num_ops_total Operations.\n# TYPE kv_cache_ol_num_ops_total counter\n")
	for _, op := range ops {
		fmt.Fprintf(w, "kv_cache_ol_num_ops_total{%s} %d\n", op.labels, op.times.N)
	}
	if disk {
		fmt.Fprintf(w, "# HELP kv_cache_ol_num_errors_total Operations that failed.\n# TYPE kv_cache_ol_num_errors_total counter\n")
		fmt.Fprintf(w, "kv_cache_ol_num_errors_total{%s,reason=\"error\"} %d\n", ops[1].labels, st.Disk.Failed)
	}
	fmt.Fprintf(w, "# HELP kv_cache_ol_iteration_op_lat_ms Time of operations.\n# TYPE kv_cache_ol_iteration_op_lat_ms histogram\n")
	for _, op := range ops {
		writeTimes(w, "kv_cache_ol_iteration_op_lat_ms", op.labels, time.Millisecond, op.times)
	}
	for _, g := range []struct {
		name   string
		blocks int
	}{{"used", st.Blocks}, {"capacity", st.Capacity}} {
		fmt.Fprintf(w, "# HELP kv_cache_ol_%s Bytes of the memory.\n# TYPE kv_cache_ol_%[1]s gauge\n", g.name)
		fmt.Fprintf(w, "kv_cache_ol_%s{cache_type=\"l1cache\",resource_type=\"l1_allocator\"} %d\n", g.name, int64(g.blocks)*int64(blockBytes))
	}
}
