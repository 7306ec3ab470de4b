package resp

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// spec is a command that is served.
type spec struct {
	name   string
	arity  int  // arguments with the name; negative: at least as many
	keys   bool // it has keys, from the first argument on
	always bool // it needs no password
	set    bool // conn.set handles it
	do     func(c *conn, args []string) error
}

// version is that of the redis-server whose answers these are.
const version = "7.0.15"

var commands map[string]spec

func init() { // COMMAND refers to the table
	commands = make(map[string]spec)
	for _, s := range []spec{
		{name: "auth", arity: -2, always: true, do: (*conn).auth},
		{name: "client", arity: -2, do: (*conn).client},
		{name: "command", arity: -1, do: (*conn).command},
		{name: "config", arity: -2, do: (*conn).config},
		{name: "dbsize", arity: 1, do: (*conn).dbSize},
		{name: "del", arity: -2, keys: true, do: (*conn).del},
		{name: "exists", arity: -2, keys: true, do: (*conn).exists},
		{name: "flushall", arity: -1, do: (*conn).flushAll},
		{name: "get", arity: 2, keys: true, do: (*conn).mget},
		{name: "hello", arity: -1, always: true, do: (*conn).hello},
		{name: "info", arity: -1, do: (*conn).info},
		{name: "mget", arity: -2, keys: true, do: (*conn).mget},
		{name: "ping", arity: -1, do: (*conn).ping},
		{name: "pttl", arity: 2, keys: true, do: (*conn).ttl},
		{name: "quit", arity: -1, always: true, do: (*conn).quitNow},
		{name: "scan", arity: -2, do: (*conn).scan},
		{name: "select", arity: 2, do: (*conn).selectDB},
		{name: "set", arity: -3, keys: true, set: true},
		{name: "strlen", arity: 2, keys: true, do: (*conn).strlen},
		{name: "ttl", arity: 2, keys: true, do: (*conn).ttl},
	} {
		commands[s.name] = s
	}
}

func (c *conn) auth(args []string) error {
	switch {
	case len(args) > 3:
		c.out.errorf("ERR syntax error")
	case len(args) == 2 && len(c.s.cfg.Password) == 0:
		c.out.errorf("ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?")
	case len(args) == 2 && c.login("default", args[1]), len(args) == 3 && c.login(args[1], args[2]):
		c.out.ok()
	}
	return nil
}

func (c *conn) ping(args []string) error {
	switch len(args) {
	case 1:
		c.out.line('+', "PONG")
	case 2:
		c.out.bulk(args[1])
	default:
		c.out.errorf("ERR wrong number of arguments for 'ping' command")
	}
	return nil
}

func (c *conn) quitNow([]string) error {
	c.quit = true
	c.out.ok()
	return nil
}

func (c *conn) selectDB(args []string) error {
	switch n, err := strconv.Atoi(args[1]); {
	case err != nil:
		c.out.errorf("ERR value is not an integer or out of range")
	case n < 0 || n >= databases:
		c.out.errorf("ERR DB index is out of range")
	default:
		c.db = uint32(n)
		c.out.ok()
	}
	return nil
}

const databases = 16

// mget is GET and MGET. The metadata of a pair promises its bytes.
func (c *conn) mget(args []string) error {
	if args[0] = strings.ToLower(args[0]); args[0] == "mget" {
		c.out.array(len(args) - 1)
	}
	for _, key := range args[1:] {
		if len(c.out.b) > outBytes {
			if err := c.flush(); err != nil {
				return err
			}
		}
		id, what := c.ref(key)
		e := c.s.values.get(id, what == metadata)
		c.s.values.countGet(e != nil)
		if e == nil {
			c.out.null()
			continue
		}
		if what == metadata {
			c.out.bulk(e.meta)
			c.s.values.release(e)
			continue
		}
		err := c.value(e)
		c.s.values.release(e)
		if err != nil {
			return err
		}
	}
	return nil
}

// exists promises that the values that it reports stay for Config.Promise.
func (c *conn) exists(args []string) error {
	n := int64(0)
	for _, key := range args[1:] {
		id, _ := c.ref(key)
		if e := c.s.values.get(id, true); e != nil {
			c.s.values.release(e)
			n++
		}
	}
	c.out.integer(n)
	return nil
}

// del counts the keys that were there. One half of a pair is deleted with the other one.
func (c *conn) del(args []string) error {
	keys := make(map[ref]map[string]bool)
	for _, key := range args[1:] {
		id, _ := c.ref(key)
		if keys[id] == nil {
			keys[id] = make(map[string]bool)
		}
		keys[id][key] = true
	}
	n := 0
	for id, names := range keys {
		there, err := c.s.values.remove(id, false)
		if err != nil {
			c.out.errorf("ERR not deleted: %v", err)
			return nil
		}
		if there {
			n += len(names)
		}
	}
	c.out.integer(int64(n))
	return nil
}

func (c *conn) strlen(args []string) error {
	id, what := c.ref(args[1])
	n := int64(0)
	if e := c.s.values.get(id, false); e != nil {
		if n = e.size; what == metadata {
			n = int64(len(e.meta))
		}
		c.s.values.release(e)
	}
	c.out.integer(n)
	return nil
}

// ttl is TTL and PTTL.
func (c *conn) ttl(args []string) error {
	id, _ := c.ref(args[1])
	n := int64(-2)
	if e := c.s.values.get(id, false); e != nil {
		n = -1
		if e.ends != 0 {
			n = max(e.ends-c.s.values.now().UnixMilli(), 0)
			if strings.EqualFold(args[0], "ttl") {
				n = (n + 500) / 1000
			}
		}
		c.s.values.release(e)
	}
	c.out.integer(n)
	return nil
}

// keys returns the keys of the protocol that a value has.
func (n name) keys() []string {
	if n.pair {
		return []string{n.name + "kv_bytes", n.name + "metadata"}
	}
	return []string{n.name}
}

func (c *conn) dbSize([]string) error {
	total := 0
	for at := 0; ; {
		found, next := c.s.values.names.scan(c.db, at, 64)
		for _, n := range found {
			if c.s.values.there(n) {
				total += len(n.keys())
			}
		}
		if at = next; at == 0 {
			c.out.integer(int64(total))
			return nil
		}
	}
}

func (c *conn) scan(args []string) error {
	from, err := strconv.ParseUint(args[1], 10, 31)
	if err != nil {
		c.out.errorf("ERR invalid cursor")
		return nil
	}
	match, count := "*", 10
	for i := 2; i < len(args); i += 2 {
		option := strings.ToUpper(args[i])
		switch {
		case i+1 == len(args):
			c.out.errorf("ERR syntax error")
			return nil
		case option == "MATCH":
			match = args[i+1]
		case option == "COUNT":
			if count, err = strconv.Atoi(args[i+1]); err != nil {
				c.out.errorf("ERR value is not an integer or out of range")
				return nil
			}
			if count < 1 {
				c.out.errorf("ERR syntax error")
				return nil
			}
		case option == "TYPE" && strings.EqualFold(args[i+1], "string"):
		default:
			c.out.errorf("ERR SCAN with '%s' is not served", args[i])
			return nil
		}
	}
	found, next := c.s.values.names.scan(c.db, int(from), min(count, 1000))
	var keys []string
	for _, n := range found {
		if !c.s.values.there(n) {
			continue
		}
		for _, k := range n.keys() {
			if globbed(match, k) {
				keys = append(keys, k)
			}
		}
	}
	c.out.array(2)
	c.out.bulk(strconv.Itoa(next))
	c.out.array(len(keys))
	for _, k := range keys {
		c.out.bulk(k)
	}
	return nil
}

// globbed matches a pattern of Redis: as in path.Match, but a star takes slashes, too, and ^
// negates a class as it does there.
func globbed(pattern, s string) bool {
	hide := strings.NewReplacer("/", "\x00")
	ok, err := path.Match(hide.Replace(pattern), hide.Replace(s))
	return ok && err == nil
}

func (c *conn) flushAll(args []string) error {
	switch {
	case !c.s.cfg.FlushAll:
		c.out.errorf("ERR FLUSHALL is not allowed")
	case len(args) > 2 || len(args) == 2 && !strings.EqualFold(args[1], "async") && !strings.EqualFold(args[1], "sync"):
		c.out.errorf("ERR syntax error")
	default:
		if err := c.s.values.flush(); err != nil {
			c.out.errorf("ERR not flushed: %v", err)
		} else {
			c.out.ok()
		}
	}
	return nil
}

// hello is HELLO [version [AUTH user password] [SETNAME name]].
func (c *conn) hello(args []string) error {
	resp := c.out.resp
	if len(args) > 1 {
		n, err := strconv.Atoi(args[1])
		if err != nil {
			c.out.errorf("ERR Protocol version is not an integer or out of range")
			return nil
		}
		if n != 2 && n != 3 {
			c.out.errorf("NOPROTO unsupported protocol version")
			return nil
		}
		resp = n
	}
	name, named := "", false
	for i := 2; i < len(args); i++ {
		switch left := len(args) - i - 1; {
		case strings.EqualFold(args[i], "auth") && left >= 2:
			if !c.login(args[i+1], args[i+2]) {
				return nil
			}
			i += 2
		case strings.EqualFold(args[i], "setname") && left >= 1:
			name, named = args[i+1], true
			if !printable(name) {
				c.out.errorf("ERR Client names cannot contain spaces, newlines or special characters.")
				return nil
			}
			i++
		default:
			c.out.errorf("ERR Syntax error in HELLO option '%s'", args[i])
			return nil
		}
	}
	if !c.authed {
		c.out.errorf("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time")
		return nil
	}
	if named {
		c.name = name
	}
	c.out.resp = resp
	c.out.mapHeader(7)
	for _, p := range []struct{ key, value string }{{"server", "redis"}, {"version", version}} {
		c.out.bulk(p.key)
		c.out.bulk(p.value)
	}
	c.out.bulk("proto")
	c.out.integer(int64(resp))
	c.out.bulk("id")
	c.out.integer(c.id)
	for _, p := range []struct{ key, value string }{{"mode", "standalone"}, {"role", "master"}} {
		c.out.bulk(p.key)
		c.out.bulk(p.value)
	}
	c.out.bulk("modules")
	c.out.array(0)
	return nil
}

// printable reports whether CLIENT SETNAME takes a name.
func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < '!' || r > '~' })
}

func (c *conn) client(args []string) error {
	sub := strings.ToLower(args[1])
	want, served := map[string]int{"id": 2, "getname": 2, "setname": 3, "setinfo": 4}[sub]
	switch {
	case !served:
		c.out.errorf("ERR unknown subcommand '%s'. Try CLIENT HELP.", args[1])
	case len(args) != want:
		c.out.errorf("ERR wrong number of arguments for 'client|%s' command", sub)
	case sub == "id":
		c.out.integer(c.id)
	case sub == "getname" && c.name == "":
		c.out.null()
	case sub == "getname":
		c.out.bulk(c.name)
	case sub == "setname" && !printable(args[2]):
		c.out.errorf("ERR Client names cannot contain spaces, newlines or special characters.")
	case sub == "setname":
		c.name = args[2]
		c.out.ok()
	default: // SETINFO
		c.out.ok()
	}
	return nil
}

// command answers COMMAND and COMMAND COUNT: redis-cli sends COMMAND if there is no COMMAND DOCS.
func (c *conn) command(args []string) error {
	switch {
	case len(args) > 1 && strings.EqualFold(args[1], "count"):
		c.out.integer(int64(len(commands)))
	case len(args) > 1 && strings.EqualFold(args[1], "docs"):
		c.out.mapHeader(0)
	case len(args) > 1:
		c.out.errorf("ERR unknown subcommand '%s'. Try COMMAND HELP.", args[1])
	default:
		c.out.array(len(commands))
		for _, s := range commands {
			first := int64(0)
			if s.keys {
				first = 1
			}
			last := first
			if s.keys && s.arity == -2 {
				last = -1
			}
			c.out.array(6)
			c.out.bulk(s.name)
			c.out.integer(int64(s.arity))
			c.out.array(0)
			c.out.integer(first)
			c.out.integer(last)
			c.out.integer(first)
		}
	}
	return nil
}

// config is CONFIG GET.
func (c *conn) config(args []string) error {
	if !strings.EqualFold(args[1], "get") {
		c.out.errorf("ERR unknown subcommand '%s'. Try CONFIG HELP.", args[1])
		return nil
	}
	if len(args) < 3 {
		c.out.errorf("ERR wrong number of arguments for 'config|get' command")
		return nil
	}
	cfg := &c.s.cfg
	appendOnly := "no"
	if cfg.Segments != nil {
		appendOnly = "yes"
	}
	var found []string
	for _, p := range []struct{ key, value string }{
		{"appendfsync", "no"}, {"appendonly", appendOnly}, {"databases", strconv.Itoa(databases)},
		{"maxclients", strconv.Itoa(cfg.Clients)}, {"maxmemory", strconv.FormatInt(cfg.MemoryBytes, 10)},
		{"maxmemory-policy", "allkeys-" + string(cfg.Policy)},
		{"proto-max-bulk-len", strconv.FormatInt(cfg.MaxValue, 10)}, {"save", ""}, {"timeout", "0"},
	} {
		if slices.ContainsFunc(args[2:], func(a string) bool { return globbed(strings.ToLower(a), p.key) }) {
			found = append(found, p.key, p.value)
		}
	}
	c.out.mapHeader(len(found) / 2)
	for _, s := range found {
		c.out.bulk(s)
	}
	return nil
}

// info is INFO, without the fields that have no meaning here.
func (c *conn) info(args []string) error {
	s, v := c.s, c.s.values
	st := v.store.Stats()
	s.mu.Lock()
	conns, total, refused, done := len(s.conns), s.nextID, s.refused, s.commands
	for o := range s.conns {
		done += o.commands.Load()
	}
	s.mu.Unlock()
	v.mu.Lock()
	n, incoming, promised, halves := v.count, v.incoming, v.promised, len(v.halves)
	v.mu.Unlock()
	var b strings.Builder
	section := func(title string, pairs ...any) {
		asked := len(args) == 1 || slices.ContainsFunc(args[1:], func(a string) bool {
			return strings.EqualFold(a, title) || slices.Contains([]string{"all", "default", "everything"}, strings.ToLower(a))
		})
		if !asked {
			return
		}
		if b.Len() > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString("# " + title + "\r\n")
		for i := 0; i < len(pairs); i += 2 {
			fmt.Fprintf(&b, "%v:%v\r\n", pairs[i], pairs[i+1])
		}
	}
	section("Server", "redis_version", version, "redis_mode", "standalone", "server_name", "kvoffload",
		"uptime_in_seconds", int64(time.Since(s.started)/time.Second))
	section("Clients", "connected_clients", conns, "maxclients", s.cfg.Clients)
	section("Memory", "used_memory", int64(st.Blocks)*int64(s.cfg.PageBytes), "maxmemory", s.cfg.MemoryBytes,
		"maxmemory_policy", "allkeys-"+string(s.cfg.Policy), "incoming_bytes", incoming, "promised_bytes", promised)
	section("Persistence", "loading", 0)
	section("Stats", "total_connections_received", total, "rejected_connections", refused, "total_commands_processed", done,
		"keyspace_hits", n.hits, "keyspace_misses", n.misses, "stored_values", n.stored, "lost_values", n.lost,
		"waiting_halves", halves, "dropped_halves", n.halvesDropped, "refused_promises", n.promiseRefused,
		"evicted_pages", st.Evicted, "disk_hit_pages", st.Disk.Hits, "disk_written_pages", st.Disk.Written,
		"disk_unwritten_pages", st.Disk.Unwritten+st.Disk.OverQuota)
	section("Replication", "role", "master", "connected_slaves", 0)
	section("Cluster", "cluster_enabled", 0)
	c.out.text(b.String())
	return nil
}
