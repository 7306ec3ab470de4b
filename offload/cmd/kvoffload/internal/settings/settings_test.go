package settings

import (
	"fmt"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kvindex/kvindex/offload"
)

// TestTable compares the table in docs/offload-settings.md with the variables.
func TestTable(t *testing.T) {
	const doc = "../../../../../docs/offload-settings.md"
	text, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	rows := strings.Split(string(text), "\n")
	for _, v := range variables {
		normal := v.normal
		if normal != "" {
			normal = "`" + normal + "`"
		}
		row := fmt.Sprintf("| `%s` | %s | %s |", v.name, normal, v.means)
		found := false
		for i, r := range rows {
			if r == row {
				rows[i], found = "", true
			}
		}
		if !found {
			t.Errorf("%s has no row %s", doc, row)
		}
	}
	for _, r := range rows {
		if strings.HasPrefix(r, "| `") {
			t.Errorf("%s has the row %s of no variable", doc, r)
		}
	}
}

// TestNormal: the defaults are those of the table and of AIBrix, set explicitly or not.
func TestNormal(t *testing.T) {
	want := Settings{
		Store: offload.Config{
			MemoryBytes: 10 << 30, Policy: offload.S3FIFO, PromoteAt: 1, SmallShare: 0.3,
			Disk: offload.Disk{Ingest: offload.Hot, MinMissing: 4, MinMissingPart: 0.1, PerToken: 20 * time.Millisecond},
		},
		ChunkTokens: 512,
	}
	environ := []string{"HOME=/home/a", "PATH=/bin"}
	got, err := Read(environ)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	mapped := 0
	for _, v := range variables {
		if v.read != nil {
			environ = append(environ, prefix+v.name+"="+v.normal)
			mapped++
		}
	}
	got, err = Read(environ)
	if got.Notes = nil; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("set: %+v, %v; want %+v", got, err, want)
	}
	if mapped != 15 {
		t.Errorf("%d variables are mapped", mapped)
	}
}

// TestEach sets each variable with an effect.
func TestEach(t *testing.T) {
	for set, want := range map[string]func(s *Settings) (got, want any){
		"DOUBLE_GET_THRESHOLD=8, 0.5":                                func(s *Settings) (any, any) { return s.Store.Disk.MinMissing, 8 },
		"DOUBLE_GET_THRESHOLD=8,0.5":                                 func(s *Settings) (any, any) { return s.Store.Disk.MinMissingPart, 0.5 },
		"DOUBLE_GET_THRESHOLD=8":                                     func(s *Settings) (any, any) { return s.Store.Disk.MinMissingPart, math.SmallestNonzeroFloat64 },
		"BLOCK_SIZE=16":                                              func(s *Settings) (any, any) { return s.Store.Space.BlockTokens, 16 },
		"CHUNK_SIZE=256":                                             func(s *Settings) (any, any) { return s.ChunkTokens, 256 },
		"MAX_SEQ_LEN=4096":                                           func(s *Settings) (any, any) { return s.Store.MaxTokens, 4096 },
		"L1_CACHE_EVICTION_POLICY= lru ":                             func(s *Settings) (any, any) { return s.Store.Policy, offload.LRU },
		"L1_CACHE_CAPACITY_GB=0.5":                                   func(s *Settings) (any, any) { return s.Store.MemoryBytes, int64(1 << 29) },
		"S3FIFO_SMALL_TO_MAIN_PROMO_THRESHOLD=3":                     func(s *Settings) (any, any) { return s.Store.PromoteAt, 3 },
		"S3FIFO_SMALL_FIFO_CAPACITY_RATIO=0.1":                       func(s *Settings) (any, any) { return s.Store.SmallShare, 0.1 },
		"L2_CACHE_PER_TOKEN_TIMEOUT_MS=5":                            func(s *Settings) (any, any) { return s.Store.Disk.PerToken, 5 * time.Millisecond },
		"L2_CACHE_INGESTION_TYPE=EVICTED":                            func(s *Settings) (any, any) { return s.Store.Disk.Ingest, offload.Evicted },
		"L2_CACHE_INGESTION_MAX_INFLIGHT_TOKENS=4096":                func(s *Settings) (any, any) { return s.Store.Disk.MaxInFlight, 4096 },
		"L2_CACHE_BACKEND=rocksdb":                                   func(s *Settings) (any, any) { return s.Segments.Dir, "/home/a/.kv_cache_ol/rocksdb/aibrix" },
		"L2_CACHE_BACKEND=SHFS":                                      func(s *Settings) (any, any) { return s.Segments.Dir, "/home/a/.kv_cache_ol/shfs/aibrix" },
		"L2_CACHE_BACKEND=SHFS; L2_CACHE_NAMESPACE=B; SHFS_ROOT=/kv": func(s *Settings) (any, any) { return s.Segments.Dir, "/kv/b" },
		"ROCKSDB_ROOT=/kv": func(s *Settings) (any, any) {
			return s.Notes, []string{prefix + "ROCKSDB_ROOT: the backend is another"}
		},
		"PRIS_PASSWORD=secret; INFINISTORE_USE_GDR=0; DEVICE=CPU": func(s *Settings) (any, any) {
			return s.Notes, []string{prefix + "PRIS_PASSWORD: nothing: the backend is not served"}
		},
	} {
		environ := []string{"HOME=/home/a"}
		for e := range strings.SplitSeq(set, "; ") {
			environ = append(environ, prefix+e)
		}
		s, err := Read(environ)
		if err != nil {
			t.Errorf("%s: %v", set, err)
			continue
		}
		if got, want := want(&s); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", set, got, want)
		}
	}
}

// TestRefused: an unsupported value is an error that names the variable.
func TestRefused(t *testing.T) {
	for _, set := range []string{
		"DOUBLE_GET_THRESHOLD=", "DOUBLE_GET_THRESHOLD=4,2", "DOUBLE_GET_THRESHOLD=4,NaN", "DOUBLE_GET_THRESHOLD=-1", "BLOCK_SIZE=0", "BLOCK_SIZE=x", "CHUNK_SIZE=0",
		"MAX_SEQ_LEN=0", "MAX_SEQ_LEN=-2", "L1_CACHE_EVICTION_POLICY=MRU", "L1_CACHE_CAPACITY_GB=0", "L1_CACHE_CAPACITY_GB=Inf", "S3FIFO_SMALL_TO_MAIN_PROMO_THRESHOLD=4",
		"S3FIFO_SMALL_FIFO_CAPACITY_RATIO=1", "L2_CACHE_NAMESPACE=..", "L2_CACHE_NAMESPACE=a/b", "L2_CACHE_NAMESPACE=", "L2_CACHE_PER_TOKEN_TIMEOUT_MS=0", "L2_CACHE_INGESTION_TYPE=EVICT",
		"L2_CACHE_INGESTION_MAX_INFLIGHT_TOKENS=-1", "TOKEN_VALIDATION_ENABLED=1", "L1_CACHE_ENABLED=0", "DEVICE=cuda", "L2_CACHE_COMPRESSION=zstd", "L2_CACHE_PLACEMENT_POLICY=HASH",
		"META_SERVICE_BACKEND=REDIS", "MOCK_USE_RDMA=1", "MOCK_USE_GDR_PUT=true", "MOCK_USE_GDR_GET=1", "INFINISTORE_CONNECTION_TYPE=RDMA", "INFINISTORE_VISIBLE_DEV_LIST=mlx5_0", "INFINISTORE_USE_GDR=1",
		"HPKV_USE_GDR=1", "TRANSPORT_RDMA_ADDR_RANGE=::/0", "PROFILING_ENABLED=1", "NEW_NAME=1", "L2_CACHE_BACKEND=INFINISTORE", "L2_CACHE_BACKEND=HPKV", "L2_CACHE_BACKEND=PRISKV", "L2_CACHE_BACKEND=PRIS",
		"L2_CACHE_BACKEND=EIC", "L2_CACHE_BACKEND=MOCK", "L2_CACHE_BACKEND=REDIS",
	} {
		name, _, _ := strings.Cut(set, "=")
		if _, err := Read([]string{"HOME=/", prefix + set}); err == nil || !strings.Contains(err.Error(), prefix+name) {
			t.Errorf("%s: %v", set, err)
		}
	}
	_, err := Read([]string{prefix + "L2_CACHE_BACKEND=ROCKSDB", prefix + "DEVICE=cuda"})
	if err == nil || !strings.Contains(err.Error(), "HOME") || !strings.Contains(err.Error(), "DEVICE") {
		t.Errorf("without HOME: %v", err)
	}
}

// FuzzRead has any value of any variable: a valid one opens a store, if its blocks fit.
func FuzzRead(f *testing.F) {
	f.Add(uint8(0), "8, 0.5", uint8(9), "1e-9")
	f.Add(uint8(13), "SHFS", uint8(16), "/kv")
	f.Fuzz(func(t *testing.T, i uint8, a string, j uint8, b string) {
		s, err := Read([]string{"HOME=/", prefix + variables[int(i)%len(variables)].name + "=" + a, prefix + variables[int(j)%len(variables)].name + "=" + b})
		if err != nil || s.Store.MemoryBytes > 20<<30 || s.Store.MemoryBytes < 1<<20 {
			return // a larger store needs more memory than a fuzzer has
		}
		s.Store.Space = offload.Space{BlockTokens: max(s.Store.Space.BlockTokens, 1), BlockBytes: 1 << 20, Ranks: 1}
		store, err := offload.Open(s.Store)
		if err != nil {
			t.Fatalf("%+v: %v", s, err)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
}
