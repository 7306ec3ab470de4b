package offload_test

import (
	"bufio"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"testing"

	"github.com/kvindex/kvindex/offload"
)

var kills = flag.Int("offload.kills", 25, "long form: kill -9 of a process with segments, 500")

// numbered returns the key of number i.
func numbered(i int) []offload.Key { return []offload.Key{{byte(i), byte(i >> 8), byte(i >> 16), 1}} }

func killConfig(dir string) offload.SegmentConfig {
	return offload.SegmentConfig{Dir: dir, Bytes: 4 << 15, SegmentBytes: 1 << 15, Buffered: true}
}

// TestKilledChild is the process that TestKill kills. It writes blocks, prints the number of each
// after Put, deletes each fourth one soon after and prints its negative number.
func TestKilledChild(t *testing.T) {
	dir := os.Getenv("KVOFFLOAD_KILL")
	if dir == "" {
		return // TestKill runs it
	}
	sp := space(1000)
	next, _ := strconv.Atoi(os.Getenv("KVOFFLOAD_NEXT"))
	for {
		fmt.Println("opening")
		s := openSegments(t, killConfig(dir))
		dst := contents(sp, numbered(0))
		for range 40 {
			if n, err := s.Put(ctx, sp.ID(), numbered(next), contents(sp, numbered(next))); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			fmt.Println(next)
			if gone := next - 2; gone > 0 && gone%4 == 2 {
				if err := s.Delete(ctx, sp.ID(), numbered(gone)); err != nil {
					t.Fatal(err)
				}
				fmt.Println(-gone)
			}
			next++
			if _, err := s.Get(ctx, sp.ID(), numbered(max(0, next-60)), dst); err != nil {
				t.Fatal(err)
			}
		}
		s.Close()
	}
}

// TestKill kills a process at random points of writes, frees and opens, again and again in one
// directory. Each block is right or absent, the last ones written are there, deleted ones are not,
// and the files keep their bound.
func TestKill(t *testing.T) {
	dir, sp := t.TempDir(), space(1000)
	r := rand.New(rand.NewPCG(1, 3))
	next, torn, freed := 0, 0, 0
	var last, gone []offload.Key // Put or Delete has returned for them
	for kill := range *kills {
		child := exec.Command(os.Args[0], "-test.run=^TestKilledChild$")
		child.Env = append(os.Environ(), "KVOFFLOAD_KILL="+dir, "KVOFFLOAD_NEXT="+strconv.Itoa(next))
		out, err := child.StdoutPipe()
		must(t, err)
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for left := r.IntN(90); lines.Scan(); left-- {
			if n, err := strconv.Atoi(lines.Text()); err == nil && n < 0 {
				gone = append(gone, numbered(-n)...)
			} else if err == nil {
				next = n + 1
				if n%4 != 2 {
					last = append(last, numbered(n)...)
				}
			} else if lines.Text() != "opening" {
				t.Fatalf("kill %d: the child prints %q", kill, lines.Text())
			}
			if left <= 0 {
				child.Process.Kill() // and read the rest of its output
			}
		}
		child.Wait()
		if n := dirBytes(t, dir); n > killConfig(dir).Bytes {
			t.Fatalf("kill %d: %d bytes, at most %d", kill, n, killConfig(dir).Bytes)
		}
		v, err := offload.VerifySegments(dir)
		if err != nil || v.Corrupt > 0 {
			t.Fatalf("kill %d: %+v, %v", kill, v, err)
		}
		torn += v.Absent
		last = last[max(len(last)-18, 0):]
		if n := right(t, killConfig(dir), sp, last); n != len(last) {
			t.Fatalf("kill %d: %d of the last %d blocks are there", kill, n, len(last))
		}
		if n := right(t, killConfig(dir), sp, gone); n != 0 {
			t.Fatalf("kill %d: %d of %d deleted blocks are there", kill, n, len(gone))
		}
		var all []offload.Key
		for i := range next + 2 {
			all = append(all, numbered(i)...)
		}
		freed = len(all) - right(t, killConfig(dir), sp, all)
		next++ // the one in progress may be there
	}
	t.Logf("%d kills: %d blocks, of which %d went with their file or were deleted; %d records torn", *kills, next, freed, torn)
	if freed < *kills {
		t.Errorf("%d blocks were freed in %d kills", freed, *kills)
	}
}

// TestIndexBytes measures the memory of Segments for each block.
func TestIndexBytes(t *testing.T) {
	const n = 1 << 17
	s := openSegments(t, offload.SegmentConfig{Dir: t.TempDir(), Bytes: 1 << 30, Buffered: true})
	defer s.Close()
	keys, src := make([]offload.Key, 0, n), make([][]byte, n)
	for i := range n {
		keys, src[i] = append(keys, numbered(i)...), []byte{1}
	}
	before := heap()
	// In small steps, so that growth is measured too.
	for i := 0; i < n; i += 512 {
		if _, err := s.Put(ctx, offload.SpaceID{}, keys[i:i+512], src[i:i+512]); err != nil {
			t.Fatal(err)
		}
	}
	per := float64(heap()-before) / n // garbage freed meanwhile lowers it
	t.Logf("%.1f bytes a block", per)
	if per > 64 {
		t.Errorf("%.1f bytes a block, at most 64", per)
	}
	if s.Stats().Blocks != n {
		t.Error(s.Stats())
	}
	runtime.KeepAlive(keys)
	runtime.KeepAlive(src)
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // the second one frees the scratch pool
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
