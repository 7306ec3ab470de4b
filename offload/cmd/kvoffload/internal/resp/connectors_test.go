package resp

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"io"
	"math/big"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex/offload"
)

var connectorBlocks = flag.Int("resp.blocks", 2000, "long form: blocks of the connectors, 100000")

// chunk is the length of the values of resp://. Those of others vary.
const chunk = 24_000

// block returns the bytes of block i, different from all others.
func block(i, size int) string { return made("block"+strconv.Itoa(i), 0, size) }

// exactly reads as many bytes as expected, like LMCache's client for resp://, which hangs if there
// are fewer (csrc/redis/resp.cpp at 08dcc73). This one fails instead.
func (c *client) exactly(want string) {
	c.t.Helper()
	got := make([]byte, min(5, len(want)))
	if _, err := io.ReadFull(c.in, got); err != nil {
		c.t.Fatal(err)
	}
	if string(got) == want[:len(got)] {
		rest := make([]byte, len(want)-len(got))
		if _, err := io.ReadFull(c.in, rest); err != nil {
			c.t.Fatal(err)
		}
		got = append(got, rest...)
	}
	if string(got) != want {
		c.t.Fatalf("%.60q, not %.60q: the client hangs", got, want)
	}
}

// connector is how one of LMCache's connectors uses a block.
type connector struct {
	name string
	key  func(i int) string
	size func(i int) int
	put  func(c *client, key, data string)
	has  func(c *client, key string) bool
	get  func(c *client, key, want string) (there bool) // want is the content of the block
}

func (c *client) check(got, want string) bool {
	c.t.Helper()
	if got != null && got != bulk(want) {
		c.t.Fatalf("%.60q, not %.60q", got, want)
	}
	return got != null
}

func length(data string) string { return fmt.Sprintf("%028d", len(data)) } // 28 bytes, as in RemoteMetadata

var connectors = []connector{
	{
		name: "redis", // redis_connector.py, RedisConnector
		key:  func(i int) string { return fmt.Sprintf("vllm@org/model@8@%d@%x", i%8, i) },
		size: func(i int) int { return i % 7 * chunk / 6 },
		put: func(c *client, key, data string) {
			c.want(ok, "SET", key+"kv_bytes", data)
			c.want(ok, "SET", key+"metadata", length(data))
		},
		has: func(c *client, key string) bool { return c.ask("EXISTS", key+"metadata") == one },
		get: func(c *client, key, want string) bool {
			if !c.check(c.ask("GET", key+"metadata"), length(want)) {
				return false
			}
			if !c.check(c.ask("GET", key+"kv_bytes"), want) {
				c.t.Fatalf("%s: metadata without bytes", key)
			}
			return true
		},
	}, {
		name: "sentinel's order", // the metadata first: redis_connector.py, RedisSentinelConnector
		key:  func(i int) string { return fmt.Sprintf("org/model@1@0@%x@bfloat16@%d", i, i%32) },
		size: func(i int) int { return i % 5 * chunk / 4 },
		put: func(c *client, key, data string) {
			c.want(ok, "SET", key+"metadata", length(data))
			c.want(ok, "SET", key+"kv_bytes", data)
		},
		has: func(c *client, key string) bool { return c.ask("EXISTS", key+"metadata") == one },
		get: func(c *client, key, want string) bool {
			return c.check(c.ask("GET", key+"kv_bytes"), want)
		},
	}, {
		name: "resp", // redis_connector.py, RESPConnector
		key:  func(i int) string { return fmt.Sprintf("org/model@1@0@%x@half", i) },
		size: func(int) int { return chunk },
		put: func(c *client, key, data string) {
			c.send(fmt.Appendf(nil, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n", len(key), key, chunk))
			c.send([]byte(data))
			c.send([]byte("\r\n"))
			c.exactly(ok)
		},
		has: func(c *client, key string) bool {
			c.send(fmt.Appendf(nil, "*2\r\n$6\r\nEXISTS\r\n$%d\r\n%s\r\n", len(key), key))
			got := make([]byte, 4)
			if _, err := io.ReadFull(c.in, got); err != nil || string(got) != one && string(got) != zero {
				c.t.Fatalf("EXISTS: %q, %v", got, err)
			}
			return string(got) == one
		},
		get: func(c *client, key, want string) bool { // called only after has
			c.send(fmt.Appendf(nil, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", len(key), key))
			c.exactly(bulk(want))
			return true
		},
	}, {
		name: "valkey", // valkey_connector.py at ccef52f: glide's pipeline and MGET
		key:  func(i int) string { return fmt.Sprintf("{org/model@1@0@%x@half@tag%%x}:", i) },
		size: func(i int) int { return i % 3 * chunk / 2 },
		put: func(c *client, key, data string) {
			c.send(append(array("SET", key+"kv_bytes", data), array("SET", key+"metadata", length(data))...))
			c.exactly(ok)
			c.exactly(ok)
		},
		has: func(c *client, key string) bool { return c.ask("EXISTS", key+"metadata") == one },
		get: func(c *client, key, want string) bool {
			got := c.ask("MGET", key+"metadata", key+"kv_bytes")
			if got != "*2\r\n"+null+null && got != "*2\r\n"+bulk(length(want))+bulk(want) {
				c.t.Fatalf("%s: %.100q", key, got)
			}
			return got != "*2\r\n"+null+null
		},
	}, {
		name: "valkey of one key", // valkey_connector.py at 029fe9a, with a time to live
		key:  func(i int) string { return fmt.Sprintf("org/model@2@1@%x@fp8_e4m3fn", i) },
		size: func(int) int { return chunk },
		put:  func(c *client, key, data string) { c.want(ok, "SET", key, data, "EX", "86400") },
		has:  func(c *client, key string) bool { return c.ask("EXISTS", key) == one },
		get:  func(c *client, key, want string) bool { return c.check(c.ask("GET", key), want) },
	},
}

// TestConnectors has clients of all connectors put and read blocks, more than fit. A block that
// EXISTS has reported is read with its bytes.
func TestConnectors(t *testing.T) {
	cfg := small()
	cfg.MemoryBytes, cfg.Promise, cfg.MaxValue = 8<<20, 2*time.Second, 100<<10
	t.Run("memory", func(t *testing.T) { useConnectors(t, cfg, *connectorBlocks) })
	segments, err := offload.OpenSegments(offload.SegmentConfig{Dir: t.TempDir(), Bytes: 12 << 20, Buffered: true})
	must(t, err)
	defer segments.Close()
	cfg.Segments = segments
	t.Run("disk", func(t *testing.T) { useConnectors(t, cfg, *connectorBlocks/2) })
}

func useConnectors(t *testing.T, cfg Config, blocks int) {
	at := newClock()
	s, sock := serveAt(t, cfg, at.now)
	var window sync.RWMutex // read-locked from EXISTS to GET; time advances and DEL is sent without it
	var had, lost atomic.Int64
	var next atomic.Int64
	var running sync.WaitGroup
	for worker := range 8 {
		running.Go(func() {
			c := dial(t, sock)
			r := rand.New(rand.NewPCG(1, uint64(worker)))
			read := func(i int) {
				kind := connectors[i%len(connectors)]
				key := kind.key(i)
				window.RLock()
				defer window.RUnlock()
				if !kind.has(c, key) {
					lost.Add(1)
					return
				}
				had.Add(1)
				if !kind.get(c, key, block(i, kind.size(i))) {
					t.Errorf("%s: %s was there", kind.name, key)
				}
			}
			for {
				i := int(next.Add(1))
				if i > blocks {
					return
				}
				kind := connectors[i%len(connectors)]
				kind.put(c, kind.key(i), block(i, kind.size(i)))
				for range 3 {
					read(i - r.IntN(min(i, 1000))) // also blocks of other clients
				}
				if i%20 == 0 {
					window.Lock()
					if got := c.ask("DEL", kind.key(i)+"metadata"); got != one && got != zero {
						t.Errorf("DEL: %q", got)
					}
					at.advance(time.Second)
					window.Unlock()
				}
			}
		})
	}
	running.Wait()
	st := s.values.store.Stats()
	t.Logf("%d of %d were there; %d pages evicted, %d promises refused, %d values lost", had.Load(), had.Load()+lost.Load(), st.Evicted, s.values.count.promiseRefused, s.values.count.lost)
	if had.Load() < int64(blocks/20) || st.Evicted < uint64(blocks) {
		t.Errorf("%d blocks were there, %d pages evicted", had.Load(), st.Evicted)
	}
}

// TestEdge reads blocks that EXISTS has reported while others fill the memory.
func TestEdge(t *testing.T) {
	cfg, at := small(), newClock()
	cfg.MemoryBytes, cfg.Promise, cfg.MaxValue, cfg.Policy = 1<<20, 2*time.Second, 100<<10, "lru"
	_, sock := serveAt(t, cfg, at.now)
	c, other := dial(t, sock), dial(t, sock)
	resp := connectors[2]
	there, gone := 0, 0
	for i := 0; there < 1000; i++ {
		resp.put(c, resp.key(i), block(i, chunk))
		// 43 values fit in memory, so one put 20 to 49 before may be there or not.
		if back := i - 20 - i%30; back >= 0 && resp.has(c, resp.key(back)) {
			there++
			for j := range 3 {
				other.want(ok, "SET", fmt.Sprint("other", i, j), block(j, chunk))
			}
			resp.get(c, resp.key(back), block(back, chunk))
			at.advance(500 * time.Millisecond)
		} else if back >= 0 {
			gone++
		}
	}
	t.Logf("%d were there, %d not", there, gone)
	if gone < 100 {
		t.Errorf("%d of %d were gone: that is no edge", gone, gone+there)
	}
}

func TestTCP(t *testing.T) {
	cfg := small()
	cfg.PageBytes, cfg.MemoryBytes, cfg.MaxValue = 0, 64<<20, 8<<20
	s, _ := serve(t, cfg)
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	must(t, err)
	about := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(crand.Reader, about, about, key.Public(), key)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	for _, secure := range []bool{false, true} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		addr := l.Addr().String()
		if secure {
			l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
		}
		var running sync.WaitGroup
		running.Go(func() { s.Serve(t.Context(), l) })
		defer running.Wait()
		defer l.Close()
		nc, err := net.Dial("tcp", addr)
		if secure {
			nc, err = tls.Dial("tcp", addr, &tls.Config{RootCAs: roots})
		}
		must(t, err)
		defer nc.Close()
		c := newClient(t, nc)
		for _, size := range []int{1, 100_000, 262_048 - dataAt, 262_048 - dataAt + 1, 5_000_000} {
			v := made("tcp", size, size)
			c.want(ok, "SET", "k", v)
			c.want("*3\r\n"+bulk(v)+null+bulk(v), "MGET", "k", "none", "k")
		}
	}
}

// program returns the path of a program of Debian's redis-tools or python3-redis.
func program(t *testing.T, name string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil && len(args) > 0 {
		err = exec.Command(path, args...).Run()
	}
	if err != nil {
		if os.Getenv("KVINDEX_REQUIRE_REDIS") == "1" {
			t.Fatalf("%s %q: %v", name, args, err)
		}
		t.Skipf("%s %q: %v", name, args, err)
	}
	return path
}

func run(t *testing.T, in string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(in)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
	return string(out)
}

// TestTools runs redis-cli and redis-benchmark against a Server.
func TestTools(t *testing.T) {
	cli, benchmark := program(t, "redis-cli"), program(t, "redis-benchmark")
	var sock string
	for _, version := range []string{"-2", "-3"} {
		_, sock = serve(t, small())
		out := run(t, "set k v\nget k\nstrlen k\nset pkv_bytes x\nset pmetadata y\nmget pkv_bytes pmetadata\nttl k\ndbsize\nscan 0\ndel k pmetadata\nexists k\nhset k a b\n", cli, version, "-s", sock)
		want := "OK\nv\n1\nOK\nOK\nx\ny\n-1\n3\n0\nk\npkv_bytes\npmetadata\n2\n0\nERR unknown command 'hset', with args beginning with: 'k' 'a' 'b' \n\n"
		if out != want {
			t.Errorf("redis-cli %s: %q, not %q", version, out, want)
		}
		if out := run(t, "", cli, version, "-s", sock, "info"); !strings.Contains(out, "role:master\r\n") || !strings.Contains(out, "keyspace_hits:") {
			t.Errorf("redis-cli %s info: %q", version, out)
		}
	}
	out := run(t, "", benchmark, "-s", sock, "-q", "-n", "500", "-c", "5", "-P", "4", "-d", "5000", "-r", "100", "-t", "ping,set,get")
	if n := strings.Count(out, "requests per second"); n != 4 || strings.Contains(out, "ERR") {
		t.Errorf("redis-benchmark: %s", out)
	}
}

// TestPython has Debian's Python client do the same as LMCache's connector for redis://.
func TestPython(t *testing.T) {
	python := program(t, pythonName(), "-c", "import redis.asyncio")
	cfg := small()
	cfg.Password, cfg.Promise, cfg.MemoryBytes = []byte("secret"), time.Minute, 64<<20
	_, sock := serve(t, cfg)
	out := run(t, `
import asyncio, redis, redis.asyncio, sys
url = "unix://default:secret@" + sys.argv[1] + "?db=3"
kv = bytes(range(256)) * 400

sync = redis.Redis.from_url(url, client_name="lmcache")
assert sync.get("none") is None and not sync.exists("none")
assert sync.set("akv_bytes", kv) and sync.get("akv_bytes") is None
assert sync.set("ametadata", b"m") and sync.exists("ametadata")
assert sync.get("ametadata") == b"m" and sync.get("akv_bytes") == kv
assert sync.mget("ametadata", "none", "akv_bytes") == [b"m", None, kv]
assert sync.dbsize() == 2 and sorted(sync.scan_iter()) == [b"akv_bytes", b"ametadata"]
assert sync.info()["role"] == "master" and sync.config_get("save") == {"save": ""}
assert sync.delete("ametadata") == 1 and sync.get("akv_bytes") is None
assert sync.set("k", kv, ex=1000) and 0 < sync.ttl("k") <= 1000 and sync.strlen("k") == len(kv)
try:
    sync.hset("k", "a", "b")
    sys.exit("HSET is served")
except redis.ResponseError as e:
    assert "hset" in str(e).lower(), e

async def main():
    pool = redis.asyncio.ConnectionPool.from_url(url, max_connections=150)
    r = redis.asyncio.Redis(connection_pool=pool)
    async def put(i):
        await r.set(f"{i}kv_bytes", kv[i:])
        await r.set(f"{i}metadata", str(len(kv) - i))
    async def get(i):
        assert await r.exists(f"{i}metadata")
        n = await r.get(f"{i}metadata")
        data = await r.get(f"{i}kv_bytes")
        assert int(n) == len(data) and data == kv[i:], i
    await asyncio.gather(*(put(i) for i in range(50)))
    await asyncio.gather(*(get(i) for i in range(50)))
    await pool.disconnect()

asyncio.run(main())
print("done")
`, python, "-", sock)
	if out != "done\n" {
		t.Error(out)
	}
}

func pythonName() string {
	if name := os.Getenv("KVINDEX_PYTHON"); name != "" {
		return name
	}
	return "/usr/bin/python3"
}
