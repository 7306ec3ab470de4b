// Package settings reads the environment variables of AIBrix's KV cache offloading
// (aibrix_kvcache/envs.py, August 2026) into the settings of a store of package offload.
// [Read] is all of it; docs/offload-settings.md has the table.
package settings

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvindex/kvindex/offload"
)

const prefix = "AIBRIX_KV_CACHE_OL_"

// Settings has the values of the variables.
type Settings struct {
	// Store lacks Disk.Backend, and of its Space all but BlockTokens, which is 0 where the blocks are
	// the engine's.
	Store       offload.Config
	Segments    *offload.SegmentConfig // nil: memory alone. It lacks Bytes: AIBrix has no bound
	ChunkTokens int                    // for Space.Chunks
	Notes       []string               // variables that are set and do nothing, and why
}

// Read reads the variables, in the form of os.Environ, and joins the errors of all that are
// unknown, wrong, or request what a store cannot do. Neither errors nor notes have the value of a
// variable that does nothing, which can be a password.
func Read(environ []string) (Settings, error) {
	r := reader{set: make(map[string]string)}
	var errs []error
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		switch short, ours := strings.CutPrefix(name, prefix); {
		case name == "HOME":
			r.home = value
		case !ours:
		case !slices.ContainsFunc(variables, func(v variable) bool { return v.name == short }):
			errs = append(errs, fmt.Errorf("%s is unknown", name))
		default:
			r.set[short] = strings.TrimSpace(value)
		}
	}
	for _, v := range variables {
		value, set := r.set[v.name]
		if !set {
			value = v.normal
		}
		if v.read != nil {
			if err := v.read(&r, value); err != nil {
				errs = append(errs, fmt.Errorf("%s%s: %w", prefix, v.name, err))
			}
		} else if set && !v.refused {
			r.note(v.name, v.means)
		} else if set && !slices.Contains(v.harmless, strings.ToLower(value)) {
			errs = append(errs, fmt.Errorf("%s%s is %s", prefix, v.name, v.means))
		}
	}
	return r.Settings, errors.Join(errs...)
}

// variable is a variable without the prefix of its name.
type variable struct {
	name, normal string                          // its default
	means        string                          // here, as the documents have it
	read         func(r *reader, v string) error // nil: it does nothing, or is refused
	refused      bool                            // unless it has one of the harmless values
	harmless     []string
}

func idle(name, normal, why string) variable {
	return variable{name: name, normal: normal, means: "nothing: " + why}
}

func refused(name, normal, why string, harmless ...string) variable {
	return variable{name: name, normal: normal, means: "refused: " + why, refused: true, harmless: harmless}
}

// reader has what is read.
type reader struct {
	Settings
	set                      map[string]string
	home, backend, namespace string
}

func (r *reader) note(name, why string) {
	r.Notes = append(r.Notes, fmt.Sprintf("%s%s: %s", prefix, name, why))
}

// Whys of several names.
const (
	noService = "the backend is not served"
	noRDMA    = "there is no RDMA"
	noGDR     = "nothing here touches the memory of a GPU"
	byBytes   = "segments have bounds of their own"
)

// variables are all that AIBrix has, and the names before PrisKV was called so. Those that others
// need are read before them.
var variables = []variable{
	{name: "DOUBLE_GET_THRESHOLD", normal: "4,0.1", means: "`Disk.MinMissing` and `Disk.MinMissingPart`", read: doubleGet},
	{name: "BLOCK_SIZE", normal: "-1", means: "`Space.BlockTokens`; -1: the engine's", read: func(r *reader, v string) (err error) {
		r.Store.Space.BlockTokens, err = orNone(v)
		return err
	}},
	{name: "CHUNK_SIZE", normal: "512", means: "the tokens of `Space.Chunks`", read: func(r *reader, v string) (err error) {
		r.ChunkTokens, err = whole(v, 1, math.MaxInt32)
		return err
	}},
	{name: "MAX_SEQ_LEN", normal: "-1", means: "`Config.MaxTokens`; -1: no bound", read: func(r *reader, v string) (err error) {
		r.Store.MaxTokens, err = orNone(v)
		return err
	}},
	idle("TIME_MEASUREMENT_ENABLED", "1", "times are always counted"),
	idle("BREAKDOWN_MEASUREMENT_ENABLED", "1", "times are always counted"),
	refused("TOKEN_VALIDATION_ENABLED", "0", "a store has no tokens; keys and checksums say what a block is", "0", "false"),
	refused("L1_CACHE_ENABLED", "1", "a store has memory", "1", "true"),
	{name: "L1_CACHE_EVICTION_POLICY", normal: "S3FIFO", means: "`Config.Policy`", read: func(r *reader, v string) (err error) {
		r.Store.Policy, err = oneOf(v, offload.S3FIFO, offload.LRU, offload.FIFO)
		return err
	}},
	{name: "L1_CACHE_CAPACITY_GB", normal: "10", means: "`Config.MemoryBytes`, in GiB", read: func(r *reader, v string) error {
		gib, err := number(v, 0, 1<<20)
		r.Store.MemoryBytes = int64(gib * (1 << 30))
		return err
	}},
	refused("DEVICE", "cpu", noGDR, "cpu"),
	{name: "S3FIFO_SMALL_TO_MAIN_PROMO_THRESHOLD", normal: "1", means: "`Config.PromoteAt`", read: func(r *reader, v string) (err error) {
		r.Store.PromoteAt, err = whole(v, 1, 3)
		return err
	}},
	{name: "S3FIFO_SMALL_FIFO_CAPACITY_RATIO", normal: "0.3", means: "`Config.SmallShare`", read: func(r *reader, v string) (err error) {
		r.Store.SmallShare, err = number(v, 0, 1)
		return err
	}},
	{name: "L2_CACHE_BACKEND", normal: "", means: "ROCKSDB and SHFS are `Segments`; empty: memory alone; any other is refused", read: backend},
	{name: "L2_CACHE_NAMESPACE", normal: "aibrix", means: "a folder in the root, `SegmentConfig.Dir`", read: func(r *reader, v string) error {
		if r.namespace = strings.ToLower(v); r.namespace != filepath.Base(r.namespace) || !filepath.IsLocal(r.namespace) || r.namespace == "." {
			return fmt.Errorf("%q is no name of a folder", v)
		}
		return nil
	}},
	{name: "ROCKSDB_ROOT", normal: "~/.kv_cache_ol/rocksdb", means: "the root of ROCKSDB", read: root("ROCKSDB")},
	{name: "SHFS_ROOT", normal: "~/.kv_cache_ol/shfs", means: "the root of SHFS; one process opens it, others share nothing", read: root("SHFS")},
	refused("L2_CACHE_COMPRESSION", "", "blocks are kept as they are", ""),
	idle("L2_CACHE_OP_BATCH", "32", "32 blocks are written at once, and those of a prompt are read at once"),
	{name: "L2_CACHE_PER_TOKEN_TIMEOUT_MS", normal: "20", means: "`Disk.PerToken`", read: func(r *reader, v string) error {
		ms, err := whole(v, 1, 1e6)
		r.Store.Disk.PerToken = time.Duration(ms) * time.Millisecond
		return err
	}},
	refused("L2_CACHE_PLACEMENT_POLICY", "SIMPLE", "`SpreadSlots` is SIMPLE, in a program of your own", "simple"),
	idle("L2_CACHE_KEY_BUILDER", "ROLLING_HASH", "the keys are the engine's own hashes"),
	{name: "L2_CACHE_INGESTION_TYPE", normal: "HOT", means: "`Disk.Ingest`", read: func(r *reader, v string) (err error) {
		r.Store.Disk.Ingest, err = oneOf(v, offload.Hot, offload.All, offload.Evicted)
		return err
	}},
	{name: "L2_CACHE_INGESTION_MAX_INFLIGHT_TOKENS", normal: "0", means: "`Disk.MaxInFlight`; 0: an eighth of the memory, as no write is synchronous", read: func(r *reader, v string) (err error) {
		r.Store.Disk.MaxInFlight, err = whole(v, 0, math.MaxInt32)
		return err
	}},
	idle("L2_CACHE_NUM_ASYNC_WORKERS", "8", "one goroutine writes, and each read has its own"),
	refused("META_SERVICE_BACKEND", "", "no service is asked; `SpreadSlots` reads its JSON", ""),
	idle("META_SERVICE_REFRESH_INTERVAL_S", "30", "no service is asked"),
	idle("META_SERVICE_URL", "", "no service is asked"),
	idle("META_SERVICE_CLUSTER_META_KEY", "", "no service is asked"),
	refused("MOCK_USE_RDMA", "0", noRDMA, "0", "false"),
	idle("MOCK_USE_MPUT_MGET", "0", noService),
	refused("MOCK_USE_GDR_PUT", "0", noGDR, "0", "false"),
	refused("MOCK_USE_GDR_GET", "0", noGDR, "0", "false"),
	idle("MOCK_USE_NOOP", "0", noService),
	idle("ROCKSDB_TTL_S", "600", "blocks go by the bound in bytes"),
	idle("ROCKSDB_WRITE_BUFFER_SIZE", "67108864", byBytes),
	idle("ROCKSDB_TARGET_FILE_SIZE_BASE", "67108864", byBytes),
	idle("ROCKSDB_MAX_WRITE_BUFFER_NUMBER", "3", byBytes),
	idle("ROCKSDB_MAX_TOTAL_WAL_SIZE", "134217728", byBytes),
	idle("ROCKSDB_MAX_BACKGROUND_JOBS", "8", "nothing runs in the background"),
	idle("INFINISTORE_HOST_ADDR", "127.0.0.1", noService),
	idle("INFINISTORE_SERVICE_PORT", "12345", noService),
	refused("INFINISTORE_CONNECTION_TYPE", "RDMA", noRDMA, "tcp"),
	idle("INFINISTORE_IB_PORT", "1", noService),
	idle("INFINISTORE_LINK_TYPE", "Ethernet", noService),
	refused("INFINISTORE_VISIBLE_DEV_LIST", "", noRDMA, ""),
	refused("INFINISTORE_USE_GDR", "1", noGDR, "0", "false"),
	idle("HPKV_REMOTE_ADDR", "127.0.0.1", noService),
	idle("HPKV_REMOTE_PORT", "12346", noService),
	idle("HPKV_LOCAL_ADDR", "127.0.0.1", noService),
	idle("HPKV_LOCAL_PORT", "12345", noService),
	refused("HPKV_USE_GDR", "1", noGDR, "0", "false"),
	idle("PRISKV_REMOTE_ADDR", "127.0.0.1", noService),
	idle("PRISKV_REMOTE_PORT", "6379", noService),
	idle("PRISKV_PASSWORD", "", noService),
	idle("PRISKV_USE_MPUT_MGET", "0", noService),
	idle("PRISKV_USE_ZERO_COPY", "0", noService),
	idle("PRIS_REMOTE_ADDR", "127.0.0.1", noService),
	idle("PRIS_REMOTE_PORT", "6379", noService),
	idle("PRIS_PASSWORD", "", noService),
	idle("PRIS_USE_MPUT_MGET", "0", noService),
	refused("TRANSPORT_RDMA_ADDR_RANGE", "::/0", noRDMA),
	refused("PROFILING_ENABLED", "0", "there is no profiler", "0", "false"),
	idle("PROFILING_SERVER_ADDRESS", "http://0.0.0.0:4040", "there is no profiler"),
	idle("EIC_CONFIG_FILE", "", noService),
}

func doubleGet(r *reader, v string) (err error) {
	d := &r.Store.Disk
	blocks, part, both := strings.Cut(v, ",")
	if d.MinMissing, err = whole(strings.TrimSpace(blocks), 0, math.MaxInt32); err != nil {
		return err
	}
	d.MinMissing = max(d.MinMissing, 1) // 0 is the default of a Disk, and nobody reads no blocks
	if both {
		if d.MinMissingPart, err = strconv.ParseFloat(strings.TrimSpace(part), 64); err != nil || !(d.MinMissingPart >= 0 && d.MinMissingPart <= 1) {
			return fmt.Errorf("%q is not a number of blocks and a part of 0 to 1", v)
		}
	}
	d.MinMissingPart = max(d.MinMissingPart, math.SmallestNonzeroFloat64) // any
	return nil
}

func backend(r *reader, v string) error {
	switch r.backend = strings.ToUpper(v); r.backend {
	case "", "ROCKSDB", "SHFS":
		return nil
	case "MOCK", "EIC":
		return fmt.Errorf("%s is refused: %s", r.backend, noService)
	case "INFINISTORE", "HPKV", "PRISKV", "PRIS":
		return fmt.Errorf("%s is refused: %s", r.backend, noRDMA)
	}
	return fmt.Errorf("%q is no backend", v)
}

// root returns what reads the directory of a backend.
func root(backend string) func(*reader, string) error {
	return func(r *reader, v string) error {
		name := backend + "_ROOT"
		if _, set := r.set[name]; r.backend != backend {
			if set {
				r.note(name, "the backend is another")
			}
			return nil
		}
		if rest, ok := strings.CutPrefix(v, "~/"); ok {
			if r.home == "" {
				return fmt.Errorf("%s is in a home directory, and HOME is not set", v)
			}
			v = filepath.Join(r.home, rest)
		}
		if v == "" {
			return errors.New("no directory")
		}
		r.Segments = &offload.SegmentConfig{Dir: filepath.Join(v, r.namespace)}
		return nil
	}
}

func whole(v string, least, most int) (int, error) {
	n, err := strconv.Atoi(v)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%q is not a whole number of %d to %d", v, least, most)
	}
	return n, nil
}

// orNone reads a number of which -1 is none.
func orNone(v string) (int, error) {
	if v == "-1" {
		return 0, nil
	}
	return whole(v, 1, math.MaxInt32)
}

func number(v string, above, below float64) (float64, error) {
	n, err := strconv.ParseFloat(v, 64)
	if err != nil || !(n > above && n < below) {
		return 0, fmt.Errorf("%q is not a number between %v and %v", v, above, below)
	}
	return n, nil
}

func oneOf[T ~string](v string, of ...T) (T, error) {
	if t := T(strings.ToLower(v)); slices.Contains(of, t) {
		return t, nil
	}
	return "", fmt.Errorf("%q is not one of %q", v, of)
}
