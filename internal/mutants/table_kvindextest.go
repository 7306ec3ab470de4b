package main

var kvindextestMutants = table{breaks: "./kvindextest", rows: []mutant{
	{"all messages are dropped", "Engine.publish", "\t\te.drop--\n", "", "TestDrop"},
	{"what is dropped has no number", "Engine.publish", "\t\te.publisher.Skip(payload)\n", "", "TestDrop"},
	{"a replay loses nothing", "Engine.LoseReplies", "keep >= 0 && i >= keep", "false", "TestLoseReplies"},
	{"lost replies have no end", "Engine.LoseReplies", "keep >= 0 && i >= keep", "i >= keep", "TestLoseReplies"},
	{"a restart keeps the cache", "Engine.Restart", "if err := e.start(); err != nil {", "if err := error(nil); err != nil {", "TestRestart"},
	{"a restart keeps the numbers", "Engine.Restart", "return e.publisher.Restart()", "e.publisher.Disconnect()\n\treturn nil", "TestRestart"},
	{"a restart ends no request", "Engine.Restart", "\te.endCalls(ErrRestarted)\n", "", "TestServeEnds"},
	{"Close ends no request", "Engine.Close", "\te.endCalls(ErrClosed)\n", "", "TestServeEnds"},
	{"a closed engine takes requests", "Engine.submit", "if e.closed {", "if false {", "TestServeEnds"},
	{"a request outlives its context", "Engine.Submit", "case <-ctx.Done():", "case <-context.Background().Done():", "TestServeEnds"},
	{"what is cancelled goes on", "Engine.Submit", "\t\tc.handle.Abort()\n", "", "TestServeEnds"},
	{"the number that is due before a restart will do", "Engine.lacks", "came := sent > 0 &&", "came := sent > 0 ||", "TestRestart"},
	{"a lost connection that is back will do", "Engine.lacks", "if e.cfg.Replay && source.State != kvindex.StateUncertain {", "if e.cfg.Replay {", "TestRestart"},
	{"an engine that connects needs two messages", "Engine.lacks", `(e.cfg.Connect != "" || !stream.Heard.Before(stream.Connected))`, "!stream.Heard.Before(stream.Connected)", "TestConnect"},
	{"what nobody heard is waited for", "Engine.lacks", "!e.cfg.Replay && sent == 0", "false", "TestDisconnect"},
	{"what a replay would bring is not waited for", "Engine.lacks", "\tif e.cfg.Replay {\n\t\tnext = e.publisher.Next()\n\t}\n", "", "TestDisconnect"},
	{"a topic may be cut elsewhere", "EngineConfig.validate", "pod != c.Pod || model != c.Model", `pod == "" || model == ""`, "TestMisuse"},
}}
