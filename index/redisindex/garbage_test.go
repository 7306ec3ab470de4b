package redisindex

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/index/redisindex/internal/redistest"
)

// Foreign values in the keys of an index make answers smaller, and are counted.
func TestGarbageInKeys(t *testing.T) {
	client := redistest.Standalone(t).Client(t)
	ctx := t.Context()
	p := (&prompt{Variant: index.Variant{Unit: 16}, root: 7}).fork(rand.New(rand.NewPCG(1, 1)), 0, 200)
	q := &index.Query{Candidates: index.NewCandidates("m", nil), Keys: func(index.Variant) ([]index.Key, error) { return p.keys, nil }}
	type world struct {
		*testing.T
		writer, reader *redisIndex
		m              index.Matches
	}
	bucket := func(w *world, unit int) string { return w.writer.names.bucket(0, p.keys[unit]) }
	registry := func(w *world) string { return w.writer.names.registry("m") }
	value := func(w *world, unit int) string { return client.Get(ctx, bucket(w, unit)).Val() }
	set := func(w *world, unit int, value any) error { return client.Set(ctx, bucket(w, unit), value, 0).Err() }
	for i, c := range []struct {
		name    string
		spoil   func(*world) error
		runs    []int32 // of the pods' rows
		garbage bool
		err     error
	}{
		{"nothing", func(*world) error { return nil }, []int32{200, 200}, false, nil},
		{"text in a bucket", func(w *world) error { return set(w, 64, "garbage") }, []int32{64, 64}, true, nil},
		{"text in the first bucket", func(w *world) error { return set(w, 0, "garbage") }, nil, true, nil},
		{"nothing in a bucket", func(w *world) error { return set(w, 64, "") }, []int32{64, 64}, false, nil},
		{"a bucket that is cut off", func(w *world) error { return set(w, 64, value(w, 64)[:100]) }, []int32{64, 64}, true, nil},
		{"a bucket of other keys", func(w *world) error { return set(w, 64, value(w, 96)) }, []int32{64, 64}, false, nil},
		{"a section of nobody that makes no sense", func(w *world) error {
			return set(w, 64, value(w, 64)+section(9, 9, "garbage"))
		}, []int32{200, 200}, false, nil},
		{"a section of the writer that makes no sense", func(w *world) error {
			return set(w, 64, valueHead+section(u64(value(w, 64)[2:]), 0, "garbage"))
		}, []int32{64, 64}, true, nil},
		{"a bucket that says it is split", func(w *world) error {
			return set(w, 64, valueHead+section(u64(value(w, 64)[2:]), 0, string([]byte{bodySplit})))
		}, []int32{64, 64}, false, nil},
		{"a list for a bucket", func(w *world) error {
			return errors.Join(client.Del(ctx, bucket(w, 64)).Err(), client.RPush(ctx, bucket(w, 64), "x").Err())
		}, []int32{64, 64}, false, nil},
		{"text for a row", func(w *world) error {
			return client.HSet(ctx, registry(w), "s0 a", "garbage, and more of it than a row has in front", versionField, w.writer.mark+"other").Err()
		}, []int32{200}, true, nil},
		{"a row too many", func(w *world) error {
			return client.HSet(ctx, registry(w), "garbage", "garbage", versionField, w.writer.mark+"other").Err()
		}, []int32{200, 200}, true, nil},
		{"the row of a for c too", func(w *world) error {
			return client.HSet(ctx, registry(w), "s0 c", client.HGet(ctx, registry(w), "s0 a").Val(), versionField, w.writer.mark+"other").Err()
		}, []int32{200}, false, nil}, // its numbers have no holder
		{"no version", func(w *world) error { return client.HDel(ctx, registry(w), versionField).Err() }, []int32{200, 200}, false, nil},
		{"another version", func(w *world) error {
			return client.HSet(ctx, registry(w), versionField, w.writer.mark+"garbage").Err()
		}, []int32{200, 200}, false, nil},
		{"a version of nobody", func(w *world) error { return client.HSet(ctx, registry(w), versionField, "garbage").Err() }, nil, false, ErrSeed},
		{"no registry", func(w *world) error { return client.Del(ctx, registry(w)).Err() }, nil, false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &world{T: t}
			// Nothing is repaired meanwhile: the writer checks its keys every third of a lease.
			conf := Config{Prefix: fmt.Sprintf("g%d:", i), Lease: time.Minute}
			for _, ix := range []**redisIndex{&w.writer, &w.reader} {
				var err error
				if *ix, err = newIndex(client, conf); err != nil {
					t.Fatal(err)
				}
				defer (*ix).Close()
			}
			for _, pod := range []string{"a", "b"} {
				if _, err := w.writer.Apply(ctx, index.Source{Pod: pod, Model: "m"}, index.Cursor{}, []index.Change{p.store(1, 0, 200)}); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.reader.Match(ctx, q, &w.m); err != nil || len(w.m.Rows) != 2 || w.m.Rows[0].Stale {
				t.Fatalf("before: %+v, %v", w.m.Rows, err)
			}
			must(t, c.spoil(w))
			for range 2 {
				err := w.reader.Match(ctx, q, &w.m)
				if !errors.Is(err, c.err) {
					t.Fatalf("error %v, want %v", err, c.err)
				}
				var runs []int32
				for _, r := range w.m.Rows {
					runs = append(runs, r.Run)
				}
				if fmt.Sprint(runs) != fmt.Sprint(c.runs) {
					t.Errorf("runs %v, want %v", runs, c.runs)
				}
			}
			if n := w.reader.Unreadable(); (n > 0) != c.garbage {
				t.Errorf("%d values are unreadable", n)
			}
			if sources, waiting := w.writer.Writes(); sources != 2 || waiting != 0 || w.writer.Trouble() != nil {
				t.Errorf("%d sources, %d buckets wait: %v", sources, waiting, w.writer.Trouble())
			}
			// A bucket is whole after it is written again.
			if len(c.runs) == 2 && c.runs[0] == 64 {
				if _, err := w.writer.Apply(ctx, index.Source{Pod: "a", Model: "m"}, index.Cursor{}, []index.Change{p.remove(1, 70, 71)}); err != nil {
					t.Fatal(err)
				}
				if err := w.reader.Match(ctx, q, &w.m); err != nil || len(w.m.Rows) != 2 || w.m.Rows[0].Run != 70 || w.m.Rows[1].Run != 200 {
					t.Errorf("after it was written again: %+v, %v", w.m.Rows, err)
				}
			}
		})
	}
}
