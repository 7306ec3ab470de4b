package main

var zmtpMutants = table{breaks: "./internal/zmtp", rows: []mutant{
	{"a budget ends nobody", "Budget.exchange", "if largest == c || b.held[largest] <= n {", "if true {", "TestBudgetGoesToTheSmall"},

	{"a connection keeps the buffer of a burst", "Conn.await", "\t\tc.resize(firstBuffer)\n", "", "TestMemoryOfConnections"},
	{"old frames keep the buffer before", "Conn.move", "\tclear(c.frames[:cap(c.frames)]) // they would keep the buffer before alive\n", "", "TestMemoryOfConnections"},
	{"an idle 3.0 peer has no time to rest", "Conn.await", "if c.is31 || !idle {", "if c.is31 {", "TestMemoryOfConnections"},
	{"a connection begins with a large buffer", "newConn", "c.buf = make([]byte, firstBuffer)", "c.buf = make([]byte, bulkBuffer)", "TestMemoryOfConnections"},
	{"buffers do not grow with the traffic", "Conn.makeRoom", "if c.filled && len(c.buf) < bulkBuffer {", "if false {", "TestFaultWorkForEachFrame"},
	{"a deadline for each read", "Conn.fill", "if !until.IsZero() && (c.armed.IsZero() || until.Before(c.armed)) {", "if true {", "TestFaultWorkForEachFrame"},
	{"a deadline that was due early is the end", "Conn.fill", "if !errors.Is(err, os.ErrDeadlineExceeded) || c.armed.Equal(until) {", "if true {", "TestHeartbeat"},

	{"silence within a message is not dead", "Conn.handshake", "\tc.patience = 2 * c.cfg.Heartbeat\n", "", "TestFaultHalfOpenConnection"},

	{"a message has all the time in the world", "Conn.need", "\t\tuntil := c.deadline\n", "\t\tuntil := now.Add(time.Hour)\n", "TestDripsHaveAnEnd"},
	{"silence is never told", "Conn.await", "if !idle && c.cfg.OnIdle != nil {", "if false {", "TestOnIdle"},
	{"silence is told again and again", "Conn.await", "\t\tidle = true\n", "", "TestOnIdle"},
	{"no PING", "Conn.await", "if err := c.sendCommand(\"PING\", []byte{0, 0}); err != nil {", "if err := error(nil); err != nil {", "TestHeartbeat"},
	{"no PONG", "Conn.control", "return true, c.sendCommand(\"PONG\", cmd.data[2:])", "return true, nil", "TestFaultPingUnanswered"},
	{"PONG without the context", "Conn.control", "c.sendCommand(\"PONG\", cmd.data[2:])", "c.sendCommand(\"PONG\", nil)", "TestFaultPingUnanswered"},
	{"a second silence is borne", "Conn.await", "\t\tpinged = true\n", "", "TestHeartbeat"},

	{"metadata has the limit of commands", "Conn.readReady", "c.frame(0, c.cfg.MaxMetadata, c.cfg.MaxMetadata)", "c.frame(0, c.cfg.MaxMetadata, c.cfg.MaxCommand)", "TestMaxMetadata"},
	{"identities of any length", "parseMetadata", "len(value) > MaxIdentity", "false", "TestHandshakeRefuses"},
	{"the last identity counts", "parseMetadata", "if err = once(&identified,", "identified = false\n\t\t\tif err = once(&identified,", "TestHandshakeRefuses"},

	{"dead hosts are asked late", "keepAlive", "Idle:     3 * time.Second,", "Idle:     15 * time.Second,", "TestKeepAliveFindsDeadHostsInSeconds"},
	{"no keepalive for guests", "Listen", "lc := net.ListenConfig{KeepAliveConfig: keepAlive}", "lc := net.ListenConfig{}", "TestKeepAliveFindsDeadHostsInSeconds"},

	{"a frame's length is believed", "Conn.frame", "if size > uint64(limit) {", "if false {", "TestFaultFrameOf2To60Bytes"},

	{"a cancelled Dial goes on", "Handshake", "stop := context.AfterFunc(ctx, func() { _ = c.Close() })", "stop := context.AfterFunc(ctx, func() {})", "TestFaultDialToASilentPeer"},

	{"a grown buffer takes from nobody", "Conn.makeRoom", "\tif err := c.charge(size); err != nil {\n\t\treturn err\n\t}\n", "", "TestBudgetIsShared"},
	{"large buffers are kept", "Conn.shrink", "if len(c.buf) > keepBuffer && c.end-c.start <= bulkBuffer/2 {", "if false {", "TestBudgetComesBack"},
	{"a heartbeat within a message is part of it", "Conn.command", "\t\tc.end = c.start + at + copy(c.buf[c.start+at:], c.buf[c.start+f.end:c.end])\n", "\t\tc.start += 0\n", "TestPingIsAnswered"},
}}
